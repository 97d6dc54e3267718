"""Seconds to write and read a link (checksums, flushed, renamed), compared with torch.save and torch.load."""

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from cl2r.engine.links import Link, LinkStore, Tensors
from cl2r.methods.base import build_method
from tests.benchmarks.speed.harness import DisagreementError, Measured, Sizes, compared, interleaved, seconds
from tests.benchmarks.speed.images import config_of

PART = "links"


class Saves:
    """The same tensors, saved repeatedly under new names; the last save is read."""

    def __init__(self, sizes: Sizes, folder: Path) -> None:
        method = build_method(config_of(Path("generated"), sizes, "cl2r"), 3, sizes.outputs)
        generator = torch.Generator().manual_seed(0)
        self.state: Tensors = {f"method/{name}": tensor.contiguous() for name, tensor in method.carry().items()}
        self.features: Tensors = {"open": torch.randn(sizes.open_images, sizes.outputs - 1, generator=generator)}
        self.record = {"seconds": 1.0, "curves": []}
        (folder / "links").mkdir(exist_ok=True)
        self.store, self.folder = LinkStore(folder), folder
        self.keys, self.files = itertools.count(), itertools.count()
        self.key, self.file = "", folder

    @property
    def megabytes(self) -> float:
        """Size of all tensors."""
        return sum(tensor.nbytes for tensor in (*self.state.values(), *self.features.values())) / 1e6

    def save(self) -> None:
        """Save as a link."""
        self.key = f"key{next(self.keys)}"
        self.store.save(self.key, Link(self.state, self.features, self.record))

    def load(self) -> tuple[Tensors, Tensors]:
        """Read the link."""
        return self.store.state(self.key), self.store.features(self.key)

    def plain_save(self) -> None:
        """Save as one file."""
        self.file = self.folder / f"plain{next(self.files)}.pt"
        torch.save({"state": self.state, "features": self.features, "record": self.record}, self.file)

    def plain_load(self) -> tuple[Tensors, Tensors]:
        """Read the file."""
        content = torch.load(self.file, weights_only=True)
        return content["state"], content["features"]

    def check(self) -> None:
        """Raise DisagreementError if one of the ways does not give back what was saved."""
        for parts in (self.load(), self.plain_load()):
            for saved, found in zip((self.state, self.features), parts, strict=True):
                if saved.keys() != found.keys() or not all(torch.equal(saved[name], found[name]) for name in saved):
                    raise DisagreementError("a link does not come back as it was saved")


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Measure the seconds of saving and loading, both ways in turns."""
    saves = Saves(sizes, folder)
    works = {"plain save": saves.plain_save, "save": saves.save, "plain load": saves.plain_load, "load": saves.load}
    saves.plain_save()
    saves.save()
    saves.check()
    samples = interleaved({name: partial(seconds, work) for name, work in works.items()}, sizes.rounds)
    size = f"{saves.megabytes:.1f} MB"
    note = "cl2r: checksums, flushed to disk, seen whole or not at all; torch.save does none of that"
    yield compared(PART, f"save, {size}", "s", samples["plain save"], samples["save"], note)
    note = "cl2r: checksums compared; torch.load with weights_only"
    yield compared(PART, f"load, {size}", "s", samples["plain load"], samples["load"], note)
