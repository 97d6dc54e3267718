"""Optuna's figures in the page's look: its blues are lost on dark paper, its title and template are not needed."""

import json
import math
from typing import Any

from plotly.colors import sample_colorscale

from analysis.style import COLOURS, HIGHLIGHT

SCALE = [[0.0, "#56B4E9"], [0.5, "#8C8C8C"], [1.0, HIGHLIGHT]]
"""Seen on light and on dark paper, and with colour blindness."""


def own_look(plot: str, figure: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Data and layout of a figure of Optuna."""
    content = json.loads(figure.to_json())
    data, layout = content["data"], content["layout"]
    if {trace["type"] for trace in data} - {"scatter", "bar"}:
        raise ValueError("this version of Optuna draws it with WebGL, which this page does without")
    for name in ("template", "title", "plot_bgcolor", "width", "height"):
        layout.pop(name, None)
    for name, entry in layout.items():
        if "axis" in name and entry.get("title"):
            entry["title"]["standoff"] = 10
    for trace in data:
        _scaled(trace.get("marker", {}))
        _scaled(trace.get("line", {}))
    {"pareto": _pareto, "importance": _importance, "parallel": _parallel}.get(plot, _points)(data, layout)
    return data, layout


def _scaled(painted: dict[str, Any]) -> None:
    if "colorscale" in painted:
        painted |= {"colorscale": SCALE, "reversescale": False}
        painted["colorbar"] = {**painted.get("colorbar", {}), "thickness": 12, "x": 1.02, "xpad": 4}


def _points(data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Larger points, and no half trials on the axis or the scale that counts them."""
    for trace in data:
        if "markers" in trace.get("mode", ""):
            trace["marker"] = {**trace.get("marker", {}), "size": 8}
        steps = {"tick0": 0, "dtick": math.ceil(len(trace["x"]) / 10)}
        if "colorbar" in trace.get("marker", {}):
            trace["marker"]["colorbar"] |= steps
        if layout["xaxis"].get("title", {}).get("text") == "Trial":
            layout["xaxis"] |= steps


def _pareto(data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
    """The best trials stand out by colour and shape; in Optuna's figure a second scale of colours does that."""
    for trace in data:
        best = "Best" in trace.get("hovertemplate", "")
        trace["marker"] = {"color": HIGHLIGHT if best else "#8C8C8C", "symbol": "diamond" if best else "circle"}
        trace["marker"]["size"] = 10 if best else 8


def _importance(data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
    """Names of parameters say what they are; the figures behind the bars need some room."""
    longest = max((value for trace in data for value in trace["x"] if value is not None), default=1.0)
    layout.setdefault("xaxis", {})["range"] = [0, 1.15 * longest]
    layout.get("yaxis", {}).pop("title", None)
    for trace in data:
        trace["marker"] = {"color": COLOURS[0]}


def _parallel(data: list[dict[str, Any]], layout: dict[str, Any]) -> None:
    """A line by its place on the first axis, which is the objective."""
    for trace in data:
        if trace.get("mode") == "lines" and trace.get("y"):
            trace["line"] = {"color": sample_colorscale(SCALE, min(max(trace["y"][0], 0.0), 1.0))[0], "width": 2}
            trace["opacity"] = 0.8
