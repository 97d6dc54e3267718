"""The folder of a study: what its name stands for, and who drives it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_study import tree

from cl2r.errors import InputError
from cl2r.study.folder import StudyFolder, digest

IDENTITY: dict[str, Any] = {
    "format": 1,
    "base": {"optim": {"epochs": 3, "milestones": (1, 2)}, "method": {"name": "cl2r"}},
    "seeds": (0, 1),
    "grid": {"method.name": ["er", "cl2r"]},
}

HOLD = """
import sys, time
from pathlib import Path
from cl2r.study.folder import StudyFolder
with StudyFolder(Path(sys.argv[1]), "study").driver_lock():
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path, "study")


@pytest.fixture
def holder(folder: StudyFolder) -> Iterator[subprocess.Popen[str]]:
    """Another process that drives the study."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.storage)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        yield other
        other.kill()


# ---------------------------------------------------------------- the name


def test_paths(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path, "sizes.v2")
    assert folder.path == tmp_path / "studies" / "sizes.v2"
    assert folder.ledger.folder == folder.path / "ledger"
    assert (folder.live, folder.journal) == (folder.path / "live", folder.path / "optuna.journal")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "/tmp", "a/"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    """Training processes find storage and name from the folder's path."""
    with pytest.raises(InputError, match="--name"):
        StudyFolder(tmp_path, name)


def test_a_name_is_claimed_once_and_keeps_its_id(folder: StudyFolder) -> None:
    first = folder.claim_name(IDENTITY)
    stored = (folder.path / "study.yaml").read_bytes()
    assert folder.claim_name(IDENTITY) == first
    assert StudyFolder(folder.storage, "study").claim_name(IDENTITY) == first
    assert (folder.path / "study.yaml").read_bytes() == stored
    assert yaml.safe_load(stored)["id"] == first
    assert StudyFolder(folder.storage, "other").claim_name(IDENTITY) != first


def test_tuples_and_lists_are_the_same(folder: StudyFolder) -> None:
    first = folder.claim_name(IDENTITY)
    as_lists = {**IDENTITY, "seeds": [0, 1], "base": {**IDENTITY["base"], "optim": {"milestones": [1, 2], "epochs": 3}}}
    assert folder.claim_name(as_lists) == first
    assert digest(as_lists) == digest(IDENTITY)


def test_the_order_of_seeds_is_part_of_a_specification(folder: StudyFolder) -> None:
    folder.claim_name(IDENTITY)
    with pytest.raises(InputError, match=r"seeds: \[0, 1\] there, \[1, 0\] here"):
        folder.claim_name({**IDENTITY, "seeds": (1, 0)})


def test_another_specification_is_refused_field_by_field(folder: StudyFolder) -> None:
    folder.claim_name(IDENTITY)
    before = tree(folder.storage), (folder.path / "study.yaml").read_bytes()
    other = {
        "format": 1,
        "base": {"optim": {"epochs": 4, "milestones": [1, 2]}, "method": {"name": "er"}, "memory": {"per_class": 3}},
        "seeds": [0],
    }
    with pytest.raises(InputError) as refused:
        folder.claim_name(other)
    head, *lines = str(refused.value).splitlines()
    assert head == "study 'study' holds another specification; choose another --name"
    assert lines == [
        "  base.memory.per_class: not given there, 3 here",
        '  base.method.name: "cl2r" there, "er" here',
        "  base.optim.epochs: 3 there, 4 here",
        '  grid.method.name: ["er", "cl2r"] there, not given here',
        "  seeds: [0, 1] there, [0] here",
    ]
    assert (tree(folder.storage), (folder.path / "study.yaml").read_bytes()) == before
    assert digest(other) != digest(IDENTITY)


# ---------------------------------------------------------------- the driver


def test_nobody_drives_a_study_that_does_not_exist(folder: StudyFolder) -> None:
    assert not folder.is_driven()
    assert not list(folder.storage.iterdir())


def test_the_lock_is_given_back(folder: StudyFolder) -> None:
    for _ in range(2):
        with folder.driver_lock():
            assert folder.is_driven()
            assert not StudyFolder(folder.storage, "other").is_driven()
        assert not folder.is_driven()
    with pytest.raises(ZeroDivisionError), folder.driver_lock():
        raise ZeroDivisionError
    assert not folder.is_driven()


def test_looking_does_not_take_the_lock(folder: StudyFolder) -> None:
    with folder.driver_lock():
        pass
    assert not folder.is_driven()
    with folder.driver_lock():
        assert folder.is_driven()
        assert folder.is_driven()


def test_a_second_process_is_refused_until_the_first_is_killed(
    folder: StudyFolder, holder: subprocess.Popen[str]
) -> None:
    assert folder.is_driven()
    with (
        pytest.raises(InputError, match=f"study 'study' is being run by process {holder.pid} on "),
        folder.driver_lock(),
    ):
        pytest.fail("two drivers")
    assert folder.is_driven()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert not folder.is_driven()
    with folder.driver_lock():
        assert f"process {os.getpid()} on " in (folder.path / "driver.lock").read_text()
        assert str(holder.pid) not in (folder.path / "driver.lock").read_text().split()
