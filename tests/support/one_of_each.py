"""A storage with one of everything, as `cl2r fsck` reads it, and ways to damage it."""

import json
import os
import time
from pathlib import Path
from typing import Any

import optuna
import torch

from cl2r.cli.storage_check import RUN_FILES, check_storage
from cl2r.engine.links import Link, LinkStore, Partial
from cl2r.rayrun.optuna_journal import open_journal
from cl2r.storage.leftovers import DAY
from cl2r.storage.path import LocalPath, StoragePath
from cl2r.storage.seal import run_owner, write_beside
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import write_frames
from tests.support.galleries import filled, made_version

USED, ALSO_USED, BEGUN = "aaaa0001", "aaaa0002", "bbbb0001"
"""Keys of a link of the study, of a link of the run, and of a link that is being trained."""
STUDY = "small"
DAMAGES = {
    "link": f"links/{USED}/*-state.safetensors",
    "manifest": f"links/{USED}/manifest.json",
    "event": f"studies/{STUDY}/ledger/*.finished.*.json",
    "study.yaml": f"studies/{STUDY}/study.yaml",
    "frame": f"studies/{STUDY}/runs.parquet",
    "seal of a frame": f"studies/{STUDY}/tasks.parquet.seal",
    "about": f"studies/{STUDY}/about.json",
    "journal": f"studies/{STUDY}/optuna.journal",
    "epoch": f"partials/{BEGUN}/stage*.safetensors",
    "record of an epoch": f"partials/{BEGUN}/partial.json",
    "run": "runs/run/matrix.parquet",
    "vectors": "galleries/mine/shards/*/vectors.npy",
    "older commit": "galleries/mine/commits/00000001.json",
    "mark": "galleries/mine/gallery.json",
}
"""Files of this storage, as patterns, by what they hold."""


def one_of_each(root: LocalPath) -> LocalPath:
    """Make a sound storage with one of everything."""
    for key in (USED, ALSO_USED):
        add_link(root, key)
    add_study(root)
    add_run(root)
    LinkStore(root).save_partial(BEGUN, Partial(0, 1, {"x": torch.zeros(2)}, {}))
    filled(root / "galleries" / "mine", made_version(1), made_version(2))
    return root


def add_link(root: StoragePath, key: str) -> None:
    numbers = torch.full((2,), float(int(key, 16)))
    LinkStore(root).save(key, Link({"x": numbers}, {"open": numbers}, {"key": key}))


def add_study(root: StoragePath) -> StudyFolder:
    """Record a study of one run whose only link is USED."""
    folder = StudyFolder(root, STUDY)
    folder.claim_name({"a": 1})
    folder.ledger.write("opened", "driver", {"runs": 1, "resources": {}, "made_by": "cpu"})
    frames: dict[str, Any] = {"runs": [{"run": "r", "AC": 0.5}], "tasks": [{"run": "r", "task": 1, "key": USED}]}
    frames["tasks"][0]["reused"] = False
    entry = {"trial": None, "variant": None, "config": {"seed": 0}, "frames": frames}
    folder.ledger.write("finished", "r", entry)
    folder.write_about({}, 1)
    folder.ledger.write("closed", "driver", {"finished": 1})
    write_frames(folder)
    if not root.remote:
        study = optuna.create_study(storage=open_journal(folder), study_name="s")
        study.tell(study.ask(), 1.0)
    return folder


def add_run(root: StoragePath, name: str = "run") -> None:
    for file in sorted(RUN_FILES):
        content = json.dumps({"links": [{"key": ALSO_USED}]}).encode() if file == "result.json" else b"content"
        write_beside(root / "runs" / name / file, content, run_owner(name, file))


def found(root: StoragePath) -> list[tuple[str, str]]:
    """Return kind and path of what is found, its path from the storage on."""
    return [(one.kind, str(one.path).partition("?")[0].removeprefix(f"{plain(root)}/")) for one in check_storage(root)]


def plain(path: StoragePath) -> str:
    return str(path).partition("?")[0]


def only(root: LocalPath, pattern: str) -> LocalPath:
    """Return the only file that fits, or the first of two shards."""
    path, *others = root.list(pattern)
    assert not others or "shards" in pattern
    return path


def age(path: Path) -> None:
    """Make it, and what it holds, two days old."""
    for one in [path, *path.rglob("*")]:
        os.utime(one, (time.time() - 2 * DAY,) * 2)
