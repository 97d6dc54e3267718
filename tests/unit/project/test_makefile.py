"""What `make` does before a program starts: which study, and which browsers there may be."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from cl2r.runtime.environment import ROOT
from tests.support.opened_page import PROGRAMS


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder in which all is set up and `cl2r` prints its words, one a line."""
    (tmp_path / "pyproject.toml").touch()
    program = tmp_path / "bin" / "cl2r"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    (tmp_path / "ready").touch()
    return tmp_path


def make(place: Path, *words: str, **variables: str) -> list[str]:
    command = ["make", "--no-print-directory", "-f", str(ROOT / "Makefile"), "BIN=bin", "READY=ready", *words]
    environment = {key: value for key, value in os.environ.items() if key not in ("CI", "STUDY", "MAKEFLAGS")}
    done = subprocess.run(
        command, cwd=place, env=environment | variables, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_report_without_a_study(place: Path) -> None:
    assert make(place, "report") == ["report"]


def test_report_takes_the_newest(place: Path) -> None:
    for age, name in enumerate(["my new study", "older", "$HOME; x"]):
        frame = place / "results" / "studies" / name / "runs.parquet"
        frame.parent.mkdir(parents=True)
        frame.touch()
        os.utime(frame, (1e9 - age, 1e9 - age))
    assert make(place, "report") == ["report", "results/studies/my new study"]
    assert make(place, "report", "STUDY=an older one") == ["report", "an older one"]


def test_make_and_tests_know_the_same_browsers() -> None:
    found = re.search(r"^BROWSERS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    assert tuple(found[1].split()) == PROGRAMS


@pytest.mark.parametrize(("variables", "end"), [({}, "will be skipped"), ({"CI": "true"}, "will fail")])
def test_what_a_missing_browser_means(place: Path, variables: dict[str, str], end: str) -> None:
    words = ["browser", "BROWSERS=no-such-browser", "SHELL=/bin/sh"]
    for name, text in (("id", "echo 1000"), ("apt-get", "exit 1")):
        (place / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / "bin" / name).chmod(0o755)
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    (line,) = make(place, *words, PATH=path, **variables)
    assert line.endswith(f"or tests in a browser {end}")
    (place / "bin" / "id").write_text("#!/bin/sh\necho 0\n")
    assert (
        make(place, *words, PATH=path, **variables)[-1] == f"chromium could not be installed: tests in a browser {end}"
    )
