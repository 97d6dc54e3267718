"""The search study on the page: recall before and after upgrades, and while a gallery is re-indexed."""

import pandas as pd

from analysis.groups import in_order
from analysis.names import NEUTRAL, method_style, ordered, title
from analysis.report.figures import Figure, Trace, View, axes, looks, plain_text, seed_lines
from analysis.report.page import Section, shown_table, significant
from analysis.report.pictures import Picture
from analysis.searches import METRIC, STATES, estimate_text, state_estimates, state_values
from analysis.study import Study
from analysis.tables.search import search_tables

MARKERS = {"first": "circle-open", "upgraded": "circle", "reindexed": "diamond-open"}
ORDERS = {"random": "in random order", "worst_first": "worst first", "oracle": "most moved first (oracle)"}
LANE, HEIGHT = 78, 380  # pixels per method, and at least
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}


DEFINITIONS = (
    ("Recall@1", "share of searches whose first hit has the right class; no image is its own hit."),
    ("Oldest gallery", "the images that are searched, as vectors of the first model."),
    ("Re-indexed", "these vectors are computed again, by the last model."),
    (
        "Brackets and bars",
        "95 % intervals over seeds; with one seed over its queries, which hide how seeds would differ.",
    ),
)


def search_section(study: Study) -> Section:
    """Return the tables of the search study."""
    tables = enumerate(search_tables(study.search), start=1)
    return Section("search", "Search", tuple(shown_table(table, f"search-{place}") for place, table in tables))


def search_pictures(study: Study) -> list[Picture]:
    """Return recall before and after the upgrades, and while the gallery is re-indexed."""
    figures = (upgrade_figure(study), backfill_figure(study))
    return [Picture(f"{figure.id}-picture", figure.title, figure.caption, figure=figure) for figure in figures]


def upgrade_figure(study: Study) -> Figure:
    """Return one lane per method with recall before the upgrades, after them, and after re-indexing."""
    estimates = state_estimates(state_values(study.search["retrieval"]))
    methods = in_order([method for method, _ in estimates])
    traces: list[Trace] = []
    for place, state in enumerate(STATES):
        sample: Trace = {"type": "scatter", "mode": "markers", "name": STATES[state], "x": [None], "y": [None]}
        traces.append({**sample, "marker": {"color": NEUTRAL, "symbol": MARKERS[state], "size": 10}})
        for lane, method in enumerate(methods):
            found = estimates[method, state]
            height, colour = lane + 0.27 * (place - 1), method_style(method).colour
            point: Trace = {"type": "scatter", "mode": "markers", "showlegend": False, "cliponaxis": False}
            point |= {"x": significant([found.mean], 5), "y": [height]}
            point["marker"] = {"color": colour, "symbol": MARKERS[state], "size": 11}
            point["marker"] |= {"line": {"width": 2, "color": colour}}
            point["error_x"] = {"type": "data", "symmetric": False, "thickness": 2, "width": 5, "color": colour}
            point["error_x"] |= {"array": significant([found.high - found.mean], 5)}
            point["error_x"] |= {"arrayminus": significant([found.mean - found.low], 5)}
            hover = f"{plain_text(title(method))}, {STATES[state]}: {estimate_text(found)}<extra></extra>"
            label: Trace = {"type": "scatter", "mode": "text", "showlegend": False, "hoverinfo": "skip"}
            label |= {"x": significant([max(found.mean, found.high) + 0.012], 5), "y": [height]}
            label |= {"text": [f"{found.mean:.3f}"], "textposition": "middle right", "cliponaxis": False}
            traces += [{**point, "hovertemplate": hover}, label]
    layout = axes(METRIC, "", range=[0, 1.15], tickvals=[0, 0.2, 0.4, 0.6, 0.8, 1])
    names = [plain_text(title(method)) for method in methods]
    layout["yaxis"] = {"tickvals": list(range(len(methods))), "ticktext": names, "zeroline": False, "showgrid": False}
    layout["yaxis"]["range"] = [len(methods) - 0.45, -0.55]
    layout |= {"height": max(HEIGHT, 150 + LANE * len(methods)), "legend": LEGEND}
    over = "seeds" if any(found.n > 1 for found in estimates.values()) else "the queries of one seed"
    caption = (
        "Never upgraded: queries and gallery by the first model; upgraded: queries by the last model, on the oldest "
        f"gallery or on one that is re-indexed. Bars: 95 % intervals over {over}."
    )
    return Figure("search-upgrade", "Before and after the upgrades", caption, (View("", traces, layout),))


def backfill_figure(study: Study) -> Figure:
    """Return recall over the share of the gallery that has been re-indexed: one line per method, one view per order."""
    backfill, values = study.search["backfill"], state_values(study.search["retrieval"])
    estimates = state_estimates(values)
    own = backfill[(backfill["metric"] == METRIC) & backfill["run"].isin(values["run"])]
    own = own.assign(**{"method.name": own["method"], "group": own["method"].map(title)})
    own = pd.concat([own[own["method"] == method] for method in ordered(own["method"])])
    styles, views = looks(own), []
    for order in in_order(own["order"]):
        rows = own[own["order"] == order].rename(columns={"fraction": "x", "value": "y"})
        rows = rows.groupby(["group", "run", "x"])[["y"]].mean().reset_index()  # draws of a run
        traces = seed_lines(rows, styles, "re-indexed")
        for method in in_order(own["method"]):
            line: Trace = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "x": [0, 1], "showlegend": False}
            line |= {"y": significant([estimates[method, "first"].mean] * 2, 5), "legendgroup": title(method)}
            traces.append({**line, "line": {"color": method_style(method).colour, "dash": "dot", "width": 1.5}})
        dotted: Trace = {
            "type": "scatter",
            "mode": "lines",
            "name": "first model, never upgraded",
            "x": [None],
            "y": [None],
        }
        traces.append({**dotted, "line": {"color": NEUTRAL, "dash": "dot", "width": 1.5}})
        layout = axes("share of the gallery that is re-indexed", METRIC, dtick=0.2, range=[0, 1.01])
        layout["yaxis"]["range"] = [0, 1]
        layout |= {"height": HEIGHT, "legend": LEGEND}
        views.append(View(ORDERS[order], traces, layout))
    caption = (
        "Queries by the last model, while the oldest gallery is re-indexed image by image. Dotted: the first model "
        "before any upgrade."
    )
    return Figure("search-backfill", "While the gallery is re-indexed", caption, tuple(views))
