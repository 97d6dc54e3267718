"""Figures of the first screen of sweeps and races: the objective over every setting, and the best with intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analysis.groups import finished, short
from analysis.names import GOOD, NEUTRAL, field_title, nth_style, title
from analysis.report.figures import SYMBOLS, Figure, Trace, View, plain_text
from analysis.report.page import floats, significant
from analysis.stats import shown_estimates
from analysis.study import Study
from analysis.sweep_headline import Context, metric_word, sweep_results
from analysis.sweeps import (
    objective,
    settings_brief,
    settings_order,
    settings_words,
    sweep_goals,
    trial_runs,
    variant_rows,
)
from analysis.tables.sweep import knob_fields
from cl2r.errors import InputError
from cl2r.metrics import SERVICE_ACCURACY, STORED_BYTES, Metric
from cl2r.runtime.text import counted, listed
from cl2r.study.constraints import DEFAULT, REFERENCE

LEAST_SPAN = 0.1  # of an axis of shares, so that small differences look small
PANEL, ROW, AROUND = 205, 22, 105  # pixels: a panel, a row of dots, and what surrounds them
MOST_PANELS = 4
MOST_LETTERS = 28  # of the label of a row; longer ones become the number of the trial
LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}


def response_figure(study: Study, contexts: Sequence[Context]) -> Figure:
    """Return the first objective of every whole trial over each setting that the sweep chose, one panel per setting."""
    metric = objective(next(iter(sweep_goals(study.specification))))
    column, knobs = metric.column("tuning"), settings_order(knob_fields(study))
    varied = [name for name in knobs if variant_rows(study.runs)[name].nunique() > 1]
    drawn = varied[:MOST_PANELS]
    known = [own for own in contexts if len(own.ranked)]
    layout = _panels(len(drawn), metric_word(metric))
    values = [float(value) for own in known for value in own.ranked[column]]
    traces: list[Trace] = []
    for panel, knob in enumerate(drawn):
        number = "" if panel == 0 else str(panel + 1)
        layout[f"xaxis{number}"] |= _knob_axis(knob, study.specification["space"][knob])
        layout[f"yaxis{number}"] |= _value_axis(values, metric) if values else {}
        for place, own in enumerate(known):
            axes = {"xaxis": f"x{number}", "yaxis": f"y{number}", "showlegend": panel == 0}
            traces += _dots(own, knobs, knob, column, _look(place, len(known)), axes)
    shown = [{"name": own.label, "marker": _look(place, len(known))} for place, own in enumerate(known) if own.label]
    if any((own.ranked["miss"] > 0).any() for own in known):
        shown.append({"name": "misses a constraint", "marker": {"color": NEUTRAL, "symbol": "circle-open", "size": 8}})
    if any(own.best is not None for own in known):
        several = len(sweep_goals(study.specification)) > 1
        shown.append({"name": "Pareto front" if several else "best", "marker": RING})
    legend = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "hoverinfo": "skip"}
    traces = [{**legend, **one} for one in shown] + [{**trace, "showlegend": False} for trace in traces]
    count = sum(len(own.ranked) for own in known)
    caption = f"One dot per trial ({count}), mean over its seeds on the tuning pairs, by which trials are chosen."
    more = len(varied) - len(drawn)
    caption += f" {counted(more, 'other setting')} are in the slices below." if more else ""
    layout["height"] = PANEL * len(drawn) + 70
    views = (View("", traces, layout),) if drawn and count else ()
    names = listed([field_title(name) for name in drawn])
    return Figure("response", f"How {metric_word(metric)} depends on {names}", caption, views)


RING: dict[str, Any] = {"color": GOOD, "symbol": "circle-open", "size": 15, "line": {"width": 2.5}}


def _look(place: int, contexts: int) -> dict[str, Any]:
    style = nth_style(place)
    one = contexts == 1
    symbol = "circle" if one else SYMBOLS[style.marker]
    return {"color": NEUTRAL if one else style.colour, "symbol": symbol, "size": 11 if "triangle" in symbol else 8}


def _dots(
    context: Context, knobs: Sequence[str], knob: str, column: str, look: dict[str, Any], axes: dict[str, Any]
) -> list[Trace]:
    """Return the trials of a context in one panel: hollow if they miss a constraint, and a ring for the best."""
    settings = variant_rows(context.rows).drop_duplicates("trial").set_index("trial")
    start = f"{context.label}, " if context.label else ""
    traces = []
    for missed in (False, True):
        own = context.ranked[(context.ranked["miss"] > 0) == missed]
        if len(own):
            words = [f"{start}trial {trial}: {settings_words(settings.loc[trial], knobs)}" for trial in own.index]
            trace = {"type": "scatter", "mode": "markers", **axes, "text": [plain_text(text) for text in words]}
            trace |= {"x": _plain(settings.loc[own.index, knob]), "y": significant(own[column], 5)}
            trace["marker"] = {**look, "symbol": look["symbol"] + ("-open" if missed else "")}
            traces.append({**trace, "hovertemplate": "%{text}<br>%{y:.4g}<extra></extra>"})
    if context.best is not None:
        front = context.ranked[context.ranked["front"]]
        ring = {"type": "scatter", "mode": "markers", **axes, "marker": RING, "hoverinfo": "skip"}
        traces.append({**ring, "x": _plain(settings.loc[front.index, knob]), "y": significant(front[column], 5)})
    return traces


def _plain(values: pd.Series) -> list[Any]:
    """Return the values of a setting for an axis: numbers, or texts."""
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    return significant(floats(values), 5) if numeric else [plain_text(short(value)) for value in values]


def _panels(count: int, y: str) -> dict[str, Any]:
    """Return a layout with panels below one another."""
    layout: dict[str, Any] = {"legend": LEGEND, "showlegend": True}
    gap = 0.3 / max(count, 1)
    each = (1 - gap * (count - 1)) / max(count, 1)
    for panel in range(count):
        number = "" if panel == 0 else str(panel + 1)
        top = 1 - panel * (each + gap)
        layout[f"yaxis{number}"] = {"domain": [max(top - each, 0), top], "anchor": f"x{number}", "title": {"text": y}}
        layout[f"xaxis{number}"] = {"anchor": f"y{number}"}
    return layout


def _knob_axis(knob: str, entry: Any) -> dict[str, Any]:
    """Return the axis of a setting: the whole range of the search, so that a best value at an end is seen."""
    name = "images per class in memory" if knob == "memory.per_class" else field_title(knob)
    axis: dict[str, Any] = {"title": {"text": plain_text(name), "standoff": 4}}
    if not isinstance(entry, dict):
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in entry)
        return axis | ({"tickvals": list(entry)} if numbers else {"type": "category"})
    low, high = float(entry["low"]), float(entry["high"])
    if not entry.get("log"):
        margin = 0.03 * (high - low)
        return axis | {"range": [low - margin, high + margin]}
    first, last = math.log10(low), math.log10(high)
    margin = 0.03 * (last - first)
    steps = (1,) if last - first > 2.5 else (1, 2, 5)
    ticks = [step * 10.0**power for power in range(math.floor(first), math.ceil(last) + 1) for step in steps]
    ticks = [tick for tick in ticks if low <= tick * 1.001 and tick <= high * 1.001]
    axis |= {"type": "log", "range": [first - margin, last + margin]}
    return axis | {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def _value_axis(values: Sequence[float], metric: Metric) -> dict[str, Any]:
    """Return an axis that spans a little more than the values; at least LEAST_SPAN if they are shares."""
    low, high = min(values), max(values)
    shares = metric.compute is not None
    margin = max(0.08 * (high - low), (LEAST_SPAN - (high - low)) / 2 if shares else 0.0) or 1.0
    axis: dict[str, Any] = {"range": significant([low - margin, high + margin], 5), "zeroline": False}
    return axis | ({"tickformat": "+.2f" if metric.signed else ".2f"} if shares else {})


def front_figure(study: Study, contexts: Sequence[Context]) -> Figure:
    """Return the trials by the first two objectives, one panel per context: the Pareto front blue, the others grey."""
    metrics = [objective(name) for name in sweep_goals(study.specification)][:2]
    (down, across), knobs = metrics, settings_order(knob_fields(study))
    known = [own for own in contexts if len(own.ranked)]
    layout = _panels(len(known), metric_word(down))
    traces: list[Trace] = []
    for panel, own in enumerate(known):
        number = "" if panel == 0 else str(panel + 1)
        for name, metric in (("x", across), ("y", down)):
            layout[f"{name}axis{number}"] |= {"tickformat": "~s", "ticksuffix": "B"} if metric is STORED_BYTES else {}
        words = f"{metric_word(across)}{f' ({own.label})' if own.label else ''}"
        layout[f"xaxis{number}"]["title"] = {"text": plain_text(words), "standoff": 4}
        if down.compute is not None:
            layout[f"yaxis{number}"] |= _value_axis(own.ranked[down.column("tuning")].tolist(), down)
        settings = variant_rows(own.rows).drop_duplicates("trial").set_index("trial")
        front, missed = own.ranked["front"], own.ranked["miss"] > 0
        for label, kept, look in (
            ("other trials", ~front & ~missed, {"color": NEUTRAL, "size": 8}),
            ("misses a constraint", missed, {"color": NEUTRAL, "size": 8, "symbol": "circle-open"}),
            ("Pareto front", front, {"color": GOOD, "size": 10, "symbol": "diamond"}),
        ):
            rows = own.ranked[kept].sort_values(across.column("tuning"))
            if rows.empty:
                continue
            trace: Trace = {"type": "scatter", "mode": "markers", "name": label, "marker": look, "legendgroup": label}
            trace |= (
                {"mode": "lines+markers", "line": {"color": GOOD, "width": 1.5, "dash": "dot"}} if front is kept else {}
            )
            trace |= {
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
                "showlegend": label not in {t["name"] for t in traces},
            }
            trace |= {
                "x": significant(rows[across.column("tuning")], 6),
                "y": significant(rows[down.column("tuning")], 5),
            }
            texts = [f"trial {trial}: {settings_words(settings.loc[trial], knobs)}" for trial in rows.index]
            trace["text"] = [plain_text(text) for text in texts]
            traces.append({**trace, "hovertemplate": "%{text}<br>%{y:.4g}, %{x:.4g}<extra></extra>"})
    layout["height"] = max(PANEL * 2, PANEL * len(known)) + 70
    caption = f"One dot per trial ({sum(len(own.ranked) for own in known)}), mean over its seeds on the tuning pairs."
    caption += " No other trial beats a blue one in all objectives."
    names = f"{metric_word(down)} against {metric_word(across)}"
    return Figure("front", f"Pareto front: {names}", caption, (View("", traces, layout),) if traces else ())


@dataclass(frozen=True)
class Row:
    """A dot with its interval. `colour` and `symbol` are Plotly's; `bold` marks the best."""

    label: str
    mean: float
    low: float
    high: float
    colour: str = NEUTRAL
    symbol: str = "circle"
    bold: bool = False


@dataclass(frozen=True)
class Rows:
    """Rows under a heading, and values that are drawn as lines through all of them."""

    heading: str
    rows: tuple[Row, ...]
    lines: dict[str, float] = field(default_factory=dict)


def interval_figure(name: str, heading: str, caption: str, groups: Sequence[Rows], metric: Metric) -> Figure:
    """Return dots with intervals, one row each, and the lines of every group."""
    ticks: list[float] = []
    labels: list[str] = []
    dots: list[Trace] = []
    lines: dict[str, Trace] = {}
    place, values = 0.0, list[float]()
    for group in groups:
        if group.heading:
            ticks, labels, place = [*ticks, place], [*labels, f"<b>{plain_text(group.heading)}</b>"], place + 1
        start = place
        for row in group.rows:
            shown = plain_text(row.label)
            ticks, labels = [*ticks, place], [*labels, f"<b>{shown}</b>" if row.bold else shown]
            known = not math.isnan(row.low)
            values += [row.mean, *((row.low, row.high) if known else ())]
            ends = f" [{metric.text(row.low)}, {metric.text(row.high)}]" if known else ""
            dot: Trace = {"type": "scatter", "mode": "markers", "showlegend": False, "y": [place]}
            dot |= {"x": significant([row.mean], 5), "marker": {"color": row.colour, "symbol": row.symbol, "size": 10}}
            if known:
                up, down = significant([row.high - row.mean, row.mean - row.low], 5)
                dot["error_x"] = {"type": "data", "symmetric": False, "array": [up], "arrayminus": [down], "width": 0}
                dot["error_x"] |= {"color": row.colour, "thickness": 3 if row.bold else 1.8}
            hover = f"{plain_text(group.heading)} {shown}: {metric.text(row.mean)}{ends}<extra></extra>".lstrip()
            dots.append({**dot, "hovertemplate": hover})
            place += 1
        for number, (label, value) in enumerate(group.lines.items()):
            line = lines.setdefault(label, _line(label, ("dot", "dash")[number % 2]))
            line["x"] += [*significant([value, value], 5), None]
            line["y"] += [start - 0.5, place - 0.5, None]
            values.append(value)
        place += 0.3
    y_axis = {"tickvals": ticks, "ticktext": labels, "range": [place - 0.5, -0.7], "showgrid": False, "zeroline": False}
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": metric.head, "standoff": 8}},
        "yaxis": y_axis,
        "legend": LEGEND,
    }
    layout |= {"height": max(round(ROW * (place + 0.5)) + AROUND, 380), "showlegend": bool(lines)}
    if values:
        layout["xaxis"] |= _value_axis(values, metric)
    return Figure(name, heading, caption, (View("", [*lines.values(), *dots], layout),) if dots else ())


def _line(label: str, dash: str) -> Trace:
    line: Trace = {"type": "scatter", "mode": "lines", "name": plain_text(label), "x": [], "y": []}
    line["line"] = {"color": NEUTRAL, "width": 1.5, "dash": dash}
    return {**line, "hovertemplate": f"{plain_text(label)}: %{{x:.3f}}<extra></extra>"}


def best_figure(study: Study, contexts: Sequence[Context]) -> Figure:
    """Return the best trials of every context beside the references and the default, on the report pairs."""
    goal = objective(next(iter(sweep_goals(study.specification))))
    metric = goal if goal.compute is not None else SERVICE_ACCURACY
    knobs, groups, seeds = settings_order(knob_fields(study)), [], list[int]()
    for context in contexts:
        rows, counts = [], []
        for trial in context.shown() if metric.name in context.rows else ():
            own = trial_runs(context.rows, trial)
            counts += own["seed"].tolist()
            seeds.append(len(own))  # one run per seed
            words = settings_brief(own.iloc[0], knobs)
            label = words if len(words) <= MOST_LETTERS else f"trial {trial}"
            best = trial == context.best
            rows.append(_row(label, own, metric, GOOD if best else NEUTRAL, "circle", best))
        others = {title(str(name)): own for name, own in variant_rows(context.rows, REFERENCE).groupby("method.name")}
        others |= {"preset's default": variant_rows(context.rows, DEFAULT)}
        for label, own in others.items():
            own = own[finished(own) & own["seed"].isin(counts)]
            if len(own):
                rows.append(_row(label, own, metric, NEUTRAL, "diamond-open" if "default" in label else "circle-open"))
        served = metric is SERVICE_ACCURACY
        lines = {label: own[metric.name].mean() for label, own in context.services(counts).items()} if served else {}
        groups.append(Rows(context.label, tuple(row for row in rows if row is not None), lines))
    over = "One seed, with 95 % interval over pairs"
    if max(seeds, default=1) > 1:
        span = " to ".join(str(count) for count in sorted({min(seeds), max(seeds)}))
        over = f"Mean over {span} seeds with 95 % interval{' (of one seed: over pairs)' if min(seeds) == 1 else ''}"
    blue = " Blue: the best on the tuning pairs." if any(own.best is not None for own in contexts) else ""
    heading = f"What the best trials reach: {metric.head}"
    groups = [group for group in groups if group.rows]
    return interval_figure(
        "best-trials", heading, f"{over}, on the report pairs, which chose nothing.{blue}", groups, metric
    )


def _row(label: str, runs: pd.DataFrame, metric: Metric, colour: str, symbol: str, bold: bool = False) -> Row | None:
    """Return the row of runs that differ in their seed only; None if they have no value."""
    runs = runs.drop(columns="variant", errors="ignore").drop_duplicates("seed")
    found = shown_estimates(runs.assign(own=0), metric.name, ["own"]).iloc[0]
    if pd.isna(found["mean"]):
        return None
    mean, low, high = (float(found[name]) for name in ("mean", "low", "high"))
    return Row(label, mean, low, high, colour, symbol, bold)


def sweep_figures(study: Study) -> list[Figure]:
    """Return the figures of the first screen: the best trials, or the front of two objectives, and all trials."""
    try:
        contexts = sweep_results(study)
    except InputError:  # the headline says why the trials cannot be ranked
        return []
    several = len(sweep_goals(study.specification)) == 2
    best = front_figure(study, contexts) if several else best_figure(study, contexts)
    return [figure for figure in (best, response_figure(study, contexts)) if figure.views]
