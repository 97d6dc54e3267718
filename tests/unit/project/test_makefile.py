"""What `make` does before a program starts: which study, which browsers, and what `make audit` says."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from cl2r.runtime.environment import ROOT
from tests.support.opened_page import PROGRAMS

SKIPPED = "ERROR:pip_audit._cli:x: Dependency not found on PyPI and could not be audited: x (1.0)"
UNREACHABLE = "ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed"
TRACEBACK = "Traceback (most recent call last):\nrequests.exceptions.ConnectionError: api.osv.dev"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder in which two packages are installed, and `cl2r` prints its words, one per line."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "ready").touch()
    program(tmp_path / "bin" / "cl2r", "printf '%s\\n' \"$@\"")
    program(tmp_path / "bin" / "python", "echo 'torch==2.9.0+cpu\nray==2.60.0'")
    return tmp_path


def make(place: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    """Return the exit code of make and what it shows."""
    settings = ["-f", str(ROOT / "Makefile"), "BIN=bin", "READY=ready", "VENV=."]
    environment = {key: value for key, value in os.environ.items() if key not in ("CI", "STUDY", "MAKEFLAGS")}
    done = subprocess.run(
        ["make", "--no-print-directory", *settings, *words],
        cwd=place,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_report_of_the_newest_study(place: Path) -> None:
    assert make(place, "report") == (0, "report\n", "")
    for age, name in enumerate(["my new study", "older", "$HOME; x"]):
        frame = place / "results" / "studies" / name / "runs.parquet"
        frame.parent.mkdir(parents=True)
        frame.touch()
        os.utime(frame, (1e9 - age, 1e9 - age))
    assert make(place, "report") == (0, "report\nresults/studies/my new study\n", "")
    assert make(place, "report", "STUDY=an older one") == (0, "report\nan older one\n", "")


def test_make_and_tests_know_the_same_browsers() -> None:
    found = re.search(r"^BROWSERS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    assert tuple(found[1].split()) == PROGRAMS


@pytest.mark.parametrize(("variables", "end"), [({}, "will be skipped"), ({"CI": "true"}, "will fail")])
@pytest.mark.parametrize(("user", "fault"), [(1000, "no browser"), (0, "chromium could not be installed")])
def test_what_a_missing_browser_means(place: Path, user: int, fault: str, variables: dict[str, str], end: str) -> None:
    program(place / "bin" / "id", f"echo {user}")
    program(place / "bin" / "apt-get", "exit 1")
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    code, out, err = make(place, "browser", "BROWSERS=no-such-browser", "SHELL=/bin/sh", PATH=path, **variables)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith(fault)
    assert out.endswith(f"tests in a browser {end}\n")


def audit(place: Path, out: str = "", err: str = "", code: int = 0) -> tuple[int, str, str]:
    """Return what `make audit` does if pip-audit prints and ends like this."""
    (place / "out").write_text(out)
    (place / "err").write_text(err)
    program(place / "bin" / "pip-audit", f'echo "$@" >words\ncat out\ncat err >&2\nexit {code}')
    return make(place, "audit")


def test_an_audit_that_finds_nothing(place: Path) -> None:
    none = "No known vulnerabilities found\n"
    assert audit(place, err=f"WARNING: hashes\n{none}") == (0, "", none)
    words = (place / "words").read_text().split()
    assert "--strict" in words
    assert (place / words[-1]).read_text() == "torch==2.9.0\nray==2.60.0\n", "the service knows no local versions"


def test_an_audit_shows_what_it_finds(place: Path) -> None:
    table, found = "Name Version ID\nray 2.60.0 PYSEC-1\n", "Found 1 known vulnerability in 1 package\n"
    code, out, err = audit(place, table, found, 1)
    assert (code, out) == (2, table)
    assert err.startswith(found)
    assert "not done" not in err


@pytest.mark.parametrize("err", [SKIPPED, UNREACHABLE, TRACEBACK])
def test_an_audit_without_an_answer_fails(place: Path, err: str) -> None:
    code, out, shown = audit(place, err=f"{err}\n", code=1)
    assert (code, out) == (2, "")
    assert shown.startswith(f"{err.splitlines()[-1]}\naudit: not done")


@pytest.mark.parametrize("python", ["true", "echo no module named pip >&2; exit 1"])
def test_an_audit_of_nothing_fails(place: Path, python: str) -> None:
    program(place / "bin" / "python", python)
    assert audit(place, err="No known vulnerabilities found\n")[0] == 2
