"""A full or read-only disk, on a small file system of its own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import injection
from tests.faults.faulty import Faulty

MEGABYTES = 16


@pytest.fixture
def small_disk(faulty: Faulty) -> Iterator[Path]:
    """The storage on a small tmpfs."""
    faulty.storage.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(faulty.storage)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        word = f"a small disk cannot be mounted here: {mounted.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(f"{word}; with $CI set, this must be tested")
        pytest.skip(word)
    yield faulty.storage
    subprocess.run(["umount", "--lazy", str(faulty.storage)], check=True)


def halves(root: Path) -> list[Path]:
    """Return half-written files and folders; those in `live` do not matter, the next driver removes them."""
    return [path for path in root.rglob(".*") if path.parent.name != "live"]


def test_a_full_disk(faulty: Faulty, small_disk: Path) -> None:
    """From the middle of a task on nothing can be written, neither the epoch nor the failure of the run."""
    injection.lay("batch", "fill", argument=str(small_disk), task=2, epoch=3)
    code, said = faulty.run()
    assert injection.left() == []
    assert code == 1
    (last,) = [line for line in said.splitlines() if line.startswith("ablation: ")]
    assert last.startswith(f"ablation: {faulty.path}: No space left on device")
    assert "Traceback" not in said
    assert halves(small_disk) == []
    assert "interrupted" in faulty.status()
    (small_disk / "filler").unlink()
    code, _ = faulty.run()
    assert code == 0
    faulty.assert_whole()


def test_a_disk_that_became_read_only(faulty: Faulty, half_storage: Path, small_disk: Path) -> None:
    """Refused before anything starts."""
    shutil.copytree(half_storage, small_disk, dirs_exist_ok=True)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    code, said = faulty.run()
    assert code == 2
    assert f"{small_disk}/links: Read-only file system" in said
    assert said.count("\n") == 1
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    code, _ = faulty.run()
    assert code == 0
    faulty.assert_whole()
