"""Compatibility matrices as heat maps: how much new queries gain on an old gallery, C[t,k] − C[k,k], and where."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, Rectangle

from analysis.groups import check_name, finished
from analysis.matrices import cells_of, square
from analysis.names import BAD, GOOD, title
from analysis.plots.lines import MATRIX, measured_runs
from analysis.plots.parts import PAGE, SMALL, TEXT, Groups, data_names, entitle, longest, need, wrapped
from analysis.study import Frames
from cl2r.errors import InputError

FloatArray = npt.NDArray[np.float64]

COLOURS = LinearSegmentedColormap.from_list("gains", [BAD, "white", GOOD])
LEAST_SCALE = 0.02  # the end of the colour scale at least, so that small gains look small
DIAGONAL = "#e6e6e6"
BAR = 0.9  # inches of the colour bar with its words
CELL = 0.34  # inches of a cell if there is room
WIDE = 0.25  # inches of a cell with three digits
NARROW = 0.2  # inches of a cell that no number fits in: several matrices of more than 13 tasks on a page


@dataclass(frozen=True, eq=False)
class Gains:
    """Gains and self-tests, means over runs; `share` is the share of runs that are compatible in a cell."""

    gain: FloatArray
    own: FloatArray
    share: FloatArray
    runs: int
    metric: str

    @classmethod
    def of(cls, frames: Frames, runs: Sequence[str], pairs: str = "report", metric: str | None = None) -> "Gains":
        """Compute the gains from the cells of these runs, which need equal numbers of tasks."""
        cells = cells_of(frames.matrix, pairs, metric)
        parts = [cells[cells["run"] == run] for run in runs]
        accuracies = [square(part) for part in parts]
        names = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "") or "no run"
        if not accuracies or min(map(len, accuracies)) == 0:
            raise InputError(f"no {pairs} pairs were evaluated for {names}")
        if len({len(accuracy) for accuracy in accuracies}) > 1:
            raise InputError(f"{names} differ in their number of tasks: a mean matrix needs one")
        mean = np.mean(accuracies, axis=0)
        own = np.diagonal(mean)
        marks = [part.assign(compatible=part["compatible"].astype("boolean").fillna(False)) for part in parts]
        share = np.mean([square(part, "compatible") for part in marks], axis=0)
        below = np.tri(len(mean), k=-1, dtype=bool)
        gain = np.where(below, mean - own[None, :], np.nan)
        return cls(gain, own, np.where(below, share, 0.0), len(runs), str(parts[0]["metric"].iloc[0]))

    @property
    def tasks(self) -> int:
        """The number of tasks T."""
        return len(self.own)


def plot_matrix(frames: Frames, run: str, pairs: str = "report", metric: str | None = None) -> Figure:
    """Plot the matrix of one run; `metric` is a value of that column of `matrix`, by default the run's first."""
    return plot_mean_matrix(frames, [run], pairs, metric)


def plot_mean_matrix(frames: Frames, runs: Sequence[str], pairs: str = "report", metric: str | None = None) -> Figure:
    """Plot the mean matrix over runs, such as the seeds of a group."""
    if not finished(frames.runs).any():
        raise InputError("no run has finished: there is nothing to draw")
    need(frames.matrix, (*MATRIX, "compatible"), "matrix")
    for name in runs:
        check_name(name, [str(run) for run in frames.runs["run"]], "run")
    rows = frames.runs[frames.runs["run"].isin(runs)]
    if len(lost := rows.loc[~finished(rows), "run"]):
        raise InputError(f"{lost.iloc[0]} did not finish: it has no matrix")
    gains = Gains.of(frames, runs, pairs, metric)
    methods = ", ".join(dict.fromkeys(title(str(name)) for name in rows["method.name"]))
    which = f", {methods}" + (f", seed {rows['seed'].iloc[0]}" if len(runs) == 1 else f", mean of {len(runs)} runs")
    words = f"{data_names(rows)}{which}{'' if pairs == 'report' else ', tuning pairs'}"
    return _draw({"": gains}, words)


def plot_matrices(study: Frames, pairs: str = "report", limit: int = 6) -> Figure:
    """Plot one mean matrix per group, for up to `limit` groups of the runs with the most tasks."""
    known, words = measured_runs(study, pairs, None, "compatible")
    groups = Groups.of(longest(known), limit=limit)
    names = {group: list(groups.rows.loc[groups.rows["group"] == group, "run"]) for group in groups.styles}
    gains = {group: Gains.of(study, runs, pairs) for group, runs in names.items()}
    seeds = groups.rows["seed"].nunique()
    over = "one seed" if seeds == 1 else f"means over {seeds} seeds"
    return _draw(gains, f"{data_names(groups.rows)}{words}, {over}\n{groups.note}".rstrip())


def _draw(gains: dict[str, Gains], words: str) -> Figure:
    """Draw small multiples on a page, with one colour scale that has 0 in its middle, and a key below."""
    most = max(each.tasks for each in gains.values())
    rows = math.ceil(len(gains) / (3 if most <= 6 else 2))
    columns = math.ceil(len(gains) / rows)
    side = min((PAGE - BAR) / columns, 0.7 + max(1.8, CELL * most))
    layout = ConstrainedLayoutEngine(compress=True, h_pad=0.07)  # square panels close together
    figure = Figure(figsize=(side * columns + BAR, side * rows + 0.6), layout=layout)
    entitle(figure, words)
    grid = figure.subplots(rows, columns, squeeze=False)
    largest = max((float(np.nanmax(np.abs(each.gain))) for each in gains.values() if each.tasks > 1), default=0.0)
    scale = Normalize(-max(largest, LEAST_SCALE), max(largest, LEAST_SCALE))
    for place, (name, each) in enumerate(gains.items()):
        axes = grid[place // columns, place % columns]
        mesh = _heat_map(axes, each, scale, room=(side - 0.4) / each.tasks)
        axes.set_title(wrapped(name), fontsize=TEXT)
        if place % columns == 0:
            axes.set_ylabel("model t of the queries", fontsize=TEXT)
        if place + columns >= len(gains):
            axes.set_xlabel("model k of the gallery", fontsize=TEXT)
    for axes in grid.ravel()[len(gains) :]:
        axes.remove()
    metric = " or ".join(dict.fromkeys(each.metric for each in gains.values()))
    bar = figure.colorbar(mesh, ax=figure.axes, shrink=0.9, aspect=25, pad=0.02)
    bar.set_label(f"C[t,k] − C[k,k], {metric}", fontsize=TEXT)
    bar.ax.tick_params(labelsize=SMALL)
    often = " in every run" if any(each.runs > 1 for each in gains.values()) else ""
    line: dict[str, Any] = {"facecolor": "none", "edgecolor": "black", "linewidth": 1.1}
    key = [Patch(label=f"compatible{often}", **line)]
    if any(((each.share > 0) & (each.share < 1)).any() for each in gains.values()):
        key.append(Patch(label="in some runs", linestyle=":", **line))
    key.append(Patch(facecolor=DIAGONAL, label=f"self-test C[k,k], {metric}"))
    figure.legend(handles=key, loc="outside lower center", frameon=False, fontsize=SMALL, ncols=3)
    return figure


def _heat_map(axes: Axes, gains: Gains, scale: Normalize, room: float) -> QuadMesh:
    """Draw one matrix with a frame around compatible cells; `room` is the size of a cell in inches."""
    edges = np.arange(gains.tasks + 1) + 0.5
    mesh = axes.pcolormesh(edges, edges, np.ma.masked_invalid(gains.gain), cmap=COLOURS, norm=scale)
    ticks = range(1, gains.tasks + 1) if room >= NARROW else [1, *range(5, gains.tasks + 1, 5)]
    axes.set(aspect="equal", xticks=ticks, yticks=ticks)
    axes.invert_yaxis()
    axes.tick_params(labelsize=SMALL, length=0)
    axes.spines[:].set_visible(False)
    for t, k in np.argwhere(np.tri(gains.tasks)).tolist():
        value, colour = float(gains.own[k] if t == k else gains.gain[t, k]), "black"
        if t == k:
            axes.add_patch(Rectangle((k + 0.5, t + 0.5), 1, 1, color=DIAGONAL, linewidth=0))
        else:
            red, green, blue, _ = mesh.to_rgba(np.array([value]))[0]
            colour = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
        size = min(SMALL, (18.5 if room >= WIDE else 23) * room)  # points: a sign and the digits fit a cell
        text = axes.text(
            k + 1, t + 1, _number(value, t == k, room), ha="center", va="center", fontsize=size, color=colour
        )
        text.set_in_layout(False)  # inside anyway, and many
        if gains.share[t, k] > 0:
            line, width = "-" if gains.share[t, k] == 1 else ":", 1.1 if room >= NARROW else 0.8
            axes.add_patch(Rectangle((k + 0.53, t + 0.53), 0.94, 0.94, fill=False, linewidth=width, linestyle=line))
    return mesh


def _number(value: float, own: bool, room: float) -> str:
    """Return −.013 for −0.013, with two digits in narrow cells, or nothing in cells that are narrower still."""
    if room < NARROW:
        return ""
    digits = 3 if room >= WIDE else 2
    text = f"{value:{'' if own else '+'}.{digits}f}"
    if float(text) == 0:
        return "0"
    return text.replace("0.", ".", 1).replace("-", "−")
