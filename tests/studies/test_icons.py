"""What the documentation says about the embedded icons. Minutes: `make test-slow`."""

from pathlib import Path

import pytest

from analysis import load_study
from cl2r.config.layers import override, read_layer, resolve
from studies import ablation
from tests.support.quick import train

pytestmark = pytest.mark.slow
METRICS = ("AC", "BC", "FC", "mean_accuracy")


def first_upgrade(root: Path, *settings: str) -> float:
    """C[2,1] − C[1,1] on the tuning pairs."""
    fixed = ("scenario.n_tasks=5", "scenario.stop_after=2")
    layers = [read_layer("icons"), *map(override, (*fixed, *settings))]
    evaluation = train(resolve(layers), root).tuning
    assert evaluation is not None
    return evaluation.values["BC"]


def test_the_fixed_classifier_needs_centred_inputs_or_seen_outputs_only(tmp_path: Path) -> None:
    plain = first_upgrade(tmp_path, "head.centre=false")
    assert first_upgrade(tmp_path, "head.centre=true") > plain + 0.05
    assert first_upgrade(tmp_path, "head.centre=false", "head.mask_unseen=true") > plain + 0.05


def test_two_workers_differ_from_one_no_more_than_seeds_do(small_ray: None, tmp_path: Path) -> None:
    words = ["--cells", "cl2r", "--tasks", "5", "--set", "scenario.stop_after=3"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert ablation.main([*words, "--storage", str(one), "--name", "one", "--seeds", "0", "1", "2"]) == 0
    assert ablation.main([*words, "--storage", str(two), "--name", "two", "--seeds", "0", "--workers", "2"]) == 0
    seeds = load_study(one / "studies" / "one").runs.set_index("seed")
    workers = load_study(two / "studies" / "two").runs.iloc[0]
    for metric in METRICS:
        values = seeds[metric].astype(float)
        difference, spread = abs(float(workers[metric]) - values[0]), values.max() - values.min()
        print(f"{metric}: one worker {values[0]:+.4f}, two {workers[metric]:+.4f}; seeds {list(values.round(4))}")
        assert difference <= spread + 0.01, metric
