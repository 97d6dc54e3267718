"""The ablation as a program of its own, with faults in its training processes."""

import sys

from cl2r.cli import report
from cl2r.rayrun.cluster import set_environment
from cl2r.runtime.logs import exit_code
from studies import ablation
from tests.faults import injection

if __name__ == "__main__":
    set_environment(verbose=False)  # before Ray is imported
    from cl2r.rayrun import cluster
    from cl2r.rayrun import tune as tuning

    cluster.HEAD_CHECK_S = 1.0
    tuning.run_trial = injection.run_trial
    report.leave_report = lambda *_: None
    sys.exit(exit_code("ablation", ablation.main))
