"""How much memory compatibility needs: 0, 5, 10, 20, 50 images a class × methods (the paper's memory figure).

    python studies/memory_size.py
    python studies/memory_size.py --methods er cl2r --sizes 0 20 --seeds 0 1 2

Memory matters from the second task on, so all sizes of a classifier share their first task: a seed trains
2 + 4·5·(T−1) links. Cost on two cores with the default preset: about 15 minutes a seed; `--plan` says more.
"""

import sys
from pathlib import Path

import pandas as pd

from analysis.tables import comparison_markdown, comparison_table
from cl2r.errors import exit_code
from cl2r.methods.catalog import METHODS
from cl2r.study.command import given, run_command, study_parser
from cl2r.study.spec import Study

FIELD = "memory.per_class"


def table(frames: dict[str, pd.DataFrame], _: Study) -> str:
    """Methods × images a class."""
    return comparison_markdown(comparison_table(frames["runs"], FIELD))


def main(words: list[str] | None = None) -> int:
    """Run and print."""
    parser = study_parser("memory_size", __doc__)
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="NAME")
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N")
    args = parser.parse_args(words)
    changes = {"grid": given({"method.name": args.methods, FIELD: args.sizes})}
    return run_command(args, Path(__file__).with_suffix(".yaml"), changes, table)


if __name__ == "__main__":
    sys.exit(exit_code("memory_size", main))
