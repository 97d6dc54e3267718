"""Plot of a sweep over several numbers of tasks: how the best knobs depend on it."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.names import GOOD, field_title
from analysis.plots import parts
from analysis.study import Study
from analysis.sweeps import (
    best_part,
    context_fields,
    objective,
    objective_column,
    ranked_trials,
    settings_order,
    sweep_constraints,
    sweep_contexts,
    sweep_goals,
    too_few,
    variant_rows,
)
from analysis.tables.sweep import knob_fields
from cl2r.errors import InputError

Trials = dict[int, tuple[pd.DataFrame, int]]
"""By T: the feasible trials, best first, and the size of the best fifth."""
TASKS = "scenario.n_tasks"
COLOURS, SCALE = LinearSegmentedColormap.from_list("better", ["#B9BDC1", GOOD]), Normalize(0, 1)
"""Grey to blue: the best trial is the darkest."""
BAND: dict[str, Any] = {"color": "#bbbbbb", "alpha": 0.45, "linewidth": 2}
RING: dict[str, Any] = {"color": GOOD, "marker": "o", "markersize": 8, "markerfacecolor": "none"}


def plot_best_by_tasks(study: Study) -> Figure:
    """Plot each knob of a sweep over the number of tasks: feasible trials, the best one, and the best fifth.

    Raise InputError if the study is no sweep over several numbers of tasks.
    """
    chosen = settings_order(knob_fields(study))
    if context_fields(study.runs) != [TASKS]:
        raise InputError(f"study {study.name} is no sweep over several numbers of tasks")
    goals = sweep_goals(study.specification)
    name = next(iter(goals))
    found: Trials = {}
    fewest = math.inf
    for _, rows in sweep_contexts(study.runs):
        ranked = ranked_trials(rows, goals, study.specification)
        settings = variant_rows(rows).drop_duplicates("trial").set_index("trial")
        own = ranked[ranked["miss"] <= 0].join(settings[[TASKS, *chosen]])
        if len(own):
            fewest = min(fewest, len(ranked))
            # colours compare trials of one T: values of different T are different quantities
            values = own[objective_column(name)] * (1 if goals[name] == "max" else -1)
            width = float(values.max() - values.min()) or 1.0
            found[int(own[TASKS].iloc[0])] = own.assign(shade=(values - values.min()) / width), len(best_part(ranked))
    if len(found) < 2:
        raise InputError("fewer than two numbers of tasks have a trial that finished and meets the constraints")
    every = pd.concat([own for own, _ in found.values()])
    knobs = [own for own in chosen if pd.api.types.is_numeric_dtype(every[own]) and every[own].nunique() > 1]
    if not knobs:
        raise InputError("no knob of the sweep is a number that varies: there is nothing to draw")
    limited = " that meets the constraints" if sweep_constraints(study.specification) else ""
    labels = ["best trial", "range of the best fifth", f"trial{limited}"]
    words = f"{parts.data_names(study.runs)}, best by {objective(name).head} on tuning pairs\n{too_few(int(fewest))}"
    figure, axes = parts.page_panels(len(knobs), words.strip(), labels, sharey=False, height=3.0)
    for panel, knob in zip(axes, knobs, strict=True):
        _draw_knob(panel, knob, found, study.specification["space"][knob])
    bar = figure.colorbar(ScalarMappable(SCALE, COLOURS), ax=axes, shrink=0.8, pad=0.02, ticks=[0, 1])
    bar.ax.set_yticklabels(["worst", "best"], fontsize=parts.SMALL)
    bar.set_label(f"{objective(name).head}, each T by itself", size=parts.SMALL, labelpad=2)
    dot: dict[str, Any] = {"color": COLOURS(0.6), "marker": "o", "markersize": 4, "linestyle": "none"}
    handles = [
        Line2D([], [], label=labels[0], **RING),
        Patch(label=labels[1], **BAND),
        Line2D([], [], label=labels[2], **dot),
    ]
    return parts.with_legend(figure, [], handles)


def _draw_knob(panel: Axes, knob: str, found: Trials, entry: Any) -> None:
    """Draw one panel; `entry` is the knob in the space of the sweep."""
    for place, (own, size) in enumerate(found.values()):
        heights = own[knob].astype(float).to_numpy()
        low, high = heights[:size].min(), heights[:size].max()
        panel.fill_between([place - 0.3, place + 0.3], low, high, zorder=1, **BAND)
        # the best stands in the middle, the others to its left and right, so that equal values hide less
        steps = np.array([(rank + 1) // 2 * (-1) ** rank for rank in range(len(own))])
        x = place + 0.25 * steps / max(1, abs(steps).max())
        panel.scatter(x, heights, c=own["shade"], cmap=COLOURS, norm=SCALE, s=12, zorder=3)
    bests = [float(own[knob].iloc[0]) for own, _ in found.values()]
    panel.plot(range(len(bests)), bests, linewidth=1.4, zorder=4, **RING)
    panel.set(xlabel="number of tasks T", ylabel=field_title(knob), xlim=(-0.5, len(found) - 0.5))
    panel.set_xticks(range(len(found)), [str(count) for count in found])
    if isinstance(entry, dict):  # the whole range of the search, so that the best at an end is seen to be there
        low, high, log = float(entry["low"]), float(entry["high"]), bool(entry.get("log"))
        margin = (high / low) ** 0.03 if log else 0.03 * (high - low)
        panel.set_ylim((low / margin, high * margin) if log else (low - margin, high + margin))
    if isinstance(entry, dict) and entry.get("log"):
        panel.set_yscale("log")
        wide = math.log10(float(entry["high"]) / float(entry["low"])) > 2.5
        panel.yaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
