"""Pictures of the first screen: positions are those of the values, texts say them, and odd studies can be drawn."""

import dataclasses
import itertools
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import analysis.report
from analysis import Study
from analysis.groups import finished, group_fields
from analysis.names import METHODS, method_style
from analysis.report.figures import labelled
from analysis.report.first_screen import OVER_BOTH, OVER_PAIRS, OVER_SEEDS, first_screen
from analysis.report.pictures import Picture, lines_picture, matrices_picture, plane_picture, ranking_picture
from analysis.report.pictures.drawing import (
    SHAPES,
    marker,
    metric_scale,
    overlap,
    placed_labels,
    round_ticks,
    spread_out,
    text_width,
)
from analysis.stats import shown_estimates
from analysis.tables.table import signed
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.metrics import BC, SERVICE_ACCURACY
from tests.support.made_study import made_study

NASTY = '</title></svg><script>alert("x")</script>\'&'
CLOSE = 5e-4


def runs_of(study: Study) -> pd.DataFrame:
    runs = labelled(study, group_fields(study.runs))
    return runs[finished(runs)]


def parsed(picture: Picture) -> ElementTree.Element:
    """Return the elements of a picture; fails if they are not well-formed."""
    return ElementTree.fromstring(f"<div>{picture.svg}</div>")


def of_class(element: ElementTree.Element, *names: str) -> list[ElementTree.Element]:
    return [one for one in element.iter() if set(names) <= set(one.get("class", "").split())]


def number(text: str | None) -> float:
    return float((text or "nan").removesuffix("%"))


def axis(element: ElementTree.Element, side: str) -> np.poly1d:
    """Return the map from positions to values that the ticks of a panel show."""
    ticks = of_class(element, "tick", side)
    places = [number(tick.get(side)) - (4 if side == "y" else 0) for tick in ticks]
    assert len(ticks) > 1
    return np.poly1d(np.polyfit(places, [float(tick.text or "nan") for tick in ticks], 1))


def marks(element: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """Return the position of every marker by the words that are shown over it."""
    found = {}
    for group in element.iter("g"):
        for spot in group.findall("svg[@class='marker']"):
            found[group.findtext("title", "")] = number(spot.get("x")), number(spot.get("y"))
    return found


@pytest.fixture(scope="module")
def study() -> Study:
    return made_study(["er", "cl2r", "lwf"], [0, 1, 2], tasks=4)


@pytest.fixture(scope="module")
def runs(study: Study) -> pd.DataFrame:
    return runs_of(study)


def test_points_of_the_plane_are_at_their_values_and_say_them(runs: pd.DataFrame) -> None:
    drawn = parsed(plane_picture(runs))
    x, y = axis(drawn, "x"), axis(drawn, "y")
    found = marks(drawn)
    assert len(found) == 3
    for label, own in runs.groupby("group"):
        ((words, (across, down)),) = [item for item in found.items() if item[0].startswith(f"{label}: ")]
        assert x(across) == pytest.approx(own["service_accuracy"].mean(), abs=CLOSE)
        assert y(down) == pytest.approx(own["BC"].mean(), abs=CLOSE)
        assert f"service accuracy {own['service_accuracy'].mean():.3f} [" in words
        assert f"BC {signed('BC', own['BC'].mean())} [" in words
        assert words in (drawn.findtext("svg/desc") or "")


def test_bars_of_the_plane_end_where_the_intervals_do(runs: pd.DataFrame) -> None:
    drawn = parsed(plane_picture(runs))
    x, y = axis(drawn, "x"), axis(drawn, "y")
    bars = of_class(drawn, "interval")
    flat = sorted(
        (x(number(bar.get("x1"))), x(number(bar.get("x2")))) for bar in bars if bar.get("y1") == bar.get("y2")
    )
    upright = sorted(
        (y(number(bar.get("y1"))), y(number(bar.get("y2")))) for bar in bars if bar.get("x1") == bar.get("x2")
    )
    for metric, shown in ((SERVICE_ACCURACY.name, flat), (BC.name, upright)):
        table = shown_estimates(runs, metric, ["group"])
        np.testing.assert_allclose(shown, sorted(zip(table["low"], table["high"], strict=True)), atol=CLOSE)


def test_the_plane_has_lines_at_zero_and_at_the_references_of_er(runs: pd.DataFrame) -> None:
    drawn = parsed(plane_picture(runs))
    (zero,) = of_class(drawn, "zero")
    assert axis(drawn, "y")(number(zero.get("y1"))) == pytest.approx(0, abs=CLOSE)
    places = [axis(drawn, "x")(number(line.get("x1"))) for line in of_class(drawn, "reference")]
    er = runs[runs["method.name"] == "er"]
    assert places == pytest.approx([er["first_accuracy"].mean(), er["reindexed_accuracy"].mean()], abs=CLOSE)
    texts = [text.findtext("title") for text in of_class(drawn, "muted") if text.find("title") is not None]
    assert texts == [
        f"never upgrade (ER): service accuracy {er['first_accuracy'].mean():.3f}",
        f"re-index (ER): service accuracy {er['reindexed_accuracy'].mean():.3f}",
    ]


def test_cells_have_their_values_colours_and_frames(study: Study, runs: pd.DataFrame) -> None:
    picture = matrices_picture(study, runs)
    figures = parsed(picture).findall("div/figure")
    assert [figure.findtext("figcaption/span") for figure in figures] == ["ER", "LwF", "CL²R"]
    methods = ["er", "lwf", "cl2r"]
    limit = float(re.findall(r"\+([\d.]+)", str(picture.svg).split("matrices-legend")[1])[0])
    cells = study.matrix[study.matrix["pairs"] == "report"]
    for figure, method in zip(figures, methods, strict=True):
        own = cells[cells["run"].isin(runs.loc[runs["method.name"] == method, "run"])]
        means = own.groupby(["t", "k"])[["accuracy", "compatible"]].agg(lambda values: values.astype(float).mean())
        drawn = {cell.findtext("title", ""): cell for cell in of_class(figure, "cell")}
        assert len(drawn) == 6
        for (t, k), (accuracy, share) in means.iterrows():
            alone = means.loc[(k, k), "accuracy"]
            if t == k:
                assert f"queries and gallery by φ_{k}: {alone:.3f}" in [
                    cell.findtext("title") for cell in of_class(figure, "self")
                ]
                continue
            gain = signed("BC", accuracy - alone)
            words = f"queries by φ_{t}, gallery by φ_{k}: {accuracy:.3f}, {gain} against {alone:.3f}"
            cell = drawn[f"{words}, compatible in {round(3 * share)} of 3 seeds"]
            looks = cell.get("class", "").split()
            assert ("plus" in looks) == (accuracy > alone)
            assert number(cell.get("style", "").removeprefix("--amount: ")) == pytest.approx(
                min(abs(accuracy - alone) / limit, 1), abs=1e-3
            )
            assert ("framed" in looks, "some" in looks) == (share > 0, 0 < share < 1)
            side = 230 / 4
            assert (number(cell.get("x")) // side, number(cell.get("y")) // side) == (k - 1, t - 1)


def test_the_scale_of_colours_is_the_same_for_all_matrices_and_cuts_the_largest_differences(
    study: Study, runs: pd.DataFrame
) -> None:
    picture = matrices_picture(study, runs)
    amounts = [float(value) for value in re.findall(r"--amount: ([\d.]+)", picture.svg)]
    assert max(amounts) == 1
    assert sum(amount == 1 for amount in amounts) < len(amounts) / 2
    assert len(re.findall(r'class="ramp"', picture.svg)) == 1
    assert re.search(r"≤ -0\.0\d+<", picture.svg)


def test_the_ablation_is_two_rows_of_three_with_heads() -> None:
    study = made_study(ABLATION_CELLS, [0], tasks=3)
    grid = parsed(matrices_picture(study, runs_of(study)))[0]
    texts = [part.text if part.tag == "span" else part.findtext("figcaption/span") for part in grid]
    assert texts == [
        *[None, "no distillation", "FD", "FD^M"],
        *["Trainable classifier", "ER", "Trainable, FD", "Trainable, FD^M"],
        *["Fixed classifier", "Fixed", "Fixed, FD", "CL²R"],
    ]
    few = made_study(ABLATION_CELLS[:5], [0], tasks=3)
    assert "classifier" not in matrices_picture(few, runs_of(few)).svg


def test_of_one_seed_a_cell_is_compatible_or_not() -> None:
    study = made_study(["er", "cl2r"], [0])
    picture = matrices_picture(study, runs_of(study))
    assert ", not compatible</title>" in picture.svg
    assert "seeds</title>" not in picture.svg
    assert "in every seed<" not in picture.svg.split("matrices-legend")[1]


def test_matrices_of_many_tasks_have_few_numbers_and_no_dotted_frames() -> None:
    study = made_study(["lwf"], [0, 1], tasks=20)
    drawn = parsed(matrices_picture(study, runs_of(study)))
    assert [text.text for text in of_class(drawn, "number")] == [
        "1",
        "5",
        "10",
        "15",
        "20",
        *[of_class(drawn, "number")[-1].text],
    ]
    assert len(of_class(drawn, "cell")) == 190
    assert of_class(drawn, "cell", "framed")
    assert not of_class(drawn, "some")


def test_matrices_may_differ_in_size() -> None:
    study = made_study(["er"], [0], grid={"scenario.n_tasks": [2, 4]})
    figures = parsed(matrices_picture(study, runs_of(study))).findall("div/figure")
    assert [len(of_class(figure, "cell")) for figure in figures] == [1, 6]


def test_rows_of_the_ranking_are_sorted_and_at_their_values() -> None:
    study = made_study([*METHODS, "er+aligner"], [0, 1], tasks=3)
    runs = runs_of(study)
    picture = ranking_picture(runs)
    names, *panels = parsed(picture).findall("div/div/svg")
    means = runs.groupby("group")[["service_accuracy", "BC"]].mean().sort_values("service_accuracy", ascending=False)
    labels = ["".join(text.itertext()).removeprefix(text.findtext("title", "")) for text in names]
    assert [label.removesuffix(" †") for label in labels] == list(means.index)
    assert {label for label in labels if label.endswith("†")} == {"BCT †", "CoReS †", "UB †"}
    assert "† trains on all data at every task." in picture.caption
    for panel, metric in zip(panels, ("service_accuracy", "BC"), strict=True):
        x, found = axis(panel, "x"), marks(panel)
        rows = sorted(found.items(), key=lambda item: item[1][1])
        assert [words.partition(": ")[0] for words, _ in rows] == list(means.index)
        assert [x(across) for _, (across, _) in rows] == pytest.approx(list(means[metric]), abs=2 * CLOSE)
        assert {round(b - a) for (_, (_, a)), (_, (_, b)) in itertools.pairwise(rows)} == {20}
    assert [axis(panels[1], "x")(number(line.get("x1"))) for line in of_class(panels[1], "reference")] == pytest.approx(
        [0], abs=CLOSE
    )
    assert len(of_class(panels[0], "reference")) == 2


def test_lines_are_at_their_values_with_references_over_the_field() -> None:
    study = made_study(["er", "cl2r"], [0, 1, 2], grid={"scenario.n_tasks": [2, 3, 5]})
    runs = runs_of(study)
    panels = parsed(lines_picture(study, runs, "scenario.n_tasks")).findall("div/svg")
    for panel, metric, shown in zip(panels, ("service_accuracy", "BC"), ("service accuracy", "BC"), strict=True):
        y, found = axis(panel, "y"), marks(panel)
        table = shown_estimates(runs, metric, ["method.name", "scenario.n_tasks"])
        assert len(found) == 6
        for (method, count), row in table.iterrows():
            ((words, (_, down)),) = [
                item for item in found.items() if item[0].startswith(f"{METHODS[method]}, T={count}: {shown} ")
            ]
            assert y(down) == pytest.approx(row["mean"], abs=2 * CLOSE)
            assert f"{row['mean']:.3f}".removeprefix("-") in words
            assert f"{row['low']:.3f}".removeprefix("-") in words
    by_count = runs[runs["method.name"] == "er"].groupby("scenario.n_tasks")
    for path, column in zip(of_class(panels[0], "reference"), ("first_accuracy", "reindexed_accuracy"), strict=True):
        points = re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d", ""))
        assert [axis(panels[0], "y")(float(down)) for _, down in points] == pytest.approx(
            list(by_count[column].mean()), abs=2 * CLOSE
        )
    (ticks,) = [[number(tick.get("x")) for tick in of_class(panels[0], "tick", "x")]]
    assert (ticks[2] - ticks[1]) / (ticks[1] - ticks[0]) == pytest.approx(2, abs=0.01)  # 2, 3, 5


@pytest.mark.parametrize("values", [[0, 5, 10], [1, 2, 20]], ids=["zero", "more than tenfold"])
def test_values_that_cannot_be_linear_are_evenly_spaced(values: list[int]) -> None:
    study = made_study(["er", "cl2r"], [0], grid={"memory.per_class": values})
    drawn = parsed(lines_picture(study, runs_of(study), "memory.per_class"))
    ticks = [number(tick.get("x")) for tick in of_class(drawn[0][0], "tick", "x")]
    assert ticks[2] - ticks[1] == pytest.approx(ticks[1] - ticks[0])


def test_a_value_without_a_finished_run_has_no_point() -> None:
    study = made_study(["er", "cl2r"], [0], grid={"scenario.n_tasks": [2, 3, 5]}, failed=[1])
    found = marks(parsed(lines_picture(study, runs_of(study), "scenario.n_tasks"))[0][0])
    assert [words.partition(":")[0] for words in found] == ["ER, T=2", "ER, T=5", "CL²R, T=2", "CL²R, T=3", "CL²R, T=5"]


def test_of_many_lines_the_best_and_the_reference_methods_are_drawn() -> None:
    study = made_study([*list(METHODS)[:12], "cl2r"], [0], grid={"scenario.n_tasks": [2, 3]})
    picture = lines_picture(study, runs_of(study), "scenario.n_tasks")
    labels = [text.text for text in of_class(parsed(picture)[0][0], "label")]
    assert len(labels) == 9
    assert {"ER", "CL²R"} <= set(labels)
    assert "9 of 13 methods" in picture.caption


def test_a_study_over_a_field_is_shown_as_lines(study: Study) -> None:
    counts = made_study(["er", "cl2r"], [0, 1], grid={"scenario.n_tasks": [2, 3]}, failed=[2, 3, 6, 7])  # T=3 failed
    assert [picture.id for picture in first_screen(counts, runs_of(counts)).pictures] == ["lines"]
    assert [picture.id for picture in first_screen(study, runs_of(study)).pictures] == ["matrices", "plane"]


def test_names_are_escaped(study: Study, runs: pd.DataFrame) -> None:
    runs = runs.assign(**{"method.name": runs["method.name"].str.replace("lwf", NASTY)})
    runs["group"] = runs["group"].str.replace("LwF", NASTY)
    hostile = dataclasses.replace(study, runs=runs.drop(columns="group").assign(**{"scenario.n_tasks": [2, 3, 4] * 3}))
    field = runs.assign(**{"scenario.n_tasks": [2, 3, 4] * 3})
    for picture in (
        matrices_picture(study, runs),
        plane_picture(runs),
        ranking_picture(runs),
        lines_picture(hostile, field, "scenario.n_tasks"),
    ):
        assert "<script" not in picture.svg
        texts = [text for element in parsed(picture).iter() for text in (element.text, element.tail) if text]
        assert any(NASTY in text for text in texts)


def test_one_task_is_ranked_by_service_accuracy_without_matrices() -> None:
    study = made_study(["er", "cl2r"], [0, 1], tasks=1)
    runs = runs_of(study)
    assert runs["BC"].isna().all()
    (picture,) = first_screen(study, runs).pictures
    assert picture.id == "ranking"
    assert len(parsed(picture).findall("div/div/svg")) == 2  # names and one panel
    assert "never upgrade, re-index" in picture.svg


@pytest.mark.parametrize(
    ("study", "words"),
    [
        (made_study(tasks=1, seeds=(0, 1, 2)), [OVER_SEEDS]),  # BC does not exist
        (made_study(seeds=(0,)), [OVER_PAIRS]),
        (made_study(seeds=(0, 1), failed=[0]), [OVER_BOTH]),
        (made_study(failed=[0, 1, 2, 3]), []),
    ],
)
def test_the_first_screen_says_what_its_intervals_are_over(study: Study, words: list[tuple[str, str]]) -> None:
    definitions = first_screen(study, runs_of(study)).definitions
    assert [line for line in definitions if line[0] == OVER_SEEDS[0]] == words


def test_groups_without_bc_are_named_below_the_plane(runs: pd.DataFrame) -> None:
    runs = runs.assign(BC=runs["BC"].astype(float).where(runs["method.name"] != "lwf"))
    picture = plane_picture(runs)
    assert len(marks(parsed(picture))) == 2
    assert picture.caption.endswith("Without BC: LwF.")


def test_older_frames_without_service_accuracy_have_no_points(runs: pd.DataFrame) -> None:
    old = runs.assign(service_accuracy=math.nan)
    assert plane_picture(old).svg == ranking_picture(old.drop(columns="service_accuracy")).svg == ""


def test_a_study_without_cells_has_no_matrices(study: Study, runs: pd.DataFrame) -> None:
    empty = dataclasses.replace(study, matrix=pd.DataFrame())
    assert matrices_picture(empty, runs).svg == ""
    assert [picture.id for picture in first_screen(empty, runs).pictures] == ["plane"]


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_one_group_can_be_drawn(seeds: list[int]) -> None:
    study = made_study(["cl2r"], seeds)
    runs = runs_of(study)
    for picture in (matrices_picture(study, runs), plane_picture(runs), ranking_picture(runs)):
        assert "CL²R" in "".join(parsed(picture).itertext())


def test_a_run_in_two_places_counts_once(runs: pd.DataFrame) -> None:
    assert plane_picture(pd.concat([runs, runs])).svg == plane_picture(runs).svg


def test_every_drawing_has_words_and_the_page_has_its_classes(study: Study, runs: pd.DataFrame) -> None:
    field = made_study(["er", "cl2r"], [0, 1], grid={"memory.per_class": [0, 5]})
    style = (Path(analysis.report.__file__).parent / "page.css").read_text()
    for picture in (
        matrices_picture(study, runs),
        plane_picture(runs),
        ranking_picture(runs),
        lines_picture(field, runs_of(field), "memory.per_class"),
    ):
        images = [svg for svg in parsed(picture).iter("svg") if svg.get("role") == "img"]
        assert images
        assert all(svg[0].tag == "title" and svg[1].tag == "desc" and svg[1].text for svg in images)
        used = {name for element in parsed(picture).iter() for name in element.get("class", "").split()}
        missing = {name for name in used - {"x", "y", "cell"} if f".{name}" not in style}
        assert not missing, picture.id


def test_a_narrow_axis_spans_at_least_two_hundredths() -> None:
    scale = metric_scale(SERVICE_ACCURACY, [0.7531, 0.7532], [math.nan], 0, 100)
    assert scale.high - scale.low >= 0.02
    assert 45 < scale(0.7531) < 55


def test_wide_intervals_are_cut_with_an_arrow() -> None:
    study = made_study(["er", "cl2r"], [0, 1], tasks=4)
    runs = runs_of(study)
    runs.loc[runs["seed"] == 0, "service_accuracy"] += 0.1
    picture = plane_picture(runs)
    drawn = parsed(picture)
    flat = [arrow for arrow in of_class(drawn, "arrow") if re.search(r"rotate\((0|180)\)", arrow.get("transform", ""))]
    assert len(flat) == 4
    assert "Arrows: the interval continues." in picture.caption
    assert "arrow" not in plane_picture(runs[runs["seed"] == 1]).svg
    edges = [number(bar.get(end)) for bar in of_class(drawn, "interval") for end in ("x1", "x2")]
    assert min(edges) >= 62
    assert max(edges) <= 452


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.71, 0.79, ["0.72", "0.74", "0.76", "0.78"]),
        (-0.026, 0.013, ["-0.02", "-0.01", "0.00", "+0.01"]),
        (0.7501, 0.7702, ["0.755", "0.760", "0.765", "0.770"]),
        (-0.4, 0.2, ["-0.4", "-0.2", "0.0", "+0.2"]),
    ],
)
def test_ticks_are_round(low: float, high: float, texts: list[str]) -> None:
    scale = dataclasses.replace(metric_scale(BC, [low, high], [], 0, 1), ticks=tuple(round_ticks(low, high, 5)))
    assert [scale.tick_text(tick, low < 0) for tick in scale.ticks] == texts


def test_accuracies_above_one_have_no_tick() -> None:
    assert max(metric_scale(SERVICE_ACCURACY, [0.9, 1.0], [], 0, 1).ticks) == 1


def test_labels_of_close_points_do_not_overlap() -> None:
    points = [(100.0 + 3 * place, 100.0 + 2 * place) for place in range(6)]
    texts = [f"method {place}" for place in range(6)]
    places = placed_labels(points, texts, (0, 0, 400, 300), [], [])
    boxes = [(x, y - 11, x + text_width(text), y) for (x, y), text in zip(places, texts, strict=True)]
    assert all(overlap(one, other) < 20 for one, other in itertools.combinations(boxes, 2))
    assert all(min(left, top) >= 0 and right <= 400 and bottom <= 300 for left, top, right, bottom in boxes)


def test_names_at_the_ends_of_lines_keep_apart_and_inside() -> None:
    places = spread_out([50, 52, 51, 10, 99], 10, 0, 100)
    assert sorted(places) == pytest.approx([10, 50, 60, 70, 99])
    assert spread_out([98, 99, 100], 10, 0, 100) == pytest.approx([80, 90, 100])


@pytest.mark.parametrize("method", [*METHODS, "er+slerp", "cl2r+aligner", "unknown"])
def test_markers_are_those_of_the_method(method: str) -> None:
    style = method_style(method)
    (shape,) = ElementTree.fromstring(str(marker(style, 1.0, 2.0)))
    assert shape.get("d") == SHAPES[style.marker]
    assert shape.get("stroke" if style.hollow else "fill") == style.colour
