"""All methods × task counts × seeds, under one budget (the shape of the paper's Tables 2 to 5).

    make methods                                                  # five tasks, three seeds, 10 epochs: README's table
    python studies/methods.py --seeds 0 1 2                       # the same with all 20 epochs
    python studies/methods.py --methods er lucir cl2r cl2r+aligner --counts 2 3 5 10
    python studies/methods.py --set method.budget=native          # each method's own schedule, where one is known

One task count prints a row a method with intervals over seeds and the cost of adaptation; several print one table a
metric. Methods that begin alike share their first task; adapters (`er+procrustes`) train nothing.
Stages after the first (BiC's pairs, PODNet's proxies, FAN's ψ) have epochs of their own, whatever `optim.epochs` says.
Cost on two cores with the default preset: about half an hour a seed and task count; `--plan` says more.
"""

import sys
from pathlib import Path

import pandas as pd

from analysis.formats import render
from analysis.methods import shown_methods
from analysis.shown import shown_comparison
from cl2r.errors import exit_code
from cl2r.study.custom import compare_methods
from cl2r.study.spec import Study

FIELD = "scenario.n_tasks"


def table(frames: dict[str, pd.DataFrame], _: Study) -> str:
    """By method, or by method and number of tasks."""
    runs = frames["runs"]
    return render(shown_comparison(runs, FIELD) if runs[FIELD].nunique() > 1 else shown_methods(runs), "terminal")


def main(words: list[str] | None = None) -> int:
    """Run and print."""
    return compare_methods("methods", __doc__, Path(__file__).with_suffix(".yaml"), FIELD, "--counts", words, table)


if __name__ == "__main__":
    sys.exit(exit_code("methods", main))
