"""`make audit`: it fails for what is found, and it fails where nothing could be asked."""

import os
import subprocess
from pathlib import Path

import pytest

from cl2r.runtime.environment import ROOT

SKIPPED = "ERROR:pip_audit._cli:x: Dependency not found on PyPI and could not be audited: x (1.0)"
UNREACHABLE = "ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed"
TRACEBACK = "Traceback (most recent call last):\nrequests.exceptions.ConnectionError: api.osv.dev"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder in which two packages are installed."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "ready").touch()
    program(tmp_path / "bin" / "python", "echo 'torch==2.9.0+cpu\nray==2.60.0'")
    return tmp_path


def audit(place: Path, out: str = "", err: str = "", code: int = 0) -> tuple[int, str, str]:
    """Exit code of make, and what it shows, where pip-audit would say and end so."""
    for name, text in (("out", out), ("err", err)):
        (place / name).write_text(text)
    program(place / "bin" / "pip-audit", f'echo "$@" >words\ncat out\ncat err >&2\nexit {code}')
    command = [
        "make",
        "--no-print-directory",
        "-f",
        str(ROOT / "Makefile"),
        "BIN=bin",
        "READY=ready",
        "VENV=.",
        "audit",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_all_is_sound(place: Path) -> None:
    assert audit(place, err="WARNING: hashes\nNo known vulnerabilities found\n") == (
        0,
        "",
        "No known vulnerabilities found\n",
    )
    words = (place / "words").read_text().split()
    assert "--strict" in words
    assert (place / words[-1]).read_text() == "torch==2.9.0\nray==2.60.0\n", "a local version is not known there"


def test_what_is_found_is_shown(place: Path) -> None:
    table = "Name Version ID\nray 2.60.0 PYSEC-1\n"
    code, out, err = audit(place, table, "Found 1 known vulnerability in 1 package\n", 1)
    assert (code, out) == (2, table)
    assert err.startswith("Found 1 known vulnerability in 1 package\n")
    assert "not done" not in err


@pytest.mark.parametrize("err", [SKIPPED, UNREACHABLE, TRACEBACK])
def test_no_answer_is_no_good_news(place: Path, err: str) -> None:
    code, out, shown = audit(place, err=f"{err}\n", code=1)
    assert (code, out) == (2, "")
    assert shown.startswith(f"{err.splitlines()[-1]}\naudit: not done, so nothing is known: the service gave no answer")


def test_nothing_installed_is_no_good_news(place: Path) -> None:
    program(place / "bin" / "python", "true")
    code, _, err = audit(place, err="No known vulnerabilities found\n")
    assert code == 2
    assert err.startswith("audit: nothing is installed in .")
    program(place / "bin" / "python", "echo no module named pip >&2; exit 1")
    assert audit(place)[0] == 2


def test_help_lists_it() -> None:
    shown = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True).stdout
    assert "  make audit " in shown
