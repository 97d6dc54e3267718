"""Printed figures, read off what is drawn: lines, bands, frames and numbers against figures computed by hand."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn import bands, bc_by_hand, legend, lines, runs_of, values
from made_study import made_study
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis import Study, plots
from analysis.plots import (
    plot_bc_curves,
    plot_lambda,
    plot_matrices,
    plot_matrix,
    plot_mean_matrix,
    plot_memory,
    plot_pareto,
    plot_scaling,
    plot_stationarity,
    write_figures,
)
from analysis.plots.parts import save
from analysis.style import look, nth_look
from cl2r.errors import InputError


def test_bc_curves_are_means_over_seeds_with_a_band_of_one_deviation() -> None:
    study = made_study(seeds=(0, 1, 2), tasks=4)
    axes = plot_bc_curves(study).axes[0]
    by_hand = {
        name: np.array([[bc_by_hand(values(study, run), t) for t in (2, 3, 4)] for run in runs_of(study, method)])
        for name, method in {"ER": "er", "CL²R": "cl2r"}.items()
    }
    for name, curves in by_hand.items():
        assert lines(axes)[name] == np.round(list(zip((2, 3, 4), curves.mean(axis=0), strict=True)), 9).tolist()
    assert len(bands(axes)) == 2
    low, high = (by_hand["ER"].mean(axis=0)[0] + sign * by_hand["ER"].std(axis=0, ddof=1)[0] for sign in (-1, 1))
    corners = np.asarray(bands(axes)[0].get_paths()[0].vertices)
    edge = corners[corners[:, 0] == 2, 1]
    assert edge.min() == pytest.approx(low)
    assert edge.max() == pytest.approx(high)


def test_one_seed_has_no_band() -> None:
    figure = plot_bc_curves(made_study(seeds=(3,)))
    assert bands(figure.axes[0]) == []
    assert figure.get_suptitle() == "icons, one seed"


def test_a_panel_a_number_of_tasks_and_the_legend_in_the_order_of_line_ends() -> None:
    figure = plot_bc_curves(made_study(("er", "fixed", "cl2r"), grid={"scenario.n_tasks": [2, 4]}))
    assert [axes.get_title() for axes in figure.axes] == ["2 tasks", "4 tasks"]
    ends = {name: points[-1][1] for name, points in lines(figure.axes[1]).items()}
    assert legend(figure) == sorted(ends, key=lambda name: -ends[name])
    places = [points[0][0] for points in lines(figure.axes[0]).values()]
    assert len(set(places)) == 3, "a single task: side by side"


def test_groups_that_are_no_methods() -> None:
    study = made_study(("cl2r",), grid={"memory.per_class": [0, 9]})
    assert set(lines(plot_bc_curves(study).axes[0])) == {"CL²R, memory=0", "CL²R, memory=9"}


def test_of_many_groups_the_telling_ones_are_shown_and_the_rest_counted() -> None:
    study = made_study(("er", "cl2r"), (0,), grid={"memory.per_class": range(10)})
    figure = plot_bc_curves(study)
    assert figure.get_suptitle().endswith("12 of 20 groups: those with the highest BC; 8 left out")
    best = study.runs.sort_values("BC", ascending=False)["memory.per_class"][:12]
    shown = lines(figure.axes[0])
    assert sorted(int(name.split("=")[1]) for name in shown) == sorted(best)


def test_er_and_cl2r_are_always_shown() -> None:
    study = made_study(("er", *METHODS), (0,))
    figure = plot_bc_curves(study)
    assert "ER, CL²R and those with the highest BC" in figure.get_suptitle()
    assert len(lines(figure.axes[0])) == 12
    assert {"ER", "CL²R"} <= set(lines(figure.axes[0]))


def test_frames_of_old_have_no_metric() -> None:
    study = made_study()
    old = replace(study, matrix=study.matrix.drop(columns="metric"))
    assert lines(plot_bc_curves(old).axes[0]) == lines(plot_bc_curves(study).axes[0])


def test_the_heading_names_pairs_and_a_metric_that_is_not_accuracy() -> None:
    study = made_study(("er",), (0,))
    assert plot_bc_curves(study, "tuning").get_suptitle() == "icons, tuning pairs, one seed"
    rates = [study.matrix.assign(metric=f"TAR@{rate}") for rate in (0.01, 0.1)]
    measured = replace(study, matrix=pd.concat(rates))
    assert plot_bc_curves(measured).get_suptitle() == "icons, by TAR@0.01, one seed"
    assert plot_bc_curves(measured, "tuning", "TAR@0.1").get_suptitle() == "icons, by TAR@0.1, tuning pairs, one seed"


def test_a_long_heading_stays_inside_the_figure() -> None:
    study = made_study(seeds=(0, 1, 2))
    named = study.runs.assign(**{"data.name": "/data/some_faces_in_the_wild.npz"})
    study = replace(study, runs=named, matrix=study.matrix.assign(metric="TAR@0.01"))
    for figure in (plot_bc_curves(study, "tuning"), plot_matrices(study, "tuning"), plot_matrices(made_study(tasks=2))):
        figure.draw_without_rendering()
        extent = figure._suptitle.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1


def test_finished_runs_without_a_matrix_are_counted_in_the_heading() -> None:
    study = made_study(seeds=(0, 1))
    lost = runs_of(study, "er")[0]
    study = replace(study, matrix=study.matrix[study.matrix["run"] != lost])
    for figure in (plot_bc_curves(study), plot_matrices(study)):
        assert "1 of 4 runs left out for want of a matrix" in figure.get_suptitle().replace("\n", " ")
    kept = values(study, runs_of(study, "er")[1])
    assert lines(plot_bc_curves(study).axes[0])["ER"][0] == [2, round(bc_by_hand(kept, 2), 9)]


# Responses


def test_metrics_over_memory() -> None:
    study = made_study(("er", "cl2r"), (0, 1), grid={"memory.per_class": [0, 5, 20]})
    figure = plot_memory(study)
    for axes, metric in zip(figure.axes, ("AC", "BC"), strict=True):
        by_hand = study.runs[study.runs["method.name"] == "er"].groupby("memory.per_class")[metric].mean()
        assert lines(axes)["ER"] == [[size, round(value, 9)] for size, value in by_hand.items()]
        assert len(bands(axes)) == 2


def test_lambda_has_a_point_a_trial_and_the_tuning_pairs_beside() -> None:
    study = made_study(("cl2r",), (0, 1), grid={"method.lambda_base": [0.1, 1.0, 10.0]})
    axes = plot_lambda(study).axes[1]
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
    figure = plot_lambda(study)
    line = lines(figure.axes[1])["CL²R"]
    assert line[7] == [round(drawn[7], 9), round(study.runs["BC"][5:10].mean(), 9)]
    assert "mean of 5 neighbouring trials" in figure.get_suptitle()
    assert legend(plot_memory(study)) == legend(figure)


# Costs


def test_the_front_is_drawn_in_steps_and_numbered() -> None:
    study = made_study(("er", "fixed", "cl2r"), (0, 1))
    stored = study.runs["method.name"].map({"er": 1e6, "fixed": 3e6, "cl2r": 2e6})
    study = replace(study, runs=study.runs.assign(stored_bytes=stored))
    figure = plot_pareto(study, y="BC")
    means = study.runs.groupby("method.name")["BC"].mean()
    assert means["er"] < means["fixed"] < means["cl2r"], "the fixed one is dearer than CL²R, which beats it"
    assert legend(figure) == ["1  ER", "2  CL²R", "Fixed"]
    steps = next(line for line in figure.axes[0].get_lines() if line.get_drawstyle() == "steps-post")
    heights = [means["er"], means["cl2r"], means["cl2r"]]
    np.testing.assert_allclose(steps.get_xydata(), np.column_stack([[1, 2, 3], heights]))
    assert {text.get_text(): text.xy for text in figure.axes[0].texts} == {
        "1": (1, pytest.approx(means["er"])),
        "2": (2, pytest.approx(means["cl2r"])),
    }


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
    speed, efficiency = plot_scaling(replace(study, tasks=tasks)).axes
    assert lines(speed)["ER"] == [[1, round(400 / 30, 9)], [4, 40]]
    assert lines(efficiency)["ER"] == [[1, 1], [4, 0.75]]


def test_equal_runs_of_two_studies_tell_how_training_scales() -> None:
    one = made_study(("er",), (0,), tasks=3)
    two = replace(one, tasks=one.tasks.assign(workers=2, seconds=8.0))
    _, efficiency = plot_scaling(one, two).axes
    assert lines(efficiency)["ER"] == [[1, 1], [2, 0.625]], "10 s alone, 8 s together"


def test_links_of_which_nobody_knows_whether_they_were_reused_tell_no_speed() -> None:
    one = made_study(("er",), (0,), tasks=3)
    seconds = one.tasks["task"].map({1: 100.0, 2: 8.0, 3: 8.0})
    unknown = one.tasks["task"].map({1: None, 2: False, 3: False}).astype("boolean")
    two = replace(one, tasks=one.tasks.assign(workers=2, seconds=seconds, reused=unknown))
    two = replace(two, tasks=two.tasks.astype({"workers": "Int64", "task": "Int64", "run": "string"}))
    _, efficiency = plot_scaling(one, two).axes
    assert lines(efficiency)["ER"] == [[1, 1], [2, 0.625]], "tasks 2 and 3"


def test_stationarity_draws_a_chain_once_and_the_bound_where_there_is_one() -> None:
    study = made_study(("cl2r", "cl2r+slerp", "er"), (0, 1))
    same = study.tasks["key"].str.replace("cl2r+slerp", "cl2r").str.replace(r"-0000000\d", "", regex=True)
    study = replace(study, tasks=study.tasks.assign(key=same))
    figure = plot_stationarity(study)
    assert len(figure.axes) == 4
    assert set(lines(figure.axes[0])) == {"CL²R", "ER"}
    own = study.tasks[study.tasks["run"].isin(runs_of(study, "er"))].groupby("task")["drift_cosine"].mean()
    assert lines(figure.axes[0])["ER"] == [[2, round(own[2], 9)], [3, round(own[3], 9)]]
    assert set(lines(figure.axes[3])) == {"CL²R", "bound of vertex cosine"}
    assert legend(figure)[-1] == "bound of vertex cosine"


# Which figures there are, and their files

METHODS = (
    "lwf",
    "icarl",
    "lucir",
    "bic",
    "podnet",
    "wa",
    "foster",
    "fan",
    "hoc",
    "bct",
    "upper_bound",
    "cores",
    "cl2r",
)
ALWAYS = ["matrices", "bc_curves", "stationarity"]
PARETO = ["pareto_ac", "pareto_bc"]


@pytest.mark.parametrize(
    ("study", "figures"),
    [
        (made_study, ALWAYS),
        (lambda: made_study(tasks=1), []),
        (lambda: made_study(failed=range(4)), []),
        (lambda: made_study(grid={"memory.per_class": [0, 50]}), [*ALWAYS, *PARETO, "memory"]),
        (lambda: made_study(grid={"method.lambda_base": [1.0, 2.0]}), [*ALWAYS, "lambda"]),
        (lambda: made_study(("er",), grid={"memory.per_class": [0, 50]}, failed=(2, 3)), ALWAYS),
    ],
)
def test_only_figures_that_the_frames_have_something_for(
    monkeypatch: pytest.MonkeyPatch, study: Callable[[], Study], figures: list[str]
) -> None:
    undrawn = {name: (obstacle, lambda study: Figure()) for name, (obstacle, _) in plots._FIGURES.items()}
    monkeypatch.setattr(plots, "_FIGURES", undrawn)
    monkeypatch.setattr(plots, "save", lambda figure, stem, kinds: [stem])
    assert sorted(path.name for path in write_figures(study(), "x")) == sorted(figures)


def test_files_are_the_same_every_time_and_svg_keeps_its_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plots, "_FIGURES", {"bc_curves": plots._FIGURES["bc_curves"]})
    written = write_figures(made_study(), tmp_path / "one")
    assert [path.name for path in written] == ["bc_curves.png", "bc_curves.svg", "bc_curves.pdf"]
    svg = written[1].read_text()
    (again,) = save(plot_bc_curves(made_study()), tmp_path / "two" / "bc_curves", ["svg"])
    assert again.read_text() == svg
    for word in ("BC(t), backward compatibility", "CL²R", "3 tasks"):
        assert f">{word}</text>" in svg
    assert b"CreationDate" not in written[2].read_bytes()


@pytest.mark.parametrize(
    ("draw", "changes", "fault"),
    [
        (plot_bc_curves, {"failed": range(4)}, "no run has finished"),
        (plot_bc_curves, {"tasks": 1}, "every run has one task"),
        (plot_matrices, {"tasks": 1}, "every run has one task"),
        (plot_memory, {}, "memory.per_class does not vary among finished runs"),
        (plot_lambda, {"grid": {"memory.per_class": [1, 2]}}, "method.lambda_base does not vary"),
        (plot_pareto, {}, "stored_bytes take one value in all groups"),
        (plot_scaling, {}, "no group trained the same task with two numbers of workers"),
        (lambda study: plot_pareto(study, x="stored_byte"), {}, "unknown column 'stored_byte' .did you mean"),
        (lambda study: plot_pareto(study, y="BCE"), {}, "unknown metric 'BCE'"),
        (lambda study: plot_matrix(study, "er"), {}, "unknown run 'er'"),
        (lambda study: plot_matrix(study, study.runs["run"][0]), {"failed": (0,)}, "did not finish: it has no matrix"),
        (lambda study: plot_mean_matrix(study, []), {}, "no report pairs were evaluated for no run"),
        (
            lambda study: plot_mean_matrix(study, [*study.runs["run"]]),
            {"grid": {"scenario.n_tasks": [2, 3]}},
            "differ in",
        ),
        (lambda study: plot_bc_curves(_without_tuning(study), "tuning"), {}, "no tuning pairs were evaluated"),
    ],
)
def test_refusals_are_one_line(draw: Callable[[Study], Figure], changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        draw(made_study(**changes))
    assert "\n" not in str(caught.value)


def _without_tuning(study: Study) -> Study:
    return replace(study, matrix=study.matrix[study.matrix["pairs"] == "report"])


def test_tasks_without_figures_of_drift() -> None:
    study = made_study()
    with pytest.raises(InputError, match="tasks have none of drift_cosine"):
        plot_stationarity(replace(study, tasks=study.tasks[["run", "task", "key"]]))


def test_vertices_without_a_bound() -> None:
    study = made_study(("cl2r",))
    figure = plot_stationarity(replace(study, tasks=study.tasks.drop(columns="vertex_bound")))
    assert legend(figure) == ["CL²R"]


def test_looks_differ() -> None:
    def distinct(looks: Sequence[object]) -> bool:
        return len(set(looks)) == len(looks)

    assert distinct([nth_look(place) for place in range(32)])
    methods = ["er", *METHODS, *(f"{name}+{how}" for name in ("er", "cl2r") for how in ("slerp", "aligner"))]
    assert distinct([look(method, methods) for method in methods])


def test_figures_need_neither_torch_nor_a_window() -> None:
    script = "import sys, analysis.plots; sys.exit(bool({'torch', 'ray', 'matplotlib.pyplot'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
