"""How much of a method's loss is its own: the terms beside the cross-entropy, at the end of every later task.

    python tests/benchmarks/loss_shares.py [--preset icons] [--epochs 20] [--tasks 3] [--seed 0] [--methods lucir ...]

A method whose own terms are next to nothing beside its cross-entropy trains as the method without them would. The terms
are means over the last epoch of a stage, with their weights. A method without any differs in its classifier or data.
Distillation of logits is a cross-entropy: it includes the entropy of the teacher's answers, which no training removes.
"""

import argparse
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cl2r.config.layers import override, read_layer, resolve
from cl2r.config.methods import METHODS
from cl2r.engine.chain import execute
from cl2r.engine.plan import plan_run
from cl2r.runtime.progress import EpochReport

LABELS = ("ce", "bias_ce", "adapted_ce", "lsc")
"""Terms that learn the labels, as every method does."""


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


def main() -> None:
    """Train and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="icons")
    parser.add_argument("--epochs", type=int, help="of every task (default: those of the preset)")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    args = parser.parse_args()
    settings = [f"seed={args.seed}", f"scenario.stop_after={args.tasks}", "threads=1", "eval.bootstrap=0"]
    settings += [f"optim.epochs={args.epochs}"] if args.epochs else []
    print("| method | task | stage | learns the labels | its own terms | share of its own |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="cl2r-losses-") as folder:
        for name in args.methods:
            layers = [override(f"method.name={name}"), *map(override, settings)]
            result = execute(plan_run(resolve([read_layer(args.preset), *layers])), Path(folder), Quiet())
            for link in result.links[1:]:
                for found in shares(link.record["curves"]):
                    own = ", ".join(f"{term} {value:.3f}" for term, value in found.own.items()) or "none"
                    begin = f"| {name} | {link.task} | {found.stage} | {found.labels:.3f} |"
                    print(f"{begin} {own} | {found.share:.0%} |", flush=True)


if __name__ == "__main__":
    main()
