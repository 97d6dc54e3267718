"""`cl2r calibrate`: the fastest way wins, compiling only where it pays, and nothing is trained or written."""

from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from quick import QUICK, quick_config

from cl2r import cli
from cl2r.config import Config
from cl2r.engine.plan import Plan, plan_run
from cl2r.study import calibration
from cl2r.study.calibration import Way, choose, compiled_way, described, eager_ways, fastest_way

CPU = torch.device("cpu")
Asked = list[tuple[str, bool]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What is measured; the speed of fp32 is 10 GFLOP/s, bf16 has 5, compiled 15."""
    seen: Asked = []

    def calibrate(plan: Plan, device: torch.device, seconds: float) -> float:
        optim = plan.config.optim
        seen.append((optim.precision, optim.compile))
        return 15e9 if optim.compile else {"fp32": 10e9, "bf16": 5e9}[optim.precision]

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    monkeypatch.setattr(calibration, "one_step", lambda plan, device: 1e9)
    return seen


@pytest.fixture
def plan(tiny: Path) -> Plan:
    return plan_run(quick_config(tiny))


def test_precisions_are_measured_in_turns(plan: Plan, asked: Asked) -> None:
    ways = eager_ways(plan, CPU)
    assert asked == [("fp32", False), ("bf16", False)] * calibration.ROUNDS
    assert [(way.name, way.flops) for way in ways] == [("fp32", 10e9), ("bf16", 5e9)]


def test_an_emulated_precision_is_given_up_after_a_step(
    plan: Plan, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        calibration, "one_step", lambda plan, device: {"fp32": 10e9, "bf16": 1e9}[plan.config.optim.precision]
    )
    assert [(way.name, way.flops) for way in eager_ways(plan, CPU)] == [("fp32", 10e9), ("bf16", 1e9)]
    assert asked == [("fp32", False)] * calibration.ROUNDS


def test_a_step_has_a_speed(plan: Plan) -> None:
    assert calibration.one_step(plan, CPU) > 0


def test_a_short_run_is_not_compiled(plan: Plan, asked: Asked) -> None:
    chosen, ways, work = fastest_way(plan, CPU)
    assert (chosen.precision, chosen.compile) == ("fp32", False)
    assert ("fp32", True) not in asked
    assert "compiling was not tried" in described(chosen, ways, work)


def test_a_long_run_is_if_it_pays(plan: Plan, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "WORTH_COMPILING", 0.0)
    chosen, ways, work = fastest_way(plan, CPU)
    assert asked[-1] == ("fp32", True), "with the faster precision"
    assert [way.name for way in ways] == ["fp32", "bf16", "fp32, compiled"]
    assert "fastest: " + chosen.name in described(chosen, ways, work)


def test_compiling_must_be_won_back() -> None:
    plain, fast = Way("fp32", False, 10.0), Way("fp32", True, 15.0, setup_seconds=60.0)
    assert choose([plain, fast], 1000.0) is plain
    assert choose([plain, fast], 10_000.0) is fast
    assert choose([plain, Way("bf16", False, 10.0)], 1.0) is plain, "fp32 of equals"


def test_compiling_is_timed_apart(plan: Plan, asked: Asked) -> None:
    way = compiled_way(plan, CPU, "fp32")
    assert way.flops == 15e9
    assert 0 <= way.setup_seconds < 60
    assert asked == [("fp32", True)] * (1 + calibration.ROUNDS)


def test_the_command_says_options(tiny: Path, tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cl2r.study.layout.measure", lambda config, trials, threads: _layout(config, trials, threads))
    monkeypatch.setattr("cl2r.study.layout.cores", lambda: 2)
    preset = tmp_path / "quick.yaml"
    preset.write_text(yaml.safe_dump(QUICK))
    words = ["calibrate", str(preset), "--data", str(tiny), "--runs", "4", "--threads", "1"]
    shown = CliRunner().invoke(cli.cli, words, catch_exceptions=False)
    assert shown.exit_code == 0
    assert "(--set optim.precision=fp32 --set optim.compile=false)" in shown.output
    assert "4 runs: 2 × 1 (trials × threads); 1 × 2 would take 1.20 times as long" in shown.output
    assert "(--cpus-per-worker 1 --max-concurrent 2)" in shown.output
    assert list(tmp_path.iterdir()) == [preset]


def _layout(config: Config, trials: int, threads: int) -> object:
    from cl2r.study.layout import Layout

    return Layout(trials, threads, 120.0 if trials == 2 else 100.0, 10**6)
