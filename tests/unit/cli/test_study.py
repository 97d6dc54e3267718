"""`cl2r study` and `cl2r plan`: options, plans, and what a study prints when it ends."""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml

from cl2r.cli import study as command
from cl2r.cli.study import Recipe, compare_methods, list_option, load_command, study_command, study_names
from cl2r.config.methods import METHODS
from cl2r.rayrun.driver import Outcome
from cl2r.rayrun.private import SOCKETS
from cl2r.study.frames import write_frames
from cl2r.study.plan import Estimate
from cl2r.study.resources import Resources
from tests.support.command_line import Command, quick_options, refused
from tests.support.made_ledger import Page, enter, made_folder
from tests.support.made_study import made_study
from tests.support.small_study import tree

Given = list[tuple[Path, Recipe, Mapping[str, Any]]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """The files, recipes and shared options of the studies that would run."""
    seen: Given = []
    monkeypatch.setattr(command, "run_recipe", lambda *parts: seen.append(parts) or 0)
    return seen


@study_command("made.py", "A made-up study.\n\n    python studies/made.py --names a b")
@list_option("--names", help="Some names.")
@list_option("--sizes", type=int)
@click.option("--loud", is_flag=True)
def made(names: tuple[str, ...], sizes: tuple[int, ...], loud: bool) -> Recipe:
    """Return the options as changes."""
    return Recipe({"names": names, "sizes": sizes, "loud": loud}, lambda session, frames: "")


@pytest.mark.parametrize(
    ("words", "names", "sizes", "seeds"),
    [
        ("", (), (), ()),
        ("--names a b --loud", ("a", "b"), (), ()),
        ("--names a --names b", ("a", "b"), (), ()),
        ("--loud --sizes -1 0 --names a", ("a",), (-1, 0), ()),
        ("--seeds 0 1 2 --names a b", ("a", "b"), (), (0, 1, 2)),
        ("--sizes 3 --seeds 4", (), (3,), (4,)),
    ],
)
def test_an_option_takes_several_values(
    given: Given, words: str, names: tuple[str, ...], sizes: tuple[int, ...], seeds: tuple[int, ...]
) -> None:
    assert made(words.split()) == 0
    ((path, recipe, options),) = given
    assert path == Path("made.yaml")
    assert recipe.changes == {"names": names, "sizes": sizes, "loud": "--loud" in words}
    assert options["seeds"] == seeds


def test_resources_come_from_options_then_from_the_environment(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORKERS": "4", "GPUS_PER_WORKER": "1", "ACCELERATOR": "A100", "MAX_CONCURRENT": "3"}.items():
        monkeypatch.setenv(f"CL2R_{name}", value)
    monkeypatch.setenv("CL2R_CPUS_PER_WORKER", "11")
    monkeypatch.setenv("CL2R_STORAGE", "s3://bucket/folder")
    assert made(["--workers", "2"]) == 0
    resources = Resources.from_options(given[0][2])
    assert resources == Resources(2, 11, 1, "A100", 3)
    assert str(given[0][2]["storage"]) == "s3://bucket/folder"
    assert made(["--workers", "1", "--gpus-per-worker", "0", "--accelerator", ""]) == 0
    assert Resources.from_options(given[1][2]).per_worker() == {"CPU": 11}


@pytest.mark.parametrize("words", ["study", "study --help", "study -h", "plan", "plan --help"])
def test_studies_are_listed(cl2r: Command, words: str) -> None:
    code, out, err = cl2r(*words.split())
    assert (code, err) == (0, "")
    assert all(f"  {name} " in out for name in study_names(".py" if words.startswith("study") else ".yaml"))


@pytest.mark.parametrize("name", study_names())
def test_every_study_has_examples_and_the_shared_options(cl2r: Command, name: str, tmp_path: Path) -> None:
    code, out, err = cl2r("study", name, "--help")
    assert (code, err) == (0, "")
    assert f"python studies/{name}.py" in out
    shared = ("--seeds", "--storage", "--workers", "--plan", "--max-concurrent")
    assert name == "scaling" or all(option in out for option in shared)
    assert not list((tmp_path / "cwd").iterdir())


@pytest.mark.parametrize(("words", "plan"), [(["study"], False), (["plan"], True), (["study", "--plan"], True)])
def test_plan_is_an_option_and_a_command(cl2r: Command, given: Given, words: list[str], plan: bool) -> None:
    group, *options = words
    assert cl2r(group, "ablation", *options)[0] == 0
    assert given[0][2]["plan"] is plan


def test_methods_without_a_native_schedule_are_left_out_of_a_study_of_native_ones(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.yaml").write_text(yaml.safe_dump({"grid": {"method.name": list(METHODS)}}))
    some = compare_methods(tmp_path / "some.py", "Methods.", "scenario.n_tasks", "--counts", "Tasks.")
    some(["--set", "method.budget=native", "--counts", "2", "5"])
    some([])
    native = [name for name, info in METHODS.items() if info.native is not None]
    assert 0 < len(native) < len(METHODS)
    assert given[0][1].changes == {"grid": {"method.name": native, "scenario.n_tasks": [2, 5]}}
    assert given[1][1].changes == {"grid": {"method.name": list(METHODS), "scenario.n_tasks": None}}
    note = capsys.readouterr().out
    assert all(name in note for name in set(METHODS) - set(native))


@pytest.mark.usefixtures("no_ray")
def test_a_plan_starts_nothing_and_writes_nothing(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    code, out, err = cl2r("plan", "ablation", *quick_options(tiny), "--cells", "er", "er_fd", "cl2r", "--seeds", 0, 1)
    assert (code, err) == (0, "")
    assert out.startswith("study ablation-tiny-")
    assert "16 to train, 0 of 16 present" in out, "two seeds: two first tasks, and three times two others"
    assert "0 of 6 runs" in out
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("no_ray")
def test_a_study_without_a_head_writes_nothing_and_its_plan_needs_none(
    cl2r: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    before = tree(tmp_path)
    words = ["ablation", *quick_options(tiny), "--cells", "er", "--name", "x"]
    code, _, err = cl2r("study", *words)
    assert code == 2
    assert "RAY_ADDRESS=127.0.0.1:1: no Ray head answers" in err
    assert cl2r("plan", *words)[0] == 0
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("no_ray")
def test_a_folder_too_long_for_rays_dashboard_is_refused_before_the_study_is_written(
    cl2r: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    monkeypatch.setitem(SOCKETS, True, "d" * 200)
    before = tree(tmp_path)
    code, _, err = cl2r("study", "ablation", *quick_options(tiny), "--cells", "er", "--name", "x", "--workers", 2)
    assert code == 2
    assert "RAY_TMPDIR=/tmp: its path is too long for Ray's sockets" in err
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("no_ray")
def test_a_plan_of_a_sweep_and_of_a_file(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    space = {"method.lambda_base": {"low": 0.1, "high": 1.0}}
    path.write_text(yaml.safe_dump({"space": space, "search": {"trials": 4}}))
    before = tree(tmp_path)
    for words in (["sweep", "--spec", path], [path]):
        code, out, err = cl2r("plan", *words, *quick_options(tiny))
        assert (code, err) == (0, "")
        assert all(part in out for part in ("study mine-tiny-", "4 points", "12 to train, 0 of 12 present"))
    assert tree(tmp_path) == before


End = Callable[..., tuple[int, str]]


@pytest.fixture
def end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pages: list[Page]) -> End:
    """Do what a study's command does after its only run has ended; return the exit code and what is printed."""
    study = made_study(name="done")
    folder = made_folder(tmp_path, study)
    monkeypatch.setattr("analysis.plots.write_figures", lambda study, folder: [folder / "a"])

    def ended(reason: str | None = None, quiet: bool = False, **counts: int) -> tuple[int, str]:
        enter(folder, study, 0, failed=reason)
        (folder.storage / "links").mkdir()
        every = {"finished": 0, "failed": 0, "pruned": 0, "missing": 0, **counts}
        outcome = Outcome(**every, seconds=1.0, links_trained=3, frames=write_frames(folder))
        monkeypatch.setattr("cl2r.rayrun.driver.run", lambda _: outcome)
        session: Any = SimpleNamespace(folder=folder, expected_runs=lambda: 4, loader_note=lambda: None, quiet=quiet)
        session.spec = SimpleNamespace(preset="icons")
        return command._run(session, lambda session, frames: "the table"), capsys.readouterr().out

    return ended


def test_a_study_ends_with_its_table_frames_figures_and_page(end: End, tmp_path: Path, pages: list[Page]) -> None:
    code, out = end(finished=1)
    assert code == 0
    assert "study done: 4 runs; base: preset icons" in out
    assert "the table" in out
    assert "1 runs finished, 0 failed, 0 stopped early; 3 links trained" in out
    assert all(f"{what}: {tmp_path / 'studies' / 'done'}" in out for what in ("frames", "figures", "report"))
    assert [(page.name, len(page.runs), page.live, page.refresh) for page in pages] == [("done", 1, [], None)]


def test_a_quiet_study_prints_its_table_only(end: End, pages: list[Page]) -> None:
    assert end(finished=1, quiet=True) == (0, "the table\n")
    assert len(pages) == 1


def test_options_that_exclude_each_other(cl2r: Command, tmp_path: Path) -> None:
    assert "only a plan is printed as JSON" in refused(cl2r, tmp_path, "study", "ablation", "--json")
    assert "--quiet or --verbose" in refused(cl2r, tmp_path, "study", "ablation", "-q", "-v")


@pytest.mark.usefixtures("no_ray")
def test_a_plan_as_json(cl2r: Command, tiny: Path, tmp_path: Path) -> None:
    code, out, _ = cl2r("plan", "ablation", "--cells", "er", "cl2r", "--seeds", "0", *quick_options(tiny), "--json")
    assert code == 0
    plan = json.loads(out)
    assert list(plan) == [field.name for field in dataclasses.fields(Estimate)]
    assert (plan["runs"], plan["finished"], plan["links"], plan["links_to_train"]) == (2, 0, 6, 6)
    assert min(plan[name] for name in ("images", "seconds", "gpu_hours", "dollars", "bytes")) > 0


@pytest.mark.usefixtures("no_ray")
def test_a_plan_of_a_race_as_json(cl2r: Command, tiny: Path) -> None:
    options = [
        *quick_options(tiny, optim__epochs=4, optim__milestones="[]"),
        "--hours",
        "1",
        "--methods",
        "er",
        "cl2r",
        "--json",
    ]
    code, out, err = cl2r("plan", "recommend", *options)
    assert code == 0, err
    plan = json.loads(out)
    assert list(plan) == ["study", "runs", "finished", "hours", "seconds_used", "seconds", "rounds", "notes"]
    assert {tuple(entry) for entry in plan["rounds"]} == {("name", "decided", "seeds", "seconds")}


@pytest.mark.parametrize("counts", [{"failed": 1}, {"missing": 2}])
def test_failed_and_missing_runs_are_named_and_change_the_exit_code(
    end: End, pages: list[Page], counts: dict[str, int]
) -> None:
    code, out = end("loss is nan", **counts)
    assert code == 1
    assert "the table" not in out
    assert "figures: " not in out, "there is nothing to draw"
    assert re.search(r"failed: \S+: loss is nan", out)
    assert ("missing: 2 runs" in out) == ("missing" in counts)
    assert len(pages) == 1


@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ("analysis.plots.write_figures", {"no figures"}),
        ("analysis.report.write_report", {"no report"}),
        ("analysis.study.read_specification", {"no figures", "no report"}),
    ],
)
def test_an_error_in_figures_or_page_is_a_line_and_no_failure(
    end: End, monkeypatch: pytest.MonkeyPatch, broken: str, lost: set[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no such\ncolumn")

    monkeypatch.setattr(broken, fail)
    code, out = end(finished=1)
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("no ")]
    assert {line.split(":")[0] for line in lines} == lost
    assert all("ValueError: no such column" in line for line in lines)


def test_a_study_by_name_and_by_file_have_the_same_command(given: Given) -> None:
    by_name, by_file = load_command("ablation"), load_command("studies/ablation.yaml")
    assert {option.name for option in by_file.params} <= {option.name for option in by_name.params}
    by_file(["--seeds", "3"])
    by_name(["--seeds", "3"])
    assert given[0][2] == given[1][2]
    assert given[0][1].file == Path("studies/ablation.yaml")
