"""Nothing that is read from a store, a study or a data set makes Python run code: by Python's own audit events."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ALLOWED_CLASSES: set[str] = set()
"""Classes that a pickle may name: none, for what CIFAR's pickles need is looked up in a table of our own."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """What was heard while all was read."""
    folder = tmp_path_factory.mktemp("audited")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "audited.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return found


def test_nothing_is_run(audited: dict[str, list[dict[str, str]]]) -> None:
    others = [entry for entry in audited["heard"] if entry["event"] != "compile"]
    assert [entry for entry in others if entry["what"] not in ALLOWED_CLASSES] == []


def test_only_the_headers_of_arrays_are_parsed(audited: dict[str, list[dict[str, str]]]) -> None:
    """By `ast.literal_eval`, which makes values and no code: nothing is executed afterwards (above)."""
    parsed = [entry for entry in audited["heard"] if entry["event"] == "compile"]
    assert parsed, "the .npz files were read"
    for entry in parsed:
        assert entry["what"].startswith("b\"{'descr': ")
        assert "literal_eval" in entry["where"]
        assert "numpy" in entry["where"]


def test_the_hook_hears(audited: dict[str, list[dict[str, str]]]) -> None:
    assert audited["control"] == ["pickle.find_class", "compile", "exec"]
