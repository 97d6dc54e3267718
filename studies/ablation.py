"""Ablation: {Trainable, Fixed} classifier × {none, FD, FD^M}, over seeds (the paper's Table 9).

    make study                                       # 8 of the preset's 20 epochs: the README's table
    python studies/ablation.py                       # six cells, seeds 0, 1 and 2
    python studies/ablation.py --cells er cl2r       # two rows
    python studies/ablation.py --tasks 5             # five equal tasks instead of the preset's split
    python studies/ablation.py --confounders         # also with masked and with preallocated outputs
    ray job submit -- python studies/ablation.py     # on a cluster of cluster/

Cells with the same classifier share their first task: six cells and T tasks train 2 + 6·(T−1) links per seed, and none
when repeated. Cost on two cores with the default preset: about five minutes per seed. `--plan` estimates any command.
"""

import click

from cl2r.cli.study import Recipe, list_option, study_command
from cl2r.config.builtin import ABLATION_CELLS

CONFOUNDERS = {"plain": {}, "masked": {"head.mask_unseen": True}, "preallocated": {"head.preallocate": True}}
"""How else the two classifiers differ: outputs of unseen classes in the softmax, and when rows are allocated."""


@study_command(__file__, __doc__)
@list_option("--cells", type=click.Choice(ABLATION_CELLS), metavar="CELL...", help="Some of the six cells.")
@click.option("--confounders", is_flag=True, help="Add variants with masked and with preallocated outputs.")
def main(cells: tuple[str, ...], confounders: bool) -> Recipe:
    """Choose cells and variants."""
    variants = CONFOUNDERS if confounders else None
    return Recipe({"grid": {"method.name": list(cells) or None}, "variants": variants})


if __name__ == "__main__":
    main.run_program()
