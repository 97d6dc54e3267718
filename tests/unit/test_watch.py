"""`cl2r report --watch`, with a clock that only these tests turn."""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from made_ledger import Page, enter, made_folder, record_pages
from made_study import made_study, write_made

from analysis import Study
from cl2r.cli import main
from cl2r.errors import InputError
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import write_frames
from cl2r.study.report import find_source
from cl2r.study.watch import Watch

Action = Callable[[], object]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """The pages that were written."""
    return record_pages(monkeypatch)


@pytest.fixture
def made() -> Study:
    return made_study(("er", "cl2r"), (0,), name="young")


@pytest.fixture
def folder(tmp_path: Path, made: Study) -> StudyFolder:
    return made_folder(tmp_path, made)


class Follower:
    """Watches a study; in every pause the next of `actions` happens. Remembers pauses and what was said."""

    def __init__(self, place: Path, *actions: Action, interval: float = 10) -> None:
        self.actions, self.pauses, self.said, self.now = list(actions), list[float](), list[str](), 0.0
        source = find_source(str(place), place)
        self.watch = Watch(source, place / "report.html", interval, self.said.append, self.pause, lambda: self.now)

    def pause(self, seconds: float) -> None:
        assert self.actions, f"nothing more will happen: {self.said}"
        self.pauses.append(seconds)
        self.actions.pop(0)()


def work(folder: StudyFolder, label: str, epoch: int) -> None:
    """A training process leaves word."""
    row = {"label": label, "run": label, "title": f"{label} seed 0", "trunk": False, "pid": 1, "host": "here"}
    row |= {"time": time.time(), "task": 1, "tasks": 3, "epoch": epoch, "epochs": 9, "images_per_second": 1500.0}
    folder.live.mkdir(exist_ok=True)
    (folder.live / f"{label}.json").write_text(json.dumps(row | {"loss": 1.25, "seconds_left": 72.0}))
    os.utime(folder.live / f"{label}.json", ns=(time.time_ns(), time.time_ns() + epoch))


def stop() -> None:
    raise KeyboardInterrupt


def test_a_study_from_its_first_run_to_its_end(folder: StudyFolder, made: Study, pages: list[Page]) -> None:
    first, second = made.runs["run"]
    with contextlib.ExitStack() as driver:
        driver.enter_context(folder.driver_lock())

        def close() -> None:
            enter(folder, made, 1)
            folder.ledger.write("closed", "driver", {})
            driver.close()

        follower = Follower(
            folder.path,
            lambda: work(folder, "er", 1),
            lambda: enter(folder, made, 0),
            lambda: None,
            lambda: write_frames(folder),
            lambda: work(folder, "er", 2),
            close,
        )
        assert follower.watch.run() == 0
    head = "1 of 2 runs finished, running"
    row = "er seed 0   task 1/3 · epoch {}/9 · 1,500 images/s · loss 1.250 · 1:12 left"
    assert pages == [
        Page("young", [first], [head, row.format(1)], 10),
        Page("young", [first], [head, row.format(1)], 10),
        Page("young", [first], [head, row.format(2)], 10),
        Page("young", [first, second], [], None),
    ]
    path = folder.path / "report.html"
    assert follower.said == [
        "watching young; Ctrl-C ends",
        "no run of young has ended yet: waiting for the first",
        f"report: {path} (built again as runs go on)",
        "young has ended",
        f"report: {path}",
    ]
    assert follower.pauses == [10] * 6
    assert json.loads(path.read_text())["refresh"] is None


def test_building_takes_its_share_of_the_time_and_no_more(
    folder: StudyFolder, made: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(folder, made, 0)
    with folder.driver_lock():
        follower = Follower(folder.path, lambda: None, stop, interval=2)

        def write(*_: object, **__: object) -> None:
            follower.now += 3

        monkeypatch.setattr("analysis.report.write_report", write)
        assert follower.watch.run() == 130
    assert follower.pauses == [12, 2]


@pytest.mark.parametrize("late", [False, True])
def test_ctrl_c_leaves_a_page_that_stands_still(
    folder: StudyFolder, made: Study, pages: list[Page], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pause, or while a page is being built."""
    enter(folder, made, 0)
    with folder.driver_lock():
        follower = Follower(folder.path, lambda: enter(folder, made, 1), stop)
        if late:
            build = Watch._build

            def interrupted(watch: Watch, live: list[str], refresh: float) -> None:
                build(watch, live, refresh)
                if len(pages) == 2:
                    raise KeyboardInterrupt

            monkeypatch.setattr(Watch, "_build", interrupted)
        assert follower.watch.run() == 130
    assert [(len(page.runs), page.refresh) for page in pages] == [(1, 10), (2, 10), (2, None)]
    assert follower.said[-2:] == ["stopped watching young", f"report: {folder.path}/report.html"]


def test_ctrl_c_before_anything_is_there(folder: StudyFolder, pages: list[Page]) -> None:
    with folder.driver_lock():
        follower = Follower(folder.path, stop)
        assert follower.watch.run() == 130
    assert follower.said[-1] == "no run of young has ended: there is no report"
    assert pages == []


def test_a_study_that_nobody_runs(folder: StudyFolder, made: Study, pages: list[Page]) -> None:
    enter(folder, made, 0)
    work(folder, "left behind", 1)
    follower = Follower(folder.path)
    assert follower.watch.run() == 0
    state = "1 of 2 runs finished, interrupted: the same command goes on"
    assert follower.said[1:] == [f"young is not being run: {state}", f"report: {folder.path}/report.html"]
    assert pages == [Page("young", [made.runs["run"].iloc[0]], [], None)]


def test_a_study_that_nobody_runs_and_that_has_nothing(folder: StudyFolder, pages: list[Page]) -> None:
    follower = Follower(folder.path)
    assert follower.watch.run() == 1
    assert follower.said[-1] == "no run of young has ended: there is no report"


def test_a_study_that_has_ended(folder: StudyFolder, made: Study, pages: list[Page]) -> None:
    enter(folder, made, 0)
    folder.ledger.write("closed", "driver", {})
    follower = Follower(folder.path)
    assert follower.watch.run() == 0
    assert follower.said[1:] == ["young has ended", f"report: {folder.path}/report.html"]
    assert [page.refresh for page in pages] == [None]


def test_a_driver_on_another_machine(folder: StudyFolder, made: Study, pages: list[Page]) -> None:
    """Its lock is not felt here; as long as its trials leave word it is at work, and then for a minute."""
    enter(folder, made, 0)
    work(folder, "er", 1)
    (folder.path / "driver.lock").write_text("process 7 on another.machine\n")

    def fall_silent() -> None:
        long_ago = time.time() - 3600
        os.utime(folder.live / "er.json", (long_ago, long_ago))
        for event in folder.ledger.events():
            event.path.rename(event.path.with_name(f"{event.time_ns - 3600 * 10**9:020d}{event.path.name[20:]}"))

    follower = Follower(folder.path, fall_silent)
    assert follower.watch.run() == 0
    assert [page.refresh for page in pages] == [10, None]
    assert follower.said[2].startswith("young is not being run: ")


def test_frames_elsewhere_are_looked_at_until_about_tells_the_end(
    tmp_path: Path, made: Study, pages: list[Page]
) -> None:
    """A folder without a ledger stands for object storage: there are frames and about.json, nothing else."""
    running = dataclasses.replace(made, about={**made.about, "ended": None})
    place = write_made(running, tmp_path / "copy")
    made.runs.iloc[:1].to_parquet(place / "runs.parquet", index=False)

    def end() -> None:
        (place / "about.json").write_text(json.dumps(made.about))

    follower = Follower(place, lambda: made.runs.to_parquet(place / "runs.parquet"), lambda: None, end)
    assert follower.watch.run() == 0
    assert [(len(page.runs), page.live, page.refresh) for page in pages] == [(1, [], 10), (2, [], 10), (2, [], None)]
    assert follower.said[-2] == "copy has ended"


def test_a_disk_that_is_away_for_a_moment(
    folder: StudyFolder, made: Study, pages: list[Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(folder, made, 0)
    write_frames(folder)
    frames, away = folder.path / "matrix.parquet", folder.path / "away"
    frames.rename(away)
    with folder.driver_lock():
        follower = Follower(folder.path, lambda: None, lambda: away.rename(frames), stop)
        assert follower.watch.run() == 130
    assert follower.said[1].startswith("cannot read young at the moment: no matrix.parquet at ")
    assert [page.refresh for page in pages] == [10, None]
    assert len(follower.said) == 5


def test_half_copied_files_are_waited_for(tmp_path: Path, made: Study, pages: list[Page]) -> None:
    """A frame, then about.json, which tells whether the study is running."""
    place = write_made(dataclasses.replace(made, about={**made.about, "ended": None}), tmp_path / "copy")
    frame, about = place / "matrix.parquet", place / "about.json"
    whole = frame.read_bytes()
    frame.write_bytes(whole[:-20])

    def end() -> None:
        frame.write_bytes(whole)
        about.write_text(json.dumps(made.about))

    follower = Follower(place, lambda: frame.write_bytes(whole), lambda: about.write_text("{"), end)
    assert follower.watch.run() == 0
    assert follower.said[1].startswith("cannot read copy at the moment: matrix.parquet at ")
    assert follower.said[3].startswith("cannot read copy at the moment: about.json at ")
    assert [page.refresh for page in pages] == [10, None]


@pytest.mark.parametrize("fault", [OSError("away"), InputError("damaged")])
def test_an_error_while_looking_for_the_driver(
    folder: StudyFolder, made: Study, pages: list[Page], fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(folder, made, 0)
    answers: list[bool | Exception] = [True, fault, True, False]

    def is_running(_: Watch) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Watch, "is_running", is_running)
    follower = Follower(folder.path, *[lambda: None] * 3)
    assert follower.watch.run() == 0
    assert follower.said[2] == f"cannot read young at the moment: {fault}"
    assert [page.refresh for page in pages] == [10, None]


def test_a_study_that_cannot_be_read_at_its_end(tmp_path: Path, made: Study, pages: list[Page]) -> None:
    """For a moment: its last state is shown. For longer: the state before, on a page that stands still."""
    for mended in (True, False):
        place = write_made(dataclasses.replace(made, about={**made.about, "ended": None}), tmp_path / f"copy {mended}")
        frame = place / "runs.parquet"
        made.runs.iloc[:1].to_parquet(frame, index=False)

        def end(place: Path = place, frame: Path = frame) -> None:
            (place / "about.json").write_text(json.dumps(made.about))
            frame.write_bytes(b"half")

        mend = [lambda frame=frame: made.runs.to_parquet(frame, index=False)] if mended else [lambda: None] * 2
        follower = Follower(place, end, *mend)
        assert follower.watch.run() == 0
        assert follower.actions == []
        assert [(len(page.runs), page.refresh) for page in pages[-2:]] == [(1, 10), (1 + mended, None)]
    assert len(pages) == 4


@pytest.mark.parametrize("first", [True, False])
def test_ctrl_c_during_the_last_page_waits(
    folder: StudyFolder, made: Study, pages: list[Page], first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one, and one after the study has ended."""
    enter(folder, made, 0)
    write = Watch._write

    def interrupted(watch: Watch, study: Study, live: list[str] | None = None, refresh: float | None = None) -> None:
        if refresh is None:
            signal.raise_signal(signal.SIGINT)
        write(watch, study, live, refresh)

    monkeypatch.setattr(Watch, "_write", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with contextlib.ExitStack() as driver:
        driver.enter_context(folder.driver_lock())
        follower = Follower(folder.path, stop if first else driver.close)
        assert follower.watch.run() == (130 if first else 0)
    assert [page.refresh for page in pages] == [10, None]
    assert signal.getsignal(signal.SIGINT) is before


def test_the_command(
    folder: StudyFolder,
    made: Study,
    pages: list[Page],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    enter(folder, made, 0)
    folder.ledger.write("closed", "driver", {})
    words = ["report", "young", "--storage", str(folder.storage), "--watch", "--interval", "1"]
    monkeypatch.setattr(sys, "argv", ["cl2r", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    report = f"report: {folder.path}/report.html"
    assert capsys.readouterr().out.splitlines() == ["watching young; Ctrl-C ends", "young has ended", report]
