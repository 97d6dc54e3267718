"""One look for all figures, printed and interactive: a method has its colour, marker and dashes wherever it appears."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.names import ALL_DATA, FORGETTING, ordered

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#999999", "#B8A900", "#56B4E9", "#7F5539")
"""Distinguishable with every common kind of colour blindness (after Okabe and Ito)."""
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">")
HIGHLIGHT = "#D55E00"


@dataclass(frozen=True)
class Look:
    """How a line is drawn; `marker` is Matplotlib's letter, hollow ones are not filled. CL²R's is highlighted."""

    colour: str
    marker: str
    dashed: bool = False
    highlighted: bool = False
    hollow: bool = False


def look(method: str, methods: Sequence[str]) -> Look:
    """CL²R stands out; the paper's other methods look the same in every figure, whichever it shows."""
    if method == "cl2r":
        return Look(HIGHLIGHT, "o", highlighted=True)
    known = [name for name in (*FORGETTING, *ALL_DATA, *ordered(methods)) if name != "cl2r"]
    return nth_look(list(dict.fromkeys(known)).index(method))


def nth_look(place: int) -> Look:
    """The look of the line at a place in a list of lines that are no methods; the first 32 differ."""
    kind, number = divmod(place, len(COLOURS))
    return Look(COLOURS[number], MARKERS[number], dashed=kind % 2 == 1, hollow=kind % 4 >= 2)
