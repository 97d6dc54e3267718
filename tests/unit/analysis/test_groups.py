"""Which runs belong together, what their groups are called, what a cell may hold, and pivots."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import Study
from analysis.groups import check_cells, group_labels, varied_fields
from cl2r.errors import InputError
from tests.support.made_study import made_study

FAR = "[0.01, 0.1, 0.0001]"


def runs_of(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"method.name": "cl2r", "seed": [0, 1], **columns})


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        (
            {"method.name": "cl2r", "method.lambda_base": [0.12341, 0.12342, 3.0, 0.1 + 0.2]},  # digits tell apart
            ["CL²R, λ_base=0.12341", "CL²R, λ_base=0.12342", "CL²R, λ_base=3", "CL²R, λ_base=0.3"],
        ),
        (
            {"method.name": "er", "optim.epochs": [3, 5], "bic.epochs": [5, 3], "optim.lr": [1, 2]},  # same short name
            ["ER, optim.epochs=3, bic.epochs=5, lr=1", "ER, optim.epochs=5, bic.epochs=3, lr=2"],
        ),
        (
            {"method.name": ["lwf", "lwf_er", "er"], "variant": ["memory", None, None]},  # sounds like a method
            ["method.name='lwf', variant='memory'", "method.name='lwf_er', variant=–", "ER"],
        ),
    ],
)
def test_labels_are_as_short_as_they_can_be(columns: dict[str, Any], labels: list[str]) -> None:
    assert group_labels(pd.DataFrame(columns)).tolist() == labels


VALUES: list[Any] = [None, "–", "a", "a, lr=1", 1, 0.1, 0.1 + 1e-12, 0.10001, 0.100012]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(*[st.sampled_from(VALUES)] * 2, st.sampled_from(["", "a", "a, b"])), min_size=1, max_size=9))
def test_no_two_groups_share_a_label(rows: list[tuple[Any, ...]]) -> None:
    runs = pd.DataFrame(rows, columns=["x.lr", "y.lr", "variant"], dtype=object).assign(**{"method.name": "er"})
    names = ["method.name", "variant", "x.lr", "y.lr"]
    labels = group_labels(runs, names)
    assert labels.nunique() == len(set(rows)) == len(set(zip(labels, rows, strict=True)))


def test_a_cell_may_differ_in_its_seed_only() -> None:
    runs = made_study(["er", "cl2r"], (0, 1)).runs
    check_cells(runs, ["method.name"])
    for field, value in [("optim.lr", 0.7), ("memory.per_class", 3), ("eval.pairs_seed", 9), ("variant", "long")]:
        mixed = runs.copy()
        mixed.loc[1, field] = value
        with pytest.raises(InputError, match=field):
            check_cells(mixed, ["method.name"])
        check_cells(mixed, ["method.name", field])
    two = runs.assign(**{"optim.lr": [0.1, 0.2, 0.1, 0.1], "data.size": pd.array([8, 8, 8, None], dtype="Int64")})
    with pytest.raises(InputError, match=r"data\.size, optim\.lr"):
        check_cells(two, ["method.name"])
    empty = runs_of(**{"memory.per_class": pd.Series([None, np.nan], dtype=object)})
    assert varied_fields(empty) == [], "empty values are equal, whatever they are made of"
    check_cells(empty, ["method.name"])


def test_places_and_bootstrap_draws_may_differ() -> None:
    runs = runs_of(**{"threads": [1, 2], "data.root": ["a", "b"], "data.loaders": [0, 1], "eval.bootstrap": [0, 100]})
    check_cells(runs, ["method.name"])
    with pytest.raises(InputError, match=r"one seed .*data\.root, data\.loaders, eval\.bootstrap"):
        check_cells(runs.assign(seed=0), ["method.name"])
    with pytest.raises(InputError, match=r"one seed .*run"):
        check_cells(pd.concat([runs[:1], runs[:1]]), ["method.name"])
    check_cells(runs.drop(columns="seed"), ["method.name"])


@pytest.fixture
def study() -> Study:
    """Seven runs, four of them finished."""
    rows = [  # method, memory.per_class, status, BC, tuning_BC
        ("er", 20, "finished", -0.2, -0.5),
        ("er", 20, "finished", -0.4, -0.7),
        ("er", 5, "pruned", 9.0, 9.0),
        ("er", 5, "finished", -0.1, -0.3),
        ("cl2r", 20, "finished", 0.25, 0.5),
        ("cl2r", 5, "failed", np.nan, np.nan),
        ("bct", 5, "failed", np.nan, np.nan),
    ]
    runs = pd.DataFrame(rows, columns=["method.name", "memory.per_class", "status", "BC", "tuning_BC"])
    runs = runs.assign(run=[f"run{n}" for n in range(7)], stored_bytes=range(100, 107), variant=None)
    return Study(runs, pd.DataFrame(), pd.DataFrame(), pd.DataFrame(), name="sizes")


def test_pivot_is_the_mean_over_finished_runs_in_order(study: Study) -> None:
    assert study.finished["run"].tolist() == ["run0", "run1", "run3", "run4"]
    table = study.pivot("BC", columns="memory.per_class")
    assert (table.index.name, table.columns.name) == ("method.name", "memory.per_class")
    assert table.index.tolist() == ["er", "cl2r", "bct"], "text: order of first appearance"
    assert table.columns.tolist() == [5, 20], "numbers ascend"
    np.testing.assert_allclose(table, [[-0.1, -0.3], [np.nan, 0.25], [np.nan, np.nan]])
    np.testing.assert_allclose(study.pivot()["BC"], [-0.7 / 3, 0.25, np.nan])


def test_pivots_of_other_pairs_aggregates_and_columns(study: Study) -> None:
    tuning = study.pivot("BC", columns="memory.per_class", pairs="tuning")
    np.testing.assert_allclose(tuning.loc["er"], [-0.3, -0.6])
    assert study.pivot("stored_bytes", pairs="tuning").equals(study.pivot("stored_bytes")), "costs have no pairs"
    spread = study.pivot("BC", columns="memory.per_class", aggregate="std")
    np.testing.assert_allclose(spread.loc["er"], [np.nan, np.sqrt(0.02)])
    count = study.pivot("BC", columns="memory.per_class", aggregate="count")
    assert count.to_numpy().tolist() == [[1, 2], [0, 1], [0, 0]]
    across = study.pivot("stored_bytes", "memory.per_class", "method.name", "max")
    assert across.columns.tolist() == ["er", "cl2r", "bct"]
    np.testing.assert_allclose(across, [[103, np.nan, np.nan], [101, 104, np.nan]])


def test_pivot_of_several_fields_keeps_empty_labels(study: Study) -> None:
    runs = study.runs.assign(variant=[None, "masked", None, None, None, None, None])
    table = replace(study, runs=runs).pivot("BC", ["method.name", "variant"], "memory.per_class")
    assert table.index.get_level_values("method.name").tolist() == ["er", "er", "cl2r", "bct"]
    assert table.index.get_level_values("variant").isna().tolist() == [True, False, True, True]
    np.testing.assert_allclose(table.iloc[:2], [[-0.1, -0.2], [np.nan, -0.4]])
    failed = replace(study, runs=study.runs.assign(status="failed", BC=None))
    assert failed.pivot()["BC"].isna().tolist() == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ({"values": "BCC"}, "'BC'"),
        ({"columns": "memory.perclass"}, "'memory.per_class'"),
        ({"index": "method"}, "'method.name'"),
        ({"aggregate": "meen"}, "'mean'"),
        ({"pairs": "tunning"}, "'tuning'"),
    ],
)
def test_pivot_names_the_nearest(study: Study, arguments: dict[str, str], nearest: str) -> None:
    with pytest.raises(InputError, match=nearest):
        study.pivot(**arguments)
