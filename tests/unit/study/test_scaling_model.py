"""The model of a step shared by workers: formula by hand, fit, and prediction for GPUs."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from cl2r.errors import InputError
from cl2r.study.scaling_model import GPU_MODEL, AllReduceCost, Sample, StepModel, fit, predict

RING = AllReduceCost(1e-3, 1e-8)
MODEL = StepModel(seconds_per_flop=1e-10, fixed_seconds=0.02, ring=RING)
SIZE = 4_000_000.0


def made(model: StepModel, noise: float = 0.0) -> list[Sample]:
    """Return steps and all-reduces of the model, each off by up to a share `noise`."""
    rng, found = np.random.default_rng(0), []
    for world in (1, 2, 4):
        for flops in (4e9, 2e9, 1e9):
            found.append(Sample("step", flops, world, SIZE, model.seconds(world, world * flops, SIZE)))
        for size in (4.0, 1e5, 1e7):
            found.append(Sample("all-reduce", 0.0, world, size, model.ring.seconds(world, size)))
    return [
        replace(sample, seconds=sample.seconds * (1 + noise * rng.uniform(-1, 1))) for sample in found if sample.seconds
    ]


def test_a_ring_by_hand() -> None:
    """Four workers: 6 messages of a quarter of the bytes."""
    assert RING.seconds(1, 1e9) == 0
    assert RING.seconds(4, 1e6) == pytest.approx(6 * 1e-3 + 6 * 0.25e6 * 1e-8)


def test_a_step_by_hand() -> None:
    assert MODEL.seconds(1, 4e9, SIZE) == pytest.approx(0.4 + 0.02)
    assert MODEL.seconds(2, 4e9, SIZE) == pytest.approx(0.2 + 0.02 + 2e-3 + 0.04)
    assert replace(MODEL, floor_seconds=0.3).seconds(2, 4e9, SIZE) == pytest.approx(0.3 + 0.02 + 2e-3 + 0.04)


def test_groups_that_span_nodes_use_the_slower_link() -> None:
    slow = AllReduceCost(1e-2, 1e-7)
    model = replace(MODEL, between=slow)
    assert model.seconds(8, 4e9, SIZE) == MODEL.seconds(8, 4e9, SIZE)
    assert model.seconds(9, 4e9, SIZE) == pytest.approx(4e9 / 9 * 1e-10 + 0.02 + slow.seconds(9, SIZE))


def test_the_fit_finds_the_constants_behind_its_samples() -> None:
    model, fitted = fit(made(MODEL))
    assert model.seconds_per_flop == pytest.approx(1e-10)
    assert model.fixed_seconds == pytest.approx(0.02)
    assert model.ring.latency_seconds == pytest.approx(1e-3)
    assert model.ring.seconds_per_byte == pytest.approx(1e-8)
    assert fitted["residual"].abs().max() < 1e-9


def test_residuals_show_noise() -> None:
    samples = made(MODEL, noise=0.1)
    model, fitted = fit(samples)
    assert 0.005 < fitted["residual"].abs().max() < 0.2
    assert model.seconds_per_flop == pytest.approx(1e-10, rel=0.1)
    for sample, row in zip(samples, fitted.itertuples(), strict=True):
        ring = model.ring.seconds(sample.world, sample.gradient_bytes)
        step = sample.flops * model.seconds_per_flop + model.fixed_seconds if sample.flops else 0
        assert (row.sample, row.measured, row.fitted) == (sample.name, sample.seconds, pytest.approx(step + ring))


def test_no_constant_is_negative() -> None:
    """Steps of twice the FLOPs that take more than twice as long would need a negative fixed time."""
    model, _ = fit([replace(s, seconds=s.seconds * s.flops / 2e9) if s.flops else s for s in made(MODEL)])
    assert model.fixed_seconds == 0
    assert min(model.seconds_per_flop, model.ring.latency_seconds, model.ring.seconds_per_byte) >= 0


@pytest.mark.parametrize(
    ("keep", "told"),
    [
        (lambda s: False, "0 samples determine 0 of the 4 constants"),
        (lambda s: s.world == 1, "3 samples determine 2 of the 4 constants"),
        (lambda s: s.flops and s.world < 3, "6 samples determine 3 of the 4 constants"),
        (lambda s: not s.flops, "6 samples determine 2 of the 4 constants"),
    ],
    ids=["none", "one worker", "two workers, one size", "no steps"],
)
def test_too_few_samples_are_refused(keep: object, told: str) -> None:
    assert callable(keep)
    with pytest.raises(InputError, match=told):
        fit([sample for sample in made(MODEL) if keep(sample)])


def test_a_sample_without_time_is_refused() -> None:
    with pytest.raises(InputError, match="took no time"):
        fit([*made(MODEL), Sample("broken", 1.0, 1, 0.0, 0.0)])


@pytest.mark.parametrize("weak", [False, True])
def test_efficiency_falls_with_workers(weak: bool) -> None:
    steps = predict(GPU_MODEL, 2e9, 1e8, 128, (1, 4, 8, 16, 32, 64), weak)
    assert steps[0]["efficiency"] == steps[0]["speed_up"] == 1
    assert steps[0]["communication"] == 0
    for few, more in pairwise(steps):
        assert more["efficiency"] < few["efficiency"]
        assert more["communication"] > few["communication"]
        assert more["rows"] == (128 if weak else 128 / more["workers"])


def test_a_prediction_by_hand() -> None:
    """Weak scaling keeps the rows of a worker, so its computation takes as long as that of one."""
    _, strong = predict(MODEL, 1e8, SIZE, 40, [1, 2], weak=False)
    assert strong["seconds"] == pytest.approx(0.2 + 0.02 + 0.042)
    assert strong["images_per_second"] == pytest.approx(40 / strong["seconds"])
    assert strong["speed_up"] == pytest.approx(0.42 / strong["seconds"])
    assert strong["efficiency"] == pytest.approx(strong["speed_up"] / 2)
    assert strong["communication"] == pytest.approx(0.042 / strong["seconds"])
    _, weak = predict(MODEL, 1e8, SIZE, 40, [1, 4], weak=True)
    assert weak["seconds"] == pytest.approx(0.42 + RING.seconds(4, SIZE))
    assert weak["images_per_second"] == pytest.approx(160 / weak["seconds"])


@pytest.mark.parametrize(
    ("ring", "text"),
    [
        (AllReduceCost(3e-6, 5e-12), "3 µs per message, 200 GB/s"),
        (AllReduceCost(1.5e-4, 1.25e-9), "0.15 ms per message, 0.8 GB/s"),
        (AllReduceCost(2e-3, 0.0), "2 ms per message, whatever its size"),
    ],
)
def test_a_ring_in_words(ring: AllReduceCost, text: str) -> None:
    assert str(ring) == text
