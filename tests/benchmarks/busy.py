"""Images per second of `cl2r run` alone and beside busy processes, with OpenMP's threads waiting passively or actively.

    python tests/benchmarks/busy.py                 # about two minutes on two quiet cores
    python tests/benchmarks/busy.py --busy 4 --epochs 5

Each run is a process of its own with the default threads; its links are compared bit by bit with those of the others.
Passive is what cl2r sets; active is torch's default without it. `alone` means little if other programs run meanwhile.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

POLICIES = ("PASSIVE", "ACTIVE")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes computing inside the block."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def train(policy: str, epochs: int, limit: float) -> tuple[float, str]:
    """Return images per second of all epochs of a short run, and a digest of its links.

    A run that takes longer than `limit` seconds is stopped: its speed is not a number, its digest empty.
    """
    with tempfile.TemporaryDirectory() as storage:
        words = ["run", "icons", "--tasks", "2", "--storage", storage, "--set", f"optim.epochs={epochs}"]
        try:
            subprocess.run(
                [sys.executable, "-m", "cl2r", *words, "--set", "optim.milestones=[]"],
                env={**os.environ, "OMP_WAIT_POLICY": policy},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return math.nan, ""
        links, digest = sorted(Path(storage, "links").iterdir()), hashlib.sha256()
        texts = [next(link.glob("*-record.json")).read_text(encoding="utf-8") for link in links]
        records = [json.loads(text) for text in texts]
        for file in sorted(file for link in links for file in link.glob("*.safetensors")):
            digest.update(file.read_bytes())
    images, seconds = (sum(record[name] for record in records) for name in ("images", "seconds"))
    return images / seconds, digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--busy", type=int, default=os.cpu_count(), help="busy processes (default: one per core)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a run is stopped (nan)")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; images per second\n")
    print(f"| OMP_WAIT_POLICY | alone | beside {options.busy} busy processes | times slower |\n|---|---|---|---|")
    digests = set()
    for policy in POLICIES:
        alone, first = train(policy, options.epochs, options.limit)
        with busy(options.busy):
            beside, second = train(policy, options.epochs, options.limit)
        digests |= {first, second} - {""}
        print(f"| {policy} | {alone:,.0f} | {beside:,.0f} | {alone / beside:.1f} |", flush=True)
    print(f"\nlinks: {'equal bit by bit' if len(digests) == 1 else 'NOT EQUAL'} in all runs that ended")
    sys.exit(len(digests) > 1)


if __name__ == "__main__":
    main()
