"""Points of a sweep from Optuna: what is handed out, what is told, and what a restart finds."""

import itertools
import math
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from cl2r.rayrun.optuna_source import OptunaSource, job_rows
from cl2r.study.constraints import seed_mean
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import study_frames
from cl2r.study.jobs import Job
from cl2r.study.ledger import DIED
from cl2r.study.spec import StudySpec
from cl2r.study.train_job import record_failed
from tests.support.small_study import finish, point_of, small_study, small_sweep, states


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path, "sweep")


def test_as_many_trials_as_asked_for(tiny: Path, folder: StudyFolder) -> None:
    source = OptunaSource(small_sweep(tiny, trials=3, seeds=(0, 1)), folder)
    jobs = []
    while job := source.next():
        jobs.append(job)
    assert [job.trial for job in jobs] == [0, 1, 2]
    assert [[run.config.seed for run in job.runs] for job in jobs] == [[0, 1]] * 3
    assert source.waiting == 0
    entries = {event.subject: event.read() for event in folder.ledger.events("trial")}
    params = [entries[str(job.trial)]["params"] for job in jobs]
    assert [(p["method.lambda_base"], p["memory.per_class"]) for p in params] == [point_of(job) for job in jobs]
    for (value, size), trial in zip(map(point_of, jobs), source.searches[0].optuna.get_trials(), strict=True):
        assert trial.params == {"method.lambda_base": value, "memory.per_class": size}


def test_the_same_search_seed_asks_for_the_same_points(tiny: Path, tmp_path: Path) -> None:
    def points(name: str, seed: int) -> list[tuple[float, int]]:
        source = OptunaSource(small_sweep(tiny, seed=seed), StudyFolder(tmp_path, name))
        return [point_of(job) for job in iter(source.next, None)]

    assert points("a", 0) == points("b", 0)
    assert points("a2", 0) != points("c", 1)


def test_what_optuna_is_told(tiny: Path, folder: StudyFolder) -> None:
    """Finished, failed, stopped early, finished without a value, half finished."""
    source = OptunaSource(small_sweep(tiny, seeds=(0, 1), objectives=["AC"]), folder)
    good, failed, pruned, empty, half = iter(source.next, None)
    for run, value in zip(good.runs, (0.25, 0.75), strict=True):
        finish(folder, Job(good.trial, None, (run,)), {"tuning_AC": value, "AC": 9.0})
    source.ended(good, pruned=False)
    record_failed(failed, folder, "loss")
    source.ended(failed, pruned=False)
    source.ended(pruned, pruned=True)
    finish(folder, empty, {"tuning_AC": None})
    source.ended(empty, pruned=False)
    finish(folder, Job(half.trial, None, half.runs[:1]), {"tuning_AC": 0.5})
    record_failed(half, folder, "loss")
    source.ended(half, pruned=False)
    expected = [TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED, TrialState.FAIL, TrialState.FAIL]
    assert states(source) == expected
    assert source.searches[0].optuna.best_trial.value == 0.5, "the mean over seeds, on the tuning pairs"
    assert source.searches[0].optuna.metric_names == ["AC"]


def test_several_objectives(tiny: Path, folder: StudyFolder) -> None:
    source = OptunaSource(small_sweep(tiny, trials=3, sampler="nsga2", objectives=["BC", "stored_bytes"]), folder)
    values = [(0.5, 100), (0.4, 50), (0.3, 60)]
    for job, (value, size) in zip(iter(source.next, None), values, strict=True):
        finish(folder, job, {"tuning_BC": value, "stored_bytes": size})
        source.ended(job, pruned=False)
    assert [trial.values for trial in source.searches[0].optuna.get_trials()] == [
        list(map(float, row)) for row in values
    ]
    assert sorted(trial.number for trial in source.searches[0].optuna.best_trials) == [0, 1], (
        "the third is beaten in both"
    )


def test_a_value_that_one_run_lacks_does_not_exist(tiny: Path, folder: StudyFolder) -> None:
    (job,) = iter(OptunaSource(small_sweep(tiny, trials=1, seeds=(0, 1)), folder).next, None)
    assert job_rows([job], folder.ledger.outcomes()) == []
    finish(folder, Job(job.trial, None, job.runs[:1]), {"tuning_BC": None, "train_seconds": 3.0})
    finish(folder, Job(job.trial, None, job.runs[1:]), {"tuning_BC": 0.5, "train_seconds": 5.0})
    rows = job_rows([job], folder.ledger.outcomes())
    assert seed_mean(rows, "train_seconds") == 4.0
    assert math.isnan(seed_mean(rows, "tuning_BC"))
    assert math.isnan(seed_mean([], "tuning_BC"))


def test_a_restart_resumes_open_trials(tiny: Path, folder: StudyFolder) -> None:
    study = small_sweep(tiny, trials=6, seeds=(0, 1))
    first = OptunaSource(study, folder)
    told, untold, failed, open_one, open_two = itertools.islice(iter(first.next, None), 5)
    finish(folder, told, {"tuning_BC": 0.1})
    first.ended(told, pruned=False)
    finish(folder, untold, {"tuning_BC": 0.2})
    record_failed(failed, folder, "loss")
    first.ended(failed, pruned=False)
    finish(folder, Job(open_one.trial, None, open_one.runs[:1]), {"tuning_BC": 0.1})  # one seed of two

    second = OptunaSource(study, folder)
    running = [TrialState.RUNNING] * 2
    assert states(second) == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL, *running]
    assert [trial.value for trial in second.searches[0].optuna.get_trials()][:2] == [0.1, 0.2]
    assert second.waiting == 3
    assert second.next() == open_one, "the same number, point, names and links"
    assert second.next() == open_two
    new = second.next()
    assert new is not None
    assert new.trial == 5
    assert second.next() is None
    for number, job in enumerate((open_one, open_two, new)):
        finish(folder, job, {"tuning_BC": 0.3 + number / 10})
        second.ended(job, pruned=False)
    assert [trial.value for trial in second.searches[0].optuna.get_trials()] == [0.1, 0.2, None, 0.3, 0.4, 0.5]
    third = OptunaSource(study, folder)
    assert third.waiting == 0
    assert third.next() is None
    assert len(folder.ledger.events("trial")) == 6


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_more_trials_later_are_new_points(tiny: Path, folder: StudyFolder, sampler: str) -> None:
    """All of them are start-up points, which a sampler with the seed of the first command would draw again."""

    def command(trials: int) -> list[Job]:
        source = OptunaSource(small_sweep(tiny, trials=trials, sampler=sampler), folder)
        jobs = []
        while job := source.next():
            finish(folder, job, {"tuning_BC": job.trial / 10})
            source.ended(job, pruned=False)
            jobs.append(job)
        return jobs

    first, second = command(5), command(8)
    assert [job.trial for job in first + second] == list(range(8))
    values = [job.runs[0].config.method.lambda_base for job in first + second]
    assert len(set(values)) == 8
    assert command(8) == []
    assert command(3) == []


def choices(data: Path, trials: int, **space: list[Any]) -> StudySpec:
    search = {"trials": trials, "objectives": ["BC"], "constraints": {}}
    return small_study(data, space={"memory.per_class": [2, 3], **space}, search=search)


def test_a_repeated_point_is_trained_once(tiny: Path, folder: StudyFolder) -> None:
    """Two choices, six trials: two jobs; the others get their values, also those asked while the first ones ran."""
    source = OptunaSource(choices(tiny, 6), folder)
    jobs = list(iter(source.next, None))
    assert len(jobs) == 2
    assert len(folder.ledger.events("trial")) == 2
    assert len(folder.ledger.events("repeated")) == 4
    assert states(source) == [TrialState.RUNNING] * 6
    for value, job in enumerate(jobs):
        finish(folder, job, {"tuning_BC": float(value)})
        source.ended(job, pruned=False)
    size = {job.runs[0].config.memory.per_class: float(value) for value, job in enumerate(jobs)}
    trials = source.searches[0].optuna.get_trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 6
    assert [trial.value for trial in trials] == [size[trial.params["memory.per_class"]] for trial in trials]
    later = OptunaSource(choices(tiny, 8), folder)
    assert later.next() is None, "both points have a value"
    assert len(later.searches[0].optuna.get_trials(states=(TrialState.COMPLETE,))) == 8


def test_repeated_points_of_a_killed_command_are_told_with_the_first(tiny: Path, folder: StudyFolder) -> None:
    before = list(iter(OptunaSource(choices(tiny, 6), folder).next, None))
    source = OptunaSource(choices(tiny, 6), folder)
    jobs = list(iter(source.next, None))
    assert [job.trial for job in jobs] == [job.trial for job in before]
    for job in jobs:
        finish(folder, job, {"tuning_BC": 1.0})
        source.ended(job, pruned=False)
    assert states(source) == [TrialState.COMPLETE] * 6


def test_a_combination_that_cannot_be_run_is_a_failed_row(tiny: Path, folder: StudyFolder) -> None:
    """Each value is fine by itself: the fixed classifier needs a projection, ER does not."""
    space = {"method.name": ["er", "fixed"], "head.projection": ["linear", "none"]}
    search = {"trials": 12, "objectives": ["BC"], "constraints": {}}
    for _ in range(2):  # the next command works as well
        source = OptunaSource(small_study(tiny, set={"method.name": "er"}, space=space, search=search), folder)
        for job in iter(source.next, None):
            finish(folder, job, {"tuning_BC": 0.0})
            source.ended(job, pruned=False)
    failed = folder.ledger.events("failed")
    assert failed
    assert all("head.projection=none needs" in event.read()["reason"] for event in failed)
    assert set(states(source)) == {TrialState.COMPLETE, TrialState.FAIL}
    row = study_frames(folder)["runs"].query("status == 'failed'").iloc[0]
    assert (row["method.name"], row["head.projection"]) == ("fixed", "none")


def test_a_trial_killed_while_its_point_was_chosen_does_not_count(tiny: Path, folder: StudyFolder) -> None:
    OptunaSource(small_sweep(tiny, trials=3), folder).searches[
        0
    ].optuna.ask()  # killed here: a trial without parameters
    source = OptunaSource(small_sweep(tiny, trials=3), folder)
    jobs = list(iter(source.next, None))
    assert [job.trial for job in jobs] == [1, 2, 3]
    assert states(source)[0] == TrialState.FAIL


def test_a_trial_whose_process_crashed_is_enqueued_once_more(tiny: Path, folder: StudyFolder) -> None:
    source = OptunaSource(small_sweep(tiny, trials=2), folder)
    died, sick = iter(source.next, None)
    for job, reason in ((died, DIED), (sick, "the loss is not a number")):
        record_failed(job, folder, reason)
        source.ended(job, pruned=False)
    assert states(source) == [TrialState.FAIL] * 2
    later = OptunaSource(small_sweep(tiny, trials=2), folder)
    assert later.waiting == 1
    (again,) = iter(later.next, None)
    assert (again.trial, point_of(again)) == (2, point_of(died))
    finish(folder, again, {"tuning_BC": 0.5})
    later.ended(again, pruned=False)
    assert OptunaSource(small_sweep(tiny, trials=2), folder).waiting == 0


def test_a_trial_that_died_is_tried_again_once_and_counts_once(tiny: Path, folder: StudyFolder) -> None:
    spec = small_sweep(tiny, trials=3)
    source = OptunaSource(spec, folder)
    died = source.next()
    assert died is not None
    record_failed(died, folder, DIED)
    source.ended(died, pruned=False)
    for _ in range(3):  # commands that are killed before they ask for a trial
        OptunaSource(spec, folder)
    later = OptunaSource(spec, folder)
    jobs = list(iter(later.next, None))
    assert [point_of(job) == point_of(died) for job in jobs] == [True, False, False]
    for job in jobs:
        finish(folder, job, {"tuning_BC": 0.5})
        later.ended(job, pruned=False)
    assert OptunaSource(spec, folder).next() is None


def half_a_sweep(study: StudySpec, folder: StudyFolder) -> tuple[list[Any], Job]:
    """Run three trials of six, leave a fourth one open; return what Optuna knows of the three, and the open job."""
    source = OptunaSource(study, folder)
    jobs = list(itertools.islice(iter(source.next, None), 4))
    for job, value in zip(jobs, (0.1, 0.3, 0.2), strict=False):
        finish(folder, job, {"tuning_BC": value})
        source.ended(job, pruned=False)
    return known(source)[:3], jobs[3]


def known(source: OptunaSource) -> list[Any]:
    return [(trial.number, trial.params, trial.values) for trial in source.searches[0].optuna.get_trials()]


JOURNAL_DAMAGES: dict[str, Any] = {
    "an entry cut off": lambda content: content[:-9],
    "half of it": lambda content: content[: len(content) // 2],
    "nothing left": lambda content: b"",
    "zeros": lambda content: content[:40] + bytes(99) + content[139:],
    "a flipped bit": lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
    "a line of another program": lambda content: content + b'{"op_code": 4}\n',
}


@pytest.mark.parametrize("damage", JOURNAL_DAMAGES)
def test_a_damaged_journal_is_made_again_from_the_ledger(
    tiny: Path, folder: StudyFolder, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    study = small_sweep(tiny, trials=6)
    before, left_open = half_a_sweep(study, folder)
    journal = Path(str(folder.journal))
    journal.write_bytes(JOURNAL_DAMAGES[damage](journal.read_bytes()))
    again = OptunaSource(study, folder)
    assert str(folder.journal) in caplog.text
    assert known(again)[:3] == before
    assert [job.trial for job in iter(again.next, None)] == [3, 4, 5]
    assert known(again)[3][1] == dict(zip(("method.lambda_base", "memory.per_class"), point_of(left_open), strict=True))


def test_a_lock_of_optuna_that_a_killed_driver_left_is_not_waited_for(tiny: Path, folder: StudyFolder) -> None:
    study = small_sweep(tiny, trials=6)
    half_a_sweep(study, folder)
    Path(f"{folder.journal}.lock").symlink_to(folder.journal.name)
    began = time.monotonic()
    assert OptunaSource(study, folder).next() is not None
    assert time.monotonic() - began < 20, "Optuna itself waits for 30 s"


@pytest.mark.parametrize("with_seal", [True, False])
def test_a_journal_that_is_gone_is_made_again(tiny: Path, folder: StudyFolder, with_seal: bool) -> None:
    study = small_sweep(tiny, trials=6)
    before, _ = half_a_sweep(study, folder)
    Path(str(folder.journal)).unlink()
    if with_seal:
        Path(f"{folder.journal}.seal").unlink()
    assert known(OptunaSource(study, folder))[:3] == before


def test_the_journal_of_another_sweep_is_not_used(tiny: Path, folder: StudyFolder, tmp_path: Path) -> None:
    study = small_sweep(tiny, trials=6)
    other = StudyFolder(tmp_path / "other", "sweep")
    for one, identity in ((folder, {"seeds": [0]}), (other, {"seeds": [1]})):
        one.claim_name(identity)
    before, _ = half_a_sweep(study, folder)
    half_a_sweep(small_sweep(tiny, trials=6, seed=5), other)
    for ending in ("", ".seal"):
        Path(f"{folder.journal}{ending}").write_bytes(Path(f"{other.journal}{ending}").read_bytes())
    assert known(OptunaSource(study, folder))[:3] == before


@pytest.mark.parametrize("kind", ["finished", "trial"])
def test_a_trial_whose_event_is_lost_is_run_again_or_known_from_its_outcome(
    tiny: Path, folder: StudyFolder, kind: Any
) -> None:
    study = small_sweep(tiny, trials=6)
    before, _ = half_a_sweep(study, folder)
    folder.ledger.events(kind)[1].path.unlink()
    again = OptunaSource(study, folder)
    assert [entry[:2] for entry in known(again)[:3]] == [entry[:2] for entry in before]
    handed = [job.trial for job in iter(again.next, None)]
    assert handed == ([1, 3, 4, 5] if kind == "finished" else [3, 4, 5])
