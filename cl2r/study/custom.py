"""Studies that are little more than a YAML file: a grid prints a row a point, a sweep its best trials."""

import argparse
from pathlib import Path

import pandas as pd

from analysis.formats import render
from analysis.shown import shown_comparison, shown_points
from analysis.trials import shown_trials
from cl2r.errors import InputError
from cl2r.methods.catalog import method_info, split_name
from cl2r.study.command import Show, given, run_command, study_parser
from cl2r.study.spec import OBJECTIVES, Study, read_content


def sweep_table(frames: dict[str, pd.DataFrame], study: Study) -> str:
    """The best trials, or the Pareto front."""
    goals = {name: OBJECTIVES[name][1][:3] for name in study.spec.search.objectives}
    return render(shown_trials(frames["runs"], goals), "terminal")


def table(frames: dict[str, pd.DataFrame], study: Study) -> str:
    """What there is to see."""
    if study.is_sweep:
        return sweep_table(frames, study)
    return render(shown_points(frames["runs"], list(study.spec.grid)), "terminal")


def compare_methods(
    name: str,
    doc: str | None,
    path: Path,
    field: str,
    option: str,
    words: list[str] | None,
    show: Show | None = None,
) -> int:
    """Methods × the values of one integer field, with `--methods` and `option` to choose among them."""
    parser = study_parser(name, doc)
    parser.add_argument("--methods", nargs="+", type=_known, metavar="NAME", help="method or method+adapter")
    parser.add_argument(option, nargs="+", type=int, metavar="N", dest="values")
    args = parser.parse_args(words)
    names = args.methods or read_content(path)["grid"]["method.name"]
    changes = {"grid": given({"method.name": _with_schedule(names, args.overrides), field: args.values})}

    def by_field(frames: dict[str, pd.DataFrame], _: Study) -> str:
        return render(shown_comparison(frames["runs"], field), "terminal")

    return run_command(args, path, changes, show or by_field)


def _with_schedule(names: list[str], overrides: list[str]) -> list[str]:
    """Methods without a known schedule of their own have no place in a study of native ones."""
    if "method.budget=native" not in overrides:
        return names
    without = [name for name in names if method_info(name).native is None]
    if without:
        print(f"note: no native schedule is known of {', '.join(without)}: left out")
    return [name for name in names if name not in without]


def _known(name: str) -> str:
    try:
        split_name(name)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def main(path: Path, words: list[str]) -> int:
    """Run and print."""
    parser = study_parser(str(path), f"The study of {path}.")
    return run_command(parser.parse_args(words), path, {}, table)
