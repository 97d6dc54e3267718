"""The command line: what it prints, what it refuses, and with which exit code."""

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from quick import flat_quick, set_options

from cl2r import __version__
from cl2r.cli import main
from cl2r.config import field_keys, read_layer, resolve
from cl2r.methods.catalog import METHODS

ABLATION = Path(__file__).parents[2] / "studies" / "ablation.py"

Outcome = tuple[int | str | None, str, str]
Command = Callable[..., Outcome]


@pytest.fixture
def cl2r(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `cl2r ...` in an empty folder; gives exit code, stdout and stderr."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")

    def call(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["cl2r", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return call


def quick_options(**settings: object) -> list[str]:
    """The quick config as options; `optim__lr=3` stands for optim.lr. A later --tasks wins."""
    flat = flat_quick() | {key.replace("__", "."): value for key, value in settings.items()}
    return ["--tasks", str(flat.pop("scenario.n_tasks")), *set_options(flat)]


def tree(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*"))


# ---------------------------------------------------------------- listings


def test_version(cl2r: Command) -> None:
    assert cl2r("--version") == (0, f"cl2r {__version__}\n", "")


def test_no_command_shows_help(cl2r: Command) -> None:
    code, out, err = cl2r()
    assert (code, err) == (0, "")
    assert all(command in out for command in ("run", "methods", "datasets", "completion"))


@pytest.mark.parametrize("words", [["-h"], ["run", "--help"], ["methods", "-h"]])
def test_help(cl2r: Command, words: list[str]) -> None:
    code, out, _ = cl2r(*words)
    assert code == 0
    assert out.startswith("Usage: cl2r")


def test_methods(cl2r: Command) -> None:
    code, out, err = cl2r("methods")
    assert (code, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert names == list(METHODS)


def test_datasets(cl2r: Command) -> None:
    code, out, err = cl2r("datasets")
    assert (code, err) == (0, "")
    assert out.startswith("icons ")
    assert "x_train, y_train, x_open, y_open" in out
    assert "train/<class>" in out


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
        (["--method", "lwf"], "no method 'lwf'"),
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
    assert "compatibility matrix, 120 report pairs" in out
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
    assert "compatibility matrix, 8 report pairs" in out


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


# ---------------------------------------------------------------- studies/ablation.py


@pytest.fixture
def ablation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", [str(ABLATION), *words])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_path(str(ABLATION), run_name="__main__")
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return call


def study_options(data: Path, settings: dict[str, object]) -> list[str]:
    return set_options(flat_quick() | {"data.name": data} | settings)


def test_the_ablation_study_prints_a_row_a_cell(ablation: Command, tiny: Path) -> None:
    options = study_options(tiny, {"optim.epochs": 1})
    code, out, err = ablation("--cells", "er", "cl2r", *options)
    assert code == 0
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[:3] for row in rows[1:]] == [["| Trainable", "none", "1"], ["| Fixed", "FD^M", "1"]]
    assert err.count(": trained link") == 6
    assert "[1/2 er seed 0]" in err
    code, again, err = ablation("--cells", "cl2r", *options)
    assert code == 0
    assert [line for line in again.splitlines() if line.startswith("| ")] == [rows[0], rows[2]]
    assert err.count(": reused link") == 3


def test_a_failed_cell_does_not_stop_the_others(ablation: Command, tiny: Path) -> None:
    """An absurd λ breaks the cell that distils only."""
    options = study_options(tiny, {"method.lambda_base": "1e38"})
    code, out, err = ablation("--cells", "cl2r", "er", *options)
    assert code == 1
    assert "cl2r seed 0] failed: task 2, epoch" in err
    assert "| Trainable | none | 1 |" in out


def test_bad_input_ends_the_study_before_it_starts(ablation: Command, tiny: Path, tmp_path: Path) -> None:
    options = study_options(tiny, {"scenario.n_tasks": 13})
    code, out, err = ablation("--cells", "er", *options)
    assert (code, out) == (2, "")
    assert err.startswith("ablation: scenario.n_tasks = 13")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
