"""What a race recommends: the choice on tuning pairs, how good it is on report pairs, and when not to choose."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.recommendation import recommendation
from analysis.report import build_report
from analysis.study import Study
from analysis.tables.formats import render
from cl2r.errors import InputError

SEEDS = (0, 1, 2)
NOISE = {0: 0.004, 1: -0.003, 2: 0.001}  # what a seed does to all candidates
SPECIFICATION: dict[str, Any] = {
    "seeds": list(SEEDS),
    "race": {"hours": 2.0, "methods": None, "adapters": []},
    "search": {"objectives": ["service_accuracy"], "constraints": {"reindexed_accuracy": ">= er - 0.01"}},
}


def row(
    number: int, method: str, variant: str, seed: int, service: float, tuning: float, **more: Any
) -> dict[str, Any]:
    """One finished run; the first model has 0.70, the last one, re-indexed, 0.80."""
    fd = "memory" if method.startswith(("er_fdm", "cl2r")) else "none"
    config = {"method.name": method, "seed": seed, "memory.per_class": 20, "method.lambda_base": 5.0, "method.fd": fd}
    config |= {
        "head.centre": False,
        "optim.epochs": 20,
        "eval.split": "classes",
        "data.name": "photos",
        "variant": variant,
    }
    values = {"service_accuracy": service, "tuning_service_accuracy": tuning, "service_recall": service - 0.1}
    values |= {
        "reindexed_accuracy": 0.80,
        "tuning_reindexed_accuracy": 0.80,
        "first_accuracy": 0.70,
        "tuning_first_accuracy": 0.70,
        "first_recall": 0.6,
    }
    values |= {"reindexed_recall": 0.7}
    values |= {"AC": 0.5, "BC": -0.01, "FC": 0.01, "train_seconds": 60.0, "stored_bytes": 2_000_000, "tasks": 5}
    costs = {"adapter_flops": 0.0, "gallery_items_touched": 0}
    run = f"photos-{method}-{number}-{variant}-s{seed}"
    return {"run": run, "trial": number, "status": "finished", **config, **values, **costs, **more}


def made(finals: dict[str, tuple[float, float]], spread: float = 0.001, **more: Any) -> Study:
    """A race whose finalists have these service accuracies on report and tuning pairs; er and cl2r at their defaults.

    `spread` is what a seed does to one candidate alone. Values of `more` replace those of all finalists.
    """
    rows = [row(0, "er", "screening", 0, 0.6, 0.6), row(1, "cl2r", "screening", 0, 0.6, 0.6)]
    rows += [row(9, "fan", "screening", 0, 0.5, 0.5, gallery_items_touched=2 * 1600, tasks=3)]
    numbers = {"er": 0, "cl2r": 1}
    alone = np.random.default_rng(0)
    for place, (method, (report, tuning)) in enumerate(finals.items()):
        number = numbers.get(method, 10 + place)
        for seed in SEEDS:
            shift = NOISE[seed] + spread * alone.standard_normal()
            rows.append(row(number, method, "final", seed, report + shift, tuning + NOISE[seed], **more))
    runs = pd.DataFrame(rows).astype({"trial": "Int64", "variant": "string", "status": "string"})
    runs["reason"] = pd.NA
    tasks = pd.DataFrame({"run": runs["run"], "task": 1, "key": runs["run"], "reused": False, "extract_seconds": 2.0})
    cells = [(1, 1, 0.7), (2, 1, 0.72), (2, 2, 0.8)]
    names = ["run", "pairs", "metric", "t", "k", "accuracy", "compatible"]
    matrix = pd.DataFrame(
        [(run, "report", "accuracy", *cell, True) for run in runs["run"] for cell in cells], columns=names
    )
    about = {"seconds": 3600.0, "expected_runs": len(runs)}
    return Study(runs, tasks, matrix, pd.DataFrame(), name="race", specification=SPECIFICATION, about=about)


CLEAR = {"er": (0.72, 0.72), "cl2r": (0.73, 0.73), "er_fdm": (0.78, 0.77)}


def test_a_clear_winner_is_named_with_its_settings_and_its_gain() -> None:
    found = recommendation(made(CLEAR))
    assert found.sentence.startswith(
        "Use Trainable, FD^M (er_fdm) with λ_base 5 and 20 images per class: service accuracy 0.781, +0.060 ["
    ), found.sentence
    assert "against ER over 3 seeds, on classes the search never saw" in found.sentence
    assert found.sentence.endswith("it is better than every other finalist over 3 seeds.")
    assert (found.candidate, found.run, found.alike) == (12, "photos-er_fdm-12-final-s0", ())
    assert found.race == (
        "screening: 3 candidates, 1 seed, 5 tasks, 20 epochs",
        "final: 3 candidates, 3 seeds, 5 tasks, 20 epochs",
        "time: 1 h 0 min of 2 h 0 min",
    )
    assert any("Never upgrading would give 0.700" in line for line in found.details)
    assert any("1,600 vectors at every upgrade, 2 s for the open images" in line for line in found.details)
    assert found.table is not None
    assert [cell.text for cell in found.table.column("candidate")] == [
        "Trainable, FD^M with λ_base 5 and 20 images per class", "CL²R", "ER", "never upgrade (ER)", "re-index (ER)"
    ]  # fmt: skip
    assert found.table.data["method.name"].tolist()[:3] == ["er_fdm", "cl2r", "er"]
    assert found.table.references == 2
    assert [cell.text for cell in found.table.column("service accuracy")][-2:] == ["0.700", "0.800"]
    assert found.table.column("− ER")[2].text == "–"
    text = render(found.table, "terminal")
    assert "stored MB" in text
    assert "2.0" in text


def test_the_choice_is_made_on_tuning_pairs() -> None:
    swapped = {"er": (0.72, 0.72), "cl2r": (0.80, 0.73), "er_fdm": (0.78, 0.77)}
    found = recommendation(made(swapped))
    assert found.candidate == 12
    assert found.sentence.startswith("Use Trainable, FD^M (er_fdm)")
    assert found.sentence.endswith("the tuning images chose it, but here CL²R did better.")


def test_a_winner_that_seeds_do_not_separate_cannot_be_told_from_others() -> None:
    close = {"er": (0.72, 0.72), "cl2r": (0.779, 0.73), "er_fdm": (0.78, 0.77)}
    found = recommendation(made(close, spread=0.01))
    assert found.sentence.startswith("Use Trainable, FD^M (er_fdm) with λ_base 5 and 20 images per class: ")
    assert found.sentence.endswith("3 seeds cannot tell it from CL²R."), found.sentence
    assert "against ER over 3 seeds" in found.sentence
    assert "CL²R" in found.alike
    assert found.run is not None, "the leading one is written nevertheless"


def test_nothing_beats_never_upgrading() -> None:
    poor = {"er": (0.60, 0.6), "cl2r": (0.61, 0.61), "er_fdm": (0.65, 0.65)}
    found = recommendation(made(poor))
    assert found.sentence == (
        "Do not upgrade without re-indexing: on tuning pairs nothing beats never upgrading; on classes the search "
        "never saw Trainable, FD^M with λ_base 5 and 20 images per class has service accuracy 0.651, its first model "
        "alone 0.700; re-indexing is the better choice: Trainable, FD^M (er_fdm) with λ_base 5 and 20 images per class "
        "then reaches 0.800."
    )
    assert any("1,600 vectors" in line for line in found.details)
    useless = recommendation(made(poor, reindexed_accuracy=0.69, tuning_reindexed_accuracy=0.69))
    assert "re-indexing does not help either" in useless.sentence


def changed(study: Study, method: str, **values: Any) -> Study:
    """The study with other values in the final runs of a method."""
    own = (study.runs["method.name"] == method) & (study.runs["variant"] == "final")
    for name, value in values.items():
        study.runs.loc[own, name] = value
    return study


def test_never_upgrading_is_judged_on_tuning_pairs_by_the_first_model_of_the_choice() -> None:
    poor = {"er": (0.60, 0.6), "cl2r": (0.61, 0.61), "er_fdm": (0.65, 0.65)}
    lower = changed(made(poor), "er_fdm", first_accuracy=0.62, tuning_first_accuracy=0.62)
    found = recommendation(lower)
    assert found.sentence.startswith("Use Trainable, FD^M (er_fdm)"), (
        "it beats its own first model, though not that of ER"
    )
    assert any(line.startswith("Never upgrading would give 0.620 (-0.031)") for line in found.details), found.details
    higher = changed(made(CLEAR), "er_fdm", first_accuracy=0.71, tuning_first_accuracy=0.9)
    higher = changed(higher, "cl2r", reindexed_accuracy=0.85, tuning_reindexed_accuracy=0.85)
    found = recommendation(higher)
    assert "has service accuracy 0.781, its first model alone 0.710" in found.sentence
    assert found.sentence.endswith("re-indexing is the better choice: CL²R (cl2r) then reaches 0.850.")
    assert found.candidate == 1, "the config is that of the candidate that is named"


def test_nothing_is_feasible() -> None:
    study = made(CLEAR)
    search = {"objectives": ["service_accuracy"], "constraints": {"AC": ">= 0.9"}}
    study.runs["tuning_AC"] = 0.4
    strict = Study(
        study.runs, study.tasks, study.matrix, study.curves, name="race", about={},
        specification={**SPECIFICATION, "search": search},
    )  # fmt: skip
    found = recommendation(strict)
    assert found.sentence.startswith("Nothing to recommend: no finalist meets AC >= 0.9; Trainable, FD^M with")
    assert found.run is found.candidate is None
    assert found.table is not None


def test_a_frozen_model_is_not_chosen() -> None:
    study = made({**CLEAR, "lwf": (0.9, 0.9)})
    frozen = study.runs["method.name"] == "lwf"
    study.runs.loc[frozen, ["tuning_reindexed_accuracy", "reindexed_accuracy"]] = 0.7
    found = recommendation(study)
    assert found.candidate == 12
    assert "LwF" not in found.sentence, "it is no rival"
    assert found.sentence.endswith("better than every other finalist that meets the constraints over 3 seeds.")
    assert found.table is not None
    names = [cell.text for cell in found.table.column("candidate")]
    assert names[3].startswith("LwF")
    assert names[3].endswith("(misses reindexed_accuracy >= er - 0.01)")
    assert any("a finalist that misses one cannot be recommended" in note for note in found.table.notes)
    clear = recommendation(made(CLEAR)).table
    assert clear is not None
    assert not any("misses one" in note for note in clear.notes)


def fail(study: Study, method: str, seed: int) -> Study:
    """The study in which one final run of a method has failed."""
    lost = (study.runs["method.name"] == method) & (study.runs["seed"] == seed) & (study.runs["variant"] == "final")
    study.runs.loc[lost, "status"] = "failed"
    return study


def test_a_failed_run_of_a_further_seed_leaves_that_seed_out() -> None:
    two = {**SPECIFICATION, "seeds": [0, 1]}
    found = recommendation(replace(fail(made(CLEAR), "er_fdm", 2), specification=two))
    assert found.candidate == 12
    assert "over 2 seeds" in found.sentence
    assert not any("left out" in line for line in found.details)


def test_a_candidate_without_one_of_the_seeds_is_left_out_and_named() -> None:
    found = recommendation(fail(made(CLEAR), "er_fdm", 1))
    assert found.candidate == 1
    assert "over 3 seeds" in found.sentence
    left_out = "Trainable, FD^M with λ_base 5 and 20 images per class is left out: it has no final run with seed 1."
    assert left_out in found.details


def test_without_the_method_of_a_constraint_nothing_can_be_told() -> None:
    found = recommendation(fail(made(CLEAR), "er", 1))
    assert found.sentence.startswith("Cannot tell yet: a constraint refers to er, which has not finished the final")
    free = {**SPECIFICATION, "search": {"objectives": ["service_accuracy"], "constraints": {}}}
    found = recommendation(replace(fail(made(CLEAR), "er", 1), specification=free))
    assert found.candidate == 12
    assert "ER is left out: it has no final run with seed 1." in found.details


def test_a_method_that_only_bounds_a_constraint_is_not_recommended() -> None:
    study = made({**CLEAR, "upper_bound": (0.9, 0.9)})
    study.runs.loc[study.runs["method.name"] == "upper_bound", "trial"] = 8
    study.runs.loc[study.runs["method.name"] == "fan", ["method.name", "trial"]] = ["upper_bound", 8]
    search = {"objectives": ["service_accuracy"], "constraints": {"reindexed_accuracy": ">= upper_bound - 0.1"}}
    found = recommendation(replace(study, specification={**SPECIFICATION, "search": search}))
    assert found.candidate == 12
    assert "UB" not in found.sentence
    assert found.table is not None
    assert any(cell.text.endswith("(only a bound)") for cell in found.table.column("candidate"))
    named = {**SPECIFICATION, "race": {**SPECIFICATION["race"], "methods": ["upper_bound"]}, "search": search}
    assert recommendation(replace(study, specification=named)).candidate == 8


def test_a_value_that_one_seed_lacks_is_missing() -> None:
    study = made(CLEAR)
    lost = (study.runs["method.name"] == "er_fdm") & (study.runs["seed"] == 1)
    study.runs.loc[lost, "tuning_service_accuracy"] = math.nan
    assert recommendation(study).candidate == 1
    study.runs["tuning_service_accuracy"] = math.nan
    words = "Nothing to recommend: no finalist has a value of service accuracy on tuning pairs."
    assert recommendation(study).sentence == words


def test_a_choice_that_rewrites_the_gallery_says_so() -> None:
    found = recommendation(changed(made(CLEAR), "er_fdm", gallery_items_touched=6400))
    assert found.sentence.endswith("; every upgrade rewrites the vectors of the gallery.")
    assert "rewrites" not in recommendation(made(CLEAR)).sentence


def test_the_table_says_how_its_intervals_are_to_be_read() -> None:
    table = recommendation(made(CLEAR)).table
    assert table is not None
    text = " ".join(table.notes)
    assert "over seeds, not over classes" in text
    assert "all seeds of the final chose the winner" in text
    assert "somewhat optimistic" in text


def test_nothing_is_compatible() -> None:
    found = recommendation(made(CLEAR, AC=0.0))
    assert any(line.startswith("Nothing is compatible") for line in found.details)
    assert not any("compatible" in line for line in recommendation(made(CLEAR)).details)


def test_one_seed_makes_no_claim() -> None:
    study = made(CLEAR)
    single = replace(study, runs=study.runs[study.runs["seed"] == 0], specification={**SPECIFICATION, "seeds": [0]})
    found = recommendation(single)
    assert "1 seed cannot tell it from ER and CL²R" in found.sentence
    assert "One seed: no interval, no test." in found.details


def test_a_race_without_a_final_round_and_a_study_that_is_no_race() -> None:
    study = made(CLEAR)
    early = study.runs[study.runs["variant"] == "screening"]
    begun = Study(early, study.tasks, study.matrix, study.curves, name="race", specification=SPECIFICATION)
    assert recommendation(begun).sentence == "Cannot tell yet: no final round has finished."
    with pytest.raises(InputError, match="is no race"):
        recommendation(Study(early, study.tasks, study.matrix, study.curves, name="grid"))


def test_the_page_begins_with_the_recommendation_and_shows_the_rounds() -> None:
    study = made(CLEAR)
    page = build_report(study)
    assert page.index("Recommended") < page.index("Compared")
    assert '<section id="race">' in page
    assert "race-rounds" in page
    assert "Use Trainable, FD^M (er_fdm) with λ_base 5" in page
    begun = Study(
        study.runs[study.runs["variant"] == "screening"], study.tasks, study.matrix, study.curves, name="race",
        specification=SPECIFICATION,
    )  # fmt: skip
    assert "Cannot tell yet" in build_report(begun)
