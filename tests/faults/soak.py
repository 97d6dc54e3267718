"""A soak test: many tiny trials on two nodes while processes, nodes, the driver, files and the clock are disturbed.

    python tests/faults/soak.py --trials 200 --seed 0

At the end every run must have finished exactly once, none may have failed, and the matrices must equal those of the
same runs without Ray. Prints a Markdown table of faults and of the work that they cost; exits with 1 if anything was
lost. Work is counted in epochs that were trained more than once; a killed process also loses the one under way.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from cl2r.engine.chain import execute
from cl2r.engine.frames import frames
from cl2r.engine.plan import plan_run
from cl2r.errors import REQUEUE
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import Run, grid_jobs
from cl2r.study.spec import StudySpec
from tests.faults.epoch_log import Epoch
from tests.faults.fake_nodes import ROOT, FakeNodes
from tests.faults.soak_faults import NAMES, Fault, Killer
from tests.support.quick import QUICK, Recorder, blobs
from tests.support.study_frames import finished_events, frames_of

TASKS, EPOCHS, SAMPLE, STUDY = 2, 8, 20, "soak"
FAULTS, LEAST_PACE = 40, 10
"""Approximate number of faults, but at most one in `LEAST_PACE` epochs."""
PATIENCE_SECONDS = 300
"""After so long without training the study counts as hanging."""


def write_study(folder: Path, trials: int) -> Path:
    """Write a study of two tasks on 12 small classes, with one trial per seed."""
    rng = np.random.default_rng(7)
    (x_train, y_train), (x_open, y_open) = blobs(12, rng), blobs(6, rng)
    np.savez(folder / "tiny.npz", x_train=x_train, y_train=y_train, x_open=x_open, y_open=y_open + 100)
    preset = {**QUICK, "data": {"name": str(folder / "tiny.npz")}, "scenario": {"n_tasks": TASKS}}
    preset |= {"optim": {"epochs": EPOCHS, "milestones": [6]}, "eval": {**QUICK["eval"], "bootstrap": 0}}
    (folder / "preset.yaml").write_text(yaml.safe_dump(preset))
    study = {"preset": str(folder / "preset.yaml"), "grid": {"method.name": ["cl2r"]}, "seeds": list(range(trials))}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    return folder / "study.yaml"


class Soak:
    """One study, its command as often as needed, and the faults."""

    def __init__(self, folder: Path, trials: int, seed: int, ray: FakeNodes) -> None:
        self.ray, self.path = ray, write_study(folder, trials)
        self.folder, self.log = StudyFolder(folder / "out", STUDY), folder / "driver.log"
        self.runs = [run for job in grid_jobs(StudySpec.load(self.path)) for run in job.runs]
        pace = max(LEAST_PACE, trials * TASKS * EPOCHS // FAULTS)
        self.killer = Killer(ray, seed, pace, self.folder.storage / "links", self.unfinished_links)
        self.commands = 0

    def unfinished_links(self) -> dict[str, str]:
        """Return the keys of links that unfinished runs need, with the names of those runs."""
        done = set(finished_events(self.folder.storage, STUDY))
        return {key: epoch_name(run) for run in self.runs if run.name not in done for key in run.keys}

    def command(self) -> list[str]:
        """Return the words of the real command."""
        words = ["study", str(self.path), "--storage", str(self.folder.storage), "--name", STUDY]
        return [sys.executable, "-m", "cl2r", *words, "--max-concurrent", "2"]

    def run(self) -> int:
        """Run the same command until it ends by itself; return its exit code."""
        code: int | None = None
        while code in (None, REQUEUE, -9):
            self.commands += 1
            with self.log.open("a") as log:
                driver = subprocess.Popen(self.command(), env=self.ray.environment, stdout=log, stderr=log, cwd=ROOT)
            try:
                code = self._watch(driver)
            finally:
                driver.kill()  # no effect if it has ended
                driver.wait()
        return code

    def _watch(self, driver: subprocess.Popen[bytes]) -> int:
        began = time.monotonic()
        while driver.poll() is None:
            self.killer.look(driver)
            last = self.ray.last_epoch
            if time.monotonic() - max(began, last.time if last else began) > PATIENCE_SECONDS:
                return 1
            time.sleep(0.05)
        return int(driver.returncode)

    def losses(self) -> list[str]:
        """Return what went wrong with the runs."""
        storage, found = self.folder.storage, []
        times = Counter(finished_events(storage, STUDY))
        found += [f"{run.name} finished {times[run.name]} times" for run in self.runs if times[run.name] != 1]
        found += [f"{event.subject} failed: {event.read()['reason']}" for event in self.folder.ledger.events("failed")]
        return found


def epoch_name(run: Run) -> str:
    """Return the name of a run in the log of epochs."""
    return f"{run.config.method.name}-{run.config.seed}"


COMPARED = {"matrix": ("pairs", "t", "k", "accuracy"), "curves": ("task", "stage", "epoch")}
"""Columns that are compared, besides the losses, which differ where an accuracy does not."""


def wrong_results(soak: Soak, sample: Sequence[Run], folder: Path) -> list[str]:
    """Return the runs whose values differ in any bit from those of a run without Ray."""
    there, wrong = frames_of(soak.folder.storage, STUDY), []
    for run in sample:
        plain = frames(execute(plan_run(run.config), folder, Recorder()), run.name)
        for name in COMPARED:
            if values(pd.DataFrame(plain[name]), name) != values(there[name].query("run == @run.name"), name):
                wrong.append(f"{run.name}: another {name} frame than without Ray")
    return wrong


def values(frame: pd.DataFrame, name: str) -> set[tuple[object, ...]]:
    """Return the rows, independent of their order and of the types of the columns."""
    columns = sorted(column for column in frame if column in COMPARED[name] or column.startswith("loss_"))
    plain = frame[columns].astype(object)
    return set(plain.where(plain.notna(), None).itertuples(index=False, name=None))  # NaN is not equal to itself


def repeated(epochs: Sequence[Epoch], faults: Sequence[Fault]) -> Counter[str]:
    """Return the number of epochs trained again, by the kind of the last fault before."""
    first, cost = set[tuple[str, int, str, int]](), Counter[str]()
    for epoch in sorted(epochs, key=lambda epoch: epoch.time):
        entry = (epoch.run, epoch.task, epoch.stage, epoch.epoch)
        if entry in first:
            before = [fault for fault in faults if fault.time < epoch.time]
            own = [fault for fault in before if fault.kind == "link" and fault.detail == epoch.run]
            cost[own[-1].kind if own else before[-1].kind if before else "none"] += 1
        first.add(entry)
    return cost


def table(soak: Soak, sound: bool, seconds: float) -> str:
    """Return the faults by kind as a Markdown table."""
    faults, epochs = soak.killer.faults, soak.ray.epochs
    injected, cost = Counter(fault.kind for fault in faults), repeated(epochs, faults)
    last = max((epoch.time for epoch in epochs), default=0.0)
    survived = Counter(fault.kind for fault in faults if sound or fault.time < last)
    lines = ["| fault | injected | survived | links lost |", "|---|---:|---:|---:|"]
    for kind, name in NAMES.items():
        lines.append(f"| {name} | {injected[kind]} | {survived[kind]} | {cost[kind] / EPOCHS:.2f} |")
    total = f"| **all** | {len(faults)} | {survived.total()} | {cost.total() / EPOCHS:.2f} |"
    needed = len(soak.runs) * TASKS * EPOCHS
    return "\n".join(
        [
            *lines,
            total,
            "",
            f"{len(soak.runs)} trials of {TASKS} tasks × {EPOCHS} epochs, two at a time on two nodes, in "
            f"{seconds:.0f} s: {len(epochs)} epochs trained, {needed} needed; "
            f"the command was given {soak.commands} times.",
        ]
    )


def main(words: list[str] | None = None) -> int:
    """Run the soak, compare the results, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there as well")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name, FakeNodes() as ray:
        soak, began = Soak(Path(name), args.trials, args.seed, ray), time.monotonic()
        code = soak.run()
        seconds = time.monotonic() - began
        losses = ([f"the command ended with {code}"] if code else []) + soak.losses()
        if not losses:
            hit = {fault.detail for fault in soak.killer.faults}
            chosen = random.Random(args.seed).sample(soak.runs, len(soak.runs))
            chosen.sort(key=lambda run: epoch_name(run) not in hit)  # stable: those that were hit come first
            losses = wrong_results(soak, chosen[:SAMPLE], Path(name) / "plain")
        text = table(soak, not losses, seconds)
        if losses:
            print(soak.log.read_text()[-4000:], file=sys.stderr)
    print("\n".join([text, *(f"lost: {line}" for line in losses)]))
    if args.out:
        args.out.write_text(f"{text}\n")
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
