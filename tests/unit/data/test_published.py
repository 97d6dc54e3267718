"""Stand-ins of benchmarks that are not there: their sizes, and that they can be planned."""

from pathlib import Path

import numpy as np
import pytest

from cl2r.config.layers import from_dotted, read_layer, resolve
from cl2r.data import DATASETS, load_dataset, published_sizes, stand_ins
from cl2r.data.published import SIZES, Noise
from cl2r.engine.plan import plan_run
from cl2r.errors import InputError


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_the_data_set(name: str) -> None:
    assert SIZES[name].train + SIZES[name].open == DATASETS[name].images


@pytest.mark.parametrize("name", ["cifar100", "casia_ijbc"])
def test_a_stand_in_can_be_planned(name: str, tmp_path: Path) -> None:
    config = resolve([read_layer(name), from_dotted("data.root", str(tmp_path))])
    with pytest.raises(InputError, match=f"`cl2r datasets check {name}"):
        plan_run(config)
    with published_sizes():
        assert stand_ins() == []
        plan = plan_run(config)
        assert stand_ins() == [name]
    assert stand_ins() == []
    entry, sizes = DATASETS[name], SIZES[name]
    assert sum(len(task.rows) for task in plan.scenario.tasks) == sizes.train
    assert plan.dataset.num_classes == entry.classes
    per_class = np.bincount(plan.dataset.y_train)
    assert per_class.max() - per_class.min() <= 1
    assert plan.dataset.num_items == (sizes.templates or sizes.open)
    assert len(np.unique(plan.dataset.y_open)) == sizes.open_classes


def test_only_missing_benchmarks_are_replaced(tmp_path: Path) -> None:
    with published_sizes():
        assert load_dataset("icons", 32, 1).num_classes == 100
        (tmp_path / "mine" / "train").mkdir(parents=True)
        for name in ("lfw", str(tmp_path / "nowhere.npz"), str(tmp_path / "mine")):
            with pytest.raises(InputError):
                load_dataset(name, root=str(tmp_path))
        assert stand_ins() == []


def test_noise_takes_a_byte_per_image_and_differs_from_image_to_image() -> None:
    images = Noise(10**6, 224, 224, 3)
    pixels = images.decode(np.array([0, 1, 10**6 - 1]))
    assert pixels.shape == (3, 224, 224, 3)
    assert not np.array_equal(pixels[0], pixels[1])
    assert not np.array_equal(pixels[0], pixels[2])
