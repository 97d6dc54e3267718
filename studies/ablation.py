"""Ablation: {Trainable, Fixed} classifier × {none, FD, FD^M}, over seeds (the paper's ablation table).

    python studies/ablation.py                       # six cells, seed 0
    python studies/ablation.py --seeds 0 1 2         # the README's table
    python studies/ablation.py --cells er cl2r       # two rows
    python studies/ablation.py --confounders         # and with masked, and with preallocated outputs
    ray job submit --working-dir . -- python studies/ablation.py --storage /shared/results

Cells of one classifier share their first task: six cells and T tasks train 2 + 6·(T−1) links a seed, and none when
repeated. Cost on two cores with the default preset: about five minutes a seed. `--plan` says what a command would cost.
"""

import sys
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.formats import render
from analysis.shown import shown_ablation
from cl2r.errors import exit_code
from cl2r.methods.catalog import ABLATION_CELLS
from cl2r.study.command import given, run_command, study_parser
from cl2r.study.spec import Study

CONFOUNDERS = {
    "plain": {},
    "masked": {"head.mask_unseen": True},
    "preallocated": {"head.preallocate": True},
}
"""What else differs between the two classifiers: outputs of unseen classes in the softmax, and when rows are made."""


def table(frames: dict[str, pd.DataFrame], _: Study) -> str:
    """A row a cell."""
    return render(shown_ablation(frames["runs"]), "terminal")


def main(words: list[str] | None = None) -> int:
    """Run the cells, print the table."""
    parser = study_parser("ablation", __doc__)
    parser.add_argument("--cells", nargs="+", choices=ABLATION_CELLS, metavar="CELL", help="of the six")
    parser.add_argument("--confounders", action="store_true", help="masked and preallocated outputs as well")
    args = parser.parse_args(words)
    changes: dict[str, Any] = {"grid": given({"method.name": args.cells})}
    if args.confounders:
        changes["variants"] = CONFOUNDERS
    return run_command(args, Path(__file__).with_suffix(".yaml"), changes, table)


if __name__ == "__main__":
    sys.exit(exit_code("ablation", main))
