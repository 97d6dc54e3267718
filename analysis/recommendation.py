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
from analysis.stats import Estimate, t_interval
from analysis.study import Study
from analysis.tables.table import EMPTY, Cell, Table, interval_cell, metric_cell, number_cell
from cl2r.config.methods import METHODS
from cl2r.errors import InputError
from cl2r.metrics import AC, COMPATIBILITY, METRICS, Metric
from cl2r.runtime.text import counted, duration, listed
from cl2r.study.constraints import Constraint
from cl2r.study.race import FINAL, REFERENCES, SCREENING, TUNING, Candidate, judged, knobs_of, ranking

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
    done = study.finished
    finals = done[done["variant"] == FINAL]
    seeds = finals.groupby("trial")["seed"].nunique()
    if finals.empty or not (finals["method.name"] == REFERENCES[0]).any():
        return Recommendation("Cannot tell yet: no final round has finished.", (), None, race_lines(study))
    final = Final(study, finals[finals["trial"].isin(seeds.index[seeds == seeds.max()])])
    return final.recommendation()


class Final:
    """The last round: candidates that finished it with all seeds."""

    def __init__(self, study: Study, runs: pd.DataFrame) -> None:
        self.study, self.runs = study, runs
        search = study.specification["search"]
        self.constraints = [Constraint.parse(metric, text) for metric, text in search["constraints"].items()]
        self.metric = METRICS.objectives()[search["objectives"][0]]
        self.seeds = runs["seed"].nunique()
        first: dict[int, dict[str, Any]] = {int(row["trial"]): row for row in runs.to_dict("records")}  # type: ignore[misc]
        defaults = {int(number) for number in study.runs.loc[study.runs["variant"] == SCREENING, "trial"]}
        self.candidates = {
            number: Candidate(number, str(row["method.name"]), {} if number in defaults else _knobs(row))
            for number, row in first.items()
        }
        self.words = {number: settings_text(row) for number, row in first.items()}
        columns = {self.metric.column("tuning"), *(one.column for one in self.constraints)}
        means = runs.groupby("trial")[sorted(columns)].mean()
        rows = {int(str(number)): {str(k): float(v) for k, v in row.items()} for number, row in means.iterrows()}
        results = judged(rows, self.candidates, self.metric.column("tuning"), self.constraints)
        self.ranked = ranking(results, self.metric.better == "higher")
        references = {one.method: number for number, one in self.candidates.items() if not one.values}
        self.references = {name: references[name] for name in REFERENCES if name in references}

    def name(self, number: int, settings: bool = True) -> str:
        """Return method and settings; a reference with its defaults has its method's name alone."""
        method = self.candidates[number].method
        if number in self.references.values() or not settings or not self.words[number]:
            return method
        return f"{method} with {self.words[number]}"

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
        best = self.ranked[0].candidate.number if self.ranked else None
        if best is None or not self.ranked[0].feasible:
            asked = listed([str(one) for one in self.constraints])
            nearest = "" if best is None else f"; {self.name(best)} comes nearest"
            sentence = f"Nothing to recommend: no finalist meets {asked}{nearest}."
            return Recommendation(sentence, self._details(None), table, lines)
        alike, ahead = ([self.name(number) for number in numbers] for numbers in self._rivals(best))
        score, where = self._score(best), self._where()
        others = [number for number in self.candidates if number != best]
        if self._kept():
            sentence = self._no_upgrade(best)
        else:
            sure = f"; it is better than every other finalist over {counted(self.seeds, 'seed')}" if others else ""
            sure = "" if ahead else sure
            if alike:
                sure = f"; {counted(self.seeds, 'seed')} cannot tell it from {listed(alike)}"
            if ahead:
                sure += f"; the tuning images chose it, but here {listed(ahead)} did better"
            sentence = f"Use {self.name(best)}: {score} {where}{sure}."
        run = self.runs[self.runs["trial"] == best].sort_values("seed")["run"].iloc[0]
        return Recommendation(sentence, self._details(best), table, lines, best, str(run), tuple(alike))

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
        """Return the finalists that cannot be told from the best, and those that are better: paired t-tests, 5 %.

        There is no correction for their number: the best is separated only if every single test says so.
        """
        if len(self.candidates) < 2:
            return [], []
        tests = paired_differences(self.runs, self.metric.name, ("trial",), baseline=best)
        gain = tests["difference"] * (1.0 if self.metric.better == "higher" else -1.0)
        told = tests["p"] < LEVEL
        chosen = tests["one"].astype(int)
        return chosen[~told].tolist(), chosen[told & (gain > 0)].tolist()

    def _model(self, number: int, which: str) -> float:
        """Return the mean of the first model, or of the last one with a re-indexed gallery."""
        return self.estimate(number, f"{which}_{self.metric.matrix}").mean

    def _kept(self) -> bool:
        """Return whether no finalist serves better than the first model that is never upgraded."""
        if not self.metric.name.startswith("service_") or self._first() is None:
            return False
        served = max(self.estimate(number, self.metric.name).mean for number in self.candidates)
        return served <= (self._first() or -math.inf)

    def _first(self) -> float | None:
        er = self.references.get(REFERENCES[0])
        return None if er is None else self._model(er, "first")

    def _no_upgrade(self, best: int) -> str:
        first, again = self._first() or math.nan, self._model(best, "reindexed")
        start = f"Do not upgrade without re-indexing: nothing beats never upgrading ({self.metric.head} {first:.3f})"
        if again <= first:
            return (
                f"{start}, and with a re-indexed gallery the last model of {self.name(best)} reaches {again:.3f} only."
            )
        return f"{start}; re-indexing is the better choice: {self.name(best)} then reaches {again:.3f}."

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
        if best is not None and not self._kept() and self._first() is not None:
            gain = self.estimate(best, self.metric.name).mean - (self._first() or 0.0)
            if self.metric.name.startswith("service_"):
                again = self._model(best, "reindexed")
                kept = f"Never upgrading would give {self._first():.3f} ({-gain:+.3f})"
                lines.append(f"{kept}, re-indexing at every upgrade {again:.3f}.")
        lines.append(self._cost())
        if self.seeds < 2:
            lines.append("One seed: no interval, no test.")
        return tuple(lines)

    def table(self) -> Table:
        """Return the finalists, best first, and the two references that train nothing."""
        shown = [metric for metric in self._metrics() if self.runs[metric.name].notna().any()]
        er, order = self.references.get(REFERENCES[0]), [result.candidate.number for result in self.ranked]
        costs = {"train_seconds": "training s", "stored_bytes": "stored MB", "adapter_flops": "adapter FLOPs"}
        costs |= {"gallery_items_touched": "vectors rewritten"}
        costs = {name: head for name, head in costs.items() if name in self.runs}
        columns = ["candidate", *(metric.head for metric in shown), *(f"− {name}" for name in self.references)]
        rows, data = [], []
        for number in order:
            cells, values = [Cell(self.name(number))], {"trial": number, "candidate": self.name(number)}
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
        for label, which in (("never upgrade", "first"), ("re-index (ER)", "reindexed")) if er is not None else ():
            cells = [Cell(label)]
            for metric in shown:
                service = metric.name.startswith("service_")
                column = f"{which}_{metric.matrix}"
                value = self.estimate(er, column).mean if service and er is not None else math.nan
                cells.append(metric_cell(metric.name, value, math.nan))
            rows.append((*cells, *[Cell(EMPTY)] * (len(columns) - len(cells) + len(costs))))
            data.append({"candidate": label})
        notes = [f"Report pairs; mean [95 % t-interval] over {counted(self.seeds, 'seed')}; differences are paired."]
        title = f"Finalists, best first by {self.metric.head} on tuning pairs"
        return Table((*columns, *costs.values()), tuple(rows), pd.DataFrame(data), title, tuple(notes))

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
