"""In which regime does which cell of the ablation win? (icons; the question behind the paper's ablation table)

    python studies/regimes.py                        # every regime of regimes.yaml, seed 0
    python studies/regimes.py --only default weight_decay_small --cells er cl2r

A regime is a name and a few config overrides. Prints BC (and the mean of C) on the *tuning* pairs: choosing a preset
from this table must not touch the report pairs. Cost: about a minute a run and regime on two cores; links are shared.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd
import yaml
from ablation import run_all

from analysis.frames import load_runs
from cl2r.config import override, read_layer, resolve
from cl2r.engine.run import plan_run
from cl2r.errors import InputError
from cl2r.methods.catalog import ABLATION_CELLS

REGIMES = Path(__file__).with_name("regimes.yaml")


def table(runs: pd.DataFrame, regime_of: dict[str, str], metric: str) -> pd.DataFrame:
    """Regimes as rows, cells as columns, mean over seeds."""
    runs = runs[runs["run"].isin(regime_of)].assign(regime=lambda frame: frame["run"].map(regime_of))
    wide = runs.pivot_table(metric, "regime", "method.name", "mean")
    rows = [name for name in dict.fromkeys(regime_of.values()) if name in wide.index]
    return wide.loc[rows, [cell for cell in ABLATION_CELLS if cell in wide.columns]]


def main() -> int:
    """Run and print."""
    regimes: dict[str, list[str]] = yaml.safe_load(REGIMES.read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="icons")
    parser.add_argument("--only", nargs="+", default=list(regimes), choices=list(regimes), metavar="REGIME")
    parser.add_argument("--cells", nargs="+", default=["er", "er_fdm", "fixed", "cl2r"], choices=ABLATION_CELLS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    args = parser.parse_args()
    plans, regime_of_plan = [], []
    for regime in args.only:
        layers = [read_layer(args.preset), *map(override, regimes[regime])]
        for seed in args.seeds:
            plans += [plan_run(resolve([*layers, {"method": {"name": cell}, "seed": seed}])) for cell in args.cells]
            regime_of_plan += [regime] * len(args.cells)
    names, failed = run_all(plans, args.out)
    regime_of = {name: regime for name, regime in zip(names, regime_of_plan, strict=True) if name}
    runs = load_runs(args.out).runs
    for metric in ("tuning_BC", "tuning_AC", "tuning_mean_accuracy"):
        print(f"\n{metric}\n{table(runs, regime_of, metric).to_string(float_format='{:+.3f}'.format)}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"regimes: {error}", file=sys.stderr)
        sys.exit(2)
