"""Where and how a study was run: what its driver writes down, and what it must not."""

import ast
import getpass
import importlib.metadata
import json
import re
import socket
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from made_study import ABOUT

from cl2r import __version__
from cl2r.checkout import ROOT, commit
from cl2r.errors import InputError
from cl2r.study.about import command, read_about, times, update_about, write_about
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import write_frames
from cl2r.study.ledger import Event

RESOURCES = {"workers": 1, "cpus_per_worker": 1, "gpus_per_worker": 0.0}


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path, "study")


def shape(entry: Any) -> Any:
    """Keys and kinds of values, in order; the names of packages do not matter."""
    if isinstance(entry, dict):
        return {key: None if key == "packages" else shape(value) for key, value in entry.items()}
    return type(entry).__name__


def test_it_has_the_shape_that_reports_rely_on(folder: StudyFolder) -> None:
    folder.ledger.write("opened", "driver", {"runs": 4})
    folder.ledger.write("closed", "driver", {})
    write_about(folder, RESOURCES, 4)
    about = json.loads(folder.about.read_text())
    assert shape(about) == shape(ABOUT)
    assert list(about) == list(ABOUT)
    assert (about["version"], about["commit"], about["expected_runs"]) == (__version__, commit(), 4)
    assert about["resources"] == RESOURCES


def test_the_machine(folder: StudyFolder) -> None:
    write_about(folder, {}, 0)
    environment = read_about(folder)["environment"]
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["packages"]["torch"] == importlib.metadata.version("torch")
    assert set(ABOUT["environment"]["packages"]) <= set(environment["packages"])
    assert environment["cpus"] >= 1
    assert environment["memory_bytes"] > 2**28
    assert environment["processor"]


def test_nobody_is_named(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "countess"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "lovelace")
    monkeypatch.setattr(socket, "gethostname", lambda: "engine7")
    words = [f"{home}/venv/bin/cl2r", "study", f"{home}/my.yaml", "--storage", "/scratch/lovelace/out"]
    words += ["--set", f"data.root={home}/data", "--data-root", "/home/babbage/data", "--name", "x", "/net/engine7/y"]
    monkeypatch.setattr(sys, "argv", words)
    write_about(folder, RESOURCES, 4)
    text = folder.about.read_text()
    for name in ("countess", "lovelace", "babbage", "engine7", str(tmp_path), str(Path.home())):
        assert name not in text, name
    head, tail = ["cl2r", "study", "~/my.yaml", "--storage", "/scratch/…/out"], ["--name", "x", "/net/…/y"]
    expected = [*head, "--set", "data.root=~/data", "--data-root", "~/data", *tail]
    assert json.loads(text)["command"] == expected


def test_this_machine_and_its_user_are_not_named(folder: StudyFolder) -> None:
    write_about(folder, RESOURCES, 4)
    entry = json.loads(folder.about.read_text())
    del entry["environment"]["platform"], entry["environment"]["processor"]  # may hold such a word by chance
    words = re.findall(r"[\w.-]+", json.dumps([value for key, value in entry.items() if key != "command"]))
    assert socket.gethostname() not in words
    assert getpass.getuser() not in words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/opt/venv/bin/cl2r", "study", "ablation"], ["cl2r", "study", "ablation"]),
        (["studies/ablation.py", "--plan"], ["python", "studies/ablation.py", "--plan"]),
        ([str(ROOT / "studies" / "sweep.py")], ["python", "studies/sweep.py"]),
        (["/somewhere/else/mine.py", "0"], ["python", "mine.py", "0"]),
        ([str(ROOT / "cl2r" / "__main__.py"), "study", "x"], ["python", "-m", "cl2r", "study", "x"]),
    ],
)
def test_the_command_is_one_that_anybody_can_give(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert command(words) == expected


def test_a_user_without_a_home_can_run_studies(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(sys, "argv", ["cl2r", "study", "x.yaml", "--storage", "/home/babbage/out"])
    write_about(folder, RESOURCES, 4)
    assert read_about(folder)["command"] == ["cl2r", "study", "x.yaml", "--storage", "~/out"]


def test_secrets_are_not_written_down(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["cl2r", "study", "x", "--token", "hf_123 4", "--set", "a.token=hf_123", "s3://me:hf_123@b/x?key=hf_123"]
    monkeypatch.setattr(sys, "argv", words)
    write_about(folder, RESOURCES, 4)
    assert "hf_123" not in folder.about.read_text()
    assert read_about(folder)["command"] == ["cl2r", "study", "x", "--token", "…", "--set", "a.token=…", "s3://b/x"]


@pytest.mark.parametrize("content", ["{", "[1]", '"x"'])
def test_a_damaged_file_is_named(folder: StudyFolder, content: str) -> None:
    folder.ledger.write("opened", "driver", {"runs": 1})
    folder.about.write_text(content)
    with pytest.raises(InputError, match=f"{folder.about} is damaged: "):
        read_about(folder)


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
def test_times_are_of_all_drivers(
    entries: list[tuple[float, str]], began: float | None, ended: float | None, seconds: float
) -> None:
    found = times(events(*entries))
    assert found["seconds"] == seconds
    for key, expected in (("began", began), ("ended", ended)):
        assert (found[key] and datetime.fromisoformat(found[key]).timestamp()) == expected
        assert found[key] is None or datetime.fromisoformat(found[key]).utcoffset() == timedelta(0)


def test_frames_bring_the_times_along(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    folder.ledger.write("opened", "driver", {"runs": 1})
    write_about(folder, RESOURCES, 1)
    assert json.loads(folder.about.read_text())["seconds"] == 0
    monkeypatch.setattr(time, "time_ns", lambda: 10**18 + 25 * 10**8)
    folder.ledger.write("started", "run", {})
    write_frames(folder)
    about = json.loads(folder.about.read_text())
    assert (about["seconds"], about["ended"], about["expected_runs"]) == (2.5, None, 1)


def test_a_study_of_before_stays_without(folder: StudyFolder) -> None:
    folder.ledger.write("opened", "driver", {"runs": 1})
    update_about(folder)
    write_frames(folder)
    assert not folder.about.exists()
    assert read_about(folder) == {}


def imported(module: str, seen: set[str]) -> set[str]:
    """The modules of this project that are loaded when `module` is."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if module in seen or not path.exists():
        return seen
    seen.add(module)
    for node in ast.parse(path.read_text()).body:  # functions import later
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                imported(name, seen)
    return seen


def test_training_processes_do_without() -> None:
    """Their start is the time that a study waits for."""
    assert "cl2r.study.about" in imported("cl2r.rayrun.driver", set())
    processes = imported("cl2r.rayrun.trial", set()) | imported("cl2r.rayrun.worker", set())
    assert {"cl2r.study.walk", "cl2r.engine.run"} < processes
    assert not {"cl2r.study.about", "cl2r.study.report", "cl2r.study.frames"} & processes
