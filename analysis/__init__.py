"""Statistics and tables of a study's runs, without torch and Ray; also `analysis.plots` and `analysis.report`."""

from analysis.comparisons import paired_differences, probability_of_improvement
from analysis.stats import summarise
from analysis.study import Frames, Study, concat, load_runs, load_study
from analysis.sweeps import best_trials, feasible
from analysis.tables import study_tables, study_text
from analysis.tables.formats import render
from analysis.tables.runs import (
    ablation_frame,
    ablation_table,
    comparison_frame,
    comparison_tables,
    methods_frame,
    methods_table,
)
from analysis.tables.sweep import best_by_context, confirmation_tables, trials_tables

__all__ = [
    "Frames",
    "Study",
    "ablation_frame",
    "ablation_table",
    "best_by_context",
    "best_trials",
    "comparison_frame",
    "comparison_tables",
    "concat",
    "confirmation_tables",
    "feasible",
    "load_runs",
    "load_study",
    "methods_frame",
    "methods_table",
    "paired_differences",
    "probability_of_improvement",
    "render",
    "study_tables",
    "study_text",
    "summarise",
    "trials_tables",
]
