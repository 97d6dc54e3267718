"""The compatibility matrices of a few groups side by side, in one scale of colours."""

import math

import pandas as pd
from markupsafe import Markup

from analysis.matrices import cells_of
from analysis.names import method_style
from analysis.report.page import floats
from analysis.report.pictures.drawing import drawing, marker, tag, written
from analysis.report.pictures.groups import Picture, Value, methods_of, values_of
from analysis.study import Study
from analysis.tables.table import signed
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.metrics import AC, BC
from cl2r.runtime.text import counted

SIDES = {3: 230.0, 6: 150.0, 9: 124.0}  # of a matrix, by the largest number of matrices
ROOM = 14.0  # a cell of this size has room for a number, and for a dotted frame
ONE_ROW = 3  # matrices


def matrices_picture(study: Study, runs: pd.DataFrame) -> Picture:
    """Return the matrices of all groups side by side; `runs` are finished and have their `group`."""
    name = "Compatibility matrices"
    cells = _mean_cells(study, runs)
    sizes = (cells["accuracy"] - cells["own"]).abs()[cells["t"] > cells["k"]].dropna()
    if sizes.empty:
        return Picture("matrices", name, "No run has an older gallery.")
    limit = max(0.01, float(f"{sizes.quantile(0.95):.2g}"))
    methods, scores = methods_of(runs), values_of(runs, AC, ["group"])
    side = next((side for most, side in SIDES.items() if cells["group"].nunique() <= most), SIDES[9])
    parts = {
        label: _matrix(label, method, cells[cells["group"] == label], side, limit, scores.get(label, Value()))
        for label, method in methods.items()
        if label in set(cells["group"])
    }
    grid = _grid(list(parts.values()), side, [methods[label] for label in parts] == list(ABLATION_CELLS))
    dotted = bool(cells["compatible"].between(0, cells["seeds"], inclusive="neither").any())
    room = side / cells["t"].max() >= ROOM
    legend = _legend(limit, bool((sizes > limit).any()), cells["seeds"].max() > 1, dotted and room)
    caption = "Blue: model t searches model k's gallery better than model k itself does; orange: worse."
    return Picture("matrices", name, caption, grid + legend)


def _mean_cells(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Return every cell's mean over seeds: group, t, k, accuracy, own (C[k,k]).

    `seeds` is their number, `compatible` the number of those in which the cell is compatible.
    """
    columns = ["run", "pairs", "t", "k", "accuracy", "compatible"]  # as if a run had finished
    cells = cells_of(
        study.matrix.reindex(columns=[*study.matrix, *(name for name in columns if name not in study.matrix)])
    )
    cells = cells.assign(group=cells["run"].map(dict(zip(runs["run"], runs["group"].astype(str), strict=True))))
    cells = cells.assign(accuracy=floats(cells["accuracy"]), compatible=floats(cells["compatible"]))
    table = (
        cells.dropna(subset=["group", "accuracy"]).astype({"t": int, "k": int}).groupby(["group", "t", "k"], sort=True)
    )
    means = table.agg(accuracy=("accuracy", "mean"), seeds=("accuracy", "count"), compatible=("compatible", "sum"))
    means = means.reset_index()
    own = means[means["t"] == means["k"]].set_index(["group", "k"])["accuracy"]
    return means.assign(own=own.reindex(pd.MultiIndex.from_frame(means[["group", "k"]])).to_numpy())


def _grid(parts: list[Markup], side: float, ablation: bool) -> Markup:
    """Return the matrices in one or two rows; those of the ablation by classifier and distillation."""
    if ablation:
        heads = [tag("span", text, class_="head") for text in ("", "no distillation", "FD", "FD^M")]
        sides = [tag("span", f"{text} classifier", class_="head side") for text in ("Trainable", "Fixed")]
        parts = [*heads, sides[0], *parts[:3], sides[1], *parts[3:]]
        return tag("div", *parts, class_="small-matrices ablation", style=f"--wide: 3; --narrow: 3; --size: {side:g}px")
    wide = len(parts) if len(parts) <= ONE_ROW else math.ceil(len(parts) / 2)
    style = f"--wide: {wide}; --narrow: {min(wide, 3)}; --size: {side:g}px"
    return tag("div", *parts, class_="small-matrices", style=style)


def _matrix(label: str, method: str, cells: pd.DataFrame, size: float, limit: float, score: Value) -> Markup:
    """Return one matrix with its title."""
    tasks = int(cells["t"].max())
    side = size / tasks
    width = size if side >= ROOM else size + 16
    drawn = []
    for t, k, accuracy, seeds, compatible, own in cells.drop(columns="group").itertuples(index=False, name=None):
        if t == k:
            drawn.append(_own_cell(k, accuracy, side))
        else:
            drawn.append(_cell(t, k, accuracy, own, side, limit, (int(compatible), int(seeds))))
    lower = cells[cells["t"] > cells["k"]]
    every, some = int((lower["compatible"] == lower["seeds"]).sum()), int((lower["compatible"] > 0).sum())
    words = [f"Compatible in every seed: {every} of {counted(len(lower), 'cell')}; in at least one: {some}."]
    if score.known:
        words.append(f"AC {score.text(AC)}.")
        drawn += [written(f"AC {score.mean:.3f}", width, 11, "number", "end")] if tasks > 2 else []
    look = "drawing matrix-drawing" + ("" if side >= ROOM else " fine")
    svg = drawing(width, size, f"Compatibility matrix of {label}", words, *drawn, class_=look)
    chip = tag("svg", marker(method_style(method), 7, 7), viewBox="0 0 14 14", class_="chip", aria_hidden="true")
    return tag("figure", tag("figcaption", chip, tag("span", label)), svg)


def _own_cell(k: int, accuracy: float, side: float) -> Markup:
    """Return a cell of the diagonal with the number of its model, which names row and column."""
    words = tag("title", f"queries and gallery by φ_{k}: {accuracy:.3f}")
    cell = tag("rect", words, **_square(k, k, side, 0.5), class_="self")
    if side >= ROOM:
        return cell + written(k, (k - 0.5) * side, (k - 0.5) * side + 4, "number", "middle")
    return cell + written(k, k * side + 3, k * side, "number") if k == 1 or k % 5 == 0 else cell


def _cell(t: int, k: int, accuracy: float, own: float, side: float, limit: float, share: tuple[int, int]) -> Markup:
    """Return a cell below the diagonal; `share` says in how many seeds of how many it is compatible."""
    gain, (compatible, seeds) = accuracy - own, share
    words = f"queries by φ_{t}, gallery by φ_{k}: {accuracy:.3f}"
    if math.isfinite(gain):
        words += f", {signed(BC.name, gain)} against {own:.3f}"
    alone = "compatible" if compatible else "not compatible"
    words += f", {alone}" if seeds == 1 else f", compatible in {compatible} of {seeds} seeds"
    amount = min(abs(gain) / limit, 1.0) if math.isfinite(gain) else 0.0
    looks = ["cell", "plus" if gain > 0 else "minus"]
    if compatible and (compatible == seeds or side >= ROOM):
        looks.append("framed" if compatible == seeds else "framed some")
    gap = 1.2 if len(looks) > 2 and side >= ROOM else 0.5
    place = _square(t, k, side, gap)
    return tag("rect", tag("title", words), class_=" ".join(looks), style=f"--amount: {amount:.3f}", **place)


def _square(t: int, k: int, side: float, gap: float) -> dict[str, float]:
    return {"x": (k - 1) * side + gap, "y": (t - 1) * side + gap, "width": side - 2 * gap, "height": side - 2 * gap}


def _legend(limit: float, beyond: bool, several: bool, dotted: bool) -> Markup:
    """Return the line that names the axes, the colours and the frames, once for all matrices."""
    ends = (f"≤ -{limit:g}", f"≥ +{limit:g}") if beyond else (f"-{limit:g}", f"+{limit:g}")
    parts = [
        tag("span", "queries by model t ↓, gallery by model k →"),
        tag("span", ends[0], tag("span", class_="ramp"), ends[1]),
        tag("span", tag("span", class_="sample framed"), "compatible" + (" in every seed" if several else "")),
    ]
    if dotted:
        parts.append(tag("span", tag("span", class_="sample framed some"), "in some"))
    return tag("p", *parts, class_="matrices-legend")
