"""The roofline: FLOPs of convolutions, and one tiny measurement through the command."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.benchmarks import peak
from tests.benchmarks.peak import DATA, Convolution, PeakReport, Rate, convolution_call, measure_peak
from tests.support.quick import quick_config


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), [(8, 3, 1, 1), (8, 3, 2, 1), (9, 1, 2, 0)])
def test_flops_are_those_that_torch_counts(passes: int, size: int, kernel: int, stride: int, padding: int) -> None:
    shape = Convolution(2, 3, 5, size, kernel, stride, padding, passes)
    call = convolution_call(shape)
    with FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() == shape.flops


def test_a_tiny_measurement_is_written_to_both_files(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_num_threads()
    report = measure_peak(quick_config(tiny, {"optim": {"lr": 0.0}}), 2, 1, sizes=(8, 16), elements=64)
    assert torch.get_num_threads() == before
    assert (report.threads, report.rounds, report.images) == (1, 2, 16)
    rates = [*report.gemm.values(), *report.bandwidth.values(), *(entry.rate for entry in report.convolutions)]
    times = [report.seconds, report.data_seconds, report.optimiser_seconds, report.flops]
    assert all(value > 0 for value in (*rates, *times))
    assert sum(report.profile.values()) == pytest.approx(1)
    assert {DATA, "optimiser", "loss", "convolution backward", "batch norm forward", "add"} <= set(report.profile)

    monkeypatch.setattr(peak, "write_training_set", lambda folder, sizes: folder / "made.npz")
    monkeypatch.setattr(peak, "measure_peak", lambda config, rounds, threads: report)
    out = tmp_path / "new" / "peak"
    assert peak.main(["--out", str(out), "--rounds", "2"]) == 0
    assert Path(f"{out}.md").read_text() == capsys.readouterr().out
    assert json.loads(Path(f"{out}.json").read_text())["share_of_peak"] == pytest.approx(report.share_of_peak)


def test_the_kept_tables_are_those_of_the_kept_measurements() -> None:
    kept = Path(__file__).parents[3] / "studies" / "results" / "peak"
    content = json.loads(kept.with_suffix(".json").read_text(encoding="utf-8"))
    own = {field.name: content[field.name] for field in fields(PeakReport)}
    own["gemm"] = {int(side): rate for side, rate in own["gemm"].items()}
    own["convolutions"] = [Rate(Convolution(**rate.pop("shape")), **rate) for rate in own["convolutions"]]
    shown = kept.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    made = "\n\n".join(peak.table(PeakReport(**own))).splitlines()
    assert [line for line in shown if line.startswith("|")] == [line for line in made if line.startswith("|")]
