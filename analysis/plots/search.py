"""Figures of the search study: search while a gallery is re-embedded, and matrices of a search metric."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.groups import in_order
from analysis.names import LineStyle, ordered, title
from analysis.plots.matrices import plot_matrices
from analysis.plots.parts import FRAME, TEXT, fit, heading, mean_line, page_panels, save, with_legend
from analysis.study import Frames
from cl2r.metrics import SHARE

ORDER_STYLES = (LineStyle("#333333", "o"), LineStyle("#333333", "s", dashed=True), LineStyle("#333333", "^", pattern=2))
"""Orders are no methods: they have dashes and no colour."""
ORDER_TITLES = {"random": "random order", "worst_first": "worst first", "oracle": "most moved first (oracle)"}
SHOWN = {"search_backfill": "mAP", "search_backfill_recall1": "recall@1"}
"""Metric of the backfill curves in a figure, by the name of its files."""
KINDS = ("png", "svg", "pdf")


def plot_backfill(runs: pd.DataFrame, backfill: pd.DataFrame, retrieval: pd.DataFrame, metric: str) -> Figure:
    """Draw the metric over the share of the gallery that is by φ_T, one panel per method, one line per order.

    Draws of a run are averaged; bands are over seeds. The dotted line is what model 1 finds in its own gallery.
    """
    methods = ordered([str(name) for name in backfill["method"]])
    last = int(retrieval["t"].max())
    words = heading(runs, f", queries by model {last}, gallery from model 1 to model {last}")
    before = "before the upgrade: model 1 alone, C[1,1]"
    figure, axes = page_panels(len(methods), words, [*ORDER_TITLES.values(), before])
    drawn = []
    for panel, method in zip(axes, methods, strict=True):
        own = backfill[(backfill["method"] == method) & (backfill["metric"] == metric)]
        for place, order in enumerate(in_order(own["order"])):
            curve = own[own["order"] == order].groupby(["run", "fraction"], as_index=False)["value"].mean()
            rows = pd.DataFrame({"x": curve["fraction"], "y": curve["value"]})
            drawn.append(mean_line(panel, rows, ORDER_TITLES[order], ORDER_STYLES[place], SHARE))
        first = (retrieval["t"] == 1) & (retrieval["k"] == 1) & (retrieval["metric"] == metric)
        height = float(retrieval.loc[first & (retrieval["method"] == method), "value"].mean())
        dotted = panel.axhline(height, color=FRAME, linestyle=":", linewidth=1.2, label=before)
        drawn.append(pd.DataFrame({"mean": [height], "low": np.nan, "high": np.nan}))
        panel.set_title(title(method), fontsize=TEXT)
        panel.set_xlabel("share of the gallery re-embedded")
    fit(figure, axes, pd.concat(drawn))
    axes[0].set_ylabel(metric)
    return with_legend(figure, axes, [dotted])


def plot_retrieval(runs: pd.DataFrame, retrieval: pd.DataFrame, metric: str) -> Figure:
    """Draw one mean matrix per method: the gain of new queries on an old gallery, by a search metric."""
    own = retrieval[retrieval["metric"] == metric]
    matrix = own.assign(pairs="report", accuracy=own["value"])
    return plot_matrices(Frames(runs, pd.DataFrame(), matrix, pd.DataFrame()))


def write_search_figures(
    runs: pd.DataFrame, backfill: pd.DataFrame, retrieval: pd.DataFrame, folder: Path
) -> list[Path]:
    """Write backfill curves and the matrix as PNG, SVG and PDF; return the files."""
    drawn = {name: plot_backfill(runs, backfill, retrieval, metric) for name, metric in SHOWN.items()}
    drawn["search_matrices"] = plot_retrieval(runs, retrieval, "mAP")
    return [path for name, figure in drawn.items() for path in save(figure, folder / name, KINDS)]
