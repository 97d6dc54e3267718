"""Estimates as text."""

from dataclasses import replace

import pytest

from cl2r.study import cost_text
from cl2r.study.cost import Estimate, Team, estimate
from cl2r.study.cost_model import GpuAssumption, Ring
from cl2r.study.cost_text import describe

NOTHING: Estimate = estimate([], {}, 2, GpuAssumption())


def test_nothing_to_train_costs_nothing() -> None:
    assert "0 s" in describe(NOTHING, 3, 9, 9)
    assert "0.00 GPU-hours, about $0.00" in describe(NOTHING, 3, 9, 9)


def test_the_description() -> None:
    total = replace(NOTHING, links=40, images=1234567, extracted=8400, seconds_here=290, disk_bytes=120_400_000)
    total = replace(total, gpu_hours=0.02, gpu_price=0.082)
    assert describe(total, 12, 60, 20, "from 20 stored links").splitlines() == [
        "runs          12",
        "links         40 to train, 20 of 60 present",
        "images        1,234,567 to train on, 8,400 to extract",
        "this machine  4 min 50 s (2 at a time; speed from 20 stored links)",
        "A100          0.02 GPU-hours, about $0.08 "
        "(an assumption, not measured: 10 TFLOP/s, at least 8 ms a step, $4.10 an hour)",
        "disk          120 MB",
    ]


def test_several_workers_are_told_with_what_they_cost() -> None:
    total = replace(NOTHING, seconds_here=290, team=Team(2, {}, Ring(2e-4, 1e-9)), efficiency=0.874)
    total = replace(total, gpu_hours=0.05, gpu_price=0.205, gpu_seconds=45, gpu_efficiency=0.4)
    lines = describe(total, 12, 60, 20, "calibrated in 2 s").splitlines()
    assert lines[3] == (
        "this machine  4 min 50 s (2 at a time, each by 2 workers at 87 % efficiency, gradients by all-reduce with "
        "0.2 ms a message, 1 GB/s; speed calibrated in 2 s)"
    )
    assert lines[4] == (
        "A100          0.05 GPU-hours, about $0.20, 45 s (2 at a time, each by 2 workers at 40 % efficiency; an "
        "assumption, not measured: 10 TFLOP/s, at least 8 ms a step, gradients by NVLink with 3 µs a message, "
        "200 GB/s, $4.10 an hour)"
    )
    far = describe(replace(total, team=Team(16)), 1, 1, 0)
    assert "gradients by a network between nodes of 8 with 10 µs a message, 20 GB/s" in far


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.2, "under 1 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (290, "4 min 50 s"),
        (3599.7, "1.0 h"),
        (4680, "1.3 h"),
        (3.6e6, "1,000.0 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert cost_text._duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (120_000_000, "120 MB"),
        (999_600_000, "1.0 GB"),
        (2_340_000_000, "2.3 GB"),
        (5 * 10**12, "5,000 GB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert cost_text._size(count) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (1e-6, "under 0.01 GPU-hours, under $0.01"),
        (0.005, "under 0.01 GPU-hours, about $0.02"),
        (1200.0, "1,200.00 GPU-hours, about $4,920.00"),
    ],
)
def test_gpu_hours_and_price(hours: float, text: str) -> None:
    total = replace(NOTHING, gpu_hours=hours, gpu_price=hours * 4.1)
    assert cost_text._gpu_hours(total) == text
