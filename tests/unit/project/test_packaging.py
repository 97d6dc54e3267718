"""The wheel holds all that the code reads and works without the checkout; extras, comments and the Dockerfile fit."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from cl2r.runtime.environment import ROOT
from cl2r.study.trackers import EXTRAS
from tests.support.try_wheel import COMMANDS, WHERE, call, unpack

PACKAGES = ("cl2r", "analysis", "studies")
NOT_READ = re.compile(r"studies/results/|.*\.(md|png|svg|ipynb|tsv)$")
"""Files of the packages that a program does not read: documents and kept results."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built in a copy."""
    copy = tmp_path_factory.mktemp("tree")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "."]
    subprocess.run([sys.executable, *words], cwd=copy, check=True)
    (built,) = (copy / "dist").glob("*.whl")
    return built


def test_the_wheel_has_every_file_that_is_read(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    there = set(zipfile.ZipFile(wheel).namelist())
    assert [name for name in listed.stdout.split() if name not in there and not NOT_READ.match(name)] == []
    documents = {"cl2r/PAPER.md", "cl2r/methods/README.md", "cl2r/data/README.md", "cl2r/data/embedded/README.md"}
    assert documents <= there, "messages of the program name these"
    assert {name.partition("/")[0] for name in there if ".dist-info/" not in name} == set(PACKAGES)
    assert not any(name.startswith("studies/results/") for name in there)
    (points,) = [name for name in there if name.endswith("entry_points.txt")]
    assert "cl2r = cl2r.cli.main:main" in zipfile.ZipFile(wheel).read(points).decode()


def test_the_wheel_works_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    site, folder = unpack(wheel, tmp_path), tmp_path / "empty"
    folder.mkdir()
    assert all(Path(file).is_relative_to(site) for file in call(site, folder, "-c", WHERE).split())
    shown = {words[0]: call(site, folder, "-m", "cl2r", *words) for words in COMMANDS}
    assert "2 links trained" in shown["run"]
    assert "icons" in shown["datasets"]
    assert "cl2r" in shown["methods"]
    assert "links" in shown["plan"]
    assert [path.name for path in folder.iterdir()] == ["results"], "results go to the current folder, nothing else"
    assert list(folder.glob("results/runs/*/runs.parquet"))


def test_no_package_imports_tests() -> None:
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    assert len(sources) > 100
    assert not [path for path in sources if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)]


def test_comments_of_dependencies_name_files() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    comments = re.findall(r'^    "[^"]+",\s*# (.*)$', text, re.MULTILINE)
    named = re.findall(r"\b(?:cl2r|analysis|tests|studies)(?:/[\w.]+)*", "\n".join(comments))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name.rstrip(".")).exists()] == []


def test_every_tracker_is_a_dependency_or_an_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    assert any(line.startswith("tensorboardX") for line in PROJECT["dependencies"])
    for name in EXTRAS.keys() - {"tensorboard"}:
        assert any(line.startswith(name) for line in extras[name])
    assert "cl2r[mlflow,wandb]" in extras["dev"], "or their tests would not run"


def test_the_dockerfile() -> None:
    """Docker is not needed to see that its sources exist and that it installs what pyproject.toml asks for."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in lines} <= known
    order = [word for word, _ in lines]
    assert order[0] == "FROM"
    assert order.index("USER") > max(place for place, word in enumerate(order) if word == "RUN"), "not run by root"
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [word for name, rest in lines if name == "COPY" for word in shlex.split(rest)[:-1]]
    assert {*PACKAGES, "pyproject.toml", "README.md", "LICENSE"} == set(copied)
    assert not set(copied) & set(ignored)
    (torch,) = [rest for name, rest in lines if name == "RUN" and "TORCH_INDEX" in rest]
    asked = [line for line in PROJECT["dependencies"] if line.startswith(("torch>", "torchvision"))]
    assert [word for word in shlex.split(torch) if word.startswith("torch")] == asked
    assert dict(lines)["ENTRYPOINT"] == '["cl2r"]'
