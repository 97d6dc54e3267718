"""The headline of a study over one config field: where which method is best, and how sure that is."""

import dataclasses
import math
from collections.abc import Callable

import pandas as pd
import pytest

from analysis import Study
from analysis.headline import Headline, headline, study_kind
from tests.support.made_study import made_study

FIRST, LAST = 0.60, 0.80


def served(values: dict[tuple[str, int], list[float]], field: str = "scenario.n_tasks") -> Study:
    """Return a study with this service accuracy by method and value of the field, one number per seed."""
    rows = []
    for (method, value), accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            row = {
                "run": f"{method}{value}{seed}",
                "method.name": method,
                field: value,
                "seed": seed,
                "status": "finished",
            }
            row |= {"tasks": value if field == "scenario.n_tasks" else 4}
            row |= {"first_accuracy": FIRST, "service_accuracy": accuracy, "reindexed_accuracy": LAST}
            rows.append(row)
    return dataclasses.replace(made_study(), runs=pd.DataFrame(rows))


def found(values: dict[tuple[str, int], list[float]], field: str = "scenario.n_tasks") -> Headline:
    study = served(values, field)
    assert study_kind(study) == "field"
    return headline(study)


def test_a_method_that_is_best_everywhere() -> None:
    result = found(
        {
            **{("er", 2): [0.70, 0.71, 0.72], ("er", 5): [0.65, 0.66, 0.67], ("er", 10): [0.61, 0.62, 0.63]},
            **{("cl2r", 2): [0.751, 0.76, 0.769], ("cl2r", 5): [0.68, 0.66, 0.70], ("cl2r", 10): [0.651, 0.66, 0.669]},
        }
    )
    # s = 0.009 over 3 seeds: half the interval is 4.303 · 0.009/√3 = 0.022.
    assert result.finding == (
        "CL²R serves best at every T from 2 to 10: service accuracy falls from 0.760 [0.738, 0.782] at T=2 to "
        "0.660 [0.638, 0.682] at T=10; re-indexing it would reach 0.800 and 0.800, its first model alone 0.600 and "
        "0.600."
    )
    assert result.certainty.startswith(
        "Over 3 seeds the lead over the next method is clear at T=2 and 10, not clear at T=5; 2 more seeds, about"
    )
    assert result.command == "python studies/ablation.py --seeds 0 1 2 3 4"


def test_a_winner_that_changes() -> None:
    result = found(
        {
            **{("er", 2): [0.75, 0.76], ("er", 3): [0.65, 0.66], ("er", 5): [0.61, 0.62], ("er", 10): [0.61, 0.62]},
            **{("cl2r", 2): [0.70, 0.71], ("cl2r", 3): [0.7, 0.7], ("cl2r", 5): [0.7, 0.7], ("cl2r", 10): [0.68, 0.68]},
        }
    )
    assert result.finding == (
        "ER serves best at T=2 (0.755 [0.691, 0.819]); CL²R from T=3 on (0.680 at T=10); "
        "at T=10 re-indexing it would reach 0.800, its first model alone 0.600."
    )


def test_a_winner_in_between() -> None:
    best = {1: "er", 2: "er", 3: "cl2r", 4: "cl2r", 5: "er"}
    values = {
        (method, value): [0.7 if own == method else 0.65] for value, own in best.items() for method in ("er", "cl2r")
    }
    finding = found(values, "memory.per_class").finding
    assert finding.startswith(
        "ER serves best up to memory=2 (0.700 at memory=2); CL²R from memory=3 to 4 (0.700 at memory=4); "
        "ER at memory=5 (0.700); "
    )


def test_methods_that_tie_count_as_one_winner_with_no_clear_lead() -> None:
    values = {("er", 0): [0.7, 0.7], ("cl2r", 0): [0.7, 0.7], ("er", 5): [0.7, 0.7], ("cl2r", 5): [0.72, 0.721]}
    result = found(values, "memory.per_class")
    assert result.finding.startswith("CL²R serves best at every memory from 0 to 5: service accuracy rises from 0.700")
    assert "is clear at memory=5, not clear at memory=0" in result.certainty
    assert result.certainty.endswith(" At memory=0 ER serves equally.")


def test_a_lead_that_is_the_same_for_every_seed_is_not_called_clear() -> None:
    values = {("er", 0): [0.7, 0.71], ("cl2r", 0): [0.72, 0.73], ("er", 5): [0.7, 0.7], ("cl2r", 5): [0.72, 0.721]}
    assert "is clear at memory=5, not clear at memory=0" in found(values, "memory.per_class").certainty


def test_values_at_which_no_upgrade_pays_are_named() -> None:
    values = {("er", 0): [0.5], ("cl2r", 0): [0.55], ("er", 5): [0.7], ("cl2r", 5): [0.72]}
    assert found(values, "memory.per_class").finding.endswith(" No upgrade pays without re-indexing at memory=0.")


def test_one_method_alone_is_not_called_the_best() -> None:
    result = found({("cl2r", 2): [0.75, 0.76], ("cl2r", 5): [0.70, 0.71]})
    assert result.finding.startswith("Service accuracy of CL²R falls from 0.755 [")
    assert result.certainty.startswith("Intervals are over 2 seeds; 2 more seeds")


def test_one_seed_cannot_tell_a_finding_from_chance() -> None:
    result = found({("er", 2): [0.7], ("cl2r", 2): [0.75], ("er", 5): [0.7], ("cl2r", 5): [0.75]})
    assert result.certainty.startswith("One seed cannot tell a finding from chance")


def test_missing_runs_are_named_and_only_common_seeds_count() -> None:
    values = {
        ("er", 2): [0.70, 0.71, 0.95],
        ("cl2r", 2): [0.75, 0.761, 0.77],
        ("er", 5): [0.7, 0.7],
        ("cl2r", 5): [0.75, 0.75],
    }
    study = served(values)
    study.runs.loc[study.runs["run"] == "cl2r22", "service_accuracy"] = math.nan
    study.runs.loc[study.runs["run"].str.startswith("er5"), "status"] = "failed"
    result = headline(study)
    assert result.finding.startswith("CL²R serves best at every T from 2 to 5: service accuracy falls from 0.756 [")
    assert result.certainty.endswith(
        " Only seeds that all methods have at a value count. Without a finished run: ER at T=5."
    )
    assert "the lead over the next method is clear at T=2;" in result.certainty


def test_a_value_without_a_common_seed_is_named() -> None:
    study = served(
        {("er", 2): [0.70, 0.71], ("cl2r", 2): [0.75, 0.76], ("er", 5): [0.7, 0.7], ("cl2r", 5): [0.75, 0.75]}
    )
    study.runs.loc[study.runs["run"].isin(["er50", "cl2r51"]), "status"] = "failed"
    result = headline(study)
    assert result.finding.startswith("CL²R serves best at T=2: service accuracy 0.755 [")
    assert "Methods have no seed in common at T=5." in result.certainty


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda runs: runs.assign(**{"optim.epochs": runs["method.name"].map({"er": 3, "cl2r": 4})}),
            "The runs differ in optim.epochs: they are not ranked.",
        ),
        (lambda runs: pd.concat([runs, runs], ignore_index=True), "The runs cannot be ranked: see the tables."),
        (lambda runs: runs.assign(service_accuracy=math.nan), "The runs cannot be ranked: see the tables."),
        (
            lambda runs: runs.drop(columns="service_accuracy"),
            "The runs have no service accuracy: they are older than this metric.",
        ),
    ],
    ids=["another setting", "every seed twice", "no value", "an older frame"],
)
def test_runs_that_cannot_be_compared_are_not_ranked(
    change: Callable[[pd.DataFrame], pd.DataFrame], words: str
) -> None:
    study = served({("er", 2): [0.7], ("cl2r", 2): [0.75], ("er", 5): [0.7], ("cl2r", 5): [0.75]})
    assert headline(dataclasses.replace(study, runs=change(study.runs))).finding == words
