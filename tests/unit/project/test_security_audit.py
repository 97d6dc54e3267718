"""Nothing that is read from a store, a study or a data set makes Python run code: by Python's own audit events."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """The audit events while everything was read."""
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


def test_nothing_is_run_and_only_the_headers_of_arrays_are_parsed(audited: dict[str, list[dict[str, str]]]) -> None:
    """`ast.literal_eval` parses them: it makes values and no code."""
    assert audited["control"] == ["pickle.find_class", "compile", "exec"], "the hook reports what runs code"
    assert audited["heard"], "the .npz files were read"
    for entry in audited["heard"]:
        assert entry["event"] == "compile"
        assert entry["what"].startswith("b\"{'descr': ")
        assert "literal_eval" in entry["where"]
        assert "numpy" in entry["where"]
