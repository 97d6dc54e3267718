"""On the icons, two workers differ from one no more than seeds differ from each other."""

from pathlib import Path

import pytest

from analysis import load_study
from studies import ablation

METRICS = ("AC", "BC", "FC", "mean_accuracy")


@pytest.mark.slow
def test_two_workers_differ_from_one_no_more_than_seeds_do(small_ray: None, tmp_path: Path) -> None:
    words = ["--cells", "cl2r", "--set", "scenario.stop_after=3"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert ablation.main([*words, "--storage", str(one), "--name", "one", "--seeds", "0", "1", "2"]) == 0
    assert ablation.main([*words, "--storage", str(two), "--name", "two", "--workers", "2"]) == 0
    seeds = load_study(one / "studies" / "one").runs.set_index("seed")
    workers = load_study(two / "studies" / "two").runs.iloc[0]
    for metric in METRICS:
        values = seeds[metric].astype(float)
        difference, spread = abs(float(workers[metric]) - values[0]), values.max() - values.min()
        print(f"{metric}: one worker {values[0]:+.4f}, two {workers[metric]:+.4f}; seeds {list(values.round(4))}")
        assert difference <= spread + 0.01, metric
