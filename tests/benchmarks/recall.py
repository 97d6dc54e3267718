"""Seconds that recall@1 adds to the evaluation of a run, for the tuning and the report images together.

    python -m tests.benchmarks.recall [--tasks 10] [--images 10000] [--dim 99] [--bootstrap 1000]

Features are random. The time of a run's evaluation without the search is printed beside it.
"""

import argparse
import time

import numpy as np

from cl2r.config.schema import EvalConfig
from cl2r.data.dataset import ImageSet
from cl2r.data.images import ArrayImages
from cl2r.engine.evaluation import ChainFeatures, Evaluator, evaluation_pairs, search_images
from cl2r.features import Features

CLASSES = 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tasks", 10), ("images", 10_000), ("dim", 99), ("bootstrap", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    rng, spec = np.random.default_rng(0), EvalConfig(bootstrap=given.bootstrap)
    labels = np.arange(given.images) % CLASSES
    pixels = ArrayImages(np.zeros((given.images, 1, 1, 1), np.uint8))
    data = ImageSet("random", pixels, labels, pixels, labels, tuple(map(str, range(CLASSES))))
    models = [Features(rng.normal(size=(given.images, given.dim)).astype(np.float32)) for _ in range(given.tasks)]
    seconds = dict[bool, float]()
    for search in (False, True):
        sides = zip(evaluation_pairs(data, spec), search_images(data, spec), strict=True)
        evaluators = [Evaluator(pairs, spec, images) for pairs, images in sides if pairs is not None]
        began = time.perf_counter()
        for evaluator in evaluators:
            evaluator(ChainFeatures(models), search=search)
        seconds[search] = time.perf_counter() - began
    cells = given.tasks * (given.tasks + 1) // 2
    print(f"{given.images} open images of {given.dim} dimensions, {cells} cells, {len(evaluators)} sides")
    print(f"evaluation without the search {seconds[False]:.1f} s, with it {seconds[True]:.1f} s")
    print(f"recall@1 adds {seconds[True] - seconds[False]:.1f} s")


if __name__ == "__main__":
    main()
