"""The ablation as a program of its own, with faults in its training processes."""

import sys

import injection

from cl2r.errors import exit_code
from cl2r.rayrun.cluster import set_environment
from cl2r.study import report
from studies import ablation

if __name__ == "__main__":
    set_environment(verbose=False)  # before Ray is imported
    from cl2r.rayrun import search, tuning

    search.START_SECONDS = 0.0
    tuning.run_trial = injection.run_trial
    report.leave_report = lambda folder: []
    sys.exit(exit_code("ablation", ablation.main))
