"""Is it safe to search a gallery of φ_k with φ_t, what would indexing it again gain, and what would that cost?

There are two answers, side by side: the compatibility matrix of the run (open classes of its data set), and a sample of
the owner's own images in labelled pairs. On the sample, with queries first and gallery second,

    old = accuracy of (φ_k, φ_k)    cross = (φ_t, φ_k)    new = (φ_t, φ_t)

`cross − old` is what the upgrade changes at once, `new − cross` what indexing again would add. The interval of a
difference is a paired bootstrap over pairs with fixed thresholds. The upgrade is safe if the interval of `cross − old`
lies above −tolerance, not safe if it lies below, and otherwise not known.
"""

import logging
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import ConfigDict

from cl2r.errors import NOT_KNOWN, NOT_SAFE, InputError
from cl2r.gallery.gallery import Gallery, Record, reason
from cl2r.gallery.images import decode
from cl2r.gallery.indexing import read_table
from cl2r.gallery.model import Model
from cl2r.runtime.text import clock
from cl2r.seeding import numpy_stream
from cl2r.storage.path import StoragePath
from cl2r.storage.seal import read_beside, run_owner
from cl2r.study.folder import finished_runs
from cl2r.study.frames import parse_frame
from cl2r.verification import mean_fold_accuracy, pair_correctness, squared_distances, stratified_folds

log = logging.getLogger(__name__)
SAMPLES, FOLDS, MOST_PAIRS = 2000, 10, 100_000
PAIRS, TOLERANCE = 2000, 0.01
"""Pairs that are drawn, and the loss of accuracy that still counts as safe, unless the user says otherwise."""
DECODED_AT_ONCE = 256  # images
COLUMNS = ("query", "gallery", "same")
Verdict = Literal["safe", "not safe", "not known"]
EXIT_CODES: dict[Verdict, int] = {"safe": 0, "not safe": NOT_SAFE, "not known": NOT_KNOWN}
Matrix = dict[tuple[int, int], float]  # accuracy by (t, k)


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
    images_per_second: float  # decoding and φ_t, on this machine

    def verdict(self, tolerance: float) -> Verdict:
        """Return whether the interval of the change is above -tolerance, below it, or neither."""
        if self.change.low > -tolerance:
            return "safe"
        return "not safe" if self.change.high < -tolerance else "not known"


class Answer(Record):
    """What `cl2r upgrade-check --json` prints: the verdict, a sentence that explains it, and the numbers."""

    model_config = ConfigDict(allow_inf_nan=False)

    old_model: str
    new_model: str
    verdict: Verdict
    sentence: str
    tolerance: float
    pairs: int
    old: float
    cross: float
    new: float
    change: Difference
    gain: Difference
    images_per_second: float


@dataclass(frozen=True)
class UpgradeCheck:
    """The upgrade of a gallery's queries from `old`, φ_k, to `new`, φ_t."""

    gallery: Gallery
    old: Model
    new: Model

    def __post_init__(self) -> None:
        old, new, commit = self.old.card, self.new.card, self.gallery.commit
        self.gallery.check_model(self.new.version)
        if old.key not in new.keys or old.task >= new.task:
            wanted = "give --old RUN@k and --new RUN@t of one run, with k below t"
            raise InputError(f"--new {new.name}: not a later model of the chain of {old.name}; {wanted}")
        if old.key not in commit.versions:
            there = ", ".join(version.name for version in commit.by_task)
            here = f"no vectors by it in {self.gallery.root}, which has {there or 'none at all'}"
            raise InputError(f"--old {old.name}: {here}; give a model that indexed it")

    def sample(self, pairs: pd.DataFrame) -> Sample:
        """Return the accuracies on pairs (query, gallery, same) of images in the gallery."""
        ids = pd.unique(pd.concat([pairs["query"], pairs["gallery"]]))
        items = self.gallery.items().drop_duplicates("id").set_index("id")
        missing = [name for name in ids if name not in items.index]
        if missing:
            outside = f"{len(missing)} images are not in the gallery, e.g. {missing[0]!r}"
            raise InputError(f"--pairs: {outside}; give ids such as {items.index[0]!r}")
        by_old, by_new, as_queries, seconds = [], [], [], 0.0
        for start in range(0, len(ids), DECODED_AT_ONCE):
            some, began = items.loc[list(ids[start : start + DECODED_AT_ONCE])].reset_index(), time.perf_counter()
            images, bad = decode(some, self.new.card)
            if bad:
                gone = f"{bad[0][0]} can no longer be read ({bad[0][1]})"
                raise InputError(f"{gone}; restore it, or choose other pairs by --pairs")
            by_new.append(self.new.embed(images))
            seconds += time.perf_counter() - began
            by_old.append(self.old.embed(images))
            as_queries.append(self.new.to_space_of(self.old.card.task, by_new[-1], images))
        olds, news, mixed = map(np.concatenate, (by_old, by_new, as_queries))
        rows = {name: row for row, name in enumerate(ids)}
        query, stored = (pairs[name].map(rows).to_numpy(np.int64) for name in ("query", "gallery"))
        mapped = self.new.map_gallery(self.old.card.task, olds)
        same = pairs["same"].to_numpy(np.bool_)
        folds = stratified_folds(same, min(FOLDS, int(same.sum()), int((~same).sum())))
        judged = [
            pair_correctness(squared_distances(*sides), same, folds)
            for sides in ((olds[query], olds[stored]), (mixed[query], mapped[stored]), (news[query], news[stored]))
        ]
        old, cross, new = (mean_fold_accuracy(correct, folds) for correct in judged)
        change, gain = _difference(judged[1], judged[0]), _difference(judged[2], judged[1])
        return Sample(len(pairs), old, cross, new, change, gain, len(ids) / seconds)

    def answer(self, sample: Sample, tolerance: float) -> Answer:
        """Return the verdict with its models and numbers, and a sentence that explains it."""
        verdict, changes = sample.verdict(tolerance), f"accuracy changes by {sample.change}, and the interval"
        sentences: dict[Verdict, str] = {
            "safe": f"The new model can search the old model's vectors: {changes} lies above {-tolerance:+.3f}.",
            "not safe": f"The new model should not search the old model's vectors: {changes} lies below "
            f"{-tolerance:+.3f}. Indexing them again would change it by {sample.gain}.",
            "not known": f"The pairs do not tell whether the new model can search the old model's vectors: {changes} "
            f"holds {-tolerance:+.3f}. More labelled pairs would tell.",
        }
        return Answer(
            old_model=self.old.card.name,
            new_model=self.new.card.name,
            verdict=verdict,
            sentence=sentences[verdict],
            tolerance=tolerance,
            **vars(sample),
        )

    def report_lines(self, sample: Sample, matrix: Matrix, tolerance: float, price: float) -> list[str]:
        """Return the answer as lines of text; `price` is that of one hour of this machine."""
        old, new = self.old.card, self.new.card
        t, k = new.task, old.task
        stale = sum(shard.items for shard in self.gallery.commit.of(old.key))
        seconds = stale / sample.images_per_second
        lines = [f"upgrade  {old.name} → {new.name}: {sample.verdict(tolerance)}"]
        if matrix:
            kept = "" if matrix[t, k] > matrix[k, k] else "not "
            cells = f"old {matrix[k, k]:.3f}  cross {matrix[t, k]:.3f}  new {matrix[t, t]:.3f}"
            lines.append(f"matrix   {cells}  ({kept}compatible on the run's open classes)")
        else:
            lines.append("matrix   not at hand: the model was exported, or its run is elsewhere (--storage)")
        lines += [
            f"sample   old {sample.old:.3f}  cross {sample.cross:.3f}  new {sample.new:.3f}  ({sample.pairs:,} pairs)",
            f"change   {sample.change} without indexing again; safe means above {-tolerance:+.3f}",
            f"gain     {sample.gain} by indexing again",
            f"cost     {stale:,} images, {clock(seconds)} at {sample.images_per_second:,.0f} images/s measured, "
            f"${seconds / 3600 * price:.2f} at ${price:.2f} per hour",
        ]
        if self.new.maps_gallery:
            lines.append(f"note     {new.method} maps the gallery instead: `cl2r gallery adapt` needs no images")
        return lines


def _difference(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> Difference:
    gains = first.astype(np.float64) - second
    rng = numpy_stream(0, "upgrade")
    means = [gains[rng.integers(len(gains), size=len(gains))].mean() for _ in range(SAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(float(gains.mean()), float(low), float(high))


def read_pairs(path: StoragePath) -> pd.DataFrame:
    """Read CSV or Parquet with the columns query, gallery (ids of images in the gallery) and same (0 or 1)."""
    option = f"--pairs {path}"
    pairs = read_table(path, "--pairs")
    missing = [name for name in COLUMNS if name not in pairs]
    if missing:
        raise InputError(f"{option}: no column {missing[0]!r}; it needs query, gallery and same")
    words = {"1": True, "0": False, "true": True, "false": False}
    same = pairs["same"].astype(str).str.strip().str.lower().map(words)
    if same.isna().any():
        raise InputError(f"{option}: line {int(np.argmax(same.isna())) + 2}: same must be 0 or 1")
    checked = pd.DataFrame({"query": pairs["query"].astype(str), "gallery": pairs["gallery"].astype(str), "same": same})
    return _checked(checked.astype({"same": bool}), option)


def draw_pairs(gallery: Gallery, count: int, seed: int = 0) -> pd.DataFrame:
    """Draw pairs from the labels of the gallery, half of them of the same label."""
    items = gallery.items()
    labelled = items[items["label"] != ""]
    groups = [group.to_numpy() for _, group in labelled.groupby("label")["id"] if len(group) > 1]
    if len(groups) < 2:
        raise InputError(
            "no pairs can be drawn, because fewer than two labels of the gallery have two images; give some by --pairs"
        )
    rng, rows = numpy_stream(seed, "upgrade_pairs"), []
    for number in range(2 * (count // 2)):
        if number % 2:
            first, second = (groups[group] for group in rng.choice(len(groups), size=2, replace=False))
            rows.append((rng.choice(first), rng.choice(second), False))
        else:
            rows.append((*rng.choice(groups[rng.integers(len(groups))], size=2, replace=False), True))
    pairs = pd.DataFrame(rows, columns=list(COLUMNS)).drop_duplicates()
    return _checked(pairs, "--sample")


def _checked(pairs: pd.DataFrame, option: str) -> pd.DataFrame:
    positives = int(pairs["same"].sum())
    if min(positives, len(pairs) - positives) < 2 or len(pairs) > MOST_PAIRS:
        found = f"{positives} pairs of the same thing and {len(pairs) - positives} of different things"
        raise InputError(f"{option}: {found}; at least 2 of each are needed, and at most {MOST_PAIRS} in all")
    own = pairs["query"] == pairs["gallery"]
    if own.any():
        raise InputError(f"{option}: {pairs.loc[own, 'query'].iloc[0]!r} is paired with itself; remove that pair")
    return pairs.reset_index(drop=True)


def read_answer(path: StoragePath) -> Answer:
    """Read what `cl2r upgrade-check --json` printed; raise InputError if it is something else."""
    wanted = "give a file with the output of `cl2r upgrade-check … --json`"
    try:
        return Answer.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"--check {path}: no such file; {wanted}") from error
    except ValueError as error:
        raise InputError(f"--check {path}: does not parse ({reason(error)}); {wanted}") from error


def run_matrix(run: str, storage: StoragePath) -> Matrix:
    """Return C of a run on its report pairs; empty if the storage does not have the run.

    If the frame of the run is damaged or missing, C is read from the ledger; without it there, it is empty. The log
    says so.
    """
    folder, frame = storage / "runs" / run, pd.DataFrame()
    path = folder / "matrix.parquet"
    try:
        frame = parse_frame(read_beside(path, run_owner(run, path.name)))
    except FileNotFoundError:
        if folder.exists():
            log.warning("%s is missing; run the command that wrote it again", path)
    except ValueError as error:
        log.warning("%s is damaged (%s); run the command that wrote it again", path, reason(error))
    if frame.empty and (event := finished_runs(storage).get(run)):
        try:
            frame = pd.DataFrame(event.read()["frames"]["matrix"])
        except InputError as error:
            log.warning("%s", error)
    if frame.empty:
        return {}
    report = frame[frame["pairs"] == "report"].drop_duplicates(["t", "k"])
    return {(int(row["t"]), int(row["k"])): float(row["accuracy"]) for row in report.to_dict("records")}
