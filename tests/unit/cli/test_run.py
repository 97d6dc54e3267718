"""`cl2r run`."""

import dataclasses
import json
import logging
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from cl2r.cli.run import headline, matrix_table, metrics_table, to_json
from cl2r.compatibility import empirical_compatibility
from cl2r.config.layers import override, read_layer, resolve
from cl2r.engine.chain import Chain, RunResult
from cl2r.metrics import METRICS
from tests.support.command_line import Command, quick_options


def test_show_config_prints_what_would_run_and_writes_nothing(cl2r: Command, tmp_path: Path) -> None:
    words = ["--tasks", "7", "--method", "er_fdm", "--seed", "3", "--set", "seed=4"]
    code, out, err = cl2r("run", "--data", "nowhere", *words, "--show-config")
    assert (code, err) == (0, "")
    config = resolve([yaml.safe_load(out)])
    assert (config.scenario.n_tasks, config.method.name, config.seed) == (7, "er_fdm", 4)
    assert config.data.name == "nowhere"
    assert config.optim == resolve([read_layer("icons")]).optim
    assert not list((tmp_path / "cwd").iterdir())


def test_a_run_prints_and_writes_its_results(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    words = ["run", *quick_options(tiny, optim__epochs=1, optim__milestones="[]")]
    code, out, err = cl2r(*words)
    assert code == 0
    assert [line.split(" link")[0] for line in err.splitlines()] == [f"task {t}: trained" for t in (1, 2, 3)]
    assert out.startswith(f"method cl2r, data {tiny}, 3 tasks, seed 0; base: preset icons\n\ncompatibility matrix")
    assert "120 report pairs" in out
    (last,) = [line for line in out.splitlines() if line.startswith("3 links trained, ")]
    folder = tmp_path / "cwd" / last.split("; ")[1]
    names = [f"{frame}.parquet" for frame in ("runs", "tasks", "matrix", "curves")]
    files = [*names, "config.yaml", "result.json"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, *(f"{name}.seal" for name in files)])
    result = json.loads((folder / "result.json").read_text())
    for number in (*result["report"]["C"][2], result["report"]["mean_accuracy"]):
        assert f"{number:.3f}" in out
    assert "\nAC " in out

    code, out, err = cl2r(*words)
    assert code == 0
    assert "0 links trained" in out
    assert [line.split(" link")[0] for line in err.splitlines()] == [f"task {t}: reused" for t in (1, 2, 3)]


def small(data: Path, *words: object) -> list[object]:
    """Return the words of a run that takes a moment."""
    return ["run", *quick_options(data, optim__epochs=1, optim__milestones="[]"), "--tasks", 2, *words]


@pytest.fixture
def no_recorder() -> None:
    """A recorder of another test sets the level of this logger, which would hide that of the program."""
    logging.getLogger("cl2r.engine").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("no_recorder")
def test_quiet_leaves_matrix_and_metrics(cl2r: Command, tiny: Path) -> None:
    _, whole, _ = cl2r(*small(tiny))
    code, out, err = cl2r(*small(tiny, "--quiet", "--set", "optim.milestones=[5]", "--seed", 1))
    assert (code, err) == (0, "")
    assert out.startswith("compatibility matrix, accuracy, 120 report pairs")
    lines = [line.split("  ")[0] for line in out.splitlines()]
    assert lines == [line.split("  ")[0] for line in whole.splitlines()[2 : 2 + len(lines)]]
    assert lines[-1] == "re-indexed recall"


@pytest.mark.parametrize(("words", "accepted"), [([], "same"), (["--accept-links", "any"], "any")])
def test_which_stored_links_are_used_is_an_option(
    cl2r: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], accepted: str
) -> None:
    seen, result = list[str](), Chain.result
    monkeypatch.setattr(
        Chain, "result", lambda chain, seconds: seen.append(chain.accept_links) or result(chain, seconds)
    )
    assert cl2r(*small(tiny, *words))[0] == 0
    assert seen == [accepted]


@pytest.mark.usefixtures("no_recorder")
def test_json_is_all_there_is_on_stdout(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    code, out, err = cl2r(*small(tiny, "--json"))
    assert code == 0
    assert "task 1: trained" in err
    found = json.loads(out)
    stored = json.loads((tmp_path / "cwd" / found["folder"] / "result.json").read_text())
    assert found["run"] == stored["run"] == Path(found["folder"]).name
    assert found["config"] == stored["config"]
    assert found["base"] == "preset icons"
    assert found["matrix"] == stored["report"]["C"]
    assert found["matrix"][0][1] is None
    assert found["recall"] == stored["report"]["R"]
    report = stored["report"]
    assert found["metrics"]["BC"] == {"value": report["BC"], "low": report["BC_low"], "high": report["BC_high"]}
    assert found["metrics"]["mean_accuracy"] == {"value": report["mean_accuracy"]}
    assert (found["links"], found["links_trained"], found["metric"]) == (2, 2, "accuracy")
    assert found["seconds"] > 0
    code, out, err = cl2r(*small(tiny, "--json", "--quiet"))
    assert (code, err) == (0, "")
    assert json.loads(out)["links_trained"] == 0


def test_all_settings_are_printed_on_request(cl2r: Command, tiny: Path) -> None:
    _, shown, _ = cl2r(*small(tiny, "--show-config"))
    code, out, _ = cl2r(*small(tiny, "-v"))
    assert code == 0
    assert out.startswith(shown)
    assert "optim: {" in shown
    assert "optim: {" not in cl2r(*small(tiny))[1]


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_next_commands_work_as_they_are(
    cl2r: Command, tiny: Path, images: Path, tmp_path: Path, kind: str, elsewhere: bool
) -> None:
    own = [] if kind == "file" else ["--set", "data.channels=1", "--set", "data.size=16"]
    where = ["--storage", tmp_path / "my results"] if elsewhere else []
    code, out, _ = cl2r(*small(tiny if kind == "file" else images, *own, *where))
    assert code == 0
    commands = [shlex.split(line) for line in out.partition("\nnext:\n")[2].splitlines()]
    names = [words[1] for words in commands]
    assert names == [*(["datasets"] if kind == "file" else []), "index", "upgrade-check"]
    for words in commands:
        assert words[0] == "cl2r"
        code, shown, err = cl2r(*words[1:])
        # `upgrade-check` may find the upgrade unsafe.
        assert code == 0 or (words[1] == "upgrade-check" and code in (3, 4)), err
    assert shown.startswith("upgrade ")
    if kind == "file":
        again = cl2r(*small(tiny, *where))[1].partition("\nnext:\n")[2]
        assert "open-images" not in again, "the images are there"


def test_one_task_has_nothing_to_compare_with_and_says_so(cl2r: Command, tiny: Path) -> None:
    reason = "one task has no older model to compare with"
    code, out, _ = cl2r(*small(tiny, "--tasks", 1))
    assert code == 0
    assert "nan" not in out
    lines = out.splitlines()
    assert [line.split() for line in lines if "–" in line] == [
        ["AC", "–"],
        ["BC", "–"],
        ["FC", "–"],
        ["–:", *reason.split()],
    ]
    assert "upgrade-check" not in out
    metrics = json.loads(cl2r(*small(tiny, "--tasks", 1, "--json"))[1])["metrics"]
    assert metrics["AC"] == {"value": None, "undefined": reason}
    assert metrics["service_accuracy"].keys() == {"value", "low", "high"}


def test_recall_without_a_search_says_why(finished: RunResult, tmp_path: Path) -> None:
    pairs_only = dict.fromkeys(("service_recall", "reindexed_recall", "first_recall"), math.nan)
    report = dataclasses.replace(finished.report, recall=None, values={**finished.report.values, **pairs_only})
    found = to_json(dataclasses.replace(finished, report=report), tmp_path / "name", "preset icons")
    assert found["recall"] is None
    assert "has no search" in found["metrics"]["service_recall"]["undefined"]


def test_the_headline_tells_tasks_of_every_form() -> None:
    def line(*settings: str) -> str:
        return headline(resolve([read_layer("icons"), *map(override, settings)]))

    assert line() == "method cl2r, data icons, tasks of 30 and then 14 classes, seed 0"
    assert line("scenario.n_tasks=5") == "method cl2r, data icons, 5 tasks, seed 0"
    assert ", 1 task, seed 3" in line("scenario.n_tasks=1", "seed=3")
    assert "tasks of 50 and then 10 classes (the first 2 of them)" in line(
        "scenario.initial=50", "scenario.increment=10", "scenario.stop_after=2"
    )
    assert ", tasks of 20 classes," in line("scenario.initial=null", "scenario.increment=20")


def test_the_base_of_a_file_is_said(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    Path("mine.yaml").write_text("optim: {epochs: 1}\n")
    words = [str(word) for word in small(tiny)]
    code, out, _ = cl2r("run", "mine.yaml", *words[1:])
    assert code == 0
    assert out.splitlines()[0].endswith("; base: mine.yaml on preset icons")
    saved = next((tmp_path / "cwd" / "results" / "runs").glob("*/config.yaml"))
    code, out, _ = cl2r("run", saved)
    assert out.splitlines()[0].endswith(f"; base: {saved}, a whole config")
    assert "0 links trained" in out


def test_a_folder_with_official_pairs_runs(cl2r: Command, images: Path) -> None:
    """Official pairs use 4 of 24 images of w and x: the others still suffice for tuning pairs."""
    options = quick_options(images, data__channels=1, data__size=16, optim__epochs=1)
    code, out, _ = cl2r("run", *options, "--tasks", "2")
    assert code == 0
    assert "8 report pairs" in out


def test_a_loss_that_is_not_a_number_ends_with_1(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    code, _, err = cl2r("run", *quick_options(tiny, optim__lr="1e30"))
    assert code == 1
    assert "loss term 'ce'" in err
    assert err.count("\n") == 1
    assert not list((tmp_path / "cwd" / "results" / "runs").iterdir())


def test_ctrl_c_ends_with_130(cl2r: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cl2r.runtime.progress.ProgressLine.epoch", pressed)
    code, _, err = cl2r("run", *quick_options(tiny))
    assert code == 130
    assert err.strip().count("\n") == 0


def test_matrix_and_metrics_on_the_terminal(finished: RunResult) -> None:
    """A star marks cells in which new queries beat the old model on its own gallery; a tie has none."""
    nan = math.nan
    matrix = np.array([[0.5, nan, nan], [0.5012, 0.7, nan], [0.5, 0.6999, 1.0]])
    report = dataclasses.replace(finished.report, matrix=matrix, compatible=empirical_compatibility(matrix))
    assert matrix_table(report).splitlines() == [
        "query\\gallery       φ1      φ2      φ3",
        "φ1              0.500 ",
        "φ2              0.501*  0.700 ",
        "φ3              0.500   0.700   1.000 ",
    ]
    lines = {line[:19].strip(): line for line in metrics_table(finished.report).splitlines()}
    assert list(lines) == [metric.head for metric in METRICS.in_tables()]
    low, high = finished.report.intervals["BC"]
    assert lines["BC"] == f"BC                   {finished.report.values['BC']:+.3f}  [{low:+.3f}, {high:+.3f}]"
    assert lines["mean accuracy"] == f"mean accuracy        {finished.report.values['mean_accuracy']:.3f}"
    pairs_only = dataclasses.replace(finished.report, recall=None)
    assert "recall" not in metrics_table(pairs_only)
