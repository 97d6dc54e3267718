"""How fast cl2r is compared with the usual pipeline of such papers; both are measured in turns.

    python tests/benchmarks/throughput.py                                # everything, most of an hour on two cores
    python tests/benchmarks/throughput.py --parts data step --rounds 5
    python tests/benchmarks/throughput.py --small --parts simplex tar    # tiny sizes: seconds, values of no use
    python tests/benchmarks/throughput.py --out results/throughput  # and throughput.json, throughput.md below results

The reference is plain research code: images one by one through PIL and torchvision in a DataLoader, fp32 NCHW, a copy
of the model as teacher over the whole batch, a dense simplex matrix, SGD as it comes, a gallery extracted again for
every cell, thresholds 0 to 4 by 0.001 in one Python loop per fold. Images are generated, nothing is learnt. Both
compute the same: where values can be compared they are, and a difference ends the program. All runs on the CPU.

    data      images per second from uint8 images to augmented float batches
    step      images per second of a training step, by cell of the ablation, at task 2 of CIFAR-100's sizes
    paths     the step of CL²R compiled, in bf16, both; the fastest of them; seconds to compile
    matrix    the compatibility matrix of --tasks models (the reference of ten takes about 8 minutes)
    simplex   the fixed classifier of 10,575 classes, time and memory
    tar       TAR@FAR of 15.7 million pairs, time and memory
    links     a link written and read
    study     seconds per trial beyond training: plain Ray Tune and cl2r's study
"""

import argparse
import dataclasses
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cl2r.errors import InputError, nearest
from cl2r.runtime.environment import environment, shareable_command
from cl2r.runtime.logs import exit_code
from cl2r.storage.path import at
from tests.benchmarks.speed.harness import CLEAR_REFS, SMALL, Measured, Sizes, joined, markdown, read_json, say, to_json

Part = Callable[[Sizes, Path], Iterator[Measured]]
PARTS: Mapping[str, str] = {
    "data": "training.measure_data",
    "step": "training.measure_step",
    "paths": "training.measure_paths",
    "matrix": "matrix.measure",
    "simplex": "simplex.measure",
    "tar": "accept_rates.measure",
    "links": "links.measure",
    "study": "study_overhead.measure",
}
"""Functions of modules, which are imported when needed, as some load Ray or torchvision."""


def measured(names: Sequence[str], sizes: Sizes) -> Iterator[Measured]:
    """Yield the rows of the parts as they are measured."""
    for name in names:
        module, function = PARTS[name].split(".")
        part: Part = getattr(importlib.import_module(f"tests.benchmarks.speed.{module}"), function)
        say(f"{name}: begun")
        with tempfile.TemporaryDirectory(prefix="cl2r-speed-") as folder:
            for row in part(sizes, Path(folder)):
                say(f"{name}: {row.what}: {row.ratio:.3g}×")
                yield row


def about(sizes: Sizes, words: Sequence[str]) -> dict[str, Any]:
    """Return how, where and with what it was measured."""
    return {
        "command": shareable_command(words),
        "machine": environment(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": sizes.threads,
        "sizes": dataclasses.asdict(sizes),
    }


def keep(out: Path, rows: Sequence[Measured], facts: Mapping[str, Any]) -> None:
    """Write both files; called after every row, so that results survive a later failure.

    Parts that only an earlier command measured on this machine stay in the files.
    """
    before = out.with_name(f"{out.name}.json")
    if before.exists():
        rows = joined(*read_json(before.read_text(encoding="utf-8")), rows, facts)
    at(f"{out}.json").write_file(f"{to_json(rows, facts)}\n".encode())
    at(f"{out}.md").write_file(f"{markdown(rows, facts)}\n".encode())


def check_request(parts: Sequence[str], sizes: Sizes, out: Path | None) -> None:
    """Raise InputError if the request is invalid, before any work."""
    for part in parts:
        if part not in PARTS:
            raise InputError(f"--parts {part}: no such part{nearest(part, PARTS)}; parts: {', '.join(PARTS)}")
    sizes.check()
    if {"simplex", "tar"} & set(parts) and not CLEAR_REFS.exists():
        raise InputError(f"{CLEAR_REFS} is not there: memory (--parts simplex tar) is measured on Linux only")
    if out is not None and not (out.name and out.parent.is_dir() and os.access(out.parent, os.W_OK)):
        raise InputError(f"--out {out}: {out.parent} is no folder that can be written to")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("throughput", description=__doc__, formatter_class=form)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    for name, text in (
        ("rounds", "rounds in which all variants take turns"),
        ("threads", "threads of torch"),
        ("tasks", "number of models of the matrix"),
        ("check-cells", "cells of the matrix that are also checked by exhaustive search (default: all)"),
        ("trials", "trials of the study"),
        ("study-rounds", "how often all trials are run"),
    ):
        default = getattr(Sizes, name.replace("-", "_"))
        shown = "" if "default" in text else f" (default: {default})"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{text}{shown}")
    parser.add_argument("--small", action="store_true", help="use tiny sizes, to check that it works")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write FILE.json and FILE.md")
    return parser


def main(words: list[str] | None = None) -> int:
    """Measure and print a Markdown table."""
    args = vars(_parser().parse_args(words))
    names, small, out = list(dict.fromkeys(args.pop("parts"))), args.pop("small"), args.pop("out")
    given = {name: value for name, value in args.items() if value is not None}
    sizes = dataclasses.replace(SMALL if small else Sizes(), **given)
    check_request(names, sizes, out)
    torch.set_num_threads(sizes.threads)
    facts = about(sizes, sys.argv if words is None else [__file__, *words])
    rows: list[Measured] = []
    for row in measured(names, sizes):
        rows.append(row)
        if out is not None:
            keep(out, rows, facts)
    print(markdown(rows, facts))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code("throughput", main))
