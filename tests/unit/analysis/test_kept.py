"""Runs that are kept as JSON: what is read back is the study that was kept."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from analysis import Study
from analysis.kept import keep_runs, load_kept
from analysis.matrices import matrices
from cl2r.errors import InputError
from cl2r.metrics import METRICS
from tests.support.made_study import made_study

VARIANTS = {"plain": {}, "centred": {"head.centre": True}}


def variant_of(study: Study, variant: str, **changes: object) -> Study:
    """Return a study whose runs are those of one variant of two."""
    specification = {"base": {"data": {}, "optim": {"epochs": 7}}, "variants": VARIANTS, **changes}
    return dataclasses.replace(study, runs=study.runs.assign(variant=variant), specification=specification)


def test_a_kept_study_is_read_back(tmp_path: Path) -> None:
    study, path = variant_of(made_study(seeds=(0, 1, 2)), "centred"), tmp_path / "kept.json"
    assert keep_runs(study, path) == 6
    read = load_kept(path)
    by = ["method.name", "seed"]
    before, after = (one.runs.sort_values(by).reset_index(drop=True) for one in (study, read))
    for metric in METRICS.of_matrix():
        if metric.matrix == "accuracy":
            np.testing.assert_allclose(after[metric.name], before[metric.name].astype(float), atol=2e-5)
    assert set(after["variant"]) == {"centred"}
    assert after["head.centre"].all()
    assert set(after["optim.epochs"]) == {7}
    shown = [matrices(one.matrix) for one in (study, read)]
    for one, other in zip(before["run"], after["run"], strict=True):
        np.testing.assert_allclose(shown[0][one], shown[1][other], atol=1e-5)
    tasks = [one.tasks.merge(one.runs[["run", *by]], on="run").sort_values([*by, "task"]) for one in (study, read)]
    cosines = [own["drift_cosine"].to_numpy(dtype=float, na_value=np.nan) for own in tasks]
    np.testing.assert_allclose(*cosines, atol=1e-5)


def test_failed_runs_are_not_kept(tmp_path: Path) -> None:
    study = variant_of(made_study(failed=[1]), "plain")
    assert keep_runs(study, tmp_path / "kept.json") == 3


def test_runs_of_other_variants_are_added_and_equal_ones_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    keep_runs(variant_of(made_study(), "plain"), path)
    first = path.read_bytes()
    assert keep_runs(variant_of(made_study(), "plain"), path) == 4
    assert path.read_bytes() == first
    assert keep_runs(variant_of(made_study(random=1), "centred"), path) == 8
    assert (load_kept(path).runs["variant"] == "plain").sum() == 4
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [run["variant"] for run in kept["runs"]] == ["plain"] * 4 + ["centred"] * 4
    assert len(kept["origins"]) == 1


@pytest.mark.parametrize(
    "changes", [{"base": {"data": {}, "optim": {"epochs": 8}}}, {"variants": {"plain": {"head.centre": True}}}]
)
def test_other_settings_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "kept.json"
    keep_runs(variant_of(made_study(), "plain"), path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"kept\.json.*(based on|variant plain)"):
        keep_runs(variant_of(made_study(), "plain", **changes), path)
    assert path.read_bytes() == before


def test_other_data_is_refused(tmp_path: Path) -> None:
    study, path = variant_of(made_study(), "plain"), tmp_path / "kept.json"
    keep_runs(study, path)
    with pytest.raises(InputError, match=r"kept\.json.*elsewhere"):
        keep_runs(dataclasses.replace(study, runs=study.runs.assign(**{"data.name": "elsewhere"})), path)
