"""The command of the paper's tables and figures: options, files and plots; nothing is trained."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.headline import headline
from analysis.paper.items import ITEMS
from analysis.study import Study
from cl2r.cli.study import Recipe
from cl2r.runtime.logs import exit_code
from cl2r.storage.path import at
from cl2r.study.folder import StudyFolder
from studies import paper
from tests.support.paper_frames import frames, run


def study(name: str, rows: list[dict[str, Any]]) -> Study:
    """Return a study of an item whose settings are compared with those of `icons`."""
    return Study(**frames(rows), name="made", paper={"item": name, "preset": "icons"}, search={})


def test_a_table_is_shown_and_written_as_markdown(tmp_path: Path) -> None:
    given, out = study("table 2", [run("cl2r", 2, seed) for seed in (4, 5)]), tmp_path / "table.md"
    shown = paper.present(given, at(tmp_path), out, "x")
    assert str(out) in shown
    said, words = headline(given), " ".join(shown.split())
    assert shown.startswith(f"{said.title}\n\n"), "as the page begins"
    assert f"{said.finding} {said.certainty}" in words, "the sentences of the page"
    assert "|" not in shown, "aligned columns for the terminal"
    assert "\n| method | self-test C[2,2] |" in out.read_text()


@pytest.mark.parametrize("name", ["figure bc", "figure memory"])
def test_a_figure_is_drawn_into_the_study_and_beside_the_document(name: str, tmp_path: Path) -> None:
    methods = ITEMS[name].methods
    sizes = (0, 5) if name == "figure memory" else (4,)
    given = study(name, [run(method, 3, seed, size) for method in methods for seed in (0, 1) for size in sizes])
    out = tmp_path / "kept" / "figure.md"
    shown = paper.present(given, at(tmp_path / "study"), out, "x")
    for kind in ("png", "svg"):
        drawn = tmp_path / "study" / f"{name.replace(' ', '_')}.{kind}"
        assert str(drawn) in shown
        assert drawn.stat().st_size > 10_000
    assert "(figure.png)" in out.read_text()
    assert (tmp_path / "kept" / "figure.png").is_file()


@pytest.mark.parametrize("name", ["figure bc", "figure memory"])
def test_values_are_shown_even_if_there_is_nothing_to_draw(name: str, tmp_path: Path) -> None:
    rows = [{**run(method, 3, memory=size), "status": "failed"} for method in ("er", "cl2r") for size in (0, 5)]
    shown = paper.present(study(name, rows), at(tmp_path / "study"), None, "x")
    assert "no figure" in shown
    assert "not run" in shown
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "--table 2, --table 3"),
        (["--table", "9"], "--table 9"),
        (["--figure", "memroy"], "--figure memroy"),
        (["--table", "2", "--figure", "bc"], "--table 2, --figure bc"),
        (["--table", "2", "--methods", "lcuir"], "'lucir'"),
        (["--table", "2", "--sizes", "5"], "--sizes"),
        (["--table", "3", "--counts", "3", "--tasks", "5"], "--counts"),
        (["--table", "2", "--out", "table.txt"], ".md"),
    ],
)
def test_bad_options_end_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str], fault: str) -> None:
    assert exit_code("paper", lambda: paper.main(words)) == 2
    err = capsys.readouterr().err
    assert fault in err
    assert err.count("\n") == 1


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    """Return what a command asks for; nothing is run."""

    def recipe_of(*words: str) -> Recipe:
        parts: list[Any] = []
        monkeypatch.setattr("cl2r.cli.study.run_recipe", lambda *given: parts.extend(given) or 0)
        assert paper.main(list(words)) == 0
        recipe: Recipe = parts[1]
        return recipe

    return recipe_of


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_has_its_preset_methods_and_tasks(seen: Callable[..., Recipe], name: str) -> None:
    kind, word = name.split()
    item, content = ITEMS[name], seen(f"--{kind}", word).changes
    assert content["preset"] == item.presets[0]
    assert content["grid"]["method.name"] == list(item.methods)
    assert content["grid"]["scenario.n_tasks"] == list(item.tasks)
    assert content["grid"].get("memory.per_class", []) == list(item.sizes)


def test_options_replace_the_settings_of_an_item(seen: Callable[..., Recipe]) -> None:
    words = ("--preset", "icons", "--methods", "er", "--counts", "3", "--sizes", "0", "5")
    content = seen("--figure", "memory", *words).changes
    assert content["preset"] == "icons"
    assert content["grid"] == {"method.name": ["er"], "scenario.n_tasks": [3], "memory.per_class": [0, 5]}


@pytest.mark.parametrize(
    ("words", "preset"), [(["tiny_imagenet200"], "tiny_imagenet200"), (["icons"], "cifar100"), ([], "cifar100")]
)
def test_the_study_records_its_item_and_the_preset_of_the_paper(
    seen: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], preset: str
) -> None:
    monkeypatch.setattr(paper, "present", lambda study, *_: study.paper)
    session: Any = SimpleNamespace(folder=StudyFolder(at(tmp_path), "made"))
    recipe = seen("--figure", "bc", "--methods", "er", *(["--preset", *words] if words else []))
    assert recipe.text is not None
    assert recipe.text(session, frames([run("er", 5)])) == {"item": "figure bc", "preset": preset}
    assert (tmp_path / "studies" / "made" / "paper.json").is_file(), "the page reads it"
