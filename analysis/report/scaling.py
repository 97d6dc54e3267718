"""The page of the scaling study: what more workers and more trials gain here, and what is predicted for GPUs."""

from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.groups import in_order
from analysis.headline import Headline
from analysis.names import NEUTRAL, nth_style
from analysis.report.figures import DASHES, SYMBOLS, Figure, Trace, View, axes, plain_text
from analysis.report.first_screen import FirstScreen
from analysis.report.page import render_page, shown_table, significant
from analysis.report.pictures import Picture
from analysis.tables.table import Table
from cl2r.runtime.text import listed

PANELS = {"speed_up": "speed-up", "efficiency": "efficiency"}
DEFINITIONS = (
    ("Strong scaling", "all workers share one batch, so each has fewer rows."),
    ("Weak scaling", "every worker has a batch of its own."),
    ("Speed-up", "images per second, divided by those of the fewest workers."),
    ("Efficiency", "speed-up, divided by how many times as many workers there are; 1 is ideal."),
)
AT_ONCE = "at the same time"
FEW = 4  # speed-ups up to this are drawn on a linear scale, larger ones on a logarithmic one
Frames = Mapping[str, pd.DataFrame]


def scaling_headline(preset: str, frames: Frames, fitted: pd.DataFrame, measured: str, gpu: str, most: int) -> Headline:
    """Return the headline: what workers and trials gain as measured, and what is predicted for up to `most` GPUs.

    `fitted` has the residuals of the model, if there is one; `measured` says how times were measured.
    """
    data, layouts, predicted = frames["scaling"], frames["trials"], frames["predicted"]
    found = []
    workers = sorted({int(count) for count in data["workers"]})
    if len(workers) > 1:
        gains = data[data["workers"] == workers[-1]].set_index("mode")["speed_up"].astype(float)
        found.append(
            f"{workers[-1]} workers train {gains['strong']:.2f} times as fast as {workers[0]} if they share a batch, "
            f"{gains['weak']:.2f} times with a batch each"
        )
    rates = layouts[layouts["name"].str.contains(AT_ONCE)].groupby("processes")["images_per_second"].max()
    trials = [int(str(count)) for count in rates.index]
    if len(trials) > 1:
        gain = rates.iloc[-1] / rates.iloc[0]
        found.append(f"{trials[-1]} trials {AT_ONCE} train {gain:.2f} times as fast as {trials[0]}")
    node = predicted[(predicted["mode"] == "strong") & (predicted["workers"] <= most)]
    node = node[node["workers"] == node["workers"].max()]
    expected = [f"{gain:.2f} ({name})" for gain, name in zip(node["speed_up"], node["network"], strict=True)]
    certainty = f"{measured}; constants for {gpu}s are assumed"
    if len(fitted):
        residuals = 100 * fitted["residual"].abs()
        certainty += f", and the model misses the times measured here by {residuals.median():.0f} % in the median"
    asked = {"workers": workers, "trials": trials}
    counts = [f"{listed([str(count) for count in own])} {word}" for word, own in asked.items()]
    return Headline(
        f"Scaling on {preset}: {', '.join(counts)} {AT_ONCE}",
        f"{'; '.join(found) or 'One number of workers and of trials was measured, so no gain is known'}. "
        f"{int(node['workers'].max())} {gpu}s that share a batch are predicted, not measured, to train "
        f"{listed(expected)} times as fast as 1.",
        f"{certainty}.",
    )


def measured_figure(data: pd.DataFrame) -> Figure:
    """Return what was measured by mode as points, with lines of the fitted model if there is one."""
    faster = data["seconds"] / data["fitted_seconds"]
    model = data.assign(speed_up=data["speed_up"] * faster, efficiency=data["efficiency"] * faster)
    lines = []
    for place, mode in enumerate(in_order(data["mode"])):
        own, style = data["mode"] == mode, nth_style(place)
        marker = {"color": style.colour, "symbol": SYMBOLS[style.marker], "size": 10}
        lines.append((f"{mode}, measured", data[own], {"mode": "markers", "marker": marker}))
        if faster.notna().any():
            look = {"mode": "lines", "line": {"color": style.colour, "width": 2, "dash": DASHES[place]}}
            lines.append((f"{mode}, model", model[own], look))
    caption = "Strong: one batch for all workers; weak: one batch per worker. Dotted: ideal."
    return Figure("measured", "Measured here", caption, _views(lines, "workers"))


def predicted_figure(predicted: pd.DataFrame, gpu: str) -> Figure:
    """Return one line per network and mode, dashed if every GPU has a batch of its own."""
    networks, lines = in_order(predicted["network"]), []
    for (network, mode), own in predicted.groupby(["network", "mode"], sort=False):
        style, weak = nth_style(networks.index(str(network))), mode == "weak"
        look = {"mode": "lines+markers", "line": {"color": style.colour, "width": 2, "dash": DASHES[int(weak)]}}
        look["marker"] = {"symbol": SYMBOLS[style.marker] + "-open" * weak, "size": 8}
        lines.append((f"{network}, {mode}", own, look))
    caption = "From counted FLOPs and bytes and from assumed constants, see the table. Dotted: ideal."
    return Figure("predicted", f"Predicted for {gpu}s, not measured", caption, _views(lines, f"{gpu}s"))


def _views(lines: Sequence[tuple[str, pd.DataFrame, Trace]], name: str) -> tuple[View, ...]:
    """Return speed-up and efficiency over the workers, whose axis has a scale of powers of two."""
    counts = sorted({int(count) for _, own, _ in lines for count in own["workers"]})
    views = []
    for column, words in PANELS.items():
        ideal = [count / counts[0] if column == "speed_up" else 1.0 for count in counts]
        dotted: Trace = {"type": "scatter", "mode": "lines", "name": "ideal", "x": counts, "y": ideal}
        traces = [{**dotted, "line": {"color": NEUTRAL, "dash": "dot", "width": 1.5}, "hoverinfo": "skip"}]
        for label, own, look in lines:
            label = plain_text(label)
            trace: Trace = {"type": "scatter", "name": label, "x": own["workers"].tolist(), **look}
            hover = f"{label}<br>%{{x}} {name}: %{{y:.3f}}<extra></extra>"
            traces.append({**trace, "y": significant(own[column], 5), "hovertemplate": hover})
        ticks = {"tickvals": counts, "ticktext": [str(count) for count in counts]}
        layout = axes(name, words, type="log", **ticks)
        high = max(max(value or 0.0 for value in trace["y"]) for trace in traces)
        layout["yaxis"] |= {"type": "log", **ticks} if high > FEW else {"range": [0, 1.08 * high]}
        layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
        views.append(View(words, traces, layout))
    return tuple(views)


def scaling_page(headline: Headline, frames: Frames, tables: Sequence[Table], gpu: str, about: str) -> str:
    """Return the page as HTML; `about` says what was measured and where."""
    figures = [measured_figure(frames["scaling"]), predicted_figure(frames["predicted"], gpu)]
    pictures = tuple(Picture(f"{one.id}-picture", one.title, one.caption, figure=one) for one in figures)
    shown = [shown_table(table, f"table-{place}") for place, table in enumerate(tables, start=1)]
    content = {"name": about, "first": FirstScreen(headline, pictures, DEFINITIONS), "tables": shown}
    return render_page(content, {}, figures, shown)
