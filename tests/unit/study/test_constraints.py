"""Constraints of a search: forms, bounds, violations."""

import math

import pytest

from cl2r.errors import InputError
from cl2r.study.constraints import Constraint


@pytest.mark.parametrize(
    ("text", "shown", "bound"),
    [
        (">= er - 0.01", "AC >= er - 0.01", 0.49),
        (">=er+0.5", "AC >= er + 0.5", 1.0),
        ("<= er+procrustes - .5", "AC <= er+procrustes - 0.5", 0.0),
        (">= cl2r", "AC >= cl2r", 0.5),
        ("<= 2e6", "AC <= 2e+06", 2e6),
        (" >= -0.1 ", "AC >= -0.1", -0.1),
    ],
)
def test_forms_and_bounds(text: str, shown: str, bound: float) -> None:
    constraint = Constraint.parse("AC", text)
    assert str(constraint) == shown
    assert constraint.bound(0.5) == pytest.approx(bound)


@pytest.mark.parametrize("text", ["", "0.5", "> 0.5", ">= ", ">= er -", ">= er - x", ">= 0.5 0.6", "== 1", ">= ER"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        Constraint.parse("AC", text)


def test_a_violation_is_positive_on_the_wrong_side() -> None:
    least, most = Constraint.parse("AC", ">= er - 0.1"), Constraint.parse("stored_bytes", "<= 100")
    assert least.violation(0.75, 0.9) == pytest.approx(0.05 / 0.8), "a share of the bound"
    assert least.violation(0.85, 0.9) == pytest.approx(-0.05 / 0.8)
    assert most.violation(120) == 0.2
    assert most.violation(80) == -0.2
    assert Constraint.parse("BC", ">= 0").violation(-0.25) == 0.25, "a bound of 0 counts as 1"
    assert least.violation(0.9, math.nan) == least.violation(math.nan, 0.5) == math.inf


def test_accuracies_are_those_of_the_tuning_pairs() -> None:
    assert Constraint.parse("AC", ">= 0").column == "tuning_AC"
    assert Constraint.parse("seconds", "<= 9").column == "train_seconds"
