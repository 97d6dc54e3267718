"""Which figures a study has nothing for, and that all others are drawn, from frames with the types of Parquet."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn import legend
from made_study import made_study, write_made
from matplotlib.figure import Figure

from analysis import Study, load_study, plots
from analysis.groups import config_fields
from analysis.plots import plot_bc_curves, plot_lambda, write_figures
from cl2r.errors import InputError

PARETO = ("pareto_ac", "pareto_bc")


def _gone(frame: str, *names: str) -> Callable[[Study], Study]:
    """The study without some columns of a frame, as in frames of old."""
    return lambda study: replace(study, **{frame: getattr(study, frame).drop(columns=list(names))})


def _emptied(frame: str, *names: str) -> Callable[[Study], Study]:
    """The study with nothing in some columns, of the type that Parquet frames have."""
    return lambda study: replace(
        study, **{frame: getattr(study, frame).assign(**dict.fromkeys(names, pd.Series(dtype="Int64")))}
    )


DRIFT = ("drift_cosine", "rotated_cosine", "cka", "vertex_cosine")
CHANGES: dict[str, tuple[Callable[[Study], Study], set[str]]] = {
    "nothing": (lambda study: study, set()),
    "no stored bytes": (_gone("runs", "stored_bytes"), {*PARETO}),
    "empty stored bytes": (_emptied("runs", "stored_bytes"), {*PARETO}),
    "no AC": (_gone("runs", "AC"), {"pareto_ac", "memory", "lambda"}),
    "no BC": (_gone("runs", "BC"), {"pareto_bc", "memory", "lambda"}),
    "empty BC": (_emptied("runs", "BC"), {"pareto_bc", "memory", "lambda"}),
    "no tuning AC": (_gone("runs", "tuning_AC"), set()),
    "no memory": (_gone("runs", "memory.per_class"), {"memory", *PARETO}),
    "no lambda": (_gone("runs", "method.lambda_base"), {"lambda"}),
    "no number of tasks": (_gone("runs", "tasks"), {*plots._FIGURES}),
    "no data": (_gone("runs", "data.name"), {*plots._FIGURES}),
    "no drift": (_gone("tasks", *DRIFT), {"stationarity"}),
    "empty drift": (_emptied("tasks", *DRIFT), {"stationarity"}),
    "no keys": (_gone("tasks", "key"), {"stationarity"}),
    "no bound": (_gone("tasks", "vertex_bound"), set()),
    "no workers": (_gone("tasks", "workers"), {"scaling"}),
    "empty workers": (_emptied("tasks", "workers"), {"scaling"}),
    "nobody knows what was trained": (_emptied("tasks", "reused"), {"scaling"}),
    "no tasks": (lambda study: replace(study, tasks=pd.DataFrame()), {"scaling", "stationarity"}),
    "no cells": (lambda study: replace(study, matrix=study.matrix[:0]), {"matrices", "bc_curves"}),
    "no matrix": (lambda study: replace(study, matrix=pd.DataFrame()), {"matrices", "bc_curves"}),
    "no marks": (_gone("matrix", "compatible"), {"matrices"}),
    "none finished": (lambda study: replace(study, runs=study.runs.assign(status="failed")), {*plots._FIGURES}),
    "no runs": (lambda study: replace(study, runs=study.runs[:0]), {*plots._FIGURES}),
    "nothing at all": (lambda study: replace(study, runs=pd.DataFrame()), {*plots._FIGURES}),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study that every figure has something for, with the types of Parquet frames."""
    grid = {"memory.per_class": [0, 9], "method.lambda_base": [1.0, 10.0]}
    study = made_study(("fixed",), grid=grid)
    second = study.tasks["run"].isin(study.runs.loc[study.runs["seed"] == 1, "run"])
    tasks = study.tasks.assign(workers=np.where(second, 2, 1))
    return load_study(write_made(replace(study, tasks=tasks), tmp_path_factory.mktemp("whole") / "made"))


@pytest.fixture(scope="module")
def slim(whole: Study) -> Study:
    """The same without config fields that are the same in all runs, which take their time."""
    runs = whole.runs
    same = [name for name in config_fields(runs) if runs[name].nunique(dropna=False) == 1]
    return replace(whole, runs=runs.drop(columns=[name for name in same if name not in ("data.name", "method.name")]))


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_missing_costs_the_figures_that_show_it_and_no_other(slim: Study, change: str) -> None:
    alter, lost = CHANGES[change]
    study = alter(slim)
    reasons = {name: obstacle(study) for name, (obstacle, _) in plots._FIGURES.items()}
    assert {name for name, reason in reasons.items() if reason} == lost
    for name in lost:
        assert "\n" not in reasons[name]
        with pytest.raises(InputError, match=re.escape(reasons[name])):
            plots._FIGURES[name][1](study)


@pytest.mark.parametrize("variants", [False, True])
def test_every_figure_is_drawn_from_parquet_frames(whole: Study, slim: Study, variants: bool) -> None:
    study = _with_variants(slim) if variants else whole
    for name, (obstacle, draw) in plots._FIGURES.items():
        if variants and name == "scaling":
            continue  # every seed is a variant, hence every number of workers
        assert obstacle(study) == ""
        draw(study).draw_without_rendering()


def _with_variants(study: Study) -> Study:
    """What was a seed is a variant, or the plain run."""
    named = study.runs["seed"].astype(int).map({0: None, 1: "small"}).astype("string")
    return replace(study, runs=study.runs.assign(variant=named, seed=0))


def test_figures_without_tuning_pairs_or_bc_are_drawn(slim: Study) -> None:
    assert not any("tuning" in label for label in legend(plot_lambda(_gone("runs", "tuning_AC")(slim))))
    many = made_study(("er", "cl2r"), (0,), grid={"memory.per_class": range(10)})
    assert "12 of 20 groups: the first; 8 left out" in plot_bc_curves(_gone("runs", "BC")(many)).get_suptitle()


def test_a_figure_that_refuses_a_study_costs_no_other_but_a_fault_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(study: Study) -> Figure:
        raise InputError("there is nothing to draw")

    def fail(study: Study) -> Figure:
        raise KeyError("a fault")

    monkeypatch.setattr(plots, "save", lambda figure, stem, kinds: [stem])
    drawn = (lambda study: "", plot_bc_curves)
    monkeypatch.setattr(plots, "_FIGURES", {"one": (lambda study: "", refuse), "two": drawn})
    assert [path.name for path in write_figures(made_study(), "x")] == ["two"]
    monkeypatch.setattr(plots, "_FIGURES", {"one": (lambda study: "", fail), "two": drawn})
    with pytest.raises(KeyError):
        write_figures(made_study(), "x")
