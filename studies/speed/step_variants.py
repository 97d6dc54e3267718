"""The step of CL²R on all paths of the engine: compiled, in bf16, both; what a host should choose among them."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from studies.speed.engine_training import EngineTraining
from studies.speed.images import config_of, write_training_set
from studies.speed.plain_training import PlainTraining
from studies.speed.sizes import Sizes
from studies.speed.timing import Measured, compared, interleaved, say, seconds
from studies.speed.training_step import engine_rate, plain_rate

METHOD, REFERENCE = "cl2r", "reference"
COMPILE, BF16 = "optim.compile=true", "optim.precision=bf16"
HOPELESS = 3.0
"""A path whose step takes so many times that of fp32 needs no rounds to be known as slower."""
PATHS: Mapping[str, tuple[str, ...]] = {
    "fp32": (),
    "fp32, compiled": (COMPILE,),
    "bf16": (BF16,),
    "bf16, compiled": (COMPILE, BF16),
}


def measure(sizes: Sizes, folder: Path) -> Iterator[Measured]:
    """Reference and all paths in turns; then the fastest of the paths, and what compiling takes."""
    data = write_training_set(folder, sizes)
    engines = {path: EngineTraining(config_of(data, sizes, METHOD, *extra)) for path, extra in PATHS.items()}
    chain = engines["fp32"].chain
    plain = PlainTraining(chain.plan, chain.data)
    first, tried, variants = dict[str, float](), dict[str, float](), dict[str, Callable[[], float]]()
    first[REFERENCE], tried[REFERENCE] = seconds(plain.step), seconds(plain.step)
    variants[REFERENCE] = plain_rate(plain, sizes)
    for path, engine in engines.items():
        if path.startswith("bf16, ") and "bf16" not in variants:
            continue
        say(f"first step: {path}")
        first[path], tried[path] = (seconds(lambda engine=engine: engine.steps(1)) for _ in range(2))  # type: ignore[misc]
        if tried[path] <= HOPELESS * tried["fp32"]:
            variants[path] = engine_rate(engine, sizes)
    samples = interleaved(variants, sizes.rounds)
    yield from rows(samples, first, {path: sizes.batch / tried[path] for path in tried if path not in samples})


def rows(
    samples: Mapping[str, Sequence[float]], first: Mapping[str, float], given_up: Mapping[str, float]
) -> Iterator[Measured]:
    """A row a path, one for the fastest, one for the first step of each compiled path.

    `given_up`: images a second, in one step, of paths that were not taken through the rounds.
    """
    part, reference = "paths of the engine", samples[REFERENCE]
    for path in (path for path in PATHS if path in samples):
        yield compared(part, f"training step, {METHOD}, {path}", "images/s", reference, samples[path])
    for path, rate in given_up.items():
        note = f"one step: more than {HOPELESS:g} times slower than fp32 here, not tried further nor compiled"
        middle = [statistics.median(reference)]
        yield compared(part, f"training step, {METHOD}, {path}", "images/s", middle, [rate], note)
    chosen = fastest({path: samples[path] for path in PATHS if path in samples})
    note = f"{chosen}: the fastest by its median among {'; '.join(PATHS)}, chosen on the same rounds"
    what = f"training step, {METHOD}, calibrated choice"
    yield compared(part, what, "images/s", reference, samples[chosen], note)
    for path in (path for path in PATHS if path in samples):
        if COMPILE in PATHS[path]:
            note = "compiling included; a stored compilation of an earlier run shortens it"
            yield compared(part, f"first step, {METHOD}, {path}", "s", [first[REFERENCE]], [first[path]], note)


def fastest(samples: Mapping[str, Sequence[float]]) -> str:
    """The path with the best median; fp32, which comes first, where another is no better."""
    return max(samples, key=lambda path: statistics.median(samples[path]))
