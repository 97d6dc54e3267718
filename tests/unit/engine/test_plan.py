"""Runs that cannot work are refused before any training, with the field that is wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cl2r.engine.plan import plan_run
from cl2r.errors import InputError
from tests.support.quick import quick_config


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ({"head": {"k_max": 11}}, r"head\.k_max=11 .*12 classes"),
        ({"scenario": {"stop_after": 4}}, r"scenario\.stop_after=4 .*3 tasks"),
        (
            {"eval": {"metric": "tar", "far": [1e-4]}},
            r"eval\.far=0\.0001 .*10000 negative pairs.* 60; .*eval\.negatives",
        ),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(tiny: Path, layer: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        plan_run(quick_config(tiny, layer))


def test_a_task_of_one_image_is_refused(tmp_path: Path) -> None:
    images = np.zeros((4, 16, 16, 1), np.uint8)
    np.savez(tmp_path / "d.npz", x_train=images, y_train=np.arange(4), x_open=images, y_open=np.array([9, 9, 8, 8]))
    with pytest.raises(InputError, match="task 1 has 1 image"):
        plan_run(quick_config(tmp_path / "d.npz", {"scenario": {"n_tasks": 4}, "eval": {"tuning_share": 0}}))


def test_the_orthogonal_adapter_is_refused_before_training_if_features_have_too_many_dimensions(tiny: Path) -> None:
    with pytest.raises(InputError, match=r"adapter\.name=orthogonal .*1999 dimensions"):
        plan_run(quick_config(tiny, {"method": {"name": "cl2r+orthogonal"}, "head": {"k_max": 2000}}))
    plan_run(quick_config(tiny, {"method": {"name": "cl2r+low_rank"}, "head": {"k_max": 2000}}))


def test_adapters_are_refused_if_features_are_factored(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cl2r.engine.plan.FACTORED_ABOVE", 4)
    with pytest.raises(InputError, match=r"adapter\.name=procrustes .*11 dimensions"):
        plan_run(quick_config(tiny, {"method": {"name": "cl2r+procrustes"}}))
