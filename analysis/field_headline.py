"""The headline of a study over one numeric config field, such as numbers of tasks: who is best where."""

from collections import Counter
from itertools import groupby
from typing import Any

import pandas as pd

from analysis.comparisons import comparable_sets
from analysis.groups import finished, short, varied_fields
from analysis.headline import (
    MORE_SEEDS,
    NEEDED,
    ONE_SEED,
    SHARED,
    Headline,
    common_seeds,
    estimate_text,
    more_seeds,
    older_note,
)
from analysis.names import field_title, on_all_data, ordered, title
from analysis.stats import NO_SPREAD, ROUNDING, t_interval
from analysis.study import Study
from cl2r.metrics import FIRST_ACCURACY, REINDEXED_ACCURACY, SERVICE_ACCURACY, Metric
from cl2r.runtime.text import counted, listed


def compared_field(study: Study, name: str) -> Headline:
    """Return the headline of runs over one numeric config field: which method is best at each of its values."""
    runs, (field,) = study.runs, varied_fields(study.runs)
    if older := older_note(runs):
        return Headline(name, older, "")
    whole = runs["method.name"].astype(str).map(on_all_data)
    runs = runs if whole.all() else runs[~whole]
    done = runs[finished(runs) & runs[[field, *NEEDED]].notna().all(axis=1)]
    shared = [column for column in SHARED if column in done and column != field]
    if done.empty or done.duplicated(["method.name", field, "seed"]).any():
        return Headline(name, "The runs cannot be ranked: see the tables.", "")
    if differing := [column for column in shared if (done.groupby(field)[column].nunique(dropna=False) > 1).any()]:
        return Headline(name, f"The runs differ in {listed(differing)}: they are not ranked.", "")
    tables = {value: common_seeds(own) for value, own in done.groupby(field, sort=True)}
    tables = {value: own for value, own in tables.items() if len(own)}
    if not tables or any(len(comparable_sets(own)) != 1 for own in tables.values()):
        return Headline(name, "The runs cannot be ranked: see the tables.", "")
    means = {value: own.groupby("method.name")[SERVICE_ACCURACY.name].mean() for value, own in tables.items()}
    leading = {value: [str(method) for method in own.index[own > own.max() - ROUNDING]] for value, own in means.items()}
    wins = Counter(method for methods in leading.values() for method in methods)
    best = {value: max(methods, key=lambda method: wins[method]) for value, methods in leading.items()}
    left = "" if sum(map(len, tables.values())) == len(done) else " Only seeds that all methods have at a value count."
    every = {str(method) for method in runs["method.name"]}
    lost = [
        f"{title(method)} at {field_title(field)}={short(value)}"
        for value in sorted(runs[field].dropna().unique())
        for method in ordered(every - set(done.loc[done[field] == value, "method.name"].astype(str)))
    ]
    apart = [short(value) for value in done[field].drop_duplicates().sort_values() if value not in tables]
    left += f" Methods have no seed in common at {field_title(field)}={listed(apart)}." if apart else ""
    left += f" Without a finished run: {listed(lost)}." if lost else ""
    for value, methods in leading.items():
        equal = [title(method) for method in ordered(methods) if method != best[value]]
        verb = "serves" if len(equal) == 1 else "serve"
        left += f" At {field_title(field)}={short(value)} {listed(equal)} {verb} equally." if equal else ""
    return Headline(
        name, _found_over(field, tables, best, len(every)), *_certainty_over(study, field, tables, best, left)
    )


def _found_over(field: str, tables: dict[Any, pd.DataFrame], best: dict[Any, str], methods: int) -> str:
    """Say which method serves best at which values of a field, beside re-indexing and never upgrading."""
    symbol, values = field_title(field), list(tables)

    def served(value: Any) -> str:
        return estimate_text(tables[value][tables[value]["method.name"] == best[value]], SERVICE_ACCURACY.name)

    def level(value: Any, metric: Metric) -> float:
        return float(tables[value].loc[tables[value]["method.name"] == best[value], metric.name].astype(float).mean())

    def beside(*some: Any) -> str:
        indexed, first = (
            listed([f"{level(v, metric):.3f}" for v in some]) for metric in (REINDEXED_ACCURACY, FIRST_ACCURACY)
        )
        return f"re-indexing it would reach {indexed}, its first model alone {first}"

    first, last = values[0], values[-1]
    unpaid = [short(value) for value in values if level(value, SERVICE_ACCURACY) <= level(value, FIRST_ACCURACY)]
    end = f" No upgrade pays without re-indexing at {symbol}={listed(unpaid)}." if unpaid else ""
    if len(values) == 1:
        start = f"{title(best[last])} serves best" if methods > 1 else f"{title(best[last])} serves"
        return f"{start} at {symbol}={short(last)}: service accuracy {served(last)}; {beside(last)}.{end}"
    if len(set(best.values())) == 1:
        change = level(last, SERVICE_ACCURACY) - level(first, SERVICE_ACCURACY)
        move = "falls" if change < -ROUNDING else "rises" if change > ROUNDING else "goes"
        who = (
            f"{title(best[last])} serves best at every {symbol} from {short(first)} to {short(last)}: service accuracy"
        )
        start = who if methods > 1 else f"Service accuracy of {title(best[last])}"
        course = f"{move} from {served(first)} at {symbol}={short(first)} to {served(last)} at {symbol}={short(last)}"
        return f"{start} {course}; {beside(first, last)}.{end}"
    parts = [
        f"{title(method)} {'serves best ' if not number else ''}{_where(symbol, values, own)} "
        f"({served(own[-1])}{'' if len(own) == 1 else f' at {symbol}={short(own[-1])}'})"
        for number, (method, own) in enumerate(_stretches(best))
    ]
    return f"{'; '.join(parts)}; at {symbol}={short(last)} {beside(last)}.{end}"


def _stretches(best: dict[Any, str]) -> list[tuple[str, list[Any]]]:
    """Return the best methods in the order of the values, each with the values in a row at which it is best."""
    return [(method, [value for value, _ in own]) for method, own in groupby(best.items(), key=lambda item: item[1])]


def _where(symbol: str, values: list[Any], own: list[Any]) -> str:
    """Return `at T=2`, `up to T=5`, `from T=5 on` or `from T=3 to 5`; `own` are some of the `values` in a row."""
    if len(own) == 1:
        return f"at {symbol}={short(own[0])}"
    if own[0] == values[0]:
        return f"up to {symbol}={short(own[-1])}"
    return f"from {symbol}={short(own[0])} " + ("on" if own[-1] == values[-1] else f"to {short(own[-1])}")


def _certainty_over(
    study: Study, field: str, tables: dict[Any, pd.DataFrame], best: dict[Any, str], left: str
) -> tuple[str, str]:
    """Say at which values the lead over the next method is more than chance, and what would make it surer."""
    command, cost = more_seeds(study)
    surer = f"; {MORE_SEEDS} more seeds{cost} would make this surer" if command else ""
    counts = sorted({int(own["seed"].nunique()) for own in tables.values()})
    if counts[-1] < 2:
        return f"{ONE_SEED}{surer}.{left}", command
    seeds = counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    found: dict[bool, list[str]] = {True: [], False: []}
    for value, own in tables.items():
        served = own.pivot(index="seed", columns="method.name", values=SERVICE_ACCURACY.name).astype(float)
        others = served.drop(columns=best[value])
        if len(others.columns):
            lead = t_interval(served[best[value]] - others[others.mean().idxmax()])
            found[bool(lead.low > ROUNDING and lead.note != NO_SPREAD)].append(short(value))
    symbol, known = field_title(field), sum(map(len, found.values()))
    if not known:
        return f"Intervals are over {seeds}{surer}.{left}", command
    parts = [
        f"{word} at {symbol}={listed(found[clear])}"
        for clear, word in ((True, "clear"), (False, "not clear"))
        if found[clear]
    ]
    if known > 1 and len(parts) == 1:
        parts = [f"{'clear' if found[True] else 'not clear'} at {'every' if found[True] else 'any'} {symbol}"]
    return f"Over {seeds} the lead over the next method is {', '.join(parts)}{surer}.{left}", command
