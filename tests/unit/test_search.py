"""Which job comes next: Ray Tune is played by the test, Optuna and its journal are real. No Ray is started."""

import itertools
import json
import pickle
import random
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher
from small_study import bare_run, chains, finish, small_study

from cl2r.rayrun.search import EarlyStopping, JobSearcher, OptunaSource, objective_values
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import study_frames
from cl2r.study.jobs import Job, trunk_jobs
from cl2r.study.ledger import DIED
from cl2r.study.spec import Study
from cl2r.study.walk import enter_failures

SPACE = {"method.lambda_base": {"low": 0.1, "high": 100.0, "log": True}, "memory.per_class": {"low": 1, "high": 9}}
PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=7)


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path, "sweep")


def sweep(data: Path, trials: int = 5, tasks: int = 3, seeds: tuple[int, ...] = (0,), **search: Any) -> Study:
    return small_study(
        data, space=SPACE, seeds=list(seeds), search={"trials": trials, **search}, set={"scenario.n_tasks": tasks}
    )


def job_of(answer: Any) -> Job:
    return Job.from_plain(json.loads(answer["job"]))


def point_of(job: Job) -> tuple[float, int]:
    config = job.runs[0].config
    return config.method.lambda_base, config.memory.per_class


def states(source: OptunaSource) -> list[TrialState]:
    return [trial.state for trial in source.optuna.get_trials()]


# ---------------------------------------------------------------- a stream of jobs


class Tune:
    """Asks for jobs and ends them in a random order, as Ray Tune would; checks every answer."""

    def __init__(self, searcher: JobSearcher, jobs: list[Job], rng: random.Random) -> None:
        self.searcher, self.rng = searcher, rng
        self.open_trunks = {job.label: set(job.runs[0].keys[job.start : job.depth]) for job in jobs if job.depth}
        self.running: dict[str, Job] = {}
        self.handed_out: list[Job] = []

    def blocked(self, job: Job) -> bool:
        """Whether a trunk that is not done, other than the job itself, trains one of its links."""
        keys = {key for run in job.runs for key in run.keys[: job.depth]}
        return any(keys & links for label, links in self.open_trunks.items() if label != job.label)

    def run(self) -> None:
        while (answer := self.searcher.suggest(f"trial{len(self.handed_out)}")) != Searcher.FINISHED:
            if answer is None:
                self.check_there_was_nothing_to_hand_out()
                self.end_one()
                continue
            job = job_of(answer)
            assert answer["study"] == "folder"
            assert not self.blocked(job)
            self.running[f"trial{len(self.handed_out)}"] = job
            self.handed_out.append(job)
            assert len(self.running) <= self.searcher.concurrent
            if self.rng.random() < 0.3:
                self.end_one()
        while self.running:
            self.end_one()

    def check_there_was_nothing_to_hand_out(self) -> None:
        assert self.running, "a deadlock"
        if len(self.running) < self.searcher.concurrent:
            assert all(self.blocked(job) for job in self.searcher.waiting), "a place was left free"

    def end_one(self) -> None:
        trial = self.rng.choice(sorted(self.running))
        job = self.running.pop(trial)
        self.open_trunks.pop(job.label, None)
        died = self.rng.random() < 0.2
        self.searcher.on_trial_complete(trial, None if died else {"ended": True}, error=died)


@given(paths=PATHS, concurrent=st.integers(1, 4), rng=st.randoms(use_true_random=False), pairs=st.booleans())
@settings(deadline=None, max_examples=60)
def test_all_jobs_are_handed_out_once_and_never_before_their_trunks(
    tmp_path_factory: pytest.TempPathFactory,
    paths: list[list[int]],
    concurrent: int,
    rng: random.Random,
    pairs: bool,
) -> None:
    runs = [bare_run(name, keys) for name, keys in chains(paths).items()]
    groups = [runs[n : n + 2] for n in range(0, len(runs), 2)] if pairs else [[run] for run in runs]
    jobs = [Job(number, None, tuple(group)) for number, group in enumerate(groups)]
    queue = [*trunk_jobs(jobs, []), *jobs]
    folder = StudyFolder(tmp_path_factory.mktemp("storage"), "x")
    tune = Tune(JobSearcher(queue, None, folder, concurrent, {"study": "folder"}), queue, rng)
    tune.run()
    assert sorted(job.label for job in tune.handed_out) == sorted(job.label for job in queue)
    assert {job.label: job for job in tune.handed_out} == {job.label: job for job in queue}


def test_no_jobs_are_finished_at_once(folder: StudyFolder) -> None:
    assert JobSearcher([], None, folder, 2, {}).suggest("a") == Searcher.FINISHED


def test_what_tune_pickles_is_nothing(tiny: Path, folder: StudyFolder) -> None:
    """Optuna's storage cannot be pickled, and nothing is ever restored from it."""
    source = OptunaSource(sweep(tiny), folder)
    searcher = JobSearcher([], source, folder, 2, {})
    for part in (searcher, EarlyStopping(searcher, source)):
        assert vars(pickle.loads(pickle.dumps(part))) == {}


def test_points_are_asked_for_one_at_a_time_and_wait_for_their_trunk(tiny: Path, folder: StudyFolder) -> None:
    """Optuna learns from what has ended, so nothing is asked of it before there is a place."""
    from cl2r.study.sweep import representative_jobs

    study = sweep(tiny, trials=4)
    source = OptunaSource(study, folder)
    (trunk,) = trunk_jobs(representative_jobs(study), [])
    searcher = JobSearcher([trunk], source, folder, 2, {})
    assert job_of(searcher.suggest("a")).label == trunk.label
    assert searcher.suggest("b") is None
    assert searcher.suggest("b") is None
    assert len(states(source)) == 1, "one point ahead, not more"
    searcher.on_trial_complete("a", {"ended": True})
    assert states(source) == [TrialState.RUNNING], "a trunk is no trial"
    first, second = job_of(searcher.suggest("b")), job_of(searcher.suggest("c"))
    assert (first.trial, second.trial) == (0, 1)
    assert searcher.suggest("d") is None
    assert len(states(source)) == 2, "no place, no question"
    finish(folder, first, {"tuning_BC": 0.5})
    searcher.on_trial_complete("b", {"ended": True})
    assert states(source)[0] == TrialState.COMPLETE
    assert job_of(searcher.suggest("d")).trial == 2
    searcher.on_trial_complete("c", error=True)
    assert states(source)[1] == TrialState.FAIL
    assert job_of(searcher.suggest("e")).trial == 3
    for trial in "de":
        searcher.on_trial_complete(trial, error=True)
    assert searcher.suggest("f") == Searcher.FINISHED


# ---------------------------------------------------------------- Optuna


def test_as_many_trials_as_asked_for(tiny: Path, folder: StudyFolder) -> None:
    source = OptunaSource(sweep(tiny, trials=3, seeds=(0, 1)), folder)
    jobs = []
    while job := source.next():
        jobs.append(job)
    assert [job.trial for job in jobs] == [0, 1, 2]
    assert [[run.config.seed for run in job.runs] for job in jobs] == [[0, 1]] * 3
    assert source.waiting == 0
    entries = {event.subject: event.read() for event in folder.ledger.events("trial")}
    params = [entries[str(job.trial)]["params"] for job in jobs]
    assert [(p["method.lambda_base"], p["memory.per_class"]) for p in params] == [point_of(job) for job in jobs]
    for (value, size), trial in zip(map(point_of, jobs), source.optuna.get_trials(), strict=True):
        assert trial.params == {"method.lambda_base": value, "memory.per_class": size}


def test_the_same_search_seed_asks_for_the_same_points(tiny: Path, tmp_path: Path) -> None:
    def points(name: str, seed: int) -> list[tuple[float, int]]:
        source = OptunaSource(sweep(tiny, seed=seed), StudyFolder(tmp_path, name))
        return [point_of(job) for job in iter(source.next, None)]

    assert points("a", 0) == points("b", 0)
    assert points("a2", 0) != points("c", 1)


def test_what_is_told(tiny: Path, folder: StudyFolder) -> None:
    """Finished, failed, stopped early, finished without a value, half finished."""
    source = OptunaSource(sweep(tiny, seeds=(0, 1), objectives=["AC"]), folder)
    good, failed, pruned, empty, half = iter(source.next, None)
    for run, value in zip(good.runs, (0.25, 0.75), strict=True):
        finish(folder, Job(good.trial, None, (run,)), {"tuning_AC": value, "AC": 9.0})
    source.ended(good, pruned=False)
    enter_failures(failed, folder, "loss")
    source.ended(failed, pruned=False)
    source.ended(pruned, pruned=True)
    finish(folder, empty, {"tuning_AC": None})
    source.ended(empty, pruned=False)
    finish(folder, Job(half.trial, None, half.runs[:1]), {"tuning_AC": 0.5})
    enter_failures(half, folder, "loss")
    source.ended(half, pruned=False)
    expected = [TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED, TrialState.FAIL, TrialState.FAIL]
    assert states(source) == expected
    assert source.optuna.best_trial.value == 0.5, "the mean over seeds, on the tuning pairs"
    assert source.optuna.metric_names == ["AC"]


def test_several_objectives(tiny: Path, folder: StudyFolder) -> None:
    source = OptunaSource(sweep(tiny, trials=3, sampler="nsga2", objectives=["BC", "stored_bytes"]), folder)
    figures = [(0.5, 100), (0.4, 50), (0.3, 60)]
    for job, (value, size) in zip(iter(source.next, None), figures, strict=True):
        finish(folder, job, {"tuning_BC": value, "stored_bytes": size})
        source.ended(job, pruned=False)
    assert [trial.values for trial in source.optuna.get_trials()] == [list(map(float, row)) for row in figures]
    assert sorted(trial.number for trial in source.optuna.best_trials) == [0, 1], "the third is beaten in both"


def test_a_value_that_does_not_exist_makes_all_of_them_useless(tiny: Path, folder: StudyFolder) -> None:
    job = OptunaSource(sweep(tiny), folder).next()
    assert job is not None
    assert objective_values(["BC"], job, folder.ledger.outcomes()) is None, "not finished"
    finish(folder, job, {"tuning_BC": None, "train_seconds": 3.0})
    outcomes = folder.ledger.outcomes()
    assert objective_values(["seconds"], job, outcomes) == [3.0]
    assert objective_values(["seconds", "BC"], job, outcomes) is None


# ---------------------------------------------------------------- restarts


def test_a_restart_goes_on_where_it_was(tiny: Path, folder: StudyFolder) -> None:
    study = sweep(tiny, trials=6)
    first = OptunaSource(study, folder)
    told, untold, failed, open_one, open_two = itertools.islice(iter(first.next, None), 5)
    finish(folder, told, {"tuning_BC": 0.1})
    first.ended(told, pruned=False)
    finish(folder, untold, {"tuning_BC": 0.2})
    enter_failures(failed, folder, "loss")
    first.ended(failed, pruned=False)

    second = OptunaSource(study, folder)
    running = [TrialState.RUNNING] * 2
    assert states(second) == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL, *running]
    assert [trial.value for trial in second.optuna.get_trials()][:2] == [0.1, 0.2]
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
    assert [trial.value for trial in second.optuna.get_trials()] == [0.1, 0.2, None, 0.3, 0.4, 0.5]
    third = OptunaSource(study, folder)
    assert third.waiting == 0
    assert third.next() is None
    assert len(folder.ledger.events("trial")) == 6


def test_one_finished_seed_of_two_leaves_a_trial_open(tiny: Path, folder: StudyFolder) -> None:
    study = sweep(tiny, trials=1, seeds=(0, 1))
    job = OptunaSource(study, folder).next()
    assert job is not None
    finish(folder, Job(job.trial, None, job.runs[:1]), {"tuning_BC": 0.1})
    assert OptunaSource(study, folder).next() == job


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_more_trials_later_are_new_points(tiny: Path, folder: StudyFolder, sampler: str) -> None:
    """All of them are start-up points, which a sampler with the seed of the first command would draw again."""

    def command(trials: int) -> list[Job]:
        source = OptunaSource(sweep(tiny, trials=trials, sampler=sampler), folder)
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


# ---------------------------------------------------------------- early stopping


class Stopper:
    """One command of a sweep that stops early, with Tune played by hand."""

    def __init__(self, study: Study, folder: StudyFolder, jobs: tuple[Job, ...] = ()) -> None:
        self.source = OptunaSource(study, folder)
        self.searcher = JobSearcher(list(jobs), self.source, folder, 9, {})
        self.scheduler = EarlyStopping(self.searcher, self.source)

    def begin(self, trial: str) -> Job:
        return job_of(self.searcher.suggest(trial))

    def report(self, trial: str, **result: Any) -> bool:
        """Whether the trial is stopped; then it is ended as Tune does."""
        answer = self.scheduler.on_trial_result(None, SimpleNamespace(trial_id=trial), result)
        assert answer in (TrialScheduler.STOP, TrialScheduler.CONTINUE)
        if answer == TrialScheduler.STOP:
            self.searcher.on_trial_complete(trial, result)
        return bool(answer == TrialScheduler.STOP)


def early(data: Path, tasks: int = 5) -> Study:
    return sweep(data, trials=9, tasks=tasks, early_stopping=True)


def test_the_worse_of_several_trials_is_stopped(tiny: Path, folder: StudyFolder) -> None:
    command = Stopper(early(tiny), folder)
    best, worst = command.begin("best"), command.begin("worst")
    assert not any(command.report(trial, task=1, value=value) for trial, value in (("best", 0.9), ("worst", -0.9)))
    assert not command.report("best", task=2, value=0.5)
    (folder.live).mkdir(parents=True)
    live = folder.live / f"{worst.runs[0].name}.json"
    live.write_text("{}")
    assert command.report("worst", task=2, value=0.1)
    assert states(command.source) == [TrialState.RUNNING, TrialState.PRUNED]
    outcomes = folder.ledger.outcomes()
    assert list(outcomes) == [worst.runs[0].name]
    entry = outcomes[worst.runs[0].name].read()
    assert entry["reason"] == "stopped early after task 2: BC(2) is among the worse half"
    assert (entry["trial"], entry["metrics"]) == (1, {"tasks": 2})
    assert entry["config"]["method.lambda_base"] == worst.runs[0].config.method.lambda_base
    assert not live.exists()

    assert not command.report("best", task=3, value=-9.0), "between two looks"
    finish(folder, best, {"tuning_BC": 0.4})
    assert not command.report("best", ended=True)
    command.searcher.on_trial_complete("best", {"ended": True})
    assert states(command.source) == [TrialState.COMPLETE, TrialState.PRUNED]


@pytest.mark.parametrize("result", [{"task": 2, "value": float("nan")}, {"task": 2}, {"ended": True}])
def test_a_report_without_a_value_stops_nothing(tiny: Path, folder: StudyFolder, result: dict[str, Any]) -> None:
    command = Stopper(early(tiny), folder)
    for trial in "ab":
        command.begin(trial)
    assert not command.report("a", task=2, value=0.5)
    assert not command.report("b", **result)


def test_the_last_task_stops_nothing(tiny: Path, folder: StudyFolder) -> None:
    command = Stopper(early(tiny, tasks=2), folder)
    for trial in "ab":
        command.begin(trial)
    assert not any(command.report(trial, task=2, value=value) for trial, value in (("a", 0.9), ("b", 0.1)))


def test_a_trunk_is_never_stopped(tiny: Path, folder: StudyFolder) -> None:
    trunk = Job(-1, None, (bare_run("run", "abc"),), 0, 3)
    command = Stopper(early(tiny), folder, (trunk,))
    assert command.begin("t").depth == 3
    assert not command.report("t", task=2, value=-9.0)
    command.searcher.on_trial_complete("t", {})
    assert folder.ledger.outcomes() == {}


def test_what_the_pruner_knows_survives_a_restart(tiny: Path, folder: StudyFolder) -> None:
    """Alone, a poor trial would be the best so far and go on."""
    first = Stopper(early(tiny), folder)
    first.begin("a")
    assert not first.report("a", task=2, value=0.5)

    second = Stopper(early(tiny), folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna: this step has been reported
        assert second.begin("a").trial == 0, "it is handed out again"
        assert not second.report("a", task=2, value=0.5)
    assert second.begin("b").trial == 1
    assert second.report("b", task=2, value=0.1)

    third = Stopper(early(tiny), folder)
    trials = third.source.optuna.get_trials()
    assert [trial.state for trial in trials] == [TrialState.RUNNING, TrialState.PRUNED]
    assert trials[1].intermediate_values == {2: 0.1}
    assert third.begin("a").trial == 0
    assert third.begin("c").trial == 2
    assert third.report("c", task=2, value=0.2), "worse than a trial of the first command"


def test_the_journal_is_one_that_optuna_opens(tiny: Path, folder: StudyFolder) -> None:
    source = OptunaSource(sweep(tiny), folder)
    source.next()
    backend = optuna.storages.journal.JournalFileBackend(str(folder.journal))
    loaded = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))
    assert loaded.study_name == "sweep"
    assert len(loaded.trials) == 1


# ---------------------------------------------------------------- odd points


def choices(data: Path, trials: int, **space: list[Any]) -> Study:
    return small_study(data, space={"memory.per_class": [2, 3], **space}, search={"trials": trials})


def test_a_point_that_comes_twice_is_trained_once(tiny: Path, folder: StudyFolder) -> None:
    """Two choices, six trials: two jobs; the others have their values, also those asked while the first ones ran."""
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
    trials = source.optuna.get_trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 6
    assert [trial.value for trial in trials] == [size[trial.params["memory.per_class"]] for trial in trials]
    later = OptunaSource(choices(tiny, 8), folder)
    assert later.next() is None, "both points have a value"
    assert len(later.optuna.get_trials(states=(TrialState.COMPLETE,))) == 8


def test_twins_of_a_killed_command_are_told_with_their_first(tiny: Path, folder: StudyFolder) -> None:
    before = list(iter(OptunaSource(choices(tiny, 6), folder).next, None))
    source = OptunaSource(choices(tiny, 6), folder)
    jobs = list(iter(source.next, None))
    assert [job.trial for job in jobs] == [job.trial for job in before]
    for job in jobs:
        finish(folder, job, {"tuning_BC": 1.0})
        source.ended(job, pruned=False)
    assert states(source) == [TrialState.COMPLETE] * 6


def test_a_combination_that_cannot_be_run_is_a_failed_row(tiny: Path, folder: StudyFolder) -> None:
    """Four tasks stopped after four are fine, so are two after two, but not two after four."""
    space = {"scenario.n_tasks": [4, 2], "scenario.stop_after": [2, 4]}
    for _ in range(2):  # and the next command is not hurt by it
        source = OptunaSource(small_study(tiny, space=space, search={"trials": 12}), folder)
        for job in iter(source.next, None):
            finish(folder, job, {"tuning_BC": 0.0})
            source.ended(job, pruned=False)
    failed = folder.ledger.events("failed")
    assert failed
    assert all("stop_after=4 exceeds the 2 tasks" in event.read()["reason"] for event in failed)
    assert set(states(source)) == {TrialState.COMPLETE, TrialState.FAIL}
    row = study_frames(folder)["runs"].query("status == 'failed'").iloc[0]
    assert (row["scenario.n_tasks"], row["scenario.stop_after"]) == (2, 4)


def test_a_trial_killed_while_its_point_was_chosen_does_not_count(tiny: Path, folder: StudyFolder) -> None:
    OptunaSource(sweep(tiny, trials=3), folder).optuna.ask()  # as far as Optuna came: a trial without parameters
    source = OptunaSource(sweep(tiny, trials=3), folder)
    jobs = list(iter(source.next, None))
    assert [job.trial for job in jobs] == [1, 2, 3]
    assert states(source)[0] == TrialState.FAIL


def test_a_trial_whose_process_died_gets_a_second_chance(tiny: Path, folder: StudyFolder) -> None:
    source = OptunaSource(sweep(tiny, trials=2), folder)
    died, sick = iter(source.next, None)
    for job, reason in ((died, DIED), (sick, "the loss is not a number")):
        enter_failures(job, folder, reason)
        source.ended(job, pruned=False)
    assert states(source) == [TrialState.FAIL] * 2
    later = OptunaSource(sweep(tiny, trials=2), folder)
    assert later.waiting == 1
    (again,) = iter(later.next, None)
    assert (again.trial, point_of(again)) == (2, point_of(died))
    finish(folder, again, {"tuning_BC": 0.5})
    later.ended(again, pruned=False)
    assert OptunaSource(sweep(tiny, trials=2), folder).waiting == 0
