"""Versions, commands and secrets in the files of cluster/."""

import ast
import importlib.metadata
import re
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cl2r.cli.study import study_resources
from cl2r.runtime.environment import ROOT
from studies import ablation
from tests.support.cluster_rules import CLUSTER, nodes_for, pins, ray_up, read

FILES = sorted(path for path in CLUSTER.iterdir() if path.is_file())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = {"PIL": "pillow", "faiss": "faiss-cpu", "yaml": "pyyaml"}
"""Whose name differs from the module's."""


def test_pins_agree_with_the_project() -> None:
    fixed = pins()
    for wanted in map(Requirement, PROJECT["dependencies"]):
        assert fixed[canonicalize_name(wanted.name)] in wanted.specifier, wanted


def test_pins_agree_with_each_other() -> None:
    """Checked for those that are installed here. What they need is pinned too."""
    fixed, installed = pins(), {canonicalize_name(found.name): found for found in importlib.metadata.distributions()}
    for name, version in fixed.items():
        found = installed.get(canonicalize_name(name))
        for needed in map(Requirement, found.requires or []) if found and found.version == version else ():
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert fixed[canonicalize_name(needed.name)] in needed.specifier, f"{name} needs {needed}"


def test_every_library_that_is_imported_is_pinned() -> None:
    fixed = pins()
    for path in (path for part in ("cl2r", "analysis", "studies") for path in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for top in {name.split(".")[0] for name in names} - {"cl2r", "analysis", "studies"}:
                known = top in sys.stdlib_module_names or PACKAGES.get(top, canonicalize_name(top)) in fixed
                assert known, f"{path} imports {top}"


def test_images_have_the_pinned_ray() -> None:
    found = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        found += re.findall(r"(?:rayproject/ray|/cl2r):(\d[\w.]*)(?:-py311-gpu)?", text)
        found += re.findall(r'rayVersion: "(.*)"', text)
    assert len(found) >= 6
    assert set(found) == {pins()["ray"]}
    assert ">=3.11" in PROJECT["requires-python"]


def test_commands_are_accepted_and_fill_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of a study in the files and the README, as the study's own parser reads it."""
    given: list[Mapping[str, Any]] = []
    monkeypatch.setattr("cl2r.cli.study.run_recipe", lambda path, recipe, options: given.append(options) or 0)
    calls = Counter[str]()
    for path in FILES:
        text = re.sub(r"\\\n#?", " ", path.read_text(encoding="utf-8"))
        text = re.sub(r"(ablation\.py[^\n]*)\n +(--gpus-per-worker)", r"\1 \2", text)
        for line in re.findall(r"python \S*studies/ablation\.py( --[^\n`|]*)", text):
            assert ablation.main(shlex.split(line, comments=True)) == 0
            assert given[-1]["seeds"] == (0, 1, 2)
            resources = study_resources(given[-1])
            demand = [resources.per_worker()] * (resources.max_concurrent or 16)
            assert nodes_for(ray_up(read("a100.yaml")), demand) == ({"p4d": 2}, 0)
            calls[path.name] += 1
    assert calls == {"README.md": 2, "kuberay.yaml": 1, "slurm.sh": 1}


def test_the_readme_fills_in_every_placeholder() -> None:
    readme, config = ((CLUSTER / name).read_text(encoding="utf-8") for name in ("README.md", "a100.yaml"))
    filled = re.findall(r"s/([\w-]+)/\$", readme)
    assert filled == ["my-cl2r-bucket", "sg-00000000000000000", "ami-00000000000000000"]
    assert all(word in config for word in filled)
    assert not re.search(r"\b(?:sg|ami|vpc|subnet)-(?!0{17})[0-9a-f]{8,}", config), "an account's own"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_holds_a_secret(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"AKIA|ASIA[A-Z0-9]{12}|BEGIN [A-Z ]*PRIVATE KEY|\b[0-9a-f]{64}\b|hf_[A-Za-z]{20}", text)
    assert not re.search(r"(?i)(secret|token|password)[\w-]*[=:] *['\"]?[A-Za-z0-9+/]{16,}", text)
    assert not re.search(r"s3://[^/\s]*:[^/\s]*@", text)
