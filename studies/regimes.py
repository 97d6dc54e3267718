"""In which regime does which cell of the ablation win? (icons; the question behind the paper's ablation table)

    python studies/regimes.py                        # every regime of regimes.yaml, seed 0, the first 3 of 5 tasks
    python studies/regimes.py --only default memory_0 --cells er cl2r --seeds 0 1 2 --tasks 5

A regime is a name and a few config overrides. Metrics are those of the *tuning* pairs: a preset chosen by this table
has not seen the report pairs. Cost: about two minutes a regime on two cores; links are shared with other studies.
"""

import argparse
import itertools
import sys
from pathlib import Path

import pandas as pd
import yaml
from ablation import run_all

from analysis.frames import load_runs
from cl2r.config import override, read_layer, resolve
from cl2r.engine.run import plan_run
from cl2r.errors import exit_code
from cl2r.methods.catalog import ABLATION_CELLS

REGIMES = Path(__file__).with_name("regimes.yaml")
CELLS = ["er", "er_fdm", "fixed", "cl2r"]
METRICS = ("tuning_BC", "tuning_AC", "tuning_mean_accuracy")


def table(runs: pd.DataFrame, regime_of: dict[str, str], metric: str) -> pd.DataFrame:
    """Regimes as rows, cells as columns, mean over seeds."""
    wide = runs.assign(regime=runs["run"].map(regime_of)).pivot_table(metric, "regime", "method.name", "mean")
    rows = [name for name in dict.fromkeys(regime_of.values()) if name in wide.index]
    return wide.loc[rows, [cell for cell in ABLATION_CELLS if cell in wide.columns]]


def parse(regimes: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="icons")
    parser.add_argument("--only", nargs="+", default=regimes, choices=regimes, metavar="REGIME")
    parser.add_argument("--cells", nargs="+", default=CELLS, choices=ABLATION_CELLS, metavar="CELL")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--tasks", type=int, default=3, help="stop after so many tasks")
    parser.add_argument("--out", type=Path, default=Path("results"))
    return parser.parse_args()


def main() -> int:
    """Run and print."""
    regimes: dict[str, list[str]] = yaml.safe_load(REGIMES.read_text())
    args = parse(list(regimes))
    plans, regime_of_plan = [], []
    for regime in args.only:
        layers = [read_layer(args.preset), {"scenario": {"stop_after": args.tasks}}]
        layers += map(override, regimes[regime])
        for seed, cell in itertools.product(args.seeds, args.cells):
            plans.append(plan_run(resolve([*layers, {"method": {"name": cell}, "seed": seed}])))
            regime_of_plan.append(regime)
    names, failed = run_all(plans, args.out)
    regime_of = {name: regime for name, regime in zip(names, regime_of_plan, strict=True) if name}
    if regime_of:
        runs = load_runs(args.out, regime_of).runs
        for metric in METRICS:
            wide = table(runs, regime_of, metric)
            print(f"\n{metric}\n{wide.to_string(float_format='{:+.3f}'.format, na_rep='failed')}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_code("regimes", main))
