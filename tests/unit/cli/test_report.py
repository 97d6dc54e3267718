"""`cl2r report` and `cl2r status`: which study, where the page goes, what is printed, and `--watch`."""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis import Study, load_study, plots, render, study_tables, study_text
from cl2r.cli import report
from cl2r.cli.report import load, watch_study
from cl2r.runtime.progress import EpochReport
from cl2r.storage.path import at
from cl2r.storage.seal import write_beside
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import write_frames
from cl2r.study.live import LiveFile
from tests.support.command_line import Command, refused
from tests.support.made_ledger import Page, enter, made_folder
from tests.support.made_study import made_study, write_made
from tests.unit.analysis.test_recommendation import made as made_race

FRAMES = ("runs", "tasks", "matrix", "curves")
Action = Callable[[], object]


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A storage with two studies."""
    for name in ("ablation", "sizes"):
        write_made(made_study(name=name), tmp_path / "results" / "studies" / name)
    return tmp_path / "results"


@pytest.fixture
def made() -> Study:
    """A study of four runs."""
    return made_study(name="young")


@pytest.fixture
def folder(tmp_path: Path, made: Study) -> StudyFolder:
    """The folder of `made`, whose driver has just begun."""
    return made_folder(at(tmp_path), made)


def test_the_state_of_studies(cl2r: Command, tmp_path: Path) -> None:
    folder = StudyFolder(at(tmp_path / "cwd" / "results"), "sizes")
    folder.claim_name({"seeds": [0]})
    folder.ledger.write("opened", "driver", {"runs": 2})
    folder.ledger.write("failed", "run", {"reason": "its process died"})
    folder.ledger.write("closed", "driver", {})
    code, out, err = cl2r("status")
    assert (code, err) == (0, "")
    assert out.startswith("sizes  0 of 2 runs finished, 1 failed")
    assert "its process died" in cl2r("status", "sizes", "--storage", tmp_path / "cwd" / "results")[1]


def test_a_study_by_name_by_folder_and_by_address(
    cl2r: Command, storage: Path, pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = storage / "studies" / "sizes"
    for words in (["sizes", "--storage", storage], [folder], [f"{folder}/"], [folder.as_uri()]):
        (folder / "report.html").unlink(missing_ok=True)
        assert cl2r("report", *words) == (0, f"report: {folder}/report.html\n", "")
        assert (folder / "report.html").exists()
    monkeypatch.setenv("CL2R_STORAGE", str(storage))
    assert cl2r("report", "sizes")[1] == f"report: {folder}/report.html\n"
    assert [(page.name, page.live, page.refresh) for page in pages] == [("sizes", [], None)] * 5


def test_without_a_name_there_must_be_one_study(cl2r: Command, tmp_path: Path, pages: list[Page]) -> None:
    results = tmp_path / "cwd" / "results"
    assert "results/studies" in refused(cl2r, tmp_path, "report")
    write_made(made_study(name="sizes"), results / "studies" / "sizes")
    assert cl2r("report") == (0, "report: results/studies/sizes/report.html\n", "")
    write_made(made_study(name="ablation"), results / "studies" / "ablation")
    assert "ablation, sizes" in refused(cl2r, tmp_path, "report")
    assert [page.name for page in pages] == ["sizes"]


def test_a_name_wins_over_a_folder(cl2r: Command, storage: Path, tmp_path: Path, pages: list[Page]) -> None:
    write_made(made_study(name="sizes"), tmp_path / "cwd" / "sizes")
    assert cl2r("report", "sizes", "--storage", storage)[1] == f"report: {storage}/studies/sizes/report.html\n"
    assert cl2r("report", "./sizes", "--storage", storage)[1] == "report: sizes/report.html\n"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("size", "'sizes'"),
        ("nothing/here", "nothing/here"),
        ("sizes --interval 0.5", "0.5"),
        ("sizes --tables word", "word"),
        ("sizes --deviations", "--deviations"),
        ("sizes --tables csv --watch", "--tables csv"),
        ("sizes --tables csv --out x.html", "--tables csv"),
        ("sizes --watch --figures figures", "--figures"),
        ("sizes --out .", "--out"),
        ("sizes --out taken/new/x.html", "cwd/taken"),
        ("gopher://host/study", "gopher://host"),
    ],
)
def test_bad_input(cl2r: Command, storage: Path, tmp_path: Path, words: str, fault: str, pages: list[Page]) -> None:
    Path("taken").touch()
    assert fault in refused(cl2r, tmp_path, "report", *words.split(), "--storage", storage)
    assert pages == []


def test_a_folder_that_is_no_study(cl2r: Command, tmp_path: Path) -> None:
    code, _, err = cl2r("report", tmp_path)
    assert code == 1
    assert str(tmp_path) in err


@pytest.mark.parametrize(("words", "name"), [(["--out", "mine.html"], "mine.html"), ([], "sizes-report.html")])
def test_the_page_goes_where_it_is_asked_for_or_to_the_working_directory_if_the_folder_cannot_be_written(
    cl2r: Command, storage: Path, pages: list[Page], words: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert cl2r("report", "sizes", "--storage", storage, *words) == (0, f"report: {name}\n", "")
    assert Path(name).exists()
    assert not (storage / "studies" / "sizes" / "report.html").exists()


def test_runs_that_the_frames_do_not_have_yet(
    cl2r: Command, folder: StudyFolder, made: Study, tmp_path: Path, pages: list[Page]
) -> None:
    assert "young" in refused(cl2r, tmp_path, "report", folder.path)
    enter(folder, made, 0)
    assert cl2r("report", folder.path)[0] == 0
    write_frames(folder)
    before = (folder.path / "runs.parquet").read_bytes()
    enter(folder, made, 2)
    enter(folder, made, 1, failed="loss")
    assert cl2r("report", folder.path)[0] == 0
    assert [page.runs for page in pages] == [made.runs["run"].tolist()[:count] for count in (1, 3)]
    assert (folder.path / "runs.parquet").read_bytes() == before, "a report changes no frames"


def test_frames_from_the_ledger_equal_those_that_the_driver_writes(folder: StudyFolder, made: Study) -> None:
    for number in range(3):
        enter(folder, made, number)
    joined = load(folder.path)
    write_frames(folder)
    written = load_study(str(folder.path))
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(joined, name), getattr(written, name))
    assert (joined.name, joined.specification, joined.about) == ("young", written.specification, written.about)


def test_a_run_that_failed_and_then_finished(folder: StudyFolder, made: Study) -> None:
    enter(folder, made, 0, failed="its process died")
    write_frames(folder)
    enter(folder, made, 0)
    assert load(folder.path).runs["status"].tolist() == ["finished"]


def test_frames_that_were_copied_beside_an_older_ledger_count_if_they_are_its_own(
    folder: StudyFolder, made: Study, caplog: pytest.LogCaptureFixture
) -> None:
    enter(folder, made, 1)
    for name in FRAMES:
        getattr(made, name).to_parquet(folder.path / f"{name}.parquet", index=False)
    assert len(load(folder.path).runs) == 1, "the ledger is the truth about a study"
    assert "runs.parquet" in caplog.text
    for name in FRAMES:
        content = (folder.path / f"{name}.parquet").read_bytes()
        write_beside(folder.path / f"{name}.parquet", content, folder.owner(f"{name}.parquet"))
    assert len(load(folder.path).runs) == 4


@pytest.mark.parametrize(("form", "mark"), [("markdown", "|---|"), ("latex", r"\begin{tabular}")])
def test_tables_are_printed(cl2r: Command, storage: Path, form: str, mark: str) -> None:
    code, out, err = cl2r("report", "sizes", "--storage", storage, "--tables", form)
    assert (code, err) == (0, "")
    assert mark in out
    assert not (storage / "studies" / "sizes" / "report.html").exists()


def test_terminal_and_markdown_begin_with_the_title_of_the_study(cl2r: Command, storage: Path) -> None:
    study = load(storage / "studies" / "sizes")
    words = ["report", "sizes", "--storage", storage, "--tables"]
    for form in ("terminal", "markdown"):
        assert cl2r(*words, form)[1] == study_text(study, form) + "\n"  # type: ignore[arg-type]
    for form in ("csv", "html", "latex"):
        assert cl2r(*words, form)[1] == render(study_tables(study), form) + "\n", "tables only"  # type: ignore[arg-type]


def test_a_race_without_a_final_has_no_table(cl2r: Command, tmp_path: Path) -> None:
    race = made_race({})
    for name in ("tasks", "matrix", "curves"):
        race = dataclasses.replace(race, **{name: getattr(made_study(), name).iloc[:0]})
    folder = tmp_path / "race"
    write_made(race, folder)
    line = refused(cl2r, folder, "report", folder, "--tables", "latex")
    assert "no candidate of race has finished the final round: there is no table to show" in line
    assert "Cannot tell yet: no final round has finished." in cl2r("report", folder, "--tables", "terminal")[1]


def test_deviations_stand_in_for_intervals_on_request(cl2r: Command, storage: Path) -> None:
    words = ["report", "sizes", "--storage", storage, "--tables", "latex"]
    assert "standard deviation" not in cl2r(*words)[1]
    code, out, err = cl2r(*words, "--deviations")
    assert (code, err) == (0, "")
    assert "standard deviation over 2 seeds" in out
    assert "Brackets" not in out


def test_figures_are_drawn_where_they_are_asked_for(
    cl2r: Command, storage: Path, pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "PLOTS", {name: plots.PLOTS[name] for name in ("bc_curves", "lambda")})
    words = ["report", "sizes", "--storage", storage, "--figures", "pictures"]
    code, out, err = cl2r(*words)
    assert code == 0
    assert "figures: pictures (1)" in out
    assert err.startswith("no plot lambda: "), "the reason for a missing plot is shown"
    code, out, err = cl2r(*words, "--tables", "csv")
    assert code == 0
    assert "figures: pictures (1)\n" in err
    assert "figures" not in out, "tables can be piped"
    assert len(pages) == 1


def test_a_study_without_runs_has_no_table(cl2r: Command, folder: StudyFolder, tmp_path: Path) -> None:
    write_frames(folder)
    assert "young" in refused(cl2r, tmp_path, "report", folder.path, "--tables", "csv")


class Clock:
    """Stands in for the module `time`; in every pause the next of `actions` happens."""

    def __init__(self, actions: list[Action]) -> None:
        self.actions, self.pauses, self.now = actions, list[float](), 0.0

    def sleep(self, seconds: float) -> None:
        assert self.actions, "nothing more will happen"
        self.pauses.append(seconds)
        self.actions.pop(0)()

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Clock]]:
    """Watch the study in a folder while `actions` happen; return the exit code and the clock."""

    def watched(path: object, *actions: Action, interval: float = 10) -> tuple[int, Clock]:
        clock = Clock(list(actions))
        monkeypatch.setattr(report, "time", clock)
        return watch_study(at(str(path)), Path(str(path)) / "report.html", interval), clock

    return watched


Watch = Callable[..., tuple[int, Clock]]


def report_progress(folder: StudyFolder, epoch: int) -> None:
    """Do what a training process does after an epoch."""
    live = LiveFile(folder.live / "er.json", "er seed 0", tasks=3)
    live.begin([1, 2, 3])
    live.epoch(EpochReport(1, "train", epoch, 9, 0.1, 1500, 1.0, {"ce": 1.25}))
    os.utime(live.path, ns=(time.time_ns(), time.time_ns() + epoch))


def wait() -> None:
    """Let a pause pass."""


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def test_a_study_from_its_first_run_to_its_end(
    folder: StudyFolder, made: Study, pages: list[Page], watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = made.runs["run"][:2]
    with contextlib.ExitStack() as driver:
        driver.enter_context(folder.driver_lock())

        def close() -> None:
            enter(folder, made, 1)
            folder.ledger.write("closed", "driver", {})
            driver.close()

        code, clock = watch(
            folder.path,
            lambda: report_progress(folder, 1),
            lambda: enter(folder, made, 0),
            wait,
            lambda: write_frames(folder),
            lambda: report_progress(folder, 2),
            close,
        )
    assert code == 0
    assert [page.runs for page in pages] == [[first], [first], [first], [first, second]]
    assert [page.refresh for page in pages] == [10, 10, 10, None]
    shown = [[f"epoch {n}/9" in line for line in page.live[1:]] for n, page in zip((1, 1, 2), pages, strict=False)]
    assert shown == [[True]] * 3
    assert pages[-1].live == [], "the last page does not change any more"
    assert clock.pauses == [10] * 6
    assert f"report: {folder.path / 'report.html'}" in capsys.readouterr().out


def test_pauses_grow_with_the_time_that_building_takes(
    folder: StudyFolder, made: Study, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(folder, made, 0)

    def write(*_: object, **__: object) -> None:
        assert isinstance(report.time, Clock)
        report.time.now += 3

    monkeypatch.setattr("analysis.report.write_report", write)
    with folder.driver_lock():
        code, clock = watch(folder.path, wait, press_ctrl_c, interval=2)
    assert code == 130
    assert clock.pauses == [12, 2]


def test_ctrl_c_leaves_a_page_that_stands_still(
    folder: StudyFolder, made: Study, pages: list[Page], watch: Watch
) -> None:
    enter(folder, made, 0)
    with folder.driver_lock():
        assert watch(folder.path, lambda: enter(folder, made, 1), press_ctrl_c)[0] == 130
    assert [(len(page.runs), page.refresh) for page in pages] == [(1, 10), (2, 10), (2, None)]


@pytest.mark.parametrize("running", [True, False])
def test_a_study_without_runs_has_no_page(folder: StudyFolder, pages: list[Page], watch: Watch, running: bool) -> None:
    with folder.driver_lock() if running else contextlib.nullcontext():
        assert watch(folder.path, press_ctrl_c)[0] == (130 if running else 1)
    assert pages == []


@pytest.mark.parametrize("closed", [True, False])
def test_a_study_that_has_ended_or_was_interrupted_gets_one_page(
    cl2r: Command, folder: StudyFolder, made: Study, pages: list[Page], closed: bool
) -> None:
    enter(folder, made, 0)
    report_progress(folder, 1)
    if closed:
        folder.ledger.write("closed", "driver", {})
    code, out, err = cl2r("report", "young", "--storage", folder.storage, "--watch", "--interval", 1)
    assert (code, err) == (0, "")
    assert out.endswith(f"report: {folder.path}/report.html\n")
    assert pages == [Page("young", [made.runs["run"].iloc[0]], [], None)]


@pytest.fixture
def copy(tmp_path: Path, made: Study) -> Path:
    """Frames and about.json of a running study with one finished run, without a ledger."""
    place = write_made(dataclasses.replace(made, about={**made.about, "ended": None}), tmp_path / "copy")
    made.runs.iloc[:1].to_parquet(place / "runs.parquet", index=False)
    return place


def test_copied_frames_are_watched_until_about_says_that_the_study_has_ended(
    copy: Path, made: Study, pages: list[Page], watch: Watch
) -> None:
    """The watch continues while a file cannot be read, e.g. because it is only half copied."""
    frame, about = copy / "matrix.parquet", copy / "about.json"
    whole = frame.read_bytes()
    frame.write_bytes(whole[:-20])

    def end() -> None:
        made.runs.to_parquet(copy / "runs.parquet", index=False)
        about.write_text(json.dumps(made.about))

    assert watch(copy, lambda: frame.write_bytes(whole), lambda: about.write_text("{"), end)[0] == 0
    expected = [(1, [], 10), (1, [], 10), (4, [], None)]
    assert [(len(page.runs), page.live, page.refresh) for page in pages] == expected


@pytest.mark.parametrize("repaired", [True, False])
def test_a_study_that_cannot_be_read_at_its_end(
    copy: Path, made: Study, pages: list[Page], watch: Watch, repaired: bool
) -> None:
    """Only for a moment: its last state is shown. For longer: the state before, on a page that stands still."""

    def end() -> None:
        (copy / "about.json").write_text(json.dumps(made.about))
        (copy / "runs.parquet").write_bytes(b"half")

    def repair() -> None:
        made.runs.to_parquet(copy / "runs.parquet", index=False)

    code, clock = watch(copy, end, *([repair] if repaired else [wait] * 3))
    assert (code, clock.actions) == (0, [])
    assert [(len(page.runs), page.refresh) for page in pages] == [(1, 10), (4 if repaired else 1, None)]
