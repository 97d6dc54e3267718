"""Several studies as one."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_study import ABOUT, made_study, write_made
from pydantic import TypeAdapter

from analysis import Study, concat, load_study
from analysis.study_tables import study_tables
from cl2r.errors import InputError
from cl2r.study.space import Space

FRAMES = ("runs", "tasks", "matrix", "curves")
ROWS = {
    "tasks": ["run", "task"],
    "matrix": ["run", "pairs", "metric", "t", "k"],
    "curves": ["run", "task", "stage", "epoch"],
}


def renamed(study: Study, old: str, new: str) -> Study:
    """The same study with other names of runs: other runs."""
    frames = {name: getattr(study, name) for name in FRAMES}
    frames = {name: frame.assign(run=frame["run"].str.replace(old, new)) for name, frame in frames.items()}
    return dataclasses.replace(study, **frames)


def without(study: Study, *runs: str, **changes: Any) -> Study:
    """The study after some of its runs, in all frames, were taken away."""
    frames = {name: getattr(study, name) for name in FRAMES}
    return dataclasses.replace(study, **{k: f[~f["run"].isin(runs)] for k, f in frames.items()}, **changes)


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """The values; one kind of emptiness, no types."""
    return frame.astype(object).where(frame.notna(), None)


@pytest.fixture
def one() -> Study:
    return made_study(("er", "cl2r"), (0, 1), name="one")


@pytest.fixture
def other() -> Study:
    """Four runs that `one` does not have."""
    return renamed(made_study(("er", "bct"), (0, 1), name="other", random=1), "icons", "faces")


def test_runs_of_both_with_their_rows(one: Study, other: Study) -> None:
    both = concat([one, other])
    assert both.name == "one + other"
    assert both.runs["run"].tolist() == [*one.runs["run"], *other.runs["run"]]
    assert both.runs["study"].tolist() == ["one"] * 4 + ["other"] * 4
    for name in FRAMES[1:]:
        frame, expected = getattr(both, name), [getattr(study, name) for study in (one, other)]
        assert len(frame) == sum(map(len, expected))
        assert not frame.duplicated(ROWS[name]).any()
    np.testing.assert_array_equal(both.matrix["accuracy"], [*one.matrix["accuracy"], *other.matrix["accuracy"]])
    assert concat([one, other], name="mine").name == "mine"


def test_trials_never_collide(one: Study, other: Study) -> None:
    third = renamed(other, "faces", "birds")
    runs = concat([one, other, third]).runs
    assert runs["trial"].tolist() == list(range(12))
    pairs = dataclasses.replace(one, runs=one.runs.assign(trial=[3, 3, 7, 7]))
    assert concat([pairs, other]).runs["trial"].tolist() == [3, 3, 7, 7, 8, 9, 10, 11]


def test_a_run_that_both_have_counts_once(one: Study) -> None:
    again = dataclasses.replace(one, name="again", runs=one.runs.assign(study="again", BC=9.0))
    shared = one.runs["run"].iloc[1]
    both = concat([without(one, *one.runs["run"].iloc[2:]), without(again, one.runs["run"].iloc[0])])
    assert both.runs["run"].tolist() == one.runs["run"].tolist()
    assert both.runs["study"].tolist() == ["one", "one", "again", "again"]
    assert both.runs["BC"].iloc[1] != 9.0, "the first that has it"
    for name in FRAMES[1:]:
        assert (getattr(both, name)["run"] == shared).sum() == (getattr(one, name)["run"] == shared).sum()
    assert both.runs["trial"].is_unique


@pytest.mark.parametrize("status", ["failed", "pruned"])
@pytest.mark.parametrize("turned", [False, True])
def test_where_it_finished_goes_before_where_it_did_not(status: str, turned: bool) -> None:
    whole, hurt = made_study(name="whole"), made_study(failed=[2], name="hurt")
    hurt = dataclasses.replace(hurt, runs=hurt.runs.assign(status=hurt.runs["status"].replace("failed", status)))
    both = concat([whole, hurt] if turned else [hurt, whole])
    assert sorted(both.runs["run"]) == sorted(whole.runs["run"])
    assert set(both.runs["status"]) == {"finished"}
    run = hurt.runs["run"].iloc[2]
    assert both.runs.set_index("run").loc[run, "study"] == "whole"
    assert (both.matrix["run"] == run).sum() == (whole.matrix["run"] == run).sum() > 0
    assert both.runs["reason"].isna().all()


def test_a_run_that_finished_nowhere_is_kept_once() -> None:
    hurt = made_study(failed=[2], name="hurt")
    both = concat([hurt, hurt, dataclasses.replace(hurt, name="later")])
    assert (both.runs["status"] == "failed").sum() == 1
    assert both.name == "hurt + later"


def test_one_study_twice_is_that_study(tmp_path: Path) -> None:
    study = load_study(write_made(made_study(grid={"memory.per_class": [2, 4]}, failed=[1]), tmp_path / "sizes"))
    for group in ([study], [study, study], [study, load_study(tmp_path / "sizes")]):
        both = concat(group)
        assert (both.name, both.specification, both.about) == ("sizes", study.specification, study.about)
        for name in FRAMES:
            pd.testing.assert_frame_equal(plain(getattr(both, name)), plain(getattr(study, name)))
    assert concat([study]).runs["trial"].tolist() == list(range(8))


def test_what_they_agree_on_stays_key_by_key(one: Study, other: Study) -> None:
    both = concat([one, other])
    assert (both.specification, both.about) == ({"preset": "icons", "seeds": [0, 1]}, one.about)
    machine = {**ABOUT["environment"], "cpus": 64, "packages": {**ABOUT["environment"]["packages"], "ray": "3"}}
    later = {**other.about, "began": "2030-01-01T00:00:00+00:00", "environment": machine}
    about = concat([one, dataclasses.replace(other, about=later)]).about
    environment = {key: value for key, value in ABOUT["environment"].items() if key != "cpus"}
    environment["packages"] = {"torch": "2.15.0", "optuna": "5.0.0"}
    kept = {key: value for key, value in one.about.items() if key not in ("began", "expected_runs")}
    assert about == {**kept, "environment": environment}, "each expected 4 runs, but not both"
    assert concat([one, dataclasses.replace(other, about={}, specification={})]).about == {}


def sweep(space: dict[str, Any], name: str, **search: Any) -> Study:
    """Two trials of two seeds."""
    search = {"objectives": ["AC"], **search}
    grid = {"method.lambda_base": [1.0, 3.0]}
    made = made_study(["cl2r"], (0, 1), grid=grid, name=name, space=space, search=search)
    return renamed(dataclasses.replace(made, runs=made.runs.assign(trial=made.runs["trial"] // 2)), "icons", name)


def test_sweeps_make_a_sweep() -> None:
    one = sweep({"method.lambda_base": {"low": 1.0, "high": 3.0, "log": True}}, "one", seed=0)
    other = sweep({"method.lambda_base": {"low": 0.5, "high": 2, "log": True}, "optim.lr": [0.1]}, "other", seed=1)
    both = concat([one, other])
    space = {"method.lambda_base": {"low": 0.5, "high": 3.0, "log": True}, "optim.lr": [0.1]}
    assert both.specification["space"] == space
    assert both.specification["search"] == {"objectives": ["AC"]}
    assert both.runs.groupby("trial").size().tolist() == [2] * 4, "equal points stay two trials"
    best, trials = study_tables(both)
    assert (best.title, trials.title) == ("Best trials by AC", "All trials")
    assert best.marks == trials.marks == set()
    grid = made_study(name="grid")
    assert "space" not in concat([one, grid]).specification
    assert "space" not in concat([one, dataclasses.replace(grid, specification={"space": {}})]).specification


@pytest.mark.parametrize(
    ("entries", "joint"),
    [
        ([[1, 2], [1, 2]], [1, 2]),
        ([["a", None], ["b", "a"]], ["a", None, "b"]),
        ([{"low": 1, "high": 4}, {"low": 2, "high": 9, "log": True}], {"low": 1, "high": 9, "log": False}),
        ([{"low": 1, "high": 4, "log": True}, [8, 2]], {"low": 1, "high": 8, "log": True}),
        ([[0], {"low": 1, "high": 4, "log": True}], {"low": 0, "high": 4, "log": False}),
        ([{"low": 1, "high": 4}, [None, 4]], [1, 4, None]),
    ],
)
def test_a_field_of_two_spaces(entries: list[Any], joint: Any) -> None:
    parts = [sweep({"x.y": entry}, name) for entry, name in zip(entries, ("one", "other"), strict=True)]
    space = concat(parts).specification["space"]
    assert space == {"x.y": joint}
    TypeAdapter(Space).validate_python(space)


def test_columns_of_either_keep_their_types(one: Study, other: Study) -> None:
    """Integers do not become floats, nor truth values objects, because the other study lacks the column."""
    longer = dataclasses.replace(
        other,
        runs=other.runs.assign(**{"podnet.proxies": 10, "lucir.flag": True, "note": "x", "AC@0.01": 0.5}),
        tasks=other.tasks.assign(gamma=1.5),
    )
    for group in ([one, longer], [longer, one]):
        both = concat(group)
        kinds = {column: str(both.runs[column].dtype) for column in ("podnet.proxies", "lucir.flag", "note", "AC@0.01")}
        assert list(kinds.values()) == ["Int64", "boolean", "string", "float64"]
        assert both.runs.set_index("study")["podnet.proxies"].groupby(level=0).count().to_dict() == {
            "one": 0,
            "other": 4,
        }
        assert (str(both.runs["seed"].dtype), str(both.runs["BC"].dtype)) == ("Int64", "float64")
        assert str(both.matrix["compatible"].dtype) == "boolean"
        assert both.tasks["gamma"].count() == len(other.tasks)
        assert [name for name in both.runs if both.runs[name].dtype == object and both.runs[name].notna().any()] == []


def test_a_column_without_a_value_takes_the_type_of_the_other(one: Study, other: Study) -> None:
    empty = dataclasses.replace(one, runs=one.runs.assign(**{"scenario.stop_after": None, "reason": np.nan}))
    told = dataclasses.replace(other, runs=other.runs.assign(**{"scenario.stop_after": 3, "reason": "why"}))
    runs = concat([empty, told]).runs
    assert runs["scenario.stop_after"].tolist() == [pd.NA] * 4 + [3] * 4
    assert (str(runs["scenario.stop_after"].dtype), str(runs["reason"].dtype)) == ("Int64", "string")


def test_integers_and_floats_become_floats(one: Study, other: Study) -> None:
    wide = dataclasses.replace(other, runs=other.runs.assign(**{"memory.per_class": 2.5}))
    column = concat([one, wide]).runs["memory.per_class"]
    assert (str(column.dtype), column.iloc[-1]) == ("float64", 2.5)


def test_a_study_without_a_run_adds_nothing(one: Study) -> None:
    nothing = without(one, *one.runs["run"], name="nothing")
    both = concat([nothing, one])
    assert len(both.runs) == 4
    assert both.runs["trial"].tolist() == [0, 1, 2, 3]
    assert concat([nothing]).runs.empty
    hopeless = concat([made_study(failed=range(4), name="hopeless"), one])
    assert (len(hopeless.runs), len(hopeless.matrix)) == (4, len(one.matrix))


def test_a_study_whose_other_frames_lag_behind(one: Study, other: Study) -> None:
    run = one.runs["run"].iloc[0]
    lagging = dataclasses.replace(one, matrix=one.matrix[one.matrix["run"] != run])
    both = concat([lagging, other])
    assert run in set(both.runs["run"])
    assert run not in set(both.matrix["run"])


def test_no_studies() -> None:
    with pytest.raises(InputError, match="no studies were given"):
        concat([])
