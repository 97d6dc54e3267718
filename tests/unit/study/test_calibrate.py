"""`cl2r calibrate`: the fastest mode and layout are chosen, compiling only if it pays; nothing is written."""

from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner

from cl2r.cli import main as cli
from cl2r.engine.plan import Plan, plan_run
from cl2r.errors import InputError
from cl2r.study import calibrate as calibration
from cl2r.study.calibrate import (
    ComputeMode,
    TrialLayout,
    candidates,
    choose_layout,
    measure,
    measure_modes,
    mode_text,
)
from tests.support.quick import QUICK, quick_config

CPU = torch.device("cpu")
Asked = list[tuple[str, bool]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Record what is measured; fp32 has 10 GFLOP/s, bf16 5, compiled 15."""
    seen: Asked = []

    def measure_flops(plan: Plan, device: torch.device, seconds: float) -> float:
        optim = plan.config.optim
        seen.append((optim.precision, optim.compile))
        return 15e9 if optim.compile else {"fp32": 10e9, "bf16": 5e9}[optim.precision]

    monkeypatch.setattr(calibration, "measure_flops", measure_flops)
    monkeypatch.setattr(calibration, "one_step", lambda plan, device: 1e9)
    return seen


@pytest.fixture
def plan(tiny: Path) -> Plan:
    return plan_run(quick_config(tiny))


def test_precisions_are_measured_in_turns_and_a_short_run_is_not_compiled(plan: Plan, asked: Asked) -> None:
    modes, work = measure_modes(plan, CPU)
    assert asked == [("fp32", False), ("bf16", False)] * calibration.ROUNDS
    assert [(mode.name, mode.flops) for mode in modes] == [("fp32", 10e9), ("bf16", 5e9)]
    assert "compiling was not tried" in mode_text(modes, work)


def test_an_emulated_precision_is_given_up_after_a_step(
    plan: Plan, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"fp32": 10e9, "bf16": 1e9}
    monkeypatch.setattr(calibration, "one_step", lambda plan, device: first[plan.config.optim.precision])
    assert [(mode.name, mode.flops) for mode in measure_modes(plan, CPU)[0]] == [("fp32", 10e9), ("bf16", 1e9)]
    assert asked == [("fp32", False)] * calibration.ROUNDS


def test_a_step_has_a_speed(plan: Plan) -> None:
    assert calibration.one_step(plan, CPU) > 0


def test_a_long_run_is_compiled_if_that_pays(plan: Plan, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "WORTH_COMPILING", 0.0)
    modes, work = measure_modes(plan, CPU)
    assert asked[-1 - calibration.ROUNDS :] == [("fp32", True)] * (1 + calibration.ROUNDS), "with the faster precision"
    assert {mode.name: mode.flops for mode in modes} == {"fp32": 10e9, "bf16": 5e9, "fp32, compiled": 15e9}
    assert all(mode.setup_seconds >= 0 for mode in modes)
    assert modes[0] == min(modes, key=lambda mode: mode.seconds(work))
    assert "fastest: " + modes[0].name in mode_text(modes, work)


def test_compiling_must_be_won_back() -> None:
    plain, fast = ComputeMode("fp32", False, 10.0), ComputeMode("fp32", True, 15.0, setup_seconds=60.0)
    assert plain.seconds(1000.0) < fast.seconds(1000.0)
    assert fast.seconds(10_000.0) < plain.seconds(10_000.0)


def test_the_command_prints_options(tiny: Path, tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "cl2r.study.calibrate.measure",
        lambda config, trials, threads: TrialLayout(trials, threads, 120.0 if trials == 2 else 100.0, 10**6),
    )
    monkeypatch.setattr("cl2r.study.calibrate.cores", lambda: 2)
    preset = tmp_path / "quick.yaml"
    preset.write_text(yaml.safe_dump(QUICK))
    words = ["calibrate", str(preset), "--data", str(tiny), "--runs", "4", "--threads", "1"]
    shown = CliRunner().invoke(cli.cli, words, catch_exceptions=False)
    assert shown.exit_code == 0
    assert "(--set optim.precision=fp32 --set optim.compile=false)" in shown.output
    assert "4 runs: 2 × 1 (trials × threads); 1 × 2 would take 1.20 times as long" in shown.output
    assert "(--cpus-per-worker 1 --max-concurrent 2)" in shown.output
    assert list(tmp_path.iterdir()) == [preset]


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
def test_candidates_fill_the_cores(cores: int, runs: int, tried: list[tuple[int, int]]) -> None:
    assert candidates(cores, runs) == tried


def test_the_last_round_counts() -> None:
    together, alone = TrialLayout(2, 1, 115.0, GIGABYTE), TrialLayout(1, 2, 100.0, GIGABYTE)
    text = "2 × 1 (trials × threads); 1 × 2 would take 1.15 times as long"
    assert choose_layout([alone, together], 8, 10 * GIGABYTE) == (together, text)
    assert choose_layout([alone, together], 3, 10 * GIGABYTE)[0] is alone, "of four places one would be idle"


def test_memory_bounds_how_many_run_at_once() -> None:
    many, few = TrialLayout(8, 1, 900.0, 9 * GIGABYTE), TrialLayout(2, 4, 400.0, 3 * GIGABYTE)
    assert choose_layout([few, many], 64, 16 * GIGABYTE)[0] is many
    assert choose_layout([few, many], 64, 10 * GIGABYTE)[0] is few
    with pytest.raises(InputError, match=r"3,000 MB.*2,000 MB"):
        choose_layout([few, many], 64, 2 * GIGABYTE)


def test_processes_train_at_the_same_time(tiny: Path) -> None:
    layout = measure(quick_config(tiny), trials=2, threads=1, seconds=0.1)
    assert (layout.trials, layout.threads) == (2, 1)
    assert layout.rate > 0
    assert layout.bytes > 2 * 10**8, "two processes with torch in each"
