"""Seconds and memory of `cl2r fsck` on storages of more and more links.

    python -m tests.benchmarks.fsck [--links 1 100 1000] [--kilobytes 1000] [--folder DIR]

Links are as runs write them, with random features. Every storage is read by a process of its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from cl2r.engine.links import Link, LinkStore


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--kilobytes", type=int, default=1000, help="size of a link")
    parser.add_argument("--folder", type=Path, help="where to make the storages (default: the temporary folder)")
    given = parser.parse_args()
    print("| links | MB | seconds | peak memory MB |\n|---:|---:|---:|---:|")
    for count in given.links:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            store = LinkStore(Path(folder))
            for number in range(count):
                features = {"open": torch.rand(given.kilobytes * 250 // 64, 64)}
                store.save(f"{number:032x}", Link({"weight": torch.rand(64)}, features, {"task": 1}))
            began = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-c", "from cl2r.cli.main import main; main()", "fsck", folder],
                stdout=subprocess.PIPE,
                encoding="utf-8",
            )
            assert process.stdout is not None
            last = process.stdout.read().splitlines()[-1]
            usage = os.wait4(process.pid, 0)[2]
            seconds = time.perf_counter() - began
        assert last == f"{count} unused", last  # no run refers to them
        print(f"| {count:,} | {count * given.kilobytes / 1000:,.0f} | {seconds:.1f} | {usage.ru_maxrss / 1024:.0f} |")


if __name__ == "__main__":
    main()
