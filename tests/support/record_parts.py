"""What the code of a tree does, part by part; `record.py` starts this file once for each part.

The packages are those of the recorded tree, which is also the working directory. What the command line and the files
it leaves can tell is taken from there; names inside the packages stand in `internals` alone.
"""

import contextlib
import csv
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import click
import numpy as np
import pandas as pd
import yaml
from pyarrow import fs

FRAMES = ("runs", "tasks", "matrix", "curves")
TIMES = re.compile("seconds|per_second|peak_bytes")
"""Columns that differ from one time to the next."""
CONFIG = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+|run|key|seed|threads")
"""Columns that part (b) guards; part (a) does without them, so that it stays the same if links get other keys."""
QUICK = {"threads": 1, "optim.epochs": 1, "optim.milestones": []}
UNEQUAL = {"scenario.n_tasks": "null", "scenario.initial": 40, "scenario.increment": 30}
"""Three tasks: with two equal ones all rules for λ agree, and nothing that first acts in the third task is seen."""
SHORTER = {"fan": {"fan.epochs": 2}, "bic": {"bic.bias_epochs": 5}, "podnet": {"podnet.finetune_epochs": 2}}
"""For methods whose names begin so."""
OTHERWISE: dict[str, dict[str, Any]] = {
    "cl2r, trained otherwise": {
        **{"optim.epochs": 2, "optim.milestones": [1], "optim.lr_later": 0.05, "head.projection": "mlp"},
        **{"augment.crop": "resized", "augment.flip": "true", "simplex.scale": "legacy", "memory.selection": "herding"},
        **{"method.lambda_rule": "const", "eval.metric": "tar", "eval.far": [0.1, 0.01]},
    },
    "er, evaluated otherwise": {
        **{"scenario.initial": 60, "scenario.increment": 40, "optim.schedule": "cosine", "batches.batching": "natural"},
        **{"head.preallocate": "true", "eval.features": "float16", "eval.normalise": "own", "eval.thresholds": "grid"},
        **{"eval.order": "official_order", "eval.tuning_share": 0, "eval.ties": "true", "eval.bootstrap": 50},
    },
}
"""Runs of the method before the comma that go ways which the defaults do not."""
STUDIES: dict[str, dict[str, Any]] = {
    "grid": {"seeds": [0, 1], "grid": {"method.name": ["er", "cl2r"]}},
    "sweep": {"seeds": [0], "space": {"method.lambda_base": {"low": 1.0, "high": 9.0}}, "search": {"trials": 3}},
}
NOTES = "notes"
"""What stands below this key may differ; it is listed."""
ACCESS = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_EC2_METADATA_DISABLED": "true"}


def internals() -> SimpleNamespace:
    """Return what only the packages themselves can tell. A name that moves gets its new module here, first."""
    return SimpleNamespace(
        methods=_first("METHODS", "cl2r.config.methods", "cl2r.methods.catalog"),
        adapters=_first("ADAPTERS", "cl2r.config.methods", "cl2r.config.builtin", "cl2r.methods.catalog"),
        presets=_first("presets", "cl2r.config.layers", "cl2r.layers"),
        read_layer=_first("read_layer", "cl2r.config.layers", "cl2r.layers"),
        resolve=_first("resolve", "cl2r.config.layers", "cl2r.layers"),
        link_keys=_first("link_keys", "cl2r.config.keys", "cl2r.link_keys"),
        run_name=_first("run_name", "cl2r.engine.frames", "cl2r.engine.records"),
        refused=_first("InputError", "cl2r.errors"),
    )


def _first(name: str, *modules: str) -> Any:
    """Return `name` of the first of the modules that has it."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if not error.name or not module.startswith(error.name):
                raise
        except AttributeError:
            continue
    raise LookupError(f"none of {', '.join(modules)} has {name}: say in `internals` where it is now")


@cache
def _entry() -> tuple[Any, str]:
    """Return the module of the command line and the name of its main function, as the tree's pyproject has them."""
    entry = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]["cl2r"]
    module, _, name = entry.partition(":")
    return importlib.import_module(module), name


def cl2r(*words: str) -> str:
    """Run `cl2r ...` in this process, as importing torch takes seconds; return what it prints."""
    module, name = _entry()
    return _printed(getattr(module, name), "cl2r", *words)


def _printed(main: Callable[[], Any], *words: str) -> str:
    """Call a program's main function with these words; return what it prints. A failure is an error."""
    sys.argv = [*words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            code: Any = main()
        except SystemExit as stopped:
            code = stopped.code
    if isinstance(code, int | str) and code != 0:
        raise RuntimeError(f"{' '.join(words)}: exit code {code}\n{out.getvalue()}")
    return out.getvalue()


class Store:
    """The files of a storage, on a disk or in an object store."""

    def __init__(self, address: str) -> None:
        self.files: Any = fs.LocalFileSystem()
        self.root = address
        if "://" in address:
            self.files, self.root = fs.FileSystem.from_uri(address)

    def names(self, ending: str) -> list[str]:
        """Return the paths of all files that end so."""
        found = self.files.get_file_info(fs.FileSelector(self.root, recursive=True, allow_not_found=True))
        return sorted(info.path for info in found if info.is_file and info.path.endswith(ending))

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self.files.open_input_stream(name) as stream:
            return bytes(stream.read())


def trained_run(storage: str, method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Run `cl2r run`; return the tensors of its links, task by task, and the values of its frames."""
    store = Store(storage)
    before = set(store.names("runs.parquet"))
    option = "--storage" if "--storage" in cl2r("run", "--help") else "--out"
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    cl2r("run", "icons", "--method", method, option, storage, *sets)
    (path,) = set(store.names("runs.parquet")) - before
    frames = {name: _frame(store.read(path.replace("runs.parquet", f"{name}.parquet"))) for name in FRAMES}
    links = {}
    for task, key in zip(frames["tasks"]["task"], frames["tasks"]["key"], strict=True):
        files = [name for name in store.names(".safetensors") if key in name]
        if len(files) < 2:
            raise LookupError(f"link {key} of {method}: no state and features in files with this key in their path")
        # The checksum of a file stands before its name.
        kinds = [re.sub(r"^[0-9a-f]{16,64}-", "", Path(name).stem) for name in files]
        links[f"task {task}"] = {kind: tensors(store.read(name)) for kind, name in zip(kinds, files, strict=True)}
    kept = {name: frame[[column for column in frame if not CONFIG.fullmatch(column)]] for name, frame in frames.items()}
    return {"links": links, "frames": {name: _values(frame) for name, frame in kept.items()}}


def tensors(content: bytes) -> dict[str, str]:
    """Return type, shape and SHA-256 of every tensor of a safetensors file."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    digests = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        digests[name] = f"{entry['dtype']} {entry['shape']} {hashlib.sha256(content[begin:end]).hexdigest()}"
    return digests


def _frame(content: bytes) -> Any:
    return pd.read_parquet(io.BytesIO(content))


def _values(frame: Any) -> dict[str, Any]:
    """Return the values of a frame by column, None where empty; of times only whether they are there."""
    columns = {}
    for name in frame.columns:
        values = frame[name].astype(object).where(frame[name].notna(), None).tolist()
        columns[name] = ["masked" if TIMES.search(name) and value is not None else value for value in values]
    return columns


def part_a(work: Path) -> dict[str, Any]:
    """Train some runs whose settings differ from the defaults, every method, and every adapter with two of them."""
    known = internals()
    runs: dict[str, dict[str, Any]] = {**OTHERWISE}
    for name in [*known.methods, *(f"{method}+{adapter}" for method in ("er", "cl2r") for adapter in known.adapters)]:
        runs[name] = next((settings for start, settings in SHORTER.items() if name.startswith(start)), {})
    storage = str(work / "store")
    chains = {name: (name.partition(",")[0], QUICK | UNEQUAL | settings) for name, settings in runs.items()}
    return {name: trained_run(storage, *chain) for name, chain in chains.items()}


def part_b(_: Path) -> dict[str, Any]:
    """Name the links and the runs of presets × methods × task counts, for made-up data."""
    known = internals()
    record: dict[str, Any] = {}
    eight = np.arange(8)
    pairs = SimpleNamespace(query=eight, gallery=eight[::-1], same=eight % 2 == 0, folds=eight // 2)
    names = [*known.methods, *(f"er+{adapter}" for adapter in known.adapters)]
    for preset, name, tasks, more in itertools.product(known.presets(), names, (2, 5), ({}, {"budget": "native"})):
        title = " ".join([preset, name, f"T{tasks}", *more.values()])
        layers = [known.read_layer(preset), {"scenario": {"n_tasks": tasks}}, {"method": {"name": name} | more}]
        try:
            config = known.resolve(layers)
        except known.refused:
            record[title] = "refused"
            continue
        classes = np.arange(100).reshape(tasks, -1).tolist()
        keys = known.link_keys(config, "0" * 64, classes, config.head.k_max or 100)
        data = SimpleNamespace(name=config.data.name)
        plan = SimpleNamespace(config=config, keys=keys, dataset=data, report_pairs=pairs, tuning_pairs=None)
        record[title] = {"run": known.run_name(plan), "links": keys}
    return record


def part_c(work: Path) -> dict[str, Any]:
    """Run small studies on Ray; report on them, and on a larger one that is made from the first, with fixed times."""
    record: dict[str, Any] = {"frames": {}, "tables": {}, "page": {}, NOTES: {}}
    for name, entries in STUDIES.items():
        content = {"preset": "icons", "set": {**QUICK, "scenario.n_tasks": 2}, **entries}
        (work / f"{name}.yaml").write_text(yaml.safe_dump(content))
        place = ["--storage", str(work / "store"), "--name", name]
        cl2r("study", str(work / f"{name}.yaml"), *place, "--max-concurrent", "1")
        (path,) = (work / "store").rglob(f"{name}/runs.parquet")
        frames = {frame: _frame((path.parent / f"{frame}.parquet").read_bytes()) for frame in FRAMES}
        for frame, rows in frames.items():
            dtypes = {column: str(dtype) for column, dtype in rows.dtypes.items()}
            described = {"columns": " ".join(rows.columns), "dtypes": dtypes, "values": _values(rows)}
            record["frames"].setdefault(name, {})[frame] = described
        copy_study(path.parent, work / "copies" / name, frames)
    made = made_study(work / "copies" / "grid", work / "copies" / "made")
    for folder in sorted((work / "copies").iterdir()):
        text = cl2r("report", str(folder), "--tables", "csv")
        cl2r("report", str(folder), *(["--figures", str(made / "figures")] if folder == made else []))
        record["tables"][folder.name] = table_numbers(text)
        record["page"][folder.name] = page_numbers((folder / "report.html").read_text())
        record[NOTES][f"CSV of {folder.name}"] = text.splitlines()
    pictures = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (made / "figures").glob("*.png")}
    record[NOTES]["figures"] = pictures
    return record


def copy_study(folder: Path, copy: Path, frames: dict[str, Any]) -> None:
    """Copy the files of a study, with times and memory that are the same every time: tables show them too."""
    copy.mkdir(parents=True)
    for path in [*folder.glob("*.yaml"), *folder.glob("*.json")]:
        (copy / path.name).write_bytes(path.read_bytes())
    about = copy / "about.json"
    fixed = {"began": "2026-01-01T10:00:00+00:00", "ended": "2026-01-01T10:01:00+00:00", "seconds": 60.0}
    about.write_text(json.dumps(json.loads(about.read_text()) | fixed))
    for name, frame in frames.items():
        for column in filter(TIMES.search, frame.columns):
            size = 2**20 if "bytes" in column else 1
            steps = [None if empty else size * (row + 1) for row, empty in enumerate(frame[column].isna())]
            frame[column] = type(frame[column])(steps, index=frame.index, dtype=frame[column].dtype)
        frame.to_parquet(copy / f"{name}.parquet", index=False)


def made_study(folder: Path, made: Path) -> Path:
    """Make a study of more seeds and one more field from a real one: its rows, with noise; one run failed."""
    noise = np.random.default_rng(0)
    frames = {name: _frame((folder / f"{name}.parquet").read_bytes()) for name in FRAMES}
    rows: dict[str, list[Any]] = {name: [] for name in FRAMES}
    first = frames["runs"].query("seed == 0")["run"]
    for number, (memory, seed, run) in enumerate(itertools.product((2, 4), (0, 1, 2), first)):
        for name, frame in frames.items():
            part = frame[frame["run"] == run].assign(run=f"{run}-{number}")
            for column in part.columns[part.columns.str.contains("AC|BC|FC|accuracy|^loss|cosine")]:
                part[column] += noise.normal(0, 0.01, len(part))
            if name == "runs":
                part = part.assign(**{"trial": number, "seed": seed, "memory.per_class": memory})
            if number == 5:
                failed = {"status": "failed", "reason": "died", "AC": None, "BC": None, "FC": None}
                part = part.assign(**failed) if name == "runs" else part[:0]
            rows[name].append(part.astype(frame.dtypes))
    made.mkdir()
    for name in FRAMES:
        pd.concat(rows[name]).to_parquet(made / f"{name}.parquet", index=False)
    text = yaml.safe_load((folder / "study.yaml").read_text())
    text["specification"]["grid"]["memory.per_class"], text["specification"]["seeds"] = [2, 4], [0, 1, 2]
    (made / "study.yaml").write_text(yaml.safe_dump(text))
    (made / "about.json").write_bytes((folder / "about.json").read_bytes())
    return made


def cell_numbers(text: str) -> list[float]:
    """Return the numbers of a cell that begins with one: `0.7 ± 0.1`, `[-0.1, +0.2]`, `1,024 kB`; none of words."""
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.strip().replace("−", "-"))
    if not re.match(r"[-+±<≤~\[(]*\d", plain):
        return []
    return [float(found) for found in re.findall(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", plain)]


def table_numbers(text: str) -> list[Any]:
    """Return the numbers of tables in CSV, by table, row and cell; heads and words are left out."""
    blocks = [[line for line in block.splitlines() if not line.startswith("# ")] for block in text.split("\n\n")]
    return [[[cell_numbers(cell) for cell in row] for row in list(csv.reader(block))[1:]] for block in blocks]


def page_numbers(html: str) -> dict[str, Any]:
    """Return the numbers of the JSON that a page holds, and those of the cells of its tables."""
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    if found is None:
        raise LookupError("the page holds no JSON")
    cells = re.findall(r"<td([^>]*)>([^<]*)<", html)
    order = [cell_numbers(value) for value in re.findall(r'data-value="([^"]*)"', html)]
    return {**_numbers(json.loads(found[1])), "cells": [cell_numbers(text) for _, text in cells], "sorted by": order}


def _numbers(value: Any, name: str = "") -> Any:
    """Return the same lists and mappings with numbers instead of texts."""
    if isinstance(value, dict):
        return {key: _numbers(entry, key) for key, entry in value.items()}
    if isinstance(value, list):
        return [_numbers(entry) for entry in value]
    if isinstance(value, str):
        return table_numbers(value) if name == "csv" else cell_numbers(value)
    return value


def part_d(_: Path) -> dict[str, Any]:
    """List commands with their options, and the options of the studies' own programs."""
    record: dict[str, Any] = {}

    def visit(command: click.Command, name: str) -> None:
        record[name] = {"/".join(param.opts): param.param_type_name for param in command.params}
        if isinstance(command, click.Group):
            context = click.Context(command)
            for word in command.list_commands(context):
                if inner := command.get_command(context, word):
                    visit(inner, f"{name} {word}")

    visit(next(entry for entry in vars(_entry()[0]).values() if isinstance(entry, click.Group)), "cl2r")
    for path in sorted(Path("studies").glob("*.py")):
        if "__main__" in path.read_text():
            text = _printed(partial(runpy.run_path, str(path), run_name="__main__"), str(path), "--help")
            record[str(path)] = dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text), "option")
    return {NOTES: record}


def part_e(_: Path) -> dict[str, Any]:
    """Train CL²R in an object store on this machine."""
    os.environ.update(ACCESS)
    command = [sys.executable, "-P", str(Path(__file__).with_name("object_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = quote(server.stdout.readline().strip(), safe="")
            query = f"region=eu-west-1&scheme=http&endpoint_override={address}"
            files, bucket = fs.FileSystem.from_uri(f"s3://record?{query}&allow_bucket_creation=true")
            files.create_dir(bucket)
            return {"cl2r": trained_run(f"s3://record/store?{query}", "cl2r", QUICK)}
        finally:
            server.terminate()


PARTS: dict[str, Callable[[Path], dict[str, Any]]]
PARTS = {"a": part_a, "b": part_b, "c": part_c, "d": part_d, "e": part_e}


def main(part: str, out: str) -> None:
    """Record one part of the tree in the working directory."""
    packages = importlib.import_module("cl2r").__file__
    if not packages or not Path(packages).resolve().is_relative_to(Path.cwd().resolve()):
        raise RuntimeError(f"cl2r is that of {packages}, not of {Path.cwd()}")
    with tempfile.TemporaryDirectory(prefix="cl2r-record-") as work:
        Path(out).write_text(json.dumps(PARTS[part](Path(work))))


if __name__ == "__main__":
    main(*sys.argv[1:])
