"""The roofline: which group an operator is in, arithmetic on made-up numbers, and one tiny measurement."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.benchmarks import peak
from tests.benchmarks.peak import (
    DATA,
    Convolution,
    PeakReport,
    Rate,
    content,
    convolution_call,
    measure_peak,
    table,
)
from tests.support.quick import quick_config

LARGE = Convolution(128, 16, 16, 32, 3, 1, 1, 3)
"""A convolution of ResNet-32's first stage."""


# Groups


# Convolutions


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), [(8, 3, 1, 1), (8, 3, 2, 1), (9, 1, 2, 0)])
def test_flops_are_those_that_torch_counts(passes: int, size: int, kernel: int, stride: int, padding: int) -> None:
    shape = Convolution(2, 3, 5, size, kernel, stride, padding, passes)
    call = convolution_call(shape)
    with FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() == shape.flops


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


# A tiny measurement


def test_measured_with_small_shapes(tiny: Path) -> None:
    before = torch.get_num_threads()
    report = measure_peak(quick_config(tiny, {"optim": {"lr": 0.0}}), 2, 1, sizes=(8, 16), elements=64)
    assert torch.get_num_threads() == before
    assert (report.threads, report.rounds, report.images) == (1, 2, 16)
    assert sorted(report.gemm) == [8, 16]
    assert set(report.bandwidth) == {"copy", "add"}
    rates = [*report.gemm.values(), *report.bandwidth.values(), *(entry.rate for entry in report.convolutions)]
    times = [report.seconds, report.data_seconds, report.optimiser_seconds, report.flops]
    assert all(value > 0 for value in (*rates, *times))
    assert sum(report.profile.values()) == pytest.approx(1)
    assert {DATA, "optimiser", "loss", "convolution backward", "batch norm forward", "add"} <= set(report.profile)
    assert all("|---" in section for section in table(report))
    assert json.loads(json.dumps(content(report)))["share_of_peak"] == pytest.approx(report.share_of_peak)


def test_the_command_writes_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peak, "write_training_set", lambda folder, sizes: folder / "made.npz")
    monkeypatch.setattr(peak, "measure_peak", lambda config, rounds, threads: made())
    out = tmp_path / "new" / "peak"
    assert peak.main(["--out", str(out), "--rounds", "2"]) == 0
    assert Path(f"{out}.md").read_text() == capsys.readouterr().out
    assert json.loads(Path(f"{out}.json").read_text())["convolution_seconds"] == pytest.approx(0.8)
