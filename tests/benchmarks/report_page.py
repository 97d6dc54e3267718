"""Seconds and size of the page of a large study that never was: 500 runs of 10 tasks, and how long figures take.

    python tests/benchmarks/report_page.py [--seeds 10] [--tasks 10] [--rounds 3]

Five methods × ten points × the seeds. Frames are made up in memory, so reading them is not measured.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from analysis.plots import write_figures
from analysis.report import build_report
from tests.support.made_study import made_study

METHODS = ("er", "cl2r", "lwf", "lucir", "bic")
GRID = {"memory.per_class": [0, 5, 10, 20, 50], "method.lambda_base": [1.0, 3.0]}


def seconds(work: Callable[[], object], rounds: int) -> str:
    """The median of some rounds, and their range."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return f"{statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    study = made_study(METHODS, range(args.seeds), args.tasks, GRID)
    page = build_report(study)
    print(f"{len(study.runs)} runs of {args.tasks} tasks, {len(study.matrix):,} cells")
    print(f"page     {len(page.encode()) / 1e6:.1f} MB, {seconds(lambda: build_report(study), args.rounds)}")
    with tempfile.TemporaryDirectory() as folder:
        names = {path.stem for path in write_figures(study, folder)}
        print(f"figures  {len(names)}, three files each, {seconds(lambda: write_figures(study, folder), args.rounds)}")


if __name__ == "__main__":
    main()
