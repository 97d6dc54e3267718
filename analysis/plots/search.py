"""Figures of the search study: what is found while a gallery is embedded anew, and C made of a metric of search."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.frames import Frames
from analysis.groups import in_order
from analysis.names import ordered, title
from analysis.plots.matrices import plot_matrices
from analysis.plots.parts import FRAME, TEXT, heading, mean_line, page_panels, save, with_legend
from analysis.style import nth_look

ORDER_TITLES = {"random": "random order", "worst_first": "worst first", "oracle": "most moved first (oracle)"}
SHOWN = {"search_backfill": "mAP", "search_backfill_recall1": "recall@1"}
"""By the name of its files, the metric of a figure of backfill curves."""
KINDS = ("png", "svg", "pdf")


def plot_backfill(runs: pd.DataFrame, backfill: pd.DataFrame, retrieval: pd.DataFrame, metric: str) -> Figure:
    """A panel a method: the metric over the share of the gallery that is by φ_T, a line an order.

    Draws of a run are averaged; bands are over seeds. The dotted line is what model 1 finds in its own gallery.
    """
    methods = ordered([str(name) for name in backfill["method"]])
    last = int(retrieval["t"].max())
    words = heading(runs, f", queries by model {last}, gallery from model 1 to model {last}")
    before = "before the upgrade: model 1 alone, C[1,1]"
    figure, axes = page_panels(len(methods), words, [*ORDER_TITLES.values(), before])
    for panel, method in zip(axes, methods, strict=True):
        own = backfill[(backfill["method"] == method) & (backfill["metric"] == metric)]
        for place, order in enumerate(in_order(own["order"])):
            curve = own[own["order"] == order].groupby(["run", "fraction"], as_index=False)["value"].mean()
            mean_line(panel, 100 * curve["fraction"], curve["value"], ORDER_TITLES[order], nth_look(place))
        height = _own_start(retrieval, method, metric)
        dotted = panel.axhline(height, color=FRAME, linestyle=":", linewidth=1.2, label=before)
        panel.set_title(title(method), fontsize=TEXT)
        panel.set_xlabel("gallery embedded anew, %")
    axes[0].set_ylabel(metric)
    return with_legend(figure, axes, [dotted])


def _own_start(retrieval: pd.DataFrame, method: str, metric: str) -> float:
    """C[1,1], mean over runs."""
    cell = (retrieval["t"] == 1) & (retrieval["k"] == 1) & (retrieval["metric"] == metric)
    return float(retrieval.loc[cell & (retrieval["method"] == method), "value"].mean())


def plot_retrieval(runs: pd.DataFrame, retrieval: pd.DataFrame, metric: str) -> Figure:
    """A mean matrix a method: what new queries gain on an old gallery, C[t,k] − C[k,k], by a metric of search."""
    own = retrieval[retrieval["metric"] == metric]
    matrix = own.assign(pairs="report", accuracy=own["value"])
    return plot_matrices(Frames(runs, pd.DataFrame(), matrix, pd.DataFrame()))


def write_search_figures(
    runs: pd.DataFrame, backfill: pd.DataFrame, retrieval: pd.DataFrame, folder: Path
) -> list[Path]:
    """Backfill curves and the matrix, each as PNG, SVG and PDF."""
    drawn = {name: plot_backfill(runs, backfill, retrieval, metric) for name, metric in SHOWN.items()}
    drawn["search_matrices"] = plot_retrieval(runs, retrieval, "mAP")
    return [path for name, figure in drawn.items() for path in save(figure, folder / name, KINDS)]
