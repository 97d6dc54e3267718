"""Three sentences about a comparison of methods: what was found, how sure, and why."""

import math

import pandas as pd
import pytest

from analysis.findings import upgrade_findings

FIRST, LAST = 0.70, 0.80


def runs_of(served: dict[str, list[float]], **columns: object) -> pd.DataFrame:
    """Return one run per method and seed, with this service accuracy; φ_1 alone serves 0.70, re-indexing 0.80."""
    rows = []
    for name, values in served.items():
        for seed, value in enumerate(values):
            row = {"run": f"{name}{seed}", "method.name": name, "seed": seed, "status": "finished", "tasks": 4}
            row |= {"first_accuracy": FIRST, "service_accuracy": value, "reindexed_accuracy": LAST}
            rows.append({**row, "head.centre": True, **columns})
    return pd.DataFrame(rows)


def test_the_best_method_beside_its_first_model_and_re_indexing() -> None:
    found, certainty, reason = upgrade_findings(
        runs_of({"er": [0.70, 0.72, 0.71], "cl2r": [0.73, 0.74, 0.75], "er_fdm": [0.76, 0.77, 0.78]})
    )
    assert found.startswith("Trainable, FD^M serves best without re-indexing, with accuracy 0.770; its first model")
    assert "alone would serve 0.700, and re-indexing the gallery 0.800." in found
    assert "CL²R is second of 3 with 0.740." in found
    # 0.06, 0.07, 0.08 have mean 0.07, s = 0.01, and t(2) = 4.303: half the interval is 4.303 · 0.01/√3 = 0.025.
    assert "Over 3 seeds" in certainty
    assert "Trainable, FD^M differs from its first model by +0.070 [+0.045, +0.095]; and from CL²R by" in certainty
    assert "CL²R by +0.030 for every seed" in certainty
    assert "the best was picked from 3" in certainty
    assert "CL²R is not first here" in reason
    assert "one of 4 equal tasks here" in reason
    assert "they are)" in reason


def test_cl2r_first_is_compared_with_er() -> None:
    runs = runs_of({"er": [0.70, 0.72, 0.71], "cl2r": [0.75, 0.74, 0.76]}, **{"scenario.initial": 40})
    found, certainty, reason = upgrade_findings(runs)
    assert found.startswith("CL²R serves best")
    assert "second" not in found
    assert "ER by +0.040 [" in certainty
    assert reason.startswith("CL²R is first here")
    assert "40 classes here" in reason


def test_an_upgrade_that_does_not_pay_is_called_so() -> None:
    found = upgrade_findings(runs_of({"er": [0.65, 0.66], "cl2r": [0.69, 0.70]}))[0]
    assert found.startswith("No upgrade paid without re-indexing: the best, CL²R, serves 0.695;")


def test_one_seed_asks_for_more() -> None:
    assert "--seeds 0 1 2" in upgrade_findings(runs_of({"er": [0.71], "cl2r": [0.72]}))[1]


def test_methods_are_ranked_on_the_seeds_that_all_have() -> None:
    runs = runs_of({"er": [0.70, 0.71, 0.90], "cl2r": [0.60, 0.70, 0.89], "er_fdm": [0.9, 0.9, 0.9]})
    runs.loc[runs["method.name"] == "er_fdm", "status"] = "failed"
    runs.loc[3, "service_accuracy"] = math.nan  # the first one of CL²R, whose mean is now higher
    found, certainty, _ = upgrade_findings(runs)
    assert found.startswith("ER serves best without re-indexing, with accuracy 0.805")
    assert "CL²R by +0.010 for every seed" in certainty
    assert "Only seeds that all methods have count (1 and 2)." in certainty
    runs.loc[4, "status"] = "failed"
    assert "One seed" in upgrade_findings(runs)[1]
    runs.loc[5, "status"] = "failed"
    assert upgrade_findings(runs) == []


def test_the_best_is_compared_with_the_next_and_with_cl2r() -> None:
    runs = runs_of({"er_fdm": [0.80, 0.81, 0.82], "er_fd": [0.81, 0.80, 0.81], "cl2r": [0.70, 0.71, 0.71]})
    certainty = upgrade_findings(runs)[1]
    assert "Trainable, FD by +0.003 [-" in certainty
    assert "CL²R by +0.103 [+" in certainty


def test_recall_that_falls_behind_the_first_model_is_said() -> None:
    served = {"er": [0.70, 0.72], "cl2r": [0.75, 0.76]}
    worse = runs_of(served, service_recall=0.84, first_recall=0.88)
    assert "In recall@1 the first model was better: the best reaches 0.840" in upgrade_findings(worse)[0]
    assert "recall" not in upgrade_findings(runs_of(served, service_recall=0.9, first_recall=0.88))[0]
    assert "recall" not in upgrade_findings(runs_of(served, service_recall=math.nan, first_recall=math.nan))[0]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"scenario.n_tasks": 5, "tasks": 3}, "one of 5 equal tasks"),
        ({"scenario.increment": 20, "tasks": 3}, "20 classes here"),
    ],
)
def test_the_split_is_that_of_the_scenario(columns: dict[str, object], words: str) -> None:
    assert words in upgrade_findings(runs_of({"er": [0.70], "cl2r": [0.75]}, **columns))[2]


@pytest.mark.parametrize(
    "runs",
    [
        runs_of({"er": [0.7]}),
        runs_of({"er": [0.7], "cl2r": [0.7]}).drop(columns="service_accuracy"),
        pd.concat([runs_of({"er": [0.7], "cl2r": [0.8]}, tasks=count) for count in (2, 3)], ignore_index=True),
        pd.concat(
            [runs_of({"er": [0.7], "cl2r": [0.8]}, **{"memory.per_class": size}) for size in (2, 3)], ignore_index=True
        ),
        runs_of({"er": [0.7], "cl2r": [0.8]}).assign(**{"memory.per_class": [4, 40]}),
    ],
    ids=["one method", "an older frame", "two numbers of tasks", "two settings per method", "another memory"],
)
def test_other_studies_have_no_such_sentences(runs: pd.DataFrame) -> None:
    assert upgrade_findings(runs) == []
