"""A study as one HTML page that works offline: tables, matrices, figures, costs, failures and settings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.groups import finished, group_fields, in_method_order
from analysis.headline import study_kind
from analysis.names import COLOURS
from analysis.report.figures import labelled, study_figures
from analysis.report.first_screen import first_screen
from analysis.report.matrices import matrix_data, training_losses, whole_matrices
from analysis.report.page import Section, render_page, shown_table
from analysis.report.settings import anonymised, study_settings
from analysis.report.summary import findings, study_status
from analysis.report.tables import all_runs, cost_lines, cost_table, difference_tables, lost_runs, result_tables
from analysis.study import Study
from cl2r.runtime.logs import anonymous
from cl2r.runtime.text import duration
from cl2r.storage.path import at

__all__ = ["build_report", "write_report"]


def build_report(study: Study, live: Sequence[str] = (), refresh: float | None = None) -> str:
    """Return the report as HTML. `live` says what is running; the page reloads itself every `refresh` seconds."""
    sweep = None
    if study.specification.get("space"):
        from analysis.report.sweep import sweep_plots  # Optuna takes a second to import, and few studies are sweeps

        sweep = sweep_plots(study)
    study = _prepared(study)
    fields = group_fields(study.runs)
    runs = labelled(study, fields)
    done = runs[finished(runs)]
    first = first_screen(study, done)
    tables, remarks = result_tables(study)
    race = None
    if study.specification.get("race"):
        from analysis.report.race import race_section  # imports Optuna too

        race = race_section(study)
    differences = [] if race or study.specification.get("space") else difference_tables(done)
    costs = shown_table(cost_table(study, done), "cost-table") if len(done) else None
    lost = shown_table(lost_runs(runs), "lost-runs") if len(done) < len(runs) else None
    every = shown_table(all_runs(runs, fields), "all-runs") if len(runs) else None
    figures = study_figures(replace(study, matrix=whole_matrices(study.matrix)), done, fields)
    losses, loss_remark = training_losses(study.curves, done)
    blocks = matrix_data(study, runs)
    sections = _sections(study)
    content = {
        "name": study.name,
        "head": study_status(study, live, refresh),
        "live": [anonymous(line) for line in live],
        "refresh": refresh,
        "refresh_words": "" if refresh is None else duration(refresh),
        "first": first,
        "race": race,
        "tables": tables,
        "remarks": remarks,
        "sections": sections,
        "findings": findings(study, runs),
        "differences": differences,
        "matrix": blocks is not None,
        "figures": figures,
        "losses": losses is not None and blocks is not None,
        "loss_remark": loss_remark,
        "sweep": sweep,
        "cost_lines": cost_lines(study, done) if len(done) else [],
        "cost_table": costs,
        "lost": lost,
        "runs": every,
        "settings": study_settings(study, fields),
    }
    drawn = [picture.figure for picture in first.pictures if picture.figure]
    drawn += [*figures, *(sweep.figures if sweep else ())]
    parts = [table for section in sections for table in section.tables]
    shown = [*tables, *parts, *differences, *([race.table] if race else []), costs, lost, every]
    data = {"matrices": blocks, "losses": losses, "refresh": refresh, "colours": COLOURS}
    return render_page(content, data, drawn, [table for table in shown if table])


def _sections(study: Study) -> list[Section]:
    """Return the sections that only some kinds of study have."""
    kind = study_kind(study)
    if study.finished.empty or kind not in ("search", "paper"):
        return []
    if kind == "search":
        from analysis.report.search import search_section

        return [search_section(study)]
    from analysis.report.paper import paper_section

    return [paper_section(study)]


def write_report(study: Study, path: str | Path, live: Sequence[str] = (), refresh: float | None = None) -> Path:
    """Write the report and return its path; readers see the old file or the new one, never a part."""
    at(Path(path)).write_file(build_report(study, live, refresh).encode())
    return Path(path)


def _prepared(study: Study) -> Study:
    """Return the study with anonymous texts, its runs in the order of methods, and columns as if a run had finished."""
    candidates = study.specification.get("space") or study.specification.get("race")
    return anonymised(
        replace(
            study,
            runs=study.runs if candidates else in_method_order(study.runs),
            tasks=_with(study.tasks, "run", "task", "reused"),
            matrix=_with(study.matrix, "run", "pairs", "t", "k", "accuracy", "compatible"),
            curves=_with(study.curves, "run", "task", "epoch"),
        )
    )


def _with(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    return frame.reindex(columns=list(dict.fromkeys([*frame.columns, *names])))
