"""A study as one HTML page that works offline: tables, matrices, figures, costs, failures and settings."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

import cl2r
from analysis.groups import finished, group_fields
from analysis.names import COLOURS
from analysis.report.figures import Figure, labelled, study_figures
from analysis.report.matrices import matrix_data, training_losses, whole_matrices
from analysis.report.page import ShownTable, render_page, shown_table
from analysis.report.settings import anonymised, study_settings
from analysis.report.summary import findings, study_status
from analysis.report.tables import all_runs, cost_lines, cost_table, difference_tables, lost_runs, result_tables
from analysis.study import Study
from cl2r.runtime.logs import anonymous
from cl2r.runtime.text import duration
from cl2r.storage.path import at

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
    """Return the report as HTML. `live` says what is running; the page reloads itself every `refresh` seconds."""
    sweep = None
    if study.specification.get("space"):
        from analysis.report.sweep import sweep_plots  # Optuna takes a second to import, and few studies are sweeps

        sweep = sweep_plots(study)
    study = anonymised(_with_columns(study))
    fields = group_fields(study.runs)
    runs = labelled(study, fields)
    content = {**_content(study, runs, fields), "sweep": sweep, "live": [anonymous(line) for line in live]}
    content |= {"head": study_status(study, live, refresh), "refresh": refresh}
    content["refresh_words"] = "" if refresh is None else duration(refresh)
    curves, remark = training_losses(study.curves, runs[finished(runs)])
    blocks = matrix_data(study, runs)
    content |= {
        "matrix": blocks is not None,
        "losses": curves is not None and blocks is not None,
        "loss_remark": remark,
    }
    content["sections"] = [(key, title) for key, title in TITLES.items() if _has(content, key)]
    data: dict[str, Any] = {"matrices": blocks, "losses": curves if content["losses"] else None, "refresh": refresh}
    single = [content[name] for name in ("cost_table", "lost", "runs") if content[name]]
    tables: list[ShownTable] = [*content["tables"], *content["differences"], *single]
    figures: list[Figure] = [*content["figures"], *(sweep.figures if sweep else ())]
    views = {figure.id: [{"data": view.data, "layout": view.layout} for view in figure.views] for figure in figures}
    data |= {"colours": COLOURS, "figures": views, "texts": {table.id: table.texts for table in tables}}
    return render_page(content, data)


def write_report(study: Study, path: str | Path, live: Sequence[str] = (), refresh: float | None = None) -> Path:
    """Write the report and return its path; readers see the old file or the new one, never a part."""
    at(Path(path)).write_file(build_report(study, live, refresh).encode())
    return Path(path)


def _with_columns(study: Study) -> Study:
    """Return the study with the columns that the report needs, even if no run finished."""
    needed = {
        "tasks": ("run", "task", "reused"),
        "matrix": ("run", "pairs", "t", "k", "accuracy", "compatible"),
        "curves": ("run", "task", "epoch"),
    }
    frames: dict[str, pd.DataFrame] = {}
    for frame, names in needed.items():
        columns = list(getattr(study, frame).columns)
        frames[frame] = getattr(study, frame).reindex(columns=[*columns, *(n for n in names if n not in columns)])
    return replace(study, **frames)  # type: ignore[arg-type]


def _content(study: Study, runs: pd.DataFrame, fields: list[str]) -> dict[str, Any]:
    """Return what the page shows, by part."""
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


def _has(content: dict[str, Any], section: str) -> bool:
    parts = {
        "tables": ("tables", "remarks"),
        "curves": ("figures", "losses", "loss_remark"),
        "cost": ("cost_lines",),
        "summary": ("name",),
        "failures": ("name",),
    }
    return any(content[name] for name in parts.get(section, (section,)))
