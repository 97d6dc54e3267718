"""Try a wheel where the checkout cannot be found: `python tests/support/try_wheel.py dist/cl2r-0.1.0-py3-none-any.whl`.

The wheel is unpacked rather than installed, and its dependencies are those of the interpreter that runs this: to
install them again would take minutes and gigabytes.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

TINY = [
    "--set",
    "optim.epochs=1",
    "--set",
    "optim.milestones=[]",
    "--set",
    "eval.bootstrap=10",
    "--set",
    "threads=1",
    "--tasks",
    "2",
]
COMMANDS = (
    ["run", "--method", "er", "--set", "backbone.name=resnet8s", *TINY],
    ["datasets"],
    ["methods"],
    ["plan", "ablation"],
)
STUDY = (
    ["study", "ablation", "--name", "tried", "--set", "backbone.name=resnet8s", *TINY],
    ["report", "tried"],
)
WHERE = "import analysis, cl2r, studies; print(*(one.__file__ for one in (analysis, cl2r, studies)), sep='\\n')"


def unpack(wheel: Path, folder: Path) -> Path:
    """Return a new folder below `folder` with the files of the wheel."""
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def call(site: Path, folder: Path, *words: str) -> str:
    """Run Python in `folder` with the packages of `site`, and return what it prints. Raise RuntimeError if it fails.

    Without its `site` module Python reads no path files, so that an editable installation is not found.
    """
    path = os.pathsep.join([str(site), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CL2R_")}
    done = subprocess.run(
        [sys.executable, "-S", *words],
        cwd=folder,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        site, folder = unpack(wheel, Path(name)), Path(name) / "empty"
        folder.mkdir()
        found = call(site, folder, "-c", WHERE).split()
        if not all(Path(file).is_relative_to(site) for file in found):
            raise RuntimeError(f"not the files of the wheel: {found}")
        for words in (*COMMANDS, *STUDY):
            call(site, folder, "-m", "cl2r", *words)
            print(f"{wheel.name}: cl2r {' '.join(words[:2])} works", flush=True)
        if not (folder / "results" / "studies" / "tried" / "report.html").exists():
            raise RuntimeError("there is no report below results in the current folder")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
