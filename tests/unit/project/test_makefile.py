"""What `make` does before a program starts: which study, which browsers, and what `make audit` says."""

import os
import re
import shlex
import subprocess
import tomllib
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
    (tmp_path / "dev").touch()
    program(tmp_path / "bin" / "cl2r", "printf '%s\\n' \"$@\"")
    program(tmp_path / "bin" / "python", "echo 'torch==2.9.0+cpu\nray==2.60.0'")
    return tmp_path


def make(place: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    """Return the exit code of make and what it shows."""
    settings = ["-f", str(ROOT / "Makefile"), "BIN=bin", "READY=ready", "DEV=dev", "VENV=."]
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


def recipe(tmp_path: Path, goal: str, *words: str) -> str:
    """Return what make would do in a folder with an old pyproject.toml."""
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (1e9, 1e9))
    command = ["make", "--dry-run", "-f", str(ROOT / "Makefile"), goal, *words]
    kept = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "TORCH_INDEX")}
    return subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, check=True).stdout


def test_a_study_installs_less_than_the_tests(tmp_path: Path) -> None:
    for goal in ("study", "methods", "report"):
        text = recipe(tmp_path, goal)
        assert ".ci/install .venv --editable .\n" in text
        assert re.search(r"GB to download and [\d.]+ GB on disk", text), "sizes are said beforehand"
        assert "[dev]" not in text
        assert "--index-url" not in text
    for goal in ("test", "test-ray", "lint", "dist"):
        lines = recipe(tmp_path, goal).splitlines()
        assert lines.index(".ci/install .venv --editable .") < lines.index(".ci/install .venv --editable '.[dev]'")


def test_torch_from_another_index(tmp_path: Path) -> None:
    index = "https://download.pytorch.org/whl/cpu"
    text = recipe(tmp_path, "study", f"TORCH_INDEX={index}")
    first, second = (line for line in text.splitlines() if line.startswith(".ci/install"))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    torch = [line for line in known if line.startswith(("torch>", "torchvision"))]
    assert shlex.split(first) == [".ci/install", ".venv", "--index-url", index, *torch]
    assert second == ".ci/install .venv --editable ."
    assert "without CUDA" in text


def test_an_older_environment_is_brought_up_to_date(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / ".ready").touch()
    assert ".ci/install .venv --editable ." in recipe(tmp_path, "study")
    for stamp in (".ready-run", ".ready-dev"):
        (tmp_path / ".venv" / stamp).touch()
    assert ".ci/install" not in recipe(tmp_path, "lint")


def install(tmp_path: Path, pip: str) -> tuple[int, str, str]:
    """Return exit code and output of the installation if pip does this."""
    (tmp_path / "venv").mkdir()
    program(tmp_path / "venv" / "bin" / "python", pip)
    words = [ROOT / ".ci" / "install", "venv", "--editable", "."]
    environment = {**os.environ, "INSTALL_SECONDS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_an_installation_shows_how_far_it_is(tmp_path: Path) -> None:
    pip = "echo $@ >words; echo Collecting a; echo Collecting b; sleep 3; echo Installing collected packages; sleep 3"
    code, out, err = install(tmp_path, pip)
    assert (code, err) == (0, "")
    assert (tmp_path / "words").read_text().split()[-2:] == ["--editable", "."]
    assert "  downloading, 2 packages so far, 0 min 1 s\n" in out
    assert re.search(r"  unpacking, \d+ MB on disk so far, 0 min \d s\n", out)
    assert "Collecting" not in out


def test_an_installation_that_fails_says_why(tmp_path: Path) -> None:
    code, _, err = install(tmp_path, "echo ERROR: no matching distribution >&2; exit 7")
    assert code == 7
    assert err == "ERROR: no matching distribution\npip failed; all of its output is in venv/install.log\n"


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
