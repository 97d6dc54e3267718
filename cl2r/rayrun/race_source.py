"""The stream of jobs of a race: rounds, points that Optuna chooses for each tuned method, adapters.

Every decision is in the ledger before its jobs are handed out: a round, and every candidate that Optuna or an adapter
adds. The next command follows these decisions and runs what is left of them.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import optuna
from optuna.trial import TrialState

from cl2r.rayrun.optuna_journal import open_journal
from cl2r.rayrun.optuna_source import UNKNOWN_VIOLATION, open_optuna
from cl2r.study.jobs import Job, prefix_jobs
from cl2r.study.ledger import finished
from cl2r.study.race import TUNING, Candidate, Round, adapter_bases
from cl2r.study.session import StudySession
from cl2r.study.space import distributions

NUMBER = "candidate"  # user attribute of Optuna's trials
ATTEMPTS = 20  # of Optuna to find a point that is not a candidate yet


class RaceSource:
    """The jobs of a race, in order; `say` is told every decision."""

    def __init__(self, session: StudySession, say: Callable[[str], None] = print) -> None:
        self.session, self.say, self.race = session, say, session.race
        self.ledger = session.folder.ledger
        self.storage = open_journal(session.folder)
        self.studies: dict[str, optuna.Study] = {}
        self.open: dict[str, Job] = {}  # handed out, not ended
        self.queue: list[Job] = []
        self.spent: set[str] = set()  # methods whose points are all candidates already, or take too long
        self.coming: set[str] = set()  # links of shared prefixes that were handed out
        self.over = False
        self.rounds = self.race.rounds()
        for note in [*self.race.notes, self.race.split_note()]:
            say(note)
        if self.rounds:
            self._enqueue(self._known_jobs([own for own in self.rounds if own.name == self.rounds[-1].name]))

    def enter(self, concurrent: int, say: Callable[[str], None]) -> None:
        """Take note of how many jobs run at a time and where to report; refuse a race that takes too long."""
        self.say, self.race.concurrent = say, concurrent
        if os.environ.get("RAY_ADDRESS"):
            self.race.check()

    @property
    def waiting(self) -> int:
        """Number of jobs that are known to be left; the next round is begun if there is none."""
        if not self.queue and (job := self.next()) is not None:
            self.open.pop(job.label, None)
            self.queue.insert(0, job)
        return len(self.queue)

    def _known_jobs(self, rounds: Sequence[Round]) -> list[Job]:
        """Return the jobs of these rounds that have not finished, those of added candidates included."""
        outcomes, jobs = self.ledger.outcomes(), list[Job]()
        for present in rounds:
            own = {one.number: one for one in present.candidates}
            own |= self.race.added() if present.name == TUNING else {}
            jobs += self.race.jobs(present.name, own.values(), present.seeds)
        return [job for job in jobs if not finished(outcomes, [job.runs[0].name])]

    def _enqueue(self, jobs: Sequence[Job]) -> None:
        self.queue += [*prefix_jobs(jobs, self.session.present()), *jobs]

    def next(self) -> Job | None:
        """Return the next job; None until a running one ends. Begins the next round when all have ended."""
        while not self.over:
            tuning = self.rounds[-1] if self.rounds and self.rounds[-1].name == TUNING else None
            if self.queue:
                return self._pop()
            if tuning and (point := self._next_point(tuning)) is not None:
                self._enqueue([point])
            elif self.open:
                return None
            elif tuning and (jobs := self._adapter_jobs(tuning)):
                self._enqueue(jobs)
            else:
                self._begin_round()
        return None

    def _pop(self) -> Job:
        """Remove and return the first job that waits for no shared link or, if all wait, the first."""
        coming = (self.coming - self.session.present()).union(*(job.provides for job in self.queue))
        ready = (place for place, job in enumerate(self.queue) if not job.needs & coming)
        job = self.queue.pop(next(ready, 0))
        if job.stop_after is None:
            self.open[job.label] = job
        self.coming |= job.provides
        return job

    def _begin_round(self) -> None:
        following = self.race.next_round()
        self.over = following is None
        if following is not None:
            self.ledger.write("round", following.name, dataclasses.asdict(following))
            self.rounds.append(following)
            self.say(f"{following.name}: {following.why}; {self.race.time_text(following)}")
            self._enqueue(self._known_jobs([following]))

    def ended(self, job: Job, pruned: bool) -> None:
        """Take note of a job that ended; Optuna is told before it is asked again."""
        self.open.pop(job.label, None)

    def should_prune(self, job: Job, task: int, value: float) -> bool:
        """Return False: rounds end early already."""
        return False

    def _next_point(self, tuning: Round) -> Job | None:
        """Return the next point of the tuned method that has the fewest; None if there are enough, or no more time."""
        known = self.race.candidates()
        counts = Counter(one.method for one in known.values())
        short = [name for name in tuning.tuned if counts[name] < tuning.points and name not in self.spent]
        if not short or self.race.left() < tuning.reserve:
            return None
        self._tell(tuning, known)
        for method in sorted(short, key=lambda name: counts[name]):
            space, default = self.race.space(method), self.race.default_values(method)
            study = self._study(method, known)
            taken = [default | one.values for one in known.values() if one.method == method]
            for _ in range(ATTEMPTS if space else 0):
                trial = study.ask(distributions(space))
                if any(trial.params.items() <= values.items() for values in taken):
                    study.tell(trial, state=TrialState.FAIL)  # choices only: the point is a candidate already
                    continue
                added = Candidate(max(known) + 1, method, trial.params)
                needed = self.race.seconds([self.race.job(TUNING, added, tuning.seeds[0])]) + tuning.reserve
                if self.race.left() < needed:
                    study.tell(trial, state=TrialState.FAIL)
                    break
                trial.set_user_attr(NUMBER, added.number)
                return self._add(added, tuning)
            self.spent.add(method)
        return None

    def _adapter_jobs(self, tuning: Round) -> list[Job]:
        """Return the adapters on the best rehearsal candidates that are no candidates yet; all others have ended."""
        known = self.race.candidates()
        self._tell(tuning, known)
        there = [(one.method, one.values) for one in known.values()]
        jobs = list[Job]()
        for base in adapter_bases(self.race.results(TUNING, known, tuning.seeds)):
            for method in (f"{base.method}+{adapter}" for adapter in self.race.adapters):
                if (method, base.values) not in there:
                    number = max(known) + 1
                    known[number] = Candidate(number, method, base.values)
                    jobs.append(self._add(known[number], tuning))
        return jobs

    def _add(self, candidate: Candidate, tuning: Round) -> Job:
        self.ledger.write("trial", str(candidate.number), {"method": candidate.method, "params": candidate.values})
        return self.race.job(TUNING, candidate, tuning.seeds[0])

    def _study(self, method: str, known: Mapping[int, Candidate]) -> optuna.Study:
        """Return Optuna's study of a method; its first trial is the method's default."""
        if method in self.studies:
            return self.studies[method]
        name = f"{self.session.folder.name} {method}"
        self.studies[method] = study = open_optuna(self.session.spec, self.storage, name, self.race.tasks)
        space, values = self.race.space(method), self.race.default_values(method)
        own = {one.number: values | one.values for one in known.values() if one.method == method}
        points = {number: {name: point[name] for name in space} for number, point in own.items()}
        for trial in study.get_trials(deepcopy=False):
            number = trial.user_attrs.get(NUMBER, -1)
            if trial.state == TrialState.RUNNING and points.get(number) != trial.params:
                study.tell(trial.number, state=TrialState.FAIL)  # killed while its point was being chosen
            else:
                points.pop(number, None)
        # The default, and what a journal that was rebuilt lacks. One entry per trial, which cannot be cut in two.
        for number, point in points.items():
            added = optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=point,
                distributions=distributions(space),
                user_attrs={NUMBER: number},
            )
            study.add_trial(added)
        return study

    def _tell(self, tuning: Round, known: Mapping[int, Candidate]) -> None:
        """Tell Optuna of the tuned candidates that ended, once the runs have ended that constraints refer to."""
        outcomes = self.ledger.outcomes()
        references = [one for one in tuning.candidates if one.method in self.race.referred]
        if any(self.race.job(TUNING, one, tuning.seeds[0]).runs[0].name not in outcomes for one in references):
            return
        results = {one.candidate.number: one for one in self.race.results(TUNING, known, tuning.seeds)}
        for method in tuning.tuned:
            study = self._study(method, known)
            for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                candidate = known[frozen.user_attrs[NUMBER]]
                if candidate.number in results:
                    trial = optuna.trial.Trial(study, frozen._trial_id)
                    result = results[candidate.number]
                    if self.race.constraints:
                        trial.set_constraint("constraints", min(result.violation, UNKNOWN_VIOLATION))
                    study.tell(trial, result.value)
                elif self.race.job(TUNING, candidate, tuning.seeds[0]).runs[0].name in outcomes:
                    study.tell(frozen.number, state=TrialState.FAIL)
