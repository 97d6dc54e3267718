"""Trials × threads: what is tried, what is chosen, and that memory bounds it."""

from pathlib import Path

import pytest
from quick import quick_config

from cl2r.errors import InputError
from cl2r.study.layout import Layout, candidates, choose, described, measure

GIGABYTE = 10**9


@pytest.mark.parametrize(
    ("cores", "runs", "tried"),
    [
        (2, 9, [(1, 2), (2, 1)]),
        (2, 1, [(1, 2)]),
        (6, 3, [(1, 6), (2, 3), (3, 2)]),
        (6, 99, [(1, 6), (2, 3), (4, 1), (6, 1)]),
        (1, 5, [(1, 1)]),
    ],
)
def test_candidates_fill_the_cores_as_far_as_there_are_runs(
    cores: int, runs: int, tried: list[tuple[int, int]]
) -> None:
    assert candidates(cores, runs) == tried


def test_the_last_round_counts() -> None:
    together, alone = Layout(2, 1, 115.0, GIGABYTE), Layout(1, 2, 100.0, GIGABYTE)
    assert choose([alone, together], 8, 10 * GIGABYTE) is together
    assert choose([alone, together], 3, 10 * GIGABYTE) is alone, "of four places one would be idle"
    assert described(together, [alone, together], 8) == (
        "2 × 1 (trials × threads); 1 × 2 would take 1.15 times as long"
    )


def test_memory_bounds_how_many_run_at_once() -> None:
    many, few = Layout(8, 1, 900.0, 9 * GIGABYTE), Layout(2, 4, 400.0, 3 * GIGABYTE)
    assert choose([few, many], 64, 16 * GIGABYTE) is many
    assert choose([few, many], 64, 10 * GIGABYTE) is few
    with pytest.raises(InputError, match="a run held 3,000 MB, this machine has 2,000 MB"):
        choose([few, many], 64, 2 * GIGABYTE)


def test_processes_train_side_by_side(tiny: Path) -> None:
    layout = measure(quick_config(tiny), trials=2, threads=1, seconds=0.1)
    assert (layout.trials, layout.threads) == (2, 1)
    assert layout.rate > 0
    assert layout.bytes > 2 * 10**8, "two processes with torch in each"
