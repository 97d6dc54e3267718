"""The report on a table of the paper, the file it is kept in, and the command; nothing is trained."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paper_frames import frames, run

from analysis.paper.items import ITEMS
from analysis.paper.report import Report, document, training_seconds, verdicts_table
from cl2r.checkout import commit
from cl2r.errors import InputError, exit_code
from studies import paper

# The report and its file


def test_the_report_has_table_budget_verdicts_and_rule(tmp_path: Path) -> None:
    given = frames([{**run(method, 10, seed), "optim.epochs": 3} for method in ("fixed", "er_fdm") for seed in (0, 1)])
    given["runs"].loc[given["runs"]["method.name"] == "fixed", ["AC", "FC"]] = [0.9, 0.1]
    text = Report.of_frames("table ablation", ITEMS["table ablation"], given, "icons").text()
    assert "- optim.epochs: 20 -> 3" in text
    assert "AC = 0.27 | Sec. 8, " in text
    assert "| T=10 | AC | Fixed 0.900 ± 0.000 | not comparable at this budget |" in text
    assert "| T=10 | AC | Fixed 0.900 ± 0.000; Trainable, FD^M 0.500 ± 0.000 | agrees |" in text
    assert "agrees: 2, differs: 0, not comparable at this budget: 2, not run: 10." in text
    assert text.rstrip().endswith("some of the methods are missing.")


def test_the_verdicts_as_data_name_their_statement_in_every_row() -> None:
    given = frames([run(method, 10, seed) for method in ("fixed", "er_fdm") for seed in (0, 1)])
    report = Report.of_frames("table ablation", ITEMS["table ablation"], given, "icons")
    table = verdicts_table(report.judgements)
    assert len(table.rows) == len(table.data) == len(report.judgements)
    assert (table.data["statement"] != "").all()
    assert sum(cell.text == "" for cell in table.column("statement")) > 0, "shown once"
    assert table.data["verdict"].tolist() == [row.verdict for row in report.judgements]


def test_the_file_says_where_it_comes_from(tmp_path: Path) -> None:
    given = frames([run("cl2r", 2, seed) for seed in (4, 5)])
    given["tasks"]["key"] = ["a", "b", "a", "c"]
    assert training_seconds(given["tasks"]) == 6.0, "a shared link counts once"
    out = tmp_path / "table.md"
    shown = paper.present("table 2", given, "icons", tmp_path, out, "cl2r study paper --table 2")
    assert f"written: {out}" in shown
    assert "|" not in shown, "aligned columns for the terminal"
    text = out.read_text()
    assert "\n| method | self-test C[2,2] |" in text, "Markdown in the file"
    assert text.startswith("# Table 2 of the paper")
    for part in ("`cl2r study paper --table 2`", "- commit: ", "- seeds: 4, 5;", "- training: 6 s", "All settings are"):
        assert part in text


def test_a_figure_is_drawn_beside_the_frames_and_the_file(tmp_path: Path) -> None:
    methods = ITEMS["figure bc"].methods
    given = frames([run(method, 3, seed) for method in methods for seed in (0, 1)])
    shown = paper.present("figure bc", given, "icons", tmp_path / "study", tmp_path / "kept" / "bc.md", "x")
    assert f"figure: {tmp_path / 'study' / 'figure_bc.png'}, {tmp_path / 'study' / 'figure_bc.svg'}" in shown
    assert (tmp_path / "study" / "figure_bc.png").stat().st_size > 10_000
    assert "![Figure 2](bc.png)" in (tmp_path / "kept" / "bc.md").read_text()
    assert (tmp_path / "kept" / "bc.png").is_file()


def test_the_lines_of_a_figure() -> None:
    from analysis.paper.figures import draw

    sizes = {0: 0.1, 50: 0.3}
    rows = [run(method, 10, memory=size, AC=value) for method in ("er", "cl2r") for size, value in sizes.items()]
    axes = draw(ITEMS["figure memory"], frames(rows)).axes[0]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert lines == {"ER": [[0, 0.1], [50, 0.3]], "CL²R": [[0, 0.1], [50, 0.3]]}
    colours = {line.get_color() for line in axes.get_lines()}
    assert len(colours) == 2
    with pytest.raises(InputError, match="Table 3 is a table"):
        draw(ITEMS["table 3"], frames(rows))


@pytest.mark.parametrize("name", ["figure bc", "figure memory"])
def test_a_figure_of_no_finished_run_is_refused(name: str) -> None:
    from analysis.paper.figures import draw

    given = frames([run(method, 3, memory=size) for method in ("er", "cl2r") for size in (0, 5)])
    given["runs"]["status"] = "failed"
    with pytest.raises(InputError, match=r"^no run has finished: there is nothing to draw$"):
        draw(ITEMS[name], given)


def test_a_figure_needs_two_tasks_and_shows_the_most_that_finished() -> None:
    from analysis.paper.figures import draw

    with pytest.raises(InputError, match="no finished run has a matrix of two tasks or more"):
        draw(ITEMS["figure bc"], frames([run("er", 1)]))
    given = frames([run("er", tasks, memory=size) for tasks in (3, 10) for size in (0, 5)])
    given["runs"].loc[given["runs"]["tasks"] == 10, "status"] = "failed"
    figure = draw(ITEMS["figure memory"], given)
    assert "3 tasks" in figure.get_suptitle()
    assert len(figure.axes[0].get_lines()[0].get_xydata()) == 2


def test_a_folder_outside_git_has_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) == "unknown, not a git checkout"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        options = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *options, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "-m", "one")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "studies" / "results").mkdir(parents=True)
    (tmp_path / "studies" / "results" / "table.md").write_text("kept results are no change of the code")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{git('rev-parse', 'HEAD')}, with uncommitted changes"
    (tmp_path / "below").mkdir()
    assert commit(tmp_path / "below") == "unknown, not a git checkout", "of something around it"


# The command


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "give one table or one figure: --table 2, 3"),
        (["--table", "9"], "--table 9: not one of these"),
        (["--figure", "memroy"], "--figure memroy: not one of these (did you mean 'memory'?)"),
        (["--table", "2", "--figure", "bc"], "give one table or one figure"),
        (["--table", "2", "--methods", "lcuir"], "no method 'lcuir' (did you mean 'lucir'?)"),
        (["--table", "2", "--sizes", "5"], "--sizes: table 2 has one size of memory"),
        (["--table", "3", "--counts", "3", "--tasks", "5"], "give --counts or --tasks, not both"),
        (["--table", "2", "--out", "table.txt"], "a Markdown file ends in .md"),
    ],
)
def test_bad_words_end_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str], fault: str) -> None:
    assert exit_code("paper", lambda: paper.main(words)) == 2
    err = capsys.readouterr().err
    assert fault in err
    assert err.count("\n") == 1


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What a command would put into the specification."""

    def changes_of(*words: str) -> dict[str, Any]:
        parts: list[Any] = []
        monkeypatch.setattr(paper, "run_command", lambda *given: parts.extend(given) or 0)
        assert paper.main(list(words)) == 0
        content: dict[str, Any] = parts[2]
        return content

    return changes_of


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_brings_its_preset_methods_and_tasks(seen: Callable[..., dict[str, Any]], name: str) -> None:
    kind, word = name.split()
    item, content = ITEMS[name], seen(f"--{kind}", word)
    assert content["preset"] == item.presets[0]
    assert content["grid"]["method.name"] == list(item.methods)
    assert content["grid"]["scenario.n_tasks"] == list(item.tasks)
    assert content["grid"].get("memory.per_class", []) == list(item.sizes)


def test_options_replace_what_an_item_brings(seen: Callable[..., dict[str, Any]]) -> None:
    content = seen("--figure", "memory", "--preset", "icons", "--methods", "er", "--counts", "3", "--sizes", "0", "5")
    assert "preset" not in content, "the option's is taken"
    assert content["grid"] == {"method.name": ["er"], "scenario.n_tasks": [3], "memory.per_class": [0, 5]}


def test_numbers_are_held_against_the_preset_of_the_paper() -> None:
    figure = ITEMS["figure bc"]
    assert paper.reference_preset(figure, "tiny_imagenet200", ["er"]) == "tiny_imagenet200"
    assert paper.reference_preset(figure, "icons", ["er"]) == "cifar100"
    assert paper.reference_preset(figure, None, ["er"]) == "cifar100"


def test_the_file_needs_no_figure() -> None:
    given = frames([run("cl2r", 2)])
    report = Report.of_frames("table 2", ITEMS["table 2"], given, "icons")
    assert "![" not in document(report, given, "x")
