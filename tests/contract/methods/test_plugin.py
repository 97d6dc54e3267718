"""The worked example of cl2r/methods/README.md as a user would install it: a package with an entry point."""

import json
import re
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from tests.support.installed import install, python

PAGE = Path(str(resources.files("cl2r") / "methods" / "README.md"))


def blocks() -> list[str]:
    """Return the code blocks of the page, in order."""
    return re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text(), re.DOTALL)


def enter(site: Path, entry: str, files: dict[str, str]) -> None:
    install(site, "cl2r.methods", {"anchored": entry}, files)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder that looks like site-packages with `anchored` installed."""
    info, method, project = blocks()
    entry = re.search(r'anchored = "(.*)"', project)
    assert entry
    enter(tmp_path / "site", entry[1], {"anchored/__init__.py": info, "anchored/method.py": method})
    return tmp_path / "site"


SCRIPT = """
import json, sys
from pathlib import Path
from tests.support.quick import quick_config, train

data, root = map(Path, sys.argv[1:])
layers = {"anchored": {"method": {"name": "anchored"}}, "er": {"method": {"name": "er"}}}
layers["off"] = layers["anchored"] | {"anchored": {"weight": 0}}
short = {"eval": {"bootstrap": 0}, "scenario": {"stop_after": 2}}
results = {name: train(quick_config(data, layer, short), root) for name, layer in layers.items()}
print(json.dumps({name: result.report.matrix[1].tolist() for name, result in results.items()}))
"""


BROKEN = """
from dataclasses import replace

from anchored import INFO
from cl2r.config.section import Section


class Untimed(Section):
    weight: float = 1.0


UNTIMED = replace(INFO, options=Untimed)
RESERVED = replace(INFO, section="optim")
TAKEN = replace(INFO, section="lwf")
FAMILY = replace(INFO, family="rehearsal")
BARE = replace(INFO, defaults={})
"""


def cl2r(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(site, "-m", "cl2r", *words)


def test_the_example_is_forty_lines() -> None:
    code = [line for block in blocks()[:2] for line in block.splitlines() if line.strip()]
    assert len(code) <= 40


def test_an_installed_method_is_a_method_like_any_other(site: Path, tiny: Path, tmp_path: Path) -> None:
    listed = cl2r(site, "methods")
    assert listed.returncode == 0, listed.stderr
    assert "anchored.weight=1.0" in listed.stdout
    done = python(site, "-c", SCRIPT, str(tiny), str(tmp_path))
    assert done.returncode == 0, done.stderr
    matrices = json.loads(done.stdout)
    assert matrices["off"] == matrices["er"], "with weight 0 it is ER"
    assert matrices["anchored"] != matrices["er"]


def test_a_misspelt_option_of_it_is_refused(site: Path) -> None:
    done = cl2r(site, "run", "--method", "anchored", "--set", "anchored.wieght=2")
    assert done.returncode == 2
    assert "did you mean 'anchored.weight'?" in done.stderr


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("anchored:AnchoredOptions", "it is no MethodInfo"),
        ("cl2r.config.builtin:_BOUND", "there is a method 'upper_bound' already"),
        ("broken:UNTIMED", "does not say from which task on it matters"),
        ("broken:RESERVED", "the section 'optim'"),
        ("broken:TAKEN", "the section 'lwf'"),
        ("broken:FAMILY", "the family 'rehearsal' is cl2r.methods.rehearsal:Rehearsal"),
        ("broken:BARE", "its defaults lack method.classifier"),
        ("anchored:NOTHING", "AttributeError"),
        ("nowhere:INFO", "ModuleNotFoundError"),
    ],
)
def test_a_wrong_entry_point_is_named_and_stops_nothing(site: Path, entry: str, complaint: str) -> None:
    enter(site, entry, {"broken.py": BROKEN})
    done = cl2r(site, "methods")
    assert done.returncode == 0
    assert "lucir" in done.stdout
    assert re.fullmatch(rf"not loaded: anchored \({entry}\): .*{complaint}.*\n", done.stderr)


def test_a_method_that_was_not_loaded_is_refused_with_the_reason(site: Path) -> None:
    enter(site, "anchored:NOTHING", {})
    refused = cl2r(site, "run", "--method", "anchored")
    assert refused.returncode == 2
    assert "no method 'anchored'" in refused.stderr
    assert "AttributeError" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_method_whose_class_cannot_be_loaded_is_refused_before_any_training(site: Path, tmp_path: Path) -> None:
    page = site / "anchored" / "__init__.py"
    page.write_text(page.read_text().replace("anchored.method:Anchored", "anchored.methods:Anchored"))
    refused = cl2r(site, "run", "--method", "anchored", "--storage", str(tmp_path / "out"))
    assert refused.returncode == 2
    first, fault = refused.stderr.splitlines()
    assert first == "loading torch…"
    assert "cannot load anchored.methods:Anchored" in fault
    assert not (tmp_path / "out").exists()
