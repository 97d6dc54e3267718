"""Line plots, read off what is drawn: lines, bands and legends against values computed by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis import Study, plots
from analysis.names import HIGHLIGHT
from cl2r.errors import InputError
from tests.support.drawn import bands, bc_by_hand, legend, lines, runs_of, values
from tests.support.made_study import made_study


def test_bc_curves_are_means_over_seeds_with_a_band_of_95_percent_intervals() -> None:
    study = made_study(seeds=(0, 1, 2), tasks=4)
    figure = plots.plot_bc_curves(study)
    axes = figure.axes[0]
    assert figure.get_suptitle() == "icons, bands: 95 % intervals over 3 seeds"
    by_hand = {
        name: np.array([[bc_by_hand(values(study, run), t) for t in (2, 3, 4)] for run in runs_of(study, method)])
        for name, method in {"ER": "er", "CL²R": "cl2r"}.items()
    }
    for name, curves in by_hand.items():
        assert lines(axes)[name] == np.round(list(zip((2, 3, 4), curves.mean(axis=0), strict=True)), 9).tolist()
    assert len(bands(axes)) == 2
    half = 4.302653 * by_hand["ER"].std(axis=0, ddof=1)[0] / np.sqrt(3)
    low, high = (by_hand["ER"].mean(axis=0)[0] + sign * half for sign in (-1, 1))
    corners = np.asarray(bands(axes)[0].get_paths()[0].vertices)
    edge = corners[corners[:, 0] == 2, 1]
    assert edge.min() == pytest.approx(low)
    assert edge.max() == pytest.approx(high)


def test_wide_bands_are_cut_so_that_lines_stay_readable_and_narrow_ranges_are_widened() -> None:
    def drawn(spread: float) -> Figure:
        study = made_study(seeds=(0, 1), tasks=2)
        first = (study.matrix["t"] == 2) & study.matrix["run"].isin(study.runs.loc[study.runs["seed"] == 0, "run"])
        flat = study.matrix["t"].map({1: 0.70, 2: 0.71}).add(spread * first)
        return plots.plot_bc_curves(replace(study, matrix=study.matrix.assign(accuracy=flat)))

    wide, narrow = drawn(0.02), drawn(0.0)
    assert "Intervals that leave a panel are cut." in wide.get_suptitle()
    assert np.ptp(wide.axes[0].get_ylim()) < 0.07, "the interval is 0.25 long"
    assert "cut" not in narrow.get_suptitle()
    assert np.ptp(narrow.axes[0].get_ylim()) >= 0.02


def test_one_panel_per_number_of_tasks_and_the_legend_in_the_order_of_methods() -> None:
    figure = plots.plot_bc_curves(made_study(("cl2r", "fixed", "er"), grid={"scenario.n_tasks": [2, 4]}))
    assert [axes.get_title() for axes in figure.axes] == ["2 tasks", "4 tasks"]
    assert legend(figure) == ["ER", "Fixed", "CL²R"]
    places = [points[0][0] for points in lines(figure.axes[0]).values()]
    assert len(set(places)) == 3, "a single task: side by side"


def test_groups_of_a_method_keep_its_colour() -> None:
    figure = plots.plot_bc_curves(made_study(("er", "cl2r"), (0,), grid={"memory.per_class": [1, 2]}))
    drawn = {str(line.get_label()): line for line in figure.axes[0].get_lines()}
    one, two = drawn["CL²R, memory=1"], drawn["CL²R, memory=2"]
    assert one.get_color() == two.get_color() == HIGHLIGHT.colour
    assert one.get_linestyle() != two.get_linestyle()
    alone = plots.plot_bc_curves(made_study(("cl2r",), (0,), grid={"memory.per_class": [1, 2, 3]}))
    colours = [line.get_color() for line in alone.axes[0].get_lines() if str(line.get_label()).startswith("CL²R")]
    assert len(set(colours)) == 3, "shades of one colour"
    assert colours[-1] == HIGHLIGHT.colour.lower()


def test_of_many_groups_those_with_the_highest_service_accuracy_are_shown_and_the_rest_counted() -> None:
    study = made_study(("er", "cl2r"), (0,), grid={"memory.per_class": range(10)})
    figure = plots.plot_bc_curves(study)
    assert "12 of 20 groups" in figure.get_suptitle()
    best = study.runs.sort_values("service_accuracy", ascending=False)["memory.per_class"][:12]
    shown = lines(figure.axes[0])
    assert sorted(int(name.split("=")[1]) for name in shown) == sorted(best)

    lacking = replace(study, runs=study.runs.drop(columns=["service_accuracy", "BC"]))
    assert len(lines(plots.plot_bc_curves(lacking).axes[0])) == 12, "the first, if there is nothing to choose by"
    counts = made_study(("cl2r",), (0,), grid={"scenario.n_tasks": [2, 6], "memory.per_class": range(5)})
    figure = plots.plot_bc_curves(replace(counts, runs=counts.runs.assign(service_accuracy=1 / counts.runs["tasks"])))
    assert len(figure.axes) == 2, "groups of two tasks are no better because they have two tasks"


def test_reference_methods_are_always_shown() -> None:
    others = ["lwf", "icarl", "lucir", "bic", "podnet", "wa", "foster", "fan", "hoc", "bct", "upper_bound", "cores"]
    shown = lines(plots.plot_bc_curves(made_study(("er", *others, "cl2r"), (0,))).axes[0])
    assert len(shown) == 12
    assert {"ER", "CL²R"} <= set(shown)


@pytest.mark.parametrize(
    ("pairs", "metric", "words"), [("report", None, {"TAR@0.01"}), ("tuning", "TAR@0.1", {"TAR@0.1", "tuning"})]
)
def test_the_heading_names_other_pairs_and_metrics_than_usual(pairs: str, metric: str | None, words: set[str]) -> None:
    study = made_study(("er",), (0,))
    usual = plots.plot_bc_curves(study)
    assert (usual.get_suptitle(), bands(usual.axes[0])) == ("icons, one seed", [])
    old = plots.plot_bc_curves(replace(study, matrix=study.matrix.drop(columns="metric")))
    assert lines(old.axes[0]) == lines(usual.axes[0]), "frames without the column hold accuracies"
    rates = [study.matrix.assign(metric=f"TAR@{rate}") for rate in (0.01, 0.1)]
    heading = plots.plot_bc_curves(replace(study, matrix=pd.concat(rates)), pairs, metric).get_suptitle()
    assert words <= set(heading.replace(",", " ").split())


def test_a_long_heading_stays_inside_the_figure() -> None:
    study = made_study(seeds=(0, 1, 2))
    named = study.runs.assign(**{"data.name": "/data/some_faces_in_the_wild.npz"})
    study = replace(study, runs=named, matrix=study.matrix.assign(metric="TAR@0.01"))
    for figure in (
        plots.plot_bc_curves(study, "tuning"),
        plots.plot_matrices(study, "tuning"),
        plots.plot_matrices(made_study(tasks=2)),
    ):
        figure.draw_without_rendering()
        extent = figure._suptitle.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1


def test_finished_runs_without_a_matrix_are_counted_in_the_heading() -> None:
    study = made_study(seeds=(0, 1))
    lost = runs_of(study, "er")[0]
    study = replace(study, matrix=study.matrix[study.matrix["run"] != lost])
    for figure in (plots.plot_bc_curves(study), plots.plot_matrices(study)):
        assert "1 of 4 runs" in figure.get_suptitle().replace("\n", " ")
    kept = values(study, runs_of(study, "er")[1])
    assert lines(plots.plot_bc_curves(study).axes[0])["ER"][0] == [2, round(bc_by_hand(kept, 2), 9)]


def test_metrics_over_memory() -> None:
    study = made_study(("er", "cl2r"), (0, 1), grid={"memory.per_class": [0, 5, 20]})
    figure = plots.plot_memory(study)
    for axes, metric in zip(figure.axes, ("service_accuracy", "BC", "AC"), strict=True):
        by_hand = study.runs[study.runs["method.name"] == "er"].groupby("memory.per_class")[metric].mean()
        assert lines(axes)["ER"] == [[size, round(value, 9)] for size, value in by_hand.items()]
        assert len(bands(axes)) == 2


def test_one_seed_has_the_intervals_over_its_pairs() -> None:
    study = made_study(("er",), (0,), grid={"memory.per_class": [0, 5]})
    figure = plots.plot_memory(study)
    assert "one seed, bands: 95 % intervals over its pairs" in figure.get_suptitle()
    corners = np.asarray(bands(figure.axes[0])[0].get_paths()[0].vertices)
    first = study.runs.set_index("memory.per_class").loc[0]
    wanted = [first["service_accuracy_low"], first["service_accuracy_high"]]
    assert [corners[corners[:, 0] == 0, 1].min(), corners[corners[:, 0] == 0, 1].max()] == pytest.approx(wanted)
    bare = study.runs.drop(columns=[name for name in study.runs if name.endswith(("_low", "_high"))])
    assert bands(plots.plot_memory(replace(study, runs=bare)).axes[0]) == []


def test_service_over_the_one_number_that_varies() -> None:
    study = made_study(("er", "cl2r"), (0, 1), grid={"scenario.n_tasks": [2, 3, 5]})
    figure = plots.plot_service(study)
    by_hand = study.runs[study.runs["method.name"] == "er"].groupby("scenario.n_tasks")["service_accuracy"].mean()
    assert lines(figure.axes[0])["ER"] == [[count, round(value, 9)] for count, value in by_hand.items()]
    assert figure.axes[0].get_xlabel() == "number of tasks T"
    both = made_study(("er",), (0,), grid={"scenario.n_tasks": [2, 3], "memory.per_class": [1, 2]})
    with pytest.raises(InputError, match=r"memory\.per_class"):
        plots.plot_service(both)
    assert len(plots.plot_service(both, "scenario.n_tasks").axes) == 3


def test_lambda_has_one_point_per_trial_and_the_tuning_pairs() -> None:
    study = made_study(("cl2r",), (0, 1), grid={"method.lambda_base": [0.1, 1.0, 10.0]})
    axes = plots.plot_lambda(study).axes[1]
    assert axes.get_ylabel().startswith("BC")
    assert axes.get_xscale() == "log"
    for column, name in {"BC": "CL²R", "tuning_BC": "CL²R, tuning pairs"}.items():
        means = study.runs.groupby("method.lambda_base")[column].mean()
        assert lines(axes)[name] == [[value, round(mean, 9)] for value, mean in means.items()]
        points = [tuple(row) for row in study.runs[["method.lambda_base", column]].to_numpy()]
        drawn = [set(map(tuple, line.get_xydata())) for line in axes.get_lines() if line.get_linestyle() == "None"]
        assert set(points) in drawn
    faces = {str(line.get_label()): to_hex(line.get_markerfacecolor()) for line in axes.get_lines()}
    assert faces["CL²R, tuning pairs"] == "#ffffff" != faces["CL²R"]


def test_a_sweep_is_one_cloud_with_a_running_mean() -> None:
    drawn = [float(value) for value in np.geomspace(0.1, 100, 15)]
    study = made_study(("cl2r",), (0,), grid={"method.lambda_base": drawn})
    study = replace(study, runs=study.runs.assign(**{"memory.per_class": [*range(1, 15), 1]}))
    figure = plots.plot_lambda(study)
    line = lines(figure.axes[1])["CL²R"]
    assert line[7] == [round(drawn[7], 9), round(study.runs["BC"][5:10].mean(), 9)]
    assert "mean of 5 neighbouring trials" in figure.get_suptitle()
    assert legend(plots.plot_memory(study)) == legend(figure)


def test_the_front_is_drawn_in_steps_and_numbered() -> None:
    study = made_study(("er", "fixed", "cl2r"), (0, 1))
    stored = study.runs["method.name"].map({"er": 1e6, "fixed": 3e6, "cl2r": 2e6})
    study = replace(study, runs=study.runs.assign(stored_bytes=stored))
    assert plots.plot_pareto(study).axes[0].get_ylabel().startswith("service accuracy")
    figure = plots.plot_pareto(study, y="BC")
    assert figure.axes[0].get_xlim()[0] == 0
    means = study.runs.groupby("method.name")["BC"].mean()
    assert means["er"] < means["fixed"] < means["cl2r"], "the fixed one is dearer than CL²R, which beats it"
    assert legend(figure) == ["1  ER", "2  CL²R", "Fixed"]
    steps = next(line for line in figure.axes[0].get_lines() if line.get_drawstyle() == "steps-post")
    heights = [means["er"], means["cl2r"], means["cl2r"]]
    np.testing.assert_allclose(steps.get_xydata(), np.column_stack([[1, 2, 3], heights]))
    found = {text.get_text(): text.xy for text in figure.axes[0].texts}
    assert found == {"1": (1, pytest.approx(means["er"])), "2": (2, pytest.approx(means["cl2r"]))}


def test_efficiency_counts_tasks_that_were_trained_at_every_number_of_workers() -> None:
    study = made_study(("er",), (0, 1), tasks=3)
    first, second = runs_of(study, "er")
    rows = [  # run, task, workers, images, seconds, reused
        (first, 1, 1, 100, 1.0, True),
        (first, 2, 1, 100, 10.0, False),
        (first, 3, 1, 300, 20.0, False),
        (second, 1, 4, 100, 1.0, False),
        (second, 2, 4, 100, 4.0, False),
        (second, 3, 4, 300, 6.0, False),
    ]
    tasks = pd.DataFrame(rows, columns=["run", "task", "workers", "images", "seconds", "reused"])
    speed, efficiency = plots.plot_scaling(replace(study, tasks=tasks)).axes
    assert lines(speed)["ER"] == [[1, round(400 / 30, 9)], [4, 40]]
    assert lines(efficiency)["ER"] == [[1, 1], [4, 0.75]]


def test_equal_runs_of_two_studies_tell_how_training_scales() -> None:
    one = made_study(("er",), (0,), tasks=3)
    two = one.tasks.assign(workers=2, seconds=8.0)
    unknown = one.tasks["task"].map({1: None, 2: False, 3: False}).astype("boolean")  # may have been reused
    odd = two.assign(seconds=one.tasks["task"].map({1: 100.0, 2: 8.0, 3: 8.0}), reused=unknown)
    for tasks in (two, odd.astype({"workers": "Int64", "task": "Int64", "run": "string"})):
        _, efficiency = plots.plot_scaling(one, replace(one, tasks=tasks)).axes
        assert lines(efficiency)["ER"] == [[1, 1], [2, 0.625]], "10 s alone, 8 s together"


def test_stationarity_draws_a_chain_once_and_the_bound_where_there_is_one() -> None:
    study = made_study(("cl2r", "cl2r+slerp", "er"), (0, 1))
    same = study.tasks["key"].str.replace("cl2r+slerp", "cl2r").str.replace(r"-0000000\d", "", regex=True)
    study = replace(study, tasks=study.tasks.assign(key=same))
    figure = plots.plot_stationarity(study)
    assert len(figure.axes) == 4
    assert set(lines(figure.axes[0])) == {"CL²R", "ER"}
    own = study.tasks[study.tasks["run"].isin(runs_of(study, "er"))].groupby("task")["drift_cosine"].mean()
    assert lines(figure.axes[0])["ER"] == [[2, round(own[2], 9)], [3, round(own[3], 9)]]
    assert set(lines(figure.axes[3])) == {"CL²R", "bound of vertex cosine"}
    assert legend(figure)[-1] == "bound of vertex cosine"
    unbounded = replace(study, tasks=study.tasks.drop(columns="vertex_bound"))
    assert set(legend(plots.plot_stationarity(unbounded))) == {"CL²R", "ER"}


@pytest.mark.parametrize(
    ("draw", "changes", "named"),
    [
        (plots.plot_memory, {}, "memory.per_class"),
        (plots.plot_lambda, {"grid": {"memory.per_class": [1, 2]}}, "method.lambda_base"),
        (plots.plot_pareto, {"grid": {"memory.per_class": [0, 20]}}, "stored_bytes differs by less than 2"),
        (plots.plot_service, {}, "no field"),
        (plots.plot_plane, {"methods": ["er"]}, "2 to 9"),
        (plots.plot_scaling, {}, "workers"),
        (lambda study: plots.plot_pareto(study, x="stored_byte"), {}, "'stored_byte' .*'stored_bytes'"),
        (lambda study: plots.plot_pareto(study, y="BCE"), {}, "'BCE'"),
        (lambda study: plots.plot_matrix(study, "er"), {}, "'er'"),
        (lambda study: plots.plot_matrix(study, study.runs["run"][0]), {"failed": (0,)}, "icons-er"),
        (lambda study: plots.plot_mean_matrix(study, []), {}, "no run"),
        (
            lambda study: plots.plot_mean_matrix(study, [*study.runs["run"]]),
            {"grid": {"scenario.n_tasks": [2, 3]}},
            "tasks",
        ),
        (lambda study: plots.plot_bc_curves(replace(study, matrix=study.matrix[:6]), "tuning"), {}, "tuning pairs"),
    ],
)
def test_a_refusal_names_what_is_missing(draw: Callable[[Study], Figure], changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        draw(made_study(**changes))
