"""Tables of the search study (studies/search.py), and the document that holds them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.groups import in_order
from analysis.names import ordered, title
from analysis.paper.report import origin
from analysis.stats import t_interval
from analysis.tables.formats import render
from analysis.tables.table import (
    EMPTY,
    Cell,
    Table,
    command_line_names,
    deviation_note,
    interval_cell,
    metric_cell,
    number_cell,
)

ORDER_WORDS = {"random": "random", "worst_first": "worst first", "oracle": "oracle"}
TELLING = ("recall@1", "mAP")  # metrics of tables that have no room for all of them
STEPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
DIFFERENCES = ("BC", "FC")
BRACKETS = "Brackets: 95 % t-interval of the mean over seeds; differences between methods are paired by seed."


def search_tables(measured: dict[str, pd.DataFrame]) -> list[Table]:
    """Return all tables, from the frames of the study."""
    values = run_values(measured["retrieval"], measured["compatibility"])
    of_methods = [
        found_table(values),
        upgrade_table(values),
        queries_table(measured["compatibility"]),
        backfill_table(measured["backfill"], measured["retrieval"]),
        formats_table(measured["formats"]),
    ]
    hints = command_line_names(values["method"])
    return [*(replace(table, hints=hints) for table in of_methods), indexes_table(measured["indexes"])]


def run_values(retrieval: pd.DataFrame, compatibility: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run and metric: C[1,1], C[T,1], C[T,T], their differences, and AC, BC, FC."""
    last = int(retrieval["t"].max())
    keys = ["method", "seed", "run", "metric"]
    cells = {f"C[{t},{k}]": (retrieval["t"] == t) & (retrieval["k"] == k) for t, k in ((1, 1), (last, 1), (last, last))}
    parts = [retrieval[chosen].set_index(keys)["value"].rename(name) for name, chosen in cells.items()]
    summaries = compatibility.pivot(index=keys, columns="summary", values="value")
    table = pd.concat([*parts, summaries[["AC", "BC", "FC"]]], axis=1)
    before, between, after = cells
    table[f"{between} − {before}"] = table[between] - table[before]
    table[f"{after} − {between}"] = table[after] - table[between]
    return table.reset_index()


def _matrix_columns(values: pd.DataFrame) -> list[str]:
    """Return the columns C[1,1], C[T,1], C[T,T]."""
    return [str(name) for name in values.columns if str(name).startswith("C[")][:3]


def _methods(frame: pd.DataFrame) -> list[str]:
    return ordered([str(name) for name in frame["method"]])


def found_table(values: pd.DataFrame) -> Table:
    """Return means ± one standard deviation over seeds, one row per metric and method."""
    columns = [*_matrix_columns(values), "AC", "BC", "FC"]
    rows = []
    for metric in in_order(values["metric"]):
        for method in _methods(values):
            own = values[(values["metric"] == metric) & (values["method"] == method)]
            cells = (metric_cell(name, own[name].mean(), own[name].std()) for name in columns)
            rows.append((Cell(metric), Cell(title(method)), *cells))
    notes = (
        "C[t,k]: queries by φ_t, gallery by φ_k. The old system, the upgraded one, and the re-embedded one.",
        deviation_note([values["seed"].nunique()]),
    )
    return Table(("metric", "method", *columns), tuple(rows), values, "1:N search", tuple(filter(None, notes)))


def upgrade_table(values: pd.DataFrame) -> Table:
    """Return what an upgrade gains without re-indexing, what re-indexing would add, and how methods differ."""
    before, between, after = _matrix_columns(values)
    columns = [f"{between} − {before}", f"{after} − {between}", between, after, "BC"]
    rows = []
    for metric in TELLING:
        by_method = {
            method: own.set_index("seed")[columns].astype(float)
            for method, own in values[values["metric"] == metric].groupby("method")
        }
        names = ordered([str(name) for name in by_method])
        shown = {title(name): by_method[name] for name in names}
        shown |= {f"{title(name)} − {title(names[0])}": by_method[name] - by_method[names[0]] for name in names[1:]}
        for label, own in shown.items():
            cells = (_bracketed(own[name], "−" in name or "−" in label or name in DIFFERENCES) for name in columns)
            rows.append((Cell(metric), Cell(label), *cells))
    return Table(("metric", "method", *columns), tuple(rows), values, "What an upgrade brings", (BRACKETS,))


def _bracketed(values: pd.Series, difference: bool) -> Cell:
    """Return the mean, with its interval if there are several seeds."""
    found = t_interval(values)
    return interval_cell("BC" if difference else "", found.mean, found.low, found.high)


def queries_table(compatibility: pd.DataFrame) -> Table:
    """Return BC and FC of every run with their intervals over queries."""
    columns = [(name, metric) for name in DIFFERENCES for metric in TELLING]
    rows = []
    for method in _methods(compatibility):
        for seed, own in compatibility[compatibility["method"] == method].groupby("seed"):
            cells = []
            for name, metric in columns:
                row = own[(own["summary"] == name) & (own["metric"] == metric)].iloc[0]
                cells.append(interval_cell("BC", row["value"], row["low"], row["high"]))
            rows.append((Cell(title(method)), Cell(str(seed), float(str(seed))), *cells))
    heads = ("method", "seed", *(f"{name} by {metric}" for name, metric in columns))
    notes = ("Brackets: 95 % bootstrap over queries. They hold for these classes; for others they are too narrow.",)
    return Table(heads, tuple(rows), compatibility, "Run by run", notes)


def backfill_table(backfill: pd.DataFrame, retrieval: pd.DataFrame) -> Table:
    """Return means over runs at some fractions, the mean over all fractions, and the gain over a random order."""
    areas = backfill_areas(backfill)
    own_start = (retrieval["t"] == 1) & (retrieval["k"] == 1)
    before = retrieval[own_start].set_index(["run", "metric"])["value"]
    rows = []
    for metric in TELLING:
        for method in _methods(backfill):
            chosen = (backfill["metric"] == metric) & (backfill["method"] == method)
            for order in in_order(backfill["order"]):
                curves = backfill[chosen & (backfill["order"] == order)].pivot_table("value", "run", "fraction")
                heights = (number_cell(curves[step].mean(), ".3f") for step in STEPS)
                needed = pd.Series([fraction_to(before[str(run), metric], curve) for run, curve in curves.iterrows()])
                own = areas[(areas[["metric", "method", "order"]] == [metric, method, order]).all(axis=1)]
                gain = Cell(EMPTY) if order == "random" else _bracketed(own["gain"], True)
                labels = (Cell(metric), Cell(title(method)), Cell(ORDER_WORDS[order]))
                mean = metric_cell("", own["area"].mean(), own["area"].std())
                rows.append((*labels, *heights, mean, gain, number_cell(100 * needed.mean(skipna=False), ".0f")))
    steps = [f"{100 * step:.0f} %" for step in STEPS]
    heads = ("metric", "method", "order", *steps, "mean", "above random", "as before at %")
    last = int(retrieval["t"].max())
    draws, spread = int(backfill["draw"].max()) + 1, float(areas["spread"].max())
    notes = (
        f"Gallery from φ_1 to φ_{last}, queries by φ_{last}; at 0 % it is C[{last},1], at 100 % C[{last},{last}].",
        f"Random: mean of {draws} draws per run, whose means have a standard deviation of at most {spread:.3f}.",
        "Worst first: old vectors far from their ten nearest. Oracle: those the upgrade moves most; not a policy.",
        "As before: the share at which search is as good as φ_1 was alone, C[1,1].",
        BRACKETS,
    )
    return Table(heads, tuple(rows), backfill, "Search while the gallery is re-embedded", notes)


def fraction_to(goal: float, curve: pd.Series) -> float:
    """Return where a curve over fractions, linear between its points, first reaches the goal; NaN if it never does."""
    heights, places = curve.to_numpy(dtype=float), curve.index.to_numpy(dtype=float)
    above = heights >= goal
    if not above.any():
        return float("nan")
    end = int(above.argmax())
    around = slice(max(end - 1, 0), end + 1)
    return float(np.interp(goal, heights[around], places[around]))


def backfill_areas(backfill: pd.DataFrame) -> pd.DataFrame:
    """Return, per metric, order and run, the curve's mean height, its deviation over draws and its gain over random."""
    keys = ["metric", "method", "order", "run"]
    curves = backfill.pivot_table(index=[*keys, "draw"], columns="fraction", values="value")
    weights = pd.Series(1.0, curves.columns)
    weights.iloc[[0, -1]] = 0.5  # fractions are evenly spaced: the trapezoidal rule
    heights = curves.mul(weights / weights.sum()).sum(axis=1).groupby(keys)
    table = pd.DataFrame({"area": heights.mean(), "spread": heights.std()}).reset_index()
    base = table.loc[table["order"] == "random", ["metric", "run", "area"]].rename(columns={"area": "base"})
    return table.merge(base, on=["metric", "run"]).assign(gain=lambda rows: rows["area"] - rows["base"])


def formats_table(formats: pd.DataFrame) -> Table:
    """Return means over seeds by format of the gallery's vectors."""
    places = sorted({(int(t), int(k)) for t, k in zip(formats["t"], formats["k"], strict=True)})
    columns = [(metric, t, k) for metric in TELLING for t, k in places]
    groups = dict(iter(formats.groupby(["method", "format", "metric", "t", "k"])["value"]))
    rows = []
    for method in _methods(formats):
        for form in in_order(formats["format"]):
            size = formats.loc[(formats["method"] == method) & (formats["format"] == form), "bytes"].max()
            values = [groups[method, form, *column] for column in columns]
            cells = (metric_cell("", own.mean(), own.std()) for own in values)
            rows.append((Cell(title(method)), Cell(form), number_cell(float(size), ".0f"), *cells))
    heads = ("method", "format", "bytes", *(f"{metric} C[{t},{k}]" for metric, t, k in columns))
    notes = (
        "The gallery is stored in this format, queries are float32. Codes (pq) are not compared again by full vectors.",
        deviation_note([formats["seed"].nunique()]),
        "" if any(form.startswith("pq") for form in formats["format"]) else "Too few rows to learn codes from.",
    )
    return Table(heads, tuple(rows), formats, "Formats of vectors", tuple(filter(None, notes)))


def indexes_table(indexes: pd.DataFrame) -> Table:
    """Return means over all runs by kind of index."""
    rows = []
    for kind in in_order(indexes["kind"]):
        own = indexes[indexes["kind"] == kind]
        speed = number_cell(own["queries_per_second"].mean(), ",.0f")
        rows.append((Cell(kind), number_cell(own["recall@10"].mean(), ".3f"), speed))
    note = (
        f"{int(indexes['rows'].max()):,} vectors, all queries at once: recall holds for this gallery, "
        "speed says little about large ones."
    )
    heads = ("index", "recall@10 against exact", "queries/s")
    return Table(heads, tuple(rows), indexes, "Indexes on the run's own gallery", (note,))


def search_document(
    frames: dict[str, pd.DataFrame], tables: Sequence[Table], command: str, images: Sequence[str] = ()
) -> str:
    """Return the tables as a Markdown document that says how they were made."""
    pictures = [f"![{name.removesuffix('.png')}]({name})" for name in images]
    head = "# Search after upgrades: a gallery by an old model, queries by a new one"
    return "\n\n".join([head, origin(frames, command), *pictures, render(list(tables), "markdown")]) + "\n"
