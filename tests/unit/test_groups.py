"""Which runs belong together, what their groups are called, and what a cell may hold."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_study import made_study

from analysis.groups import group_fields, group_labels, varied_fields, with_defaults
from analysis.report.comparable import comparable_sets
from analysis.report.labels import labelled
from analysis.tables import check_cells
from cl2r.errors import InputError

FAR = "[0.01, 0.1, 0.0001]"


def runs_of(**columns: Any) -> pd.DataFrame:
    """Two seeds of CL²R."""
    return pd.DataFrame({"method.name": "cl2r", "seed": [0, 1], **columns})


def test_labels_get_the_digits_that_tell_them_apart() -> None:
    values = [0.12341, 0.12342, 3.0, 0.1 + 0.2]
    runs = pd.DataFrame({"method.name": "cl2r", "method.lambda_base": values})
    written = ["CL²R, λ_base=0.12341", "CL²R, λ_base=0.12342", "CL²R, λ_base=3", "CL²R, λ_base=0.3"]
    assert group_labels(runs).tolist() == written


def test_fields_of_one_short_name_have_their_whole_one() -> None:
    runs = pd.DataFrame(
        {"method.name": "er", "optim.epochs": [3, 5, 3], "bic.epochs": [5, 3, 3], "optim.lr": [1, 2, 3]}
    )
    assert group_labels(runs)[0] == "ER, optim.epochs=3, bic.epochs=5, lr=1"


def test_a_variant_may_sound_like_a_method() -> None:
    runs = pd.DataFrame({"method.name": ["lwf", "lwf_er", "er"], "variant": ["memory", None, None]})
    assert group_labels(runs).tolist() == [
        "method.name='lwf', variant='memory'",
        "method.name='lwf_er', variant=–",
        "ER",
    ]


VALUES: list[Any] = [None, "–", "a", "a, lr=1", 1, 0.1, 0.1 + 1e-12, 0.10001, 0.100012]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(*[st.sampled_from(VALUES)] * 2, st.sampled_from(["", "a", "a, b"])), min_size=1, max_size=9))
def test_no_two_groups_share_a_label(rows: list[tuple[Any, ...]]) -> None:
    runs = pd.DataFrame(rows, columns=["x.lr", "y.lr", "variant"], dtype=object).assign(**{"method.name": "er"})
    names = ["method.name", "variant", "x.lr", "y.lr"]
    labels = group_labels(runs, names)
    assert labels.nunique() == len(set(rows)) == len(set(zip(labels, rows, strict=True)))


def test_the_report_calls_groups_as_all_others_do() -> None:
    study = made_study(["cl2r"], grid={"method.lambda_base": [0.12341, 0.12342]})
    fields = group_fields(study.runs)
    assert labelled(study, fields)["group"].tolist() == group_labels(study.runs).tolist()
    assert set(group_labels(study.runs)) == {"CL²R, λ_base=0.12341", "CL²R, λ_base=0.12342"}


@pytest.mark.parametrize("dtype", ["string", object])
def test_older_runs_have_the_defaults_of_later_fields(dtype: Any) -> None:
    runs = runs_of(**{"eval.metric": pd.array([None, "tar"], dtype=dtype), "eval.far": [np.nan, np.nan], "AC": 0.5})
    filled = with_defaults(runs)
    assert filled["eval.metric"].tolist() == ["accuracy", "tar"]
    assert filled["eval.metric"].dtype == runs["eval.metric"].dtype
    assert filled["eval.far"].tolist() == [FAR, FAR]
    assert runs["eval.metric"].isna().tolist() == [True, False], "the frame itself stays"
    assert filled.columns.tolist() == runs.columns.tolist()


def test_runs_older_than_a_field_belong_to_those_with_its_default() -> None:
    runs = made_study(["cl2r"], (0, 1, 2)).runs
    runs.loc[0, ["eval.metric", "eval.far", "augment.crop"]] = None
    assert varied_fields(runs) == []
    assert group_labels(runs).tolist() == ["CL²R"] * 3
    check_cells(runs, ["method.name"])
    assert len(comparable_sets(runs)) == 1
    runs.loc[2, "eval.metric"] = "tar"
    assert varied_fields(runs) == ["eval.metric"]
    assert group_labels(runs).tolist() == ["CL²R, metric=accuracy"] * 2 + ["CL²R, metric=tar"]
    assert [(words, len(rows)) for words, rows in comparable_sets(runs)] == [("metric=accuracy", 2), ("metric=tar", 1)]


def test_empty_values_are_equal_whatever_they_are_made_of() -> None:
    runs = runs_of(**{"memory.per_class": pd.Series([None, np.nan], dtype=object)})
    assert varied_fields(runs) == []
    check_cells(runs, ["method.name"])


def test_a_cell_may_differ_in_its_seed_only() -> None:
    runs = made_study(["er", "cl2r"], (0, 1)).runs
    check_cells(runs, ["method.name"])
    for field, value in [("optim.lr", 0.7), ("memory.per_class", 3), ("eval.pairs_seed", 9), ("variant", "long")]:
        mixed = runs.copy()
        mixed.loc[1, field] = value
        with pytest.raises(InputError, match=rf"a cell would mix runs that differ in {field}; select one first"):
            check_cells(mixed, ["method.name"])
        check_cells(mixed, ["method.name", field])
    two = runs.assign(**{"optim.lr": [0.1, 0.2, 0.1, 0.1], "data.size": pd.array([8, 8, 8, None], dtype="Int64")})
    with pytest.raises(InputError, match=r"differ in data\.size, optim\.lr;"):
        check_cells(two, ["method.name"])


def test_places_and_bootstrap_draws_may_differ() -> None:
    runs = runs_of(**{"threads": [1, 2], "data.root": ["a", "b"], "data.loaders": [0, 1], "eval.bootstrap": [0, 100]})
    check_cells(runs, ["method.name"])
    with pytest.raises(
        InputError, match=r"mix runs of one seed that differ in data\.root, data\.loaders, eval\.bootst"
    ):
        check_cells(runs.assign(seed=0), ["method.name"])
    with pytest.raises(InputError, match="mix runs of one seed that differ in run;"):
        check_cells(pd.concat([runs[:1], runs[:1]]), ["method.name"])
    check_cells(runs.drop(columns="seed"), ["method.name"])
