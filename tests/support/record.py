"""Record what the code does, and compare two commits: for changes that must not change behaviour.

    python tests/support/record.py --out record.json              # record this tree
    python tests/support/record.py --same 516e7e5                 # record that commit and this tree, and compare them
    python tests/support/record.py --same HEAD --parts b,d        # some parts only
    python tests/support/record.py --same record.json             # compare this tree with a record made before

Parts: (a) tensors, matrices and metrics of every method and adapter; (b) link keys and run names of presets × methods;
(c) frames, tables and page of small studies; (d) commands and their options, which may differ; (e) one run in an object
store. Columns of frames that only the newer tree has are listed and not compared; tables that show them differ.
Both trees must be recorded on one machine, as tensors differ between processors.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from record_parts import NOTES, PARTS

ROOT = Path(__file__).resolve().parents[2]
LISTED = 20  # differences of a part that are printed
WIDTH = 100  # characters of a value that are printed
FOREIGN = ("AWS_", "CL2R_", "RAY_", "TUNE_", "PYTHON")  # variables that begin so do not reach what is recorded
Leaves = dict[tuple[str, ...], Any]  # values by the keys that lead to them
_ONE_STUDY = threading.Lock()


def record(tree: Path, parts: Sequence[str], name: str) -> dict[str, Any]:
    """Record the tree, each part in a process in which its packages come first; no two studies at the same time."""
    found = {}
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="cl2r-record-") as work, contextlib.ExitStack() as stack:
            if part == "c":
                stack.enter_context(_ONE_STUDY)
            began, out, log = time.monotonic(), Path(work, "part.json"), Path(work, "log")
            environment = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
            environment |= {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
            environment |= {"CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": f"{work}/cache", "no_proxy": "127.0.0.1"}
            command = [sys.executable, "-P", str(ROOT / "tests/support/record_parts.py"), part, str(out)]
            with log.open("w") as lines:
                done = subprocess.run(command, cwd=tree, env=environment, stdout=lines, stderr=lines, check=False)
            if done.returncode:
                raise SystemExit(f"part {part} of {name} cannot be recorded:\n{log.read_text()[-4000:]}")
            found[part] = json.loads(out.read_text())
            print(f"recorded part {part} of {name} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Give the tree of a commit in a worktree that is removed afterwards."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="cl2r-base-") as folder:
        tree = Path(folder).resolve() / "tree"
        if subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=False).returncode:
            raise SystemExit(f"there is no commit {commit!r} to compare with")
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=False)


def leaves(value: Any, way: tuple[str, ...] = ()) -> Leaves:
    """Return every value that is not None."""
    if not isinstance(value, dict | list):
        return {} if value is None else {way: value}
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    return {inner: leaf for key, entry in entries for inner, leaf in leaves(entry, (*way, str(key))).items()}


def differences(base: Leaves, head: Leaves) -> tuple[list[str], list[str]]:
    """Return a line for every value that must not differ, and one for every value that may.

    The numbers of a table, or of one entry of a page's JSON, may have other names and places if they are the same.
    """
    wrong: list[str] = []
    notes: list[str] = []
    moved = set()
    for group in {way[:3] for way in (*base, *head) if way[0] in ("tables", "page")}:
        one, two = ({way: leaf for way, leaf in side.items() if way[:3] == group} for side in (base, head))
        if one.keys() != two.keys() and Counter(one.values()) == Counter(two.values()):
            moved.add(group)
    turns: dict[tuple[str, ...], int] = {}
    entries: Counter[tuple[str, ...]] = Counter()
    for way in sorted({*base, *head}):
        if base.get(way) != head.get(way):
            turns[way] = entries[way[:2]] = entries[way[:2]] + 1
    for way in sorted(turns, key=lambda way: turns[way]):  # the first one of every entry first
        line = f"{' / '.join(way)}: {_short(base.get(way))} -> {_short(head.get(way))}"
        (notes if way[0] == NOTES or way[:3] in moved else wrong).append(line)
    return wrong, notes


def frames_of(content: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the way to the columns of every frame of a part, and the columns."""
    for name, entry in content.items():
        if name == "frames":
            for study, frames in entry.items():
                yield from (((name, study, frame, "values"), kept["values"]) for frame, kept in frames.items())
        elif isinstance(entry, dict):
            yield from (((name, "frames", frame), columns) for frame, columns in entry.get("frames", {}).items())


def without_new_columns(base: dict[str, Any], head: dict[str, Any]) -> tuple[Leaves, list[str]]:
    """Return the leaves of `head` without columns of frames that `base` does not have, and the names of these."""
    before, values = dict(frames_of(base)), leaves(head)
    names: Counter[str] = Counter()
    for way, columns in frames_of(head):
        if new := columns.keys() - before.get(way, columns).keys():
            names.update(f"{column} of {way[2]}" for column in new)
            values = {
                key: " ".join(word for word in leaf.split() if word not in new) if key[3:] == ("columns",) else leaf
                for key, leaf in values.items()
                if key[:3] != way[:3] or not new & {*key[3:5]}
            }
    return values, [f"{name} ({count})" for name, count in sorted(names.items())]


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= WIDTH else f"{text[: WIDTH // 2]} … {text[-WIDTH // 2 :]}"


def compare(base: dict[str, Any], head: dict[str, Any]) -> bool:
    """Print what differs, part by part, and a summary; return whether nothing differs that must not."""
    summary, equal = [], True
    for part, content in sorted(head.items()):
        values, new = without_new_columns(base[part], content)
        wrong, notes = differences(leaves(base[part]), values)
        for title, lines in (("DIFFERS", wrong), ("differs, as it may", notes), ("has new columns, not compared", new)):
            if lines:
                more = [f"… and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
                print(f"{part} {title}:", *lines[:LISTED], *more, sep="\n  ")
        verdict = f"DIFFER in {len(wrong)}" if wrong else "equal"
        noted = f", {len(notes)} notes" if notes else ""
        summary.append(f"{part}: {_counted(part, content, values)} {verdict}{noted}")
        equal = equal and not wrong
    print(*summary, sep="\n")
    return equal


def _counted(part: str, content: dict[str, Any], values: Leaves) -> str:
    """Return how much there is of what was recorded."""
    if part in "ae":
        tensors = sum(way[1] == "links" for way in values)
        return f"{len(content)} runs, {tensors} tensors, {len(values) - tensors} values of frames"
    if part == "b":
        refused = sum(entry == "refused" for entry in content.values())
        return f"{len(content)} combinations, {refused} of them refused, {len(values)} names"
    if part == "c":
        return ", ".join(f"{sum(way[0] == kind for way in values)} values of {kind}" for kind in content)
    return f"{len(content[NOTES])} commands, {len(values)} options and arguments"


def main() -> int:
    """Return 0, or 1 if two trees differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, metavar="DIR", help="the tree to record (default: this one)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where to write its record")
    parser.add_argument("--same", metavar="BASE", help="a commit, or a record, to compare the tree with")
    parser.add_argument("--parts", default=",".join(PARTS), help="default: %(default)s")
    args = parser.parse_args()
    parts, tree = set(args.parts.split(",")), args.tree.resolve()
    if not parts <= set(PARTS) or (args.out is None) == (args.same is None):
        parser.error(f"give --out FILE.json or --same BASE; parts are {', '.join(PARTS)}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record(tree, sorted(parts), "the tree"), indent=1))
        return 0
    if Path(args.same).is_file():
        base = json.loads(Path(args.same).read_text())
        return 0 if compare(base, record(tree, sorted(parts & base.keys()), "the tree")) else 1
    # A core for each tree; one begins with the studies, the other one ends with them.
    with checkout(args.same) as old, ThreadPoolExecutor(2) as pool:
        before = pool.submit(record, old, sorted(parts, key="cabde".index), args.same)
        after = pool.submit(record, tree, sorted(parts, key="abdec".index), "the tree")
        return 0 if compare(before.result(), after.result()) else 1


if __name__ == "__main__":
    sys.exit(main())
