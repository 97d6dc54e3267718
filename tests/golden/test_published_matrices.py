"""AC, BC, FC and the mean of matrices published with iamcl2r (MIT), against the values beside them."""

import json
from pathlib import Path

import numpy as np
import pytest

from cl2r.compatibility import (
    average_compatibility,
    backward_compatibility,
    backward_compatibility_curve,
    empirical_compatibility,
    forward_compatibility,
    mean_accuracy,
)

RUNS = json.loads(Path(__file__).with_name("iamcl2r_matrices.json").read_text())


@pytest.fixture(params=sorted(RUNS))
def run(request):
    return RUNS[request.param]


def test_all_runs_are_there():
    assert {name: len(run["matrix"]) for name, run in RUNS.items()} == {
        "hoc_7tasks": 7,
        "er_7tasks": 7,
        "er_31tasks": 31,
    }


def test_summaries_equal_the_recomputed_values(run):
    matrix, expected = np.array(run["matrix"]), run["computed"]
    assert average_compatibility(matrix) == pytest.approx(expected["AC"], abs=1e-12)
    assert backward_compatibility(matrix) == pytest.approx(expected["BC"], abs=1e-12)
    assert forward_compatibility(matrix) == pytest.approx(expected["FC"], abs=1e-12)
    assert mean_accuracy(matrix) == pytest.approx(expected["mean_lower_triangle"], abs=1e-12)
    assert empirical_compatibility(matrix).sum() == expected["n_compatible"]
    assert backward_compatibility_curve(matrix)[-1] == backward_compatibility(matrix)


def test_summaries_round_to_the_printed_values(run):
    matrix, printed = np.array(run["matrix"]), run["printed"]
    assert average_compatibility(matrix) == pytest.approx(printed["AC"], abs=0.005)
    assert 100 * mean_accuracy(matrix) == pytest.approx(printed["AM"], abs=0.001)
