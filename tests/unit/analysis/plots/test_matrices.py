"""Compatibility matrices as heat maps: numbers and marks against the study's frames."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from analysis import Frames
from analysis.names import BAD, GOOD
from analysis.plots import plot_matrices, plot_matrix, plot_mean_matrix
from cl2r.errors import InputError
from tests.support.drawn import legend, runs_of, values
from tests.support.made_study import made_study


def marked(axes: Axes, line: str = "-") -> set[tuple[int, int]]:
    """The cells (t, k) with a frame."""
    frames = [part for part in axes.patches if isinstance(part, Rectangle) and not part.get_fill()]
    return {(round(part.get_y() + 0.45), round(part.get_x() + 0.45)) for part in frames if part.get_linestyle() == line}


def numbers(axes: Axes) -> dict[tuple[int, int], str]:
    return {(round(text.get_position()[1]), round(text.get_position()[0])): text.get_text() for text in axes.texts}


def compatible(study: Frames, run: str) -> set[tuple[int, int]]:
    own = study.matrix[(study.matrix["run"] == run) & (study.matrix["pairs"] == "report")]
    return {(row.t, row.k) for row in own.itertuples() if row.k < row.t and row.compatible}


def test_the_matrix_of_a_run() -> None:
    study = made_study(("fixed",), tasks=6)
    run = runs_of(study, "fixed")[0]
    figure = plot_matrix(study, run)
    axes, cells = figure.axes[0], values(study, run)
    assert 0 < len(compatible(study, run)) < 15
    assert marked(axes) == compatible(study, run)
    for (t, k), text in numbers(axes).items():
        shown = cells[t, k] if t == k else cells[t, k] - cells[k, k]
        assert float(text.replace("−", "-")) == pytest.approx(shown, abs=0.000501)
    assert len(numbers(axes)) == 21
    assert legend(figure) == ["compatible", "self-test C[k,k], accuracy"]
    assert figure.axes[-1].get_ylabel() == "C[t,k] − C[k,k], accuracy"
    mesh = axes.collections[0]
    assert mesh.norm.vmin == -mesh.norm.vmax <= -0.02, "small gains do not look large"
    worst, middle, best = (to_hex(mesh.cmap(mesh.norm(value))) for value in (mesh.norm.vmin, 0, mesh.norm.vmax))
    assert (worst.upper(), best.upper()) == (BAD, GOOD)
    assert min(bytes.fromhex(middle[1:])) > 250, "white"


def test_a_mean_matrix_tells_every_run_from_some() -> None:
    study = made_study(("fixed",), seeds=(0, 1, 2), tasks=5)
    runs = runs_of(study, "fixed")
    figure = plot_mean_matrix(study, runs)
    axes, sets = figure.axes[0], [compatible(study, run) for run in runs]
    assert marked(axes) == set.intersection(*sets)
    assert marked(axes, ":") == set.union(*sets) - set.intersection(*sets) != set()
    assert legend(figure)[:2] == ["compatible in every run", "in some runs"]
    gains = [values(study, run)[5, 2] - values(study, run)[2, 2] for run in runs]
    assert float(numbers(axes)[5, 2].replace("−", "-")) == pytest.approx(np.mean(gains), abs=0.000501)


def test_twenty_tasks_keep_their_numbers_and_several_matrices_give_them_up() -> None:
    study = made_study(("er", "cl2r"), (0,), 20)
    figure = plot_matrix(study, study.runs["run"][0])
    assert all(numbers(figure.axes[0]).values())
    assert figure.get_figwidth() <= 7.2
    assert {text.get_fontsize() > 5 for text in figure.axes[0].texts} == {True}
    small = plot_matrices(study)
    assert not any(numbers(small.axes[0]).values())
    assert marked(small.axes[1]) == compatible(study, runs_of(study, "cl2r")[0])


def test_numbers_stay_inside_their_cells() -> None:
    for methods, tasks in ((("er", "fixed", "cl2r"), 6), (("er", "cl2r"), 10), (("er", "cl2r"), 12)):
        figure = plot_matrices(made_study(methods, (0,), tasks))
        figure.draw_without_rendering()
        axes = figure.axes[0]
        widest = max(text.get_window_extent().width for text in axes.texts)
        assert 0 < widest < axes.get_window_extent().width / tasks, f"{tasks} tasks"


def test_one_matrix_per_group_of_the_runs_with_the_most_tasks() -> None:
    figure = plot_matrices(made_study(("er", "cl2r"), grid={"scenario.n_tasks": [2, 3]}))
    assert [axes.get_title() for axes in figure.axes[:-1]] == ["ER", "CL²R"]
    assert len(numbers(figure.axes[0])) == 6


def test_the_heading_names_other_pairs_than_the_report_ones() -> None:
    study = made_study(("er",), (0,))
    figure = plot_matrices(study, "tuning")
    assert "tuning pairs" in figure.get_suptitle()
    gain = values(study, study.runs["run"][0], "tuning")
    shown = float(numbers(figure.axes[0])[3, 1].replace("−", "-"))
    assert shown == pytest.approx(gain[3, 1] - gain[1, 1], abs=0.000501)


def test_groups_by_several_metrics_name_them_all() -> None:
    study = made_study(("er", "cl2r"), (0,))
    rates = study.matrix["run"].isin(runs_of(study, "er"))
    study = replace(study, matrix=study.matrix.assign(metric=study.matrix["metric"].where(~rates, "TAR@0.01")))
    figure = plot_matrices(study)
    assert "TAR@0.01 and accuracy" in figure.get_suptitle()
    assert "TAR@0.01 or accuracy" in figure.axes[-1].get_ylabel()


def test_accept_rates_are_chosen_by_their_name() -> None:
    study = made_study(("er",), (0,))
    rates = [study.matrix.assign(metric=f"TAR@{rate}", accuracy=rate) for rate in (0.01, 0.1)]
    study, run = replace(study, matrix=pd.concat(rates)), study.runs["run"][0]
    assert numbers(plot_matrix(study, run).axes[0])[1, 1] == ".010"
    figure = plot_matrix(study, run, metric="TAR@0.1")
    assert numbers(figure.axes[0])[1, 1] == ".100"
    assert "TAR@0.1" in figure.axes[-1].get_ylabel()
    with pytest.raises(InputError, match=r"TAR@0\.2"):
        plot_matrix(study, run, metric="TAR@0.2")
