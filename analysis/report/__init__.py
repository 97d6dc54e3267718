"""A study as one page of HTML that needs no network: tables, matrices, figures, costs, failures and settings."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

import cl2r
from analysis.groups import group_fields
from analysis.pivot import finished
from analysis.report.costs import cost_lines, cost_table
from analysis.report.curves import study_figures
from analysis.report.displayed import displayed
from analysis.report.figures import Figure
from analysis.report.head import study_head
from analysis.report.labels import labelled
from analysis.report.losses import training_losses
from analysis.report.matrices import matrix_data, whole_matrices
from analysis.report.page import ShownTable, render_page, shown_table
from analysis.report.result_tables import difference_tables, result_tables
from analysis.report.run_tables import all_runs, lost_runs
from analysis.report.settings import study_settings
from analysis.report.summary import findings
from analysis.report.words import duration
from analysis.study import Study
from analysis.style import COLOURS
from cl2r.files import write_file
from cl2r.privacy import anonymous

__all__ = ["build_report", "write_report"]

TITLES = {
    "summary": "Summary",
    "tables": "Tables",
    "matrix": "Matrices",
    "curves": "Curves",
    "sweep": "Sweep",
    "cost": "Cost",
    "failures": "Failures",
    "runs": "Runs",
    "settings": "Configuration",
}


def build_report(study: Study, live: Sequence[str] = (), refresh: float | None = None) -> str:
    """The report as HTML text. `live` says what is running; the page reloads itself every `refresh` seconds."""
    sweep, study = _sweep(study), displayed(_whole(study))
    fields = group_fields(study.runs)
    runs = labelled(study, fields)
    content = {**_content(study, runs, fields), "sweep": sweep, "live": [anonymous(line) for line in live]}
    content |= {"head": study_head(study, live, refresh), "refresh": refresh, "refresh_words": duration(refresh)}
    curves, remark = training_losses(study.curves, runs[finished(runs)])
    blocks = matrix_data(study, runs)
    content |= {
        "matrix": blocks is not None,
        "losses": curves is not None and blocks is not None,
        "loss_remark": remark,
    }
    content["sections"] = [(key, title) for key, title in TITLES.items() if _has(content, key)]
    data: dict[str, Any] = {"matrices": blocks, "losses": curves if content["losses"] else None, "refresh": refresh}
    data |= {"colours": COLOURS, "figures": _figure_data(content), "texts": _texts(content)}
    return render_page(content, data)


def write_report(study: Study, path: str | Path, live: Sequence[str] = (), refresh: float | None = None) -> Path:
    """Write the report; a reader sees the old file or the new one."""
    write_file(Path(path), build_report(study, live, refresh).encode())
    return Path(path)


def _whole(study: Study) -> Study:
    """With the columns that everything here counts on, even where no run finished."""
    return replace(
        study,
        tasks=_with_columns(study.tasks, "run", "task", "reused"),
        matrix=_with_columns(study.matrix, "run", "pairs", "t", "k", "accuracy", "compatible"),
        curves=_with_columns(study.curves, "run", "task", "epoch"),
    )


def _with_columns(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    return frame.reindex(columns=[*frame.columns, *(name for name in names if name not in frame)])


def _content(study: Study, runs: pd.DataFrame, fields: list[str]) -> dict[str, Any]:
    """What the page shows, part by part."""
    done = runs[finished(runs)]
    tables, remarks = result_tables(study)
    lost = lost_runs(runs)
    return {
        "name": study.name,
        "now": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "version": cl2r.__version__,
        "summary": findings(study, runs, fields),
        "tables": tables,
        "remarks": remarks,
        "differences": [] if study.specification.get("space") else difference_tables(done),
        "figures": study_figures(replace(study, matrix=whole_matrices(study.matrix)), done, fields),
        "cost_lines": cost_lines(study, done) if len(done) else [],
        "cost_table": shown_table(cost_table(study, done), "cost-table") if len(done) else None,
        "lost": None if lost is None else shown_table(lost, "lost-runs"),
        "runs": shown_table(all_runs(runs, fields), "all-runs") if len(runs) else None,
        "settings": study_settings(study, fields),
    }


def _sweep(study: Study) -> Any:
    if not study.specification.get("space"):
        return None
    from analysis.report.sweep import sweep_plots  # Optuna takes a second to import, and few studies are sweeps

    return sweep_plots(study)


def _has(content: dict[str, Any], section: str) -> bool:
    parts = {
        "tables": ("tables", "remarks"),
        "curves": ("figures", "losses", "loss_remark"),
        "cost": ("cost_lines",),
        "summary": ("name",),
        "failures": ("name",),
    }
    return any(content[name] for name in parts.get(section, (section,)))


def _figure_data(content: dict[str, Any]) -> dict[str, Any]:
    figures: list[Figure] = [*content["figures"], *(content["sweep"].figures if content["sweep"] else ())]
    return {figure.id: [{"data": view.data, "layout": view.layout} for view in figure.views] for figure in figures}


def _texts(content: dict[str, Any]) -> dict[str, dict[str, str]]:
    single = [content[name] for name in ("cost_table", "lost", "runs") if content[name]]
    tables: list[ShownTable] = [*content["tables"], *content["differences"], *single]
    return {table.id: table.texts for table in tables}
