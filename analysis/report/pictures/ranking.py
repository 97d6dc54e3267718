"""Many groups in rows, best first: service accuracy and BC with their intervals."""

import pandas as pd
from markupsafe import Markup

from analysis.names import on_all_data
from analysis.report.pictures.drawing import line, marker, metric_scale, tag, text_width, written
from analysis.report.pictures.groups import (
    Group,
    Picture,
    Value,
    ends_of,
    references,
    seeds_note,
    shortened,
    shown_groups,
)
from analysis.tables.table import signed
from cl2r.metrics import BC, SERVICE_ACCURACY, Metric
from cl2r.runtime.text import counted

TOP = 26.0
ROW, LEAST_ROW = 20.0, 14.0
ROOM = 460.0  # pixels for all rows, if they need not be lower than LEAST_ROW


def ranking_picture(runs: pd.DataFrame) -> Picture:
    """Return all groups in rows, best service accuracy first, with a panel of it and one of BC beside their names.

    Panels stretch with the page but their text does not; where both have no room, they scroll beside the names.
    """
    groups = sorted(shown_groups(runs), key=lambda group: -group.served.mean)
    name = f"{counted(len(groups), 'method')} by service accuracy"
    if not groups:
        return Picture("ranking", name, "")
    height = max(LEAST_ROW, min(ROW, ROOM / len(groups)))
    bottom = TOP + height * len(groups)
    middles = [TOP + height * (place + 0.5) for place in range(len(groups))]
    labels = [shortened(group.label) + (" †" if on_all_data(group.method) else "") for group in groups]
    width = max(map(text_width, labels)) + 14
    texts = [
        written(label, width - 8, middle + 4, "label", "end", tag("title", group.words))
        for group, label, middle in zip(groups, labels, middles, strict=True)
    ]
    names = tag("svg", *texts, width=width, height=bottom + 42, class_="drawing row-names", aria_hidden="true")
    columns = {SERVICE_ACCURACY: [group.served for group in groups], BC: [group.bc for group in groups]}
    panels, cut = [], False
    for metric, values in columns.items():
        if any(value.known for value in values):
            lines = references(runs) if metric is SERVICE_ACCURACY else {"as good as the old models": 0.0}
            panel, arrows = _panel(metric, groups, values, lines, middles)
            panels.append(panel)
            cut = cut or arrows
    rows = tag("div", names, *panels, class_="ranking")
    svg = tag("div", rows, class_="scroll", role="region", tabindex="0", aria_label=name)
    caption = "Best on top." + (" Arrows: the interval continues." if cut else "")
    caption += seeds_note(runs)
    if any(on_all_data(group.method) for group in groups):
        caption += " † trains on all data at every task."
    return Picture("ranking", name, caption, svg)


def _panel(
    metric: Metric, groups: list[Group], values: list[Value], lines: dict[str, float], middles: list[float]
) -> tuple[Markup, bool]:
    """Return a panel with rows at `middles`, in percent of its width, and whether it cuts an interval."""
    bottom = middles[-1] + (middles[0] - TOP)
    means = [*(value.mean for value in values), *lines.values()]
    scale = metric_scale(metric, means, ends_of(values), 3.0, 97.0, most=5)

    def at(value: float) -> str:
        return f"{scale(value):.3f}%"

    parts = [line("0%", middle, "100%", middle, "row") for middle in middles]
    for tick in scale.ticks:
        parts.append(line(at(tick), bottom, at(tick), bottom + 4, "zero"))
        parts.append(written(scale.tick_text(tick, metric.signed), at(tick), bottom + 17, "tick x", "middle"))
    parts.append(written(f"{metric.head} →", "50%", bottom + 37, "", "middle"))
    close = len(lines) == 2 and abs(scale(max(lines.values())) - scale(min(lines.values()))) < 40
    for name, level in lines.items():
        anchor = "end" if scale(level) > 75 else "start" if scale(level) < 25 else "middle"
        if close:
            anchor = "end" if level == min(lines.values()) else "start"
        shown_level = tag("title", f"{name}: {signed(metric.name, level)}")
        parts.append(line(at(level), TOP, at(level), bottom, "reference"))
        parts.append(written(name, at(level), TOP - 8, "muted", anchor, shown_level))
    told, cut = [], False
    for group, value, row in zip(groups, values, middles, strict=True):
        if not value.known:
            continue
        words, colour = f"{group.label}: {metric.head} {value.text(metric)}", group.style.colour
        shown = [tag("title", words)]
        if value.ranged:
            shown.append(line(at(value.low), row, at(value.high), row, "interval", stroke=colour))
        for end, outline in ((value.low, "M-4 0L3-3.5V3.5z"), (value.high, "M4 0L-3-3.5V3.5z")):
            if scale.beyond(end):
                arrow = tag("path", d=outline, fill=colour)
                shown.append(tag("svg", arrow, x=at(end), y=row, overflow="visible", class_="arrow"))
                cut = True
        parts.append(tag("g", *shown, marker(group.style, at(value.mean), row)))
        told.append(f"{words}.")
    heads = (tag("title", metric.title), tag("desc", " ".join(told)))
    return tag("svg", *heads, *parts, height=bottom + 42, role="img", class_="drawing ranking-panel"), cut
