"""What `make same` counts as a difference."""

import importlib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).parents[2] / "support"
RUN = {"cl2r": {"links": {"task 1": "abc"}, "frames": {"matrix": {"t": [1, 2], "accuracy": [0.5, None]}}}}
STUDY = {
    "frames": {
        "grid": {
            "runs": {
                "columns": "run BC",
                "dtypes": {"run": "str", "BC": "float"},
                "values": {"run": ["a"], "BC": [1]},
            }
        }
    },
    "notes": {},
}


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SUPPORT)
    return importlib.import_module("record")


def with_column(content: dict[str, Any]) -> dict[str, Any]:
    grown = deepcopy(content)
    if "frames" in grown:
        runs = grown["frames"]["grid"]["runs"]
        runs["columns"], runs["dtypes"]["recall@1"], runs["values"]["recall@1"] = "run recall@1 BC", "float", [0.7]
    else:
        grown["cl2r"]["frames"]["matrix"]["recall@1"] = [0.7, 0.8]
    return grown


@pytest.mark.parametrize(("part", "content", "frame"), [("a", RUN, "matrix"), ("c", STUDY, "runs")])
def test_a_new_column_is_listed_and_not_compared(
    part: str, content: dict[str, Any], frame: str, record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    grown = with_column(content)
    assert record.compare({part: content}, {part: grown})
    out = capsys.readouterr().out
    assert f"{part} has new columns, not compared:\n  recall@1 of {frame} (1)\n" in out
    assert "DIFFER" not in out


@pytest.mark.parametrize(("part", "content"), [("a", RUN), ("c", STUDY)])
def test_a_column_that_is_gone_differs(part: str, content: dict[str, Any], record: Any) -> None:
    assert not record.compare({part: with_column(content)}, {part: content})


def test_other_values_differ_beside_a_new_column(record: Any) -> None:
    grown = with_column(RUN)
    grown["cl2r"]["frames"]["matrix"]["accuracy"] = [0.5, 0.6]
    assert not record.compare({"a": RUN}, {"a": grown}), "also where nothing was"
    grown = with_column(RUN)
    grown["cl2r"]["links"]["task 1"] = "abd"
    assert not record.compare({"a": RUN}, {"a": grown})
