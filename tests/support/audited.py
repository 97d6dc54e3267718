"""A program that reads everything twice and prints the audit events of the second time as JSON.

The first time modules are imported and templates compiled: that is code of this project and of its libraries. Code that
runs the second time was started by what was read. tests/unit/project/test_security_audit.py calls this with a folder.
"""

import contextlib
import io
import json
import pickle
import shutil
import sys
import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from analysis import load_study
from analysis.report import write_report
from cl2r.cli.report import find_path, load
from cl2r.config.schema import Config
from cl2r.data import check_dataset, scenario
from cl2r.data.lfw import read_packed
from cl2r.data.npz import load_npz
from cl2r.storage.path import at
from cl2r.study import status
from cl2r.study.frames import write_frames
from tests.support.made_ledger import enter, made_folder
from tests.support.made_study import made_study
from tests.support.quick import Interrupter, Recorder, blobs, quick_config, train

EVENTS = {"compile", "ctypes.dlopen", "exec", "import", "marshal.loads", "os.exec", "os.posix_spawn", "os.spawn"}
EVENTS |= {"os.system", "pickle.find_class", "pty.spawn", "subprocess.Popen"}
heard: list[dict[str, str]] = []
listening = False


def hook(event: str, arguments: tuple[object, ...]) -> None:
    if listening and event in EVENTS:
        what = ", ".join(str(argument)[:60] for argument in arguments[:2])
        heard.append({"event": event, "what": what, "where": "".join(traceback.format_stack(limit=12)[:-1])})


def write_all(folder: Path) -> None:
    """Write a run that was interrupted in its second task, a study, pickles and an .npz."""
    rng = np.random.default_rng(3)
    (x_train, y_train), (x_open, y_open) = blobs(6, rng), blobs(4, rng)
    np.savez(folder / "set.npz", x_train=x_train, y_train=y_train, x_open=x_open, y_open=y_open + 9)
    with contextlib.suppress(KeyboardInterrupt):
        train(config(folder), folder / "runs", Interrupter(after=4))
    study = made_study()
    made = made_folder(folder / "storage", study)
    for number in range(len(study.runs)):
        enter(made, study, number)
    write_frames(made)
    pixels = {b"data": np.zeros((100, 3072), np.uint8)}
    pickled = {
        "cifar-100-python/train": pixels | {b"fine_labels": list(range(100))},
        "cifar-100-python/meta": {b"fine_label_names": [b"%d" % number for number in range(100)]},
        "cifar-10-batches-py/test_batch": {b"data": pixels[b"data"][:10], b"labels": list(range(10))},
        "lfw.bin": ([b"image"] * 20, [True] * 10),
    }
    for name, content in pickled.items():
        at(folder / name).write_file(pickle.dumps(content, 2))


def config(folder: Path) -> Config:
    return quick_config(folder / "set.npz", {"scenario": {"n_tasks": 2}, "optim": {"epochs": 2, "milestones": []}})


def read_all(folder: Path) -> None:
    """Read everything that other people may have written."""
    listener = Recorder()
    resumed = train(config(folder), folder / "runs", listener)
    assert [link.reused for link in resumed.links] == [True, False]
    assert len(listener.reports) == 1, "it resumed after the first epoch of the second task"
    assert all(link.reused for link in train(config(folder), folder / "runs").links)
    storage = at(folder / "storage")
    write_report(load(find_path("made", storage)), folder / "page.html")
    assert len(load_study(folder / "storage").runs)
    assert "runs finished" in status.status(storage, "made")
    assert check_dataset("cifar100", folder).complete
    assert len(read_packed(folder / "lfw.bin").pairs) == 10
    load_npz(folder / "set.npz")


def split(labels: Any, sizes: list[int], order: list[int]) -> list[tuple[Any, Any]]:
    """Split as continuum does; importing it takes longer than all the rest, and it reads no file."""
    ends = np.cumsum([0, *sizes])
    places = np.argsort(order)[labels]
    tasks = [np.flatnonzero((low <= places) & (places < high)) for low, high in pairwise(ends)]
    return [(rows, places[rows]) for rows in tasks]


def main(root: Path) -> None:
    global listening
    scenario._continuum_tasks = split
    (root / "first").mkdir()
    write_all(root / "first")
    shutil.copytree(root / "first", root / "second")
    sys.addaudithook(hook)
    with contextlib.redirect_stdout(io.StringIO()):
        read_all(root / "first")
        listening = True
        read_all(root / "second")
        listening = False
    deliberately = len(heard)
    listening = True
    pickle.loads(pickle.dumps(Path("x")))
    eval("1 + 1")  # the hook must report both
    listening = False
    print(json.dumps({"heard": heard[:deliberately], "control": [entry["event"] for entry in heard[deliberately:]]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
