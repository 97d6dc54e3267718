"""From the frames that runs and studies leave behind to statistics and tables. Reads Parquet; never needs torch.

Figures are in `analysis.plots`, the page in `analysis.report`; both are imported by those who want them.
"""

from analysis.comparisons import paired_differences, probability_of_improvement
from analysis.formats import render
from analysis.frames import Frames, load_runs
from analysis.joined import concat
from analysis.methods import methods_table
from analysis.stats import summarise
from analysis.study import Study, load_study
from analysis.study_tables import study_tables
from analysis.tables import ablation_table, comparison_table
from analysis.trials import best_trials

__all__ = [
    "Frames",
    "Study",
    "ablation_table",
    "best_trials",
    "comparison_table",
    "concat",
    "load_runs",
    "load_study",
    "methods_table",
    "paired_differences",
    "probability_of_improvement",
    "render",
    "study_tables",
    "summarise",
]
