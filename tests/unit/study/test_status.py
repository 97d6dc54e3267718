"""The state of studies, as text."""

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from cl2r.errors import InputError
from cl2r.study.folder import StudyFolder
from cl2r.study.status import overview, status, status_json, studies
from tests.support.small_study import tree


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return make(tmp_path, "ablation-icons")


def make(storage: Path, name: str) -> StudyFolder:
    folder = StudyFolder(storage, name)
    folder.claim_name({"seeds": [0]})
    return folder


def open_it(folder: StudyFolder, runs: int = 6) -> None:
    folder.ledger.write("opened", "driver", {"runs": runs, "resources": {}})


def without_times(text: str) -> str:
    return re.sub(r"\d+:\d\d ago", "… ago", re.sub(r"interrupted: [\w ]*", "interrupted", text))


def test_no_studies(tmp_path: Path) -> None:
    for storage in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=f"no studies below {storage / 'studies'}"):
            overview(storage)


def test_an_unknown_study_names_the_nearest(folder: StudyFolder) -> None:
    with pytest.raises(InputError, match=r"no study 'ablation-icon' below .* \(did you mean 'ablation-icons'\?\)"):
        status(folder.storage, "ablation-icon")


def test_one_line_per_study(folder: StudyFolder, tmp_path: Path) -> None:
    assert overview(tmp_path).startswith("ablation-icons  0 of 0 runs finished, interrupted"), "it never began"
    open_it(folder)
    folder.ledger.write("closed", "driver", {})
    other = make(tmp_path, "b")
    open_it(other, 2)
    (tmp_path / "studies" / "no study").mkdir()
    assert [without_times(line) for line in overview(tmp_path).splitlines()] == [
        "ablation-icons  0 of 6 runs finished; last event … ago",
        "b               0 of 2 runs finished, interrupted; last event … ago",
    ]


def test_the_life_of_a_study(folder: StudyFolder) -> None:
    """Opened, driven, killed, opened again with more runs, closed."""

    def line() -> str:
        return (
            without_times(overview(folder.storage)).removeprefix("ablation-icons  ").removesuffix("; last event … ago")
        )

    open_it(folder, 4)
    with folder.driver_lock():
        assert line() == "0 of 4 runs finished, running"
        folder.ledger.write("finished", "one", {})
        folder.ledger.write("started", "two", {})
    assert line() == "1 of 4 runs finished, interrupted"
    folder.ledger.write("closed", "driver", {})
    assert line() == "1 of 4 runs finished"
    open_it(folder, 5)
    folder.ledger.write("failed", "two", {"reason": "loss"})
    folder.ledger.write("pruned", "three", {"reason": "poor"})
    folder.ledger.write("failed", "four", {"reason": "its process died"})
    assert line() == "1 of 5 runs finished, 2 failed, 1 stopped early, interrupted"
    folder.ledger.write("finished", "four", {})
    folder.ledger.write("closed", "driver", {})
    assert line() == "2 of 5 runs finished, 1 failed, 1 stopped early"


def test_one_study_in_detail(folder: StudyFolder) -> None:
    open_it(folder, 4)
    folder.ledger.write("finished", "one", {})
    folder.ledger.write("failed", "two", {"reason": "task 1, epoch 1: loss term 'ce' is nan"})
    folder.ledger.write("pruned", "three", {"reason": "stopped early after task 2"})
    folder.live.mkdir()
    progress = {"task": 2, "tasks": 5, "epoch": 4, "epochs": 10, "images_per_second": 1500.0, "loss": 1.25}
    row = {"title": "cl2r seed 0", "progress": {**progress, "seconds_left": 72.0}}
    (folder.live / "four.json").write_text(json.dumps(row))
    before = tree(folder.storage)
    head, *lines = status(folder.storage, folder.name).splitlines()
    assert tree(folder.storage) == before, "status changes nothing"
    assert without_times(head) == (
        "ablation-icons: 1 of 4 runs finished, 1 failed, 1 stopped early, interrupted; last event … ago"
    )
    assert lines == [
        "  cl2r seed 0   task 2/5 · epoch 4/10 · 1,500 images/s · loss 1.250 · 1:12 left",
        "  two failed: task 1, epoch 1: loss term 'ce' is nan",
        "  three pruned: stopped early after task 2",
    ]


def test_the_same_as_json(folder: StudyFolder) -> None:
    assert status_json(folder.storage, None)["studies"][0]["last_event"] is None, "it never began"
    open_it(folder, 4)
    folder.ledger.write("finished", "one", {})
    folder.ledger.write("failed", "two", {"reason": "its process died"})
    folder.live.mkdir()
    progress = {"task": 2, "tasks": 5, "epoch": 4, "epochs": 10, "images_per_second": 1500.0, "loss": 1.25}
    row = {"title": "cl2r seed 0", "progress": {**progress, "seconds_left": 72.0}}
    (folder.live / "four.json").write_text(json.dumps(row))
    (found,) = status_json(folder.storage, None)["studies"]
    assert datetime.fromisoformat(found.pop("last_event")).tzinfo is not None
    counts = {"runs": 4, "finished": 1, "failed": 1, "stopped_early": 0}
    assert found == {"study": "ablation-icons", "state": "interrupted", **counts}
    one = status_json(folder.storage, folder.name)
    assert found.items() <= one.items()
    assert one["running"] == [{"title": "cl2r seed 0", **row["progress"], "stale": False}]
    assert one["unfinished"] == [{"run": "two", "outcome": "failed", "reason": "its process died"}]
    for name in (None, "other"):
        with pytest.raises(InputError, match="no stud"):
            status_json(folder.storage / "nowhere", name)


def test_a_damaged_event_does_not_hide_other_studies(folder: StudyFolder) -> None:
    other = make(Path(str(folder.storage)), "other")
    for place in (folder, other):
        open_it(place, 4)
    (event,) = other.ledger.folder.list("*opened*")
    event.write_file(event.read_bytes()[:-9])
    lines = overview(folder.storage).splitlines()
    assert without_times(lines[0]).startswith("ablation-icons  0 of 4 runs finished")
    assert lines[1].startswith(f"other           cannot be read: {event}")
    one, broken = status_json(folder.storage, None)["studies"]
    assert one["runs"] == 4
    assert (broken["study"], broken["state"]) == ("other", "unknown")
    assert str(event) in broken["error"]


def test_hidden_folders_are_no_studies_and_a_lost_specification_hides_none(folder: StudyFolder) -> None:
    storage = folder.path.parent.parent
    open_it(folder)
    (storage / "studies" / ".x").mkdir()
    (storage / "studies" / ".x" / "study.yaml").write_text("id: x")
    folder.specification.unlink()
    assert [one.name for one in studies(storage)] == [folder.name]
    assert status(storage, folder.name).startswith(f"{folder.name}: 0 of 6 runs finished")


def test_a_file_in_place_of_the_ledger_is_said(folder: StudyFolder) -> None:
    folder.ledger.folder.write_file(b"mine")
    assert f"cannot be read: {folder.ledger.folder}: a file is" in overview(folder.storage)
    with pytest.raises(InputError, match="a file is in place of the ledger"):
        status(folder.storage, folder.name)


def test_trials_that_repeat_a_point_are_not_waited_for(folder: StudyFolder) -> None:
    folder.ledger.write("opened", "driver", {"runs": 18, "runs_per_trial": 2})
    folder.ledger.write("repeated", "3", {"params": {}})
    assert "0 of 16 runs finished" in overview(folder.storage)
    folder.ledger.write("finished", "one", {})
    folder.ledger.write("closed", "driver", {"finished": 1, "runs": 14})
    assert "1 of 14 runs finished" in overview(folder.storage)
    folder.ledger.write("opened", "driver", {"runs": 14, "runs_per_trial": 2})
    assert "1 of 14 runs finished" in overview(folder.storage), "what was repeated before has been taken off"


def test_names_and_titles_stay_on_their_line(tmp_path: Path) -> None:
    name = "a\nfsck: all is sound\033[2J"
    folder = make(tmp_path, name)
    open_it(folder)
    folder.ledger.write("failed", "r\033", {"reason": "loss"})
    live = {"task": 2, "tasks": 5, "epoch": 4, "epochs": 10, "images_per_second": 1.0, "loss": 1.0, "seconds_left": 7}
    (folder.live / "x.json").write_file(json.dumps({"title": "b\n\033", "progress": live}).encode())
    assert len(overview(tmp_path).splitlines()) == 1
    lines = status(tmp_path, name).splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_it_needs_neither_torch_nor_ray() -> None:
    heavy = "{'torch', 'ray', 'optuna', 'pandas'}"
    script = f"import sys, cl2r.cli.main, cl2r.study.status; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
