"""The folder of a study: its name, its driver, and what about.json says."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from cl2r import __version__
from cl2r.errors import InputError
from cl2r.runtime.environment import commit
from cl2r.study.folder import StudyFolder, digest, driver_times
from cl2r.study.frames import write_frames
from cl2r.study.ledger import Event
from tests.support.made_study import ABOUT
from tests.support.small_study import tree

RESOURCES = {"workers": 1, "cpus_per_worker": 1, "gpus_per_worker": 0.0}
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


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "/tmp", "a/"])
def test_a_name_that_is_not_a_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    """Training processes derive storage and name from the folder's path."""
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
    as_lists = {**IDENTITY, "seeds": [0, 1], "base": {**IDENTITY["base"], "optim": {"milestones": [1, 2], "epochs": 3}}}
    assert folder.claim_name(as_lists) == first
    assert digest(as_lists) == digest(IDENTITY)


def test_another_specification_is_refused_field_by_field(folder: StudyFolder) -> None:
    folder.claim_name(IDENTITY)
    before = tree(folder.storage), (folder.path / "study.yaml").read_bytes()
    other = {
        "format": 1,
        "base": {"optim": {"epochs": 4, "milestones": [1, 2]}, "method": {"name": "er"}, "memory": {"per_class": 3}},
        "seeds": [1, 0],
    }
    with pytest.raises(InputError) as refused:
        folder.claim_name(other)
    head, *lines = str(refused.value).splitlines()
    assert "--name" in head
    fields = ["base.memory.per_class", "base.method.name", "base.optim.epochs", "grid.method.name", "seeds"]
    assert [line.split(":")[0].strip() for line in lines] == fields
    assert "[0, 1] there, [1, 0] here" in lines[-1]
    assert (tree(folder.storage), (folder.path / "study.yaml").read_bytes()) == before
    assert digest(other) != digest(IDENTITY)


def test_the_lock_is_released_and_looking_at_it_does_not_take_it(folder: StudyFolder) -> None:
    assert not folder.is_driven()
    assert not list(folder.storage.iterdir())
    for _ in range(2):
        with folder.driver_lock():
            assert folder.is_driven()
            assert folder.is_driven()
            assert not StudyFolder(folder.storage, "other").is_driven()
        assert not folder.is_driven()
    with pytest.raises(ZeroDivisionError), folder.driver_lock():
        raise ZeroDivisionError
    assert not folder.is_driven()


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
        assert f"process {os.getpid()} on " in (folder.path / "driver.lock").holder()


def shape(entry: Any) -> Any:
    """Keys and kinds of values, in order; the names of packages do not matter."""
    if isinstance(entry, dict):
        return {key: None if key == "packages" else shape(value) for key, value in entry.items()}
    return type(entry).__name__


def test_about_json_has_the_shape_that_reports_rely_on(folder: StudyFolder) -> None:
    folder.ledger.write("opened", "driver", {"runs": 4})
    folder.ledger.write("closed", "driver", {})
    folder.write_about(RESOURCES, 4)
    about = json.loads(folder.about.read_text())
    assert shape(about) == shape(ABOUT)
    assert list(about) == list(ABOUT)
    assert (about["version"], about["commit"], about["expected_runs"]) == (__version__, commit(), 4)
    assert about["resources"] == RESOURCES


def test_no_user_machine_or_home_is_named(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "countess"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "lovelace")
    monkeypatch.setattr(socket, "gethostname", lambda: "engine7")
    words = [f"{home}/venv/bin/cl2r", "study", f"{home}/my.yaml", "--storage", "/scratch/lovelace/out"]
    words += ["--set", f"data.root={home}/data", "--data-root", "/home/babbage/data", "--name", "x", "/net/engine7/y"]
    monkeypatch.setattr(sys, "argv", words)
    folder.write_about(RESOURCES, 4)
    text = folder.about.read_text()
    for name in ("countess", "lovelace", "babbage", "engine7", str(tmp_path), str(Path.home())):
        assert name not in text, name
    head, tail = ["cl2r", "study", "~/my.yaml", "--storage", "/scratch/…/out"], ["--name", "x", "/net/…/y"]
    expected = [*head, "--set", "data.root=~/data", "--data-root", "~/data", *tail]
    assert json.loads(text)["command"] == expected


def test_secrets_are_not_written_down(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["cl2r", "study", "x", "--token", "hf_123 4", "--set", "a.token=hf_123", "s3://me:hf_123@b/x?key=hf_123"]
    monkeypatch.setattr(sys, "argv", words)
    folder.write_about(RESOURCES, 4)
    assert "hf_123" not in folder.about.read_text()
    assert folder.read_about()["command"] == ["cl2r", "study", "x", "--token", "…", "--set", "a.token=…", "s3://b/x"]


@pytest.mark.parametrize("content", ["{", "[1]", '"x"'])
def test_a_damaged_file_is_named(folder: StudyFolder, content: str, caplog: pytest.LogCaptureFixture) -> None:
    folder.ledger.write("opened", "driver", {"runs": 1})
    folder.about.write_text(content)
    assert folder.read_about() == {}
    assert f"{folder.about} is damaged" in caplog.text
    folder.write_about({}, 1)
    assert folder.read_about()["expected_runs"] == 1


def events(*entries: tuple[float, str]) -> list[Event]:
    return [Event(round(when * 1e9), kind, "driver", Path()) for when, kind in entries]


@pytest.mark.parametrize(
    ("entries", "began", "ended", "seconds"),
    [
        ([], None, None, 0),
        ([(5, "opened")], 5, None, 0),
        ([(5, "opened"), (9, "started"), (11.5, "finished")], 5, None, 6.5),
        ([(5, "opened"), (15, "closed")], 5, 15, 10),
        ([(5, "opened"), (8, "finished"), (100, "opened"), (103, "finished")], 5, None, 6),
        ([(5, "opened"), (8, "closed"), (100, "opened"), (104, "started"), (106, "closed")], 5, 106, 9),
        ([(5, "opened"), (8, "closed"), (100, "opened"), (104, "started")], 5, None, 7),
        ([(1, "finished"), (5, "opened"), (8, "closed")], 5, 8, 3),
    ],
)
def test_times_cover_all_drivers(
    entries: list[tuple[float, str]], began: float | None, ended: float | None, seconds: float
) -> None:
    found = driver_times(events(*entries))
    assert found["seconds"] == seconds
    for key, expected in (("began", began), ("ended", ended)):
        assert (found[key] and datetime.fromisoformat(found[key]).timestamp()) == expected
        assert found[key] is None or datetime.fromisoformat(found[key]).utcoffset() == timedelta(0)


def test_writing_frames_updates_the_times(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    folder.ledger.write("opened", "driver", {"runs": 1})
    folder.write_about(RESOURCES, 1)
    assert json.loads(folder.about.read_text())["seconds"] == 0
    monkeypatch.setattr(time, "time_ns", lambda: 10**18 + 25 * 10**8)
    folder.ledger.write("started", "run", {})
    write_frames(folder)
    about = json.loads(folder.about.read_text())
    assert (about["seconds"], about["ended"], about["expected_runs"]) == (2.5, None, 1)


def test_a_folder_without_about_json_stays_without(folder: StudyFolder) -> None:
    folder.ledger.write("opened", "driver", {"runs": 1})
    folder.update_about()
    write_frames(folder)
    assert not folder.about.exists()
    assert folder.read_about() == {}


SPECIFIED = {"grid": {"method.name": ["er", "cl2r"]}, "seeds": [0, 1]}


def opened(storage: Path, identity: dict[str, Any] = SPECIFIED) -> StudyFolder:
    """Return a study that a driver has opened, with one finished run."""
    folder = StudyFolder(storage, "mine")
    folder.claim_name(identity)
    folder.ledger.write("opened", "driver", {"specification": digest(identity), "made_by": "cpu1"})
    folder.ledger.write("finished", "run", {})
    return folder


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"er", b"fr"))


@pytest.mark.parametrize("damage", [spoil, Path.unlink, lambda path: path.write_bytes(b"a: [" * 9999)])
def test_a_damaged_specification_is_restored_from_the_ledger(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    known = opened(tmp_path).claim_name(SPECIFIED)
    damage(tmp_path / "studies" / "mine" / "study.yaml")
    again = StudyFolder(tmp_path, "mine")
    assert again.fault()
    with pytest.raises(InputError, match="another"):
        again.claim_name({**SPECIFIED, "seeds": [0]})
    assert again.claim_name(SPECIFIED) == known
    assert not again.fault()
    assert list(again.ledger.outcomes()) == ["run"]
    assert not again.ledger.damaged()


def test_the_specification_of_another_study_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "a")
    other = opened(tmp_path / "b", {**SPECIFIED, "seeds": [2]})
    for name in ("study.yaml", "study.yaml.seal"):
        (tmp_path / "a/studies/mine" / name).write_bytes(Path(str(other.path / name)).read_bytes())
    with pytest.raises(InputError, match="another specification"):
        StudyFolder(tmp_path / "a", "mine").claim_name(SPECIFIED)
    assert len(StudyFolder(tmp_path / "a", "mine").ledger.damaged()) == 2
