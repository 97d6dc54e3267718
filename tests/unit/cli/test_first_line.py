"""The first line of a command comes before anything that takes seconds; OpenMP's threads wait passively everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from cl2r.runtime.environment import ROOT

TORCH = """
import sys
print("torch is imported", file=sys.stderr)
raise SystemExit(7)
"""


def started(folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in `folder`, which comes first on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), **variables}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    "words",
    [
        "run icons --quiet",
        "study ablation",
        "recommend --hours 1",
        "plan ablation",
        "calibrate icons",
        "index images --model a@1 --gallery gallery",
        "export a@1 out",
    ],
)
def test_loading_torch_is_said_before_it_is_loaded(tmp_path: Path, words: str) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "images").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "images" / "a.png")
    done = started(tmp_path, "-c", "from cl2r.cli.main import main; main()", *words.split())
    assert (done.returncode, done.stdout) == (7, "")
    said = [] if "--quiet" in words else ["loading torch…"]
    assert done.stderr.splitlines() == [*said, "torch is imported"]


def test_a_run_says_what_it_trains_first(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    done = started(tmp_path, "-c", "from cl2r.cli.main import main; main()", "run", "icons")
    assert done.stdout.startswith("method cl2r, data icons,")
    assert done.stderr.splitlines() == ["loading torch…", "torch is imported"]


def test_a_quiet_study_does_not_say_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    done = started(tmp_path, "-c", "from cl2r.cli.main import main; main()", "study", "ablation", "--quiet")
    assert done.stderr.splitlines() == ["torch is imported"]


@pytest.mark.parametrize(
    ("first", "given"), [("import cl2r", ""), ("import cl2r", "ACTIVE"), ("from cl2r.rayrun import trial", "")]
)
def test_threads_wait_passively_unless_the_user_says_otherwise(tmp_path: Path, first: str, given: str) -> None:
    """OpenMP itself tells what it has read when torch loads it, in this process and in one that it starts."""
    own = {"OMP_WAIT_POLICY": given} if given else {}
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'], check=True)"
    done = started(tmp_path, "-c", f"{first}; import torch; {child}", OMP_DISPLAY_ENV="true", **own)
    assert done.returncode == 0, done.stderr
    policies = [line.split("'")[1] for line in done.stderr.splitlines() if "OMP_WAIT_POLICY" in line]
    assert policies == [given or "PASSIVE"] * 2
