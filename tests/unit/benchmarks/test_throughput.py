"""The speed benchmark: turns, ratios, files, bad options. Nothing is timed here."""

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from cl2r.errors import InputError
from tests.benchmarks import throughput
from tests.benchmarks.speed.harness import compared, interleaved, markdown, read_json


def clock(values: list[float], heard: list[str], name: str) -> Callable[[], float]:
    """Return a variant that takes the given times in turn and records its name."""
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


def test_ratios_are_those_of_the_same_round() -> None:
    reference, engine = (2.0, 12.0, 30.0, 4.0, 5.0), (1.0, 3.0, 10.0, 8.0, 5.0)
    cost, rate = compared("p", "w", "s", reference, engine), compared("p", "w", "images/s", reference, engine)
    ratios = [2.0, 4.0, 3.0, 0.5, 1.0]
    assert (cost.ratio, cost.low, cost.high) == (2.0, 1.0, 3.0)
    assert rate.ratio == statistics.median(1 / ratio for ratio in ratios)
    assert (cost.reference, cost.engine, cost.repeats) == (5.0, 5.0, 5)
    assert (cost.reference_samples, cost.engine_samples) == (reference, engine)


@pytest.mark.parametrize("words", ["--parts dta", "--rounds 0", "--trials 2", "--out /no/such/folder/file"])
def test_bad_options_are_refused_before_any_work(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "measured", lambda *_: pytest.fail("work began"))
    with pytest.raises(InputError, match=words):
        throughput.main(words.split())


def test_json_and_markdown_of_a_cheap_part_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kept"
    words = ["--small", "--threads", "1", "--rounds", "3", "--parts", "links", "--out", str(out)]
    assert throughput.main(words) == 0
    text, progress = capsys.readouterr()
    assert (tmp_path / "kept.md").read_text() == text
    assert "links: begun" in progress
    rows, facts = read_json((tmp_path / "kept.json").read_text())
    assert markdown(rows, facts) + "\n" == text
    assert len(rows) == 2
    for row in rows:
        assert len(row.reference_samples) == len(row.engine_samples) == row.repeats == 3
        assert row.engine == statistics.median(row.engine_samples)


def test_the_kept_table_is_that_of_the_kept_samples() -> None:
    kept = Path(__file__).parents[3] / "studies" / "results" / "throughput"
    rows, facts = read_json(kept.with_suffix(".json").read_text(encoding="utf-8"))
    assert markdown(rows, facts) + "\n" == kept.with_suffix(".md").read_text(encoding="utf-8")
