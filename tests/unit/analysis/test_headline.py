"""The title of a study and its two sentences: what was found, and how sure."""

import math
from typing import Any

import pandas as pd
import pytest

from analysis import Study
from analysis.headline import Headline, headline, more_seeds, study_kind, study_title
from tests.support.made_study import made_study, made_sweep

FIRST, LAST = 0.70, 0.80


def runs_of(served: dict[str, list[float]], **columns: object) -> pd.DataFrame:
    """Return one run per method and seed, with this service accuracy; φ_1 alone serves 0.70, re-indexing 0.80."""
    rows = []
    for name, values in served.items():
        for seed, value in enumerate(values):
            row = {"run": f"{name}{seed}", "method.name": name, "seed": seed, "status": "finished", "tasks": 4}
            row |= {"first_accuracy": FIRST, "service_accuracy": value, "reindexed_accuracy": LAST}
            rows.append({**row, "BC": value - 0.75, "head.centre": True, "data.name": "icons", **columns})
    return pd.DataFrame(rows)


def study_of(runs: pd.DataFrame, **about: Any) -> Study:
    empty = pd.DataFrame()
    return Study(runs, empty, empty, empty, name="made", about=about)


def of(served: dict[str, list[float]], **columns: object) -> Headline:
    return headline(study_of(runs_of(served, **columns)))


def test_the_finding_has_accuracy_bc_cost_and_both_alternatives() -> None:
    costs = {"train_seconds": 61.0, "stored_bytes": 717_000}
    found = of({"er": [0.70, 0.72, 0.71], "cl2r": [0.73, 0.74, 0.75], "er_fdm": [0.76, 0.77, 0.78]}, **costs)
    # 0.76, 0.77, 0.78 have mean 0.77, s = 0.01, and t(2) = 4.303: half the interval is 4.303 · 0.01/√3 = 0.025.
    assert found.finding == (
        "Trainable, FD^M serves best without re-indexing: service accuracy 0.770 [0.745, 0.795] and BC +0.020 "
        "[-0.005, +0.045], for 1 min 1 s of training and 717 kB stored; re-indexing it would reach "
        "0.800, its first model alone 0.700."
    )
    assert found.certainty == (
        "Over 3 seeds it differs from the next, CL²R, by +0.030 (for every seed) and from its own first model by "
        "+0.070 [+0.045, +0.095] (clear), and was picked from 3."
    )
    assert found.remark.startswith("CL²R is second of 3 here, 0.030 behind, which depends on")
    assert "one of 4 equal tasks here" in found.remark
    assert "(they are)" in found.remark


def test_a_difference_whose_interval_holds_0_is_not_clear() -> None:
    found = of({"er": [0.74, 0.72, 0.76], "cl2r": [0.75, 0.74, 0.75]})
    assert found.finding.startswith("CL²R serves best")
    assert "from the next, ER, by +0.007 [" in found.certainty
    assert "(not clear)" in found.certainty
    assert "picked" not in found.certainty, "there are only two"
    assert found.remark.startswith("CL²R is first of 2 here, which depends")


def test_an_upgrade_that_does_not_pay_is_called_so() -> None:
    found = of({"er": [0.65, 0.66], "cl2r": [0.69, 0.70]}).finding
    assert found.startswith("No upgrade paid without re-indexing: the best, CL²R, has service accuracy 0.695 [")


def test_one_seed_has_intervals_over_pairs_and_asks_for_more_seeds() -> None:
    runs = runs_of({"er": [0.71], "cl2r": [0.72]}, service_accuracy_low=0.69, service_accuracy_high=0.74)
    words = ["python", "studies/ablation.py", "--seeds", "0", "--name", "mine", "--storage", "out"]
    found = headline(study_of(runs, command=words))
    assert "service accuracy 0.720 [0.690, 0.740]" in found.finding
    assert found.certainty.startswith("One seed cannot tell a finding from chance: its intervals are over pairs")
    assert "2 more seeds would make this surer" in found.certainty
    assert found.command == "python studies/ablation.py --storage out --seeds 0 1 2"
    assert of({"er": [0.71], "cl2r": [0.72]}).command == "", "the command was not recorded"


def test_the_time_of_more_seeds_is_that_of_the_distinct_links_on_as_many_cores() -> None:
    tasks = pd.DataFrame(
        {"key": ["a", "b", "a", "c"], "seconds": [10.0, 20, 10, 30], "reused": [False, False, True, False]}
    )
    study = Study(runs_of({"er": [0.7, 0.7], "cl2r": [0.7, 0.7]}), tasks, tasks[:0], tasks[:0], name="made")
    object.__setattr__(study, "about", {"command": ["cl2r", "study", "ablation"], "seconds": 30.0})
    # 60 s of distinct links for two seeds are 30 s per seed; two trials ran at a time (60 s in 30 s).
    assert more_seeds(study) == ("cl2r study ablation --seeds 0 1 2 3", ", about 30 s,")


def test_methods_are_ranked_on_the_seeds_that_all_have() -> None:
    runs = runs_of({"er": [0.70, 0.71, 0.90], "cl2r": [0.60, 0.70, 0.89], "er_fdm": [0.9, 0.9, 0.9]})
    runs.loc[runs["method.name"] == "er_fdm", "status"] = "failed"
    runs.loc[3, "service_accuracy"] = math.nan  # the first one of CL²R, whose mean is now higher
    found = headline(study_of(runs))
    assert found.finding.startswith("ER serves best without re-indexing: service accuracy 0.805")
    left = "Only seeds that all methods have count (1 and 2). Without a finished run: Trainable, FD^M."
    assert found.certainty.endswith(left)
    runs.loc[4, "status"] = "failed"
    assert headline(study_of(runs)).certainty.startswith("One seed")
    runs.loc[5, "status"] = "failed"
    assert headline(study_of(runs)).certainty.endswith("Without a finished run: Trainable, FD^M; and CL²R.")


def test_recall_that_falls_behind_every_first_model_is_said() -> None:
    served = {"er": [0.70, 0.72], "cl2r": [0.75, 0.76]}
    worse = of(served, service_recall=0.84, first_recall=0.88)
    assert (
        "In recall@1 every first model is better: the best method reaches 0.840, its first model 0.880." in worse.remark
    )
    assert "recall" not in of(served, service_recall=0.9, first_recall=0.88).remark
    assert "recall" not in of(served, service_recall=math.nan, first_recall=math.nan).remark


def test_methods_with_more_or_less_to_train_on_are_named() -> None:
    served = {"er": [0.71], "lwf": [0.70], "cl2r": [0.72], "bct": [0.7], "upper_bound": [0.79]}
    found = headline(study_of(runs_of(served).assign(**{"memory.per_class": [4, 0, 4, 4, 4]})))
    assert found.finding.startswith("CL²R serves best")
    assert "BCT and UB train on all data at every task: not ranked; LwF keeps no memory." in found.remark
    alone = of({"er": [0.71, 0.72], "upper_bound": [0.79, 0.78]})
    assert alone.finding.startswith("ER serves best")
    assert alone.certainty.startswith("Over 2 seeds it differs from its own first model by +0.015 [")


def test_equal_methods_a_failed_method_and_one_task_are_said() -> None:
    assert of({"er": [0.75], "cl2r": [0.75]}).finding.startswith("CL²R and ER serve equally, best without re-indexing")
    failed = runs_of({"er": [0.71, 0.72], "cl2r": [0.73, 0.74], "lwf": [0.9, 0.9]})
    failed.loc[failed["method.name"] == "lwf", "status"] = "failed"
    assert headline(study_of(failed)).certainty.endswith("Without a finished run: LwF.")
    assert of({"er": [0.7], "cl2r": [0.71]}, tasks=1).finding.startswith(
        "One task: there is no upgrade yet. CL²R is most"
    )
    unknown = of({"er": [0.71], "cl2r": [0.72]}, train_seconds=math.nan, stored_bytes=math.nan)
    assert "nan" not in unknown.finding
    assert ", for " not in unknown.finding


def test_a_study_of_another_kind_names_its_best_group() -> None:
    runs = runs_of({"er": [0.71, 0.72], "cl2r": [0.73, 0.74]})
    both = pd.concat([runs.assign(variant="plain"), runs.assign(variant="masked", service_accuracy=0.76)])
    found = headline(study_of(both.assign(run=range(len(both)))))
    assert found.finding.endswith("re-indexing it would reach 0.800, its first model alone 0.700.")
    assert "masked has the highest service accuracy, 0.760" in found.finding
    assert found.certainty.startswith("Over 2 seeds, the highest of 4")
    single = of({"er": [0.71]})
    assert single.finding.startswith("ER: service accuracy 0.710; re-indexing it")


def test_a_method_that_maps_the_gallery_says_so() -> None:
    runs = runs_of({"er": [0.71], "fan": [0.75]}).assign(gallery_items_touched=[0, 800])
    assert headline(study_of(runs)).finding.startswith(
        "FAN, which maps the stored gallery at every update, serves best"
    )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"scenario.n_tasks": 5, "tasks": 3}, "one of 5 equal tasks"),
        ({"scenario.increment": 20, "tasks": 3}, "20 here"),
    ],
)
def test_the_split_is_that_of_the_scenario(columns: dict[str, object], words: str) -> None:
    assert words in of({"er": [0.70], "cl2r": [0.75]}, **columns).remark


@pytest.mark.parametrize(
    ("runs", "finding"),
    [
        (runs_of({"er": [0.7], "cl2r": [0.7]}).drop(columns="service_accuracy"), "The runs have no service accuracy"),
        (
            runs_of({"er": [0.7], "cl2r": [0.8]}).assign(**{"optim.epochs": [4, 40]}),
            "The runs differ in optim.epochs",
        ),
        (runs_of({"er": [0.7], "cl2r": [0.8]}, status="failed"), "No run has finished yet."),
    ],
    ids=["an older frame", "another budget", "nothing finished"],
)
def test_runs_that_cannot_be_ranked_say_why(runs: pd.DataFrame, finding: str) -> None:
    assert headline(study_of(runs)).finding.startswith(finding)


def test_titles_and_kinds() -> None:
    ablation = study_of(runs_of({"er": [0.7, 0.7], "cl2r": [0.7, 0.7]}))
    methods = study_of(runs_of({"er": [0.7], "lucir": [0.7], "cl2r+aligner": [0.7]}))
    field = made_study(["er", "cl2r"], [0, 1, 2], grid={"memory.per_class": [0, 10]})
    empty = study_of(pd.DataFrame())
    titles = {study_kind(study): study_title(study, study_kind(study)) for study in (ablation, methods, field, empty)}
    assert titles["ablation"] == "Ablation on icons: 2 methods, 4 tasks, 2 seeds"
    assert titles["methods"] == "Methods on icons: 3 methods, 4 tasks, 1 seed"
    assert titles["field"] == "Sizes of memory on icons: 2 methods, memory = 0 and 10, 3 tasks, 3 seeds"
    assert titles["points"] == "Study"
    swept = made_sweep(4, (2, 5))
    assert study_kind(swept) == "sweep"
    assert study_title(swept, "sweep").startswith("Sweep on icons: ")
