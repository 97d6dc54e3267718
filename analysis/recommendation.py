"""What a race of methods recommends, from the frames of the study and its specification.

The choice is made on tuning pairs, as in the race itself; report pairs only say how good it is and how sure.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.comparisons import LEVEL, paired_differences
from analysis.groups import short
from analysis.names import title
from analysis.stats import Estimate, t_interval
from analysis.study import Study
from analysis.tables.table import EMPTY, Cell, Table, command_line_names, interval_cell, metric_cell, number_cell
from cl2r.config.methods import METHODS
from cl2r.errors import InputError
from cl2r.metrics import AC, COMPATIBILITY, METRICS, Metric
from cl2r.runtime.text import counted, duration, listed
from cl2r.study.constraints import Constraint, seed_mean
from cl2r.study.race import FINAL, REFERENCES, SCREENING, TUNING, Candidate, contenders, judged, knobs_of, ranking

ROUNDS = (SCREENING, TUNING, FINAL)
WORDS = {"method.lambda_base": "λ_base {}", "memory.per_class": "{} images per class", "head.centre": "centred b(x)"}


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What to use and how sure that is: a sentence, further sentences, and the finalists as a table.

    `candidate` and `run` are the number of the choice and its run with the first seed; None if nothing is recommended.
    `alike` are the finalists that cannot be told from it.
    """

    sentence: str
    details: tuple[str, ...]
    table: Table | None
    race: tuple[str, ...]
    candidate: int | None = None
    run: str | None = None
    alike: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.details])


def recommendation(study: Study) -> Recommendation:
    """Return what the race recommends. Raise InputError if the study is no race."""
    if not study.specification.get("race"):
        raise InputError(f"{study.name} is no race of methods; `cl2r recommend` runs one")
    final = Final(study)
    if final.unknown:
        return Recommendation(f"Cannot tell yet: {final.unknown}.", (), None, race_lines(study))
    return final.recommendation()


class Final:
    """The last round: candidates that finished it with the seeds of the specification.

    Further seeds count if all of these candidates have them.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        search = study.specification["search"]
        self.constraints = [Constraint.parse(metric, text) for metric, text in search["constraints"].items()]
        self.metric = METRICS.objectives()[search["objectives"][0]]
        rows, done = study.runs[study.runs["variant"] == FINAL], study.finished
        first: dict[int, dict[str, Any]] = {int(row["trial"]): row for row in rows.to_dict("records")}  # type: ignore[misc]
        defaults = {int(number) for number in study.runs.loc[study.runs["variant"] == SCREENING, "trial"]}
        known = {
            number: Candidate(number, str(row["method.name"]), {} if number in defaults else _knobs(row))
            for number, row in first.items()
        }
        references = {one.method: number for number, one in known.items() if not one.values}
        self.settings = {
            number: "" if references.get(one.method) == number and one.method in REFERENCES else settings_text(row)
            for (number, row), one in zip(first.items(), known.values(), strict=True)
        }
        self.names = {number: self.name(title(one.method), number) for number, one in known.items()}
        done = done[done["variant"] == FINAL]
        seeds = {number: {int(seed) for seed in done.loc[done["trial"] == number, "seed"]} for number in known}
        asked = {*study.specification.get("seeds", rows["seed"])}  # studies that were joined may differ in seeds
        self.lacking = {number: absent for number, own in seeds.items() if (absent := sorted(asked - own))}
        self.candidates = {number: one for number, one in known.items() if number not in self.lacking}
        common = set.intersection(*(seeds[number] for number in self.candidates)) if self.candidates else set()
        self.runs = done[done["trial"].isin(list(self.candidates)) & done["seed"].isin(list(common))]
        self.seeds = len(common)
        self.references = {name: references[name] for name in REFERENCES if references.get(name) in self.candidates}
        referred = {one.reference for one in self.constraints if one.reference}
        self.unknown = "" if self.candidates else "no final round has finished"
        lost = sorted(name for name in referred if references.get(name) not in self.candidates)
        if self.candidates and lost:
            self.unknown = f"a constraint refers to {lost[0]}, which has not finished the final; run the command again"
        columns = [self.metric.column("tuning"), *(one.column for one in self.constraints)]
        means = {number: {column: self.tuning(number, column) for column in columns} for number in self.candidates}
        results = judged(means, self.candidates, columns[0], self.constraints)
        self.missed = {number: list[str]() for number in self.candidates}
        for one in self.constraints:
            for result in judged(means, self.candidates, columns[0], [one]):
                self.missed[result.candidate.number] += [] if result.feasible else [str(one)]
        self.bounds = referred - {*contenders(study.specification["race"]["methods"])}
        own = [result for result in results if result.candidate.method not in self.bounds]
        self.ranked = ranking(own, self.metric.better == "higher")
        self.feasible = [result.candidate.number for result in self.ranked if result.feasible]
        self.shown = [*(one.candidate.number for one in self.ranked)]
        self.shown += [result.candidate.number for result in results if result.candidate.method in self.bounds]

    def name(self, method: str, number: int) -> str:
        """Return the method and the settings of a candidate, e.g. `CL²R with λ_base 3`."""
        return f"{method} with {self.settings[number]}" if self.settings[number] else method

    def label(self, number: int) -> str:
        """Return the name in the table, which says why a candidate cannot be recommended."""
        if self.candidates[number].method in self.bounds:
            return f"{self.names[number]} (only a bound)"
        missed = self.missed[number]
        return f"{self.names[number]} (misses {listed(missed)})" if missed else self.names[number]

    def tuning(self, number: int, column: str) -> float:
        """Return the mean of a column over seeds; NaN if one has no value."""
        rows = self.runs.loc[self.runs["trial"] == number, [column]].astype(float)
        return seed_mean([{column: value} for value in rows[column]], column)

    def values(self, number: int, metric: str) -> pd.Series:
        """Return a metric on the report pairs by seed."""
        rows = self.runs[self.runs["trial"] == number].set_index("seed")
        return rows[metric].astype(float).sort_index()

    def estimate(self, number: int, metric: str) -> Estimate:
        """Return mean and t-interval over seeds, on the report pairs; the interval is clipped to possible values."""
        found, (least, most) = t_interval(self.values(number, metric).to_numpy()), METRICS[metric].bounds
        return replace(found, low=max(found.low, least), high=min(found.high, most)) if found.n > 1 else found

    def difference(self, number: int, other: int) -> Estimate:
        """Return the paired difference of the objective over seeds."""
        gap = self.values(number, self.metric.name) - self.values(other, self.metric.name)
        return t_interval(gap.to_numpy())

    def recommendation(self) -> Recommendation:
        """Return the choice, or why there is none."""
        table, lines = self.table(), race_lines(self.study)
        if not self.feasible:
            why = f"no finalist has a value of {self.metric.head} on tuning pairs"
            if self.ranked:
                asked = listed([str(one) for one in self.constraints])
                why = f"no finalist meets {asked}; {self.names[self.ranked[0].candidate.number]} comes nearest"
            return Recommendation(f"Nothing to recommend: {why}.", self._details(None), table, lines)
        best = self.feasible[0]
        alike, ahead = ([self.names[number] for number in numbers] for numbers in self._rivals(best))
        details = self._details(best)
        if self._kept(best):
            best, sentence = self._no_upgrade(best)
            alike = []
        else:
            which = (
                "every other finalist that meets the constraints"
                if any(self.missed.values())
                else "every other finalist"
            )
            sure = f"; it is better than {which} over {counted(self.seeds, 'seed')}" if len(self.feasible) > 1 else ""
            sure = "" if ahead else sure
            if alike:
                sure = f"; {counted(self.seeds, 'seed')} cannot tell it from {listed(alike)}"
            if ahead:
                sure += f"; the tuning images chose it, but here {listed(ahead)} did better"
            if "gallery_items_touched" in self.runs and (self.values(best, "gallery_items_touched") > 0).any():
                sure += "; every upgrade rewrites the vectors of the gallery"
            sentence = f"Use {self._typed(best)}: {self._score(best)} {self._where()}{sure}."
        run = self.runs[self.runs["trial"] == best].sort_values("seed")["run"].iloc[0]
        return Recommendation(sentence, details, table, lines, best, str(run), tuple(alike))

    def _typed(self, number: int) -> str:
        """Return the name of a candidate, with what the command line calls its method if that is another word."""
        method = self.candidates[number].method
        known = title(method)
        return self.name(known if known.casefold() == method else f"{known} ({method})", number)

    def _score(self, number: int) -> str:
        text = f"{self.metric.head} {self.metric.text(self.estimate(number, self.metric.name).mean)}"
        er = self.references.get(REFERENCES[0])
        if er is None or er == number:
            return text
        gap = self.difference(number, er)
        ends = f" [{gap.low:+.3f}, {gap.high:+.3f}]" if gap.low < gap.high else ""
        return f"{text}, {gap.mean:+.3f}{ends} against ER over {counted(gap.n, 'seed')},"

    def _where(self) -> str:
        split = self.runs["eval.split"].iloc[0] if "eval.split" in self.runs else "images"
        return "on classes the search never saw" if split == "classes" else "on images the search never saw"

    def _rivals(self, best: int) -> tuple[list[int], list[int]]:
        """Return the feasible finalists that cannot be told from the best, and those that are better: paired t-tests.

        The level is 5 %. There is no correction for their number: the best is separated only if every single test says
        so.
        """
        if len(self.feasible) < 2:
            return [], []
        runs = self.runs[self.runs["trial"].isin(self.feasible)]
        tests = paired_differences(runs, self.metric.name, ("trial",), baseline=best)
        gain = tests["difference"] * (1.0 if self.metric.better == "higher" else -1.0)
        told = tests["p"] < LEVEL
        chosen = tests["one"].astype(int)
        return chosen[~told].tolist(), chosen[told & (gain > 0)].tolist()

    def _model(self, number: int, which: str) -> float:
        """Return the mean of the first model, or of the last one with a re-indexed gallery."""
        return self.estimate(number, f"{which}_{self.metric.matrix}").mean

    def _kept(self, best: int) -> bool:
        """Return whether the choice serves no better than its first model, never upgraded, on tuning pairs.

        No other feasible finalist serves better there.
        """
        if not self.metric.name.startswith("service_"):
            return False
        first = METRICS[f"first_{self.metric.matrix}"].column("tuning")
        return self.tuning(best, self.metric.column("tuning")) <= self.tuning(best, first)

    def _no_upgrade(self, best: int) -> tuple[int, str]:
        """Return the feasible candidate with the best last model, on tuning pairs, and the sentence about it."""
        last = METRICS[f"reindexed_{self.metric.matrix}"].column("tuning")
        learned = max(self.feasible, key=lambda number: self.tuning(number, last))
        first, again = self._model(best, "first"), self._model(learned, "reindexed")
        start = (
            "Do not upgrade without re-indexing: on tuning pairs nothing beats never upgrading; "
            f"{self._where()} {self.names[best]} has {self.metric.head} {self._model(best, 'service'):.3f}, its first "
            f"model alone {first:.3f}"
        )
        reached = f"{self._typed(learned)} then reaches {again:.3f}"
        if again <= first:
            return learned, f"{start}; re-indexing does not help either: {reached}."
        return learned, f"{start}; re-indexing is the better choice: {reached}."

    def _cost(self) -> str:
        """Return what re-indexing costs: vectors, and seconds as measured."""
        runs, tasks = self.study.finished, self.study.tasks
        vectors = "one vector per gallery image"
        if "gallery_items_touched" in runs:  # a method that maps its gallery says how large it is
            maps = runs[(runs["gallery_items_touched"].fillna(0) > 0) & (runs["tasks"] > 1)]
            if len(maps):
                vectors = f"{int(maps['gallery_items_touched'].iloc[0]) // (int(maps['tasks'].iloc[0]) - 1):,} vectors"
        seconds = tasks.loc[tasks["run"].isin(self.runs["run"]), "extract_seconds"].median()
        taken = "" if pd.isna(seconds) else f", {duration(float(seconds))} for the open images of this study"
        return f"Re-indexing computes {vectors} at every upgrade{taken}."

    def _details(self, best: int | None) -> tuple[str, ...]:
        lines = []
        if all(self.estimate(number, AC.name).mean <= 0 for number in self.candidates):
            lines.append(
                "Nothing is compatible: no model searches an older gallery better than the model that indexed it "
                "(AC 0 of all finalists)."
            )
        if best is not None and self.metric.name.startswith("service_") and not self._kept(best):
            first, again = self._model(best, "first"), self._model(best, "reindexed")
            gap = first - self._model(best, "service")
            lines.append(
                f"Never upgrading would give {first:.3f} ({gap:+.3f}), re-indexing at every upgrade {again:.3f}."
            )
        lines.append(self._cost())
        for number, lost in self.lacking.items():
            seeds = f"seed{'s' if len(lost) > 1 else ''} {listed([str(seed) for seed in lost])}"
            lines.append(f"{self.names[number]} is left out: it has no final run with {seeds}.")
        if self.seeds < 2:
            lines.append("One seed: no interval, no test.")
        return tuple(lines)

    def table(self) -> Table:
        """Return the finalists, best first, and the two references that train nothing."""
        shown = [metric for metric in self._metrics() if self.runs[metric.name].notna().any()]
        er = self.references.get(REFERENCES[0])
        costs = {"train_seconds": "training s", "stored_bytes": "stored MB", "adapter_flops": "adapter FLOPs"}
        costs |= {"gallery_items_touched": "vectors rewritten"}
        costs = {name: head for name, head in costs.items() if name in self.runs}
        columns = ["candidate", *(metric.head for metric in shown), *(f"− {title(name)}" for name in self.references)]
        rows, data = [], []
        for number in self.shown:
            cells, values = [Cell(self.label(number))], {"trial": number, "candidate": self.label(number)}
            values["method.name"] = self.candidates[number].method
            for metric in shown:
                found = self.estimate(number, metric.name)
                cells.append(interval_cell(metric.name, found.mean, found.low, found.high))
                values |= {metric.name: found.mean, f"{metric.name}_low": found.low, f"{metric.name}_high": found.high}
            for name, reference in self.references.items():
                gap = self.difference(number, reference)
                ends = f" [{gap.low:+.3f}, {gap.high:+.3f}]" if gap.low < gap.high else ""
                cells.append(Cell(EMPTY) if number == reference else Cell(f"{gap.mean:+.3f}{ends}", gap.mean))
                values |= {f"minus_{name}": gap.mean, f"minus_{name}_low": gap.low, f"minus_{name}_high": gap.high}
            for name in costs:
                mean = float(self.values(number, name).mean()) / (1e6 if name == "stored_bytes" else 1)
                cells.append(number_cell(mean, ",.1f" if name == "stored_bytes" else ",.0f"))
                values[name] = mean
            rows.append(tuple(cells))
            data.append(values)
        for label, which in (("never upgrade (ER)", "first"), ("re-index (ER)", "reindexed")) if er is not None else ():
            cells = [Cell(label)]
            for metric in shown:
                service = metric.name.startswith("service_")
                column = f"{which}_{metric.matrix}"
                value = self.estimate(er, column).mean if service and er is not None else math.nan
                cells.append(metric_cell(metric.name, value, math.nan))
            rows.append((*cells, *[Cell(EMPTY)] * (len(columns) - len(cells) + len(costs))))
            data.append({"candidate": label})
        notes = [
            f"Report pairs; mean [95 % t-interval] over {counted(self.seeds, 'seed')}; differences are paired.",
            "Intervals are over seeds, not over classes: other classes may differ by more.",
            "The first seed also served the earlier rounds, and all seeds of the final chose the winner, on tuning "
            "pairs: differences are somewhat optimistic.",
        ]
        if any(self.missed[number] for number in self.shown):
            notes.append("Constraints are judged on tuning pairs; a finalist that misses one cannot be recommended.")
        heading = f"Finalists, best first by {self.metric.head} on tuning pairs"
        hints = command_line_names(self.candidates[number].method for number in self.shown)
        heads, count = (*columns, *costs.values()), len(rows) - len(self.shown)
        return Table(heads, tuple(rows), pd.DataFrame(data), heading, tuple(notes), references=count, hints=hints)

    def _metrics(self) -> list[Metric]:
        wanted = ("service_accuracy", "service_recall", "reindexed_accuracy", *(one.name for one in COMPATIBILITY))
        chosen = [METRICS[name] for name in dict.fromkeys([self.metric.name, *wanted])]
        return [metric for metric in chosen if metric.name in self.runs]


def _knobs(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the race chooses of the method of a row of `runs`."""
    method = str(row["method.name"])
    if method.partition("+")[0] not in METHODS:
        return {}
    return {name: row[name] for name in knobs_of(method) if name in row and not pd.isna(row[name])}


def settings_text(row: Mapping[str, Any]) -> str:
    """Return the settings that a race chooses in words, e.g. `λ_base 3 and 20 images per class`."""
    words = []
    for name, value in _knobs(row).items():
        if name == "head.centre":
            words += [WORDS[name]] if value else []
        elif name == "memory.per_class" and not value:
            words.append("no memory")
        else:
            text = f"{value:.3g}" if isinstance(value, float) else short(value)
            words.append(WORDS.get(name, f"{name} {{}}").format(text))
    return listed(words) if words else ""


def race_lines(study: Study) -> tuple[str, ...]:
    """Return one line per round, and the time used."""
    lines = []
    for name in ROUNDS:
        rows = study.runs[study.runs["variant"] == name]
        if len(rows):
            done = rows[rows["status"] == "finished"]
            tasks = int(done["tasks"].max()) if len(done) else 0
            counts = f"{counted(rows['trial'].nunique(), 'candidate')}, {counted(rows['seed'].nunique(), 'seed')}"
            epochs = sorted({int(value) for value in rows["optim.epochs"].dropna()})
            lost = f", {len(rows) - len(done)} failed" if len(done) < len(rows) else ""
            span = "–".join(str(value) for value in dict.fromkeys((epochs[0], epochs[-1])))
            lines.append(f"{name}: {counts}, {counted(tasks, 'task')}, {span} epochs{lost}")
    hours, seconds = study.specification["race"]["hours"], study.about.get("seconds")
    if seconds is not None:
        lines.append(f"time: {duration(float(seconds))} of {duration(3600 * hours)}")
    return tuple(lines)
