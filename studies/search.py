"""Search after upgrades: queries by the new model, a gallery by an old one (the paper's Algorithm 2), 1:N with labels.

    python studies/search.py                                           # er and cl2r, five tasks, seed 0
    python studies/search.py --seeds 0 1 2 --set optim.epochs=10 --set 'optim.milestones=[7,9]'
    python studies/search.py --methods er fan cl2r cl2r+aligner --draws 20
    cl2r plan search --seeds 0 1 2                                     # what it would cost

All open images are queries and gallery, none is its own hit. Of every run:

    retrieval      C[t,k] by recall@1, 5, 10 and mAP, with 95 % intervals over queries
    compatibility  AC, BC, FC of these matrices
    backfill       queries by φ_T while the gallery goes from φ_1 to φ_T, in three orders (cl2r/search/backfill.py)
    formats        the gallery as float32, float16, or codes of a product quantiser that are not compared again
    indexes        kinds of index against the exact search, on the run's own gallery: too small to say which is fast

Each is a Parquet file in the folder `search` of the study, or in --out; tables (search.md) and figures lie beside them.
Cost on two cores with the default preset: about a minute and a half a run to train, a minute to measure.
studies/results/search_icons.md has what came out; studies/search_scale.py measures indexes of a million vectors.
"""

import argparse
import shlex
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
import pandas as pd

from analysis.formats import render
from analysis.search_tables import search_document, search_tables
from cl2r.engine.evaluation import ChainFeatures, Evaluation
from cl2r.engine.plan import Plan, plan_run
from cl2r.engine.run import Chain
from cl2r.errors import InputError, exit_code
from cl2r.files import Place, staged, write_file
from cl2r.progress import ProgressLine
from cl2r.search.backfill import FRACTIONS, ORDERS, Upgrade, backfill, order_rows
from cl2r.search.index import IndexOptions, Kind, NearSearch, build, exact_search
from cl2r.search.retrieval import METRICS, Integers, Truth, Vectors, evaluate, retrieved, unit
from cl2r.study.command import given, run_command, storage_root, study_parser
from cl2r.study.folder import StudyFolder
from cl2r.study.jobs import grid_jobs
from cl2r.study.spec import Study, read_study

SPEC = Path(__file__).with_suffix(".yaml")
FRAMES = ("retrieval", "compatibility", "backfill", "formats", "indexes")
FORMATS = ("float32", "float16", "pq32", "pq16", "pq8")
"""pq: the number is bytes a vector."""
INDEXES: tuple[Kind, ...] = ("exact", "ivf", "hnsw", "pq")
CENTROIDS = 256
"""Of a byte of a code: a product quantiser needs as many rows to learn from."""
TOP, REPEATS = 10, 5
Name = TypeVar("Name", bound=str)
Row = dict[str, Any]
Rows = Iterator[Row]
Find = Callable[[Vectors], tuple[Vectors, Integers]]


def main(words: list[str] | None = None) -> int:
    """Run what is missing, measure, print the tables."""
    args = _parser().parse_args(words)
    changes = {"grid": given({"method.name": args.methods})}
    _check(args, changes)
    command = ["cl2r", "study", "search"] if words is not None else ["python", "studies/search.py"]
    command += sys.argv[1:] if words is None else words

    def show(frames: dict[str, pd.DataFrame], study: Study) -> str:
        storage = storage_root(args.storage)
        folder = StudyFolder(storage, str(frames["runs"]["study"].iloc[0])).path / "search"
        measured = measure_runs(study, frames["runs"], storage, args.draws)
        return present(frames, measured, args.out or folder, shlex.join(command))

    return run_command(args, SPEC, changes, show)


def _parser() -> argparse.ArgumentParser:
    parser = study_parser("search", __doc__)
    own = parser.add_argument_group("search")
    own.add_argument("--methods", nargs="+", metavar="NAME", help="method or method+adapter (default: er cl2r)")
    own.add_argument("--draws", type=int, default=5, metavar="N", help="random orders of a backfill (default: 5)")
    own.add_argument("--out", type=Path, metavar="DIR", help="for frames, tables and figures")
    return parser


def _check(args: argparse.Namespace, changes: dict[str, Any]) -> None:
    """Before anything is trained: there is an upgrade, and something to search for."""
    if args.draws < 1:
        raise InputError(f"--draws {args.draws}: at least 1")
    data = given({"data.name": args.data, "data.root": args.data_root})
    overrides = [*args.overrides, *(f"{field}={value}" for field, value in data.items())]
    basis = given({"preset": args.preset, "seeds": args.seeds})
    study = read_study(SPEC, {**basis, **changes}, overrides, args.tasks)
    check_plan(plan_run(study.config(study.points()[0], study.spec.seeds[0])))
    if args.out is not None and not args.plan:
        args.out.mkdir(parents=True, exist_ok=True)


def check_plan(plan: Plan) -> None:
    """Refuse data and scenarios that this study has no question for."""
    name = plan.dataset.name
    if plan.dataset.templates is not None:
        raise InputError(f"{name} compares templates whose people are not named: there is nothing to search for")
    if len(plan.keys) < 2:
        raise InputError(f"{name} in one task: an upgrade needs two models, use --tasks 2 or more")
    if not Truth.of_same_images(plan.dataset.y_open).answerable.any():
        raise InputError(f"{name}: no class of the open images has two of them, there is nothing to search for")


def measure_runs(study: Study, runs: pd.DataFrame, storage: Place, draws: int) -> dict[str, pd.DataFrame]:
    """The frames of all finished runs."""
    finished = set(runs.loc[runs["status"] == "finished", "run"])
    rows: dict[str, list[Row]] = {name: [] for name in FRAMES}
    for run in (job.runs[0] for job in grid_jobs(study) if job.runs[0].name in finished):
        print(f"search {run.title}", flush=True)
        plan = plan_run(run.config)
        head = {"run": run.name, "method": plan.config.method.name, "seed": plan.config.seed}
        for name, found in measure(plan, chain_features(plan, storage), draws).items():
            rows[name] += [head | row for row in found]
    return {name: pd.DataFrame(rows[name]) for name in FRAMES}


def chain_features(plan: Plan, storage: Place) -> ChainFeatures:
    """What the links of a run keep of the open images; a link that was lost since is trained again."""
    chain = Chain(plan, storage, ProgressLine(len(plan.keys)), owner="")
    for task, key in zip(chain.tasks, plan.keys, strict=True):
        if not chain.store.has(key):
            chain.reach(task)
    return chain.features(len(plan.keys))


def measure(plan: Plan, features: ChainFeatures, draws: int) -> dict[str, Rows]:
    """Rows of every frame."""
    labels, spec = plan.dataset.y_open, plan.config.eval
    evaluations = evaluate(features, labels, spec.bootstrap, spec.pairs_seed, spec.ties)
    return {
        "retrieval": _cells(evaluations),
        "compatibility": _summaries(evaluations),
        "backfill": _backfill(features, labels, draws),
        "formats": _formats(features, labels),
        "indexes": _indexes(features),
    }


def _cells(evaluations: dict[str, Evaluation]) -> Rows:
    for metric, found in evaluations.items():
        for t, k in zip(*np.tril_indices(len(found.matrix)), strict=True):
            bounds = found.intervals
            ends = {"low": bounds.low[t, k], "high": bounds.high[t, k]} if bounds else {"low": np.nan, "high": np.nan}
            place = {"t": int(t) + 1, "k": int(k) + 1, "metric": metric}
            yield {**place, "value": found.matrix[t, k], **ends, "compatible": bool(found.compatible[t, k])}


def _summaries(evaluations: dict[str, Evaluation]) -> Rows:
    for metric, found in evaluations.items():
        values = {"AC": found.ac, "BC": found.bc, "FC": found.fc}
        for name, value in values.items():
            low, high = getattr(found.intervals, name.lower()) if found.intervals else (np.nan, np.nan)
            yield {"metric": metric, "summary": name, "value": value, "low": low, "high": high}


def _backfill(features: ChainFeatures, labels: Integers, draws: int) -> Rows:
    """From the first model to the last."""
    upgrade = Upgrade.of(features, len(features.models) - 1, 0, labels)
    orders = [(order, draw) for order in ORDERS for draw in range(draws if order == "random" else 1)]
    curves = backfill(upgrade, [order_rows(upgrade, order, draw) for order, draw in orders])
    for (order, draw), curve in zip(orders, curves, strict=True):
        for fraction, values in zip(FRACTIONS, curve, strict=True):
            for metric, value in zip(METRICS, values, strict=True):
                yield {"order": order, "draw": draw, "fraction": fraction, "metric": metric, "value": value}


def _formats(features: ChainFeatures, labels: Integers) -> Rows:
    """The old system, the upgraded one, and the one embedded anew, with galleries kept in few bytes."""
    last, truth = len(features.models) - 1, Truth.of_same_images(labels)
    known = truth.answerable
    for t, k in ((0, 0), (last, 0), (last, last)):
        queries, gallery = unit(features.query(t, k)), unit(features.gallery(t, k))
        for form in possible(FORMATS, len(gallery)):
            vectors, size = kept(gallery, form)
            values = retrieved(queries, vectors, truth)[known].mean(axis=0)
            for metric, value in zip(METRICS, values, strict=True):
                yield {"format": form, "bytes": size, "t": t + 1, "k": k + 1, "metric": metric, "value": value}


def possible(names: Sequence[Name], rows: int) -> list[Name]:
    """Those that so many rows allow."""
    return [name for name in names if rows >= CENTROIDS or not name.startswith("pq")]


def kept(vectors: Vectors, form: str) -> tuple[Vectors, int]:
    """Vectors as they come back from a gallery that keeps them so, and bytes a vector."""
    dim = vectors.shape[1]
    if not form.startswith("pq"):
        kind = np.dtype(form)
        return vectors.astype(kind).astype(np.float32), dim * kind.itemsize
    size = int(form.removeprefix("pq"))
    padded = np.pad(vectors, ((0, 0), (0, -dim % size)))
    quantiser: Any = faiss.ProductQuantizer(padded.shape[1], size, 8)
    quantiser.cp.min_points_per_centroid = 1  # else FAISS complains of small galleries, once a byte
    quantiser.train(padded)
    return np.ascontiguousarray(quantiser.decode(quantiser.compute_codes(padded))[:, :dim]), size


def _indexes(features: ChainFeatures) -> Rows:
    """Queries of the last model in the gallery of the first; all queries at once."""
    last = len(features.models) - 1
    queries, gallery = unit(features.query(last, 0)), unit(features.gallery(last, 0))
    _, right = exact_search([gallery], queries, TOP)
    for kind in possible(INDEXES, len(gallery)):
        search, seconds = _built(kind, gallery)
        _, found = search(queries)
        recall = (found[:, :, None] == right[:, None, :]).any(axis=2).mean()
        speed = len(queries) / statistics.median(timeit.repeat(partial(search, queries), number=1, repeat=REPEATS))
        shape = {"kind": kind, "rows": len(gallery), "dim": gallery.shape[1]}
        yield {**shape, "recall@10": recall, "queries_per_second": speed, "build_seconds": seconds}


def _built(kind: Kind, gallery: Vectors) -> tuple[Find, float]:
    """A search of this kind, and how long it took to build."""
    if kind == "exact":
        return lambda queries: exact_search([gallery], queries, TOP), 0.0
    options = IndexOptions(kind=kind).chosen(*gallery.shape)
    began = time.perf_counter()
    near = NearSearch(build([gallery], options), options, [gallery])
    return lambda queries: near(queries, TOP), time.perf_counter() - began


def present(frames: dict[str, pd.DataFrame], measured: dict[str, pd.DataFrame], out: Place, command: str) -> str:
    """Write everything below `out`; the tables for the terminal."""
    from analysis.plots.search import write_search_figures  # not before training: Matplotlib takes a while to load

    tables = search_tables(measured)
    with staged(out) as here:
        for name, frame in measured.items():
            write_file(here / f"{name}.parquet", frame.to_parquet(index=False))
        drawn = write_search_figures(frames["runs"], measured["backfill"], measured["retrieval"], here)
        images = [path.name for path in drawn if path.suffix == ".png"]
        write_file(here / "search.md", search_document(frames, tables, command, images).encode())
    written = ", ".join([f"{name}.parquet" for name in measured] + ["search.md", *images])
    return f"{render(tables, 'terminal')}\n\nwritten to {out}: {written}"


if __name__ == "__main__":
    sys.exit(exit_code("search", main))
