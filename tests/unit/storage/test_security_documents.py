"""Hostile YAML and JSON: one line that names the file, never a traceback; nothing that is given twice is dropped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis import load_study
from analysis.paper.statements import read_statements
from cl2r.config.layers import override, read_layer
from cl2r.gallery.runs import StoredRun
from cl2r.gallery.upgrade import read_answer
from cl2r.storage.documents import DEEPEST, json_mapping, parse_yaml, yaml_mapping
from cl2r.storage.path import at
from cl2r.storage.seal import run_owner, write_beside
from cl2r.study.folder import StudyFolder
from cl2r.study.spec import StudySpec
from tests.support.made_study import made_study, write_made
from tests.support.miniatures import refusal

CHAIN = "a0: &a0 [1]\n" + "".join(f"a{place + 1}: &a{place + 1} [*a{place}]\n" for place in range(500))
TENFOLD = "a0: &a0 {x: 1}\n" + "".join(
    f"a{place + 1}: &a{place + 1} [{', '.join([f'*a{place}'] * 10)}]\n" for place in range(12)
)
MERGED = TENFOLD.replace(" [", " {<<: [").replace("]\n", "]}\n")
HOSTILE_YAML = {
    b"seed: 1\noptim: {lr: 1}\nseed: 2\n": "line 3: key 'seed' again, as in line 1",
    b"optim:\n  lr: 1\n  epochs: 2\n  lr: 3\n": "line 4: key 'lr' again, as in line 2",
    b"optim: {1: a, 1.0: b}": "line 1: key 1.0 again",
    b"a: &a {x: 1}\nb: &b {x: 2}\nc: {<<: *a, <<: *b}\n": "line 3: key '<<' again",
    b"a: " + b"[" * 10**5: "nested too deeply",
    b"a: " + b"[" * DEEPEST + b"]" * DEEPEST: "levels of nesting",
    CHAIN.encode(): "levels of nesting",
    TENFOLD.encode(): "values, with those that aliases repeat",
    MERGED.encode(): "values, with those that aliases repeat",
    b"a: &a [*a]": "contains itself",
    b"a: &a {b: {c: *a}}": "contains itself",
    b"a: \xff\xfe": "invalid start byte",
    b"a: b\0c": "0x0000",
    b"seed: 2024-99-99": "not valid YAML",
    b"seed: !!bool x": "does not fit its tag",
    b"seed: !!timestamp x": "does not fit its tag",
    b"seed: !!int ''": "does not fit its tag",
    b"seed: " + b"9" * 5000: "not valid YAML",
    b"seed: 0x" + b"f" * 5000: "a whole number of more than 64 bits",
    b"seeds: !!set {3, 9}": "a value with the tag !!set",
    b"seed: !!binary aGVsbG8=": "a value with the tag !!binary",
    b"seeds: !!omap [a: 1]": "a value with the tag !!omap",
    b"seeds: !!pairs [a: 1]": "a value with the tag !!pairs",
    b"seed: 1" + b":59" * 300 + b".5": "does not fit its tag",
    b'data: {name: "\\ud800"}': "surrogate",
    b"? [a]\n: 1": "unhashable key",
    b"a: 1\n---\na: 2": "another document",
    b"a: [": "line 1",
    b"- a": "expected a mapping",
    b"text": "expected a mapping",
    b"# nothing": "expected a mapping",
}
HOSTILE_JSON = {
    b"[" * 10**5: "nested too deeply",
    b'{"a": ' + b"[" * DEEPEST + b"]" * DEEPEST + b"}": "levels of nesting",
    b'{"a": NaN}': "NaN is not a JSON value",
    b'{"a": [-Infinity]}': "-Infinity is not a JSON value",
    b"\xff\xfe\xfd": "not valid JSON",
    b'{"a": "b\0c"}': "not valid JSON",
    b'{"a": ' + b"9" * 5000 + b"}": "not valid JSON",
    b'{"a": 1': "not valid JSON",
    b'{"a": 1, "b": {"c": 1, "c": 2}}': "key 'c' is given twice",
    b"[1]": "expected a JSON object",
    b"7": "expected a JSON object",
}
Read = Callable[[Path], object]


def hostile(files: dict[bytes, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("content", "fault"), files.items(), ids=range(len(files)))


@hostile(HOSTILE_YAML)
def test_hostile_yaml_is_one_line(content: bytes, fault: str) -> None:
    message = refusal(lambda: yaml_mapping(content, "mine.yaml", "write it again"))
    assert message.startswith("mine.yaml: ")
    assert message.endswith("; write it again")
    assert fault in message
    assert len(message) < 400


@hostile(HOSTILE_JSON)
def test_hostile_json_is_one_line(content: bytes, fault: str) -> None:
    message = refusal(lambda: json_mapping(content, "mine.json"))
    assert message.startswith("mine.json: ")
    assert fault in message


def test_anchors_and_merge_keys_mean_what_they_meant() -> None:
    """What a mapping takes over by `<<` may be overridden: those keys are not given twice."""
    text = """
z: {deep: {own: {<<: &base {x: 1, y: 2}, x: 3}}}
base: &also {<<: *base, y: 4}
both: {x: 9, <<: [*also, *base]}
again: [*base, *base]
=: value
"""
    base = {"x": 1, "y": 2}
    assert parse_yaml(text, "") == {
        "z": {"deep": {"own": {"x": 3, "y": 2}}},
        "base": {"x": 1, "y": 4},
        "both": {"x": 9, "y": 4},
        "again": [base, base],
        "=": "value",
    }
    assert yaml_mapping("# ü\na: [é, 1e-3, 1.5, null, {b: []}]".encode("utf-16"), "") == {
        "a": ["é", "1e-3", 1.5, None, {"b": []}]
    }


def config_of_a_run(path: Path) -> object:
    write_beside(at(path.with_name("config.yaml")), path.read_bytes(), run_owner("run", "config.yaml"))
    return StoredRun("run", at(path.parent), at(path.parent)).config


def name_of_a_study(path: Path) -> object:
    folder = StudyFolder(path.parent, "made")
    folder.specification.write_file(path.read_bytes())
    return folder.check_name({})


def loaded(name: str) -> Read:
    def load(path: Path) -> object:
        write_made(made_study(), path.parent / "made")
        path.rename(path.parent / "made" / name)
        return load_study(path.parent / "made")

    return load


READERS: dict[str, Read] = {
    "mine.yaml: run": lambda path: read_layer(str(path)),
    "mine.yaml: study": StudySpec.load,
    "mine.yaml: statements": read_statements,
    "config.yaml": config_of_a_run,
    "study.yaml: name": name_of_a_study,
    "study.yaml: page": loaded("study.yaml"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "content", [b"seed: 1\nseed: 2\n", b"a: " + b"[" * 10**5, b"a: \xff", b"a: b\0", b"- a", b"a: !!bool x"]
)
def test_every_reader_of_yaml_names_the_file(tmp_path: Path, reader: str, content: bytes) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    message = refusal(lambda: READERS[reader](tmp_path / "mine.yaml"))
    assert f"{reader.partition(':')[0]}: " in message
    assert ("line 2: key 'seed' again" in message) == (content == b"seed: 1\nseed: 2\n")


def result_of_a_run(path: Path) -> object:
    write_beside(at(path.with_name("result.json")), path.read_bytes(), run_owner("run", "result.json"))
    return StoredRun("run", at(path.parent), at(path.parent)).keys


JSON_READERS: dict[str, Read] = {
    "result.json": result_of_a_run,
    "paper.json": loaded("paper.json"),
    "mine.json: --check": lambda path: read_answer(at(path)),
}


@pytest.mark.parametrize("reader", JSON_READERS)
@hostile(HOSTILE_JSON)
def test_every_reader_of_json_names_the_file(tmp_path: Path, reader: str, content: bytes, fault: str) -> None:
    (tmp_path / "mine.json").write_bytes(content)
    message = refusal(lambda: JSON_READERS[reader](tmp_path / "mine.json"))
    assert f"{reader.partition(':')[0]}: " in message
    assert len(message) < 500


@hostile(HOSTILE_JSON)
def test_a_hostile_about_file_is_named_and_left_out(
    tmp_path: Path, content: bytes, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = StudyFolder(tmp_path, "made")
    write_beside(folder.about, content, folder.owner("about.json"))
    assert folder.read_about() == {}
    assert StudyFolder.at(folder.path).read_about() == {}
    assert caplog.text.count(str(folder.about)) >= 2


def test_a_saved_answer_with_nan_is_refused(tmp_path: Path) -> None:
    change = {"value": 0.0, "low": 0.0, "high": 0.0}
    numbers = dict.fromkeys(("old", "cross", "new", "tolerance", "images_per_second"), 0.5)
    answer: dict[str, Any] = {"old_model": "a", "new_model": "b", "verdict": "safe", "sentence": "", "pairs": 9}
    answer |= numbers | {"change": change, "gain": change}
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(answer), encoding="utf-8")
    assert read_answer(at(path)).verdict == "safe"
    for field, value in (("cross", float("nan")), ("change", change | {"low": float("nan")})):
        path.write_text(json.dumps(answer | {field: value}), encoding="utf-8")
        assert f"--check {path}: does not parse ({field}" in refusal(lambda: read_answer(at(path)))


@pytest.mark.parametrize(
    "value", ["{a: 1, a: 2}", "[" * 10**5, "!!bool x", "2024-99-99", "9" * 5000, "0x" + "f" * 5000, "&a [*a]"]
)
def test_a_hostile_override_is_one_line(value: str) -> None:
    message = refusal(lambda: override(f"seed={value}"))
    assert message.startswith("--set 'seed=")
    assert len(message) < 500
