"""Which plots a study has, with the column types of Parquet frames, and the files they are written to."""

import contextlib
import logging
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import Study, load_study, plots
from analysis.groups import config_fields
from analysis.names import STATIONARITY
from analysis.plots import PLOTS, plot_bc_curves, write_figures
from analysis.plots.parts import save
from cl2r.errors import InputError
from tests.support.made_study import made_study, made_sweep, write_made

SWEPT = {"best_by_tasks"}  # of a sweep over several numbers of tasks
MANY = {"ranking"}  # groups: few are on a plane
FIELD = {"service"}  # one field that is neither memory nor λ_base
ALL = set(PLOTS) - SWEPT - MANY - FIELD
ALWAYS = {"matrices", "bc_curves", "stationarity"}
PARETO = {"pareto_service", "pareto_bc", "pareto_ac"}
METHODS = ("er", "lwf", "icarl", "lucir", "bic", "podnet", "wa", "foster", "fan", "hoc", "bct", "upper_bound", "cl2r")


class ReachedError(Exception):
    """A plot has found all it needs and begins to draw."""


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop every plot before it draws, which takes most of its time."""

    def reached(*_: object, **__: object) -> None:
        raise ReachedError

    monkeypatch.setattr("analysis.plots.parts.page_panels", reached)
    monkeypatch.setattr("analysis.plots.matrices._draw", reached)


def accepted(study: Study) -> set[str]:
    names = set()
    for name, draw in PLOTS.items():
        with contextlib.suppress(InputError):
            with pytest.raises(ReachedError):
                draw(study)
            names.add(name)
    return names


def without(frame: str, *names: str) -> Callable[[Study], Study]:
    return lambda study: replace(study, **{frame: getattr(study, frame).drop(columns=list(names))})


def emptied(frame: str, *names: str) -> Callable[[Study], Study]:
    """Empty columns of a frame, with the type that Parquet frames have."""
    empty = dict.fromkeys(names, pd.Series(dtype="Int64"))
    return lambda study: replace(study, **{frame: getattr(study, frame).assign(**empty)})


CHANGES: dict[str, tuple[Callable[[Study], Study], set[str]]] = {
    "nothing": (lambda study: study, set()),
    "no stored bytes": (without("runs", "stored_bytes"), PARETO),
    "empty stored bytes": (emptied("runs", "stored_bytes"), PARETO),
    "no AC": (without("runs", "AC"), {"pareto_ac"}),
    "empty BC": (emptied("runs", "BC"), {"pareto_bc", "plane"}),
    "no service accuracy": (without("runs", "service_accuracy"), {"pareto_service", "plane"}),
    "no metric": (without("runs", "service_accuracy", "AC", "BC"), {*PARETO, "plane", "memory", "lambda"}),
    "no tuning AC": (without("runs", "tuning_AC"), set()),
    "no memory": (without("runs", "memory.per_class"), {"memory", *PARETO}),
    "no lambda": (without("runs", "method.lambda_base"), {"lambda"}),
    "no number of tasks": (without("runs", "tasks"), ALL),
    "empty drift": (emptied("tasks", *STATIONARITY), {"stationarity"}),
    "no keys and no workers": (without("tasks", "key", "workers"), {"stationarity", "scaling"}),
    "unknown whether trained": (emptied("tasks", "reused"), {"scaling"}),
    "no tasks": (lambda study: replace(study, tasks=pd.DataFrame()), {"scaling", "stationarity"}),
    "no matrix": (lambda study: replace(study, matrix=pd.DataFrame()), {"matrices", "bc_curves"}),
    "no marks": (without("matrix", "compatible"), {"matrices"}),
    "none finished": (lambda study: replace(study, runs=study.runs.assign(status="failed")), ALL),
    "no runs": (lambda study: replace(study, runs=pd.DataFrame()), ALL),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study that every plot has something for, with the types of Parquet frames and few config fields."""
    grid = {"memory.per_class": [0, 40], "method.lambda_base": [1.0, 10.0]}
    study = made_study(("fixed",), grid=grid)
    second = study.tasks["run"].isin(study.runs.loc[study.runs["seed"] == 1, "run"])
    tasks = study.tasks.assign(workers=np.where(second, 2, 1))
    study = load_study(write_made(replace(study, tasks=tasks), tmp_path_factory.mktemp("whole") / "made"))
    same = [name for name in config_fields(study.runs) if study.runs[name].nunique(dropna=False) == 1]
    unneeded = [name for name in same if name not in ("data.name", "method.name")]
    return replace(study, runs=study.runs.drop(columns=unneeded))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("change", CHANGES)
def test_missing_data_costs_the_plots_that_show_it_and_no_other(whole: Study, change: str) -> None:
    alter, lost = CHANGES[change]
    assert accepted(alter(whole)) == ALL - lost


def test_every_plot_is_drawn_from_parquet_frames(whole: Study) -> None:
    for name, draw in PLOTS.items():
        grid = {"ranking": {"optim.lr": range(10)}, "service": {"scenario.n_tasks": [2, 3]}}.get(name)
        study = made_sweep(4) if name in SWEPT else made_study(grid=grid) if grid else whole
        draw(study).draw_without_rendering()


@pytest.mark.usefixtures("undrawn")
def test_variants_are_groups(whole: Study) -> None:
    named = whole.runs["seed"].astype(int).map({0: None, 1: "small"}).astype("string")
    study = replace(whole, runs=whole.runs.assign(variant=named, seed=0))
    assert accepted(study) == ALL - {"scaling"}, "every number of workers is a group of its own"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("study", "expected"),
    [
        (lambda: made_study(), {*ALWAYS, "plane"}),
        (lambda: made_study(tasks=1), set()),
        (lambda: made_study(failed=range(4)), set()),
        (lambda: made_study(grid={"memory.per_class": [0, 50]}), {*ALWAYS, *PARETO, "plane", "memory"}),
        (lambda: made_study(grid={"method.lambda_base": [1.0, 2.0]}), {*ALWAYS, "plane", "lambda"}),
        (lambda: made_study(grid={"scenario.n_tasks": [2, 3]}), {*ALWAYS, "plane", "service"}),
        (lambda: made_study(METHODS), {*ALWAYS, "ranking"}),
        (lambda: made_study(("er",), grid={"memory.per_class": [0, 50]}, failed=(2, 3)), ALWAYS),
    ],
)
def test_a_study_has_the_plots_that_fit_it(study: Callable[[], Study], expected: set[str]) -> None:
    assert accepted(study()) == expected


def test_a_refused_plot_is_logged_and_a_bug_is_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(study: Study) -> Figure:
        raise InputError("nothing here")

    monkeypatch.setattr(plots, "save", lambda figure, stem, kinds: [stem])
    monkeypatch.setattr(plots, "PLOTS", {"one": refuse, "two": plot_bc_curves})
    with caplog.at_level(logging.DEBUG, "analysis.plots"):
        assert [path.name for path in write_figures(made_study(), "x")] == ["two"]
    assert "one" in caplog.text
    assert "nothing here" in caplog.text
    monkeypatch.setattr(plots, "PLOTS", {"one": lambda study: {}["a bug"]})
    with pytest.raises(KeyError):
        write_figures(made_study(), "x")


def test_files_are_the_same_every_time_and_svg_keeps_its_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plots, "PLOTS", {"bc_curves": plot_bc_curves})
    written = write_figures(made_study(), tmp_path / "one")
    assert [path.name for path in written] == ["bc_curves.png", "bc_curves.svg", "bc_curves.pdf"]
    svg = written[1].read_text()
    (again,) = save(plot_bc_curves(made_study()), tmp_path / "two" / "bc_curves", ["svg"])
    assert again.read_text() == svg
    assert ">CL²R</text>" in svg
    assert b"CreationDate" not in written[2].read_bytes()


def test_png_files_have_200_dots_per_inch(tmp_path: Path) -> None:
    figure = plot_bc_curves(made_study())
    (path,) = save(figure, tmp_path / "bc", ["png"])
    width, height = (int(200 * inches) for inches in figure.get_size_inches())
    assert struct.unpack(">II", path.read_bytes()[16:24]) == (width, height)


def test_the_plots_of_a_race_show_its_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Study] = []

    def keep(study: Study) -> Figure:
        seen.append(study)
        raise InputError("seen")

    monkeypatch.setattr(plots, "PLOTS", {"one": keep})
    study = made_study(("er", "cl2r"), (0, 1, 2), failed=(2,), race={"goal": "BC"})
    rounds = ["screening", "tuning", "final"] * 2
    write_figures(replace(study, runs=study.runs.assign(variant=rounds)), "x")
    assert seen[0].runs["variant"].tolist() == ["final", "final"]
    unfinished = [name if name != "final" else "tuning" for name in rounds]
    write_figures(replace(study, runs=study.runs.assign(variant=unfinished)), "x")
    assert set(seen[1].runs["variant"]) == {"tuning"}
