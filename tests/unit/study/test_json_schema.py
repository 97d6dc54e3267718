"""The JSON schemas of the files of runs and studies: shipped as generated, and as strict as the program."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from cl2r.config.layers import override, presets, resolve
from cl2r.config.methods import METHODS
from cl2r.config.schema import field_keys, to_yaml
from cl2r.runtime.environment import ROOT
from cl2r.study.json_schema import run_schema, schema_text
from tests.support.command_line import Command

SCHEMAS = {kind: ROOT / "cl2r" / "schemas" / f"{kind}.json" for kind in ("run", "study")}
SHIPPED = [(path, "run") for path in presets().values()]
SHIPPED += [(path, "study") for path in sorted(ROOT.glob("studies/*.yaml"))]


def faults(kind: str, content: Any) -> list[str]:
    """Return the places of a file that its schema refuses."""
    validator = Draft7Validator(json.loads(SCHEMAS[kind].read_text()))
    return [".".join(map(str, error.absolute_path)) for error in validator.iter_errors(content)]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_shipped_schema_is_the_generated_one(kind: str, cl2r: Command) -> None:
    text = SCHEMAS[kind].read_text(encoding="utf-8")
    assert text == schema_text(kind), f"update it: cl2r schema {kind} > cl2r/schemas/{kind}.json"
    assert cl2r("schema", kind) == (0, text, "")
    Draft7Validator.check_schema(json.loads(text))


@pytest.mark.parametrize(("path", "kind"), SHIPPED, ids=lambda entry: Path(entry).stem)
def test_every_shipped_file_is_valid_and_names_its_schema(path: Path, kind: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert faults(kind, yaml.safe_load(text)) == []
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named is not None
    assert (path.parent / named[1]).resolve() == SCHEMAS[kind]


@pytest.mark.parametrize("name", [*METHODS, "er+slerp"])
def test_saved_configs_are_valid(name: str) -> None:
    assert faults("run", yaml.safe_load(to_yaml(resolve([override(f"method.name={name}")])))) == []


def test_all_fields_are_known_by_section_and_by_dotted_name() -> None:
    run, study = (json.loads(path.read_text())["properties"] for path in SCHEMAS.values())
    keys = field_keys()
    assert list(run["set"]["properties"]) == keys
    varied = [key for key in keys if key != "seed"]
    for part in (study["set"], study["grid"], study["space"], study["variants"]["additionalProperties"]):
        assert list(part["properties"]) == varied
    sections = {name: entry["properties"] for name, entry in run.items() if name != "set" and "properties" in entry}
    assert [f"{name}.{key}" for name, entry in sections.items() for key in entry] == [k for k in keys if "." in k]


@pytest.mark.parametrize(
    ("kind", "text", "place"),
    [
        ("run", "optim: {epoch: 3}", "optim"),
        ("run", "optimm: {epochs: 3}", ""),
        ("run", "optim: {epochs: many}", "optim.epochs"),
        ("run", "optim: {epochs: 0}", "optim.epochs"),
        ("run", "optim: 3", "optim"),
        ("run", "method: {name: cl3r}", "method.name"),
        ("run", "method: {name: er+slurp}", "method.name"),
        ("run", "backbone: {name: resnet33}", "backbone.name"),
        ("run", "head: {projection: cubic}", "head.projection"),
        ("run", "lucir: {margins: 1}", "lucir"),
        ("run", "seed: true", "seed"),
        ("run", "preset: iconz", "preset"),
        ("run", "set: {optim.epoch: 3}", "set"),
        ("run", "grid: {method.name: [er]}", ""),
        ("study", "seed: 3", ""),
        ("study", "seeds: 3", "seeds"),
        ("study", "seeds: [-1]", "seeds.0"),
        ("study", "girds: {}", ""),
        ("study", "set: {seed: 3}", "set"),
        ("study", "grid: {memory.perclass: [1]}", "grid"),
        ("study", "grid: {memory.per_class: [1, few]}", "grid.memory.per_class.1"),
        ("study", "grid: {memory.per_class: 3}", "grid.memory.per_class"),
        ("study", "grid: {memory.per_class: []}", "grid.memory.per_class"),
        ("study", "variants: {a: {head.center: true}}", "variants.a"),
        ("study", "space: {optim.lr: {low: 0.1}}", "space.optim.lr"),
        ("study", "space: {scenario.n_tasks: {low: 2, high: 5}}", "space.scenario.n_tasks"),
        ("study", "search: {trial: 3}", "search"),
        ("study", "search: {objectives: [BD]}", "search.objectives.0"),
        ("study", "search: {constraints: {accuracy: '>= 1'}}", "search.constraints"),
        ("study", "search: {confirm: {top: 0}}", "search.confirm.top"),
        ("study", "race: {methods: [err]}", "race.methods.0"),
        ("study", "optim: {epoch: 3}", "optim"),
    ],
)
def test_a_misspelt_key_or_a_wrong_type_is_found(kind: str, text: str, place: str) -> None:
    assert faults(kind, yaml.safe_load(text)) == [place]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("run", "preset: mine.yaml\nset: {optim.lr: 1, method.name: er+slerp}\nfoster: {boost_epochs: null}"),
        ("study", "preset: none\noptim: {lr: 1}\nspace: {optim.lr: {low: 1, high: 2}, scenario.n_tasks: [2, 5]}"),
        ("study", "race: {hours: 1}\nsearch: {constraints: {stored_bytes: '<= 2e6'}}"),
    ],
)
def test_valid_files(kind: str, text: str) -> None:
    assert faults(kind, yaml.safe_load(text)) == []


def test_fields_are_described_by_their_docstrings_if_there_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    definitions = json.loads(SCHEMAS["run"].read_text())["$defs"]
    assert definitions["optim.lr_later"]["description"] == "Learning rate of tasks 2..T; None: the same."

    def nowhere(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr("inspect.getsource", nowhere)
    assert "description" not in run_schema()["$defs"]["optim.lr_later"]
