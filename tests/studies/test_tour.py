"""Every command of studies/TOUR.md, with shorter settings, in the order of the page; what it prints is checked."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "studies" / "TOUR.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = ["--set", "optim.epochs=1", "--set", "optim.milestones=[]"]
ADDED = {
    "make study": [*SHORT, "--seeds", "0"],
    "cl2r run": SHORT,
    "cl2r study": SHORT,
    "cl2r plan": SHORT,
}
"""Words that make a command short, by its beginning."""
LATER = {"--trials 6": "--trials 2"}
CODES = {"cl2r upgrade-check": {0, 3, 4}}  # a model of one epoch may well not be safe


def steps() -> list[tuple[str, list[str]]]:
    """Return every command of the page with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for block in FENCE.findall(TOUR):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
    return found


def comparable(line: str) -> str:
    """Return a line without what differs between machines and settings: numbers, digests, stars, widths."""
    line = re.sub(r"-[0-9a-f]{8}\b", "-…", line.replace("*", " "))
    return " ".join(re.sub(r"[+−-]?\d[\d,.:]*", "#", line).split())


def shown(excerpt: list[str], output: str) -> bool:
    """Return whether the lines of the excerpt occur in the output in this order; `…` stands for anything."""
    printed = iter([comparable(line) for line in output.splitlines()])
    wanted = [re.escape(comparable(line)).replace("…", ".*") for line in excerpt if line.strip() != "…"]
    return all(any(re.fullmatch(line, one) for one in printed) for line in wanted)


def test_the_tour(tmp_path: Path) -> None:
    """Two cores need about two minutes for it."""
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "RAY_ADDRESS": "local", "COLUMNS": "160"}
    environment.pop("CL2R_STORAGE", None)
    for command, excerpt in steps():
        words = command
        if command.startswith("make "):  # the environment is here; what make would run is
            planned = subprocess.run(
                ["make", "--dry-run", "--directory", ROOT, *shlex.split(command)[1:], f"BIN={folder}"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            (words,) = [line for line in planned.splitlines() if "studies/" in line]
            words = words.replace("studies/", f"{ROOT}/studies/")
        elif command.startswith(". "):
            continue
        for long, short in LATER.items():
            words = words.replace(long, short)
        added = next((more for start, more in ADDED.items() if command.startswith(start)), [])
        done = subprocess.run(
            ["bash", "-c", f"{words} {shlex.join(added)}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        allowed = next((codes for start, codes in CODES.items() if command.startswith(start)), {0})
        assert done.returncode in allowed, f"{command}\n{done.stdout}\n{done.stderr}"
        assert shown(excerpt, done.stdout), f"{command} prints something else:\n{done.stdout}\n{done.stderr}"


def test_an_excerpt_that_is_not_printed_is_noticed() -> None:
    output = "study a-1b2c3d4e: 18 runs\n\nER      1   0.760\nCL²R    1   0.780\n"
    assert shown(["study a-…: 18 runs", "…", "CL²R 3 0.1"], output)
    assert not shown(["CL²R 3 0.1", "ER 3 0.1"], output), "another order"
    assert not shown(["study b-…: 18 runs"], output)


@pytest.mark.parametrize("start", [*ADDED, *CODES])
def test_every_setting_of_the_test_is_used(start: str) -> None:
    assert any(command.startswith(start) for command, _ in steps())
