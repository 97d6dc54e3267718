"""Images per second of the data path, of a training step, and of the step on all paths of the engine."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor
from torch.utils.data import DataLoader

from cl2r.config.builtin import ABLATION_CELLS
from cl2r.engine.plan import plan_run
from cl2r.study.cost import CPU, StepTimer
from cl2r.study.dry_run import DryChain
from tests.benchmarks.speed.harness import Measured, Sizes, compared, interleaved, say, seconds
from tests.benchmarks.speed.images import config_of, write_training_set
from tests.benchmarks.speed.plain import Item, PlainTraining, training_images

WORKERS = (0, 2)
ENGINE_EPOCHS = 5  # one would be over in milliseconds
METHOD, REFERENCE = "cl2r", "reference"
COMPILE, BF16 = "optim.compile=true", "optim.precision=bf16"
HOPELESS = 3.0
"""A path whose step takes this many times as long as that of fp32 is slower without any rounds."""
PATHS: Mapping[str, tuple[str, ...]] = {
    "fp32": (),
    "fp32, compiled": (COMPILE,),
    "bf16": (BF16,),
    "bf16, compiled": (COMPILE, BF16),
}


def measure_data(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Measure whole epochs of task 1, from uint8 images to augmented float batches; nothing is trained."""
    chain = DryChain(plan_run(config_of(write_training_set(folder, sizes), sizes, "er")), CPU)
    chain.begin()
    images = training_images(chain.plan, chain.data.new)

    def engine_labels() -> Iterator[Tensor]:
        return (batch.y for batch in chain.loop.batches(chain.task, chain.data.new, chain.data.memory, 0, 0))

    variants = {"engine": lambda: _epoch_rate(ENGINE_EPOCHS, engine_labels)}
    for workers in WORKERS:
        loader: DataLoader[Item] = DataLoader(
            images, sizes.batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
        )
        variants[f"{workers}"] = lambda loader=loader: _epoch_rate(1, lambda: (labels for _, labels in loader))  # type: ignore[misc]
    samples = interleaved(variants, sizes.rounds)
    for workers in WORKERS:
        what = f"batches of {sizes.batch}, crop and flip, {workers} DataLoader workers"
        note = "processes of the loader live on from epoch to epoch" if workers else ""
        yield compared("data path", what, "images/s", samples[f"{workers}"], samples["engine"], note)


def _epoch_rate(epochs: int, labels: Callable[[], Iterable[Tensor]]) -> float:
    counts: list[int] = []
    spent = seconds(lambda: counts.extend(len(batch) for _ in range(epochs) for batch in labels()))
    return sum(counts) / spent


def measure_step(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Measure a training step at task 2, data path included, for the six cells of the ablation."""
    data = write_training_set(folder, sizes)
    variants: dict[str, Callable[[], float]] = {}
    for cell in ABLATION_CELLS:
        engine = StepTimer.at_second_task(plan_run(config_of(data, sizes, cell)), CPU)
        variants[f"{cell} reference"] = _plain_rate(PlainTraining(engine.chain.plan, engine.chain.data), sizes)
        variants[f"{cell} engine"] = _engine_rate(engine, sizes)
    samples = interleaved(variants, sizes.rounds)
    for cell in ABLATION_CELLS:
        what = f"training step, {cell}, fp32"
        yield compared("training step", what, "images/s", samples[f"{cell} reference"], samples[f"{cell} engine"])


def _plain_rate(training: PlainTraining, sizes: Sizes) -> Callable[[], float]:
    def steps() -> None:
        for _ in range(sizes.steps):
            training.step()

    return lambda: sizes.steps * sizes.batch / seconds(steps)


def _engine_rate(training: StepTimer, sizes: Sizes) -> Callable[[], float]:
    return lambda: sizes.steps * sizes.batch / seconds(lambda: training.take(sizes.steps))


def measure_paths(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Measure the step of CL²R on all paths of the engine, then report the fastest path and the time to compile."""
    data = write_training_set(folder, sizes)
    engines = {
        path: StepTimer.at_second_task(plan_run(config_of(data, sizes, METHOD, *extra)), CPU)
        for path, extra in PATHS.items()
    }
    chain = engines["fp32"].chain
    plain = PlainTraining(chain.plan, chain.data)
    first, tried, variants = dict[str, float](), dict[str, float](), dict[str, Callable[[], float]]()
    first[REFERENCE], tried[REFERENCE] = seconds(plain.step), seconds(plain.step)
    variants[REFERENCE] = _plain_rate(plain, sizes)
    for path, engine in engines.items():
        if path.startswith("bf16, ") and "bf16" not in variants:
            continue
        say(f"first step: {path}")
        first[path], tried[path] = (seconds(lambda engine=engine: engine.take(1)) for _ in range(2))  # type: ignore[misc]
        if tried[path] <= HOPELESS * tried["fp32"]:
            variants[path] = _engine_rate(engine, sizes)
    samples = interleaved(variants, sizes.rounds)
    yield from _path_rows(samples, first, {path: sizes.batch / tried[path] for path in tried if path not in samples})


def _path_rows(
    samples: Mapping[str, Sequence[float]], first: Mapping[str, float], given_up: Mapping[str, float]
) -> Iterator[Measured]:
    """Yield one row per path, one for the fastest path, and one for the first step of each compiled path.

    `given_up` has the images per second, in one step, of the paths that were not taken through the rounds.
    """
    part, reference = "paths of the engine", samples[REFERENCE]
    paths = [path for path in PATHS if path in samples]
    for path in paths:
        yield compared(part, f"training step, {METHOD}, {path}", "images/s", reference, samples[path])
    for path, rate in given_up.items():
        note = f"one step: more than {HOPELESS:g} times slower than fp32 here, not tried further nor compiled"
        middle = [statistics.median(reference)]
        yield compared(part, f"training step, {METHOD}, {path}", "images/s", middle, [rate], note)
    chosen = max(paths, key=lambda path: statistics.median(samples[path]))  # fp32, the first one, if there is a tie
    note = f"{chosen}: the fastest by its median among {'; '.join(PATHS)}, chosen on the same rounds"
    what = f"training step, {METHOD}, calibrated choice"
    yield compared(part, what, "images/s", reference, samples[chosen], note)
    for path in paths:
        if COMPILE in PATHS[path]:
            note = "compiling included; a stored compilation of an earlier run shortens it"
            yield compared(part, f"first step, {METHOD}, {path}", "s", [first[REFERENCE]], [first[path]], note)
