"""Images a second from 32×32 uint8 images to normalised float batches, augmented; nothing is trained."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from torch import Tensor
from torch.utils.data import DataLoader

from cl2r.study.dry_run import DryChain
from studies.speed.engine_training import begun
from studies.speed.images import config_of, write_training_set
from studies.speed.plain_data import Item, training_images
from studies.speed.sizes import Sizes
from studies.speed.timing import Measured, compared, interleaved, seconds

WORKERS = (0, 2)
ENGINE_EPOCHS = 5
"""One would be over in milliseconds."""


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Whole epochs of task 1, shuffled, without memory."""
    chain = begun(config_of(write_training_set(folder, sizes), sizes, "er"), task=1)
    images = training_images(chain.plan, chain.data.new)
    variants = {"engine": lambda: rate(ENGINE_EPOCHS, lambda: engine_labels(chain))}
    for workers in WORKERS:
        loader: DataLoader[Item] = DataLoader(
            images, sizes.batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
        )
        variants[f"{workers}"] = lambda loader=loader: rate(1, lambda: plain_labels(loader))  # type: ignore[misc]
    samples = interleaved(variants, sizes.rounds)
    for workers in WORKERS:
        what = f"batches of {sizes.batch}, crop and flip, {workers} DataLoader workers"
        note = "processes of the loader live on from epoch to epoch" if workers else ""
        yield compared("data path", what, "images/s", samples[f"{workers}"], samples["engine"], note)


def engine_labels(chain: DryChain) -> Iterator[Tensor]:
    """Of the batches of an epoch, whose images are ready then."""
    return (batch.y for batch in chain.loop.batches(chain.task, chain.data.new, chain.data.memory, 0, 0))


def plain_labels(loader: DataLoader[Item]) -> Iterator[Tensor]:
    """Of the batches of an epoch, whose images are ready then."""
    return (labels for _, labels in loader)


def rate(epochs: int, labels: Callable[[], Iterable[Tensor]]) -> float:
    """Images a second of some epochs."""
    counts: list[int] = []
    spent = seconds(lambda: counts.extend(len(batch) for _ in range(epochs) for batch in labels()))
    return sum(counts) / spent
