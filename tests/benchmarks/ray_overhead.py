"""What Ray costs: seconds per trial beyond training, and the driver's memory, over many tiny trials.

    python tests/benchmarks/ray_overhead.py --trials 200

Prints a line that the README quotes. A trial's own work is training, extraction of features and evaluation, as timed
inside it; the rest of its share of the wall clock is overhead. Start-up (Ray, and the first import of torch in each
process) ends with the first finished run and is given apart.
"""

import argparse
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from cl2r.cli.study import load_command
from cl2r.study.folder import StudyFolder
from tests.support.quick import QUICK, blobs

SHORT = {"scenario": {"n_tasks": 2}, "optim": {"epochs": 1}, "eval": {**QUICK["eval"], "bootstrap": 0}}


def write_study(folder: Path, trials: int) -> Path:
    """Two tasks of one epoch on 12 small classes; a trial a seed."""
    rng = np.random.default_rng(7)
    (x_train, y_train), (x_open, y_open) = blobs(12, rng), blobs(6, rng)
    np.savez(folder / "tiny.npz", x_train=x_train, y_train=y_train, x_open=x_open, y_open=y_open + 100)
    (folder / "preset.yaml").write_text(
        yaml.safe_dump({**QUICK, "data": {"name": str(folder / "tiny.npz")}, **SHORT}), encoding="utf-8"
    )
    study = {"preset": str(folder / "preset.yaml"), "grid": {"method.name": ["cl2r"]}, "seeds": list(range(trials))}
    (folder / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    return folder / "study.yaml"


class Watch(threading.Thread):
    """Remembers the driver's peak memory by number of runs finished."""

    def __init__(self, folder: StudyFolder) -> None:
        super().__init__(daemon=True)
        self.folder, self.samples, self.done = folder, list[tuple[float, int, float]](), threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.5):
            runs = len(self.folder.ledger.events("finished"))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            self.samples.append((time.perf_counter(), runs, peak))


def main() -> int:
    """Run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    trials = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as name:
        path = write_study(Path(name), trials)
        folder = StudyFolder(Path(name) / "out", "overhead")
        watch = Watch(folder)
        watch.start()
        began = time.perf_counter()
        words = ["--storage", str(folder.storage), "--name", folder.name, "--max-concurrent", "2"]
        code = load_command(str(path))(words)
        watch.done.set()
        watch.join()
        finished = folder.ledger.events("finished")
        own = sum(event.read()["frames"]["runs"][0]["wall_seconds"] for event in finished)
    started = next(sample for sample in watch.samples if sample[1] > 0)
    ended = next(sample for sample in watch.samples if sample[1] >= trials)
    between = ended[1] - started[1]
    share = 2 * (ended[0] - started[0]) / between  # two at a time
    print(
        f"\n{trials} trials, two at a time: {started[0] - began:.1f} s to the first finished run; then {share:.2f} s a "
        f"trial, of which {own / trials:.2f} s are its own work; driver {started[2]:.0f} MB after {started[1]} runs, "
        f"{ended[2]:.0f} MB after {ended[1]} ({1000 * (ended[2] - started[2]) / between:.0f} kB a trial)"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
