"""Trials judged by constraints, contexts that are searched by themselves, confirmations and warm starts."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
import pytest
from optuna.trial import TrialState

from analysis.sweeps import variant_rows
from cl2r.config.schema import EvalConfig
from cl2r.data.pairs import draw_pairs
from cl2r.engine.evaluation import ChainFeatures, Evaluator
from cl2r.errors import InputError
from cl2r.features import Features
from cl2r.rayrun.optuna_source import OptunaSource
from cl2r.storage.path import at
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import study_frames
from cl2r.study.jobs import fixed_jobs
from cl2r.study.ledger import DIED
from cl2r.study.spec import StudySpec
from cl2r.study.train_job import record_failed
from cl2r.study.warm_start import earlier_study
from tests.support.small_study import SPACE, finish, small_study, states


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path, "sweep")


def judged(data: Path, trials: int = 3, tasks: Sequence[int] = (3,), **search: Any) -> StudySpec:
    """The default objective and constraint, over λ and memory, for each number of tasks."""
    space = {**SPACE, "scenario.n_tasks": list(tasks)}
    return small_study(data, space=space, search={"trials": trials, **search})


def learned(service: float, reindexed: float) -> dict[str, float]:
    return {"tuning_service_accuracy": service, "tuning_reindexed_accuracy": reindexed, "stored_bytes": 7}


def finish_fixed(spec: StudySpec, folder: StudyFolder, source: OptunaSource, row: dict[str, Any]) -> None:
    for context in spec.contexts():
        for job in fixed_jobs(spec, context, spec.seeds):
            finish(folder, job, row)
            source.ended(job, pruned=False)


def test_trials_are_told_with_their_constraint_once_the_reference_run_has_ended(
    tiny: Path, folder: StudyFolder
) -> None:
    """The frozen model has the best service accuracy (and BC 0), but its last model has learned nothing."""
    spec = judged(tiny)
    source = OptunaSource(spec, folder)
    frozen, poor, good = iter(source.next, None)
    for job, row in ((frozen, learned(0.8, 0.8)), (poor, learned(0.7, 0.895)), (good, learned(0.75, 0.9))):
        finish(folder, job, row)
        source.ended(job, pruned=False)
    assert states(source) == [TrialState.RUNNING] * 3, "there is nothing yet to judge them by"
    finish_fixed(spec, folder, source, learned(0.72, 0.9))
    assert states(source) == [TrialState.COMPLETE] * 3
    trials = source.searches[0].optuna.get_trials()
    for trial, missed in zip(trials, (0.09, -0.005, -0.01), strict=True):
        assert trial.constraints == {"reindexed_accuracy >= er - 0.01": pytest.approx(missed / 0.89)}
    assert trials[0].user_attrs == learned(0.8, 0.8), "for the dashboard"
    assert source.searches[0].optuna.best_trial.number == good.trial
    assert list(source.searches[0].best(2)) == [good.trial, poor.trial]


def chain_metrics(*models: npt.NDArray[np.float32]) -> dict[str, float]:
    """The metrics of a chain, from the features of forty images of each of ten classes."""
    labels = np.repeat(np.arange(10), 40)
    pairs = draw_pairs(labels, np.arange(400), 1500, 1500, 10, np.random.default_rng(0))
    evaluate = Evaluator(pairs, EvalConfig(bootstrap=0))
    values = evaluate(ChainFeatures([Features(model) for model in models]), search=False).values
    return {f"tuning_{name}": value for name, value in values.items() if not math.isnan(value)}


@pytest.mark.parametrize(
    ("search", "chosen"),
    [
        ({"objectives": ["BC"], "constraints": {}}, "frozen"),
        ({"constraints": {}}, "frozen"),
        ({}, "trained"),
        ({"objectives": ["BC"]}, "trained"),
    ],
    ids=["BC alone", "service accuracy alone", "the default", "BC under the default constraint"],
)
def test_a_frozen_model_is_not_chosen(tiny: Path, folder: StudyFolder, search: dict[str, Any], chosen: str) -> None:
    """The frozen chain repeats the features of its first model; in the trained one they become better and turn."""
    rng = np.random.default_rng(1)
    centres, noise = np.eye(10, 32).repeat(40, axis=0), 0.35 * rng.standard_normal((400, 32))
    turned = np.linalg.qr(np.eye(32) + 0.25 * rng.standard_normal((32, 32)))[0]
    first = (centres + noise).astype(np.float32)
    better = ((centres + 0.6 * noise) @ turned).astype(np.float32)
    rows = {"frozen": chain_metrics(first, first, first), "trained": chain_metrics(first, first, better)}
    frozen, trained = rows["frozen"], rows["trained"]
    assert frozen["tuning_BC"] == 0 > trained["tuning_BC"]
    assert frozen["tuning_service_accuracy"] > trained["tuning_service_accuracy"]
    assert frozen["tuning_reindexed_accuracy"] < trained["tuning_reindexed_accuracy"] - 0.05
    spec = judged(tiny, trials=2, **search)
    source = OptunaSource(spec, folder)
    jobs = dict(zip(rows, iter(source.next, None), strict=True))
    for name, job in jobs.items():
        finish(folder, job, rows[name])
        source.ended(job, pruned=False)
    finish_fixed(spec, folder, source, trained)
    assert list(source.searches[0].best(1)) == [jobs[chosen].trial]
    assert source.searches[0].optuna.best_trial.number == jobs[chosen].trial


def test_a_restart_judges_trials_that_ended_before_the_reference_run(tiny: Path, folder: StudyFolder) -> None:
    spec = judged(tiny, trials=1)
    (job,) = iter(OptunaSource(spec, folder).next, None)
    finish(folder, job, learned(0.7, 0.7))
    source = OptunaSource(spec, folder)
    assert source.next() is None
    assert states(source) == [TrialState.RUNNING]
    finish_fixed(spec, folder, source, learned(0.7, 0.8))
    assert states(source) == [TrialState.COMPLETE]
    assert not source.searches[0].best(1)


def test_a_reference_run_that_failed_leaves_no_trial_feasible(tiny: Path, folder: StudyFolder) -> None:
    spec = judged(tiny, trials=1)
    source = OptunaSource(spec, folder)
    (job,) = iter(source.next, None)
    finish(folder, job, learned(0.7, 0.7))
    source.ended(job, pruned=False)
    (reference,) = fixed_jobs(spec, spec.contexts()[0], spec.seeds)
    record_failed(reference, folder, "loss")
    source.ended(reference, pruned=False)
    assert states(source) == [TrialState.COMPLETE]
    assert not source.searches[0].best(1)


def test_every_number_of_tasks_is_searched_by_itself_in_turn(tiny: Path, folder: StudyFolder) -> None:
    spec = judged(tiny, trials=3, tasks=(2, 3, 4), constraints={})
    source = OptunaSource(spec, folder)
    jobs = list(iter(source.next, None))
    assert [len(job.runs[0].keys) for job in jobs] == [2, 3, 4] * 3
    assert len({job.trial for job in jobs}) == 9
    names = [search.optuna.study_name for search in source.searches]
    assert names == ["sweep T=2", "sweep T=3", "sweep T=4"]
    for job in jobs:
        finish(folder, job, learned(0.1 * len(job.runs[0].keys), 0.5))
        source.ended(job, pruned=False)
    for tasks, search in zip((2, 3, 4), source.searches, strict=True):
        assert [trial.value for trial in search.optuna.get_trials()] == [0.1 * tasks] * 3
        assert all(trial.params.keys() == SPACE.keys() for trial in search.optuna.get_trials())
    again = OptunaSource(judged(tiny, trials=4, tasks=(2, 3, 4), constraints={}), folder)
    assert again.waiting == 3
    assert [len(job.runs[0].keys) for job in iter(again.next, None)] == [2, 3, 4]


def test_the_best_trials_are_confirmed_when_their_search_is_over(tiny: Path, folder: StudyFolder) -> None:
    spec = judged(tiny, tasks=(2, 3), confirm={"top": 2, "seeds": [8, 9]})
    source = OptunaSource(spec, folder)
    finish_fixed(spec, folder, source, learned(0.72, 0.9))
    jobs = [source.next() for _ in range(6)]
    for place, job in enumerate(jobs):
        assert job is not None
        assert source.next() is None, "until the last trial of a context has ended there is nothing to confirm"
        finish(folder, job, learned(0.6 + place / 100, 0.89 if place < 4 else 0.5))
        source.ended(job, pruned=False)
        if place == 4:
            break
    two = list(iter(source.next, None))
    best = [job.trial for job in jobs[:3:2] if job][::-1]
    assert [(job.trial, job.variant, job.runs[0].config.seed) for job in two] == [
        *((trial, "confirmed", seed) for seed in (8, 9) for trial in best),
        *((None, variant, seed) for seed in (8, 9) for variant in ("reference", "default")),
    ], "the third trial of two tasks did not meet the constraint"
    for job in two[:3]:
        finish(folder, job, learned(0.7, 0.9))
    again = OptunaSource(spec, folder)
    left = [job for job in iter(again.next, None) if job.variant is not None]
    assert left == two[3:]


def test_the_point_of_a_fixed_run_is_not_trained_again(tiny: Path, folder: StudyFolder) -> None:
    """One of the two methods is the reference: its trial gets the value of the reference run."""
    search = {"trials": 4, "sampler": "random"}
    spec = small_study(tiny, space={"method.name": ["er", "cl2r"]}, search=search)
    source = OptunaSource(spec, folder)
    (job,) = iter(source.next, None)
    assert job.runs[0].config.method.name == "cl2r"
    again = OptunaSource(spec, folder)
    assert [one.runs for one in iter(again.next, None)] == [job.runs]
    finish(folder, job, learned(0.7, 0.9))
    again.ended(job, pruned=False)
    finish_fixed(spec, folder, again, learned(0.6, 0.9))
    trials = again.searches[0].optuna.get_trials()
    assert [trial.value for trial in trials] == [
        {"er": 0.6, "cl2r": 0.7}[trial.params["method.name"]] for trial in trials
    ]


def earlier_sweep(data: Path, folder: StudyFolder, **search: Any) -> StudySpec:
    """A finished study of three trials with values 0.1, 0.2, 0.3."""
    spec = judged(data, **search)
    folder.claim_name(spec.identity(["pixels"]))
    source = OptunaSource(spec, folder)
    finish_fixed(spec, folder, source, learned(0.5, 0.5))
    for value, job in enumerate(iter(source.next, None), 1):
        finish(folder, job, learned(value / 10, 0.5))
        source.ended(job, pruned=False)
    return spec


def test_a_comparable_study_lends_its_values(tiny: Path, tmp_path: Path) -> None:
    earlier = StudyFolder(tmp_path, "earlier")
    earlier_sweep(tiny, earlier)
    spec, folder = judged(tiny, warm_start="earlier"), StudyFolder(tmp_path, "later")
    folder.claim_name(spec.identity(["pixels"]))
    source = OptunaSource(spec, folder)
    trials = source.searches[0].optuna.get_trials()
    assert [trial.value for trial in trials] == [0.1, 0.2, 0.3]
    assert [trial.constraints for trial in trials] == [
        {"reindexed_accuracy >= er - 0.01": pytest.approx(-0.01 / 0.49)}
    ] * 3
    assert {trial.user_attrs["warm_start"] for trial in trials} == {"earlier"}
    assert source.waiting == 3, "they do not count as trials of this study"
    assert [job.trial for job in iter(source.next, None)] == [3, 4, 5]
    assert not OptunaSource(spec, folder).searches[0].best(3), "nor can they be confirmed here"


def test_of_a_study_with_other_settings_the_best_points_are_tried_first(tiny: Path, tmp_path: Path) -> None:
    earlier = StudyFolder(tmp_path, "earlier")
    earlier_sweep(tiny, earlier)
    points = [event.read()["params"] for event in earlier.ledger.events("trial")]
    search = {"trials": 3, "warm_start": str(earlier.path), "startup": 4}
    space = {**SPACE, "scenario.n_tasks": [3]}
    spec = small_study(tiny, set={"optim.lr": 0.01}, space=space, search=search)
    source = OptunaSource(spec, StudyFolder(tmp_path, "later"))
    first, second, third = (job.runs[0].config for job in iter(source.next, None))
    assert [one.method.lambda_base for one in (first, second)] == [
        point["method.lambda_base"] for point in points[:0:-1]
    ]
    assert third.method.lambda_base not in [point["method.lambda_base"] for point in points]


def test_values_of_other_points_or_contexts_are_not_taken_over(tiny: Path, tmp_path: Path) -> None:
    """λ and memory were searched for two and three tasks; now λ alone, with three tasks and the preset's memory."""
    earlier_sweep(tiny, StudyFolder(tmp_path, "earlier"), tasks=(2, 3))
    space = {"method.lambda_base": SPACE["method.lambda_base"]}
    spec = small_study(tiny, set={"scenario.n_tasks": 3}, space=space, search={"warm_start": "earlier"})
    source = OptunaSource(spec, StudyFolder(tmp_path, "later"))
    states_now = {trial.state for trial in source.searches[0].optuna.get_trials()}
    assert states_now <= {TrialState.WAITING}


def test_an_interrupted_warm_start_is_completed(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier_sweep(tiny, StudyFolder(tmp_path, "earlier"))
    spec, folder = judged(tiny, warm_start="earlier"), StudyFolder(tmp_path, "later")
    add = optuna.Study.add_trial

    def killed(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if len(study.get_trials()) == 2:
            raise KeyboardInterrupt
        add(study, trial)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "add_trial", killed)
        with pytest.raises(KeyboardInterrupt):
            OptunaSource(spec, folder)
    for _ in range(2):
        trials = OptunaSource(spec, folder).searches[0].optuna.get_trials()
        assert [trial.value for trial in trials] == [0.1, 0.2, 0.3]


def test_points_of_a_warm_start_keep_their_numbers_in_a_journal_that_is_made_again(tiny: Path, tmp_path: Path) -> None:
    """The ledger knows trials 0 and 1, at the earlier points, and 3; the events of 2 are lost."""
    earlier_sweep(tiny, StudyFolder(tmp_path, "earlier"))
    search = {"trials": 6, "warm_start": "earlier", "startup": 4}
    space = {**SPACE, "scenario.n_tasks": [3]}
    spec = small_study(tiny, set={"optim.lr": 0.01}, space=space, search=search)
    folder = StudyFolder(tmp_path, "later")
    source = OptunaSource(spec, folder)
    jobs = [job for job in (source.next() for _ in range(4)) if job]
    for job in (jobs[0], jobs[3]):
        finish(folder, job, learned(0.5 + (job.trial or 0) / 10, 0.5))
    before = [trial.params for trial in source.searches[0].optuna.get_trials()]
    Path(str(folder.journal)).unlink()
    folder.ledger.last("trial")["2"].path.unlink()

    again = OptunaSource(spec, folder)
    finish_fixed(spec, folder, again, learned(0.5, 0.5))
    after = again.searches[0].optuna.get_trials()
    assert [trial.params for trial in after] == [*before[:2], {}, before[3]]
    assert states(again) == [TrialState.COMPLETE, TrialState.RUNNING, TrialState.FAIL, TrialState.COMPLETE]
    assert [trial.value for trial in after] == [0.5, None, None, 0.8]
    assert [job.trial for job in iter(again.next, None)] == [1, 4, 5, 6]


def test_a_reference_run_that_failed_is_waited_for_when_it_is_tried_again(tiny: Path, folder: StudyFolder) -> None:
    spec = judged(tiny, trials=2)
    source = OptunaSource(spec, folder)
    first, second = iter(source.next, None)
    (reference,) = fixed_jobs(spec, spec.contexts()[0], spec.seeds)
    finish(folder, first, learned(0.7, 0.9))
    source.ended(first, pruned=False)
    record_failed(reference, folder, DIED)
    source.ended(reference, pruned=False)
    assert source.searches[0].optuna.get_trials()[0].constraints["reindexed_accuracy >= er - 0.01"] > 1

    folder.ledger.write("opened", "driver", {})  # the next command tries the reference run again
    again = OptunaSource(spec, folder)
    finish(folder, second, learned(0.8, 0.9))
    again.ended(second, pruned=False)
    assert states(again)[1] == TrialState.RUNNING
    finish(folder, reference, learned(0.6, 0.9))
    again.ended(reference, pruned=False)
    assert states(again) == [TrialState.COMPLETE] * 2
    assert list(again.searches[0].best(2)) == [second.trial, first.trial], "the first one is judged again"


def test_a_reference_has_no_adapter_but_its_own(tiny: Path) -> None:
    search = {"constraints": {"AC": ">= er", "BC": ">= er+slerp"}}
    spec = small_study(tiny, set={"adapter.name": "procrustes"}, space=SPACE, search=search)
    jobs = fixed_jobs(spec, {}, (0,))
    assert [job.runs[0].config.adapter.name for job in jobs] == ["none", "slerp"]
    assert [job.runs[0].config.method.name for job in jobs] == ["er", "er+slerp"]


def test_a_trial_at_the_point_of_a_fixed_run_is_ranked_with_the_others(tiny: Path, folder: StudyFolder) -> None:
    search = {"trials": 6, "sampler": "random", "constraints": {"reindexed_accuracy": ">= er - 0.5"}}
    spec = small_study(tiny, space={"method.name": ["er", "cl2r"]}, search=search)
    source = OptunaSource(spec, folder)
    (job,) = iter(source.next, None)
    finish(folder, job, {**learned(0.7, 0.9), "method.name": "cl2r"})
    source.ended(job, pruned=False)
    finish_fixed(spec, folder, source, {**learned(0.8, 0.9), "method.name": "er"})
    runs = study_frames(folder)["runs"]
    assert len(runs) == 2
    trials = variant_rows(runs)
    assert set(trials["method.name"]) == {"er", "cl2r"}
    best = source.searches[0].optuna.best_trial.number
    assert best in trials.loc[trials["method.name"] == "er", "trial"].tolist()


def test_a_warm_start_without_a_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "studies" / "earlier").mkdir(parents=True)
    (tmp_path / "studies" / "earlier" / "study.yaml").write_text("{}")
    with pytest.raises(InputError, match=r"no study 'erlier'.*did you mean 'earlier'"):
        earlier_study("erlier", at(tmp_path))
