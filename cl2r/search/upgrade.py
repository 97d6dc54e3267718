"""Is it safe to search a gallery of φ_k with φ_t, what would indexing it again gain, and what would that cost?

Two answers, side by side: the compatibility matrix of the run (open classes of its data set), and a sample of the
owner's own images in labelled pairs. On the sample, with queries first and gallery second,

    old = accuracy of (φ_k, φ_k)    cross = (φ_t, φ_k)    new = (φ_t, φ_t)

`cross − old` is what the upgrade changes at once, `new − cross` what indexing again would add. The interval of a
difference is a paired bootstrap over pairs, thresholds fixed. The upgrade counts as safe if that of `cross − old` lies
above −tolerance, as unsafe if it lies below, and else as not known.
"""

import io
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from cl2r.errors import InputError
from cl2r.files import Place, listed, place
from cl2r.progress import clock
from cl2r.search.gallery import Gallery, Version
from cl2r.search.image_source import ImageEntry, Images, decode
from cl2r.search.model import Model
from cl2r.seeding import numpy_stream
from cl2r.study.folder import StudyFolder
from cl2r.verification import mean_fold_accuracy, pair_correctness, squared_distances, stratified_folds

SAMPLES, FOLDS, MOST_PAIRS = 2000, 10, 100_000
COLUMNS = ("query", "gallery", "same")


@dataclass(frozen=True)
class Difference:
    """A difference of two accuracies and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True)
class Sample:
    """The three accuracies on the owner's pairs."""

    pairs: int
    old: float
    cross: float
    new: float
    change: Difference
    gain: Difference
    images_per_second: float
    """Decoding and φ_t, here."""


@dataclass(frozen=True)
class Cell:
    """A cell of the run's compatibility matrix."""

    accuracy: float
    low: float | None
    high: float | None


def check_upgrade(
    gallery: Gallery, old: Model, new: Model, pairs: pd.DataFrame, tolerance: float
) -> tuple[Sample, str]:
    """The sample's figures, and `safe`, `not safe` or `not known`."""
    _check_models(gallery, old, new)
    ids = pd.unique(pd.concat([pairs["query"], pairs["gallery"]]))
    images, seconds = _read(gallery, ids, new)
    began = time.perf_counter()
    by_new = new.embed(images)
    seconds += time.perf_counter() - began
    by_old = old.embed(images)
    rows = {name: row for row, name in enumerate(ids)}
    query, stored = (pairs[name].map(rows).to_numpy(np.int64) for name in ("query", "gallery"))
    same = pairs["same"].to_numpy(np.bool_)
    folds = stratified_folds(same, min(FOLDS, int(same.sum()), int((~same).sum())))
    meeting = new.toward(by_new, old.card.task, images)[query], new.carry(by_old, old.card.task)[stored]
    judged = [
        pair_correctness(squared_distances(*sides), same, folds)
        for sides in ((by_old[query], by_old[stored]), meeting, (by_new[query], by_new[stored]))
    ]
    accuracy = [mean_fold_accuracy(correct, folds) for correct in judged]
    change, gain = _difference(judged[1], judged[0]), _difference(judged[2], judged[1])
    sample = Sample(len(pairs), accuracy[0], accuracy[1], accuracy[2], change, gain, len(images) / seconds)
    return sample, _verdict(change, tolerance)


def _check_models(gallery: Gallery, old: Model, new: Model) -> None:
    gallery.check_model(Version.of(new.card, new.dim, new.digest))
    if old.card.key not in new.card.keys or old.card.task >= new.card.task:
        raise InputError(f"--new {new.card.name}: not a later model of the chain of {old.card.name}")
    if old.card.key not in gallery.commit.versions:
        there = ", ".join(version.name for version in gallery.commit.versions.values())
        raise InputError(f"--old {old.card.name}: no vectors by it in {gallery.root}, which has {there}")


def _verdict(change: Difference, tolerance: float) -> str:
    if change.low > -tolerance:
        return "safe"
    return "not safe" if change.high < -tolerance else "not known"


def _difference(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> Difference:
    gains = first.astype(np.float64) - second
    rng = numpy_stream(0, "upgrade")
    means = [gains[rng.integers(len(gains), size=len(gains))].mean() for _ in range(SAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(float(gains.mean()), float(low), float(high))


def _read(gallery: Gallery, ids: Sequence[str], model: Model) -> tuple[Images, float]:
    """Pixels of some images of the gallery, and how long that took."""
    items = gallery.items().drop_duplicates("id").set_index("id")
    missing = [name for name in ids if name not in items.index]
    if missing:
        raise InputError(f"--pairs: {missing[0]!r} is not in the gallery ({len(missing)} such)")
    began, card = time.perf_counter(), model.card
    chosen = items.loc[list(ids)]
    images = np.empty((len(ids), card.size, card.size, card.channels), np.uint8)
    for source, group in chosen.assign(row=np.arange(len(ids))).groupby("source", sort=False):
        named = zip(group.index, group["path"], strict=True)
        entries = [ImageEntry(str(name), str(path), "", 0) for name, path in named]
        pixels, bad = decode(str(source), entries, card.size, card.channels, card.fit)
        if bad:
            raise InputError(f"{bad[0][0]}: cannot be read any more ({bad[0][1]}); {len(bad)} such")
        images[group["row"].to_numpy()] = pixels
    return images, time.perf_counter() - began


def read_pairs(path: Place) -> pd.DataFrame:
    """A CSV or Parquet file with the columns query, gallery (ids of images in the gallery) and same (0 or 1)."""
    try:
        content = io.BytesIO(path.read_bytes())
        pairs = pd.read_parquet(content) if path.name.endswith(".parquet") else pd.read_csv(content, dtype=str)
    except FileNotFoundError as error:
        raise InputError(f"--pairs {path}: no such file") from error
    except (ValueError, TypeError, LookupError, OSError, pa.ArrowException) as error:
        raise InputError(f"--pairs {path}: does not parse ({' '.join(str(error).split())})") from error
    missing = [name for name in COLUMNS if name not in pairs]
    if missing:
        raise InputError(f"--pairs {path}: no column {missing[0]!r}; it needs query, gallery and same")
    words = {"1": True, "0": False, "true": True, "false": False}
    same = pairs["same"].astype(str).str.strip().str.lower().map(words)
    if same.isna().any():
        raise InputError(f"--pairs {path}: line {int(np.argmax(same.isna())) + 2}: same must be 0 or 1")
    checked = pd.DataFrame({"query": pairs["query"].astype(str), "gallery": pairs["gallery"].astype(str), "same": same})
    return _checked(checked.astype({"same": bool}), f"--pairs {path}")


def draw_pairs(gallery: Gallery, count: int, seed: int = 0) -> pd.DataFrame:
    """Half of the same label, half of different ones, drawn from the labels of the gallery."""
    items = gallery.items()
    labelled = items[items["label"] != ""]
    groups = [group.to_numpy() for _, group in labelled.groupby("label")["id"] if len(group) > 1]
    if len(groups) < 2:
        raise InputError("--pairs: needed, as folders give the gallery's images fewer than two labels of two images")
    rng, rows = numpy_stream(seed, "upgrade_pairs"), []
    for number in range(2 * (count // 2)):
        if number % 2:
            first, second = (groups[group] for group in rng.choice(len(groups), size=2, replace=False))
            rows.append((rng.choice(first), rng.choice(second), False))
        else:
            rows.append((*rng.choice(groups[rng.integers(len(groups))], size=2, replace=False), True))
    pairs = pd.DataFrame(rows, columns=list(COLUMNS)).drop_duplicates()
    return _checked(pairs, "--sample")


def _checked(pairs: pd.DataFrame, name: str) -> pd.DataFrame:
    positives = int(pairs["same"].sum())
    if min(positives, len(pairs) - positives) < 2 or len(pairs) > MOST_PAIRS:
        found = f"{positives} pairs of the same and {len(pairs) - positives} of different things"
        raise InputError(f"{name}: {found}; at least 2 of each are needed, and at most {MOST_PAIRS} in all")
    own = pairs["query"] == pairs["gallery"]
    if own.any():
        raise InputError(f"{name}: {pairs.loc[own, 'query'].iloc[0]!r} is paired with itself")
    return pairs.reset_index(drop=True)


def run_matrix(run: str, storage: Place) -> dict[tuple[int, int], Cell]:
    """C of a run on its report pairs; empty where the storage does not know the run, as of an exported model."""
    folder = place(run) if (place(run) / "matrix.parquet").exists() else storage / "runs" / run
    if (folder / "matrix.parquet").exists():
        frame = pd.read_parquet(io.BytesIO((folder / "matrix.parquet").read_bytes()))
    else:
        frame = pd.DataFrame(_rows_of_studies(run, storage))
    if frame.empty:
        return {}
    report = frame[frame["pairs"] == "report"].drop_duplicates(["t", "k"])
    return {(int(row["t"]), int(row["k"])): _cell(row) for row in report.to_dict("records")}


def _cell(row: Mapping[Hashable, Any]) -> Cell:
    return Cell(float(row["accuracy"]), row.get("low"), row.get("high"))


def _rows_of_studies(run: str, storage: Place) -> list[dict[str, object]]:
    for path in listed(storage / "studies", "*/ledger"):
        event = StudyFolder(storage, path.parent.name).ledger.last("finished").get(run)
        if event is not None:
            rows: list[dict[str, object]] = event.read()["frames"]["matrix"]
            return rows
    return []


def report_lines(
    gallery: Gallery,
    old: Model,
    new: Model,
    sample: Sample,
    verdict: str,
    tolerance: float,
    price: float,
    matrix: dict[tuple[int, int], Cell],
) -> list[str]:
    """The answer for people."""
    t, k = new.card.task, old.card.task
    stale = sum(shard.items for shard in gallery.commit.of(old.card.key))
    seconds = stale / sample.images_per_second
    lines = [f"upgrade  {old.card.name} → {new.card.name}: {verdict}"]
    if matrix:
        cells = [f"old {matrix[k, k].accuracy:.3f}  cross {matrix[t, k].accuracy:.3f}  new {matrix[t, t].accuracy:.3f}"]
        compatible = matrix[t, k].accuracy > matrix[k, k].accuracy
        lines.append(f"matrix   {cells[0]}  ({'' if compatible else 'not '}compatible on the run's open classes)")
    else:
        lines.append("matrix   not at hand: the model was exported, or its run is elsewhere (--storage)")
    lines += [
        f"sample   old {sample.old:.3f}  cross {sample.cross:.3f}  new {sample.new:.3f}  ({sample.pairs:,} pairs)",
        f"change   {sample.change} without indexing again; safe means above {-tolerance:+.3f}",
        f"gain     {sample.gain} by indexing again",
        f"cost     {stale:,} images, {clock(seconds)} at the {sample.images_per_second:,.0f} images/s measured here, "
        f"${seconds / 3600 * price:.2f} at ${price:.2f} an hour",
    ]
    if new.carries_gallery:
        lines.append(f"note     {new.card.method} maps the gallery instead: `cl2r gallery adapt` needs no images")
    return lines
