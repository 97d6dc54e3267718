"""How compatibility falls with the number of tasks: T = 2, 3, 5, 10 × methods (the paper's tables by task count).

    python studies/task_counts.py
    python studies/task_counts.py --methods er cl2r --counts 2 5 --seeds 0 1 2

Nothing is shared between task counts: each has other class lists from the first task on. Methods of one classifier
share their first task. Cost on two cores with the default preset: about 15 minutes a seed; `--plan` says more.
"""

import sys
from pathlib import Path

from cl2r.errors import exit_code
from cl2r.study.custom import compare_methods


def main(words: list[str] | None = None) -> int:
    """Run and print."""
    path = Path(__file__).with_suffix(".yaml")
    return compare_methods("task_counts", __doc__, path, "scenario.n_tasks", "--counts", words)


if __name__ == "__main__":
    sys.exit(exit_code("task_counts", main))
