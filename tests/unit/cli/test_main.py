"""The program: help, completion, what it imports, and where it finds its own packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cl2r import __version__
from cl2r.cli.main import COMMANDS
from cl2r.cli.study import study_names
from cl2r.config.schema import field_keys
from cl2r.runtime.environment import ROOT
from cl2r.study.folder import StudyFolder
from tests.support.command_line import Command
from tests.support.made_study import made_study, write_made

PROGRAM = "from cl2r.cli.main import main; main()"
HEAVY = {"torch", "pandas", "ray", "numpy", "matplotlib", "plotly", "optuna"}


def started(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_no_command_shows_help(cl2r: Command) -> None:
    code, out, err = cl2r()
    assert (code, err) == (0, "")
    assert all(f"  {command} " in out for command in COMMANDS)
    assert cl2r("--version") == (0, f"cl2r {__version__}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text(cl2r: Command, name: str) -> None:
    code, out, err = cl2r(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: cl2r {name}")


def test_the_exit_code_of_the_process(tmp_path: Path) -> None:
    done = started(tmp_path, "-c", PROGRAM, "run", "--set", "optim.epoch=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "optim.epochs" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


IMPORTS = """
import contextlib, sys
from cl2r.cli.main import main
for words in {words}:
    sys.argv = ["cl2r", *words]
    with contextlib.suppress(SystemExit):
        main()
    found = {heavy} & set(sys.modules)
    assert not found, (words, found)
"""


def test_help_and_mistyped_options_wait_for_no_large_library(tmp_path: Path) -> None:
    """This keeps them under a second."""
    lines = [["--help"], ["studdy"], ["study", "--help"], ["study", "nowhere"], ["run", "--colour", "red"]]
    lines += [["study", name, option] for name in study_names() for option in ("--help", "--sedes")]
    done = started(tmp_path, "-c", IMPORTS.format(words=lines, heavy=HEAVY))
    assert done.returncode == 0, done.stderr


def test_page_and_tables_need_neither_torch_nor_ray(tmp_path: Path) -> None:
    folder = write_made(made_study(name="made"), tmp_path / "results" / "studies" / "made")
    lines = [["report", "made"], ["report", "made", "--tables", "csv"], ["status"]]
    done = started(tmp_path, "-c", IMPORTS.format(words=lines, heavy={"torch", "ray"}))
    assert done.returncode == 0, done.stderr
    assert all(line.endswith("…") for line in done.stderr.splitlines()), "what takes a while, and nothing else"
    assert "</html>" in (folder / "report.html").read_text()
    assert "BC" in done.stdout


@pytest.mark.parametrize("start", [["bin/cl2r"], ["-m", "cl2r"]])
def test_modules_of_the_user_are_not_taken_for_those_of_the_project(tmp_path: Path, start: list[str]) -> None:
    """The working directory holds an analysis.py and a package `studies`; commands need the project's own ones."""
    folder = tmp_path / "mine"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "cl2r").write_text(PROGRAM)
    write_made(made_study(name="made"), folder / "results" / "studies" / "made")
    (folder / "studies").mkdir()
    for path in (folder / "analysis.py", folder / "studies" / "__init__.py"):
        path.write_text("raise SystemExit('the module of the user was imported')")
    for words in (["study", "ablation", "--help"], ["report", "made", "--tables", "csv"]):
        done = started(folder, *start, *words)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cl2r: Command, shell: str) -> None:
    code, out, _ = cl2r("completion", shell)
    assert code == 0
    assert f"_CL2R_COMPLETE={shell}_complete" in out
    assert ("COMP_WORDBREAKS" in out) == (shell == "bash"), "bash splits words at @ unless told otherwise"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (" ", list(COMMANDS)),
        ("me", ["methods"]),
        ("run ico", ["icons"]),
        ("run --set optim.m", ["optim.momentum=", "optim.milestones="]),
        ("run --set sim", ["simplex.scale="]),
        ("run --set ", [f"{key}=" for key in field_keys()]),
        ("run --method fi", ["fixed", "fixed_fd"]),
        ("run --method er+p", ["er+procrustes"]),
        ("methods luc", ["lucir"]),
        ("datasets ch", ["check"]),
        ("datasets check tin", ["tiny_imagenet200"]),
        ("study s", ["scaling", "search", "sweep"]),
        ("plan s", ["search", "sweep"]),
        ("study ablation --ce", ["--cells"]),
        ("study ablation --cells fixed_", ["fixed_fd"]),
        ("study ablation --cells er fixed_", ["fixed_fd"]),
        ("study ablation --cells er cl2r --see", ["--seeds"]),
        ("study ablation --preset ico", ["icons"]),
        ("study methods --methods er luc", ["lucir"]),
        ("study methods --methods er er+sl", ["er+slerp"]),
        ("study sweep --objectives BC stored", ["stored_bytes"]),
        ("study ablation --set optim.mom", ["optim.momentum="]),
        ("study nowhere --see", []),
        ("report s", ["sizes"]),
        ("report --storage OTHER m", ["mine"]),
        ("report m", []),
        ("status s", ["sizes"]),
        ("search gallery --model tiny-", ["tiny-er-T2-s0-01234567@1", "tiny-er-T2-s0-01234567@2"]),
        ("export tiny-er-T2-s0-01234567@", ["tiny-er-T2-s0-01234567@1", "tiny-er-T2-s0-01234567@2"]),
    ],
)
def test_the_shell_completes(
    cl2r: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    storage = tmp_path / "elsewhere"
    monkeypatch.setenv("CL2R_STORAGE", str(storage))
    StudyFolder(storage, "sizes").claim_name({"seeds": [0]})
    StudyFolder(tmp_path / "other", "mine").claim_name({"seeds": [0]})
    run = storage / "runs" / "tiny-er-T2-s0-01234567"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{}")
    monkeypatch.setenv("_CL2R_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"cl2r {line.replace('OTHER', str(tmp_path / 'other'))}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) + line.endswith(" ")))
    _, out, _ = cl2r()
    assert [row.split(",", 1)[1] for row in out.splitlines() if row] == expected
