"""The race of methods on the page: who reached which round, and what the finalists reached."""

from dataclasses import dataclass
from typing import Any

from analysis.names import method_style
from analysis.recommendation import ROUNDS, recommendation, settings_text
from analysis.report.figures import Figure, Trace, View, axes, plain_text
from analysis.report.page import ShownTable, floats, shown_table, significant
from analysis.study import Study
from cl2r.metrics import METRICS


@dataclass(frozen=True)
class RaceSection:
    """The section of the page: lines of text, the finalists, and the figure."""

    lines: tuple[str, ...]
    table: ShownTable | None
    figures: tuple[Figure, ...]


def race_section(study: Study) -> RaceSection:
    """Return the section of a race."""
    found = recommendation(study)
    table = shown_table(found.table, "finalists") if found.table is not None else None
    figure = race_figure(study)
    return RaceSection(found.race, table, (figure,) if figure.views else ())


def race_figure(study: Study) -> Figure:
    """Return the objective of every candidate over the rounds: a line if it was promoted, else a grey dot."""
    name = study.specification["search"]["objectives"][0]
    metric = METRICS.objectives()[name]
    runs = study.finished
    caption = (
        f"{metric.head} on the tuning pairs, mean over seeds. A line is a promoted candidate, a grey dot one that was "
        "not. Rounds train for different times, so only candidates of one round can be compared."
    )
    figure = Figure("race-rounds", "Rounds", caption, ())
    if runs.empty:
        return figure
    runs = runs.assign(value=floats(runs[metric.column("tuning")]))
    means = runs.groupby(["trial", "variant"])["value"].mean().unstack().reindex(columns=list(ROUNDS))
    firsts: dict[int, dict[str, Any]] = {int(row["trial"]): row for row in runs.to_dict("records")}  # type: ignore[misc]
    dropped: Trace = {"type": "scatter", "mode": "markers", "name": "not promoted", "x": [], "y": [], "text": []}
    dropped |= {"marker": {"color": "#8C8C8C", "size": 6}, "hovertemplate": "%{text}: %{y:.3f}<extra></extra>"}
    lines: list[Trace] = []
    for number, row in means.iterrows():
        trial, known = int(str(number)), row.dropna()
        if known.empty:
            continue
        method = str(firsts[trial]["method.name"])
        label = plain_text(" ".join(filter(None, [f"{trial}: {method}", settings_text(firsts[trial])])))
        if len(known) == 1:
            dropped["x"].append(str(known.index[0]))
            dropped["y"] += significant(known, 5)
            dropped["text"].append(label)
            continue
        style = method_style(method)
        reached = ROUNDS[-1] in known
        line: Trace = {"type": "scatter", "mode": "lines+markers+text" if reached else "lines+markers", "name": label}
        line |= {"x": [str(entry) for entry in known.index], "y": significant(known, 5)}
        line |= {"line": {"color": style.colour, "width": 3 if reached else 1.5}, "marker": {"size": 8}}
        line |= {"text": [""] * (len(known) - 1) + [plain_text(method)], "textposition": "middle right"}
        lines.append({**line, "hovertemplate": f"{label}: %{{y:.3f}}<extra></extra>"})
    layout = axes("round", f"{metric.head}, tuning pairs", type="category", categoryarray=list(ROUNDS))
    layout["xaxis"] |= {"categoryorder": "array", "range": [-0.3, len(ROUNDS) - 0.5]}
    traces = [*([dropped] if dropped["x"] else []), *lines]
    return Figure(figure.id, figure.title, caption, (View("", traces, layout),) if traces else ())
