"""The ablation with GPUs that are names only: trials that ask for one train on a CPU, which no option offers."""

import dataclasses
import sys

from analysis import plots
from cl2r.rayrun import cluster
from cl2r.runtime.logs import exit_code
from cl2r.study.resources import Resources
from studies import ablation

_given = Resources.from_options
cluster.FIRST_WARNING_S = 2.0  # a test waits for the warning


def main() -> int:
    """Run the study with the words of the command line."""
    plots.write_figures = lambda study, folder: []  # they have tests of their own
    Resources.from_options = lambda options: dataclasses.replace(_given(options), backend="gloo")
    return ablation.main()


if __name__ == "__main__":
    sys.exit(exit_code("ablation", main))
