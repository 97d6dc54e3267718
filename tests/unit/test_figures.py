"""Figures of a link: which images stand for T_t, and FLOPs counted by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cl2r.backbones import build_backbone
from cl2r.diagnostics import drift_cosine, linear_cka, rotated_cosine, vertex_bound
from cl2r.engine.figures import SUPPORT_ROWS, common_direction, drift_figures, flops, support_rows, vertex_figures
from cl2r.simplex import simplex_vertices

SIZES = st.integers(0, 3 * SUPPORT_ROWS)


def rows(new, memory):
    """Row numbers of D_t and M_t, apart and in no order."""
    numbers = np.random.default_rng(0).permutation(new + memory).astype(np.int64) * 3
    return numbers[:new], numbers[new:]


# ---------------------------------------------------------------- support


@settings(deadline=None, max_examples=60)
@given(SIZES, SIZES)
def test_support_is_a_part_of_the_task(new, memory):
    d, m = rows(new, memory)
    chosen = support_rows(d, m, 0, 2)
    assert len(chosen) == min(new + memory, SUPPORT_ROWS)
    assert np.isin(chosen, np.concatenate([d, m])).all()
    assert (np.diff(chosen) > 0).all(), "sorted, none twice"
    if new + memory <= SUPPORT_ROWS:
        np.testing.assert_array_equal(chosen, np.sort(np.concatenate([d, m])))


@pytest.mark.parametrize(
    ("new", "memory", "remembered"),
    [(5000, 0, 0), (5000, 300, 300), (5000, 1024, 1024), (5000, 4000, 1024), (500, 4000, 1548), (0, 4000, 2048)],
)
def test_memory_has_up_to_half_and_more_where_the_task_is_small(new, memory, remembered):
    d, m = rows(new, memory)
    assert np.isin(support_rows(d, m, 0, 2), m).sum() == remembered


def test_support_is_seeded():
    d, m = rows(4000, 4000)
    chosen = support_rows(d, m, 0, 2)
    np.testing.assert_array_equal(support_rows(d, m, 0, 2), chosen)
    for seed, task in ((1, 2), (0, 3)):
        assert not np.array_equal(support_rows(d, m, seed, task), chosen)


def test_support_is_drawn_from_all_over():
    d, m = np.arange(10_000), np.arange(10_000, 20_000)
    chosen = support_rows(d, m, 0, 2)
    counts, _ = np.histogram(chosen, bins=20, range=(0, 20_000))
    assert counts.min() > 60, "1024 of either in tenths: about 102 each"


# ---------------------------------------------------------------- figures


def test_drift_of_a_model_that_grew_is_seen_in_its_old_dimensions():
    generator = torch.Generator().manual_seed(0)
    now, before = torch.randn(20, 6, generator=generator), torch.randn(20, 4, generator=generator)
    cut, old = now[:, :4].numpy(), before.numpy()
    assert drift_figures(now.numpy(), before.numpy()) == {
        "drift_cosine": drift_cosine(cut, old),
        "rotated_cosine": rotated_cosine(cut, old),
        "cka": linear_cka(cut, old),
    }
    unchanged = drift_figures(torch.cat([before, now], 1).numpy(), before.numpy())
    assert unchanged == pytest.approx({"drift_cosine": 1, "rotated_cosine": 1, "cka": 1})


def test_common_direction():
    assert common_direction(np.array([[1.0, 0.0], [4.0, 0.0]])) == pytest.approx(1)
    assert common_direction(np.array([[1.0, 0.0], [-4.0, 0.0]])) == pytest.approx(0)
    assert common_direction(np.array([[1.0, 0.0], [0.0, 9.0]])) == pytest.approx(0.5**0.5)


def test_vertex_figures_know_the_rank():
    k, labels = 9, np.arange(6)
    vertices = simplex_vertices(k)[labels]
    at_home = vertex_figures(torch.from_numpy(vertices), labels, k)
    assert at_home == pytest.approx({"vertex_cosine": 1, "vertex_bound": 1})
    axes = np.linalg.svd(vertices)[2][:3]
    flat = torch.from_numpy(vertices @ axes.T @ axes).float()
    bound = vertex_bound(3, 6, k)
    assert vertex_figures(flat, labels, k) == pytest.approx({"vertex_cosine": bound, "vertex_bound": bound}, abs=1e-6)


# ---------------------------------------------------------------- FLOPs


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("bias", [False, True])
def test_flops_of_a_linear_layer(count, bias):
    assert flops(nn.Linear(7, 11, bias=bias), torch.zeros(count, 7)) == 2 * 7 * 11


def test_flops_of_a_convolution():
    layer = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
    assert flops(layer, torch.zeros(2, 3, 16, 16)) == 2 * (3 * 3 * 3) * 8 * (8 * 8)


def test_flops_of_a_backbone_grow_with_depth():
    x = torch.zeros(1, 3, 16, 16)
    small, large = (flops(build_backbone(name, 3).eval(), x) for name in ("resnet20", "resnet32"))
    assert 1.5 < large / small < 1.8  # 30 of 18 convolutions, besides the stem


def test_flops_leave_no_gradient():
    layer = nn.Linear(3, 3)
    flops(layer, torch.zeros(1, 3))
    assert layer.weight.grad is None
