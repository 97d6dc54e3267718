"""`cl2r report`: which study, where the page goes, what is printed, and what a study leaves at its end."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from command_line import Command, Outputs
from made_ledger import Page, enter, made_folder, record_pages
from made_study import made_study, write_made

from analysis import Study, load_study
from cl2r.rayrun.driver import Outcome
from cl2r.rayrun.resources import Resources
from cl2r.stopping import Termination
from cl2r.study import command
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import write_frames
from cl2r.study.report import find_source


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """The pages that were written."""
    return record_pages(monkeypatch)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that figures were drawn into."""
    folders: list[Path] = []

    def draw(study: Study, folder: Path) -> list[Path]:
        folders.append(folder)
        return [folder / f"{name}.{kind}" for name in ("bc", "cost") for kind in ("png", "svg", "pdf")]

    monkeypatch.setattr("analysis.plots.write_figures", draw)
    return folders


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Two studies."""
    for name in ("ablation", "sizes"):
        write_made(made_study(name=name), tmp_path / "results" / "studies" / name)
    return tmp_path / "results"


def refused(outputs: Outputs, code: int = 2) -> str:
    """The one line of a command that ended badly."""
    assert outputs[:2] == (code, "")
    assert outputs[2].count("\n") == 1
    assert outputs[2].startswith("cl2r: ")
    return outputs[2]


# ---------------------------------------------------------------- which study


def test_help(cl2r: Command) -> None:
    assert "  report " in cl2r()[1]
    code, out, _ = cl2r("report", "--help")
    assert code == 0
    assert all(option in out for option in ("--storage", "--out", "--watch", "--interval", "--tables", "--figures"))


def test_by_name_by_folder_and_by_address(cl2r: Command, storage: Path, pages: list[Page]) -> None:
    folder = storage / "studies" / "sizes"
    for words in (["sizes", "--storage", storage], [folder], [f"{folder}/"], [folder.as_uri()]):
        (folder / "report.html").unlink(missing_ok=True)
        assert cl2r("report", *words) == (0, f"report: {folder}/report.html\n", "")
        assert (folder / "report.html").exists()
    assert [page.name for page in pages] == ["sizes"] * 4
    assert {(page.refresh, *page.live) for page in pages} == {(None,)}


def test_the_storage_can_come_from_the_environment(
    cl2r: Command, storage: Path, pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CL2R_STORAGE", str(storage))
    assert cl2r("report", "ablation")[1] == f"report: {storage}/studies/ablation/report.html\n"


def test_without_a_name_there_must_be_one_study(cl2r: Command, tmp_path: Path, pages: list[Page]) -> None:
    assert "no studies below results/studies" in refused(cl2r("report"))
    for name in ("sizes", "ablation"):
        write_made(made_study(name=name), tmp_path / "cwd" / "results" / "studies" / name)
        outputs = cl2r("report")
    assert "which study below results/studies? ablation, sizes\n" in refused(outputs)
    assert [page.name for page in pages] == ["sizes"]
    assert (tmp_path / "cwd" / "results" / "studies" / "sizes" / "report.html").exists()


def test_a_name_goes_before_a_folder(cl2r: Command, storage: Path, tmp_path: Path, pages: list[Page]) -> None:
    write_made(made_study(name="sizes"), tmp_path / "cwd" / "sizes")
    assert cl2r("report", "sizes", "--storage", storage)[1] == f"report: {storage}/studies/sizes/report.html\n"
    assert cl2r("report", "./sizes", "--storage", storage)[1] == "report: sizes/report.html\n"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["size"], "no study 'size' below {}/studies (did you mean 'sizes'?), and no such folder"),
        (["nothing/here"], "no study 'nothing/here'"),
        (["sizes", "--interval", "0.5"], "0.5"),
        (["sizes", "--tables", "word"], "'word' is not one of"),
        (["sizes", "--tables", "csv", "--watch"], "--tables csv prints"),
        (["sizes", "--tables", "csv", "--out", "x.html"], "--tables csv prints"),
        (["sizes", "--watch", "--figures", "figures"], "without --watch"),
        (["sizes", "--out", "."], "--out . is a folder; name a file"),
        (
            ["sizes", "--out", "taken/new/x.html"],
            "--out taken/new/x.html: {1}/cwd/taken is a file; name one in a folder",
        ),
        (["gopher://host/study"], "cannot use the address gopher://host"),
    ],
)
def test_what_is_refused(cl2r: Command, storage: Path, words: list[str], fault: str, pages: list[Page]) -> None:
    Path("taken").touch()
    assert fault.format(storage, storage.parent) in refused(cl2r("report", *words, "--storage", storage))
    assert pages == []


def test_a_folder_that_is_no_study(cl2r: Command, tmp_path: Path) -> None:
    assert f"no study at {tmp_path}" in refused(cl2r("report", tmp_path), code=1)


# ---------------------------------------------------------------- where it goes


def test_out(cl2r: Command, storage: Path, tmp_path: Path, pages: list[Page]) -> None:
    assert cl2r("report", "sizes", "--storage", storage, "--out", "mine.html") == (0, "report: mine.html\n", "")
    assert (tmp_path / "cwd" / "mine.html").exists()
    assert not (storage / "studies" / "sizes" / "report.html").exists()


def test_a_folder_that_cannot_be_written_has_its_page_here(
    cl2r: Command, storage: Path, tmp_path: Path, pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert cl2r("report", "sizes", "--storage", storage) == (0, "report: sizes-report.html\n", "")
    assert (tmp_path / "cwd" / "sizes-report.html").exists()


def test_the_page_of_an_address_goes_here(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = find_source("sizes", storage).place
    monkeypatch.setattr("cl2r.study.report.find_study", lambda _: place)
    source = find_source("s3://lab/studies/sizes", storage)
    assert (source.report_path(), source.disk, source.folder) == (Path("sizes-report.html"), None, None)


# ---------------------------------------------------------------- what it has


def test_runs_that_the_frames_do_not_have_yet(cl2r: Command, tmp_path: Path, pages: list[Page]) -> None:
    made = made_study(name="young")
    folder = made_folder(tmp_path, made)
    assert "no run of young has ended yet; `cl2r status young`" in refused(cl2r("report", folder.path))
    enter(folder, made, 0)
    assert cl2r("report", folder.path)[0] == 0
    write_frames(folder)
    stamp = (folder.path / "runs.parquet").stat().st_mtime_ns
    enter(folder, made, 2)
    enter(folder, made, 1, failed="loss")
    assert cl2r("report", folder.path)[0] == 0
    assert [page.runs for page in pages] == [made.runs["run"].tolist()[:count] for count in (1, 3)]
    assert (folder.path / "runs.parquet").stat().st_mtime_ns == stamp, "looking changes no frames"


def test_frames_from_the_ledger_are_those_that_the_driver_writes(tmp_path: Path) -> None:
    made = made_study(name="young")
    folder = made_folder(tmp_path, made)
    for number in range(3):
        enter(folder, made, number)
    joined = find_source(str(folder.path), tmp_path).load()
    write_frames(folder)
    written = load_study(folder.path)
    for name in ("runs", "tasks", "matrix", "curves"):
        pd.testing.assert_frame_equal(getattr(joined, name), getattr(written, name))
    assert (joined.name, joined.specification, joined.about) == ("young", written.specification, written.about)


def test_a_run_that_failed_and_then_finished(tmp_path: Path) -> None:
    made = made_study(name="young")
    folder = made_folder(tmp_path, made)
    enter(folder, made, 0, failed="its process died")
    write_frames(folder)
    enter(folder, made, 0)
    assert find_source(str(folder.path), tmp_path).load().runs["status"].tolist() == ["finished"]


def test_frames_without_a_ledger_or_beside_an_older_one(tmp_path: Path) -> None:
    """Copied by hand: what is there counts."""
    made = made_study(name="copied")
    folder = made_folder(tmp_path, made)
    enter(folder, made, 1)
    for name in ("runs", "tasks", "matrix", "curves"):
        getattr(made, name).to_parquet(folder.path / f"{name}.parquet", index=False)
    assert len(find_source(str(folder.path), tmp_path).load().runs) == 4


# ---------------------------------------------------------------- the real ones


SCRIPT = """
import contextlib, sys
import analysis, cl2r.study.watch
print("at first:", *({"torch", "ray", "matplotlib", "plotly", "optuna"} & set(sys.modules)))
from cl2r.cli import main
for words in ([], ["--tables", "csv"]):
    sys.argv = ["cl2r", "report", "made", *words]
    with contextlib.suppress(SystemExit):
        main()
print("at last:", *({"torch", "ray"} & set(sys.modules)))
"""


def test_page_and_tables_need_neither_torch_nor_ray(tmp_path: Path) -> None:
    folder = write_made(made_study(name="made"), tmp_path / "results" / "studies" / "made")
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    first, page, *tables, last = done.stdout.splitlines()
    assert (first, page, last) == ("at first:", "report: results/studies/made/report.html", "at last:")
    assert "</html>" in (folder / "report.html").read_text()
    assert any("BC" in line for line in tables)


@pytest.mark.parametrize(("form", "mark"), [("markdown", "|---|"), ("latex", r"\begin{tabular}")])
def test_tables_are_printed(cl2r: Command, storage: Path, form: str, mark: str) -> None:
    code, out, err = cl2r("report", "sizes", "--storage", storage, "--tables", form)
    assert (code, err) == (0, "")
    assert mark in out
    assert not (storage / "studies" / "sizes" / "report.html").exists()


def test_figures_are_drawn_where_they_are_asked_for(
    cl2r: Command, storage: Path, pages: list[Page], drawn: list[Path]
) -> None:
    words = ["report", "sizes", "--storage", storage, "--figures", "pictures"]
    assert cl2r(*words) == (0, f"figures: pictures (2)\nreport: {storage}/studies/sizes/report.html\n", "")
    code, out, err = cl2r(*words, "--tables", "csv")
    assert (code, err) == (0, "figures: pictures (2)\n")
    assert "figures" not in out, "tables can be piped"
    assert drawn == [Path("pictures")] * 2
    assert len(pages) == 1


def test_no_table_of_nothing(cl2r: Command, tmp_path: Path) -> None:
    folder = made_folder(tmp_path, made_study(name="stopped"))
    write_frames(folder)
    assert "no run of stopped has ended" in refused(cl2r("report", folder.path, "--tables", "csv"))


# ---------------------------------------------------------------- the end of a study


def end_study(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, **counts: int) -> int:
    """What a study's command does after the last run."""
    (folder.storage / "links").mkdir(exist_ok=True)
    outcome = Outcome(**{"finished": 0, "failed": 0, "pruned": 0, "missing": 0, **counts}, seconds=1.0)
    monkeypatch.setattr(command, "run_study", lambda *_: write_frames(folder) and outcome)
    study: Any = SimpleNamespace(is_sweep=False)
    monkeypatch.setattr(command, "_loader_note", lambda *_: None)
    jobs: Any = [SimpleNamespace(runs=[SimpleNamespace(config=SimpleNamespace(data=None))])]
    return command._run(study, jobs, folder, "owner", Resources(), False, lambda *_: "the table", Termination())


def test_a_study_ends_with_figures_and_a_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pages: list[Page],
    drawn: list[Path],
) -> None:
    made = made_study(name="done")
    folder = made_folder(tmp_path, made)
    enter(folder, made, 0)
    for _ in range(2):  # the second time nothing is left to run
        assert end_study(folder, monkeypatch, finished=1) == 0
        *_, frames, figures, page = capsys.readouterr().out.splitlines()
        assert frames == f"frames: {folder.path}/{{runs,tasks,matrix,curves}}.parquet"
        assert (figures, page) == (f"figures: {folder.path}/figures (2)", f"report: {folder.path}/report.html")
    assert pages == [Page("done", [made.runs["run"].iloc[0]], [], None)] * 2
    assert drawn == [folder.path / "figures"] * 2


def test_a_study_in_which_nothing_finished_has_a_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pages: list[Page],
    drawn: list[Path],
) -> None:
    made = made_study(name="bad")
    folder = made_folder(tmp_path, made)
    enter(folder, made, 0, failed="loss")
    assert end_study(folder, monkeypatch, failed=1) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder.path}/report.html"
    assert len(pages) == 1
    assert drawn == []


def test_a_page_that_fails_is_not_a_study_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], drawn: list[Path]
) -> None:
    def fail(*_: object) -> Path:
        raise ValueError("no such\ncolumn")

    made = made_study(name="odd")
    folder = made_folder(tmp_path, made)
    enter(folder, made, 0)
    monkeypatch.setattr("analysis.report.write_report", fail)
    assert end_study(folder, monkeypatch, finished=1) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("no report: ValueError: no such column; the frames are whole, see `cl2r report --help`")


def test_frames_that_cannot_be_read_are_not_a_study_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pages: list[Page]
) -> None:
    made = made_study(name="odd")
    folder = made_folder(tmp_path, made)
    enter(folder, made, 0)
    monkeypatch.setattr("cl2r.study.report.read_study", lambda _: 1 / 0)
    assert end_study(folder, monkeypatch, finished=1) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("no report: ZeroDivisionError: ")
    assert pages == []


def test_figures_that_fail_leave_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pages: list[Page]
) -> None:
    made = made_study(name="odd")
    folder = made_folder(tmp_path, made)
    enter(folder, made, 0)
    monkeypatch.setattr("analysis.plots.write_figures", lambda *_: 1 / 0)
    assert end_study(folder, monkeypatch, finished=1) == 0
    *_, figures, page = capsys.readouterr().out.splitlines()
    assert figures.startswith("no figures: ZeroDivisionError: ")
    assert page == f"report: {folder.path}/report.html"
