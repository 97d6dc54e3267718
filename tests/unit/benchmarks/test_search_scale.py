"""The benchmark of indexes of many vectors, with few."""

from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import search_scale


def test_indexes_are_compared_with_the_exact_search(tmp_path: Path) -> None:
    search_scale.generate(tmp_path, search_scale.Generated(vectors=5000, queries=30))
    exact = search_scale.search_kind(tmp_path, "exact", 1)
    assert exact["recall"] == 1
    vectors, queries = (np.load(tmp_path / f"{name}.npy") for name in ("vectors", "queries"))
    right = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]
    assert np.mean(np.load(tmp_path / "right.npy") == right) > 0.99, "through two shards"
    built = search_scale.build_kind(tmp_path, "ivf")
    assert built["file"] == next((tmp_path / "ivf").glob("*.faiss")).stat().st_size > 5000 * 99 * 4
    assert 0.5 < search_scale.search_kind(tmp_path, "ivf", 1)["recall"] <= 1


def test_the_benchmark_prints_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--vectors", "1000", "--queries", "5", "--kinds", "exact", "--repeats", "1", "--folder", str(tmp_path)]
    assert search_scale.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| index | options |")
    assert lines[2].startswith("| exact |  | – | – | 0 |")
    assert lines[2].endswith("| 1.000 |")
    assert "1,000 vectors of 99 dimensions" in lines[4]
    assert not list(tmp_path.iterdir())
