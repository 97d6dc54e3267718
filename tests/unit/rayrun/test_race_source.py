"""The jobs of a race, with made-up outcomes instead of training: order, Optuna, and commands that are killed."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from cl2r.rayrun.optuna_journal import FileJournal, open_journal
from cl2r.rayrun.race_source import NUMBER, RaceSource
from cl2r.storage.path import LocalPath
from cl2r.storage.seal import seal_path
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job
from cl2r.study.ledger import read_events
from cl2r.study.race_plan import Race
from cl2r.study.session import StudySession
from cl2r.study.space import distributions
from tests.support.small_study import finish, small_session, small_study

RUN_SECONDS = 10.0


@pytest.fixture
def session(tiny: Path, tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch) -> StudySession:
    """A race of ER, CL²R, er_fdm and lwf in which every run takes ten seconds."""
    race = {"hours": 500 / 3600, "methods": ["er_fdm", "lwf"], "adapters": ["procrustes", "slerp"]}
    spec = small_study(tiny, race=race, seeds=[0, 1], set={"optim.epochs": 4}, search={"startup": 3})
    monkeypatch.setattr(Race, "seconds", lambda self, jobs: RUN_SECONDS * len(jobs))
    monkeypatch.setattr(Race, "measure", lambda self, jobs: None)
    monkeypatch.setattr(Race, "used", lambda self: 0.0)
    return small_session(StudyFolder(tmp_path, "race"), spec)


def outcome(job: Job) -> dict[str, Any]:
    """Larger λ is better; LwF has not learned."""
    config = job.runs[0].config
    value = 0.5 + config.method.lambda_base / 1000 + (0.3 if config.method.name == "lwf" else 0.0)
    learned = 0.1 if config.method.name == "lwf" else 0.8
    return {"tuning_service_accuracy": value, "tuning_reindexed_accuracy": learned}


def run(session: StudySession, most: int = 10**6) -> list[Job]:
    """Run two jobs at a time, at most so many; what runs at the end is lost, as if the command had been killed."""
    source, running, handed = RaceSource(session, say=lambda line: None), list[Job](), list[Job]()
    while len(handed) < most:
        job = source.next() if len(running) < 2 else None
        if job is not None and job.stop_after is None:
            running.append(job)
            handed.append(job)
        elif job is None:
            if not running:
                return handed
            ended = running.pop(0)
            finish(session.folder, ended, outcome(ended))
            source.ended(ended, pruned=False)
    return handed


def test_a_race_runs_its_rounds_in_order_and_tells_optuna(session: StudySession) -> None:
    jobs = run(session)
    assert list(dict.fromkeys(job.variant for job in jobs)) == ["screening", "tuning", "final"]
    assert {job.runs[0].config.method.name for job in jobs[:4]} == {"er", "cl2r", "er_fdm", "lwf"}
    names = [run.name for job in jobs for run in job.runs]
    assert len(names) == len(set(names)) == session.expected_runs()
    tuning = read_events(session.ledger.events("round"))[1]
    assert set(tuning["tuned"]) == {"er", "cl2r", "er_fdm"}, "LwF violates the constraint"
    added = session.race.added()
    counts = Counter(one.method for one in added.values())
    assert counts["er_fdm"] == counts["cl2r"] == tuning["points"] - 1 > 0
    assert {name for name in counts if "+" in name} >= {"er+procrustes", "er+slerp"}
    final = {job.trial for job in jobs if job.variant == "final"}
    assert {0, 1} < final, "ER and CL²R at their defaults"
    assert [job.runs[0].config.seed for job in jobs if job.trial == 0] == [0, 0, 0, 1, 2, 3], "two more seeds"

    study = optuna.load_study(study_name="race er_fdm", storage=open_journal(session.folder))
    assert study.trials[0].params["method.lambda_base"] == 5.0, "the default comes first"
    values = session.race.candidates()
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        weight = trial.params["method.lambda_base"]
        assert values[trial.user_attrs[NUMBER]].values.get("method.lambda_base", 5.0) == weight
        assert trial.value == pytest.approx(0.5 + weight / 1000)
        assert trial.constraints["constraints"] <= 0
    assert len(study.get_trials(states=(TrialState.COMPLETE,))) == tuning["points"]


@pytest.mark.parametrize("most", [1, 5, 16, 25])
def test_a_race_that_was_killed_continues_with_what_was_decided(session: StudySession, most: int) -> None:
    run(session, most)
    rounds, added = session.ledger.events("round"), session.race.added()
    run(session)
    assert session.ledger.events("round")[: len(rounds)] == rounds
    assert session.race.added().items() >= added.items(), "candidates keep their numbers"
    done = [event.subject for event in session.ledger.events("finished")]
    assert len(done) == len(set(done)) == session.expected_runs(), "each run finishes once, and none is missing"
    assert run(session) == [], "nothing is left to do"


class KilledError(Exception):
    """Stands for the end of the process."""


def assert_points_fit(session: StudySession) -> None:
    """Check that Optuna knows every candidate of the tuning round once, with the candidate's own point."""
    known, storage = session.race.candidates(), open_journal(session.folder)
    for method in read_events(session.ledger.events("round"))[1]["tuned"]:
        trials = optuna.load_study(study_name=f"race {method}", storage=storage).trials
        trials = [trial for trial in trials if trial.state != TrialState.FAIL]
        numbers = [number for number, one in known.items() if one.method == method]
        assert sorted(trial.user_attrs[NUMBER] for trial in trials) == sorted(numbers)
        defaults = session.race.default_values(method)
        for trial in trials:
            assert trial.params == defaults | known[trial.user_attrs[NUMBER]].values


def test_a_candidate_keeps_its_point_wherever_a_journal_that_is_made_again_ends(
    session: StudySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(session, most=16)
    known, journal, append = session.race.candidates(), session.folder.journal, FileJournal.append_logs

    def make() -> None:
        source = RaceSource(session, say=lambda line: None)
        for method in source.rounds[-1].tuned:
            source._study(method, known)

    left = 0

    def cut(journal: FileJournal, logs: list[dict[str, Any]]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError
        append(journal, logs)

    for entries in range(0, 40, 3):
        journal.set_aside()
        seal_path(journal).set_aside()
        left = entries
        with monkeypatch.context() as patch, contextlib.suppress(KilledError):
            patch.setattr(FileJournal, "append_logs", cut)
            make()
        make()
        assert_points_fit(session)
    assert left > 0, "it was cut off everywhere"


def test_points_that_an_earlier_version_left_waiting_are_not_taken_for_others(session: StudySession) -> None:
    run(session, most=5)
    source = RaceSource(session, say=lambda line: None)
    study = source._study("er_fdm", session.race.candidates())
    study.enqueue_trial({"method.lambda_base": 7.0})
    study.enqueue_trial({"method.lambda_base": 8.0})
    wrong = study.ask(distributions(session.race.space("er_fdm")))
    (number,) = (one.number for one in session.race.candidates().values() if one.method == "er_fdm")
    wrong.set_user_attr(NUMBER, number)
    run(session, most=16)
    assert_points_fit(session)


def test_no_further_points_are_chosen_when_time_runs_out(
    session: StudySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(session, most=4)
    monkeypatch.setattr(Race, "left", lambda self: 1.0)
    jobs = run(session)
    assert not [one for one in session.race.added().values() if "+" not in one.method]
    assert {"tuning", "final"} <= {job.variant for job in jobs}, "the race still comes to an end"


def test_a_point_is_chosen_only_if_it_and_the_rest_of_the_race_fit(
    session: StudySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(session, most=5)
    tuning = session.race.rounds()[-1]
    adapting = 2 * 2 * session.race.overhead * session.race.run_seconds / session.race.concurrent
    assert tuning.reserve >= adapting + RUN_SECONDS * 2 * 2, "adapters, then the references with two seeds"
    monkeypatch.setattr(Race, "left", lambda self: tuning.reserve + RUN_SECONDS - 1)
    run(session)
    assert not [one for one in session.race.added().values() if "+" not in one.method]


def test_a_failed_run_of_the_first_final_is_tried_again_by_the_next_command(session: StudySession) -> None:
    jobs = run(session)
    finals = [job for job in jobs if job.variant == "final"]
    lost = next(job for job in finals if job.runs[0].config.seed == 1 and job.trial not in (0, 1))
    (event,) = (event for event in session.ledger.events("finished") if event.subject == lost.runs[0].name)
    Path(str(event.path)).unlink()
    session.ledger.write("failed", lost.runs[0].name, lost.heading(lost.runs[0]) | {"reason": "no"})
    assert [job.label for job in run(session)] == [lost.label], "the last round is one of a further seed"
