"""The ablation where GPUs are names only: what asks for one trains on a CPU, which no option of the command offers."""

import dataclasses
import sys

from analysis import plots
from cl2r.errors import exit_code
from cl2r.study import command
from studies import ablation

_given = command._resources


def main() -> int:
    """Run the study with the words of the command line."""
    plots.write_figures = lambda study, folder: []  # they have tests of their own
    command._resources = lambda args: dataclasses.replace(_given(args), backend="gloo")
    return ablation.main()


if __name__ == "__main__":
    sys.exit(exit_code("ablation", main))
