"""Packages as a user would install them, in a folder that looks like site-packages."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def install(site: Path, group: str, points: dict[str, str], files: dict[str, str]) -> None:
    """Write a distribution with these files and entry points."""
    metadata = {"METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1\n"}
    metadata["entry_points.txt"] = "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
    for name, text in {**files, **{f"mine-1.dist-info/{name}": text for name, text in metadata.items()}}.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)


def python(site: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in a process of its own that finds the packages of `site`."""
    environment = {**os.environ, "PYTHONPATH": f"{site}:{REPOSITORY}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=site, check=False)
