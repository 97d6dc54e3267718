"""Durations, sizes, counts and lists as text."""

import os
from collections.abc import Callable

import pytest

from cl2r.runtime.text import clock, counted, duration, listed, megabytes, printable, size


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (clock, {0: "0:00", 9.6: "0:10", 59.6: "1:00", 125: "2:05", 3599.7: "1:00:00", 3723: "1:02:03"}),
        (duration, {0.25: "0.25 s", 12: "12 s", 200: "3 min 20 s", 7500: "2 h 5 min"}),
        (size, {0: "0 B", 999: "999 B", 1500: "1.50 kB", 123_456_789: "123 MB", 2e12: "2,000 GB"}),
        (megabytes, {1_234_567_890: "1,235 MB"}),
    ],
)
def test_durations_and_sizes(write: Callable[[float], str], texts: dict[float, str]) -> None:
    assert {number: write(number) for number in texts} == texts


def test_counts_and_lists() -> None:
    counts = [counted(1, "run"), counted(3000, "run"), counted(2, "loss", "losses")]
    assert counts == ["1 run", "3,000 runs", "2 losses"]
    assert [listed([*names]) for names in ("", "A", "AB", "ABC")] == ["none", "A", "A and B", "A, B and C"]
    assert listed(["A, B", "C"]) == "A, B; and C"
    assert listed([*"ABCDE"], most=3) == "A, B, C and 2 more"


def test_a_printable_name_is_one_line_of_utf8() -> None:
    assert printable("ü × 图.json") == "ü × 图.json"
    assert printable("a\nb\x1b[2J\u202e") == "a\\nb\\x1b[2J\\u202e"
    assert printable(os.fsdecode(b"\xff.txt")) == "\\xff.txt"
