"""Ablation: {Trainable, Fixed} classifier × {none, FD, FD^M}, over seeds (the paper's ablation table).

    python studies/ablation.py                       # six cells, seed 0
    python studies/ablation.py --seeds 0 1 2         # the README's table
    python studies/ablation.py --cells er cl2r       # two rows

Cost on two cores with the default preset: about a minute a run; cells of one classifier share their first task, so six
cells and T tasks train 2 + 6·(T−1) links a seed, and none when repeated. Runs go one after the other in this process.
"""

import argparse
import sys
from pathlib import Path

import pandas as pd

from analysis.frames import load_runs
from analysis.tables import ablation_table, markdown
from cl2r.config import fields, override, read_layer, resolve
from cl2r.engine.records import run_name, write_run
from cl2r.engine.run import Plan, execute, plan_run
from cl2r.errors import InputError, TrainingError, exit_code
from cl2r.methods.catalog import ABLATION_CELLS
from cl2r.progress import ProgressLine


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="icons")
    parser.add_argument("--cells", nargs="+", default=list(ABLATION_CELLS), choices=ABLATION_CELLS, metavar="CELL")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("results"))
    return parser.parse_args()


def run_all(plans: list[Plan], out: Path) -> tuple[list[str | None], bool]:
    """Run one plan after the other; the names of the finished runs (None: failed), and whether any failed."""
    names: list[str | None] = []
    for number, plan in enumerate(plans, start=1):
        method = f"{plan.config.method.name} seed {plan.config.seed}"
        progress = ProgressLine(len(plan.keys), f"[{number}/{len(plans)} {method}] ")
        try:
            write_run(execute(plan, out, progress), out)
            names.append(run_name(plan))
        except TrainingError as error:
            progress.say(f"failed: {error}")
            names.append(None)
        finally:
            progress.close()
    return names, None in names


def main() -> int:
    """Run every cell and seed, then print the table of exactly these runs. A failed run leaves a hole, not a halt."""
    args = parse()
    for text in args.overrides:
        if text.split("=")[0] in ("seed", "method.name", "method.classifier", "method.fd"):
            raise InputError(f"--set {text}: the study sets this field itself; use --cells and --seeds")
    layers = [read_layer(args.preset), *map(override, args.overrides)]
    configs = [
        resolve([*layers, {"method": {"name": cell}, "seed": seed}]) for seed in args.seeds for cell in args.cells
    ]
    names, failed = run_all([plan_run(config) for config in configs], args.out)
    if any(names):
        runs = load_runs(args.out, names).runs
        holes = [fields(config) for config, name in zip(configs, names, strict=True) if name is None]
        print(markdown(ablation_table(pd.concat([runs, pd.DataFrame(holes)]))))
        print(f"\nframes: {args.out / 'runs'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_code("ablation", main))
