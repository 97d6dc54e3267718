"""Durations, sizes, counts and lists as text."""

import pytest

from cl2r.runtime.text import clock, counted, duration, listed, megabytes, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (9.6, "0:10"), (59.6, "1:00"), (125, "2:05"), (3599.7, "1:00:00"), (3723, "1:02:03")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (12, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.50 kB"), (123_456_789, "123 MB"), (2e12, "2,000 GB")]
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


def test_counts_and_lists() -> None:
    assert megabytes(1_234_567_890) == "1,235 MB"
    assert (counted(1, "run"), counted(3000, "run"), counted(2, "loss", "losses")) == (
        "1 run",
        "3,000 runs",
        "2 losses",
    )
    assert [listed(names) for names in ([], ["A"], ["A", "B"], ["A", "B", "C"])] == [
        "none",
        "A",
        "A and B",
        "A, B and C",
    ]
    assert listed(["A, B", "C"]) == "A, B; C"
    assert listed([*"ABCDE"], most=3) == "A, B, C and 2 more"
