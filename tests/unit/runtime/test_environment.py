"""Facts about the environment that are safe to share, and the memory of a process."""

import gc
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cl2r.runtime import environment as module
from cl2r.runtime.environment import ROOT, busy_note, commit, environment, peak_bytes, shareable_command
from tests.support.made_study import ABOUT
from tests.support.quick import quick_config, train


def test_machine_and_packages() -> None:
    found = environment()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["torch"] == importlib.metadata.version("torch")
    assert set(ABOUT["environment"]["packages"]) <= set(found["packages"])
    assert found["cpus"] >= 1
    assert found["memory_bytes"] > 2**28
    assert found["processor"]


@pytest.mark.parametrize(
    ("load", "note"),
    [
        (0.9, None),
        (3.14, "note: the machine is busy (load 3.1 on 2 cores); times will be longer"),
    ],
)
def test_a_busy_machine_by_its_load(monkeypatch: pytest.MonkeyPatch, load: float, note: str | None) -> None:
    monkeypatch.setattr(module, "STAT", Path("/nowhere"))
    monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(module.os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert busy_note() == note


@pytest.mark.parametrize(("busy", "noted"), [(0, False), (9, False), (20, True)])
def test_a_busy_machine_by_its_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, busy: int, noted: bool) -> None:
    """Two of four cores may be used; what the others do does not matter, nor what happened earlier."""
    stat, line = tmp_path / "stat", "cpu{} {} 0 0 {} 5 0 0 0 0 0"

    def write(spent: int, passed: int = 20) -> None:
        used = [spent, spent, passed, passed]
        rows = [line.format(core, 1000 + used[core], 500 + passed - used[core]) for core in range(4)]
        stat.write_text("\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *rows, "intr 7"]))

    write(0, passed=0)
    monkeypatch.setattr(module, "STAT", stat)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(module.os, "getloadavg", lambda: (0.5, 0.0, 0.0))
    monkeypatch.setattr(module.time, "sleep", lambda _: write(busy))
    assert (busy_note() is not None) == noted


def test_a_core_that_goes_offline_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([[(0, 0), (0, 0)], [(20, 20)]])
    monkeypatch.setattr(module, "_core_times", lambda: next(times))
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    assert busy_note() is None


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
def test_the_command_works_in_any_checkout(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert shareable_command(words) == expected


def test_a_user_without_a_home_can_share_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert shareable_command(["cl2r", "study", "--storage", "/home/babbage/out"])[-1] == "~/out"


def test_runs_in_one_process_keep_no_tensors(tiny: Path, tmp_path: Path) -> None:
    def bytes_held() -> int:
        gc.collect()
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    held = []
    for seed in range(3):
        result = train(quick_config(tiny, {"seed": seed, "optim": {"epochs": 1}}), tmp_path)
        assert 10 * 2**20 < result.links[-1].record["peak_bytes"] <= peak_bytes()
        del result
        held.append(bytes_held())
    assert held[2] <= held[1]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        options = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *options, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert commit(tmp_path).startswith("unknown"), "a folder outside git"
    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "-m", "one")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "studies" / "results").mkdir(parents=True)
    (tmp_path / "studies" / "results" / "table.md").write_text("results are no change of the code")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) != git("rev-parse", "HEAD")
    (tmp_path / "below").mkdir()
    assert commit(tmp_path / "below").startswith("unknown"), "a folder inside another checkout"
