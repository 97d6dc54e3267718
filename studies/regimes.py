"""In which regime does which cell of the ablation win? (icons; the question behind the paper's ablation table)

    python studies/regimes.py                        # every regime of regimes.yaml, seed 0, the first 3 of 5 tasks
    python studies/regimes.py --only default memory_0 --cells er cl2r --seeds 0 1 2 --set scenario.stop_after=5

A regime is a name and a few config overrides. Metrics are those of the *tuning* pairs: a preset chosen by this table
has not seen the report pairs. Cost: about two minutes a regime on two cores; links are shared with other studies.
"""

import sys
from pathlib import Path

import pandas as pd

from analysis.cells import FAILED, figure_cell
from analysis.formats import render
from analysis.pivot import pivot
from analysis.table import Cell, Table
from cl2r.errors import exit_code
from cl2r.methods.catalog import ABLATION_CELLS
from cl2r.study.command import given, run_command, study_parser
from cl2r.study.spec import Study, read_content

SPEC = Path(__file__).with_suffix(".yaml")
METRICS = ("tuning_BC", "tuning_AC", "tuning_mean_accuracy")


def tables(frames: dict[str, pd.DataFrame], _: Study) -> str:
    """Regimes as rows, cells as columns, mean over seeds; one table a metric."""
    return render([by_regime(frames["runs"], metric) for metric in METRICS], "terminal")


def by_regime(runs: pd.DataFrame, metric: str) -> Table:
    """Regimes × cells of the ablation."""
    wide = pivot(runs, metric, ["variant"], "method.name")
    rows = []
    for regime, values in wide.iterrows():
        figures = (FAILED if pd.isna(value) else figure_cell(value, "+.3f") for value in values)
        rows.append((Cell(str(regime)), *figures))
    return Table(("variant", *map(str, wide.columns)), tuple(rows), wide.reset_index(), metric)


def main(words: list[str] | None = None) -> int:
    """Run and print."""
    regimes = read_content(SPEC)["variants"]
    parser = study_parser("regimes", __doc__)
    parser.add_argument("--only", nargs="+", default=list(regimes), choices=regimes, metavar="REGIME")
    parser.add_argument("--cells", nargs="+", choices=ABLATION_CELLS, metavar="CELL")
    args = parser.parse_args(words)
    changes = {
        "variants": {name: regimes[name] for name in args.only},
        "grid": given({"method.name": args.cells}),
    }
    return run_command(args, SPEC, changes, tables)


if __name__ == "__main__":
    sys.exit(exit_code("regimes", main))
