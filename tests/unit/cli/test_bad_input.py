"""Bad input ends in exit code 2 and one line that names what is at fault, before anything is written."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import Command, quick_options, refused


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        ("trian", ["trian", "'run'"]),
        ("completion tcsh", ["tcsh"]),
        ("methods lucri", ["lucri", "'lucir'"]),
        ("datasets look", ["look"]),
        ("datasets check", ["NAME"]),
        ("datasets check cifar10 .", ["cifar10", "'cifar100'"]),
        ("datasets download imagenet900 .", ["imagenet900"]),
        ("datasets open-images icons a b c", ["OUT"]),
        ("run iconz", ["iconz", "'icons'", "path of a YAML file"]),
        ("run ablation", ["ablation is a study", "`cl2r study ablation`"]),
        ("study icons", ["icons is a preset", "`cl2r run icons`"]),
        ("schema runs", ["runs", "'run'", "'study'"]),
        ("run --colour red", ["--colour", "`cl2r run --help`"]),
        ("run --seed x", ["--seed", "'x'", "`cl2r run --help`"]),
        ("run --quiet --show-config", ["--show-config", "--quiet", "one of the two"]),
        ("run --json -v", ["--verbose", "--json", "one of the two"]),
        ("study ablatoin", ["ablatoin", "'ablation'"]),
        ("plan ablatoin", ["ablatoin", "'ablation'"]),
        ("plan scaling", ["scaling"]),
        ("study nowhere.yaml", ["nowhere.yaml", "path of its YAML file"]),
        ("plan nowhere.yaml", ["nowhere.yaml", "`cl2r study`"]),
        ("study --seeds", ["--seeds"]),
        ("study ablation --cells lwf", ["--cells", "lwf"]),
        ("study ablation --colour red", ["--colour"]),
        ("study ablation --seeds x", ["--seeds", "x"]),
        ("study ablation --seeds", ["--seeds"]),
        ("study ablation 3", ["3"]),
        ("study sweep --sampler grid", ["--sampler", "grid"]),
        ("study sweep --spec nowhere.yaml", ["nowhere.yaml"]),
        ("study regimes --only nowhere", ["--only", "nowhere"]),
        ("study methods --methods er lucri", ["lucri", "'lucir'"]),
        ("study paper", ["--table", "--figure"]),
        ("study paper --table 9", ["--table 9"]),
        ("status", ["results/studies"]),
        ("status sizes", ["sizes"]),
        ("run --set optim.epoch=3", ["optim.epoch'", "'optim.epochs'"]),
        ("run --tasks 13", ["n_tasks", "13", "12"]),
        ("run --tasks 0", ["scenario.n_tasks"]),
        ("run --set method.lambda_base=-1", ["method.lambda_base"]),
        ("run --set eval.positives=5", ["eval.positives"]),
        ("run --set eval.folds=61", ["eval.folds", "61"]),
        ("run --set head.k_max=3", ["head.k_max", "raise it"]),
        ("run --set scenario.stop_after=9", ["scenario.stop_after", "lower it"]),
        ("run --set zzzz=3", ["'zzzz'", "seed, threads, data"]),
        ("run --set data=icons", ["data", "mapping of its fields"]),
        ("run --set nonsense", ["nonsense", "KEY=VALUE"]),
        ("run --method lfw", ["lfw", "'lwf'"]),
        ("run --method er+slurp", ["slurp"]),
        ("run --method er --set lucir.top=5", ["er", "lucir", "choose --method lucir"]),
        ("run --method lucir --set head.preallocate=true", ["head.preallocate"]),
        ("run --seed -1", ["seed"]),
        ("run --data nowhere", ["nowhere"]),
        ("run --data nowhere.npz", ["nowhere.npz"]),
        ("run --data iconz", ["iconz", "'icons'"]),
        ("study ablation --tasks 13", ["n_tasks", "13", "12"]),
        ("study ablation --set optim.epoch=3", ["optim.epoch'", "'optim.epochs'"]),
        ("study ablation --set method.name=er", ["method.name=er", "leave it out"]),
        ("study ablation --set seed=3", ["seed=3"]),
        ("study ablation --set method.fd=all", ["method.fd=all"]),
        ("study ablation --seeds 0 0", ["seeds", "each once"]),
        ("study ablation --data nowhere.npz", ["nowhere.npz"]),
        ("study ablation --preset iconz", ["iconz", "'icons'"]),
        ("study ablation --workers 0", ["--workers 0"]),
        ("study ablation --workers 9", ["er seed 0", "16 rows", "9 workers"]),
        ("study ablation --name a/b", ["--name a/b"]),
        ("study ablation --storage s3://key:word@bucket/here", ["credentials"]),
        ("study ablation --storage s3://bucket/here?secret_key=word", ["credentials"]),
        ("study ablation --storage s3:/bucket/here", ["s3:/bucket"]),
        ("study ablation --workers 2 --gpus-per-worker 0.5", ["--gpus-per-worker 0.5"]),
        ("study ablation --sync-batchnorm", ["--sync-batchnorm"]),
        ("study ablation --accept-links all", ["--accept-links", "'same', 'any'"]),
        ("run --accept-links all", ["--accept-links", "'same', 'any'"]),
        ("study ablation --cpus-per-worker many", ["--cpus-per-worker", "many"]),
        ("study ablation --cpus-per-worker auto --workers 2", ["--cpus-per-worker auto"]),
        ("study memory_size --sizes -1", ["memory.per_class"]),
        ("study sweep --trials 0", ["search.trials"]),
        ("study sweep --objectives CB", ["search", "CB"]),
    ],
)
@pytest.mark.usefixtures("no_ray")
def test_words(cl2r: Command, tiny: Path, tmp_path: Path, words: str, faults: list[str]) -> None:
    """`run` and studies get the options of a small run first, so that nothing else is wrong."""
    given = words.split()
    place = {"run": 1, "study": 2, "plan": 2}.get(given[0])
    if place is not None:
        given[place:place] = quick_options(tiny)
    line = refused(cl2r, tmp_path, *given)
    assert all(fault in line for fault in faults), line


@pytest.mark.parametrize(
    ("command", "text", "faults"),
    [
        ("run", "grid: {method.name: [er, cl2r]}", ["mine.yaml", "'grid'", "`cl2r study mine.yaml`"]),
        ("run", "space: {optim.lr: [0.1, 0.2]}", ["'space'", "`cl2r study mine.yaml`"]),
        ("run", "preset: nowhere.yaml", ["nowhere.yaml", "presets: "]),
        ("run", "preset: mine.yaml", ["mine.yaml", "another base"]),
        ("run", "preset: [icons]", ["mine.yaml: preset", "none"]),
        ("run", "optim: {epoch: 3}", ["'optim.epochs'"]),
        ("run", "a: [", ["mine.yaml", "not valid YAML"]),
        ("run", "seed: 1\nseed: 2", ["mine.yaml: ", "line 2: key 'seed'", "line 1"]),
        ("run", "optim: " + "[" * 10**4, ["mine.yaml: ", "nested too deeply"]),
        ("run", "seed: !!bool x", ["mine.yaml: ", "tag"]),
        ("run", "seed: \0", ["mine.yaml: ", "0x0000"]),
        ("run", "? {a: 1}\n: 2", ["mine.yaml: ", "unhashable key"]),
        ("run", "1: 2", ["1"]),
        ("run", "optim: {1: 2}", ["optim.1"]),
        ("run", "set: {1: 2}", ["1"]),
        ("study", "seeds: [0]\nseeds: [0, 1]", ["mine.yaml: ", "line 2: key 'seeds'"]),
        ("study", "grid: {method.name: [er], method.name: [cl2r]}", ["mine.yaml: ", "'method.name'"]),
        ("study", "seeds: &a [*a]", ["mine.yaml: ", "contains itself"]),
        ("study", "seeds: [0, 1]\n1: 2", ["1"]),
        ("plan", "seeds: [0, 1]\nset: {seed: 1, seed: 2}", ["mine.yaml: ", "line 2: key 'seed'"]),
        ("run", "- a", ["mine.yaml", "mapping", "optim: {epochs: 3}"]),
        ("study", "optim: {epochs: 3}", ["mine.yaml", "`cl2r run mine.yaml`", "grid"]),
        ("study", "preset: 3\nseeds: [0, 1]", ["mine.yaml: preset", "3"]),
        ("study", "zzzz: 3\nseeds: [0, 1]", ["'zzzz'", "preset, set, seeds"]),
        ("study", "seed: 3\nseeds: [0, 1]", ["'seed'", "'seeds'"]),
        ("study", "search: {pruner: median, objectives: [AC, BC]}", ["pruner", "search.objectives"]),
        ("plan", "optim: {epochs: 3}", ["`cl2r run mine.yaml`"]),
    ],
)
@pytest.mark.usefixtures("no_ray")
def test_files(cl2r: Command, tmp_path: Path, command: str, text: str, faults: list[str]) -> None:
    Path("mine.yaml").write_text(text)
    line = refused(cl2r, tmp_path, command, "mine.yaml")
    assert all(fault in line for fault in faults), line


def no_open_images(images: Path) -> str:
    shutil.rmtree(images / "open")
    return "open"


def broken_image(images: Path) -> str:
    path = images / "train" / "c" / "c_0005.png"
    path.write_bytes(path.read_bytes()[:40])
    return str(path)


def pair_of_a_missing_image(images: Path) -> str:
    (images / "open" / "x" / "x_0002.png").unlink()
    return f"{images / 'pairs.txt'}: line 3"


def one_fold(images: Path) -> str:
    """One fold leaves nothing to fit a threshold on; that is known before any training."""
    (images / "pairs.txt").write_text("1\t2\nw\t1\t2\nx\t1\t2\nw\t1\tx\t1\nw\t2\tx\t2\n")
    return "fold"


def keep_open(images: Path, classes: int, per_class: int) -> None:
    """Remove the list of pairs, and all but some of the open images."""
    (images / "pairs.txt").unlink()
    for place, folder in enumerate(sorted((images / "open").iterdir())):
        for image in sorted(folder.iterdir())[per_class if place < classes else 0 :]:
            image.unlink()
        if place >= classes:
            folder.rmdir()


def one_open_class(images: Path) -> str:
    keep_open(images, 1, 12)
    return "negative pairs need at least two open classes, there is one; add a second class folder"


def one_image_per_open_class(images: Path) -> str:
    keep_open(images, 4, 1)
    return "each has one; give every open class at least 4 images"


def two_images_per_open_class(images: Path) -> str:
    keep_open(images, 4, 2)
    return "no open class has two images to report; give every open class at least 4 images, or set eval.tuning_share=0"


def fewer_pairs_than_folds(images: Path) -> str:
    keep_open(images, 4, 4)
    return "eval.folds = 5: there are 4 positive and 4 negative pairs to report"


def empty_open_folder(images: Path) -> str:
    keep_open(images, 0, 0)
    return f"{images / 'open'}: no folders of images in it; put one folder per class there"


def one_open_image(images: Path) -> str:
    keep_open(images, 1, 1)
    return "x_open has 1 images, a pair needs at least 2; add images of classes that are not trained on"


def list_of_pairs_by_path(images: Path) -> str:
    (images / "pairs.txt").write_text("w/w_0001.png,w/w_0002.png,1\nw/w_0001.png,x/x_0099.png,0\n")
    return f"{images / 'pairs.txt'}: line 2: no image 'x/x_0099.png'"


DAMAGES = [no_open_images, broken_image, pair_of_a_missing_image, one_fold, one_open_class, one_image_per_open_class]
DAMAGES += [two_images_per_open_class, fewer_pairs_than_folds, empty_open_folder, one_open_image, list_of_pairs_by_path]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_of_images(cl2r: Command, tmp_path: Path, images: Path, damage: Callable[[Path], str]) -> None:
    fault = damage(images)
    assert fault in refused(cl2r, tmp_path, "run", *quick_options(images))


def test_an_archive_without_open_images(cl2r: Command, tmp_path: Path) -> None:
    path = tmp_path / "half.npz"
    np.savez(path, x_train=np.zeros((4, 8, 8), np.uint8), y_train=np.arange(4))
    assert f"{path}: x_open, y_open" in refused(cl2r, tmp_path, "run", "--data", path)


@pytest.mark.parametrize("command", [["run"], ["study", "ablation"]])
@pytest.mark.usefixtures("no_ray")
def test_a_storage_that_cannot_be_written(cl2r: Command, tiny: Path, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    storage = tmp_path / "file" / "results"
    assert str(storage) in refused(cl2r, tmp_path, *command, *quick_options(tiny), "--storage", storage)
