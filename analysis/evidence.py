"""Tables and plots of studies/results/which-method-when.md, from the runs that are kept beside it.

    python -m analysis.evidence                       # rewrite what stands between the page's markers, and its plots

Text between `<!-- NAME -->` and `<!-- end of NAME -->` is a table of this module; everything else is written by hand.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.kept import load_kept
from analysis.matrices import bc_by_task, cells_of, matrices, square
from analysis.names import STYLES, metric_of, ordered, title
from analysis.paper.items import ITEMS
from analysis.paper.report import Report, verdicts_table
from analysis.plots import parts
from analysis.stats import EVERYWHERE, Estimate, line_points, t_interval
from analysis.study import Study
from analysis.tables.formats import render
from analysis.tables.table import EMPTY, Cell, Table, interval_cell, number_cell
from cl2r.compatibility import backward_compatibility
from cl2r.metrics import AC, BC, FIRST_ACCURACY, REINDEXED_ACCURACY, SERVICE_ACCURACY, SERVICE_RECALL

RESULTS = Path(__file__).parents[1] / "studies" / "results"
PAGE, RUNS = RESULTS / "which-method-when.md", RESULTS / "which-method-when.json"
CELLS = ("er", "er_fdm", "fixed", "cl2r")
REGIMES = {
    "equal": "ten equal tasks",
    "equal_centred": "ten equal tasks, centred",
    "half_first": "half of the classes first",
    "half_first_centred": "half of the classes first, centred",
}
"""Titles of the variants with all tasks and three seeds."""
LONG = {
    "epochs_70": "ten equal tasks, 70 epochs",
    "epochs_70_centred": "ten equal tasks, 70 epochs, centred",
}
"""Titles of the variants with all tasks and the paper's epochs; the same with 14 are `equal` and `equal_centred`."""
SHOWN = (SERVICE_ACCURACY, REINDEXED_ACCURACY, FIRST_ACCURACY, BC, AC, SERVICE_RECALL)
HEADS = {FIRST_ACCURACY.name: "never upgrade"}
CUT = (SERVICE_ACCURACY, REINDEXED_ACCURACY, FIRST_ACCURACY, BC, AC)
"""Metrics of chains that are cut to their first tasks."""
SHORT = {
    "three": "first three of ten tasks",
    "three_centred": "first three of ten tasks, centred",
    "two_70": "first two of ten tasks, 70 epochs",
    "two_70_centred": "first two of ten tasks, 70 epochs, centred",
    "resnet32": "first two of ten tasks, 70 epochs, ResNet-32",
    "resnet32_centred": "first two of ten tasks, 70 epochs, ResNet-32, centred",
}
CHANGES = {
    "three_centred": "centred",
    "three_masked": "softmax over the classes seen only",
    "three_legacy": "simplex of the legacy scale",
    "three_signed": "signed features, no last ReLU",
    "three_mlp": "mlp projection",
    "three_natural": "natural batches",
    "three_preallocated": "all outputs from the start",
}
"""One change each, compared with the variant `three`."""
LEADS = (
    ("both as they are", "three", "three"),
    ("both centred", "three_centred", "three_centred"),
    ("both with natural batches", "three_natural", "three_natural"),
    ("CL²R with a softmax over the classes seen, ER as it is", "three_masked", "three"),
    ("CL²R as it is, ER with all outputs from the start", "three", "three_preallocated"),
)
LINKS = {
    "common_direction": "common direction",
    "drift_cosine": "cos to φ(t−1)",
    "rotated_cosine": "after rotation",
    "cka": "CKA",
    "vertex_cosine": "cos to vertex",
    "vertex_bound": "its bound",
    "train_accuracy": "training accuracy",
}


Row = Sequence[Cell | str]


def of_variant(study: Study, variant: str, method: str | None = None) -> pd.DataFrame:
    """Return the runs of a variant, or those of one of its methods, by seed."""
    runs = study.runs[study.runs["variant"] == variant]
    return (runs if method is None else runs[runs["method.name"] == method]).set_index("seed").sort_index()


def estimate(values: pd.Series) -> Estimate:
    """Return the mean over seeds with its t-interval, clipped to the bounds of the metric that the column holds."""
    found, metric = t_interval(values.dropna().to_numpy(dtype=float)), metric_of(str(values.name))
    low, high = metric.bounds if metric is not None else EVERYWHERE
    return replace(found, low=max(found.low, low), high=min(found.high, high))


def cell(metric: str, found: Estimate) -> Cell:
    """Return the cell of a mean, with its interval if there are two seeds or more."""
    return interval_cell(metric, found.mean, found.low, found.high) if found.n else Cell(EMPTY)


def gain_cell(found: Estimate) -> Cell:
    """Return the cell of a difference, with its sign."""
    return cell(BC.name, found)


def difference(one: pd.DataFrame, other: pd.DataFrame, metric: str) -> Estimate:
    """Return the mean difference over the seeds that both have."""
    return estimate((one[metric] - other[metric]).rename("difference"))


def made(columns: Sequence[str], rows: Iterable[Row], note: str) -> Table:
    """Return a table of these rows, whose texts become cells without a number."""
    shown = tuple(tuple(Cell(one) if isinstance(one, str) else one for one in row) for row in rows)
    data = pd.DataFrame([[one.text if one.value is None else one.value for one in row] for row in shown])
    return Table(tuple(columns), shown, data, notes=(note,))


def report_cells(study: Study, runs: pd.Series) -> pd.DataFrame:
    """Return the cells of the matrices of these runs on the report pairs."""
    return cells_of(study.matrix[study.matrix["run"].isin(runs)])


def outcome(study: Study) -> Table:
    """Return one row per regime and method, means over seeds with intervals."""
    rows: list[Row] = []
    for (variant, name), method in itertools.product({**REGIMES, **LONG}.items(), CELLS):
        runs = of_variant(study, variant, method)
        if len(runs):
            found = [cell(metric.name, estimate(runs[metric.name])) for metric in SHOWN]
            rows.append((name, title(method), *found, str(len(runs))))
    heads = [HEADS.get(metric.name, metric.head) for metric in SHOWN]
    return made(
        ("regime", "method", *heads, "seeds"),
        rows,
        "Report pairs. Brackets: 95 % t-interval over the seeds; a row of one seed is a sketch.",
    )


def regimes(study: Study) -> Table:
    """Return one row per regime: the method that serves best, and how sure its lead is."""
    rows: list[Row] = []
    served = SERVICE_ACCURACY.name
    for variant, name in REGIMES.items():
        runs = study.runs[study.runs["variant"] == variant]
        means = runs.groupby("method.name")[served].mean().sort_values(ascending=False)
        best, second = map(str, means.index[:2])
        own = of_variant(study, variant, best)
        gains: list[Cell | str] = [
            gain_cell(difference(own, of_variant(study, variant, other), served)) if other != best else EMPTY
            for other in (second, "er", "cl2r")
        ]
        gains.append(gain_cell(estimate((own[served] - own[FIRST_ACCURACY.name]).rename("difference"))))
        rows.append((name, title(best), number_cell(means.iloc[0], ".3f"), title(second), *gains))
    columns = ("regime", "serves best", SERVICE_ACCURACY.head, "next")
    heads = ("over the next", "over ER", "over CL²R", "over never upgrading")
    return made(
        (*columns, *heads),
        rows,
        "Differences in service accuracy, paired by seed; brackets: 95 % t-interval over three seeds.",
    )


def centring(study: Study) -> Table:
    """Return what centring does to every method, and to the lead of CL²R over ER, with all tasks."""
    rows: list[Row] = []
    metrics = (SERVICE_ACCURACY, REINDEXED_ACCURACY, BC, AC)
    for split in ("equal", "half_first"):
        pairs = [(title(method), (f"{split}_centred", method), (split, method)) for method in CELLS]
        pairs += [("CL²R − ER, as it is", (split, "cl2r"), (split, "er"))]
        pairs += [("CL²R − ER, centred", (f"{split}_centred", "cl2r"), (f"{split}_centred", "er"))]
        for words, one, other in pairs:
            runs = of_variant(study, *one), of_variant(study, *other)
            found = [gain_cell(difference(*runs, metric.name)) for metric in metrics]
            rows.append((REGIMES[split], words, *found))
        gains = [lead(study, f"{split}_centred", metric.name) - lead(study, split, metric.name) for metric in metrics]
        found = [gain_cell(estimate(gain.rename("difference"))) for gain in gains]
        rows.append((REGIMES[split], "CL²R − ER, centred less as it is", *found))
    columns = ("classes", "centred − as it is", *(metric.head for metric in metrics))
    return made(columns, rows, "Differences paired by seed; brackets: 95 % t-interval over three seeds.")


def lead(study: Study, variant: str, metric: str) -> pd.Series:
    """Return how far CL²R is above ER, by seed."""
    return of_variant(study, variant, "cl2r")[metric] - of_variant(study, variant, "er")[metric]


def changes(study: Study) -> Table:
    """Return one row per change and method: what it does to the first three of ten tasks, on tuning pairs."""
    rows: list[Row] = []
    for (variant, name), method in itertools.product({"three": "as it is", **CHANGES}.items(), CELLS):
        runs, base = of_variant(study, variant, method), of_variant(study, "three", method)
        if runs.empty:
            continue
        found: list[Cell | str] = []
        for metric in (BC.column("tuning"), SERVICE_ACCURACY.column("tuning")):
            gain = gain_cell(difference(runs, base, metric)) if variant != "three" else EMPTY
            found += [cell(metric, estimate(runs[metric])), gain]
        links = study.tasks[study.tasks["run"].isin(runs["run"])].groupby("task")["common_direction"].mean()
        rows.append((name, title(method), *found, f"{links[1]:.2f} → {links[2]:.2f}", str(len(runs))))
    columns = ("change", "method", "BC", "difference", "service accuracy", "difference", "common direction φ₁ → φ₂")
    note = "Tuning pairs. Differences to the same method as it is, paired by seed; brackets: 95 % t-intervals."
    return made((*columns, "seeds"), rows, note)


def leads(study: Study) -> Table:
    """Return how far CL²R is from ER over the first three of ten tasks, under equal and under the fitting changes."""
    rows: list[Row] = []
    for words, one, other in LEADS:
        runs = of_variant(study, one, "cl2r"), of_variant(study, other, "er")
        found = [gain_cell(difference(*runs, metric.column("tuning"))) for metric in (BC, SERVICE_ACCURACY)]
        rows.append((words, *found))
    note = "Tuning pairs. Paired by seed; brackets: 95 % t-interval over three seeds."
    return made(("CL²R − ER", BC.head, SERVICE_ACCURACY.head), rows, note)


def lengths(study: Study) -> Table:
    """Return the first two of ten tasks after 14 and after 70 epochs; chains of more tasks are cut to two."""
    rows: list[Row] = []
    trained = (("resnet8s", 14), ("resnet8s", 70), ("resnet32", 70))
    for centred, (network, epochs), method in itertools.product((False, True), trained, CELLS):
        values = first_tasks(study, method, epochs, centred, network=network)
        if len(values):
            found = [cell(metric.name, estimate(values[metric.name])) for metric in CUT]
            words = f"{epochs} epochs{', ResNet-32' * (network == 'resnet32')}{', centred' * centred}"
            rows.append((words, title(method), *found, str(len(values))))
    heads = [HEADS.get(metric.name, metric.head) for metric in CUT]
    note = "Report pairs. Brackets: 95 % t-interval over seeds; a row of one seed has none and is a sketch."
    return made(("training", "method", *heads, "seeds"), rows, note)


def first_tasks(
    study: Study, method: str, epochs: int, centred: bool, tasks: int = 2, network: str = "resnet8s"
) -> pd.DataFrame:
    """Return metrics of the first tasks of ten, by seed: of the runs that have most tasks, if several have enough."""
    names = ("equal", "three", "epochs_70", "two_70", "resnet32")
    runs = study.runs
    chosen = runs[
        (runs["method.name"] == method)
        & (runs["optim.epochs"] == epochs)
        & (runs["scenario.n_tasks"] == 10)
        & (runs["backbone.name"] == network)
        & (runs["tasks"] >= tasks)
        & runs["variant"].isin([name + "_centred" * centred for name in names])
    ]
    chosen = chosen.sort_values("tasks", ascending=False).drop_duplicates("seed")
    rows, arrays = {}, matrices(study.matrix[study.matrix["run"].isin(chosen["run"])])
    for run, seed in zip(chosen["run"], chosen["seed"], strict=True):
        cut = arrays[run][:tasks, :tasks]
        rows[int(seed)] = {metric.name: float(metric.compute(cut, False)) for metric in CUT if metric.compute}
    return pd.DataFrame.from_dict(rows, orient="index").sort_index()


def longer(study: Study) -> Table:
    """Return what 70 epochs change against 14 with ten tasks, and how far CL²R is from ER then."""
    rows: list[Row] = []
    metrics = (SERVICE_ACCURACY, REINDEXED_ACCURACY, BC, AC)
    for variant, base in zip(LONG, ("equal", "equal_centred"), strict=True):
        pairs = [(f"{title(method)}, 70 epochs − 14", (variant, method), (base, method)) for method in CELLS]
        pairs += [("CL²R − ER, 70 epochs", (variant, "cl2r"), (variant, "er"))]
        for words, one, other in pairs:
            found = [difference(of_variant(study, *one), of_variant(study, *other), metric.name) for metric in metrics]
            if found[0].n:
                rows.append((REGIMES[base], words, *map(gain_cell, found), str(found[0].n)))
    columns = ("classes", "difference", *(metric.head for metric in metrics), "seeds")
    return made(columns, rows, "Report pairs. Paired by seed; brackets: 95 % t-interval; one seed is a sketch.")


def state(study: Study) -> Table:
    """Return what was trained: one row per variant and origin."""
    rows: list[Row] = []
    for variant in study.specification["variants"]:
        for number, runs in study.runs[study.runs["variant"] == variant].groupby("origin"):
            origin = study.about["origins"][int(number)]
            methods = ", ".join(title(method) for method in CELLS if method in set(runs["method.name"]))
            seeds = ", ".join(str(seed) for seed in sorted(runs["seed"].astype(int).unique()))
            tasks = " to ".join(str(task) for task in sorted({int(runs["tasks"].min()), int(runs["tasks"].max())}))
            commit, _, rest = str(origin["commit"]).partition(",")
            words = commit[:7] + ("," + rest if rest else "")
            hours = f"{runs['train_seconds'].sum() / 3600:.2f}"
            rows.append((variant, methods, tasks, seeds, str(len(runs)), hours, words, str(origin["processor"])))
    columns = ("variant", "methods", "tasks", "seeds", "runs", "core-hours", "commit", "processor")
    return made(columns, rows, "Core-hours: seconds of training of all links of a run, also of those that runs share.")


def links(study: Study) -> Table:
    """Return diagnostics of some links, means over seeds."""
    rows: list[Row] = []
    for (variant, name), method in itertools.product({**REGIMES, **LONG, **SHORT}.items(), CELLS):
        runs = of_variant(study, variant, method)["run"]
        if runs.empty:
            continue
        own = study.tasks[study.tasks["run"].isin(runs)].groupby("task")
        means, cells = own.mean(numeric_only=True).reindex(columns=list(LINKS)), report_cells(study, runs)
        for task in sorted({1, 2, int(means.index.max())}):
            selves, cross = (cells[(cells["t"] == task) & (cells["k"] == k)] for k in (task, task - 1))
            values = [*means.loc[task], selves["accuracy"].mean(), cross["accuracy"].mean()]
            values += [selves["recall@1"].mean(), selves["mAP"].mean()]
            rows.append((name, title(method), str(task), *(number_cell(value, ".2f") for value in values)))
    columns = ("regime", "method", "t", *LINKS.values(), "self", "cross", "recall@1", "mAP")
    return made(columns, rows, "Means over seeds, report images.")


def backward(study: Study) -> Table:
    """Return BC(t) with ten equal tasks, means over seeds with intervals."""
    rows: list[Row] = []
    shown = (2, 3, 4, 6, 8, 10)
    for (centred, method), own in bc_points(study).groupby(["centred", "method"], sort=False):
        at = {task: own.loc[own["x"] == task, "y"].rename(BC.name).reset_index(drop=True) for task in shown}
        found = [cell(BC.name, estimate(values)) for values in at.values()]
        later = gain_cell(estimate((at[10] - at[2]).rename("difference")))
        rows.append((REGIMES["equal_centred" if centred else "equal"], title(str(method)), *found, later))
    columns = ("regime", "method", *(f"t = {task}" for task in shown), "10 − 2")
    return made(columns, rows, "Report pairs. Brackets: 95 % t-interval over three seeds.")


def recall(study: Study) -> Table:
    """Return BC of 1:N search, by recall@1 instead of accuracy, beside that of 1:1 verification; both less ER's."""
    rows: list[Row] = []
    for (variant, name), method in itertools.product(REGIMES.items(), CELLS):
        row: list[Cell | str] = [name, title(method)]
        leads = []
        for values in (bc_by_recall, bc_by_accuracy):
            own, base = (values(study, variant, one) for one in (method, "er"))
            leads.append((own - base).rename("difference"))
            row.append(cell(BC.name, estimate(own)))
            row.append(gain_cell(estimate(leads[-1])) if method != "er" else EMPTY)
        row.append(gain_cell(estimate(leads[0] - leads[1])) if method != "er" else EMPTY)
        rows.append(row)
    heads = ("recall@1", "recall@1, less ER", "accuracy", "accuracy, less ER")
    columns = ("regime", "method", *(f"BC by {head}" for head in heads), "lead by recall − lead by accuracy")
    return made(columns, rows, "Differences paired by seed; brackets: 95 % t-interval over three seeds.")


def bc_by_recall(study: Study, variant: str, method: str) -> pd.Series:
    """Return BC of the recall@1 matrix by seed, on the report images."""
    cells = {run: own for run, own in study.matrix[study.matrix["pairs"] == "report"].groupby("run")}
    runs = of_variant(study, variant, method)["run"]
    return runs.map(lambda run: float(backward_compatibility(square(cells[run], "recall@1")))).rename(BC.name)


def bc_by_accuracy(study: Study, variant: str, method: str) -> pd.Series:
    """Return BC by seed, on the report pairs."""
    return of_variant(study, variant, method)[BC.name]


def bc_points(study: Study) -> pd.DataFrame:
    """Return BC(t) of the runs with ten equal tasks: centred, method, x = t, y = BC(t)."""
    rows = []
    for centred in (False, True):
        for method in CELLS:
            names = of_variant(study, "equal_centred" if centred else "equal", method)["run"]
            curves = bc_by_task(study.matrix[study.matrix["run"].isin(names)])
            rows += [(centred, method, t, value) for t, value in zip(curves["t"], curves["BC"], strict=True)]
    return pd.DataFrame(rows, columns=["centred", "method", "x", "y"])


def verdicts(study: Study, variant: str) -> Table:
    """Return the verdicts on the paper's text about its ablation, by the runs of a variant."""
    runs = study.runs[study.runs["variant"] == variant]
    own = {"runs": runs, "tasks": study.tasks, "matrix": study.matrix}
    own = {name: frame[frame["run"].isin(runs["run"])] for name, frame in own.items()}
    return verdicts_table(Report.of_frames("table ablation", ITEMS["table ablation"], own, "cifar100").judgements)


TABLES: Mapping[str, Callable[[Study], Table]] = {
    "regimes": regimes,
    "outcome": outcome,
    "centring": centring,
    "lengths": lengths,
    "longer": longer,
    "state": state,
    "changes": changes,
    "leads": leads,
    "links": links,
    "backward": backward,
    "recall": recall,
    "verdicts": lambda study: verdicts(study, "equal"),
    "verdicts, centred": lambda study: verdicts(study, "equal_centred"),
    "verdicts, 70 epochs, centred": lambda study: verdicts(study, "epochs_70_centred"),
}


def plot_backward(study: Study) -> Figure:
    """Plot BC(t) with ten equal tasks, as it is and centred."""
    words = "CIFAR-100 in ten equal tasks, resnet8s, 14 epochs; mean over three seeds, bands are 95 % intervals"
    figure, axes = parts.page_panels(2, words, [title(method) for method in CELLS], height=2.6)
    drawn, points = [], bc_points(study)
    for panel, (centred, own) in zip(axes, points.groupby("centred"), strict=True):
        for method in CELLS:
            rows = own[own["method"] == method]
            drawn.append(parts.mean_line(panel, rows, title(method), STYLES[method], lines=len(CELLS)))
        panel.set(xlabel="task t", xticks=range(2, 11, 2))
        panel.set_title("centred" if centred else "as it is", fontsize=parts.TEXT)
        parts.zero_line(panel)
    axes[0].set_ylabel("BC(t)")
    parts.fit(figure, axes, pd.concat(drawn))
    return parts.with_legend(figure, axes, order=[title(method) for method in CELLS])


def plot_lengths(study: Study) -> Figure:
    """Plot BC and service accuracy of ten equal tasks against the length of training.

    A panel compares the seeds that all its methods have at both lengths.
    """
    rows, seeds = [], []
    for short, long in (("equal", "epochs_70"), ("equal_centred", "epochs_70_centred")):
        runs = study.runs[study.runs["variant"].isin([short, long])]
        shared = sorted(set.intersection(*(set(own["seed"]) for _, own in runs.groupby(["variant", "method.name"]))))
        seeds.append("seed 0, a sketch" if shared == [0] else f"{len(shared)} seeds")
        for run in runs[runs["seed"].isin(shared)].to_dict("records"):
            for metric in (BC, SERVICE_ACCURACY):
                place = (short != "equal", run["method.name"], run["optim.epochs"])
                rows.append((metric.name, *place, run[metric.name]))
    table = pd.DataFrame(rows, columns=["metric", "centred", "method", "x", "y"])
    named = seeds[0] if seeds[0] == seeds[1] else f"as it is {seeds[0]}, centred {seeds[1]}"
    words = f"CIFAR-100 in ten equal tasks, resnet8s; mean and 95 % interval, {named}"
    return _drawn(table, words, "epochs per task", (14, 70))


def plot_first_task(study: Study) -> Figure:
    """Plot BC and service accuracy against the share of the classes in the first task."""
    rows = []
    for variant in REGIMES:
        for method in CELLS:
            runs = of_variant(study, variant, method)
            share = 50 if variant.startswith("half") else 10
            for metric in (BC, SERVICE_ACCURACY):
                rows += [
                    (metric.name, variant.endswith("centred"), method, share, value) for value in runs[metric.name]
                ]
    table = pd.DataFrame(rows, columns=["metric", "centred", "method", "x", "y"])
    words = "CIFAR-100, then 10 classes at a time, resnet8s, 14 epochs; mean and 95 % interval over three seeds"
    return _drawn(table, words, "classes in the first task, of 100", (10, 50))


def _drawn(table: pd.DataFrame, words: str, axis: str, ticks: tuple[int, ...]) -> Figure:
    """Draw one panel per metric, as it is and centred."""
    methods = ordered(table["method"].unique())
    figure, axes = parts.page_panels(4, words, [title(method) for method in methods], sharey=False, height=2.3)
    width = ticks[-1] - ticks[0]
    for place, metric in enumerate((BC, SERVICE_ACCURACY)):
        drawn = []
        for panel, centred in zip(axes[2 * place : 2 * place + 2], (False, True), strict=True):
            for number, method in enumerate(methods):
                own = table[(table["metric"] == metric.name) & (table["centred"] == centred)]
                own = own[own["method"] == method]
                if own.empty:
                    continue
                beside = (number - (len(methods) - 1) / 2) * 0.015 * width  # intervals stand side by side
                own = own.assign(x=own["x"] + beside)
                points = line_points(own, ["x"])
                panel.plot(points.index, points["mean"], label=title(method), **parts.line_style(STYLES[method]))
                for x, (mean, low, high) in zip(points.index, points[["mean", "low", "high"]].to_numpy(), strict=True):
                    parts.error_bar(panel, float(x), (mean, low, high), STYLES[method])
                drawn.append(points)
            panel.set(xticks=ticks, xlim=(ticks[0] - 0.1 * width, ticks[1] + 0.1 * width))
            panel.set_xlabel(axis)
            panel.set_ylabel(metric.head)
            panel.set_title("centred" if centred else "as it is", fontsize=parts.TEXT)
            if metric is BC:
                parts.zero_line(panel)
        parts.fit(figure, axes[2 * place : 2 * place + 2], pd.concat(drawn))
    return parts.with_legend(figure, axes, order=[title(method) for method in methods])


PLOTS: Mapping[str, Callable[[Study], Figure]] = {
    "first_task": plot_first_task,
    "bc": plot_backward,
    "length": plot_lengths,
}


def with_tables(text: str, study: Study) -> str:
    """Return the page with its tables made again."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        table = f"{begin}\n\n{render(make(study), 'markdown')}\n\n{end}"
        text = pattern.sub(lambda found, table=table: table, text)  # type: ignore[misc]
    return text


def main() -> None:
    """Rewrite the tables of the page and its plots."""
    study = load_kept(RUNS)
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), study), encoding="utf-8")
    for name, plot in PLOTS.items():
        parts.save(plot(study), PAGE.with_name(f"which_method_when_{name}"), ["png"])


if __name__ == "__main__":
    main()
