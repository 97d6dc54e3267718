"""The benchmark's turns and statistics, its files and what it refuses. Nothing is timed here."""

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from cl2r.layers import read_layer, resolve
from studies import throughput
from studies.speed import memory, step_variants, timing
from studies.speed.shown import figure, joined, read_json, spread, to_json
from studies.speed.sizes import SMALL
from studies.speed.timing import Measured, compared, interleaved, quartiles, seconds
from studies.speed.tiny_runs import Ended, Timed, write_preset


def clock(values: list[float], heard: list[str], name: str) -> Callable[[], float]:
    """A variant that takes the given times one after the other, and leaves its name."""
    left = iter(values)

    def tick() -> float:
        heard.append(name)
        return next(left)

    return tick


def test_variants_take_turns_and_every_other_round_runs_backwards() -> None:
    heard: list[str] = []
    names = ("a", "b", "c")
    samples = interleaved({name: clock([9, 1, 2, 3], heard, name) for name in names}, rounds=3)
    assert "".join(heard) == "abc" + "abc" + "cba" + "abc"
    assert samples == dict.fromkeys(names, (1, 2, 3))  # the call that warms up does not count


def test_ratios_are_of_the_same_round_and_say_how_many_times_better_the_engine_is() -> None:
    reference, engine = (2.0, 12.0, 30.0, 4.0, 5.0), (1.0, 3.0, 10.0, 8.0, 5.0)
    cost, rate = compared("p", "w", "s", reference, engine), compared("p", "w", "images/s", reference, engine)
    ratios = [2.0, 4.0, 3.0, 0.5, 1.0]
    assert (cost.ratio, cost.low, cost.high) == (2.0, 1.0, 3.0)
    assert rate.ratio == statistics.median(1 / ratio for ratio in ratios)
    assert (cost.reference, cost.engine, cost.repeats) == (5.0, 5.0, 5)
    assert (cost.reference_samples, cost.engine_samples) == (reference, engine)


def test_a_single_round_has_no_quartiles() -> None:
    assert quartiles([3.0]) == (None, None)
    assert spread(compared("p", "w", "s", [3.0], [2.0])) == "1.5×"


def test_what_is_not_above_zero_has_no_ratio() -> None:
    row = compared("p", "w", "s", [3.0, 3.0], [1.0, -0.1])
    assert math.isnan(row.ratio)
    assert (row.low, row.high) == (None, None)
    assert spread(row) == "–"
    facts = throughput.about(SMALL, ["throughput.py"])
    assert json.loads(to_json([row], facts))["rows"][0]["ratio"] is None


def test_samples_of_different_rounds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        compared("p", "w", "s", [1.0, 2.0], [1.0])


def test_seconds_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 12.5])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert seconds(lambda: None) == 2.5


def test_a_path_that_was_given_up_is_a_row_but_never_the_choice() -> None:
    samples = {"reference": [100.0, 100.0], "fp32": [150.0, 140.0], "fp32, compiled": [140.0, 130.0]}
    first = {"reference": 1.0, "fp32": 1.0, "fp32, compiled": 60.0, "bf16": 9.0}
    rows = {row.what: row for row in step_variants.rows(samples, first, {"bf16": 15.0})}
    given_up = rows["training step, cl2r, bf16"]
    assert (given_up.engine, given_up.ratio, given_up.repeats) == (15.0, 0.15, 1)
    assert rows["training step, cl2r, calibrated choice"].engine_samples == (150.0, 140.0)
    assert "first step, cl2r, bf16, compiled" not in rows


def test_the_calibrated_choice_is_never_slower_than_fp32() -> None:
    slow = dict.fromkeys(step_variants.PATHS, (4.0, 4.0, 4.0)) | {"reference": (2.0, 2.0, 2.0)}
    first = dict.fromkeys([*step_variants.PATHS, "reference"], 1.0)
    for faster, name in (({}, "fp32"), ({"bf16": (9.0, 3.0, 8.0)}, "bf16"), ({"bf16": (99.0, 3.0, 3.0)}, "fp32")):
        rows = {row.what: row for row in step_variants.rows(slow | faster, first, {})}
        choice, plain = rows["training step, cl2r, calibrated choice"], rows["training step, cl2r, fp32"]
        assert choice.note.startswith(f"{name}: ")
        assert choice.engine >= plain.engine


def test_memory_of_a_piece_of_work_is_at_least_what_it_makes() -> None:
    memory.require_linux()
    assert memory._peak(np.ones, (10_000_000,)) > 79
    assert memory._peak(len, ((),)) < 10  # what was freed is not counted again


@pytest.mark.parametrize("apart", [0.0, 1.3, 3.9])
def test_overhead_is_what_a_lane_spends_beyond_the_runs_own_work(apart: float) -> None:
    """Two lanes of runs that own 3 s each and come every 4 s; the first two took longer, as they load libraries."""
    runs = [Ended(100 + 4.0 * (number // 2) + apart * (number % 2), 3.0 if number > 1 else 9.0) for number in range(40)]
    assert Timed(wall=90, runs=tuple(runs)).overhead == pytest.approx(1, rel=0.04)


def test_runs_without_a_pause_between_them_have_no_overhead() -> None:
    """Also where one lane begins late, and the other ends two runs before its first."""
    lanes = [[3.0 * number for number in range(1, 11)], [8.0 + 3.0 * number for number in range(8)]]
    runs = sorted(Ended(at, 3.0) for lane in lanes for at in lane)
    assert Timed(wall=90, runs=tuple(runs)).overhead == pytest.approx(0, abs=1e-9)


def test_the_tiny_runs_can_be_planned(tmp_path: Path) -> None:
    plan = plan_run(resolve([read_layer(str(write_preset(tmp_path)))]))
    assert len(plan.keys) == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--parts", "dta"], "--parts dta: no such part .did you mean 'data'"),
        (["--rounds", "0"], "--rounds 0: at least 1"),
        (["--threads", "-1"], "--threads -1"),
        (["--tasks", "0"], "--tasks 0"),
        (["--trials", "2"], "--trials 2: at least 6"),
        (["--check-cells", "-1"], "--check-cells -1: at least 0"),
        (["--out", "/no/such/folder/file"], "--out /no/such/folder/file"),
    ],
)
def test_nonsense_is_refused_before_any_work(words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "measured", lambda *_: pytest.fail("it began"))
    with pytest.raises(InputError, match=complaint):
        throughput.main(words)


def test_options_go_before_small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(throughput, "measured", lambda names, sizes: asked.append((names, sizes)) or iter(()))
    assert throughput.main(["--small", "--threads", "1", "--rounds", "3", "--parts", "tar", "data", "tar"]) == 0
    ((names, sizes),) = asked
    assert names == ["tar", "data"]
    assert (sizes.rounds, sizes.threads, sizes.pairs) == (3, 1, SMALL.pairs)


def test_every_part_is_a_module_that_measures() -> None:
    for module in throughput.PARTS.values():
        assert callable(getattr(throughput.importlib.import_module(f"studies.speed.{module}"), "measure", None))


def test_json_and_markdown_of_a_cheap_part_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kept"
    words = ["--small", "--threads", "1", "--rounds", "3", "--parts", "links", "--out", str(out)]
    assert throughput.main(words) == 0
    shown = capsys.readouterr()
    text = (tmp_path / "kept.md").read_text()
    assert shown.out == text
    assert "links: begun" in shown.err
    content = json.loads((tmp_path / "kept.json").read_text())
    assert content["command"][:2] == ["python", "studies/throughput.py"]
    assert content["threads"] == 1
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    cells = {line[0]: line[1:] for line in lines}
    assert len(content["rows"]) == 2
    for entry in content["rows"]:
        row = Measured(**entry)
        assert len(row.reference_samples) == len(row.engine_samples) == row.repeats == 3
        assert row.engine == statistics.median(row.engine_samples)
        assert cells[row.what] == [figure(row.reference, "s"), figure(row.engine, "s"), spread(row)]
        assert f"links, {row.what}: {row.note}." in text


def test_parts_of_an_earlier_command_stay_in_the_files() -> None:
    about = {"machine": {"cpus": 2}, "torch": "2", "capability": "AVX2", "threads": 2, "command": ["first"]}
    first = [compared(part, "w", "s", [2.0, 4.0], [1.0, 1.0]) for part in ("data path", "matrix evaluation", "links")]
    nothing = compared("links", "vanished", "s", [0.0], [1.0])
    old, facts = read_json(to_json([*first, nothing], about))
    assert old[:3] == first
    assert math.isnan(old[3].ratio)
    again = compared("matrix evaluation", "w", "s", [9.0], [1.0])
    later = {**about, "command": ["second"]}
    assert joined(old[:3], facts, [again], later) == [first[0], again, first[2]]
    assert joined(old, facts, [again], {**later, "threads": 1}) == [again], "of other threads, nothing is kept"
