"""Seeded damages to every kind of file that is stored: afterwards everything is as before, or somebody says a word.

`python -m tests.faults.corruption --damages 1000 --seed 0` damages one file of a fresh copy at a time, does what users
do with it, and compares what comes out with the undamaged copy: frames without times, matrices, trials, hits, vectors.

    same      every result is as before, and nobody had to say anything
    rebuilt   somebody named the path in a warning or an error, and the next command ended with the right result
    refused   the next command ended with an error that names the path
    SILENT    a result differs without a word, or `cl2r fsck` does not find the damage, or leaves it after --repair
    TRACEBACK any other exception, or an error that names no path
"""

import argparse
import contextlib
import io
import json
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import faiss
import numpy as np
import pandas as pd
import torch

from analysis import load_runs, load_study
from analysis.study import SEARCH_FRAMES
from cl2r.cli.fsck import DAMAGED, fsck
from cl2r.engine.chain import execute
from cl2r.engine.frames import summary, write_run
from cl2r.engine.plan import Plan, plan_run
from cl2r.engine.workers import ALONE
from cl2r.errors import InputError
from cl2r.gallery import index as indexes
from cl2r.gallery import indexing
from cl2r.gallery.gallery import Gallery
from cl2r.gallery.index import IndexOptions, build_indexes
from cl2r.gallery.model import Model, find_model, find_models, read_export, write_export
from cl2r.gallery.search import Searcher
from cl2r.gallery.upgrade import UpgradeCheck, draw_pairs, run_matrix
from cl2r.rayrun import driver
from cl2r.rayrun.optuna_source import OptunaSource
from cl2r.storage import seal
from cl2r.storage.path import LocalPath
from cl2r.storage.seal import SUFFIX, seal_path, write_beside
from cl2r.study.folder import StudyFolder
from cl2r.study.session import StudySession
from cl2r.study.spec import StudySpec
from cl2r.study.status import status
from cl2r.study.train_job import train_job
from tests.support.galleries import indexed, run_index, write_images
from tests.support.quick import Interrupter, Recorder, blobs, quick_config
from tests.support.small_study import SPACE, small_study

Action = Callable[[LocalPath], Any]
"""Does something with a storage and returns what comes out, in a form that can be compared."""
CHEAP: dict[str, Any] = {
    "scenario.n_tasks": 2,
    "optim.epochs": 1,
    "optim.milestones": [],
    "eval.positives": 20,
    "eval.negatives": 20,
    "eval.folds": 2,
    "eval.bootstrap": 0,
}
TIMES = re.compile(r".*seconds|images_per_second|peak_bytes|reused|links_trained")
"""Columns that may differ: times, memory, and whether a link was there or was trained again."""
LINK = {"link manifest": "links/*/manifest.json", "link state": "links/*/*-state.safetensors"}
LINK |= {"link features": "links/*/*-features.safetensors", "link record": "links/*/*-record.json"}
NAME, SPLIT = "small", "split"
"""The study of a storage, and a kind of file that is kept in the user's cache, which `cl2r fsck` does not read."""
PAPER = json.dumps({"item": "table 2", "preset": "cifar100"}).encode()


# What users do, and what comes out.


def values(frame: pd.DataFrame) -> str:
    """Return the values of a frame as text, in the order of its rows; times are left out."""
    kept = sorted(name for name in frame.columns if not TIMES.fullmatch(name))
    order = [name for name in ("run", "task", "pairs", "metric", "t", "k", "stage", "epoch") if name in frame]
    return frame.sort_values(order)[kept].to_json(orient="records", double_precision=15)


def read_study(root: LocalPath) -> Any:
    """Load the study as a notebook does."""
    study = load_study(root / "studies" / NAME)
    frames = {name: values(getattr(study, name)) for name in ("runs", "tasks", "matrix", "curves")}
    search = {name: frame.to_json(orient="records") for name, frame in study.search.items()}
    return frames | {"specification": study.specification, "search": search, "paper": study.paper}


def read_status(root: LocalPath) -> Any:
    """Return the text of `cl2r status` without times."""
    return re.sub(r"; last event .*", "", status(root, NAME))


def drive(spec: StudySpec) -> Action:
    """Return a function that runs the study's command again, without Ray: jobs are trained in this process."""

    def run_jobs(session: StudySession) -> bool:
        source = OptunaSource(session.spec, session.folder) if session.spec.grows else None
        for job in session.unfinished():
            train_job(job, session.folder, session.trained_by, ALONE, lambda _: None)
            if source:
                source.ended(job, pruned=False)
        while source and (job := source.next()):
            train_job(job, session.folder, session.trained_by, ALONE, lambda _: None)
            source.ended(job, pruned=False)
        return False

    def command(root: LocalPath) -> Any:
        with (
            mock.patch.object(driver, "run_jobs", run_jobs),
            StudySession.open(spec, root, name=NAME, quiet=True, log=()) as session,
        ):
            frames = {name: values(frame) for name, frame in driver.run(session).frames.items()}
            if not session.spec.grows:
                return frames
            trials = OptunaSource(spec, session.folder).searches[0].optuna.get_trials()
            return frames | {"trials": [(trial.number, trial.state, trial.params, trial.values) for trial in trials]}

    return command


def measure(study: Action) -> Action:
    """Return a function that also writes what studies of the paper and of searches add, as their commands do."""

    def command(root: LocalPath) -> Any:
        found, folder = study(root), StudyFolder(root, NAME)
        write_beside(folder.path / "paper.json", PAPER, folder.owner("paper.json"))
        runs = pd.read_parquet(folder.path / "runs.parquet")["run"]
        for name, columns in SEARCH_FRAMES.items():
            rows = [
                {column: run if column == "run" else number for column in columns} for number, run in enumerate(runs)
            ]
            content = pd.DataFrame(rows).to_parquet(index=False)
            write_beside(folder.path / "search" / f"{name}.parquet", content, folder.owner(f"search/{name}.parquet"))
        return found

    return command


def split_again(data: Path) -> Action:
    """Return a function that splits classes into tasks in two ways, with its cache below the storage."""

    def command(root: LocalPath) -> Any:
        found = []
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(root / "cache")}):
            for count in (2, 3):
                scenario = plan_run(quick_config(data, _nested(CHEAP), {"scenario": {"n_tasks": count}})).scenario
                found.append([scenario.labels.tolist(), *(task.rows.tolist() for task in scenario.tasks)])
        return found

    return command


def run_again(plan: Plan) -> Action:
    """Return a function that does what `cl2r run` does."""

    def command(root: LocalPath) -> Any:
        result = execute(plan, root, Recorder())
        return {**summary(result, write_run(result, root).name), "links": None}

    return command


def read_runs(root: LocalPath) -> Any:
    frames = load_runs(root)
    return {name: values(getattr(frames, name)) for name in ("runs", "tasks", "matrix", "curves")}


def check(root: LocalPath) -> Any:
    """Return the exit code of `cl2r fsck`."""
    return _fsck(str(root))


def repair(root: LocalPath) -> Any:
    """Return the exit code of `cl2r fsck --repair`."""
    return _fsck(str(root), "--repair")


def _fsck(*words: str) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            fsck.main(list(words), standalone_mode=False)
        except SystemExit as stopped:
            return stopped.code
    return 0


# Storages with something of every kind in them.


@dataclass(frozen=True)
class Scene:
    """A storage, two others to take foreign files from, its kinds of files, and what is done with it.

    `reads` change nothing; `writes` come after them, in this order.
    """

    name: str
    kinds: dict[str, str]
    reads: dict[str, Action]
    writes: dict[str, Action]
    root: LocalPath
    others: Sequence[LocalPath]
    expected: dict[str, Any] = field(default_factory=dict)

    def learn(self, scratch: LocalPath) -> None:
        """Find out what comes out of the undamaged storage."""
        here = LocalPath(shutil.copytree(self.root, scratch / f"expected-{self.name}"))
        for name, action in [*self.reads.items(), *self.writes.items(), *self.reads.items()]:
            found = action(here)
            assert self.expected.setdefault(name, found) == found, f"{self.name}: {name} differs without any damage"
        assert check(here) == 0, f"{self.name}: fsck complains without any damage"


def make_data(path: Path, seed: int) -> Path:
    """Write eight classes to learn and four to verify on."""
    rng = np.random.default_rng(seed)
    (x_train, y_train), (x_open, y_open) = blobs(6, rng), blobs(4, rng)
    np.savez(path, x_train=x_train, y_train=y_train, x_open=x_open, y_open=y_open + 100)
    return path


def make_scenes(folder: LocalPath) -> list[Scene]:
    """Make all storages below `folder`: the one to damage, a twin of the same settings, one of other data."""
    datasets = {name: make_data(folder / f"{name}.npz", seed) for name, seed in (("mine", 7), ("other", 8))}
    places = {"whole": "mine", "twin": "mine", "foreign": "other"}
    grids = {name: small_study(data, set=CHEAP, seeds=[0, 1]) for name, data in datasets.items()}
    search = {"trials": 3, "objectives": ["BC"], "constraints": {}}
    sweeps = {name: small_study(data, set=CHEAP, space=SPACE, search=search) for name, data in datasets.items()}
    plans = {name: [_plan(data, seed) for seed in (0, 1)] for name, data in datasets.items()}
    longer = {"optim": {"epochs": 3, "milestones": []}}
    slow = {name: plan_run(quick_config(data, _nested(CHEAP), longer)) for name, data in datasets.items()}
    models: dict[str, list[Model]] = {}
    for place, data in places.items():
        measure(drive(grids[data]))(folder / place / "study")
        drive(sweeps[data])(folder / place / "sweep")
        split_again(datasets[data])(folder / place / "run")
        for plan in plans[data]:
            write_run(execute(plan, folder / place / "run", Recorder()), folder / place / "run")
        with contextlib.suppress(KeyboardInterrupt):
            execute(slow[data], folder / place / "interrupted", Interrupter(5))
        if data not in models:
            name = next((folder / place / "run" / "runs").glob("*-s0-*")).name
            models[data] = [Model(find_model(f"{name}@{task}", folder / place / "run")) for task in (1, 2)]
        _make_gallery(folder / place / "search", plans[data][0], models[data], shift=4 * (place == "twin"))
    shown = plans["mine"][0].dataset.x_open.all()[-6:]

    def found(root: LocalPath, gallery: str = "gallery") -> Any:
        hits = Searcher(Gallery(root / gallery), models["mine"][1]).search(shown, 5)
        return [[(hit.id, hit.label, hit.model, round(hit.score, 4)) for hit in best] for best in hits]

    def found_in_cells(root: LocalPath) -> Any:
        return found(root, "ivf")

    def index_again(root: LocalPath) -> Any:
        with mock.patch.object(indexing, "LARGEST_SHARD", 6):
            run_index(root / "images2", root / "gallery", models["mine"][1])
        return found(root)

    def exported(root: LocalPath) -> Any:
        return Model(read_export(root / "export")).embed(shown).round(4).tolist()

    def find(root: LocalPath) -> Any:
        (name,) = {path.parent.name for path in (folder / "whole" / "run" / "runs").glob("*-s0-*/config.yaml")}
        return Model(find_model(f"{name}@2", root)).embed(shown).round(4).tolist()

    indexed_by = Gallery(folder / "whole" / "search" / "gallery")
    pairs = draw_pairs(indexed_by, 40)

    def check_upgrade(root: LocalPath) -> Any:
        """Do what `cl2r upgrade-check` does; what it costs is left out."""
        old, new = models["mine"]
        name = new.card.run
        old, new = map(Model, find_models({"--old": f"{name}@1", "--new": f"{name}@2"}, root))
        checked = UpgradeCheck(indexed_by, old, new)
        lines = checked.report_lines(checked.sample(pairs), run_matrix(name, root), 0.01, 1.0)
        return [line for line in lines if not line.startswith("cost")]

    in_study = f"studies/{NAME}/"
    frames = {f"{name} frame": f"{in_study}{name}.parquet" for name in ("runs", "tasks", "matrix", "curves")}
    events = {f"{kind} event": f"{in_study}ledger/*.{kind}.*.json" for kind in ("opened", "finished", "closed")}
    events["event"] = f"{in_study}ledger/*.json"
    study = {"study.yaml": f"{in_study}study.yaml", "about.json": f"{in_study}about.json", **frames, **events}
    study |= {"search frame": f"{in_study}search/*.parquet", "paper.json": f"{in_study}paper.json"}
    run_files = {"config.yaml": "runs/*/config.yaml", "result.json": "runs/*/result.json"}
    run_files |= {"frame of a run": "runs/*/*.parquet", "matrix of a run": "runs/*/matrix.parquet"}
    run_files[SPLIT] = "cache/cl2r/*.npz"
    partials = {"record of an epoch": "partials/*/partial.json", "epoch": "partials/*/stage*.safetensors"}
    shard = "gallery/shards/*"
    gallery = {"gallery.json": "gallery/gallery.json", "commit": "gallery/commits/*.json"}
    gallery |= {"vectors": f"{shard}/vectors.npy", "items": f"{shard}/items.parquet", "shard": f"{shard}/manifest.json"}
    gallery |= {"index description": "gallery/index/*.json", "index": "gallery/index/*.faiss"}
    gallery |= {"description of cells": "ivf/index/*.json", "index of cells": "ivf/index/*.faiss"}
    gallery |= {"exported card": "export/model.json", "exported tensors": "export/*.safetensors"}
    sweep = {"journal": f"{in_study}optuna.journal", "trial event": f"{in_study}ledger/*.trial.*.json"}
    sweep |= {"finished trial": f"{in_study}ledger/*.finished.*.json", "event of a sweep": f"{in_study}ledger/*.json"}
    reads: dict[str, Action] = {"load_study": read_study, "status": read_status}
    of_runs: dict[str, Action] = {"load_runs": read_runs, "model": find, "upgrade-check": check_upgrade}
    drawn: list[tuple[str, dict[str, str], dict[str, Action], dict[str, Action]]] = [
        ("study", study | LINK, reads, {"study": measure(drive(grids["mine"]))}),
        ("sweep", sweep, reads, {"sweep": drive(sweeps["mine"])}),
        ("run", run_files | LINK, of_runs, {"split": split_again(datasets["mine"]), "run": _both(plans["mine"])}),
        ("interrupted", partials | LINK, {}, {"resumed": run_again(slow["mine"])}),
        ("search", gallery, {"export": exported}, {"search": found, "cells": found_in_cells, "index": index_again}),
    ]
    scenes = []
    for name, kinds, looks, writes in drawn:
        others = [folder / place / name for place in ("twin", "foreign")]
        sealed = {f"seal of {kind}": glob + SUFFIX for kind, glob in kinds.items()}
        with_seals = {kind: glob for kind, glob in sealed.items() if list((folder / "whole" / name).glob(glob))}
        scenes.append(Scene(name, kinds | with_seals, looks, writes, folder / "whole" / name, others))
    return scenes


def _both(plans: Sequence[Plan]) -> Action:
    return lambda root: [run_again(plan)(root) for plan in plans]


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        section, _, key = name.partition(".")
        nested.setdefault(section, {})[key] = value
    return nested


def _plan(data: Path, seed: int) -> Plan:
    return plan_run(quick_config(data, _nested(CHEAP), {"seed": seed}))


def _make_gallery(root: LocalPath, plan: Plan, models: Sequence[Model], shift: int) -> None:
    """Write two folders of images, a gallery of both by two models, with indexes, and the second model as an export."""
    images = plan.dataset.x_open.all()
    with mock.patch.object(indexing, "LARGEST_SHARD", 6):
        for number, model in enumerate(models):
            start = shift + 12 * number
            write_images(root / f"images{number + 1}", images[start : start + 12], start=start)
            indexed(root / f"images{number + 1}", root / "gallery", model)
    shutil.copytree(root / "gallery", root / "ivf")
    build_indexes(Gallery(root / "gallery"), IndexOptions("hnsw"))
    build_indexes(Gallery(root / "ivf"), IndexOptions("ivf", nlist=2, nprobe=2))
    write_export(models[1 if not shift else 0].files, root / "export")


# Ways of damage. Each changes the file at `path`, or returns False if that cannot be done to it.


@dataclass(frozen=True)
class Place:
    """The file to damage, the others of its kind, and those of the same kind in other storages."""

    path: Path
    siblings: Sequence[Path]
    foreign: Sequence[Path]
    rng: random.Random

    def rewrite(self, content: bytes) -> bool:
        if content == self.path.read_bytes():
            return False
        self.path.write_bytes(content)
        return True


def bit(place: Place) -> bool:
    return bits(place, 1)


def bits(place: Place, count: int = 0) -> bool:
    content = bytearray(place.path.read_bytes())
    for _ in range(count or place.rng.randint(2, 40)):
        content[place.rng.randrange(len(content))] ^= 1 << place.rng.randrange(8)
    return place.rewrite(bytes(content))


def truncated(place: Place) -> bool:
    content = place.path.read_bytes()
    return place.rewrite(content[: place.rng.randrange(1, len(content))])


def emptied(place: Place) -> bool:
    return place.rewrite(b"")


def zeroed(place: Place) -> bool:
    content = place.path.read_bytes()
    start = place.rng.randrange(len(content))
    end = min(len(content), start + place.rng.randint(1, 4096))
    return place.rewrite(content[:start] + bytes(end - start) + content[end:])


def exchanged(place: Place, seals: bool = False) -> bool:
    others = [path for path in place.siblings if path.read_bytes() != place.path.read_bytes()]
    if not others or (seals and not _seal(place.path).exists()):
        return False
    other = place.rng.choice(others)
    for mine, theirs in [(place.path, other), *([(_seal(place.path), _seal(other))] if seals else [])]:
        content = mine.read_bytes()
        mine.write_bytes(theirs.read_bytes())
        theirs.write_bytes(content)
    return True


def exchanged_with_seals(place: Place) -> bool:
    return exchanged(place, seals=True)


def replaced(place: Place, seals: bool = False) -> bool:
    if not place.foreign or (seals and not _seal(place.path).exists()):
        return False
    other = place.rng.choice(place.foreign)
    if seals:
        shutil.copy(_seal(other), _seal(place.path))
    return place.rewrite(other.read_bytes())


def replaced_with_seal(place: Place) -> bool:
    return replaced(place, seals=True)


def deleted(place: Place) -> bool:
    place.path.unlink()
    return True


def deleted_with_seal(place: Place) -> bool:
    if not _seal(place.path).exists():
        return False
    _seal(place.path).unlink()
    return deleted(place)


def folder_instead(place: Place) -> bool:
    place.path.unlink()
    (place.path / "inside").mkdir(parents=True)
    return True


def unreadable(place: Place) -> bool:
    place.path.chmod(0)
    return not os.access(place.path, os.R_OK)  # root may read it all the same


def _seal(path: Path) -> Path:
    return Path(str(seal_path(LocalPath(path))))


Way = Callable[[Place], bool]
CHANGES: tuple[Way, ...] = (bit, bits, truncated, emptied, zeroed)
MOVES: tuple[Way, ...] = (exchanged, exchanged_with_seals, replaced, replaced_with_seal)
FOUND = (*CHANGES, *MOVES, folder_instead)  # `cl2r fsck` must find these; that a file is gone it cannot always know
WAYS = (*CHANGES, *MOVES, deleted, deleted_with_seal, folder_instead, unreadable)


# One damage, what happens then, and the verdict.


class Words(logging.Handler):
    """Keeps warnings, and notes about what cannot be told."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or record.getMessage().startswith("note: "):
            self.lines.append(record.getMessage())


@contextlib.contextmanager
def listening() -> Iterator[Words]:
    """Keep what the product says."""
    words, loggers = Words(), [logging.getLogger(name) for name in ("cl2r", "analysis")]
    for logger in loggers:
        logger.addHandler(words)
        logger.setLevel(logging.INFO)
    try:
        yield words
    finally:
        for logger in loggers:
            logger.removeHandler(words)


@dataclass(frozen=True)
class Verdict:
    """What came of one damage; `problems` has one text for every action that failed silently or with a traceback."""

    scene: str
    kind: str
    way: str
    word: str  # same, rebuilt, refused, SILENT or TRACEBACK
    problems: tuple[str, ...] = ()


def judge(scene: Scene, kind: str, way: Way, seed: str, scratch: LocalPath) -> Verdict | None:
    """Damage one file of a copy and use the copy; None if this cannot be done to such a file."""
    rng = random.Random(seed)
    root = LocalPath(shutil.copytree(scene.root, scratch / "copy"))
    try:
        glob = scene.kinds[kind]
        found = sorted(root.glob(glob))
        if (kind, way) == ("paper.json", deleted_with_seal):
            return None  # nothing tells that there was such a file
        path = rng.choice(found)
        foreign = [other for storage in scene.others for other in sorted(storage.glob(glob))]
        if not way(Place(path, [one for one in found if one != path], foreign, rng)):
            return None
        reads, repairs = [*scene.reads.items()], rng.random() < 0.5
        # Galleries and exports are restored from a copy, and what may not be read may be sound: neither is repaired.
        whole = scene.name != "search" and way is not unreadable
        steps = [*reads, ("fsck", check), *[("repair", repair)] * repairs, *scene.writes.items(), *reads]
        steps += [("fsck afterwards", check)] * (repairs and whole)
        told, refused, wrong = False, False, list[str]()
        for name, action in steps:
            with listening() as words:
                result, fault = None, ""
                try:
                    result = action(root)
                except (InputError, OSError) as error:
                    fault = str(error)
                    if str(root) not in fault and f"study {NAME!r}" not in fault:
                        wrong.append(f"TRACEBACK {name}: names no path: {type(error).__name__}: {fault}")
                except Exception:
                    wrong.append(f"TRACEBACK {name}: {traceback.format_exc()}")
                    break
            named = any(str(root) in line for line in words.lines)
            if name == "fsck":
                known = way in FOUND and kind != SPLIT and not harmless(path, scene.root / path.relative_to(root))
                if result == 0 and (told or known):
                    wrong.append("SILENT fsck: finds nothing")
            elif name == "fsck afterwards":
                if result == DAMAGED and not refused:
                    wrong.append("SILENT fsck: damage is left after repairs and another command")
            elif name != "repair":
                told |= bool(fault or named)
                if fault or result != scene.expected[name]:
                    refused |= name in scene.writes
                    if not (fault or named or (name == "status" and "run the same command again" in result)):
                        wrong.append(f"SILENT {name}: {_difference(scene.expected[name], result)}")
        word = "TRACEBACK" if any(text.startswith("TRACEBACK") for text in wrong) else "SILENT" if wrong else ""
        word = word or ("refused" if refused else "rebuilt" if told else "same")
        problems = tuple(f"{path.relative_to(root)}: {text}" for text in wrong)
        return Verdict(scene.name, kind, way.__name__, word, problems)
    finally:
        shutil.rmtree(root)


def harmless(path: Path, before: Path) -> bool:
    """Return whether a file still fits a seal of the same owner: an equal run's, or a seal without its line's end."""
    file, original = (LocalPath(str(one).removesuffix(SUFFIX)) for one in (path, before))
    with contextlib.suppress(OSError, ValueError):
        seal.read_beside(file, json.loads(seal_path(original).read_bytes())["belongs_to"])
        return True
    return False


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        return "; ".join(
            f"{key}: {str(expected[key])[:200]} != {str(found.get(key))[:200]}"
            for key in expected
            if expected[key] != found.get(key)
        )
    return f"{str(expected)[:300]} != {str(found)[:300]}"


def damages(scenes: Sequence[Scene], seed: int, ways: Sequence[Way] = WAYS) -> Iterator[tuple[Scene, str, Way, str]]:
    """Yield damages without end, every kind of file and way equally often; the same seed gives the same ones."""
    cases = [(scene, kind, way) for scene in scenes for kind in scene.kinds for way in ways]
    number = 0
    while True:
        random.Random(f"{seed} {number}").shuffle(cases)
        for scene, kind, way in cases:
            yield scene, kind, way, f"{seed} {number} {scene.name} {kind} {way.__name__}"
        number += 1


@contextlib.contextmanager
def prepared(folder: LocalPath) -> Iterator[list[Scene]]:
    """Make the storages below a folder, without pauses and without waiting for a disk."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    with (
        mock.patch.object(seal, "PAUSE_SECONDS", 0),
        mock.patch.object(indexes, "PAUSE_SECONDS", 0),
        mock.patch("os.fsync", return_value=None),
        mock.patch("cl2r.storage.leftovers.stale_temporary", list),
    ):
        scenes = make_scenes(folder)
        for scene in scenes:
            scene.learn(folder)
        yield scenes


def run_suite(
    scenes: Sequence[Scene],
    count: int,
    seed: int,
    scratch: LocalPath,
    ways: Sequence[Way] = WAYS,
    verbose: bool = False,
) -> list[Verdict]:
    """Return the verdicts on `count` damages."""
    verdicts: list[Verdict] = []
    for scene, kind, way, words in damages(scenes, seed, ways):
        if len(verdicts) >= count:
            break
        if verdict := judge(scene, kind, way, words, scratch):
            verdicts.append(verdict)
            if verbose and verdict.problems:
                print(f"{words}:", *verdict.problems, sep="\n  ", flush=True)
            if verbose and verdict.word == "refused" and scene.name != "search":
                print(f"{words}: refused", flush=True)
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    """Return kinds of files × ways of damage: how many, and how many of them were silent (s) or tracebacks (t)."""
    ways = [way.__name__ for way in WAYS]
    rows = list(dict.fromkeys((one.scene, one.kind) for one in sorted(verdicts, key=lambda one: (one.scene, one.kind))))
    lines = [" " * 38 + " ".join(f"{way.replace('_', ' ')[:9]:>9}" for way in ways)]
    for scene, kind in rows:
        cells = []
        for way in ways:
            here = Counter(one.word for one in verdicts if (one.scene, one.kind, one.way) == (scene, kind, way))
            bad = f" {here['SILENT']}s" * (here["SILENT"] > 0) + f" {here['TRACEBACK']}t" * (here["TRACEBACK"] > 0)
            cells.append(f"{(str(here.total()) + bad) if here else '–':>9}")
        lines.append(f"{f'{scene}: {kind}':<38}" + " ".join(cells))
    totals = Counter(one.word for one in verdicts)
    fine = f"{totals['same']} the same, {totals['rebuilt']} rebuilt with a word, {totals['refused']} refused"
    lines.append(f"{len(verdicts)} damages: {fine}")
    lines.append(f"silently different results: {totals['SILENT']}")
    lines.append(f"tracebacks: {totals['TRACEBACK']}")
    if not any(one.way == unreadable.__name__ for one in verdicts):
        lines.append("no permissions were removed: root may read everything")
    return "\n".join(lines)


def main() -> int:
    """Run the program; exit with 1 if anything was silent or a traceback."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--damages", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=[way.__name__ for way in WAYS], help="Damage in this way only.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corruption-") as folder, prepared(LocalPath(folder)) as scenes:
        ways = [way for way in WAYS if given.way in (None, way.__name__)]
        verdicts = run_suite(scenes, given.damages, given.seed, LocalPath(folder), ways, verbose=True)
    print(table(verdicts))
    return int(any(one.problems for one in verdicts))


if __name__ == "__main__":
    sys.exit(main())
