"""Groups as points in the plane of service accuracy and BC, with their intervals."""

import math

import pandas as pd
from markupsafe import Markup

from analysis.report.pictures.drawing import (
    FONT,
    Box,
    Scale,
    drawing,
    interval,
    line,
    marker,
    metric_scale,
    placed_labels,
    tag,
    text_width,
    upright_axis,
    written,
)
from analysis.report.pictures.groups import Group, Picture, ends_of, references, seeds_note, shortened, shown_groups
from analysis.report.pictures.ranking import ranking_picture
from cl2r.metrics import BC, SERVICE_ACCURACY
from cl2r.runtime.text import listed

WIDTH, HEIGHT = 460.0, 306.0
LEFT, TOP, RIGHT, BOTTOM = PANEL = (62.0, 24.0, 452.0, 262.0)
ZERO = "as good as the old models"


def plane_picture(runs: pd.DataFrame) -> Picture:
    """Return every group as a point; if none has BC (one task), the groups ranked by service accuracy."""
    groups = shown_groups(runs)
    drawn = [group for group in groups if group.bc.known]
    if not drawn:
        return ranking_picture(runs)
    lines = references(runs)
    served = [group.served for group in drawn]
    x = metric_scale(SERVICE_ACCURACY, [*(own.mean for own in served), *lines.values()], ends_of(served), LEFT, RIGHT)
    gains = [group.bc for group in drawn]
    y = metric_scale(BC, [0.0, *(own.mean for own in gains)], ends_of(gains), BOTTOM, TOP)
    parts = [_across(x), upright_axis(y, BC, LEFT, RIGHT), *_reference_lines(lines, x)]
    parts += [
        line(LEFT, y(0.0), RIGHT, y(0.0), "zero"),
        written("better ↗", RIGHT, BOTTOM + 38, "hint", "end"),
    ]
    for group in drawn:
        parts.append(interval(group.served, x, y(group.bc.mean), group.style))
        parts.append(interval(group.bc, y, x(group.served.mean), group.style, upright=True))
    parts.append(written(ZERO, LEFT + 6, y(0.0) - 5, "muted"))
    parts += _points(drawn, x, y, [(x(value) - 1, TOP, x(value) + 1, BOTTOM) for value in lines.values()])
    words = [group.words for group in drawn]
    svg = drawing(WIDTH, HEIGHT, "Service accuracy and BC", words, *parts, class_="drawing plane-drawing")
    caption = "Further right, users find more without re-indexing; above the line, more than with the old models."
    if any(x.beyond(end) for end in ends_of(served)) or any(y.beyond(end) for end in ends_of(gains)):
        caption += " Arrows: the interval continues."
    caption += seeds_note(runs)
    if missing := [group.label for group in groups if not group.bc.known]:
        caption += f" Without BC: {listed(missing)}."
    return Picture("plane", "Service accuracy and BC", caption, svg)


def _across(x: Scale) -> Markup:
    parts = [line(x(tick), BOTTOM, x(tick), TOP, "grid") for tick in x.ticks]
    parts += [written(x.tick_text(tick), x(tick), BOTTOM + 17, "tick x", "middle") for tick in x.ticks]
    return tag("g", *parts, written("service accuracy →", (LEFT + RIGHT) / 2, BOTTOM + 38, "", "middle"))


def _reference_lines(lines: dict[str, float], x: Scale) -> list[Markup]:
    """Return upright lines with their names above the panel."""
    places = {name: x(value) for name, value in lines.items()}
    close = len(places) == 2 and max(places.values()) - min(places.values()) < 100
    parts = []
    for name, across in places.items():
        anchor = "middle" if across + text_width(name, 11.5) / 2 < WIDTH else "end"
        if close:
            anchor = "end" if across == min(places.values()) else "start"
        words = tag("title", f"{name}: service accuracy {lines[name]:.3f}")
        parts += [
            line(across, TOP, across, BOTTOM, "reference"),
            written(name, across, TOP - 8, "muted", anchor, words),
        ]
    return parts


def _points(groups: list[Group], x: Scale, y: Scale, lines: list[Box]) -> list[Markup]:
    """Return a marker and a label for each group, and a thin line between them if they are apart."""
    points = [(x(group.served.mean), y(group.bc.mean)) for group in groups]
    bars = list(lines)
    for group, (across, down) in zip(groups, points, strict=True):
        bars += [(x(group.served.low), down - 2, x(group.served.high), down + 2)] if group.served.ranged else []
        bars += [(across - 2, y(group.bc.high), across + 2, y(group.bc.low))] if group.bc.ranged else []
    taken = [(LEFT + 6, y(0.0) - FONT - 4, LEFT + 6 + text_width(ZERO, 11.5), y(0.0) - 3)]
    labels = [shortened(group.label) for group in groups]
    places = placed_labels(points, labels, PANEL, taken, bars)
    leaders, parts = [], []
    for group, label, (across, down), (start, base) in zip(groups, labels, points, places, strict=True):
        middle = base - 0.35 * FONT
        near = min(max(across, start), start + text_width(label)), min(max(down, middle - 5), middle + 5)
        if math.dist(near, (across, down)) > 16:
            leaders.append(line(across, down, *near, "leader"))
        words = tag("title", group.words)
        parts += [
            tag("g", words, marker(group.style, across, down, 5.5)),
            written(label, start, base, "label", "", words),
        ]
    return [*leaders, *parts]
