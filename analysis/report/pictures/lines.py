"""Service accuracy and BC over a config field, one line per method."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.groups import group_fields, group_labels, short
from analysis.names import LineStyle, field_title, method_style, shown_first
from analysis.report.pictures.drawing import (
    FONT,
    Scale,
    drawing,
    interval,
    line,
    marker,
    metric_scale,
    spread_out,
    tag,
    upright_axis,
    written,
)
from analysis.report.pictures.groups import Picture, Value, ends_of, methods_of, references, shortened, values_of
from analysis.study import Study
from cl2r.metrics import BC, SERVICE_ACCURACY, Metric

MOST = 9  # lines
WIDTH, HEIGHT = 470.0, 300.0
LEFT, TOP, RIGHT, BOTTOM = 62.0, 12.0, 345.0, 254.0
AXES = {"scenario.n_tasks": "number of tasks T", "memory.per_class": "memory: images per class"}
Series = dict[str, dict[Any, Value]]  # by label and value of the field


def lines_picture(study: Study, runs: pd.DataFrame, field: str) -> Picture:
    """Return service accuracy and BC over a numeric config field, one line per method; `runs` are finished."""
    known = runs[runs[field].notna()]
    fields = [name for name in group_fields(study.runs) if name != field]
    known = known.assign(series=group_labels(known, fields).astype(str))
    name = f"Service accuracy and BC over {field_title(field)}"
    served, gains = (values_of(known, metric, ["series", field]) for metric in (SERVICE_ACCURACY, BC))
    if not any(value.known for value in served.values()):
        return Picture("lines", name, "")
    values = sorted(known[field].unique())
    methods = methods_of(known, "series")
    best = sorted(methods, key=lambda label: -np.nan_to_num(served.get((label, values[-1]), Value()).mean))
    kept = shown_first(best, MOST)
    styles = {label: method_style(method) for label, method in methods.items() if label in kept}
    found = [references(known[known[field] == value]) for value in values]
    levels = {
        words: {value: own.get(words, math.nan) for value, own in zip(values, found, strict=True)}
        for words in dict.fromkeys(word for own in found for word in own)
    }
    panels, cut = [], False
    for metric, table, lines in (
        (SERVICE_ACCURACY, served, levels),
        (BC, gains, {"old models": dict.fromkeys(values, 0.0)}),
    ):
        series = {label: {value: table.get((label, value), Value()) for value in values} for label in styles}
        if any(value.known for own in series.values() for value in own.values()):
            panel, arrows = _panel(metric, field, series, styles, lines)
            panels.append(panel)
            cut = cut or arrows
    caption = "Bars: 95 % intervals" + ("; an arrow: the interval continues." if cut else ".")
    if len(kept) < len(methods):
        last = f"{field_title(field)}={short(values[-1])}"
        caption += f" Drawn are ER, CL²R and the best at {last}: {len(kept)} of {len(methods)} methods."
    return Picture("lines", name, caption, tag("div", *panels, class_="line-panels"))


def _panel(
    metric: Metric, field: str, series: Series, styles: dict[str, LineStyle], levels: dict[str, dict[Any, float]]
) -> tuple[Markup, bool]:
    """Return one panel, and whether it cuts an interval."""
    every = [value for own in series.values() for value in own.values()]
    heights = [*(value.mean for value in every), *(level for own in levels.values() for level in own.values())]
    y = metric_scale(metric, heights, ends_of(every), BOTTOM, TOP, spare=0.4)
    values = list(next(iter(series.values())))
    places = dict(zip(values, _places([float(value) for value in values]), strict=True))
    parts = [upright_axis(y, metric, LEFT, RIGHT)]
    parts += [written(short(value), across, BOTTOM + 17, "tick x", "middle") for value, across in places.items()]
    parts.append(written(AXES.get(field, field_title(field)), (LEFT + RIGHT) / 2, BOTTOM + 38, "", "middle"))
    ends: dict[str, tuple[float, float]] = {}
    for label, heights_of in levels.items():
        if points := [(places[value], y(level)) for value, level in heights_of.items() if math.isfinite(level)]:
            parts.append(tag("path", d=_path(points), class_="reference"))
            ends[label] = points[-1]
    told = []
    nearest = min((b - a for a, b in zip(list(places.values()), list(places.values())[1:], strict=False)), default=99.0)
    step = min(5.0, 0.6 * nearest / len(series))  # intervals stand side by side
    for number, (label, own) in enumerate(series.items()):
        known = {value: level for value, level in own.items() if level.known}
        if not known:
            continue
        shift = (number - (len(series) - 1) / 2) * step
        parts.append(
            _line(label, field, metric, known, {value: places[value] + shift for value in known}, y, styles[label])
        )
        ends[label] = places[list(known)[-1]] + shift, y(list(known.values())[-1].mean)
        told.append(
            f"{label}: " + ", ".join(f"{level.text(metric)} at {short(value)}" for value, level in known.items()) + "."
        )
    spots = spread_out([down for _, down in ends.values()], FONT + 2, TOP, BOTTOM)
    for (label, (across, down)), spot in zip(ends.items(), spots, strict=True):
        parts.append(line(across + 6, down, RIGHT + 6, spot, "leader"))
        parts.append(written(shortened(label), RIGHT + 9, spot + 4, "label" if label in series else "muted"))
    name = f"{metric.head} over {field_title(field)}"
    svg = drawing(WIDTH, HEIGHT, name, told, *parts, class_="drawing lines-drawing")
    return svg, any(y.beyond(end) for end in ends_of(every))


def _line(
    label: str,
    field: str,
    metric: Metric,
    known: dict[Any, Value],
    places: dict[Any, float],
    y: Scale,
    style: LineStyle,
) -> Markup:
    """Return the line of one method with its intervals and markers."""
    path = _path((places[value], y(level.mean)) for value, level in known.items())
    look = "series highlighted" if style.highlighted else "series"
    parts = [tag("path", d=path, stroke=style.colour, class_=look, stroke_dasharray="6 4" if style.dashed else None)]
    for value, level in known.items():
        words = tag("title", f"{label}, {field_title(field)}={short(value)}: {metric.head} {level.text(metric)}")
        bar = interval(level, y, places[value], style, upright=True)
        parts.append(tag("g", words, bar, marker(style, places[value], y(level.mean), 4.5)))
    return Markup("").join(parts)


def _places(values: list[float]) -> list[float]:
    """Return the positions of values: evenly spaced if they include 0 or grow more than tenfold, else linear."""
    start, end = LEFT + 20, RIGHT - 20
    if len(values) == 1:
        return [(start + end) / 2]
    even = min(values) <= 0 or max(values) > 10 * min(values)
    shares = np.linspace(0, 1, len(values)) if even else (np.array(values) - values[0]) / (values[-1] - values[0])
    return [start + float(share) * (end - start) for share in shares]


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
