"""The Pareto front against its definition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.matrices import pareto_front


def slow_front(rows: list[list[float]]) -> list[bool]:
    """A row is beaten if some row is nowhere larger and somewhere smaller."""
    beaten = []
    for row in rows:
        beaten.append(False)
        for other in rows:
            pairs = list(zip(other, row, strict=True))
            if all(x <= y for x, y in pairs) and any(x < y for x, y in pairs):
                beaten[-1] = True
    return [not own for own in beaten]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, math.inf, math.nan]), min_size=width, max_size=width),
            min_size=1,
            max_size=12,
        )
    )
)
def test_the_front_is_its_definition(rows: list[list[float]]) -> None:
    assert pareto_front(rows).tolist() == slow_front(rows)


def test_a_front_by_hand() -> None:
    costs = [[1, 5], [2, 3], [2, 4], [2, 3], [6, 0], [6, 1], [math.nan, 0]]
    assert pareto_front(costs).tolist() == [True, True, False, True, True, False, True], "equal rows stay together"


def test_no_rows_and_wrong_shapes() -> None:
    assert pareto_front(np.empty((0, 2))).shape == (0,)
    with pytest.raises(ValueError, match="1 dimensions"):
        pareto_front([1.0, 2.0])
