"""One of the paper's tables or figures, beside what the paper's text says of it and whether these runs agree.

    python studies/paper.py --table 2                             # CIFAR10, two tasks, eleven methods
    python studies/paper.py --table 3 --seeds 0 1 2               # 3, 5 and 10 tasks
    python studies/paper.py --table ablation --out studies/results/ablation.md
    python studies/paper.py --figure bc --preset tiny_imagenet200
    python studies/paper.py --table 3 --methods er fan cl2r --counts 3 10 --set optim.epochs=10
    python studies/paper.py --table 3 --preset icons              # the same comparison on other data
    cl2r plan paper --table 7 --gpus-per-worker 1                 # what it would cost

Tables: 2 to 8, ablation (9). Figures: bc (2), memory (3). Each brings its preset, methods and task counts.
The text's statements are in analysis/reference/paper.yaml. Orders, signs and trends are judged at any budget, on means
over seeds; numbers only if all settings are those of the paper's preset; nothing on other data; see
analysis/paper/verdicts.py.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.paper.budget import preset_fields
from analysis.paper.items import ITEMS, Item
from analysis.paper.report import Report, document
from cl2r.errors import InputError, exit_code, nearest
from cl2r.files import Place, staged, write_file
from cl2r.study.command import given, run_command, storage_root, study_parser
from cl2r.study.folder import StudyFolder
from cl2r.study.spec import Study


def main(words: list[str] | None = None) -> int:
    """Run what the item needs, print it beside the paper's statements."""
    parser = _parser()
    args = parser.parse_args(words)
    name = chosen_item(args.table, args.figure)
    reference = reference_preset(ITEMS[name], args.preset, args.methods)
    command = ["cl2r", "study", "paper"] if words is not None else ["python", "studies/paper.py"]
    command += sys.argv[1:] if words is None else words
    if args.out is not None and not args.plan:
        check_out(args.out)

    def show(frames: dict[str, pd.DataFrame], _: Study) -> str:
        folder = StudyFolder(storage_root(args.storage), str(frames["runs"]["study"].iloc[0]))
        return present(name, frames, reference, folder.path, args.out, shlex.join(command))

    return run_command(args, Path(__file__).with_suffix(".yaml"), changes(name, args), show)


def _parser() -> argparse.ArgumentParser:
    parser = study_parser("paper", __doc__)
    item = parser.add_argument_group("item")
    item.add_argument("--table", metavar="N", help=f"one of {', '.join(_choices('table'))}")
    item.add_argument("--figure", metavar="NAME", help=f"one of {', '.join(_choices('figure'))}")
    item.add_argument("--methods", nargs="+", metavar="NAME", help="other rows than the paper's")
    item.add_argument("--counts", nargs="+", type=int, metavar="T", help="other numbers of tasks than the paper's")
    item.add_argument("--sizes", nargs="+", type=int, metavar="N", help="images a class, for --figure memory")
    item.add_argument("--out", type=Path, metavar="FILE.md", help="write everything there, with commit and command")
    return parser


def _choices(kind: str) -> list[str]:
    return [name.split()[1] for name in ITEMS if name.startswith(kind)]


def chosen_item(table: str | None, figure: str | None) -> str:
    """The one item that was asked for."""
    known = f"--table {', '.join(_choices('table'))}; --figure {', '.join(_choices('figure'))}"
    if (table is None) == (figure is None):
        raise InputError(f"give one table or one figure: {known}")
    kind, word = ("table", table) if table is not None else ("figure", figure)
    if f"{kind} {word}" not in ITEMS:
        raise InputError(f"--{kind} {word}: not one of these{nearest(str(word), _choices(kind))}: {known}")
    return f"{kind} {word}"


def changes(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What the item puts into the specification, as far as options do not say otherwise."""
    item = ITEMS[name]
    if args.sizes and not item.sizes:
        raise InputError(f"--sizes: {name} has one size of memory; use --set memory.per_class=N")
    if args.counts and args.tasks is not None:
        raise InputError("give --counts or --tasks, not both")
    grid = {"method.name": args.methods or [*item.methods], "scenario.n_tasks": args.counts or [*item.tasks]}
    if item.sizes:
        grid["memory.per_class"] = args.sizes or [*item.sizes]
    return {"grid": grid, **given({"preset": None if args.preset else item.presets[0]})}


def reference_preset(item: Item, preset: str | None, methods: Sequence[str] | None) -> str:
    """The preset that stands for the paper's settings; that it can be read is known before anything is trained."""
    reference = preset if preset in item.presets else item.presets[0]
    for method in methods or item.methods:
        preset_fields(reference, method)
    return reference


def check_out(out: Path) -> None:
    """Before anything is trained: the file can be written."""
    if out.suffix != ".md":
        raise InputError(f"--out {out}: a Markdown file ends in .md")
    out.parent.mkdir(parents=True, exist_ok=True)


def present(
    name: str, frames: dict[str, pd.DataFrame], preset: str, folder: Place, out: Path | None, command: str
) -> str:
    """The report as text; figures are drawn into the study's folder, and with `out` beside that file too."""
    item = ITEMS[name]
    report = Report.of_frames(name, item, frames, preset)
    lines, images = [report.text("terminal")], []
    if name.startswith("figure"):
        from analysis.paper.figures import draw, save

        drawn = draw(item, frames)
        with staged(folder) as here:
            saved = save(drawn, here / name.replace(" ", "_"))
        lines.append("figure: " + ", ".join(str(folder / path.name) for path in saved))
        images = [path.name for path in save(drawn, out.with_suffix(""))][:1] if out else []
    if out is not None:
        write_file(out, document(report, frames, command, images).encode())
        lines.append(f"written: {out}")
    return "\n\n".join(lines)


if __name__ == "__main__":
    sys.exit(exit_code("paper", main))
