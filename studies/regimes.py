"""In which regime does which cell of the ablation win? (icons; the question behind the paper's Table 9)

    python studies/regimes.py                        # every regime of regimes.yaml, seed 0, the first 3 of 5 tasks
    python studies/regimes.py --only default memory_0 --cells er cl2r --seeds 0 1 2 --set scenario.stop_after=5

A regime is a name and a few config overrides. The metrics are computed on the *tuning* pairs: a preset chosen by this
table has not seen the report pairs. Cost: about two minutes per regime on two cores; links are shared with other
studies.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cl2r.cli.study import Frames, Recipe, list_option, study_command
from cl2r.config.builtin import ABLATION_CELLS
from cl2r.storage.documents import yaml_mapping

if TYPE_CHECKING:
    from cl2r.study.session import StudySession

FILE = Path(__file__).with_suffix(".yaml")
REGIMES = yaml_mapping(FILE.read_bytes(), FILE)["variants"]


def tables(session: "StudySession", frames: Frames) -> str:
    """Return one table per metric, with one row per regime and one column per cell, averaged over seeds."""
    import pandas as pd

    from analysis.groups import pivot
    from analysis.tables.formats import render
    from analysis.tables.table import FAILED, Cell, Table, number_cell

    shown = []
    for metric in ("tuning_BC", "tuning_AC", "tuning_mean_accuracy"):
        wide = pivot(frames["runs"], metric, ["variant"], "method.name")
        rows = [
            (Cell(str(regime)), *(FAILED if pd.isna(value) else number_cell(value, "+.3f") for value in values))
            for regime, values in wide.iterrows()
        ]
        shown.append(Table(("variant", *map(str, wide.columns)), tuple(rows), wide.reset_index(), metric))
    return render(shown, "terminal")


@study_command(__file__, __doc__)
@list_option("--only", type=click.Choice(list(REGIMES)), metavar="REGIME...", help="Some of the regimes.")
@list_option("--cells", type=click.Choice(ABLATION_CELLS), metavar="CELL...", help="Some of the cells.")
def main(only: tuple[str, ...], cells: tuple[str, ...]) -> Recipe:
    """Choose regimes and cells."""
    variants = {name: REGIMES[name] for name in only or REGIMES}
    return Recipe({"variants": variants, "grid": {"method.name": list(cells) or None}}, tables)


if __name__ == "__main__":
    main.run_program()
