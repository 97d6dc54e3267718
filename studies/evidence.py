"""Which method when: the paper's experiment on CIFAR, and one change at a time to explain its outcome.

    python studies/evidence.py --data-root DIR                                   # everything: days on two cores
    python studies/evidence.py --only three three_masked --cells fixed cl2r      # some variants, some cells
    python studies/evidence.py --only epochs_70 --keep studies/results/which-method-when.json

A variant is a name and a few overrides (evidence.yaml). Links are shared with other commands and studies. `--keep` adds
the finished runs to a JSON file, from which `python -m analysis.evidence` makes the tables and plots of
studies/results/which-method-when.md. Cost on one plain core: 4 to 8 minutes for ten tasks of 14 epochs.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cl2r.cli.study import Frames, Recipe, ending, list_option, study_command
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.errors import InputError
from cl2r.storage.documents import yaml_mapping

if TYPE_CHECKING:
    from cl2r.study.session import StudySession
    from cl2r.study.spec import StudySpec

FILE = Path(__file__).with_suffix(".yaml")
VARIANTS = yaml_mapping(FILE.read_bytes(), FILE)["variants"]


@study_command(__file__, __doc__)
@list_option("--only", type=click.Choice(list(VARIANTS)), metavar="VARIANT...", help="Some of the variants.")
@list_option("--cells", type=click.Choice(ABLATION_CELLS), metavar="CELL...", help="Some of the cells.")
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="FILE.json", help="Add the finished runs to this file."
)
def main(only: tuple[str, ...], cells: tuple[str, ...], keep: Path | None) -> Recipe:
    """Choose variants and cells."""

    def check(spec: "StudySpec") -> None:
        from analysis.kept import kept_runs

        if keep is not None:
            if keep.suffix != ".json" or not keep.absolute().parent.is_dir():
                raise InputError(f"--keep {keep}: give a file that ends in .json, in a folder that exists")
            kept_runs(keep, spec.identity(()))  # raises InputError now, not after training

    def show(session: "StudySession", frames: Frames) -> str:
        text = ending(session, frames)
        if keep is not None:
            from analysis.kept import keep_runs
            from cl2r.cli.report import study_of

            text += f"\n{keep_runs(study_of(session.folder, frames), keep)} runs in {keep}"
        return text

    variants = {name: VARIANTS[name] for name in only or VARIANTS}
    return Recipe({"variants": variants, "grid": {"method.name": list(cells) or None}}, show, check=check)


if __name__ == "__main__":
    main.run_program()
