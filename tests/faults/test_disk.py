"""A disk that is full, or cannot be written, on a small file system of its own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import injection
import pytest
from faulty import Faulty

MEGABYTES = 16


@pytest.fixture
def small_disk(faulty: Faulty) -> Iterator[Path]:
    """The storage is a tmpfs."""
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
    """Files and folders that were being written; what is in `live` is worth nothing, and the next driver removes it."""
    return [path for path in root.rglob(".*") if path.parent.name != "live"]


def test_a_full_disk(faulty: Faulty, small_disk: Path) -> None:
    """Nothing can be written from the middle of a task on, neither the epoch nor that the run has failed."""
    injection.lay("batch", "fill", argument=str(small_disk), task=2, epoch=3)
    code, said = faulty.run()
    assert injection.left() == []
    assert code == 1
    (last,) = [line for line in said.splitlines() if line.startswith("ablation: ")]
    assert last == f"ablation: {faulty.path}: No space left on device; once that is mended, the same command goes on"
    assert "Traceback" not in said
    assert halves(small_disk) == []
    assert "interrupted" in faulty.status()
    (small_disk / "filler").unlink()
    code, _ = faulty.run()
    assert code == 0
    faulty.assert_whole()


def test_a_disk_that_became_read_only(faulty: Faulty, half_storage: Path, small_disk: Path) -> None:
    """Said before anything is started."""
    shutil.copytree(half_storage, small_disk, dirs_exist_ok=True)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    code, said = faulty.run()
    assert code == 2
    assert said == f"ablation: cannot write to {small_disk}: Read-only file system\n"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    code, _ = faulty.run()
    assert code == 0
    faulty.assert_whole()
