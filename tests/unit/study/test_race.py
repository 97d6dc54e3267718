"""The rounds of a race: who takes part, what may be chosen, who is promoted, and what fits into the time."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from cl2r.config.methods import METHODS, method_info, sections
from cl2r.config.schema import field_keys
from cl2r.errors import InputError
from cl2r.storage.path import LocalPath
from cl2r.study.constraints import Constraint
from cl2r.study.folder import StudyFolder
from cl2r.study.race import (
    OWN_KNOBS,
    Candidate,
    RaceSpec,
    Result,
    Round,
    adapter_bases,
    finalists,
    judged,
    knobs_of,
    largest,
    ranking,
    round_settings,
    space_of,
    tuned_methods,
)
from cl2r.study.race_plan import Race, with_split
from cl2r.study.resources import Resources
from cl2r.study.space import Range, corner_values
from cl2r.study.spec import Point, StudySpec
from tests.support.quick import quick_config
from tests.support.small_study import finish, small_study


def results(**values: float) -> list[Result]:
    """Candidates by method with their values, all feasible."""
    named = enumerate(values.items())
    return ranking(Result(Candidate(number, method), value, -1.0) for number, (method, value) in named)


def test_methods_that_keep_all_data_or_grow_take_part_only_if_named() -> None:
    names = RaceSpec().entrants()
    assert names[:2] == ["er", "cl2r"]
    assert not {"bct", "upper_bound", "cores", "der_trunc"} & set(names)
    assert {"lucir", "fan", "hoc", "lifelong_bct"} <= set(names)
    assert RaceSpec(methods=("der_trunc",)).entrants() == ["er", "cl2r", "der_trunc"]
    relative = Constraint.parse("AC", ">= lucir + 0.1")
    assert RaceSpec(methods=("wa",)).entrants([relative]) == ["er", "cl2r", "lucir", "wa"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"hours": 0}, "race.hours"),
        ({"methods": ["ers"]}, "no method 'ers'"),
        ({"methods": ["er+procrustes"]}, "give the method here and procrustes in race.adapters"),
        ({"adapters": ["rotate"]}, "no adapter 'rotate'"),
        ({"minutes": 3}, "unknown key 'race.minutes'"),
    ],
)
def test_a_bad_race_is_refused(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("+", r"\+")):
        StudySpec.load({"race": entry})


@pytest.mark.parametrize(
    ("study", "words"),
    [
        ({"grid": {"memory.per_class": [1, 2]}}, "leave out grid"),
        ({"set": {"method.name": "er"}}, "use race.methods"),
        ({"search": {"objectives": ["BC", "AC"]}}, "one objective"),
        ({"search": {"objectives": ["stored_bytes"]}}, "computed from the matrix"),
    ],
)
def test_a_race_leaves_nothing_else_to_vary(study: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        StudySpec.load({"race": {}, **study})


@pytest.mark.parametrize("method", [info.name for info in METHODS.values() if info.memory == "quota"])
def test_a_space_has_only_fields_of_its_method_and_includes_the_default(method: str, tiny: Path) -> None:
    config = quick_config(tiny, {"method": {"name": method}})
    space = space_of(config)
    assert set(space) <= set(knobs_of(method)) <= set(field_keys())
    others = set(sections()) - {method_info(method).section}
    assert not [name for name in space if name.partition(".")[0] in others]
    spec = small_study(tiny, race={})
    for name, entry in space.items():
        for value in corner_values(entry):
            spec.config(Point(None, {"method.name": method, name: value}), 0)  # raises if it is not allowed
        default = json.loads(config.model_dump_json())
        section, _, key = name.partition(".")
        value = default[section][key]
        assert entry.low <= value <= entry.high if isinstance(entry, Range) else value in entry


def test_every_section_with_knobs_exists() -> None:
    assert set(OWN_KNOBS) <= set(sections())


def test_memory_grows_beyond_the_preset_only_under_a_constraint(tiny: Path) -> None:
    config = quick_config(tiny, {"method": {"name": "er"}, "memory": {"per_class": 8}})
    assert space_of(config)["memory.per_class"] == Range(low=2, high=8, log=True)
    assert space_of(config, more_memory=True)["memory.per_class"] == Range(low=2, high=32, log=True)
    assert "memory.per_class" not in space_of(config, fixed={"memory.per_class"})
    assert "memory.per_class" not in space_of(quick_config(tiny, {"method": {"name": "lwf"}}))


@pytest.mark.parametrize(
    ("epochs", "milestones", "screening", "tuning"),
    [
        (20, [14, 18], (7, [5, 6]), (10, [7, 9])),
        (70, [50, 64], (23, [16, 21]), (35, [25, 32])),
        (4, [3], (2, []), (3, [2])),
        (5, [1, 4], (2, []), (3, [1, 2])),
    ],
)
def test_epochs_and_milestones_are_scaled(
    tiny: Path, epochs: int, milestones: list[int], screening: Any, tuning: Any
) -> None:
    config = quick_config(tiny, {"optim": {"epochs": epochs, "milestones": milestones}})
    first = round_settings(config, "screening", tasks=5)
    assert (first["optim.epochs"], first["optim.milestones"]) == screening
    assert first["scenario.stop_after"] == 3
    second = round_settings(config, "tuning", tasks=5)
    assert (second["optim.epochs"], second["optim.milestones"]) == tuning
    assert "scenario.stop_after" not in second
    assert "scenario.stop_after" not in round_settings(config, "screening", tasks=3)
    assert round_settings(config, "final", tasks=5) == {}


def test_too_few_epochs_for_three_rounds_are_refused(tiny: Path) -> None:
    with pytest.raises(InputError, match=r"optim\.epochs=3: a race needs at least 4"):
        round_settings(quick_config(tiny), "screening", tasks=3)


def test_feasible_candidates_come_first_and_are_judged_by_er_of_their_round() -> None:
    candidates = {0: Candidate(0, "er"), 1: Candidate(1, "cl2r"), 2: Candidate(2, "er", {"head.centre": True})}
    candidates |= {3: Candidate(3, "lwf"), 4: Candidate(4, "wa")}
    rows = {number: {"service": value, "tuning_reindexed_accuracy": learned} for number, value, learned in (
        (0, 0.70, 0.80), (1, 0.75, 0.795), (2, 0.74, 0.90), (3, 0.99, 0.60), (4, math.nan, 0.9),
    )}  # fmt: skip
    found = ranking(judged(rows, candidates, "service", [Constraint.parse("reindexed_accuracy", ">= er - 0.01")]))
    assert [result.candidate.number for result in found] == [1, 2, 0, 3], "the frozen one is last, the failed one out"
    assert [result.feasible for result in found] == [True, True, True, False]
    alone = judged({1: rows[1]}, candidates, "service", [Constraint.parse("reindexed_accuracy", ">= er - 0.01")])
    assert not alone[0].feasible, "without ER in its round nothing can be judged"
    lowest = ranking(judged(rows, candidates, "service", []), maximise=False)
    assert lowest[0].candidate.number == 0


def test_the_best_third_is_tuned_at_least_three() -> None:
    ranked = results(a=0.9, b=0.8, c=0.7, d=0.6, e=0.5)
    assert tuned_methods(ranked, 5) == ("a", "b", "c")
    assert tuned_methods(ranked, 12) == ("a", "b", "c", "d")
    assert tuned_methods(ranked[:2], 5) == ("a", "b")


def test_finalists_are_the_best_points_of_different_methods() -> None:
    ranked = ranking([
        Result(Candidate(7, "er", {"head.centre": True}), 0.9, -1.0), Result(Candidate(0, "er"), 0.8, -1.0),
        Result(Candidate(9, "er+procrustes"), 0.85, -1.0), Result(Candidate(1, "cl2r"), 0.7, -1.0),
    ])  # fmt: skip
    assert [one.number for one in finalists(ranked, 1)] == [7]
    assert [one.number for one in finalists(ranked, 9)] == [7, 1], "adapters do not take the places of other methods"


def test_adapters_are_tried_on_the_best_rehearsal_candidate_and_the_best_er() -> None:
    assert [one.method for one in adapter_bases(results(lucir=0.9, er_fdm=0.8, cl2r=0.7, er=0.6))] == ["er_fdm", "er"]
    assert [one.method for one in adapter_bases(results(er=0.9, er_fdm=0.8))] == ["er"]


def test_the_largest_size_that_fits() -> None:
    assert largest([1, 2, 3, 4], lambda size: 10.0 * size, 35) == 3
    assert largest([1, 2], lambda size: 10.0 * size, 5) is None


def race(data: Path, root: LocalPath, hours: float = 1.0, **entries: Any) -> Race:
    """A race of ER, CL²R and er_fdm with two seeds, of which nothing is trained; a run takes ten seconds."""
    entries = {"set": {"optim.epochs": 4}, "seeds": [0, 1], **entries}
    spec = small_study(data, race={"hours": hours, "methods": ["er_fdm"], "adapters": ["slerp"]}, **entries)
    made = Race(spec, StudyFolder(root, "race"), Resources(max_concurrent=1))
    made.seconds = lambda jobs: 10.0 * len(jobs)  # type: ignore[method-assign]
    return made


def finish_round(one: Race, own: Round, **values: float) -> None:
    """Record the round and the outcome of its candidates, with values by method."""
    one.folder.ledger.write("round", own.name, dataclasses.asdict(own))
    for job in one.jobs(own.name, own.candidates, own.seeds):
        method = job.runs[0].config.method.name
        row = {"tuning_service_accuracy": values[method], "tuning_reindexed_accuracy": 0.5, "wall_seconds": 1.0}
        finish(one.folder, job, row)


def prepared(one: Race) -> Race:
    """Nothing is measured: the frames of made-up outcomes have no links."""
    one.measure = lambda jobs: None  # type: ignore[method-assign]
    return one


def test_rounds_fit_into_the_time_and_are_read_back_from_the_ledger(tiny: Path, tmp_path: LocalPath) -> None:
    one = prepared(race(tiny, tmp_path, hours=400 / 3600))
    one.check()
    first = one.next_round()
    assert first is not None
    assert [candidate.method for candidate in first.candidates] == ["er", "cl2r", "er_fdm"]
    assert (first.seeds, first.seconds) == ((0,), 30.0)
    finish_round(one, first, er=0.5, cl2r=0.4, er_fdm=0.6)
    second = one.next_round()
    assert second is not None
    assert second.tuned == ("er_fdm", "er", "cl2r")
    # 3 methods at p points and 1 adapter on 2 bases, then 5 finalists and references with 2 seeds, of 400 s.
    assert second.points > 2
    assert second.seconds + second.reserve <= 400
    assert 10 * 3 * (second.points + 1) + second.reserve > 400 - 100, "the time is used"
    finish_round(one, second, er=0.5, cl2r=0.4, er_fdm=0.6)
    third = one.next_round()
    assert third is not None
    assert {candidate.method for candidate in third.candidates} == {"er", "cl2r", "er_fdm"}
    assert third.seeds == (0, 1)
    finish_round(one, third, er=0.5, cl2r=0.4, er_fdm=0.6)
    again = prepared(race(tiny, tmp_path, hours=400 / 3600))
    assert again.rounds() == [first, second, third], "a resumed command follows what was decided"
    further = again.next_round()
    assert further is not None
    assert (further.name, further.seeds) == ("final", (2,))
    assert again.expected_runs() == 3 + 3 + 6


def test_no_time_is_left_for_a_further_seed(tiny: Path, tmp_path: LocalPath) -> None:
    one = prepared(race(tiny, tmp_path, hours=1))
    final = Round("final", tuple(Candidate(place, name) for place, name in enumerate(("er", "cl2r"))), (0, 1))
    finish_round(one, final, er=0.5, cl2r=0.4)
    assert one.next_round() is not None
    one.left = lambda: 19.0  # type: ignore[method-assign]
    assert one.next_round() is None


def test_a_race_that_does_not_fit_is_refused_with_the_time_it_needs(tiny: Path, tmp_path: LocalPath) -> None:
    # 3 methods, then (3 × 2 points + 2 references), then (2 finalists + 2 references) × 2 seeds: 19 runs of 10 s.
    with pytest.raises(InputError, match=r"smallest race of 3 methods takes about 3 min 10 s; give --hours 0\.055"):
        race(tiny, tmp_path, hours=189 / 3600).check()
    race(tiny, tmp_path, hours=191 / 3600).check()


def test_a_method_that_cannot_run_is_left_out_unless_it_was_named(tiny: Path, tmp_path: LocalPath) -> None:
    entries: dict[str, Any] = {"set": {"optim.epochs": 4, "head.preallocate": True}}
    spec = small_study(tiny, race={}, **entries)
    made = Race(spec, StudyFolder(tmp_path, "race"), Resources(max_concurrent=1))
    assert set(made.defaults) == {"er", "er_fd", "er_fdm", "fixed", "fixed_fd", "cl2r"}
    assert any("lucir is left out" in note for note in made.notes)
    with pytest.raises(InputError, match="lucir: "):
        Race(small_study(tiny, race={"methods": ["lucir"]}, **entries), StudyFolder(tmp_path, "race"), Resources())


def test_one_task_or_no_tuning_pairs_are_refused(tiny: Path, tmp_path: LocalPath) -> None:
    with pytest.raises(InputError, match="two tasks"):
        race(tiny, tmp_path, set={"optim.epochs": 4, "scenario.n_tasks": 1})
    with pytest.raises(InputError, match=r"set eval\.tuning_share"):
        race(tiny, tmp_path, set={"optim.epochs": 4, "eval.tuning_share": 0})


def test_open_images_are_split_by_classes_if_there_are_enough(tiny: Path) -> None:
    few = small_study(tiny, race={})
    assert with_split(few) is few, "6 open classes"
    many = with_split(StudySpec.load({"preset": "icons", "race": {}}))
    assert many.config(Point(None, {}), 0).eval.split == "classes"
    own = StudySpec.load({"preset": "icons", "race": {}, "set": {"eval.split": "images"}})
    assert with_split(own) is own


def test_rounds_of_a_race_never_share_a_run(tiny: Path, tmp_path: LocalPath) -> None:
    one = race(tiny, tmp_path)
    candidate = Candidate(0, "er")
    names = [one.job(name, candidate, 0).runs[0].name for name in ("screening", "tuning", "final")]
    assert len(set(names)) == 3
