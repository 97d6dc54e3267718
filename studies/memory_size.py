"""How much memory compatibility needs: 0, 5, 10, 20, 50 images a class × methods (the paper's memory figure).

    python studies/memory_size.py
    python studies/memory_size.py --methods er cl2r --sizes 0 20 --seeds 0 1 2

Memory matters from the second task on, so all sizes of a classifier share their first task: a seed trains
2 + 4·5·(T−1) links. Cost on two cores with the default preset: about 15 minutes a seed; `--plan` says more.
"""

import sys
from pathlib import Path

from cl2r.errors import exit_code
from cl2r.study.custom import compare_methods


def main(words: list[str] | None = None) -> int:
    """Run and print."""
    path = Path(__file__).with_suffix(".yaml")
    return compare_methods("memory_size", __doc__, path, "memory.per_class", "--sizes", words)


if __name__ == "__main__":
    sys.exit(exit_code("memory_size", main))
