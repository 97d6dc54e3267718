"""What a plot shows, read off its artists, and what it should show, computed by loops from the frames."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from analysis import Frames, Study


def lines(axes: Axes) -> dict[str, list[list[float]]]:
    """Return the points of every line that has a name."""
    found = {str(line.get_label()): line for line in axes.get_lines()}
    return {name: np.round(line.get_xydata(), 9).tolist() for name, line in found.items() if name[0] != "_"}


def bands(axes: Axes) -> list[PolyCollection]:
    """Return the areas between two curves."""
    return [part for part in axes.collections if isinstance(part, PolyCollection)]


def legend(figure: Figure) -> list[str]:
    """Return the labels of the legend from top to bottom."""
    return [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]


def values(study: Frames, run: str, pairs: str = "report") -> dict[tuple[int, int], float]:
    """Return C of a run by (t, k)."""
    own = study.matrix[(study.matrix["run"] == run) & (study.matrix["pairs"] == pairs)]
    return {(row.t, row.k): row.accuracy for row in own.itertuples()}


def bc_by_hand(cells: dict[tuple[int, int], float], t: int) -> float:
    """Return BC(t) by its definition."""
    return sum(cells[t, k] - cells[k, k] for k in range(1, t)) / (t - 1)


def runs_of(study: Study, method: str) -> list[str]:
    """Return the names of a method's runs."""
    return [str(run) for run in study.runs.loc[study.runs["method.name"] == method, "run"]]
