"""The roofline: which group an operator is in, arithmetic on made-up numbers, and one tiny measurement."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from quick import quick_config
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cl2r.errors import InputError
from studies.speed import peak
from studies.speed.engine_training import EngineTraining
from studies.speed.peak import (
    BETWEEN,
    DATA,
    OTHER,
    STEP,
    Convolution,
    PeakReport,
    Rate,
    content,
    convolution_call,
    convolutions,
    group_of,
    measure_peak,
    profiled,
    shares,
    table,
)

LARGE = Convolution(128, 16, 16, 32, 3, 1, 1, 3)
"""Of ResNet-32's first stage."""


# Groups


@pytest.mark.parametrize(
    ("path", "group"),
    [
        (
            ["aten::mkldnn_convolution", "aten::_convolution", "aten::convolution", "aten::conv2d"],
            "convolution forward",
        ),
        (["aten::resize_", "aten::mkldnn_convolution"], "convolution forward"),
        (["aten::convolution_backward", "ConvolutionBackward0"], "convolution backward"),
        (["aten::copy_", "aten::_to_copy", "aten::convolution_backward"], "convolution backward"),
        (["autograd::engine::evaluate_function: ConvolutionBackward0"], "convolution backward"),
        (["aten::add_", "autograd::engine::evaluate_function: ConvolutionBackward0"], "add"),
        (["aten::add"], "add"),
        (["aten::native_batch_norm", "aten::_batch_norm_impl_index", "aten::batch_norm"], "batch norm forward"),
        (["aten::native_batch_norm_backward", "NativeBatchNormBackward0"], "batch norm backward"),
        (["aten::empty", "aten::empty_like", "aten::native_batch_norm_backward"], "batch norm backward"),
        (["aten::clamp_min_", "aten::relu_"], "ReLU forward"),
        (["aten::threshold_backward", "ReluBackward0"], "ReLU backward"),
        (["aten::_fused_sgd_", "Optimizer.step#SGD.step"], "optimiser"),
        (["Optimizer.zero_grad#SGD.zero_grad"], "optimiser"),
        (["aten::add", DATA], DATA),
        (["aten::index"], OTHER),
        (["aten::_log_softmax", "aten::log_softmax", "aten::cross_entropy_loss"], "loss"),
        (["aten::nll_loss_backward", "NllLossBackward0"], "loss"),
        (["aten::add", "aten::cosine_similarity"], "loss"),
        (["aten::addmm", "aten::linear"], OTHER),
    ],
)
def test_the_group_of_an_operator(path: Sequence[str], group: str) -> None:
    assert group_of(path) == group
    assert group_of([*path, STEP]) == group


def test_time_in_no_operator_is_between_them() -> None:
    assert group_of([STEP]) == BETWEEN


def test_shares_sum_to_one_largest_first() -> None:
    found = shares({"a": 1.0, "b": 5.0, "c": 2.0})
    assert list(found.items()) == [("b", 0.625), ("c", 0.25), ("a", 0.125)]


def test_a_profile_has_forward_and_backward() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(2, 3, 8, 8)
    groups = profiled(lambda: module(x).sum().backward())
    parts = {f"{part} {way}" for part in ("convolution", "batch norm", "ReLU") for way in ("forward", "backward")}
    assert parts | {"add", OTHER, BETWEEN} == set(groups)  # batch norm counts its batches
    assert all(seconds > 0 for seconds in groups.values())
    assert sum(shares(groups).values()) == pytest.approx(1)


# Convolutions


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), [(8, 3, 1, 1), (8, 3, 2, 1), (9, 1, 2, 0)])
def test_flops_are_those_that_torch_counts(passes: int, size: int, kernel: int, stride: int, padding: int) -> None:
    shape = Convolution(2, 3, 5, size, kernel, stride, padding, passes)
    call = convolution_call(shape)
    with FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() == shape.flops


def test_flops_a_byte() -> None:
    # 2·9·16·16 FLOPs a pixel, 16 floats in and 16 out; weights are few
    weights = 9 * 16 * 16
    assert LARGE.intensity == pytest.approx(2 * 9 * 16 * 16 / (4 * (32 + weights / (128 * 32 * 32))))
    assert (LARGE.out, Convolution(1, 1, 1, 32, 3, 2, 1, 1).out) == (32, 16)


def test_the_convolutions_of_a_step(tiny: Path) -> None:
    found = convolutions(EngineTraining(quick_config(tiny)))
    network = {shape: count for shape, count in found.items() if shape.passes > 1}
    teacher = {shape: count for shape, count in found.items() if shape.passes == 1}
    assert sum(network.values()) == sum(teacher.values()) == 7
    assert {shape.rows for shape in network} == {16}
    assert {shape.rows for shape in teacher} == {8}  # memory rows only
    assert [shape.channels_in for shape in network if shape.passes == 2] == [1]  # images need no gradient


def test_all_flops_of_a_step_but_the_heads_are_convolutions(tiny: Path) -> None:
    training = EngineTraining(quick_config(tiny))
    counted = 16 * training.chain.row_flops(0, training.stage)
    own = sum(count * shape.flops for shape, count in convolutions(training).items())
    assert 0.98 * counted < own < counted


# Arithmetic


def made() -> PeakReport:
    small = Convolution(1, 1, 1, 10, 1, 1, 0, 1)
    return PeakReport(
        threads=2,
        rounds=3,
        gemm={8: 50e9, 16: 100e9},
        bandwidth={"copy": 2e9, "add": 1e9},
        convolutions=[Rate(LARGE, 2, 0.1), Rate(small, 3, 0.2)],
        images=128,
        flops=20e9,
        seconds=2.0,
        data_seconds=0.1,
        optimiser_seconds=0.02,
        profile={"add": 0.75, DATA: 0.25},
    )


def test_shares_of_the_peaks() -> None:
    report = made()
    assert report.peak == 100e9
    assert report.share_of_peak == pytest.approx(0.1)
    assert report.convolution_seconds == pytest.approx(2 * 0.1 + 3 * 0.2)
    assert report.share_of_convolutions == pytest.approx(0.4)


def test_the_roof_is_bandwidth_or_peak() -> None:
    report = made()
    large, small = report.convolutions
    assert large.roof(1e9, 2e9) == 1e9
    assert large.roof(100e9, 2e9) == pytest.approx(2e9 * LARGE.intensity)
    expected = 2 * LARGE.flops / (2e9 * LARGE.intensity) + 3 * small.shape.flops / (2e9 * small.shape.intensity)
    assert report.roof_seconds == pytest.approx(expected)


def test_the_tables_show_the_figures() -> None:
    machine, each, step, groups = table(made())
    assert "| 16 × 16 matrix product | 100.0 | GFLOP/s |" in machine
    assert "Below 50 FLOPs a byte" in machine
    assert f"| {LARGE} | 2 | 100.00 |" in each
    assert "| its convolutions as each runs by itself | 800.00 | 40.0% |" in step
    assert "64 images/s; 20.0 GFLOPs a step, 10.0 GFLOP/s, 10% of the GEMM peak." in step
    assert "| add | 75.0% |" in groups


# A tiny measurement


def test_measured_with_small_shapes(tiny: Path) -> None:
    before = torch.get_num_threads()
    report = measure_peak(quick_config(tiny, {"optim": {"lr": 0.0}}), 2, 2, sizes=(8, 16), elements=64)
    assert torch.get_num_threads() == before
    assert (report.threads, report.rounds, report.images) == (2, 2, 16)
    assert sorted(report.gemm) == [8, 16]
    assert set(report.bandwidth) == {"copy", "add"}
    rates = [*report.gemm.values(), *report.bandwidth.values(), *(entry.rate for entry in report.convolutions)]
    times = [report.seconds, report.data_seconds, report.optimiser_seconds, report.flops]
    assert all(value > 0 for value in (*rates, *times))
    assert sum(report.profile.values()) == pytest.approx(1)
    assert {DATA, "optimiser", "loss", "convolution backward", "batch norm forward", "add"} <= set(report.profile)
    assert all("|---" in section for section in table(report))
    assert json.loads(json.dumps(content(report)))["share_of_peak"] == pytest.approx(report.share_of_peak)


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--threads", "0"]])
def test_bad_input_is_refused_before_any_work(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "measure_peak", lambda *_: pytest.fail("it measured"))
    with pytest.raises(InputError, match="at least 1"):
        peak.main(words)


def test_no_rounds_and_no_sizes_are_refused(tiny: Path) -> None:
    for bad in ({"rounds": 0}, {"threads": 0}, {"sizes": ()}, {"elements": 0}):
        given = {"rounds": 1, "threads": 1, "sizes": (8,), "elements": 8, **bad}
        with pytest.raises(InputError, match="at least 1"):
            measure_peak(quick_config(tiny), **given)  # type: ignore[arg-type]


def test_the_command_writes_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peak, "write_training_set", lambda folder, sizes: folder / "made.npz")
    monkeypatch.setattr(peak, "measure_peak", lambda config, rounds, threads: made())
    out = tmp_path / "new" / "peak"
    assert peak.main(["--out", str(out), "--rounds", "2"]) == 0
    assert Path(f"{out}.md").read_text() == capsys.readouterr().out
    assert json.loads(Path(f"{out}.json").read_text())["convolution_seconds"] == pytest.approx(0.8)
