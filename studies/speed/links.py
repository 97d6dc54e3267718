"""Writing and reading a link: safetensors with checksums, flushed to disk and renamed, beside torch.save and load."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch

from cl2r.engine.store import LinkStore, Tensors
from cl2r.methods.registry import build_method
from studies.speed.images import config_of
from studies.speed.sizes import Sizes
from studies.speed.timing import DisagreementError, Measured, compared, interleaved, say, seconds

PART = "links"


class Saves:
    """The same tensors, saved again and again under new names; what was saved last is read."""

    def __init__(self, sizes: Sizes, folder: Path) -> None:
        method = build_method(config_of(Path("generated"), sizes, "cl2r"), 3, sizes.outputs)
        generator = torch.Generator().manual_seed(0)
        self.state: Tensors = {f"method/{name}": tensor.contiguous() for name, tensor in method.carry().items()}
        self.features: Tensors = {"open": torch.randn(sizes.open_images, sizes.outputs - 1, generator=generator)}
        self.record = {"seconds": 1.0, "curves": []}
        (folder / "links").mkdir(exist_ok=True)
        self.store, self.folder = LinkStore(folder, say), folder
        self.keys, self.files = itertools.count(), itertools.count()
        self.key, self.file = "", folder

    @property
    def megabytes(self) -> float:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in (*self.state.values(), *self.features.values())) / 1e6

    def save(self) -> None:
        """As a link."""
        self.key = f"key{next(self.keys)}"
        self.store.save(self.key, self.state, self.features, self.record)

    def load(self) -> tuple[Tensors, Tensors]:
        """The link."""
        return self.store.state(self.key), self.store.features(self.key)

    def plain_save(self) -> None:
        """As one file."""
        self.file = self.folder / f"plain{next(self.files)}.pt"
        torch.save({"state": self.state, "features": self.features, "record": self.record}, self.file)

    def plain_load(self) -> tuple[Tensors, Tensors]:
        """The file."""
        content = torch.load(self.file, weights_only=True)
        return content["state"], content["features"]

    def check(self) -> None:
        """Both ways give back what was saved."""
        for parts in (self.load(), self.plain_load()):
            for saved, found in zip((self.state, self.features), parts, strict=True):
                if saved.keys() != found.keys() or not all(torch.equal(saved[name], found[name]) for name in saved):
                    raise DisagreementError("a link does not come back as it was saved")


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Seconds of a link."""
    saves = Saves(sizes, folder)
    works = {
        "plain save": saves.plain_save,
        "save": saves.save,
        "plain load": saves.plain_load,
        "load": saves.load,
    }
    saves.plain_save()
    saves.save()
    saves.check()
    samples = interleaved({name: lambda work=work: seconds(work) for name, work in works.items()}, sizes.rounds)  # type: ignore[misc]
    size = f"{saves.megabytes:.1f} MB"
    note = "cl2r: checksums, flushed to disk, seen whole or not at all; torch.save does none of that"
    yield compared(PART, f"save, {size}", "s", samples["plain save"], samples["save"], note)
    note = "cl2r: checksums compared; torch.load with weights_only"
    yield compared(PART, f"load, {size}", "s", samples["plain load"], samples["load"], note)
