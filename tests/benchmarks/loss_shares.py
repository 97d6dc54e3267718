"""How much of a method's loss is its own: the terms beside the cross-entropy, at the end of every later task.

    python -m tests.benchmarks.loss_shares [--preset icons] [--epochs 20] [--tasks 3] [--seeds 0 1] [--methods lucir]

The page that it writes says what the values mean.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from cl2r.config.layers import override, read_layer, resolve
from cl2r.config.methods import METHODS
from cl2r.engine.chain import execute
from cl2r.engine.plan import plan_run
from cl2r.runtime.environment import commit
from cl2r.runtime.progress import EpochReport
from cl2r.storage.path import at

LABELS = ("ce", "bce", "bias_ce", "adapted_ce", "lsc")
"""Terms that learn the labels, as every method does."""
MEANING = """A method whose own terms are next to nothing beside its cross-entropy trains as the method without them
would. The terms are means over the last epoch of a stage, with their weights. A method without any differs in its
classifier or data. Distillation of logits is a cross-entropy: it includes the entropy of the teacher's answers, which
no training removes."""


class Quiet:
    """A listener that shows nothing."""

    def begin(self, tasks: list[int]) -> None:
        """Do nothing."""

    def epoch(self, report: EpochReport) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Share:
    """The last losses of one stage of a task."""

    stage: str
    labels: float
    own: dict[str, float]

    @property
    def share(self) -> float:
        """Return the part of all terms that is the method's own, by absolute values; 0 without any."""
        own = sum(map(abs, self.own.values()))
        return own / (own + abs(self.labels)) if own else 0.0


def shares(curves: Iterable[Mapping[str, Any]]) -> list[Share]:
    """Return the losses at the end of every stage of a task, in order."""
    last = {row["stage"]: row for row in curves}
    found = []
    for stage, row in last.items():
        terms = {key.removeprefix("loss_"): value for key, value in row.items() if key.startswith("loss_")}
        labels = sum(value for name, value in terms.items() if name in LABELS)
        found.append(Share(stage, labels, {name: value for name, value in terms.items() if name not in LABELS}))
    return found


def measured(method: str, preset: str, settings: Iterable[str], folder: Path) -> list[dict[str, Any]]:
    """Train one chain with its links in a folder, where many methods share the first; return rows of later tasks."""
    layers = [override(f"method.name={method}"), *map(override, settings)]
    result = execute(plan_run(resolve([read_layer(preset), *layers])), folder, Quiet())
    rows = []
    for link in result.links[1:]:
        for found in shares(link.record["curves"]):
            values = {"labels": found.labels, "own": found.own, "share": found.share}
            rows.append({"method": method, "task": link.task, "stage": found.stage, **values})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of means over the seeds."""
    lines = ["| method | task | stage | learns the labels | its own terms | share of its own |"]
    lines.append("|---|---:|---|---:|---|---:|")
    for (method, task, stage), found in by_stage(rows).items():
        own = ", ".join(f"{name} {mean(row['own'][name] for row in found):.3f}" for name in found[0]["own"]) or "none"
        labels, share = (mean(row[column] for row in found) for column in ("labels", "share"))
        lines.append(f"| {method} | {task} | {stage} | {labels:.3f} | {own} | {share:.1%} |")
    return "\n".join(lines)


def by_stage(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int, str], list[Mapping[str, Any]]]:
    """Group rows that differ by their seed, in their order."""
    groups: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["task"], row["stage"]), []).append(row)
    return groups


def page(content: Mapping[str, Any]) -> str:
    """Return the page of kept measurements."""
    seeds = ", ".join(map(str, content["seeds"]))
    facts = (
        f"- command: `{content['command']}`",
        f"- commit: {content['commit']}",
        f"- seeds: {seeds}; values are means over them",
        f"- data: {content['preset']}, the first {content['tasks']} tasks, {content['epochs']} epochs",
    )
    title = "# How much of a loss is the method's own"
    return "\n\n".join([title, "\n".join(facts), MEANING, table(content["rows"])]) + "\n"


def main() -> None:
    """Train, print a Markdown table, and write it with its measurements if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="icons")
    parser.add_argument("--epochs", type=int, help="of every task (default: those of the preset)")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--out", type=Path, metavar="DIR/loss_shares", help="write .json and .md")
    args = parser.parse_args()
    settings = [f"scenario.stop_after={args.tasks}", "threads=1", "eval.bootstrap=0"]
    settings += [f"optim.epochs={args.epochs}"] if args.epochs else []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="cl2r-losses-") as folder:
        for name in args.methods:
            own: list[dict[str, Any]] = []
            for seed in args.seeds:
                found = measured(name, args.preset, [*settings, f"seed={seed}"], Path(folder))
                own += [{"seed": seed, **row} for row in found]
            print("\n".join(table(own).splitlines()[2 if rows else 0 :]), flush=True)
            rows += own
    if args.out:
        content = {"command": "make bench-losses", "commit": commit(), "preset": args.preset, "tasks": args.tasks}
        content |= {"epochs": resolve([read_layer(args.preset), *map(override, settings)]).optim.epochs}
        content |= {"seeds": args.seeds, "rows": rows}
        at(f"{args.out}.json").write_file(json.dumps(content, indent=1).encode())
        at(f"{args.out}.md").write_file(page(content).encode())


if __name__ == "__main__":
    main()
