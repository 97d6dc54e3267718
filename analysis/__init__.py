"""From the frames that runs and studies leave behind to tables. Reads Parquet; never needs torch."""

from analysis.frames import Frames, load_runs
from analysis.joined import concat
from analysis.methods import methods_table
from analysis.study import Study, load_study
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
]
