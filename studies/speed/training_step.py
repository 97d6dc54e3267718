"""Images a second of a training step at task 2, data path included: the six cells of the ablation."""

from collections.abc import Callable, Iterator
from pathlib import Path

from cl2r.methods.catalog import ABLATION_CELLS
from studies.speed.engine_training import EngineTraining
from studies.speed.images import config_of, write_training_set
from studies.speed.plain_training import PlainTraining
from studies.speed.sizes import Sizes
from studies.speed.timing import Measured, compared, interleaved, seconds


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """All cells, reference and engine, in turns."""
    data = write_training_set(folder, sizes)
    variants: dict[str, Callable[[], float]] = {}
    for cell in ABLATION_CELLS:
        engine = EngineTraining(config_of(data, sizes, cell))
        variants[f"{cell} reference"] = plain_rate(PlainTraining(engine.chain.plan, engine.chain.data), sizes)
        variants[f"{cell} engine"] = engine_rate(engine, sizes)
    samples = interleaved(variants, sizes.rounds)
    for cell in ABLATION_CELLS:
        what = f"training step, {cell}, fp32"
        yield compared("training step", what, "images/s", samples[f"{cell} reference"], samples[f"{cell} engine"])


def plain_rate(training: PlainTraining, sizes: Sizes) -> Callable[[], float]:
    """Images a second of a few steps."""

    def steps() -> None:
        for _ in range(sizes.steps):
            training.step()

    return lambda: sizes.steps * sizes.batch / seconds(steps)


def engine_rate(training: EngineTraining, sizes: Sizes) -> Callable[[], float]:
    """Images a second of a few steps."""
    return lambda: sizes.steps * sizes.batch / seconds(lambda: training.steps(sizes.steps))
