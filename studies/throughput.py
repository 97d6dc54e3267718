"""How fast cl2r is beside the usual pipeline of such papers, both in this repository and measured in turns.

    python studies/throughput.py                                # everything, most of an hour on two cores
    python studies/throughput.py --parts data step --rounds 5
    python studies/throughput.py --small --parts simplex tar    # tiny sizes: seconds, figures of no use
    python studies/throughput.py --out results/throughput       # and throughput.json, throughput.md below results

The reference is plain research code: images one by one through PIL and torchvision in a DataLoader, fp32 NCHW, a copy
of the model as teacher over the whole batch, a dense simplex matrix, SGD as it comes, a gallery extracted anew for
every cell, thresholds 0 to 4 by 0.001 in a Python loop a fold. Images are generated, nothing is learnt. Both compute
the same: where values can be compared they are, and a difference ends the program. All runs on the CPU.

    data      images a second from uint8 images to augmented float batches
    step      images a second of a training step, by cell of the ablation, at task 2 of CIFAR-100's sizes
    paths     the step of CL²R compiled, in bf16, both; the fastest of them; seconds to compile
    matrix    the compatibility matrix of --tasks models (the reference of ten takes about 8 minutes)
    simplex   the fixed classifier of 10,575 classes, time and memory
    tar       TAR@FAR of 15.7 million pairs, time and memory
    links     a link written and read
    study     seconds a trial beyond training: plain Ray Tune and cl2r's study
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

from cl2r.errors import InputError, exit_code, nearest
from cl2r.files import write_file
from cl2r.study.about import command, environment
from studies.speed.memory import require_linux
from studies.speed.shown import joined, markdown, read_json, to_json
from studies.speed.sizes import SMALL, Sizes, check
from studies.speed.timing import Measured, say

Part = Callable[[Sizes, Path], Iterator[Measured]]
PARTS: Mapping[str, str] = {
    "data": "data_path",
    "step": "training_step",
    "paths": "step_variants",
    "matrix": "matrix",
    "simplex": "simplex",
    "tar": "accept_rates",
    "links": "links",
    "study": "study_overhead",
}
"""Modules; they are imported when needed, as some load Ray or torchvision."""


def measured(names: Sequence[str], sizes: Sizes) -> Iterator[Measured]:
    """The rows of the parts, as they come."""
    for name in names:
        part: Part = importlib.import_module(f"studies.speed.{PARTS[name]}").measure
        say(f"{name}: begun")
        with tempfile.TemporaryDirectory(prefix="cl2r-speed-") as folder:
            for row in part(sizes, Path(folder)):
                say(f"{name}: {row.what}: {row.ratio:.3g}×")
                yield row


def about(sizes: Sizes, words: Sequence[str]) -> dict[str, Any]:
    """How, where and with what it was measured."""
    return {
        "command": command(words),
        "machine": environment(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": sizes.threads,
        "sizes": dataclasses.asdict(sizes),
    }


def keep(out: Path, rows: Sequence[Measured], facts: Mapping[str, Any]) -> None:
    """Both files, whole; after every row, so that what was measured outlives what fails later.

    Parts that an earlier command measured on this machine, and this one does not, stay in them.
    """
    before = out.with_name(f"{out.name}.json")
    if before.exists():
        rows = joined(*read_json(before.read_text()), rows, facts)
    write_file(out.with_name(f"{out.name}.json"), f"{to_json(rows, facts)}\n".encode())
    write_file(out.with_name(f"{out.name}.md"), f"{markdown(rows, facts)}\n".encode())


def check_request(parts: Sequence[str], sizes: Sizes, out: Path | None) -> None:
    """Before anything is made."""
    for part in parts:
        if part not in PARTS:
            raise InputError(f"--parts {part}: no such part{nearest(part, PARTS)}; parts: {', '.join(PARTS)}")
    check(sizes)
    if {"simplex", "tar"} & set(parts):
        require_linux()
    if out is not None and not (out.name and out.parent.is_dir() and os.access(out.parent, os.W_OK)):
        raise InputError(f"--out {out}: {out.parent} is no folder that can be written to")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("throughput", description=__doc__, formatter_class=form)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    for name, text in (
        ("rounds", "in which all variants take turns"),
        ("threads", "of torch"),
        ("tasks", "models of the matrix"),
        ("check-cells", "of the matrix that are judged by exhaustion too (default: all)"),
        ("trials", "of the study"),
        ("study-rounds", "all trials so many times"),
    ):
        default = getattr(Sizes, name.replace("-", "_"))
        shown = "" if "default" in text else f" (default: {default})"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{text}{shown}")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it works")
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
