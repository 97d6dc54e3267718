"""A study that is only a YAML file: a grid prints a row a point, a sweep its best trials."""

from pathlib import Path

import pandas as pd

from analysis.tables import points_markdown
from analysis.trials import best_trials, trials_markdown
from cl2r.study.command import run_command, study_parser
from cl2r.study.spec import OBJECTIVES, Study


def sweep_table(frames: dict[str, pd.DataFrame], study: Study) -> str:
    """The best trials, or the Pareto front."""
    goals = {name: OBJECTIVES[name][1][:3] for name in study.spec.search.objectives}
    return trials_markdown(best_trials(frames["runs"], goals))


def table(frames: dict[str, pd.DataFrame], study: Study) -> str:
    """What there is to see."""
    return sweep_table(frames, study) if study.is_sweep else points_markdown(frames["runs"], list(study.spec.grid))


def main(path: Path, words: list[str]) -> int:
    """Run and print."""
    parser = study_parser(str(path), f"The study of {path}.")
    return run_command(parser.parse_args(words), path, {}, table)
