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
    info, method, project = blocks()[:3]
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
SWITCH = replace(INFO, switches=("bias", "centre"))
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
        ("broken:SWITCH", "it follows unknown switches: centre"),
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


GROWING = {
    "priors/__init__.py": """
from cl2r.config.methods import MethodInfo

INFO = MethodInfo(
    "priors", "ER with a trained shift of every logit", "none", "priors.method:Priors", "weights, memory", "projection",
    defaults={"method.classifier": "trainable", "method.fd": "none"}, switches=("preallocate", "mask_unseen"),
)
""",
    "priors/method.py": """
import torch
from torch import nn

from cl2r.methods.base import Outputs
from cl2r.methods.incremental import Incremental, Network


class ShiftedNetwork(Network):
    def __init__(self, phi, classifier):
        super().__init__(phi, classifier)
        self.shift = nn.ParameterDict({"rows": nn.Parameter(torch.zeros(0))})
        self.tied = nn.ParameterDict(self.shift)
        self.register_buffer("tasks", torch.zeros(0, dtype=torch.long))

    def forward(self, x):
        out = super().forward(x)
        return Outputs(out.features, out.logits + self.shift["rows"])


class Priors(Incremental):
    network_type = ShiftedNetwork

    def grow(self, task, data):
        super().grow(task, data)
        network, rows = self.network, len(self.network.classifier.weight)
        shift = network.shift["rows"].detach()
        shift = nn.Parameter(torch.cat([shift, shift.new_zeros(rows - len(shift))]))
        network.shift["rows"] = network.tied["rows"] = shift
        network.tasks = torch.cat([network.tasks, network.tasks.new_tensor([task.index])])
""",
}

GROWN = """
import json, sys
from pathlib import Path
from tests.support.quick import chain_tensors, quick_config, train

data, root = map(Path, sys.argv[1:])
found = {}
for name, head in {
    "plain": {}, "preallocated": {"preallocate": True}, "masked": {"preallocate": True, "mask_unseen": True}
}.items():
    config = quick_config(data, {"method": {"name": "priors"}, "head": head, "eval": {"bootstrap": 0}})
    result = train(config, root)
    links = chain_tensors(result.plan, root)
    found[name] = {
        "shifts": [len(link["method/shift.rows"]) for link in links],
        "moved": [bool(link["method/shift.rows"].any()) for link in links],
        "tied": all(link["method/shift.rows"].equal(link["method/tied.rows"]) for link in links),
        "tasks": links[-1]["method/tasks"].tolist(),
        "last": result.report.matrix[-1].tolist(),
    }
print(json.dumps(found))
"""


def test_every_tensor_of_an_installed_method_may_grow_and_it_may_declare_switches_of_the_head(
    tiny: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    install(site, "cl2r.methods", {"priors": "priors:INFO"}, GROWING)
    done = python(site, "-c", GROWN, str(tiny), str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["plain"]["shifts"] == [4, 8, 12]
    assert found["preallocated"]["shifts"] == found["masked"]["shifts"] == [12, 12, 12]
    assert all(all(entry["moved"]) and entry["tied"] and entry["tasks"] == [1, 2, 3] for entry in found.values())
    assert len({str(entry["last"]) for entry in found.values()}) == 3, "each switch has an effect"
    refused = cl2r(site, "run", "--method", "priors", "--set", "head.bias=true")
    assert refused.returncode == 2
    assert "head.bias=true: priors cannot" in refused.stderr


def test_a_switch_that_a_method_does_not_declare_is_refused(site: Path) -> None:
    refused = cl2r(site, "run", "--method", "anchored", "--set", "head.preallocate=true")
    assert refused.returncode == 2
    assert "head.preallocate=true: anchored cannot; leave it out" in refused.stderr.splitlines()[-1]


def test_new_modules_that_restore_does_not_build_are_named(site: Path, tiny: Path, tmp_path: Path) -> None:
    code = site / "anchored" / "method.py"
    head = "    def grow(self, task, data):\n        super().grow(task, data)\n"
    grow = f"{head}        self.network.more = torch.nn.Linear(2, 2)\n"
    code.write_text(code.read_text().replace("    def needs_teacher", f"{grow}\n    def needs_teacher"))
    failed = python(site, "-c", SCRIPT, str(tiny), str(tmp_path / "out"))
    last = failed.stderr.splitlines()[-1]
    assert last.endswith("method anchored: restore() does not build what it carries: more.bias, more.weight")
