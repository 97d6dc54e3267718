"""The race of methods on the page: who reached which round, and what the finalists reached."""

import math
from dataclasses import dataclass
from typing import Any

from analysis.names import NEUTRAL, method_style, title
from analysis.recommendation import ROUNDS, Final, recommendation, settings_text
from analysis.report.figures import SYMBOLS, Figure, Trace, View, axes, plain_text
from analysis.report.page import ShownTable, floats, shown_table, significant
from analysis.report.sweep_figures import Row, Rows, interval_figure
from analysis.study import Study
from analysis.tables.references import NEVER, REINDEX, SOURCE
from cl2r.metrics import METRICS


@dataclass(frozen=True)
class RaceSection:
    """The section of the page: lines of text, and the finalists."""

    lines: tuple[str, ...]
    table: ShownTable | None


def race_section(study: Study) -> RaceSection:
    """Return the section of a race."""
    found = recommendation(study)
    return RaceSection(found.race, shown_table(found.table, "finalists") if found.table is not None else None)


def race_figures(study: Study) -> list[Figure]:
    """Return the two figures of the first screen: what the finalists reached, and the rounds."""
    return [figure for figure in (finalists_figure(study), rounds_figure(study)) if figure.views]


def finalists_figure(study: Study) -> Figure:
    """Return the finalists, best first on the tuning pairs, with their intervals on the report pairs."""
    final, chosen = Final(study), recommendation(study).candidate
    metric, rows = final.metric, []
    for number in final.shown:
        found, style = final.estimate(number, metric.name), method_style(final.candidates[number].method)
        symbol = SYMBOLS[style.marker] + ("-open" if style.hollow else "")
        label = plain_title(final, number)
        rows.append(Row(label, found.mean, found.low, found.high, style.colour, symbol, number == chosen))
    lines, er = {}, final.references.get(SOURCE)
    if er is not None and metric.name.startswith("service_"):
        for label, which in ((NEVER, "first"), (REINDEX, "reindexed")):
            lines[f"{label} ({title(SOURCE)})"] = final.estimate(er, f"{which}_{metric.matrix}").mean
    caption = "Best on the tuning pairs first; values on the report pairs"
    caption += f", mean over {final.seeds} seeds with 95 % interval." if final.seeds > 1 else ". One seed: no interval."
    caption += " Bold: recommended." if chosen is not None else ""
    known = tuple(row for row in rows if not math.isnan(row.mean))
    return interval_figure("finalists", f"Finalists: {metric.head}", caption, [Rows("", known, lines)], metric)


def plain_title(final: Final, number: int) -> str:
    """Return the method, with the number of the candidate if several finalists have the method."""
    method = final.candidates[number].method
    several = sum(one.method == method for one in final.candidates.values()) > 1
    return f"{title(method)}, candidate {number}" if several else title(method)


def rounds_figure(study: Study) -> Figure:
    """Return the objective of every candidate over the rounds: a line if it was promoted, else a grey dot."""
    metric = METRICS.objectives()[study.specification["search"]["objectives"][0]]
    runs = study.finished
    caption = (
        f"Mean {metric.head} over seeds on the tuning pairs. Lines are promoted candidates, grey dots the others. "
        "Rounds train for different times: only candidates of one round can be compared."
    )
    figure = Figure("race-rounds", "Rounds", caption, ())
    if runs.empty:
        return figure
    runs = runs.assign(value=floats(runs[metric.column("tuning")]))
    means = runs.groupby(["trial", "variant"])["value"].mean().unstack().reindex(columns=list(ROUNDS))
    firsts: dict[int, dict[str, Any]] = {int(row["trial"]): row for row in runs.to_dict("records")}  # type: ignore[misc]
    dropped: Trace = {"type": "scatter", "mode": "markers", "x": [], "y": [], "text": []}
    dropped |= {"marker": {"color": NEUTRAL, "size": 6}, "hovertemplate": "%{text}: %{y:.3f}<extra></extra>"}
    lines: list[Trace] = []
    ends: list[tuple[float, str]] = []
    for number, row in means.iterrows():
        trial, known = int(str(number)), row.dropna()
        if known.empty:
            continue
        method = str(firsts[trial]["method.name"])
        label = plain_text(" with ".join(filter(None, [title(method), settings_text(firsts[trial])])))
        if len(known) == 1:
            dropped["x"].append(str(known.index[0]))
            dropped["y"] += significant(known, 5)
            dropped["text"].append(label)
            continue
        style, reached = method_style(method), ROUNDS[-1] in known
        ends += [(float(known.iloc[-1]), title(method))] if reached else []
        line: Trace = {"type": "scatter", "mode": "lines+markers", "name": label, "y": significant(known, 5)}
        line |= {"x": [str(entry) for entry in known.index]}
        line["line"] = {
            "color": style.colour,
            "width": 3 if reached else 1.5,
            "dash": "dash" if style.dashed else "solid",
        }
        line["marker"] = {"symbol": SYMBOLS[style.marker] + ("-open" if style.hollow else ""), "size": 8}
        lines.append({**line, "hovertemplate": f"{label}: %{{y:.3f}}<extra></extra>"})
    traces = [*([dropped] if dropped["x"] else []), *lines]
    layout = axes("round", metric.head, type="category", categoryarray=list(ROUNDS))
    layout["xaxis"] |= {"categoryorder": "array", "range": [-0.2, len(ROUNDS) - 0.15]}  # room for names
    layout |= {
        "showlegend": False,
        "height": 400,
        "annotations": _names(ends, float(runs["value"].max() - runs["value"].min())),
    }
    return Figure(figure.id, figure.title, caption, (View("", traces, layout),) if traces else ())


def _names(ends: list[tuple[float, str]], height: float) -> list[dict[str, Any]]:
    """Return the names beside the ends of lines, moved apart so that none covers another."""
    gap, places = 0.05 * height, list[float]()
    ends = sorted(ends, reverse=True)
    for value, _ in ends:
        places.append(min(value, places[-1] - gap) if places else value)
    shift = sum(value - place for (value, _), place in zip(ends, places, strict=True)) / max(len(ends), 1)
    common = {"x": len(ROUNDS) - 1, "xanchor": "left", "xshift": 8, "showarrow": False}
    return [
        {**common, "y": place + shift, "text": plain_text(name)} for (_, name), place in zip(ends, places, strict=True)
    ]
