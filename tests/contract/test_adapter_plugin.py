"""The adapter of cl2r/methods/README.md as a user would install it: a package with an entry point."""

import json
import re
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from tests.support.installed import install, python

PAGE = Path(str(resources.files("cl2r") / "methods" / "README.md"))
BLOCKS = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text().partition("## Add an adapter")[2], re.DOTALL)

RUNS = """
import json, sys
from pathlib import Path
from cl2r.engine.frames import frames
from tests.support.quick import quick_config, train

data, root = map(Path, sys.argv[1:])
found = {}
for name, share in [("er", 0.5), ("er+query_drift", 0.5), ("er+partly", 1.0), ("er+partly", 0.3), ("er+partly", 0.0)]:
    config = quick_config(data, {"method": {"name": name}, "adapter": {"share": share}, "eval": {"bootstrap": 0}})
    result = train(config, root)
    row = frames(result, name)["runs"][0]
    costs = {key: row[key] for key in ("adapter_flops", "stored_bytes", "links_trained")}
    found[f"{name} {share}"] = {"matrix": result.report.matrix[-1].tolist(), **costs}
print(json.dumps(found))
"""

BROKEN = """
from dataclasses import replace

from cl2r.config.methods import AdapterInfo
from partly import INFO

TAKEN = replace(INFO, name="slerp")
NOTHING = replace(INFO, name="none")
PLUS = replace(INFO, name="a+b")
BARE = AdapterInfo("bare", "no costs", "none", "partly.fit:fit")
AWAY = replace(INFO, build="partly.fits:fit")
"""


def enter(site: Path, entry: str) -> None:
    files = {"partly/__init__.py": BLOCKS[0], "partly/fit.py": BLOCKS[1], "broken.py": BROKEN}
    install(site, "cl2r.adapters", {"partly": entry}, files)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder that looks like site-packages with `partly` installed."""
    entry = re.search(r'partly = "(.*)"', BLOCKS[2])
    assert entry
    enter(tmp_path / "site", entry[1])
    return tmp_path / "site"


def cl2r(site: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return python(site, "-m", "cl2r", *words)


def test_an_installed_adapter_is_an_adapter_like_any_other(site: Path, tiny: Path, tmp_path: Path) -> None:
    """With all of the drift it is `query_drift`, with none of it the method without adapter."""
    done = python(site, "-c", RUNS, str(tiny), str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    matrices = {name: entry["matrix"] for name, entry in found.items()}
    assert matrices["er+partly 1.0"] == matrices["er+query_drift 0.5"]
    assert matrices["er+partly 0.0"] == matrices["er 0.5"]
    assert matrices["er+partly 0.3"] not in (matrices["er+partly 1.0"], matrices["er+partly 0.0"])
    for cost in ("adapter_flops", "stored_bytes"):
        assert found["er+partly 1.0"][cost] == found["er+query_drift 0.5"][cost] > found["er 0.5"][cost]
    assert [entry["links_trained"] for entry in found.values()] == [3, 0, 0, 0, 0], "all are adapters of one chain"


def test_commands_and_schema_know_it(site: Path) -> None:
    listed = cl2r(site, "methods")
    assert listed.returncode == 0, listed.stderr
    assert "\npartly " in listed.stdout
    schema = json.loads(cl2r(site, "schema", "run").stdout)
    assert "partly" in schema["$defs"]["adapter.name"]["enum"]
    refused = cl2r(site, "run", "--method", "er+party")
    assert refused.returncode == 2
    assert "did you mean 'partly'?" in refused.stderr


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("partly.fit:fit", "it is no AdapterInfo"),
        ("broken:TAKEN", "there is an adapter 'slerp' already"),
        ("broken:NOTHING", "there is an adapter 'none' already"),
        ("broken:PLUS", "its name has a plus sign"),
        ("broken:BARE", "it has to give build, flops and numbers"),
        ("partly:MISSING", "AttributeError"),
    ],
)
def test_a_wrong_entry_point_is_named_and_stops_nothing(site: Path, entry: str, complaint: str) -> None:
    enter(site, entry)
    done = cl2r(site, "methods")
    assert done.returncode == 0
    assert "procrustes" in done.stdout
    assert re.fullmatch(rf"not loaded: partly \({entry}\): .*{complaint}.*\n", done.stderr)


def test_a_function_that_cannot_be_loaded_is_refused_before_any_training(site: Path, tmp_path: Path) -> None:
    enter(site, "broken:AWAY")
    refused = cl2r(site, "run", "--method", "er+partly", "--storage", str(tmp_path / "out"))
    assert refused.returncode == 2
    assert "adapter partly: cannot load partly.fits:fit" in refused.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()
