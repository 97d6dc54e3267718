"""Parts of SVG drawings: escaped elements, axes that do not exaggerate, markers, and labels that keep apart."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from analysis.names import LineStyle
from cl2r.metrics import Metric

LEAST_SPAN = 0.02  # of an axis: smaller differences are noise
LETTER = 0.6  # mean width of a letter in font sizes
FONT = 12.5  # font size of labels, as in page.css
SHAPES = {
    "o": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0z",
    "s": "M-.9-.9h1.8v1.8h-1.8z",
    "^": "M0-1.1L1.1.9H-1.1z",
    "v": "M0 1.1L1.1-.9H-1.1z",
    "<": "M-1.1 0L.9-1.1V1.1z",
    ">": "M1.1 0L-.9-1.1V1.1z",
    "D": "M0-1.25L1.25 0L0 1.25L-1.25 0z",
    "P": "M-.4-1.1h.8v.7h.7v.8h-.7v.7h-.8v-.7h-.7v-.8h.7z",
    "X": "M-1.1-.6L-.6-1.1L0-.5L.6-1.1L1.1-.6L.5 0L1.1.6L.6 1.1L0 .5L-.6 1.1L-1.1.6L-.5 0z",
}
"""Outlines of Matplotlib's markers in a circle of radius 1."""


def tag(name: str, *content: object, **attributes: Any) -> Markup:
    """Return an element with escaped attributes and content; `text_anchor` is written `text-anchor`, `class_` `class`.

    Numbers get two decimals. An attribute that is None is left out.
    """
    words = [Markup(name)]
    for key, value in attributes.items():
        if value is not None:
            written = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
            words.append(Markup('{}="{}"').format(key.rstrip("_").replace("_", "-"), written))
    inside = Markup("").join(escape(part) for part in content)
    return Markup("<{}>{}</{}>").format(Markup(" ").join(words), inside, Markup(name))


def drawing(
    width: float, height: float, title: str, words: Sequence[str], *content: Markup, **attributes: Any
) -> Markup:
    """Return an `svg` that scales with its container; readers that cannot see it get the title and the words."""
    heads = (tag("title", title), tag("desc", " ".join(words)))
    box = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", **attributes}
    return tag("svg", *heads, *content, **box)


@dataclass(frozen=True)
class Scale:
    """Maps values between `low` and `high` to positions between `start` and `end`; `ticks` are round values."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...] = ()

    def __call__(self, value: float) -> float:
        """Return the position of a value; values outside are at the nearer end."""
        inside = min(max(value, self.low), self.high)
        return self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start)

    def beyond(self, value: float) -> bool:
        """Return whether the value is outside of the axis; NaN is not."""
        return value < self.low or value > self.high

    def tick_text(self, value: float, signed: bool = False) -> str:
        """Return a tick with as many decimals as the ticks need, at most three."""
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 0.001
        decimals = min(3, max(0, -math.floor(math.log10(step * 1.0001))))
        decimals += 1 if decimals < 3 and abs(round(step, decimals) - step) > step / 10 else 0
        rounded = round(value, decimals) or 0.0
        return f"{rounded:{'+' if signed and rounded else ''}.{decimals}f}"


def metric_scale(
    metric: Metric,
    values: Iterable[float],
    ends: Iterable[float],
    start: float,
    end: float,
    most: int = 6,
    spare: float = 1.0,
) -> Scale:
    """Return a scale for all values and, if they are not too far off, the ends of their intervals.

    Either side of the values has at most `spare` times as much room as the values; LEAST_SPAN counts if they need less.
    The scale has at most `most` ticks.
    """
    known = [value for value in values if math.isfinite(value)]
    least, largest = min(known), max(known)
    room = spare * max(largest - least, LEAST_SPAN)
    known_ends = [value for value in ends if math.isfinite(value)]
    low = max(min([least, *known_ends]), least - room)
    high = min(max([largest, *known_ends]), largest + room)
    missing = max(0.0, LEAST_SPAN - (high - low)) / 2
    pad = 0.07 * (high - low + 2 * missing)
    low, high = low - missing - pad, high + missing + pad
    floor, ceiling = metric.bounds
    ticks = tuple(tick for tick in round_ticks(low, high, most) if floor - 1e-9 <= tick <= ceiling + 1e-9)
    return Scale(low, high, start, end, ticks)


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` multiples of 1, 2 or 5 · 10^n between the ends."""
    power = 10 ** math.floor(math.log10((high - low) / most))
    for step in (power * factor for factor in (1, 2, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [round(number * step, 12) for number in range(first, last + 1)]
    raise ValueError(f"no ticks between {low} and {high}")


def marker(style: LineStyle, x: float | str, y: float, size: float = 5.0) -> Markup:
    """Return the marker of a method at a position; `x` may be a share of the width, such as `40%`."""
    look = {"fill": style.colour} if not style.hollow else {"stroke": style.colour, "class": "hollow"}
    shape = tag(
        "path", d=SHAPES[style.marker], transform=f"scale({size:g})", vector_effect="non-scaling-stroke", **look
    )
    return tag("svg", shape, x=x, y=y, overflow="visible", class_="marker")


def line(x1: float | str, y1: float, x2: float | str, y2: float, look: str, **attributes: Any) -> Markup:
    """Return a line of a class of page.css."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=look, **attributes)


def written(
    text: object, x: float | str, y: float, look: str = "", anchor: str = "", words: Markup | None = None
) -> Markup:
    """Return a text at a position; `words` is a `title` that is shown over it."""
    content = (text,) if words is None else (words, text)
    return tag("text", *content, x=x, y=y, class_=look or None, text_anchor=anchor or None)


def interval(value: Any, scale: Scale, at: float, style: LineStyle, upright: bool = False) -> Markup:
    """Return the interval of a `Value` along a scale, with an arrow where the axis cuts it."""
    if not value.ranged:
        return Markup("")
    first, last = scale(value.low), scale(value.high)
    ends = (at, first, at, last) if upright else (first, at, last, at)
    parts = [line(*ends, "interval", stroke=style.colour)]
    for end, place, turn in ((value.low, first, 180), (value.high, last, 0)):
        if scale.beyond(end):
            spot = (
                f"translate({at:.2f} {place:.2f}) rotate({turn - 90})"
                if upright
                else f"translate({place:.2f} {at:.2f}) rotate({turn})"
            )
            parts.append(tag("path", d="M4 0L-3-3.5V3.5z", transform=spot, fill=style.colour, class_="arrow"))
    return Markup("").join(parts)


def upright_axis(y: Scale, metric: Metric, left: float, right: float) -> Markup:
    """Return the grid lines, ticks and title of an axis of a metric on the left of a panel."""
    parts = [line(left, y(tick), right, y(tick), "grid") for tick in y.ticks]
    parts += [written(y.tick_text(tick, metric.signed), left - 6, y(tick) + 4, "tick y", "end") for tick in y.ticks]
    place = f"translate(13 {(y.start + y.end) / 2:.2f}) rotate(-90)"
    return tag("g", *parts, tag("text", f"{metric.head} →", transform=place, text_anchor="middle"))


def text_width(text: str, font: float = FONT) -> float:
    """Return about how wide a text is."""
    return LETTER * font * len(text)


Box = tuple[float, float, float, float]  # left, top, right, bottom


def overlap(one: Box, other: Box) -> float:
    """Return the area that two boxes have in common."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0


def placed_labels(
    points: Sequence[tuple[float, float]], texts: Sequence[str], panel: Box, taken: Sequence[Box], bars: Sequence[Box]
) -> list[tuple[float, float]]:
    """Return where each label begins (left, baseline): near its point, off other labels, points and `taken` boxes.

    Bars of intervals are avoided if there is room elsewhere.
    """
    blocked = [*taken, *((x - 6, y - 6, x + 6, y + 6) for x, y in points)]
    found = []
    for (x, y), text in zip(points, texts, strict=True):
        width, height = text_width(text), FONT
        best, least = (x + 9, y), math.inf
        for distance in (7.0, 16.0, 28.0, 42.0, 60.0):
            corners = [(x + 5, y - distance - 3), (x + 5, y + distance + 3)]
            corners += [(x - 5 - width, y - distance - 3), (x - 5 - width, y + distance + 3)]
            sides = [(x + distance + 2, y), (x - distance - 2 - width, y)]
            sides += [(x - width / 2, y - distance - 7), (x - width / 2, y + distance + 7)]
            far = [(x + way * distance - (way < 0) * width, y + up * distance) for way in (1, -1) for up in (-1, 1)]
            for place, (left, middle) in enumerate([*corners, *sides, *far]):
                box = (left - 2, middle - height / 2, left + width + 2, middle + height / 2)
                outside = width * height - overlap((left, box[1], left + width, box[3]), panel)
                cost = 10 * outside + 4 * sum(overlap(box, other) for other in blocked)
                cost += sum(overlap(box, bar) for bar in bars) + 2 * distance + 0.5 * place
                if cost < least:
                    best, least = (left, middle), cost
        left, middle = best
        blocked.append((left - 2, middle - height / 2, left + width + 2, middle + height / 2))
        found.append((left, middle + 0.35 * FONT))
    return found


def spread_out(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places at least `gap` apart and, if they fit, between `low` and `high`"""
    order = sorted(range(len(places)), key=lambda number: places[number])
    moved = list(places)
    for before, number in zip([None, *order[:-1]], order, strict=True):
        moved[number] = max(moved[number], low if before is None else moved[before] + gap)
    for after, number in zip([None, *order[:0:-1]], order[::-1], strict=True):
        moved[number] = min(moved[number], high if after is None else moved[after] - gap)
    return moved
