"""From the frames that runs leave behind to tables. Reads Parquet; never needs torch."""

from analysis.frames import Frames, load_runs
from analysis.tables import ablation_table

__all__ = ["Frames", "ablation_table", "load_runs"]
