"""Kept pages and their JSON: neither says anything that the other does not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.kept_tables import OTHER_FORM, main, read_cell, read_page, to_json

RESULTS = Path(__file__).parents[3] / "studies" / "results"
PAGES = sorted(
    page
    for page in RESULTS.glob("*.md")
    if page.name not in OTHER_FORM and re.search("^\\|", page.read_text(encoding="utf-8"), re.MULTILINE)
)


def kept(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_json_beside_a_page_has_its_tables(page: Path) -> None:
    beside = page.with_suffix(".json")
    command = f"python -m tests.support.kept_tables studies/results/{page.name}"
    assert beside.exists(), f"write it with {command}"
    assert kept(beside.name) == read_page(page), f"write {beside.name} again with {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_made_its_tables(page: Path) -> None:
    missing = {"command", "seeds", "data"} - set(read_page(page))
    assert not missing, f"{page.name} begins with a list that lacks `- {missing.pop()}: …`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_of_one_seed_are_called_sketches(page: Path) -> None:
    content = read_page(page)
    single = [table["title"] for table in content["tables"] if len(table.get("seeds", content["seeds"])) == 1]
    if single:
        top = page.read_text(encoding="utf-8").partition("\n|")[0]
        assert "sketch" in top, f"{single} of one seed: say so at the top of the page"


def test_pages_of_another_form_have_their_json() -> None:
    names = set(re.findall(r"[\w-]+\.json", " ".join(OTHER_FORM.values())))
    assert len(names) == 7
    for name in names:
        assert kept(name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.753 [0.735, 0.772] ▾", {"mean": 0.753, "low": 0.735, "high": 0.772, "clearly_worse": True}),
        ("**−0.012 [−0.030, +0.006]**", {"mean": -0.012, "low": -0.03, "high": 0.006, "best": True}),
        ("-0.001 ± 0.002", {"mean": -0.001, "sd": 0.002}),
        ("+0.02 [0.01, 0.03] (+0.02, +0.03)", {"mean": 0.02, "low": 0.01, "high": 0.03, "by_seed": [0.02, 0.03]}),
        ("0.000 ▾", {"value": 0.0, "clearly_worse": True}),
        ("6,004,836", 6004836),
        ("0.10", 0.1),
        ("–", None),
        ("none (**ER**)", "none (ER)"),
        ("46.1× (44.8–57.3)", "46.1× (44.8–57.3)"),
        ("ER -0.001 ± 0.001", "ER -0.001 ± 0.001"),
    ],
)
def test_cells(text: str, value: Any) -> None:
    assert read_cell(text) == value


def test_a_page_with_sections(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n- command: `make it`\n- seeds: 0, 1; ± is a deviation\n- data: icons\n\n"
        "| a \\| b | n |\n|---|---:|\n| x | 1 |\n\n```\n| no | table |\n```\n\n"
        "## Section\n\n- seeds: 3\n\n**First**\n\n| a |\n|---|\n| – |\n\n**Second**\n\n| a |\n|---|\n| 2 |\n"
    )
    assert main([str(page)]) == 0
    written = (tmp_path / "page.json").read_text(encoding="utf-8")
    content = json.loads(written)
    assert content == read_page(page)
    assert written == to_json(content)
    assert (content["command"], content["seeds"], content["data"]) == ("make it", [0, 1], "icons")
    top, first, second = content["tables"]
    assert top == {"title": "Title", "columns": ["a | b", "n"], "rows": [{"a | b": "x", "n": 1}]}
    assert first == {"title": "First", "section": "Section", "seeds": [3], "columns": ["a"], "rows": [{"a": None}]}
    assert second["title"] == "Second"


def test_titles_and_columns_tell_tables_and_values_apart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n| a | a |\n|---|---|\n| 1 | 2 |\n")
    with pytest.raises(ValueError, match="columns"):
        read_page(page)
    page.write_text("# Title\n\n| a |\n|---|\n| 1 |\n\nmore\n\n| a |\n|---|\n| 1 |\n")
    with pytest.raises(ValueError, match="tables"):
        read_page(page)


def test_a_page_of_another_form_is_left_alone() -> None:
    with pytest.raises(SystemExit, match="methods_icons"):
        main([str(RESULTS / "methods_icons.md")])
