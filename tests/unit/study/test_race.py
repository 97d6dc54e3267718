"""The rounds of a race: who takes part, what may be chosen, who is promoted, and what fits into the time."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from cl2r.config.methods import METHODS, method_info, sections
from cl2r.config.schema import field_keys
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.storage.path import LocalPath
from cl2r.study.constraints import Constraint
from cl2r.study.cost import GpuAssumption, link_costs
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
from cl2r.study.race_plan import Race, entrants, plan_lines, with_split
from cl2r.study.race_time import STARTING_SECONDS
from cl2r.study.resources import Resources
from cl2r.study.space import Range, corner_values
from cl2r.study.spec import Point, StudySpec
from tests.support.quick import quick_config
from tests.support.small_study import finish, small_study, write_preset


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
        ({"search": {"constraints": {"AC": ">= er+procrustes"}}}, "give a method without an adapter"),
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
    made = timed_race(data, root, hours, **entries)
    made.seconds = lambda jobs: 10.0 * len(jobs)  # type: ignore[method-assign]
    return made


def timed_race(data: Path, root: LocalPath, hours: float = 1.0, most: int = 1, **entries: Any) -> Race:
    """The same race with times from FLOPs; at most so many runs at a time."""
    entries = {"set": {"optim.epochs": 4}, "seeds": [0, 1], **entries}
    spec = small_study(data, race={"hours": hours, "methods": ["er_fdm"], "adapters": ["slerp"]}, **entries)
    return Race(spec, StudyFolder(root, "race"), Resources(max_concurrent=most))


def finish_round(one: Race, own: Round, **values: float) -> None:
    """Record the round and the outcome of its candidates, with values by method; methods without one have failed."""
    one.folder.ledger.write("round", own.name, dataclasses.asdict(own))
    for job in one.jobs(own.name, own.candidates, own.seeds):
        method, run = job.runs[0].config.method.name, job.runs[0]
        if method not in values:
            one.folder.ledger.write("failed", run.name, job.heading(run) | {"reason": "no"})
            continue
        row = {"tuning_service_accuracy": values[method], "tuning_reindexed_accuracy": 0.5, "wall_seconds": 1.0}
        finish(one.folder, job, row | {"tuning_AC": 0.5, "stored_bytes": 1000})


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


def next_round(one: Race) -> Round:
    """The next round, which there must be."""
    found = one.next_round()
    assert found is not None
    return found


BOUND = {"constraints": {"AC": ">= upper_bound - 0.1"}}
VALUES = {"er": 0.5, "cl2r": 0.4, "er_fdm": 0.6, "upper_bound": 0.9}


def test_a_method_that_only_bounds_a_constraint_runs_in_every_round_but_is_never_promoted(
    tiny: Path, tmp_path: LocalPath
) -> None:
    one = prepared(race(tiny, tmp_path, search=BOUND))
    first = next_round(one)
    assert "upper_bound" in {candidate.method for candidate in first.candidates}
    finish_round(one, first, **VALUES)
    second = next_round(one)
    assert second.tuned == ("er_fdm", "er", "cl2r")
    assert "upper_bound" in {candidate.method for candidate in second.candidates}
    assert second.why.startswith("the best 3 of 3 methods")
    finish_round(one, second, **VALUES)
    assert {result.candidate.method for result in one.results("tuning", one.candidates(), (0,))} == {*second.tuned}
    third = next_round(one)
    assert "upper_bound" in {candidate.method for candidate in third.candidates}
    assert third.why.startswith("the best 3 of 3 candidates"), "it is no finalist"
    assert third.seconds == 10.0 * 4 * 2
    # 4 methods, then (3 × 2 points + 3 references), then (2 finalists + 3 references) × 2 seeds: 23 runs.
    assert sum(own.seconds for own in one.forecast(smallest=True)) == pytest.approx(230.0)


def test_the_time_of_the_final_includes_the_methods_of_constraints(tiny: Path, tmp_path: LocalPath) -> None:
    reserves = []
    for place, search in enumerate(({"constraints": {"AC": ">= er - 0.1"}}, BOUND)):
        one = prepared(race(tiny, tmp_path / str(place), search=search))
        one.adapters = ()
        finish_round(one, next_round(one), **VALUES)
        reserves.append(next_round(one).reserve)
    assert reserves[1] == reserves[0] + 10.0 * 2


def test_a_method_of_a_constraint_that_cannot_run_is_refused(tiny: Path, tmp_path: LocalPath) -> None:
    entries: dict[str, Any] = {"set": {"optim.epochs": 4, "head.preallocate": True}}
    entries |= {"search": {"constraints": {"AC": ">= lucir"}}}
    with pytest.raises(InputError, match="lucir: "):
        Race(small_study(tiny, race={}, **entries), StudyFolder(tmp_path, "race"), Resources())


def test_a_preset_with_an_adapter_is_refused(tiny: Path, tmp_path: Path) -> None:
    preset = write_preset(tmp_path, tiny, method={"name": "er"}, adapter={"name": "slerp"})
    spec = StudySpec.load({"preset": str(preset), "set": {"optim.epochs": 4}, "race": {}})
    with pytest.raises(InputError, match="the preset gives er the adapter slerp"):
        entrants(spec)


def test_screening_ignores_constraints_on_costs(tiny: Path, tmp_path: LocalPath) -> None:
    one = prepared(race(tiny, tmp_path, search={"constraints": {"stored_bytes": "<= 10"}}))
    first = next_round(one)
    finish_round(one, first, **VALUES)
    candidates = {candidate.number: candidate for candidate in first.candidates}
    assert all(result.feasible for result in one.results("screening", candidates, (0,)))
    finish_round(one, next_round(one), **VALUES)
    assert not any(result.feasible for result in one.results("tuning", candidates, (0,)))
    assert next_round(one).why.endswith("none meets the constraints")


def test_the_next_round_says_which_constraint_could_not_be_judged(tiny: Path, tmp_path: LocalPath) -> None:
    one = prepared(race(tiny, tmp_path))
    finish_round(one, next_round(one), cl2r=0.4, er_fdm=0.6)
    words = "er failed in the round before, so reindexed_accuracy >= er - 0.01 could not be judged"
    second = next_round(one)
    assert second.why.endswith(words)
    finish_round(one, second, cl2r=0.4, er_fdm=0.6)
    assert next_round(one).why.endswith(words)


def test_no_further_seed_is_begun_while_a_reference_lacks_a_run(tiny: Path, tmp_path: LocalPath) -> None:
    one = prepared(race(tiny, tmp_path))
    names = ("er", "cl2r", "er_fdm")
    final = Round("final", tuple(Candidate(place, name) for place, name in enumerate(names)), (0, 1))
    finish_round(one, final, er=0.5, er_fdm=0.4)
    assert one.next_round() is None, "CL²R has failed"
    for job in one.jobs("final", final.candidates[1:2], final.seeds):
        finish(one.folder, job, {"tuning_service_accuracy": 0.5})
    assert next_round(one).seeds == (2,)


def test_a_round_takes_at_least_as_long_as_its_longest_job(
    tiny: Path, tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    one = timed_race(tiny, tmp_path, most=100)
    jobs = one.jobs("final", [Candidate(0, "er"), Candidate(1, "er_fdm")], (0,))
    assert one.concurrent == 100
    alone = [one.seconds([job]) for job in jobs]
    assert one.seconds(jobs) == max(alone) > one.overhead * one.run_seconds


def test_no_more_runs_at_a_time_than_fit_into_this_machine(
    tiny: Path, tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert timed_race(tiny, tmp_path, most=100).concurrent == 4
    assert timed_race(tiny, tmp_path, most=3).concurrent == 3


def test_times_on_gpus_that_are_elsewhere_are_an_assumption(
    tiny: Path, tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small steps take as long as launching their kernels, whatever their FLOPs."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    spec = timed_race(tiny, tmp_path).spec
    one = Race(spec, StudyFolder(tmp_path, "race"), Resources(gpus_per_worker=1, max_concurrent=8))
    assert one.concurrent == 8
    (job,) = one.jobs("final", [Candidate(0, "er")], (0,))
    steps = sum(cost.steps for cost in link_costs(plan_run(job.runs[0].config)))
    assert one.seconds([job]) == pytest.approx(one.overhead * (steps * GpuAssumption().step_seconds + one.run_seconds))
    (note,) = (line for line in plan_lines(one) if "assumption" in line)
    assert "10 TFLOP/s, at least 8 ms per step" in note
    assert not any("assumption" in line for line in plan_lines(timed_race(tiny, tmp_path)))


def test_shared_links_count_once_and_runs_that_waited_for_no_link_tell_the_rest(
    tiny: Path, tmp_path: LocalPath
) -> None:
    one = timed_race(tiny, tmp_path)
    one.used = lambda: 64.0  # type: ignore[method-assign]
    jobs = one.jobs("screening", [Candidate(0, "er"), Candidate(1, "er_fdm")], (0,))
    for job, wall, last in zip(jobs, (14.0, 4.0), ("a", "b"), strict=True):
        tasks = [{"key": key, "seconds": 5.0, "reused": False} for key in ("first", last)]
        frames = {"runs": [{"run": job.runs[0].name, "wall_seconds": wall}], "tasks": tasks}
        one.folder.ledger.write("finished", job.runs[0].name, job.heading(job.runs[0]) | {"frames": frames})
    one.measure(jobs)
    assert one.run_seconds == STARTING_SECONDS + 4.0, "the second run found the first link: 4 s < 10 s of training"
    assert one.overhead == pytest.approx(64.0 / (15.0 + 2 * one.run_seconds))
