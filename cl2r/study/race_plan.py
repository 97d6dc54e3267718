"""A race against the clock: predicts how long rounds take and decides how large the next one may be."""

import functools
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from cl2r.config.layers import merge_layers
from cl2r.config.schema import Config, fields
from cl2r.data import load_dataset
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.metrics import METRICS
from cl2r.runtime.text import counted, duration, listed
from cl2r.study.constraints import Constraint, seed_mean
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Job, plan_job
from cl2r.study.ledger import finished
from cl2r.study.race import (
    FINAL,
    FINALISTS,
    MORE_SEEDS,
    POINTS,
    REFERENCES,
    SCREENING,
    TUNING,
    Candidate,
    Result,
    Round,
    RoundName,
    contenders,
    finalists,
    judged,
    largest,
    ranking,
    round_settings,
    space_of,
    tuned_count,
    tuned_methods,
)
from cl2r.study.race_time import RaceClock
from cl2r.study.resources import Resources
from cl2r.study.space import Space, random_points
from cl2r.study.spec import OBJECTIVES, Point, StudySpec

SPLIT, SPLIT_CLASSES = "eval.split", 8
SMALLEST = (2, 2)  # points and finalists of the smallest race that is begun


def with_split(spec: StudySpec) -> StudySpec:
    """Return the specification with `eval.split`, unless it is set: by classes if the open set has enough of them.

    The report then says how good the choice is on classes that the choice has never seen.
    """
    layer = merge_layers(spec.base).get("eval", {})
    if SPLIT in spec.set or "split" in layer:
        return spec
    by_classes = spec.model_copy(update={"set": {**spec.set, SPLIT: "classes"}})
    by_classes.__dict__.pop("base", None)  # cached, of the other one
    config = spec.config(Point(None, {}), spec.seeds[0])
    data = load_dataset(config.data.name, config.data.size, config.data.channels, config.data.root)
    try:
        if len(set(data.y_open.tolist())) >= SPLIT_CLASSES:
            plan_run(by_classes.config(Point(None, {}), spec.seeds[0]))
            return by_classes
    except InputError:  # a list of pairs cannot be split by classes
        return spec
    return spec


def entrants(spec: StudySpec) -> tuple[dict[str, Config], list[str]]:
    """Return the whole training of every method that takes part, with its default settings, and notes on others.

    A method that cannot be run with this data or these overrides is left out with a note, unless the user named it.
    """
    assert spec.race is not None
    found, notes, constraints = dict[str, Config](), list[str](), spec.search.parsed_constraints()
    needed = {*REFERENCES, *(one.reference for one in constraints)}
    for method in spec.race.entrants(constraints):
        try:
            config = spec.config(Point(None, {"method.name": method}), spec.seeds[0])
            round_settings(config, SCREENING, 1)
            plan = plan_run(config)
        except InputError as error:
            if method in needed or spec.race.methods is not None:
                raise InputError(f"{method}: {error}") from error
            notes.append(f"note: {method} is left out: {error}")
            continue
        if config.adapter.name != "none":  # a preset that names this method
            raise InputError(f"the preset gives {method} the adapter {config.adapter.name}; use race.adapters")
        if plan.tuning_pairs is None:
            raise InputError("there are no tuning pairs to judge candidates on; set eval.tuning_share")
        if len(plan.keys) < 2:
            raise InputError("a race needs two tasks: one upgrade of the gallery")
        metrics = [METRICS.objectives()[spec.search.objectives[0]], *(one.metric for one in constraints)]
        searched = [metric.name for metric in metrics if metric.matrix == "recall"]
        if searched and plan.tuning_images is None:
            raise InputError(f"{searched[0]} is not defined for {plan.dataset.name}: it has pairs, not classes")
        found[method] = config
    return found, notes


class Race(RaceClock):
    """The rounds of a study's race, read from its ledger and decided one after another."""

    def __init__(self, spec: StudySpec, folder: StudyFolder, resources: Resources) -> None:
        super().__init__(spec, folder, resources)
        self.defaults, self.notes = entrants(spec)
        self.constraints = spec.search.parsed_constraints()
        self.referred = {one.reference for one in self.constraints if one.reference}
        self.always = {*REFERENCES, *self.referred}  # in every round with their default settings
        self.contenders = [method for method in contenders(self.race.methods) if method in self.defaults]
        self.objective, direction = OBJECTIVES[spec.search.objectives[0]]
        self.maximise = direction == "maximize"
        self._jobs: dict[tuple[RoundName, int, str, int], Job] = {}

    @cached_property
    def tasks(self) -> int:
        """Number of tasks of the whole chain."""
        return len(plan_run(self.defaults[REFERENCES[0]]).keys)

    @cached_property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that can map the features of ER on this data."""
        found = []
        for name in self.race.adapters:
            try:
                plan_run(self.spec.config(Point(None, {"method.name": f"er+{name}"}), self.spec.seeds[0]))
                found.append(name)
            except InputError as error:
                self.notes.append(f"note: {name} is left out: {error}")
        return tuple(found)

    def split_note(self) -> str:
        """Return which images the choice is made on."""
        split = next(iter(self.defaults.values())).eval.split
        words = "other classes than" if split == "classes" else "other images of the same classes as"
        return f"note: eval.split={split}: the result is reported on {words} those that the choice is made on"

    def space(self, method: str) -> Space:
        """Return what the tuning round may choose of a method."""
        bounded = any(one.metric.name == "stored_bytes" for one in self.constraints)
        return space_of(self.defaults[method], self.spec.set, more_memory=bounded)

    def default_values(self, method: str) -> dict[str, Any]:
        """Return the default settings of a method, in the fields that the tuning round may choose."""
        values = fields(self.defaults[method])
        return {name: values[name] for name in self.space(method)}

    def job(self, name: RoundName, candidate: Candidate, seed: int) -> Job:
        """Return the job of one candidate and seed in a round."""
        known = name, candidate.number, repr(candidate.settings), seed
        if known not in self._jobs:
            settings = round_settings(self.defaults[candidate.method.partition("+")[0]], name, self.tasks)
            point = Point(name, candidate.settings, settings)
            spec = self.spec.model_copy(update={"seeds": (seed,)})
            self._jobs[known] = plan_job(spec, point, candidate.number)
        return self._jobs[known]

    def jobs(self, name: RoundName, candidates: Iterable[Candidate], seeds: Iterable[int]) -> list[Job]:
        """Return one job per seed and candidate, seed by seed."""
        return [self.job(name, one, seed) for seed, one in itertools.product(seeds, list(candidates))]

    def rounds(self) -> list[Round]:
        """Return the rounds that were decided so far."""
        return [Round.from_event(content) for _, content in self.entries("round")]

    def candidates(self) -> dict[int, Candidate]:
        """Return all candidates so far, by number."""
        return {one.number: one for own in self.rounds() for one in own.candidates} | self.added()

    def added(self) -> dict[int, Candidate]:
        """Return the candidates that Optuna and the adapters have added to the tuning round."""
        found = ((int(event.subject), content) for event, content in self.entries("trial"))
        return {number: Candidate(number, content["method"], content["params"]) for number, content in found}

    def results(self, name: RoundName, candidates: Mapping[int, Candidate], seeds: Sequence[int]) -> list[Result]:
        """Return the results, best first, of the candidates that finished a round with all its seeds.

        Methods that only bound a constraint are left out: they are neither tuned nor promoted. Screening ignores
        constraints on costs: memory has not been chosen yet, and tasks and epochs are cut.
        """
        constraints = self._judging(name)
        rows_of = {event.subject: content["frames"]["runs"][0] for event, content in self.entries("finished")}
        columns = {self.objective, *(one.column for one in constraints)}
        rows: dict[int, dict[str, float]] = {}
        for number, candidate in candidates.items():
            runs = [run.name for job in self.jobs(name, [candidate], seeds) for run in job.runs]
            if rows_of.keys() >= set(runs):
                found = [rows_of[run] for run in runs]
                rows[number] = {column: seed_mean(found, column) for column in columns}
        found = judged(rows, candidates, self.objective, constraints)
        own = (result for result in found if result.candidate.method.partition("+")[0] in self.contenders)
        return ranking(own, self.maximise)

    def _judging(self, name: RoundName) -> list[Constraint]:
        """Return the constraints that a round is judged by."""
        return [one for one in self.constraints if name != SCREENING or one.metric.compute is not None]

    def _references(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that take part in every round."""
        return [one for one in candidates if one.method in self.always and not one.values]

    def _unjudged(self, name: RoundName, candidates: Iterable[Candidate], seeds: Sequence[int]) -> str:
        """Return which constraints a round could not be judged by, because a reference failed; else an empty text."""
        done, lost = self.folder.ledger.outcomes(), list[str]()
        for one in self._references(candidates):
            bound = [str(other) for other in self._judging(name) if other.reference == one.method]
            runs = [job.runs[0].name for job in self.jobs(name, [one], seeds)]
            if bound and not finished(done, runs):
                lost.append(f"; {one.method} failed in the round before, so {listed(bound)} could not be judged")
        return "".join(lost)

    def time_text(self, own: Round) -> str:
        """Return the predicted time of a round beside the time that is left."""
        return f"about {duration(own.seconds)} of {duration(max(0.0, self.left()))} left"

    def expected_runs(self) -> int:
        """Return the number of runs of the race: exact once the final has been decided, before that as planned."""
        rounds = self.rounds()
        runs = sum(len(own.candidates) * len(own.seeds) for own in rounds)
        if rounds and rounds[-1].name == FINAL:
            return runs + len(self.added())
        tuning, final = self._planned_runs(*SMALLEST)
        if rounds and rounds[-1].name == TUNING:
            drawn = len(rounds[-1].tuned) * (rounds[-1].points - 1)
            return runs + max(len(self.added()), drawn + 2 * len(self.adapters)) + final
        return runs + (0 if rounds else len(self.defaults)) + tuning + 2 * len(self.adapters) + final

    def _planned_runs(self, points: int, number: int) -> tuple[int, int]:
        """Return the runs that train in tuning and final, if no reference is tuned or a finalist."""
        tuned = min(tuned_count(len(self.contenders)), len(self.contenders))
        return tuned * points + len(self.always), len(self.spec.seeds) * (number + len(self.always))

    def check(self) -> None:
        """Raise InputError if not even the smallest race fits into the time."""
        if (
            not self.folder.ledger.outcomes()
            and (needed := sum(own.seconds for own in self.forecast(smallest=True))) > self.left()
        ):
            hours, methods = f"{1.05 * needed / 3600:.2g}", counted(len(self.defaults), "method")
            raise InputError(
                f"--hours {self.race.hours:g}: the smallest race of {methods} takes about {duration(needed)}; "
                f"give --hours {hours}, or fewer --methods, --seeds or optim.epochs"
                + "".join(f" ({note})" for note in self.assumptions())
            )

    def forecast(self, smallest: bool = False) -> list[Round]:
        """Return the whole race as it is planned now; who reaches the later rounds is not known."""
        first, mean = self._screening(), functools.cache(self._mean_seconds)

        def seconds(size: tuple[int, int]) -> tuple[float, float]:
            # Any method may be promoted: a run takes as long as the mean of all methods.
            tuning, final = self._planned_runs(*size)
            return tuning * mean(TUNING), final * mean(FINAL)

        size: tuple[int, int] | None = SMALLEST
        if not smallest:
            size = largest(_sizes(), lambda size: sum(seconds(size)), self.left() - first.seconds)
        points, number = size or SMALLEST
        tuning, final = seconds((points, number))
        tuned = tuple(self.contenders[: tuned_count(len(self.contenders))])
        return [
            first,
            Round(TUNING, (), self.spec.seeds[:1], tuned, points, tuning),
            Round(FINAL, (), self.spec.seeds, points=number, seconds=final),
        ]

    def _mean_seconds(self, name: RoundName) -> float:
        """Return the mean time of a method's run, if it shares nothing with others."""
        methods = (Candidate(number, method) for number, method in enumerate(self.defaults))
        return statistics.fmean(self.seconds([job]) for job in self.jobs(name, methods, self.spec.seeds[:1]))

    def next_round(self) -> Round | None:
        """Return the next round after those of the ledger, all of whose runs have ended.

        None if the race is over: there is no time for a further seed, or nothing finished the last round.
        """
        rounds = self.rounds()
        if not rounds:
            return self._screening()
        self.measure([job for own in rounds for job in self.jobs(own.name, own.candidates, own.seeds)])
        match rounds[-1].name:
            case "screening":
                return self._tuning(rounds[-1])
            case "tuning":
                return self._final()
            case "final":
                return self._further_seed([own for own in rounds if own.name == FINAL])

    def _screening(self) -> Round:
        entrants = tuple(Candidate(number, method) for number, method in enumerate(self.defaults))
        seeds = self.spec.seeds[:1]
        seconds = self.seconds(self.jobs(SCREENING, entrants, seeds))
        why = f"{counted(len(entrants), 'method')} at their defaults, a third of the epochs"
        return Round(SCREENING, entrants, seeds, seconds=seconds, why=why)

    def _tuning(self, before: Round) -> Round | None:
        seeds, entrants = before.seeds, {one.number: one for one in before.candidates}
        ranked = self.results(SCREENING, entrants, seeds)
        if not ranked:
            return None
        tuned = tuned_methods(ranked, len(self.contenders))
        starters = tuple(one for one in before.candidates if one.method in tuned or one.method in self.always)
        best = [result.candidate for result in ranked]
        references = self._references(before.candidates)
        adapting = 2 * len(self.adapters) * self.overhead * self.run_seconds / self.concurrent

        def tuning(points: int) -> float:
            drawn = [
                Candidate(-1, method, values)
                for method in tuned
                for values in _points(self.space(method), points - 1, self.spec.search.seed)
            ]
            return self.seconds(self.jobs(TUNING, [*starters, *drawn], seeds)) + adapting

        def final(count: int) -> float:
            return self.seconds(self.jobs(FINAL, [*best[:count], *references], self.spec.seeds))

        left = self.left()
        size = largest(_sizes(), lambda size: tuning(size[0]) + final(size[1]), left)
        points, count = size or _sizes()[0]
        why = f"the best {len(tuned)} of {len(self.contenders)} methods: {listed(tuned)}"
        why += self._unjudged(SCREENING, before.candidates, seeds)
        why += "" if size else "; the time that is left is too short even for this"
        return Round(TUNING, starters, seeds, tuned, points, tuning(points), adapting + final(count), why)

    def _final(self) -> Round | None:
        known, seeds = self.candidates(), self.spec.seeds
        ranked = self.results(TUNING, known, seeds[:1])
        if not ranked:
            return None
        references = self._references(known.values())

        def chosen(count: int) -> list[Candidate]:
            return list({one.number: one for one in [*finalists(ranked, count), *references]}.values())

        def final(count: int) -> float:
            return self.seconds(self.jobs(FINAL, chosen(count), seeds))

        fitting = largest(range(FINALISTS[0], FINALISTS[1] + 1), final, self.left())
        count = fitting or FINALISTS[0]
        best = finalists(ranked, count)
        why = f"the best {len(best)} of {counted(len(ranked), 'candidate')} by {self.objective}, and the references"
        unjudged = self._unjudged(TUNING, known.values(), seeds[:1])
        why += unjudged or ("" if ranked[0].feasible else "; none meets the constraints")
        why += "" if fitting else "; the time that is left is too short even for this"
        return Round(FINAL, tuple(chosen(count)), seeds, seconds=final(count), why=why)

    def _further_seed(self, finals: Sequence[Round]) -> Round | None:
        """Return the final with one more seed, if there is time for it and no reference lacks a run."""
        jobs = [job for own in finals for job in self.jobs(FINAL, self._references(own.candidates), own.seeds)]
        if len(finals) > MORE_SEEDS or not finished(self.folder.ledger.outcomes(), [job.runs[0].name for job in jobs]):
            return None
        seed = max(seed for own in finals for seed in own.seeds) + 1
        seconds = self.seconds(self.jobs(FINAL, finals[0].candidates, (seed,)))
        if seconds > self.left():
            return None
        return Round(FINAL, finals[0].candidates, (seed,), seconds=seconds, why="time is left for another seed")


def _sizes() -> list[tuple[int, int]]:
    """Return numbers of points and finalists, ascending."""
    return [(1, 1), (1, 2), (2, 2), *((points, 3) for points in range(2, POINTS[1] + 1))]


def _points(space: Space, count: int, seed: int) -> list[dict[str, Any]]:
    return random_points(space, count, seed) if space else []


def plan_lines(race: Race) -> list[str]:
    """Return the rounds of a race with their predicted times, those that were decided first."""
    decided, rounds = _rounds(race)
    lines = []
    for own in rounds:
        size = f"{len(own.candidates)} candidates" if own.candidates else f"{own.points} finalists and the references"
        if own.name == TUNING:
            size = f"{len(own.tuned)} methods × {counted(own.points, 'point')}, then {len(race.adapters)} adapters"
        seeds = counted(len(own.seeds), "seed")
        state = "decided" if own in decided else "planned"
        lines.append(f"{own.name:<10}  {state}: {size}, {seeds}, about {duration(own.seconds)}")
    used, total = race.used(), sum(own.seconds for own in rounds[len(decided) :])
    lines.append(f"time        {duration(used)} used, about {duration(total)} to come, of {race.race.hours:g} h")
    return [*race.notes, race.split_note(), *(f"note: {note}" for note in race.assumptions()), *lines]


def plan_json(race: Race) -> dict[str, Any]:
    """Return the same as plain values."""
    decided, rounds = _rounds(race)
    return {
        "hours": race.race.hours,
        "seconds_used": race.used(),
        "seconds": sum(own.seconds for own in rounds[len(decided) :]),
        "rounds": [
            {"name": own.name, "decided": own in decided, "seeds": len(own.seeds), "seconds": own.seconds}
            for own in rounds
        ],
    }


def _rounds(race: Race) -> tuple[Sequence[Round], Sequence[Round]]:
    """Return the rounds that were decided, and all of them."""
    decided = race.rounds()
    return decided, [*decided, *race.forecast()[min(len(decided), 3) :]]
