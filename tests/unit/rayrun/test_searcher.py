"""Which job Ray Tune gets next. The test plays Tune; Optuna and its journal are real, and no Ray is started."""

import pickle
import random
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from cl2r.engine.links import Link, LinkStore, Partial
from cl2r.rayrun.optuna_source import OptunaSource
from cl2r.rayrun.searcher import EarlyStopping, JobSearcher, RetryPolicy
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, prefix_jobs, representative_jobs
from cl2r.study.spec import StudySpec
from tests.support.small_study import bare_run, chains, finish, small_session, small_sweep

PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=7)
JOB = Job(0, None, (bare_run("run", ["one", "two", "three"]),))
OTHER = Job(1, None, (bare_run("other", ["four"]),))
TENSORS = {"a": torch.ones(2)}


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path, "study")


def job_of(answer: Any) -> Job:
    return Job.from_json(answer["job"])


class Tune:
    """Asks for jobs and ends them in a random order, as Ray Tune would; checks every answer."""

    def __init__(self, searcher: JobSearcher, jobs: list[Job], rng: random.Random) -> None:
        self.searcher, self.rng = searcher, rng
        self.open_prefixes = {job.label: set(job.provides) for job in jobs if job.stop_after}
        self.running: dict[str, Job] = {}
        self.handed_out: list[Job] = []

    def blocked(self, job: Job) -> bool:
        """Whether another job that has not ended provides one of its links."""
        keys = {key for run in job.runs for key in run.keys[: job.stop_after]}
        return any(keys & links for label, links in self.open_prefixes.items() if label != job.label)

    def run(self) -> None:
        while (answer := self.searcher.suggest(f"trial{len(self.handed_out)}")) != Searcher.FINISHED:
            if answer is None:
                assert self.running, "a deadlock"
                if len(self.running) < self.searcher.concurrent:
                    assert all(self.blocked(job) for job in self.searcher.waiting), "a slot was left free"
                self.end_one()
                continue
            job = job_of(answer)
            assert answer["study"] == str(self.searcher.folder.path)
            assert not self.blocked(job)
            self.running[f"trial{len(self.handed_out)}"] = job
            self.handed_out.append(job)
            assert len(self.running) <= self.searcher.concurrent
            if self.rng.random() < 0.3:
                self.end_one()
        while self.running:
            self.end_one()

    def end_one(self) -> None:
        trial = self.rng.choice(sorted(self.running))
        job = self.running.pop(trial)
        self.open_prefixes.pop(job.label, None)
        crashed = self.rng.random() < 0.2
        self.searcher.on_trial_complete(trial, None if crashed else {"ended": True}, error=crashed)


@given(paths=PATHS, concurrent=st.integers(1, 4), rng=st.randoms(use_true_random=False), pairs=st.booleans())
@settings(deadline=None, max_examples=60)
def test_every_job_is_handed_out_once_and_after_the_prefixes_that_it_needs(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[int]], concurrent: int, rng: random.Random, pairs: bool
) -> None:
    runs = [bare_run(name, keys) for name, keys in chains(paths).items()]
    groups = [runs[n : n + 2] for n in range(0, len(runs), 2)] if pairs else [[run] for run in runs]
    jobs = [Job(number, None, tuple(group)) for number, group in enumerate(groups)]
    queue = [*prefix_jobs(jobs, []), *jobs]
    session = small_session(StudyFolder(tmp_path_factory.mktemp("storage"), "x"))
    tune = Tune(JobSearcher(session, queue, None, concurrent), queue, rng)
    tune.run()
    assert len(tune.handed_out) == len(queue)
    assert {job.label: job for job in tune.handed_out} == {job.label: job for job in queue}


def test_nothing_is_pickled(tiny: Path, folder: StudyFolder) -> None:
    """Optuna's storage cannot be pickled, and nothing is ever restored from it."""
    source = OptunaSource(small_sweep(tiny), folder)
    searcher = JobSearcher(small_session(folder), [], source, 2)
    for part in (searcher, EarlyStopping(searcher, source)):
        assert vars(pickle.loads(pickle.dumps(part))) == {}


def test_points_are_asked_for_one_at_a_time_and_wait_for_their_prefix(tiny: Path, folder: StudyFolder) -> None:
    """Optuna learns from trials that ended, so it is asked only when a slot is free."""
    spec = small_sweep(tiny, trials=4)
    source = OptunaSource(spec, folder)

    def states() -> list[TrialState]:
        return [trial.state for trial in source.searches[0].optuna.get_trials()]

    (prefix,) = prefix_jobs(representative_jobs(spec), [])
    searcher = JobSearcher(small_session(folder), [prefix], source, 2)
    assert job_of(searcher.suggest("a")).label == prefix.label
    assert searcher.suggest("b") is None
    assert searcher.suggest("b") is None
    assert len(states()) == 1, "one point ahead, not more"
    searcher.on_trial_complete("a", {"ended": True})
    assert states() == [TrialState.RUNNING], "a prefix is not a trial"
    first, second = job_of(searcher.suggest("b")), job_of(searcher.suggest("c"))
    assert (first.trial, second.trial) == (0, 1)
    assert searcher.suggest("d") is None
    assert len(states()) == 2, "not asked without a free slot"
    finish(folder, first, {"tuning_BC": 0.5})
    searcher.on_trial_complete("b", {"ended": True})
    assert states()[0] == TrialState.COMPLETE
    assert job_of(searcher.suggest("d")).trial == 2
    searcher.on_trial_complete("c", error=True)
    assert states()[1] == TrialState.RUNNING, "the ledger does not have the outcome yet"
    searcher.record_crash("c", "why")
    assert states()[1] == TrialState.FAIL
    assert [event.read()["reason"] for event in folder.ledger.events("failed")] == ["why"]
    assert job_of(searcher.suggest("e")).trial == 3
    for trial in "de":
        searcher.on_trial_complete(trial, error=True)
        searcher.record_crash(trial, "why")
    assert searcher.suggest("f") == Searcher.FINISHED


def test_a_crashed_or_stopped_job_is_handed_out_again(folder: StudyFolder) -> None:
    searcher = JobSearcher(small_session(folder, retries=1), [JOB], None, 2)
    assert job_of(searcher.suggest("a")) == JOB
    assert searcher.suggest("b") is None, "the first may still crash"
    searcher.on_trial_complete("a", error=True)
    assert job_of(searcher.suggest("b")) == JOB
    searcher.on_trial_complete("b", {"stopped": True})  # it saw the marker of an earlier driver
    assert job_of(searcher.suggest("c")) == JOB
    searcher.on_trial_complete("c", error=True)
    assert searcher.retried == {"a"}
    assert searcher.suggest("d") == Searcher.FINISHED


def test_after_sigterm_nothing_starts_and_trials_have_no_outcome(folder: StudyFolder) -> None:
    class Source:
        def __getattr__(self, name: str) -> Any:
            pytest.fail(f"Optuna was told: {name}")

    source: Any = Source()
    session = small_session(folder)
    searcher = JobSearcher(session, [JOB, OTHER], source, 3)
    for trial in "ab":
        searcher.suggest(trial)
    session.stop.requested = True
    assert searcher.suggest("c") == Searcher.FINISHED
    searcher.on_trial_complete("a", {"stopped": True})
    searcher.on_trial_complete("b", error=True)
    assert searcher.retried == {"a", "b"}
    assert folder.ledger.events() == []


@pytest.fixture
def store(tmp_path: Path) -> LinkStore:
    return small_session(StudyFolder(tmp_path, "study")).store


def save_epoch(store: LinkStore, key: str, epoch: int, stage: int = 0) -> None:
    store.save_partial(key, Partial(stage, epoch, TENSORS, {}))


def test_a_later_epoch_a_later_stage_and_a_link_are_progress(store: LinkStore) -> None:
    """Each of them, and none twice."""
    policy = RetryPolicy(store, 0)
    assert not policy.should_retry(JOB), "the first crash"
    for step in (
        lambda: save_epoch(store, "one", 1),
        lambda: save_epoch(store, "one", 7),
        lambda: save_epoch(store, "one", 2, stage=1),
        lambda: store.save("one", Link(TENSORS, TENSORS, {})),
        lambda: save_epoch(store, "two", 1),
    ):
        step()
        assert [policy.should_retry(JOB) for _ in range(2)] == [True, False]


def test_only_whole_epochs_and_a_jobs_own_links_are_progress(store: LinkStore) -> None:
    prefix, policy = Job(-1, None, JOB.runs, 0, 1), RetryPolicy(store, 0)
    assert [policy.should_retry(job) for job in (prefix, JOB)] == [False, False]
    store.save("two", Link(TENSORS, TENSORS, {}))
    assert [policy.should_retry(job) for job in (prefix, JOB)] == [False, True]
    save_epoch(store, "one", 3)
    (store.partials / "one" / "partial.json").write_bytes(b"torn")
    assert not policy.should_retry(prefix)


def test_links_that_were_made_otherwise_are_progress_each_for_itself(store: LinkStore) -> None:
    """A link of one process is there already; two workers train the same link as they would make it."""
    store.save("one", Link(TENSORS, TENSORS, {}))
    policy = RetryPolicy(store, 0)
    assert not policy.should_retry(JOB)
    for step in (
        lambda: save_epoch(store, "one-cpu2", 1),
        lambda: save_epoch(store, "one-cpu2", 2),
        lambda: store.save("one-cpu2", Link(TENSORS, TENSORS, {})),
        lambda: save_epoch(store, "two-mixed0123456789ab", 1),
    ):
        step()
        assert [policy.should_retry(JOB) for _ in range(2)] == [True, False]
    save_epoch(store, "other-cpu2", 1)
    assert not policy.should_retry(JOB)


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_without_progress_there_are_as_many_retries_as_asked_for(store: LinkStore, retries: int) -> None:
    policy = RetryPolicy(store, retries)
    assert [policy.should_retry(JOB) for _ in range(retries + 1)] == [True] * retries + [False]


def test_progress_resets_the_count_of_a_job(store: LinkStore) -> None:
    policy = RetryPolicy(store, 2)
    for epoch in range(1, 6):
        save_epoch(store, "one", epoch)
        assert policy.should_retry(JOB)
        assert policy.should_retry(JOB), "one crash without progress"
    assert policy.should_retry(OTHER), "jobs are counted separately"
    assert policy.should_retry(JOB), "two crashes without progress"
    assert not policy.should_retry(JOB)
    assert policy.should_retry(OTHER)


class Stopper:
    """One command of a sweep with early stopping; the test plays Tune."""

    def __init__(self, spec: StudySpec, folder: StudyFolder, jobs: tuple[Job, ...] = ()) -> None:
        self.source = OptunaSource(spec, folder)
        self.searcher = JobSearcher(small_session(folder), jobs, self.source, 9)
        self.scheduler = EarlyStopping(self.searcher, self.source)

    def begin(self, trial: str) -> Job:
        return job_of(self.searcher.suggest(trial))

    def report(self, trial: str, **result: Any) -> bool:
        """Report a result and return whether the trial is stopped; then it is ended as Tune does."""
        answer = self.scheduler.on_trial_result(None, SimpleNamespace(trial_id=trial), result)
        assert answer in (TrialScheduler.STOP, TrialScheduler.CONTINUE)
        if answer == TrialScheduler.STOP:
            self.searcher.on_trial_complete(trial, result)
        return bool(answer == TrialScheduler.STOP)

    def states(self) -> list[TrialState]:
        return [trial.state for trial in self.source.searches[0].optuna.get_trials()]


def early(data: Path, tasks: int = 5) -> StudySpec:
    return small_sweep(data, trials=9, tasks=tasks, pruner="halving")


def test_the_worse_of_several_trials_is_stopped(tiny: Path, folder: StudyFolder) -> None:
    command = Stopper(early(tiny), folder)
    best, worst = command.begin("best"), command.begin("worst")
    assert not any(command.report(trial, task=1, value=value) for trial, value in (("best", 0.9), ("worst", -0.9)))
    assert not command.report("best", task=2, value=0.5)
    folder.live.mkdir(parents=True)
    live = folder.live / f"{worst.runs[0].name}.json"
    live.write_text("{}")
    assert command.report("worst", task=2, value=0.1)
    assert command.states() == [TrialState.RUNNING, TrialState.PRUNED]
    outcomes = folder.ledger.outcomes()
    assert list(outcomes) == [worst.runs[0].name]
    entry = outcomes[worst.runs[0].name].read()
    assert "BC over 2 tasks" in entry["reason"]
    assert (entry["trial"], entry["metrics"]) == (1, {"tasks": 2})
    assert entry["config"]["method.lambda_base"] == worst.runs[0].config.method.lambda_base
    assert not live.exists()

    assert not command.report("best", task=3, value=-9.0), "the pruner looks after tasks 2, 4, 8"
    finish(folder, best, {"tuning_BC": 0.4})
    assert not command.report("best", ended=True)
    command.searcher.on_trial_complete("best", {"ended": True})
    assert command.states() == [TrialState.COMPLETE, TrialState.PRUNED]


@pytest.mark.parametrize(
    ("tasks", "result"),
    [(5, {"task": 2, "value": float("nan")}), (5, {"task": 2}), (5, {"ended": True}), (2, {"task": 2, "value": 0.1})],
    ids=["not a number", "no value", "end", "last task"],
)
def test_a_report_that_cannot_be_compared_stops_nothing(
    tiny: Path, folder: StudyFolder, tasks: int, result: dict[str, Any]
) -> None:
    command = Stopper(early(tiny, tasks), folder)
    for trial in "ab":
        command.begin(trial)
    assert not command.report("a", task=2, value=0.5)
    assert not command.report("b", **result)


def test_a_prefix_is_never_stopped(tiny: Path, folder: StudyFolder) -> None:
    prefix = Job(-1, None, (bare_run("run", "abc"),), 0, 3)
    command = Stopper(early(tiny), folder, (prefix,))
    assert command.begin("t").stop_after == 3
    assert not command.report("t", task=2, value=-9.0)
    command.searcher.on_trial_complete("t", {})
    assert folder.ledger.outcomes() == {}


def test_the_pruner_survives_a_restart(tiny: Path, folder: StudyFolder) -> None:
    """Alone, a poor trial would be the best so far and continue."""
    first = Stopper(early(tiny), folder)
    first.begin("a")
    assert not first.report("a", task=2, value=0.5)

    second = Stopper(early(tiny), folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna: this step has been reported
        assert second.begin("a").trial == 0, "handed out again"
        assert not second.report("a", task=2, value=0.5)
    assert second.begin("b").trial == 1
    assert second.report("b", task=2, value=0.1)

    third = Stopper(early(tiny), folder)
    assert third.states() == [TrialState.RUNNING, TrialState.PRUNED]
    assert third.source.searches[0].optuna.get_trials()[1].intermediate_values == {2: 0.1}
    assert third.begin("a").trial == 0
    assert third.begin("c").trial == 2
    assert third.report("c", task=2, value=0.2), "worse than a trial of the first command"
