"""A small study with faults: how it is run, in this process or another, and what must come out."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from cl2r.engine.links import PARTIAL
from cl2r.runtime.logs import exit_code
from cl2r.study.folder import StudyFolder
from cl2r.study.status import status
from studies import ablation
from tests.faults.fake_nodes import PATIENCE_SECONDS
from tests.support.study_frames import assert_same_frames, finished_events

NAME = "faulty"
RESUMED = "its process died; it resumes"
EPOCHS, TASKS = 5, 2
DRIVER = Path(__file__).with_name("driver.py")


@dataclass
class Faulty:
    """The study `faulty` below `storage`; it has the specification of `calm` below `undisturbed`."""

    undisturbed: Path
    preset: Path
    storage: Path
    output: pytest.CaptureFixture[str]
    cells: tuple[str, ...] = ("cl2r",)

    @property
    def words(self) -> list[str]:
        """Words of the command."""
        return [
            "--preset",
            str(self.preset),
            "--storage",
            str(self.storage),
            "--name",
            NAME,
            "--seeds",
            "0",
            "--cells",
            *self.cells,
        ]

    @property
    def folder(self) -> StudyFolder:
        """The study's folder."""
        return StudyFolder(self.storage, NAME)

    @property
    def path(self) -> Path:
        """Path of the study's folder."""
        return self.storage / "studies" / NAME

    @property
    def marker(self) -> Path:
        """File that asks training processes to stop."""
        return self.path / "stop"

    def run(self, *options: str) -> tuple[int, str]:
        """Run the command in this process; return exit code and standard error."""
        code = exit_code("ablation", lambda: ablation.main([*self.words, *options]))
        return code, self.output.readouterr().err

    @contextlib.contextmanager
    def driver(self, log: Path, *options: str, address: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Start the command as a process of its own, which joins the Ray of these tests."""
        joined = address or ray.get_runtime_context().gcs_address
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), *self.words, *options],
                stdout=file,
                stderr=file,
                env={**os.environ, "RAY_ADDRESS": joined},
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def status(self) -> str:
        """Return what `cl2r status` prints."""
        return status(self.storage, NAME)

    def keys(self) -> list[str]:
        """Return the keys of its links, in order."""
        import pandas as pd

        tasks = pd.read_parquet(self.undisturbed / "studies" / "calm" / "tasks.parquet")
        return [str(key) for key in tasks.sort_values("task")["key"]]

    def remembered_epoch(self, task: int) -> int:
        """Return the saved epoch of an unfinished task."""
        body = (self.storage / "partials" / self.keys()[task - 1] / PARTIAL).read_bytes().partition(b"\n")[2]
        return int(json.loads(body)["epoch"])

    def assert_whole(self) -> None:
        """Check that the frames equal those of the undisturbed study, every run finished once, and nothing is left."""
        assert_same_frames((self.storage, NAME), (self.undisturbed, "calm"))
        runs, count = finished_events(self.storage, NAME), len(self.cells)
        assert len(runs) == len(set(runs)) == count
        assert f"{count} of {count} runs finished" in self.status()
        assert "interrupted" not in self.status()
        assert list((self.storage / "partials").iterdir()) == []

    def end(self, process: subprocess.Popen[bytes], kind: signal.Signals) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        process.send_signal(kind)
        return process.wait(PATIENCE_SECONDS)
