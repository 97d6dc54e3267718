"""The command line: what it prints, what it refuses, and with which exit code."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import Command
from PIL import Image
from quick import flat_quick, set_options
from small_study import tree

from cl2r import __version__
from cl2r.cli import study_names
from cl2r.config import field_keys
from cl2r.engine.plan import plan_run
from cl2r.layers import override, read_layer, resolve
from cl2r.methods.catalog import ADAPTERS, METHODS
from cl2r.study.folder import StudyFolder


def quick_options(**settings: object) -> list[str]:
    """The quick config as options; `optim__lr=3` stands for optim.lr. A later --tasks wins."""
    flat = flat_quick() | {key.replace("__", "."): value for key, value in settings.items()}
    return ["--tasks", str(flat.pop("scenario.n_tasks")), *set_options(flat)]


# ---------------------------------------------------------------- listings


def test_version(cl2r: Command) -> None:
    assert cl2r("--version") == (0, f"cl2r {__version__}\n", "")


def test_no_command_shows_help(cl2r: Command) -> None:
    code, out, err = cl2r()
    assert (code, err) == (0, "")
    assert all(command in out for command in ("run", "study", "plan", "status", "methods", "datasets", "completion"))


@pytest.mark.parametrize("words", [["-h"], ["run", "--help"], ["methods", "-h"], ["status", "-h"]])
def test_help(cl2r: Command, words: list[str]) -> None:
    code, out, _ = cl2r(*words)
    assert code == 0
    assert out.startswith("Usage: cl2r")


def test_methods(cl2r: Command) -> None:
    code, out, err = cl2r("methods")
    assert (code, err) == (0, "")
    listed, _, adapters = out.partition("\n\n")
    assert [line.split()[0] for line in listed.splitlines() if not line.startswith(" ")] == list(METHODS)
    assert all(f"\n{name} " in adapters for name in ADAPTERS)
    for info in METHODS.values():
        assert info.paper in listed
        for option in info.options.model_fields if info.options else ():
            assert f"{info.section}.{option}=" in listed


def test_one_method_with_its_adapter(cl2r: Command) -> None:
    code, out, _ = cl2r("methods", "lucir+slerp")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == ["lucir", "+slerp"]
    code, _, err = cl2r("methods", "lucri")
    assert code == 2
    assert "did you mean 'lucir'?" in err


def test_datasets(cl2r: Command) -> None:
    code, out, err = cl2r("datasets")
    assert (code, err) == (0, "")
    assert out.startswith("icons ")
    assert "x_train, y_train, x_open, y_open" in out
    assert "train/<class>" in out


def test_a_folder_without_the_data_set_is_told_what_is_missing(cl2r: Command, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, err = cl2r("datasets", "--check", "casia_ijbc", str(empty))
    assert (code, err) == (2, "")
    assert sum(line.startswith("wrong  ") for line in out.splitlines()) == 2
    assert "get it CASIA-WebFace" in out
    assert out.endswith(f"casia_ijbc in {empty}: to mend: 2\n")
    assert not list(empty.iterdir())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--check"], "datasets: which one? e.g. cl2r datasets --check cifar100 DIR"),
        (["--full"], "datasets: say --check, --download or --open-images with a name"),
        (["--check", "cifar10", "."], "no data set 'cifar10' (did you mean 'cifar100'?)"),
        (["--download", "imagenet900", "."], "imagenet900: nothing to download;"),
    ],
)
def test_datasets_asked_for_wrongly(cl2r: Command, words: list[str], line: str) -> None:
    code, _, err = cl2r("datasets", *words)
    assert code == 2
    assert line in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cl2r: Command, shell: str) -> None:
    code, out, _ = cl2r("completion", shell)
    assert code == 0
    assert f"_CL2R_COMPLETE={shell}_complete" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run --set optim.m", ["optim.momentum=", "optim.milestones="]),
        ("run --set sim", ["simplex.scale="]),
        ("run ico", ["icons"]),
        ("run --method fi", ["fixed", "fixed_fd"]),
        ("me", ["methods"]),
        ("study s", ["search", "sweep"]),
        ("plan a", ["ablation"]),
    ],
)
def test_the_shell_completes(cl2r: Command, monkeypatch: pytest.MonkeyPatch, words: str, expected: list[str]) -> None:
    monkeypatch.setenv("_CL2R_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"cl2r {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    _, out, _ = cl2r()
    assert [line.split(",")[1] for line in out.splitlines()] == expected


def test_every_field_completes(cl2r: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CL2R_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "cl2r run --set ")
    monkeypatch.setenv("COMP_CWORD", "3")
    _, out, _ = cl2r()
    assert [line.split(",")[1] for line in out.splitlines()] == [f"{key}=" for key in field_keys()]


def test_show_config_prints_what_would_run_and_writes_nothing(cl2r: Command, tmp_path: Path) -> None:
    words = ["--tasks", "7", "--method", "er", "--seed", "3", "--set", "method.fd=memory", "--set", "seed=4"]
    code, out, err = cl2r("run", "--data", "nowhere", *words, "--show-config")
    assert (code, err) == (0, "")
    config = resolve([yaml.safe_load(out)])
    assert (config.scenario.n_tasks, config.method.name, config.seed) == (7, "er_fdm", 4)
    assert config.data.name == "nowhere"
    assert config.optim == resolve([read_layer("icons")]).optim
    assert not list((tmp_path / "cwd").iterdir())


# ---------------------------------------------------------------- bad input


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A sound folder of images, with a sound pair list."""
    root = tmp_path / "images"
    for part, classes in (("train", "abcd"), ("open", "wxyz")):
        for number, name in enumerate(classes):
            (root / part / name).mkdir(parents=True)
            for i in range(1, 13):
                Image.new("L", (16, 16), 10 * i + number).save(root / part / name / f"{name}_{i:04d}.png")
    (root / "pairs.txt").write_text("2\t2\n" + "w\t1\t2\nx\t1\t2\nw\t1\tx\t1\nw\t2\tx\t2\n" * 2)
    return root


def refused(cl2r: Command, tmp_path: Path, *words: str) -> str:
    """The one line a refused run prints."""
    before = tree(tmp_path)
    code, _, err = cl2r(*words)
    assert code == 2
    assert err.startswith("cl2r: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert tree(tmp_path) == before, "nothing is written"
    return err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--set", "optim.epoch=3"], "unknown key 'optim.epoch' (did you mean 'optim.epochs'?)"),
        (["--tasks", "13"], "n_tasks = 13: must be between 1 and the 12 training classes"),
        (["--tasks", "0"], "scenario.n_tasks"),
        (["--set", "method.lambda_base=-1"], "method.lambda_base"),
        (["--set", "eval.positives=5000"], "lower eval.positives"),
        (["--set", "eval.folds=61"], "eval.folds = 61"),
        (["--set", "head.k_max=3"], "head.k_max=3"),
        (["--set", "nonsense"], "expected KEY=VALUE"),
        (["--method", "lfw"], "no method 'lfw' (did you mean 'lwf'?)"),
        (["--method", "er+slurp"], "no adapter 'slurp'"),
        (["--method", "er", "--set", "lucir.top=5"], "er has no section 'lucir'"),
        (["--method", "lucir", "--set", "method.fd=memory"], "lucir has all"),
        (["--method", "lucir", "--set", "head.preallocate=true"], "head.preallocate"),
        (["--colour", "red"], "--colour"),
        (["--seed", "x"], "'x'"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_a_bad_option(cl2r: Command, tiny: Path, tmp_path: Path, words: list[str], fault: str) -> None:
    assert fault in refused(cl2r, tmp_path, "run", "--data", str(tiny), *quick_options(), *words)


def test_an_unknown_preset(cl2r: Command, tmp_path: Path) -> None:
    assert "did you mean 'icons'?" in refused(cl2r, tmp_path, "run", "iconz")


def test_an_unknown_command(cl2r: Command, tmp_path: Path) -> None:
    assert "'trian'" in refused(cl2r, tmp_path, "trian")


def test_an_unknown_shell(cl2r: Command, tmp_path: Path) -> None:
    assert "'tcsh'" in refused(cl2r, tmp_path, "completion", "tcsh")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.npz", "iconz"])
def test_missing_data(cl2r: Command, tmp_path: Path, name: str) -> None:
    assert name in refused(cl2r, tmp_path, "run", "--data", name, *quick_options())


def test_an_archive_without_open_images(cl2r: Command, tmp_path: Path) -> None:
    path = tmp_path / "half.npz"
    np.savez(path, x_train=np.zeros((4, 8, 8), np.uint8), y_train=np.arange(4))
    assert f"{path}: x_open, y_open missing" in refused(cl2r, tmp_path, "run", "--data", str(path))


def test_a_folder_without_open_images(cl2r: Command, tmp_path: Path, images: Path) -> None:
    shutil.rmtree(images / "open")
    assert "DIR/open/<class>" in refused(cl2r, tmp_path, "run", "--data", str(images), *quick_options())


def test_an_image_that_does_not_decode(cl2r: Command, tmp_path: Path, images: Path) -> None:
    broken = images / "train" / "c" / "c_0005.png"
    broken.write_bytes(broken.read_bytes()[:40])
    assert str(broken) in refused(cl2r, tmp_path, "run", "--data", str(images), *quick_options())


def test_a_pair_list_that_names_a_missing_image(cl2r: Command, tmp_path: Path, images: Path) -> None:
    (images / "open" / "x" / "x_0002.png").unlink()
    err = refused(cl2r, tmp_path, "run", "--data", str(images), *quick_options())
    assert f"{images / 'pairs.txt'}: line 3 names image x_0002" in err


def test_a_pair_list_whose_folds_cannot_be_used(cl2r: Command, tmp_path: Path, images: Path) -> None:
    """One fold leaves nothing to fit a threshold on; that is known before any training."""
    (images / "pairs.txt").write_text("1\t2\nw\t1\t2\nx\t1\t2\nw\t1\tx\t1\nw\t2\tx\t2\n")
    assert "fold" in refused(cl2r, tmp_path, "run", "--data", str(images), *quick_options())


def test_an_out_that_cannot_be_written(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "results"
    words = ["--data", str(tiny), *quick_options(), "--out", str(out)]
    assert f"cannot write to {out}" in refused(cl2r, tmp_path, "run", *words)


def test_the_exit_code_of_the_process(tmp_path: Path) -> None:
    script = "from cl2r.cli import main; main()"
    words = ["run", "--set", "optim.epoch=3"]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cl2r: config: unknown key 'optim.epoch' (did you mean 'optim.epochs'?)\n"
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- runs


def test_a_run_prints_and_writes_its_results(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    words = ["run", "--data", str(tiny), *quick_options(optim__epochs=1, optim__milestones="[]")]
    code, out, err = cl2r(*words)
    assert code == 0
    assert [line.split(" link")[0] for line in err.splitlines()] == [f"task {t}: trained" for t in (1, 2, 3)]
    assert "compatibility matrix, accuracy, 120 report pairs" in out
    last = out.splitlines()[-1]
    assert last.startswith("3 links trained, ")
    folder = tmp_path / "cwd" / last.split("; ")[1]
    names = [f"{frame}.parquet" for frame in ("runs", "tasks", "matrix", "curves")]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*names, "config.yaml", "result.json"])
    result = json.loads((folder / "result.json").read_text())
    for number in (*result["report"]["C"][2], result["report"]["mean_accuracy"]):
        assert f"{number:.3f}" in out
    assert "\nAC " in out

    again, out_again, err_again = cl2r(*words)
    assert again == 0
    assert "0 links trained" in out_again
    assert [line.split(" link")[0] for line in err_again.splitlines()] == [f"task {t}: reused" for t in (1, 2, 3)]


def test_a_folder_with_official_pairs_runs(cl2r: Command, images: Path) -> None:
    """Official pairs use 4 of 24 images of w and x: the others still suffice for tuning pairs."""
    options = quick_options(data__channels=1, data__size=16, optim__epochs=1)
    code, out, _ = cl2r("run", "--data", str(images), *options, "--tasks", "2")
    assert code == 0
    assert "compatibility matrix, accuracy, 8 report pairs" in out


def test_a_loss_that_is_not_a_number_ends_with_1(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    code, _, err = cl2r("run", "--data", str(tiny), *quick_options(optim__lr="1e30"))
    assert code == 1
    assert err.startswith("cl2r: task 1, epoch 1: loss term 'ce' is ")
    assert err.count("\n") == 1
    assert not list((tmp_path / "cwd" / "results" / "runs").iterdir())


def test_ctrl_c_ends_with_130(cl2r: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cl2r.progress.ProgressLine.epoch", pressed)
    code, _, err = cl2r("run", "--data", str(tiny), *quick_options())
    assert code == 130
    assert err.lstrip("\n") == "cl2r: stopped; the same command goes on where it stopped\n"


# ---------------------------------------------------------------- studies


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a study fails; what is measured takes no time."""
    monkeypatch.setattr("cl2r.study.command.run_study", lambda *_: pytest.fail("a study was started"))
    monkeypatch.setattr("cl2r.study.plan.calibrate", lambda *_: 1000.0)


def study_options(data: Path, **settings: object) -> list[str]:
    return ["--data", str(data), *quick_options(**settings)]


@pytest.mark.parametrize("words", [["study"], ["study", "--help"], ["study", "-h"], ["plan", "--help"]])
def test_studies_are_listed(cl2r: Command, words: list[str]) -> None:
    code, out, err = cl2r(*words)
    assert (code, err) == (0, "")
    assert "usage: cl2r study NAME" in out
    assert all(name in out for name in ("ablation", "memory_size", "regimes", "sweep", "task_counts"))


@pytest.mark.parametrize("name", study_names())
def test_every_study_has_a_help_text(cl2r: Command, name: str, tmp_path: Path) -> None:
    code, out, err = cl2r("study", name, "--help")
    assert (code, err) == (0, "")
    assert f"python studies/{name}.py" in out, "with an example"
    assert all(option in out for option in ("--seeds", "--storage", "--workers", "--plan", "--max-concurrent"))
    assert not list((tmp_path / "cwd").iterdir())


@pytest.mark.parametrize("command", ["study", "plan"])
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("ablatoin", "no study 'ablatoin' (did you mean 'ablation'?); studies: ablation, "),
        ("nowhere.yaml", "no study nowhere.yaml"),
        ("--seeds", "no study '--seeds'"),
    ],
)
def test_an_unknown_study(cl2r: Command, tmp_path: Path, command: str, name: str, fault: str) -> None:
    assert fault in refused(cl2r, tmp_path, command, name)


def test_a_plan_of_nothing(cl2r: Command, tmp_path: Path) -> None:
    assert "NAME" in refused(cl2r, tmp_path, "plan")


@pytest.mark.parametrize(
    "words",
    [
        ["ablation", "--cells", "lwf"],
        ["ablation", "--colour", "red"],
        ["ablation", "--seeds", "x"],
        ["sweep", "--sampler", "grid"],
        ["regimes", "--only", "nowhere"],
    ],
)
def test_an_option_that_a_study_does_not_have(cl2r: Command, tmp_path: Path, words: list[str]) -> None:
    code, out, err = cl2r("study", *words)
    assert (code, out) == (2, "")
    assert f"{words[0]}: error: " in err
    assert words[-1] in err
    assert not list((tmp_path / "cwd").iterdir())


@pytest.mark.parametrize(
    ("name", "words", "fault"),
    [
        ("ablation", ["--tasks", "13"], "n_tasks = 13: must be between 1 and the 12 training classes"),
        ("ablation", ["--set", "optim.epoch=3"], "unknown key 'optim.epoch' (did you mean 'optim.epochs'?)"),
        ("ablation", ["--set", "method.name=er"], "--set method.name=er: the study sets this field itself"),
        ("ablation", ["--set", "seed=3"], "--set seed=3: the study sets this field itself"),
        ("ablation", ["--seeds", "0", "0"], "seeds must differ"),
        ("ablation", ["--data", "nowhere.npz"], "nowhere.npz"),
        ("ablation", ["--preset", "iconz"], "did you mean 'icons'?"),
        ("ablation", ["--workers", "0"], "--workers 0: must be at least 1"),
        ("ablation", ["--workers", "9"], "er seed 0: a batch of 16 rows is too small for 9 workers: each needs 2"),
        ("ablation", ["--name", "a/b"], "--name a/b"),
        ("memory_size", ["--sizes", "-1"], "memory.per_class"),
        ("ablation", ["--set", "method.fd=all"], "--set method.fd=all: the study sets this field itself"),
        ("ablation", ["--storage", "s3://key:word@bucket/here"], "leave credentials out of the address"),
        ("ablation", ["--storage", "s3://bucket/here?secret_key=word"], "leave credentials out of the address"),
        ("ablation", ["--storage", "s3:/bucket/here"], "an address has two slashes"),
        ("ablation", ["--workers", "2", "--gpus-per-worker", "0.5"], "workers of one run cannot share a GPU"),
        ("ablation", ["--sync-batchnorm"], "--sync-batchnorm needs several workers with GPUs"),
        ("sweep", ["--spec", "nowhere.yaml"], "no study nowhere.yaml"),
        ("sweep", ["--trials", "0"], "search.trials"),
    ],
)
@pytest.mark.usefixtures("no_ray")
def test_bad_input_ends_a_study_before_it_starts(
    cl2r: Command, tiny: Path, tmp_path: Path, name: str, words: list[str], fault: str
) -> None:
    assert fault in refused(cl2r, tmp_path, "study", name, *study_options(tiny), *words)


@pytest.mark.usefixtures("no_ray")
def test_a_storage_that_cannot_be_written(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    words = [*study_options(tiny), "--storage", str(tmp_path / "file" / "results")]
    assert "cannot write to" in refused(cl2r, tmp_path, "study", "ablation", *words)


@pytest.mark.parametrize("words", [["plan", "ablation"], ["study", "ablation", "--plan"]])
@pytest.mark.usefixtures("no_ray")
def test_a_plan_starts_nothing_and_writes_nothing(cl2r: Command, tiny: Path, tmp_path: Path, words: list[str]) -> None:
    before = tree(tmp_path)
    code, out, err = cl2r(*words, *study_options(tiny), "--cells", "er", "er_fd", "cl2r", "--seeds", "0", "1")
    assert (code, err) == (0, "")
    assert out.startswith("study ablation-tiny-")
    assert "16 to train, 0 of 16 present" in out, "two seeds: two first tasks, and three times two others"
    assert out.endswith("0 of 6 runs; nothing was started\n")
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("no_ray")
def test_a_plan_of_a_sweep_and_of_a_file(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    space = {"method.lambda_base": {"low": 0.1, "high": 1.0}}
    path.write_text(yaml.safe_dump({"space": space, "search": {"trials": 4}}))
    before = tree(tmp_path)
    for words in (["sweep", "--spec", str(path)], [str(path)]):
        code, out, err = cl2r("plan", *words, *study_options(tiny))
        assert (code, err) == (0, "")
        assert out.startswith("study mine-tiny-")
        assert "(about: 4 points of the space drawn at random)" in out
        assert "9 to train, 0 of 9 present" in out
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("no_ray")
def test_the_storage_can_come_from_the_environment(
    cl2r: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished link in there is found by the plan."""
    words = ["plan", "ablation", *study_options(tiny), "--cells", "er"]
    assert "0 of 3 present" in cl2r(*words)[1]
    config = resolve([read_layer("icons"), *map(override, option_texts(tiny)), {"method": {"name": "er"}}])
    link = tmp_path / "elsewhere" / "links" / plan_run(config).keys[0]
    link.mkdir(parents=True)
    (link / "manifest.json").write_text("{}")
    monkeypatch.setenv("CL2R_STORAGE", str(tmp_path / "elsewhere"))
    assert "1 of 3 present" in cl2r(*words)[1]
    assert "0 of 3 present" in cl2r(*words, "--storage", "results")[1]


def option_texts(data: Path) -> list[str]:
    return [f"{key}={value}" for key, value in (flat_quick() | {"data.name": data}).items()]


# ---------------------------------------------------------------- status


def test_the_state_of_studies(cl2r: Command, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "cwd" / "results", "sizes")
    folder.claim_name({"seeds": [0]})
    folder.ledger.write("opened", "driver", {"runs": 2})
    folder.ledger.write("failed", "run", {"reason": "its process died"})
    folder.ledger.write("closed", "driver", {})
    code, out, err = cl2r("status")
    assert (code, err) == (0, "")
    assert out.startswith("sizes  0 of 2 runs finished, 1 failed; last event 0:0")
    code, out, err = cl2r("status", "sizes", "--storage", str(tmp_path / "cwd" / "results"))
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == ["  run failed: its process died"]


def test_the_state_of_no_study(cl2r: Command, tmp_path: Path) -> None:
    assert "no studies below" in refused(cl2r, tmp_path, "status", "--storage", str(tmp_path))
    assert "no study 'sizes'" in refused(cl2r, tmp_path, "status", "sizes")
