"""A race against the clock: predicts how long rounds take and decides how large the next one may be."""

import dataclasses
import functools
import itertools
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from cl2r.config.layers import merge_layers
from cl2r.config.schema import AdapterConfig, Config, fields
from cl2r.data import load_dataset
from cl2r.engine.links import LinkStore
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.runtime.text import counted, duration, listed
from cl2r.study.cost import (
    GpuAssumption,
    LinkCost,
    link_costs,
    measure_flops,
    seconds_here,
    speed_group,
    stored_speeds,
)
from cl2r.study.dry_run import FlopCache
from cl2r.study.folder import StudyFolder, driver_times
from cl2r.study.jobs import Job, plan_job
from cl2r.study.ledger import finished, read_events
from cl2r.study.race import (
    FINAL,
    FINALISTS,
    LEAST_TUNED,
    MORE_SEEDS,
    POINTS,
    REFERENCES,
    SCREENING,
    TUNING,
    Candidate,
    Result,
    Round,
    RoundName,
    finalists,
    judged,
    largest,
    ranking,
    round_settings,
    space_of,
    tuned_methods,
)
from cl2r.study.resources import Resources
from cl2r.study.space import Space, random_points
from cl2r.study.spec import OBJECTIVES, Point, StudySpec

SPLIT, SPLIT_CLASSES = "eval.split", 8
SMALLEST = (2, 2)  # points and finalists of the smallest race that is begun
OVERHEAD, MOST_OVERHEAD = 1.3, 5.0  # before it has been measured: processes that wait for others, or slow them down
RUN_SECONDS, STARTING_SECONDS = 3.0, 1.0  # of a run besides training, before it has been measured; to start it


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
    found, notes = dict[str, Config](), list[str]()
    for method in spec.race.entrants(spec.search.parsed_constraints()):
        try:
            config = spec.config(Point(None, {"method.name": method}), spec.seeds[0])
            round_settings(config, SCREENING, 1)
            plan = plan_run(config)
        except InputError as error:
            if method in REFERENCES or spec.race.methods is not None:
                raise InputError(f"{method}: {error}") from error
            notes.append(f"note: {method} is left out: {error}")
            continue
        if plan.tuning_pairs is None:
            raise InputError("there are no tuning pairs to judge candidates on; set eval.tuning_share")
        if len(plan.keys) < 2:
            raise InputError("a race needs two tasks: one upgrade of the gallery")
        found[method] = config
    return found, notes


class Race:
    """The rounds of a study's race, read from its ledger and decided one after another."""

    def __init__(self, spec: StudySpec, folder: StudyFolder, resources: Resources) -> None:
        assert spec.race is not None
        self.spec, self.folder, self.resources, self.race = spec, folder, resources, spec.race
        here = {"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}
        self.concurrent = resources.max_concurrent or resources.fit_into(here) or 1
        self.defaults, self.notes = entrants(spec)
        self.store = LinkStore(folder.storage)
        self.constraints = spec.search.parsed_constraints()
        self.objective, direction = OBJECTIVES[spec.search.objectives[0]]
        self.maximise = direction == "maximize"
        self.overhead, self.run_seconds = OVERHEAD, RUN_SECONDS
        self._speeds: dict[str, list[float]] = {}
        self._flops: FlopCache = {}
        self._costs: dict[str, list[LinkCost]] = {}
        self._jobs: dict[tuple[RoundName, int, str, int], Job] = {}
        self.referred = {one.reference for one in self.constraints if one.reference}

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

    # ---- jobs and results

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
        return [Round.from_event(content) for content in read_events(self.folder.ledger.events("round"))]

    def candidates(self) -> dict[int, Candidate]:
        """Return all candidates so far, by number."""
        return {one.number: one for own in self.rounds() for one in own.candidates} | self.added()

    def added(self) -> dict[int, Candidate]:
        """Return the candidates that Optuna and the adapters have added to the tuning round."""
        events = self.folder.ledger.events("trial")
        pairs = zip((int(event.subject) for event in events), read_events(events), strict=True)
        return {number: Candidate(number, content["method"], content["params"]) for number, content in pairs}

    def results(self, name: RoundName, candidates: Mapping[int, Candidate], seeds: Sequence[int]) -> list[Result]:
        """Return the results, best first, of the candidates that finished a round with all its seeds."""
        outcomes = self.folder.ledger.outcomes()
        columns = {self.objective, *(one.column for one in self.constraints)}
        rows: dict[int, dict[str, float]] = {}
        for number, candidate in candidates.items():
            runs = [run.name for job in self.jobs(name, [candidate], seeds) for run in job.runs]
            if finished(outcomes, runs):
                found = [entry["frames"]["runs"][0] for entry in read_events([outcomes[run] for run in runs])]
                rows[number] = {column: _mean([row.get(column) for row in found]) for column in columns}
        return ranking(judged(rows, candidates, self.objective, self.constraints), self.maximise)

    # ---- time

    def used(self) -> float:
        """Return the seconds that all drivers of the study have worked, the present one up to now."""
        events = self.folder.ledger.events()
        total = float(driver_times(events)["seconds"])
        working = bool(events) and self.folder.is_driven() and events[-1].kind != "closed"
        return total + (max(0.0, time.time() - events[-1].time_ns / 1e9) if working else 0.0)

    def left(self) -> float:
        """Return the seconds that are left."""
        return 3600 * self.race.hours - self.used()

    def _run_costs(self, job: Job) -> list[LinkCost]:
        """Return the links of a job with one run. What they cost does not depend on the seed."""
        (run,) = job.runs
        config = run.config.model_copy(update={"seed": self.spec.seeds[0], "adapter": AdapterConfig()})
        known = config.model_dump_json()
        if known not in self._costs:
            self._costs[known] = link_costs(plan_run(config), self._flops)
        return [dataclasses.replace(cost, key=key) for key, cost in zip(run.keys, self._costs[known], strict=True)]

    def seconds(self, jobs: Sequence[Job]) -> float:
        """Return how long the links that are missing, and the runs that have not finished, will take."""
        outcomes, present = self.folder.ledger.outcomes(), self.store.keys()
        open_jobs = [job for job in jobs if not finished(outcomes, [job.runs[0].name])]
        costs = {cost.key: cost for job in open_jobs for cost in self._run_costs(job)}
        missing = [cost for key, cost in costs.items() if key not in present]
        examples = {speed_group(plan): plan for plan in (plan_run(job.runs[0].config) for job in open_jobs)}
        for group in {cost.speed_group for cost in missing} - self._speeds.keys():
            if self.resources.gpus_per_worker and not torch.cuda.is_available():
                self._speeds[group] = [GpuAssumption().sustained_flops]  # until links have been trained
            else:
                torch.set_num_threads(self.resources.cpus_per_worker)
                self._speeds[group] = [measure_flops(examples[group], self.resources.device())]
        training = seconds_here(missing, self._speeds, self.resources.workers)
        return self.overhead * (training + self.run_seconds * len(open_jobs)) / self.concurrent

    def measure(self) -> None:
        """Measure speeds and overhead of the rounds that are over."""
        jobs = [job for own in self.rounds() for job in self.jobs(own.name, own.candidates, own.seeds)]
        costs = {cost.key: cost for job in jobs for cost in self._run_costs(job)}
        self._speeds |= stored_speeds(self.folder.storage, list(costs.values()))
        trained, rest = 0.0, list[float]()
        for entry in read_events(list(self.folder.ledger.last("finished").values())):
            own = sum(row["seconds"] for row in entry["frames"]["tasks"] if not row["reused"])
            trained += own
            rest.append(max(0.0, entry["frames"]["runs"][0]["wall_seconds"] - own))
        if rest:
            self.run_seconds = STARTING_SECONDS + statistics.median(rest)
            starting, opened = 0.0, math.inf
            for event in self.folder.ledger.events("opened", "started"):
                starting += max(0.0, event.time_ns / 1e9 - opened)
                opened = event.time_ns / 1e9 if event.kind == "opened" else math.inf
            work = trained + self.run_seconds * len(rest)
            self.overhead = min(max(1.0, (self.used() - starting) * self.concurrent / work), MOST_OVERHEAD)

    def time_text(self, own: Round) -> str:
        """Return the predicted time of a round beside the time that is left."""
        return f"about {duration(own.seconds)} of {duration(max(0.0, self.left()))} left"

    def expected_runs(self) -> int:
        """Return the number of runs of the race: exact once the final has been decided, before that as planned."""
        rounds = self.rounds()
        runs = sum(len(own.candidates) * len(own.seeds) for own in rounds)
        if rounds and rounds[-1].name == FINAL:
            return runs + len(self.added())
        to_come = len(self.spec.seeds) * (SMALLEST[1] + len(REFERENCES))
        if rounds and rounds[-1].name == TUNING:
            drawn = len(rounds[-1].tuned) * (rounds[-1].points - 1)
            return runs + max(len(self.added()), drawn + 2 * len(self.adapters)) + to_come
        tuned = max(LEAST_TUNED, math.ceil(len(self.defaults) / 3))
        screened = 0 if rounds else len(self.defaults)
        return runs + screened + tuned * SMALLEST[0] + 2 * len(self.adapters) + to_come

    # ---- decisions

    def check(self) -> None:
        """Raise InputError if not even the smallest race fits into the time."""
        if not self.rounds() and (needed := sum(own.seconds for own in self.forecast(smallest=True))) > self.left():
            hours, methods = f"{1.05 * needed / 3600:.2g}", counted(len(self.defaults), "method")
            raise InputError(
                f"--hours {self.race.hours:g}: the smallest race of {methods} takes about {duration(needed)}; "
                f"give --hours {hours}, or fewer --methods, --seeds or optim.epochs"
            )

    def forecast(self, smallest: bool = False) -> list[Round]:
        """Return the whole race as it is planned now; who reaches the later rounds is not known."""
        first, mean = self._screening(), functools.cache(self._mean_seconds)
        methods = [Candidate(number, method) for number, method in enumerate(self.defaults)]
        # Any method may be promoted: a run takes as long as the mean of all methods.
        count = len(tuned_methods([Result(one, 0.0, 0.0) for one in methods], len(methods)))

        def tuning(points: int) -> float:
            return (count * points + len(REFERENCES)) * mean(TUNING)

        def final(number: int) -> float:
            runs = len(self.spec.seeds) * (number + len(REFERENCES))
            return runs * mean(FINAL)

        size: tuple[int, int] | None = SMALLEST
        if not smallest:
            left = self.left() - first.seconds
            size = largest(_sizes(), lambda size: tuning(size[0]) + final(size[1]), left)
        points, number = size or SMALLEST
        return [
            first,
            Round(TUNING, (), self.spec.seeds[:1], tuple(self.defaults)[:count], points, tuning(points)),
            Round(FINAL, (), self.spec.seeds, points=number, seconds=final(number)),
        ]

    def _mean_seconds(self, name: RoundName) -> float:
        """Return the mean time of a method's run, if it shares nothing with others."""
        methods = (Candidate(number, method) for number, method in enumerate(self.defaults))
        return statistics.fmean(self.seconds([job]) for job in self.jobs(name, methods, self.spec.seeds[:1]))

    def next_round(self) -> Round | None:
        """Return the next round after those of the ledger, all of whose runs have ended; None if the race is over."""
        rounds = self.rounds()
        if not rounds:
            return self._screening()
        self.measure()
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

    def _tuning(self, before: Round) -> Round:
        seeds, entrants = before.seeds, {one.number: one for one in before.candidates}
        ranked = self.results(SCREENING, entrants, seeds)
        if not ranked:
            raise InputError("no method finished the screening round: there is nothing to compare")
        tuned = tuned_methods(ranked, len(entrants))
        needed = {*REFERENCES, *self.referred}
        starters = tuple(one for one in before.candidates if one.method in tuned or one.method in needed)
        best = [result.candidate for result in ranked]
        references = [one for one in before.candidates if one.method in REFERENCES]

        def tuning(points: int) -> float:
            drawn = [
                Candidate(-1, method, values)
                for method in tuned
                for values in _points(self.space(method), points - 1, self.spec.search.seed)
            ]
            extra = 2 * len(self.adapters) * self.overhead * self.run_seconds / self.concurrent
            return self.seconds(self.jobs(TUNING, [*starters, *drawn], seeds)) + extra

        def final(count: int) -> float:
            return self.seconds(self.jobs(FINAL, [*best[:count], *references], self.spec.seeds))

        left = self.left()
        size = largest(_sizes(), lambda size: tuning(size[0]) + final(size[1]), left)
        points, count = size or _sizes()[0]
        why = f"the best {len(tuned)} of {len(entrants)} methods: {listed(tuned)}"
        why += "" if size else "; the time that is left is too short even for this"
        return Round(TUNING, starters, seeds, tuned, points, tuning(points), final(count), why)

    def _final(self) -> Round:
        known, seeds = self.candidates(), self.spec.seeds
        ranked = self.results(TUNING, known, seeds[:1])
        if not ranked:
            raise InputError("no candidate finished the tuning round: there is nothing to compare")
        references = [one for one in known.values() if one.method in REFERENCES and not one.values]

        def chosen(count: int) -> list[Candidate]:
            return list({one.number: one for one in [*finalists(ranked, count), *references]}.values())

        def final(count: int) -> float:
            return self.seconds(self.jobs(FINAL, chosen(count), seeds))

        fitting = largest(range(FINALISTS[0], FINALISTS[1] + 1), final, self.left())
        count = fitting or FINALISTS[0]
        best = finalists(ranked, count)
        why = f"the best {len(best)} of {counted(len(ranked), 'candidate')} by {self.objective}, and the references"
        why += "" if all(result.feasible for result in ranked[:1]) else "; none meets the constraints"
        why += "" if fitting else "; the time that is left is too short even for this"
        return Round(FINAL, tuple(chosen(count)), seeds, seconds=final(count), why=why)

    def _further_seed(self, finals: Sequence[Round]) -> Round | None:
        """Return the final with one more seed, if there is time for it."""
        if len(finals) > MORE_SEEDS:
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


def _mean(values: Sequence[float | None]) -> float:
    return statistics.fmean([float("nan") if value is None else value for value in values])


def plan_lines(race: Race) -> list[str]:
    """Return the rounds of a race with their predicted times, those that were decided first."""
    decided = race.rounds()
    rounds = [*decided, *race.forecast()[min(len(decided), 3) :]]
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
    return [*race.notes, race.split_note(), *lines]
