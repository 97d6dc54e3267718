"""No quality lost: losses and compatibility matrices with and without each speed trick of the engine.

    python tests/benchmarks/tricks.py   # all variants, seeds 0 1 2, two chains at a time
    python tests/benchmarks/tricks.py --variants augmentation fused_sgd --epochs 1 --seeds 0 1
    python tests/benchmarks/tricks.py --out results/tricks                # tricks.json and tricks.md too

Every variant trains the first tasks of the same chains of CL²R as the engine does, in a storage of its own and with one
thread, so that all are computed alike. A variant replaces one trick by the plain way, or switches on one that is off by
default; all but `again`, the engine a second time, which must come out equal for the others to mean anything.

A row's differences are paired: variant minus engine at the same seed. `equal`: losses, weights, stored features and
cells of C are those of the engine, bit for bit; `within`: the mean difference of the last loss, of the mean accuracy
and of BC is at most the standard deviation of that figure over the seeds of the engine itself; else `outside`. A seed
draws the order of classes too, so the spread over seeds contains that of the orders.
"""

import argparse
import copy
import functools
import hashlib
import json
import multiprocessing
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torchvision.transforms import functional as transforms

from analysis.tables.formats import render
from analysis.tables.table import Cell, Table, number_cell
from cl2r.augment import Augmentation, Normalise
from cl2r.batches import Batch, RowKind
from cl2r.config.layers import override, read_layer, resolve
from cl2r.config.schema import Config
from cl2r.distillation import feature_distillation
from cl2r.engine import loop as task_loop
from cl2r.engine.chain import execute
from cl2r.engine.links import LinkStore
from cl2r.engine.loop import TaskLoop
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError, TrainingError, nearest
from cl2r.methods import incremental, rehearsal
from cl2r.methods.base import Losses, Method, Stage
from cl2r.methods.incremental import Incremental
from cl2r.runtime.logs import exit_code
from cl2r.runtime.progress import EpochReport
from cl2r.simplex import SimplexClassifier, simplex_vertices
from cl2r.storage.path import at

Verdict = Literal["equal", "within", "outside"]
Replacement = tuple[Any, str, Callable[..., Any]]
"""A module or class of the engine, a name in it, and the plain way."""
ENGINE, TASKS = "engine", 3
PAIRED = ("last loss", "mean accuracy", "BC")
_normalised, _optimiser = Normalise.__call__, TaskLoop.optimiser


# The plain ways


def normalised_nchw(self: Normalise, images: Tensor) -> Tensor:
    """In place of `Normalise`: the same values in NCHW memory."""
    # Not contiguous(): of one channel, it would leave strides that convolutions take for channels-last.
    return _normalised(self, images).clone(memory_format=torch.contiguous_format)


def frozen(module: nn.Module) -> nn.Module:
    """In place of `folded`: a frozen copy whose batch norms stay."""
    return copy.deepcopy(module).eval().requires_grad_(False)


def full_distillation(self: Incremental, batch: Batch, features: Tensor) -> Losses:
    """In place of `Incremental.distillation`: the teacher sees the whole batch, rows that FD needs not are dropped."""
    if self.weight == 0 or self.teacher is None:
        return {}
    on_all = self.config.method.fd == "all" or self.task.memory_rows == 0
    kind: RowKind = "all" if on_all else "memory"
    chosen = batch.rows(kind)
    fd = feature_distillation(features[chosen], self.old_features(batch.x)[chosen])
    return {"fd": self.weight * fd * batch.weight(kind)}


def unfused_optimiser(self: TaskLoop, method: Method, stage: Stage) -> torch.optim.Optimizer:
    """In place of `TaskLoop.optimiser`: one parameter after the other."""
    optimiser = _optimiser(self, method, stage)
    for group in optimiser.param_groups:
        group["fused"] = group["foreach"] = False
    return optimiser


def one_by_one(images: Tensor, augmentation: Augmentation, padding: int) -> Tensor:
    """In place of `crop_and_flip`: torchvision's pad, crop and flip of an image at a time, same offsets and flips."""
    _, height, width, _ = images.shape
    rows = []
    for image, offset, flip in zip(images.permute(0, 3, 1, 2), augmentation.offsets, augmentation.flips, strict=True):
        row = transforms.crop(transforms.pad(image, [padding]), *offset.tolist(), height, width)
        rows.append(transforms.hflip(row) if flip else row)
    return torch.stack(rows).permute(0, 2, 3, 1)


@functools.lru_cache(maxsize=2)
def _vertices(num_classes: int, device: torch.device) -> Tensor:
    return torch.from_numpy(simplex_vertices(num_classes)).float().to(device)


def dense_logits(self: SimplexClassifier, features: Tensor) -> Tensor:
    """In place of the closed form: z = scale · W f with the K × (K−1) matrix W."""
    with torch.autocast(features.device.type, enabled=False):
        return self.scale * nn.functional.linear(features.float(), _vertices(self.num_classes, features.device))


# Variants


@dataclass(frozen=True)
class Variant:
    """A trick taken away (`replaced`), or one that is off by default switched on (`setting`)."""

    name: str
    says: str
    replaced: tuple[Replacement, ...] = ()
    setting: str = ""


_LAYOUT = ((incremental, "channels_last", lambda module: module), (Normalise, "__call__", normalised_nchw))
_FOLDED = tuple((module, "folded", frozen) for module in (incremental, rehearsal))
_TEACHER = ((Incremental, "distillation", full_distillation),)
VARIANTS = (
    Variant("again", "none: the engine again"),
    Variant("channels_last", "channels-last memory: off", _LAYOUT),
    Variant("folding", "folded conv-bn of teacher and extractor: off", _FOLDED),
    Variant("teacher_rows", "teacher on the rows FD needs: on all rows", _TEACHER),
    Variant("fused_sgd", "fused SGD: off", ((TaskLoop, "optimiser", unfused_optimiser),)),
    Variant("augmentation", "whole-batch crop and flip: image by image", ((task_loop, "crop_and_flip", one_by_one),)),
    Variant("simplex", "closed-form simplex: dense matrix", ((SimplexClassifier, "forward", dense_logits),)),
    Variant("compile", "torch.compile: on", setting="optim.compile=true"),
    Variant("bf16", "bf16 autocast: on", setting="optim.precision=bf16"),
    Variant("float16", "stored features in float16: on", setting="eval.features=float16"),
)
NAMES = [variant.name for variant in VARIANTS]
KNOWN = {variant.name: variant for variant in (Variant(ENGINE, "the engine as it is"), *VARIANTS)}


@contextmanager
def taken_away(variant: Variant) -> Iterator[Counter[str]]:
    """The engine does it the plain way meanwhile. Gives how often each of the plain ways was gone, 0 for never."""
    calls = Counter({_title(entry): 0 for entry in variant.replaced})

    def counted(title: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*words: Any, **named: Any) -> Any:
            calls[title] += 1
            return plain(*words, **named)

        return call

    with ExitStack() as stack:
        for entry in variant.replaced:
            owner, name, plain = entry
            stack.enter_context(mock.patch.object(owner, name, counted(_title(entry), plain)))
        yield calls


def _title(entry: Replacement) -> str:
    return f"{entry[0].__name__}.{entry[1]}"


# Chains


@dataclass(frozen=True)
class Outcome:
    """What a chain came to."""

    variant: str
    seed: int
    losses: list[list[float]]
    """By task and epoch, the sum of all terms."""
    cells: list[float]
    """C[t, k], k ≤ t, on the report pairs."""
    mean_accuracy: float
    bc: float
    digest: str  # covers all weights and stored features

    def epoch(self, at: int) -> list[float]:
        """The loss of every task's epoch `at`."""
        return [task[at] for task in self.losses]

    def figure(self, name: str) -> float:
        """One of `PAIRED`; the last loss is the mean over tasks."""
        last = statistics.fmean(self.epoch(-1))
        return {"last loss": last, "mean accuracy": self.mean_accuracy, "BC": self.bc}[name]


class Quiet:
    """A listener that shows nothing."""

    def begin(self, tasks: list[int]) -> None:
        """Nothing."""

    def epoch(self, report: EpochReport) -> None:
        """Nothing."""


def chain_config(variant: Variant, seed: int, epochs: int, preset: str = "icons") -> Config:
    """The first tasks of the preset's chain, its schedule shortened to `epochs`."""
    base = read_layer(preset)
    optim = resolve([base]).optim
    milestones = sorted({at * epochs // optim.epochs for at in optim.milestones} - {0})
    words = [f"seed={seed}", "threads=1", f"scenario.stop_after={TASKS}", "eval.bootstrap=0"]
    words += [f"optim.epochs={epochs}", f"optim.milestones={milestones}", *filter(None, [variant.setting])]
    return resolve([base, *map(override, words)])


def run_chain(variant: Variant, config: Config, root: Path) -> Outcome:
    """Train and evaluate below `root`; a plain way that the engine never went would make the comparison void."""
    plan = plan_run(config)
    with taken_away(variant) as calls:
        result = execute(plan, root, Quiet())
    unused = [title for title, count in calls.items() if not count]
    if unused:
        raise TrainingError(f"{variant.name}: the engine never called {', '.join(unused)}")
    losses = [[_summed(row) for row in link.record["curves"]] for link in result.links]
    report, digest = result.report, _digest(LinkStore(root), plan.keys)
    cells: list[float] = report.matrix[np.tril_indices(len(report.matrix))].tolist()
    mean, bc = report.values["mean_accuracy"], report.values["BC"]
    return Outcome(variant.name, config.seed, losses, cells, mean, bc, digest)


def _summed(row: Mapping[str, Any]) -> float:
    return float(sum(value for name, value in row.items() if name.startswith("loss_")))


def _digest(store: LinkStore, keys: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for key in keys:
        for kept in (store.state(key), store.features(key)):
            for name in sorted(kept):
                digest.update(name.encode() + np.ascontiguousarray(kept[name].numpy()).tobytes())
    return digest.hexdigest()


def _alone(name: str, seed: int, epochs: int, preset: str) -> Outcome:
    """In one of the processes, in a storage that is gone afterwards."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="cl2r-tricks-") as folder:
        return run_chain(KNOWN[name], chain_config(KNOWN[name], seed, epochs, preset), Path(folder))


def measure(variants: Sequence[str], seeds: Sequence[int], epochs: int, preset: str, processes: int) -> list[Outcome]:
    """All chains, the engine's among them; progress on stderr."""
    context, outcomes = multiprocessing.get_context("spawn"), []
    with ProcessPoolExecutor(processes, context) as pool:
        names = [ENGINE, *variants]
        waiting = [pool.submit(_alone, name, seed, epochs, preset) for name in names for seed in seeds]
        for number, done in enumerate(as_completed(waiting), 1):
            if done.exception():
                pool.shutdown(wait=False, cancel_futures=True)
            row = done.result()
            print(f"{number} of {len(waiting)}: {row.variant}, seed {row.seed}", file=sys.stderr, flush=True)
            outcomes.append(row)
    return outcomes


# Comparison


@dataclass(frozen=True)
class Paired:
    """Differences of a figure at equal seeds: mean and standard deviation; and that of the engine over its seeds."""

    mean: float
    deviation: float
    seeds_deviation: float


@dataclass(frozen=True)
class Compared:
    """A variant against the engine; absolute differences as (mean, largest) over tasks or cells, and seeds."""

    variant: str
    first_loss: tuple[float, float]
    last_loss: tuple[float, float]
    cells: tuple[float, float]
    paired: dict[str, Paired]
    verdict: Verdict


def verdict(equal: bool, paired: Iterable[Paired]) -> Verdict:
    """What the differences amount to."""
    if equal:
        return "equal"
    return "within" if all(abs(entry.mean) <= entry.seeds_deviation for entry in paired) else "outside"


def compare(outcomes: Sequence[Outcome], name: str) -> Compared:
    """At least two seeds of a variant, and those of the engine."""
    engine = {row.seed: row for row in outcomes if row.variant == ENGINE}
    pairs = [(row, engine[row.seed]) for row in outcomes if row.variant == name]
    paired = {}
    for figure in PAIRED:
        differences = [own.figure(figure) - other.figure(figure) for own, other in pairs]
        spread = statistics.stdev(other.figure(figure) for _, other in pairs)
        paired[figure] = Paired(statistics.fmean(differences), statistics.stdev(differences), spread)
    first, last = (_apart((own.epoch(at), other.epoch(at)) for own, other in pairs) for at in (0, -1))
    cells = _apart((own.cells, other.cells) for own, other in pairs)
    equal = all(replace(own, variant=ENGINE) == other for own, other in pairs)
    return Compared(name, first, last, cells, paired, verdict(equal, paired.values()))


def _apart(pairs: Iterable[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float]:
    differences = [abs(a - b) for own, other in pairs for a, b in zip(own, other, strict=True)]
    return statistics.fmean(differences), max(differences)


def table(rows: Sequence[Compared], notes: Sequence[str] = ()) -> Table:
    """A row a variant."""
    absolute = ("first loss, mean |Δ|", "largest", "last loss, mean |Δ|", "largest", "C, mean |Δ|", "largest")
    heads = ("trick", *absolute, *(word for name in PAIRED for word in (f"Δ {name}", "sd of seeds")), "verdict")
    body = []
    for row in rows:
        figures = [number_cell(value, ".1e") for value in (*row.first_loss, *row.last_loss)]
        figures += [number_cell(value, ".4f") for value in row.cells]
        for name in PAIRED:
            entry = row.paired[name]
            figures += [Cell(f"{entry.mean:+.4f} ± {entry.deviation:.4f}", entry.mean)]
            figures += [number_cell(entry.seeds_deviation, ".4f")]
        body.append((Cell(KNOWN[row.variant].says), *figures, Cell(row.verdict)))
    return Table(heads, tuple(body), pd.json_normalize([asdict(row) for row in rows]), "", tuple(notes))


def check(variants: Sequence[str], seeds: Sequence[int], epochs: int, preset: str, processes: int) -> None:
    """Before anything is trained; all configs are resolved and planned."""
    for name in variants:
        if name not in NAMES:
            raise InputError(f"--variants {name}{nearest(name, NAMES)}: one of {', '.join(NAMES)}")
    if len(set(seeds)) < max(2, len(seeds)) or len(set(variants)) < len(variants):
        raise InputError("--seeds: at least two, for there to be a spread; no seed and no variant twice")
    if epochs < 1 or processes < 1:
        raise InputError("--epochs and --processes: at least 1")
    for name in (ENGINE, *variants):
        config = chain_config(KNOWN[name], seeds[0], epochs, preset)
        if config.method.name != "cl2r":
            raise InputError(f"--preset {preset}: trains {config.method.name}, the tricks are those of cl2r")
        plan_run(config)


def main(words: list[str] | None = None) -> int:
    """Train, compare, print a Markdown table."""
    parser = argparse.ArgumentParser(
        "tricks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="of a task (default: 5)")
    parser.add_argument("--preset", default="icons", help="a name or a YAML file (default: icons)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="chains at a time (default: 2)")
    parser.add_argument("--out", type=Path, metavar="DIR/tricks", help="write DIR/tricks.json and DIR/tricks.md")
    args = parser.parse_args(words)
    check(args.variants, args.seeds, args.epochs, args.preset, args.processes)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    outcomes = measure(args.variants, args.seeds, args.epochs, args.preset, args.processes)
    rows = [compare(outcomes, name) for name in args.variants]
    notes = (
        f"CL²R, preset {args.preset}, first {TASKS} tasks, {args.epochs} epochs a task, "
        f"seeds {', '.join(map(str, args.seeds))}, one thread a chain; torch {torch.__version__}.",
        "Losses are sums of all terms, means of an epoch. Δ: variant minus engine at equal seeds, mean ± standard "
        "deviation; sd of seeds: of the engine itself. A seed draws the order of classes too.",
    )
    text = render(table(rows, notes), "markdown")
    if args.out:
        content = {"rows": [asdict(row) for row in rows], "outcomes": [asdict(row) for row in outcomes]}
        at(f"{args.out}.json").write_file(json.dumps(content, indent=1).encode())
        at(f"{args.out}.md").write_file(f"{text}\n".encode())
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code("tricks", main))
