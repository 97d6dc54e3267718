"""Tables of the scaling study: workers that share a step, the fit, trials at the same time, predictions, metrics."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from analysis.tables.table import Cell, Table, deviation_note, number_cell, spread

if TYPE_CHECKING:
    from cl2r.study.scaling_model import StepModel

DRIFT_METRICS = ("BC", "mean_accuracy", "FC")


def scaling_table(data: pd.DataFrame, model: "StepModel | None", fitted: pd.DataFrame, no_fit: str = "") -> Table:
    """Return strong and weak scaling, with the model's time per step, or why there is no model."""
    heads = ("scaling", "workers", "rows each", "ms per step", "images/s", "efficiency", "communication", "model ms")
    formats = (".0f", ".0f", ".1f", ",.0f", ".0%", ".0%", ".1f")
    shown = data.assign(seconds=1e3 * data["seconds"], fitted_seconds=1e3 * data["fitted_seconds"])
    note = f"No model: {no_fit}."
    if model is not None:
        residuals = fitted["residual"].abs()
        rate = f"{1e-9 / model.seconds_per_flop:,.1f} GFLOP/s" if model.seconds_per_flop else "no time for FLOPs"
        note = (
            f"Model, fitted to {len(fitted)} samples: {rate} per worker, {1e3 * model.fixed_seconds:.2g} ms per "
            f"step in addition, all-reduce {model.ring}; relative residuals: median {residuals.median():.0%}, "
            f"largest {residuals.max():.0%}."
        )
    notes = (
        "Efficiency is relative to the speed of the fewest workers times their number; communication is the share of a "
        "step that vanishes when gradients are not averaged.",
        note,
    )
    return Table(heads, _cells(shown.drop(columns="speed_up"), 1, formats), data, "Workers that share a step", notes)


def samples_table(fitted: pd.DataFrame) -> Table:
    """Return every sample as measured and as fitted."""
    data = fitted.assign(measured=1e3 * fitted["measured"], fitted=1e3 * fitted["fitted"])
    return Table(("sample", "ms", "model ms", "residual"), _cells(data, 1, (",.3f", ",.3f", "+.0%")), data, "The fit")


def layouts_table(data: pd.DataFrame, link_images: int, batch: int) -> Table:
    """Return trials × threads on one machine."""
    heads = ("trials", "processes", "threads each", "images/s", "links per hour", "MB in total")
    shown = data.assign(bytes=data["bytes"] / 1e6)
    note = f"A link of the second task takes {link_images:,} images; batches of {batch} rows."
    formats = (".0f", ".0f", ",.0f", ",.1f", ",.0f")
    return Table(heads, _cells(shown, 1, formats), data, "Trials at the same time", (note,))


def predicted_table(data: pd.DataFrame, gpu: str, assumed: str, batch: int) -> Table:
    """Return the model's prediction for GPUs."""
    heads = ("network", "scaling", f"{gpu}s", "rows each", "ms per step", "communication", "images/s", "efficiency")
    columns = ["network", "mode", "workers", "rows", "seconds", "communication", "images_per_second", "efficiency"]
    shown = data.assign(seconds=1e3 * data["seconds"])[columns]
    sizes = data.drop_duplicates("network")[["network", "row_flops", "gradient_bytes"]].itertuples(index=False)
    counts = (
        f"{name}: {flops / 1e9:.2g} GFLOP per row, {size / 1e6:.3g} MB of gradients" for name, flops, size in sizes
    )
    notes = (f"Assumed, not measured: {assumed}.", f"Counted at task 2 of CL²R: {'; '.join(counts)}.")
    title = f"Predicted for batches of {batch} (strong: for all workers; weak: for each)"
    return Table(heads, _cells(shown, 2, (".0f", ".0f", ".1f", ".0%", ",.0f", ".0%")), data, title, notes)


def drift_table(runs: pd.DataFrame) -> Table:
    """Return mean ± deviation over seeds by number of workers, and paired differences from the fewest workers."""
    first, rows = runs["workers"].min(), []
    base = runs[runs["workers"] == first].set_index("seed")[list(DRIFT_METRICS)]
    for world, own in runs.groupby("workers"):
        values = own.set_index("seed")[list(DRIFT_METRICS)]
        rows.append((f"{world}", *(spread(name, values[name].mean(), values[name].std()) for name in DRIFT_METRICS)))
        if world != first:
            apart = values - base
            moments = (spread("BC", apart[name].mean(), apart[name].std()) for name in DRIFT_METRICS)
            rows.append((f"{world} − {first}, by seed", *moments))
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    note = deviation_note([runs["seed"].nunique()]) or "One seed: its spread is not known."
    return Table(("workers", *DRIFT_METRICS), cells, runs, "Metrics by number of workers", (note,))


def _cells(data: pd.DataFrame, words: int, formats: Sequence[str]) -> tuple[tuple[Cell, ...], ...]:
    """Return cells: the first columns are words, the others numbers in these formats."""
    return tuple(
        (
            *(Cell(str(value)) for value in row[:words]),
            *(number_cell(float(value), form) for value, form in zip(row[words:], formats, strict=True)),
        )
        for row in data.itertuples(index=False, name=None)
    )
