"""The Pareto front against its definition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.matrices import pareto_front


def slow_front(rows: list[list[float]]) -> list[bool]:
    """A row is beaten if some row is nowhere larger and somewhere smaller."""

    def beats(other: list[float], row: list[float]) -> bool:
        pairs = list(zip(other, row, strict=True))
        return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)

    return [not any(beats(other, row) for other in rows) for row in rows]


VALUES = st.sampled_from([-1.0, 0.0, 0.5, 2.0, math.inf, math.nan])
TABLES = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=12)
)


@settings(deadline=None, max_examples=60)
@given(TABLES)
def test_the_front_is_its_definition(rows: list[list[float]]) -> None:
    assert pareto_front(rows).tolist() == slow_front(rows)


def test_a_front_by_hand() -> None:
    costs = [[1, 5], [2, 3], [2, 4], [2, 3], [6, 0], [6, 1], [math.nan, 0]]
    assert pareto_front(costs).tolist() == [True, True, False, True, True, False, True], "equal rows stay together"
    assert pareto_front(np.empty((0, 2))).shape == (0,)
    with pytest.raises(ValueError, match="1 dimensions"):
        pareto_front([1.0, 2.0])
