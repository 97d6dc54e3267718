"""The Python API: what `from cl2r import ...` offers, and the examples in its docstrings."""

import doctest
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

import analysis
import cl2r
from cl2r.errors import InputError
from cl2r.rayrun.private import SOCKETS
from cl2r.runtime.environment import ROOT
from tests.support.quick import QUICK, flat_quick, quick_config

SEARCHED = {**os.environ, "PYTHONPATH": str(ROOT)}
"""The environment of processes that must find this checkout."""


@pytest.fixture
def small(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a preset of one's own, small.yaml."""
    optim = {"epochs": 1, "milestones": []}
    preset = {"preset": "none", **QUICK, "data": {"name": str(tiny)}, "optim": optim}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(preset))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cl2r.study.plan.measure_flops", lambda *_: 1000.0)
    return tmp_path


def run_examples(name: str) -> None:
    """Run the examples in the docstring of a name of the API."""
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(cl2r, name), globs={})
    assert example.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example).failed == 0


@pytest.mark.parametrize("name", ["run", "plan_study"])
@pytest.mark.usefixtures("small")
def test_examples(name: str) -> None:
    run_examples(name)


@pytest.mark.usefixtures("small")
def test_a_preset_a_mapping_and_a_config_make_the_same_run(tiny: Path) -> None:
    layer = yaml.safe_load(Path("small.yaml").read_text())
    runs = [
        cl2r.run("small.yaml", overrides={"scenario.n_tasks": 2}),
        cl2r.run(layer, overrides={"scenario.n_tasks": 2}),
        cl2r.run(quick_config(tiny, {"optim": layer["optim"], "scenario": {"n_tasks": 2}})),
    ]
    assert len({run.folder for run in runs}) == 1
    first = runs[0]
    assert isinstance(first.config, cl2r.Config)
    assert all(np.array_equal(run.matrix, first.matrix, equal_nan=True) for run in runs)
    row = first.frames.runs.iloc[0]
    assert {name: row[name] for name in first.metrics} == pytest.approx(first.metrics, nan_ok=True)
    assert list(runs[1].frames.tasks["reused"]) == [True, True], "found in the storage"


METHOD = {"name": "er", "classifier": "trainable", "fd": "none"}


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda: cl2r.run("iconz"), "'icons'"),
        (lambda: cl2r.run("icons", overrides={"optim.epoch": 1}), "'optim.epochs'"),
        (lambda: cl2r.run({"method": {"name": "lfw"}}), "'lwf'"),
        (lambda: cl2r.run(5), "config"),
        (lambda: cl2r.run(None), "config"),
        (lambda: cl2r.run({"optim": 5}), "optim"),
        (lambda: cl2r.run(overrides=["optim.lr=1"]), "overrides"),
        (lambda: cl2r.run(overrides={5: 1}), "overrides: 5"),
        (lambda: cl2r.run("icons", storage=3), "storage"),
        (lambda: cl2r.Config(5), "Config"),
        (lambda: cl2r.Config(), "method"),
        (lambda: cl2r.Config(method=5), "method"),
        (lambda: cl2r.Config(method={"name": 5}), "method.name"),
        (lambda: cl2r.Config(method=METHOD, seed="x"), "seed"),
        (lambda: cl2r.Config(method=METHOD, sead=1), "'seed'"),
        (lambda: cl2r.plan_study("ablatoin"), "'ablation'"),
        (lambda: cl2r.plan_study(5), "spec"),
        (lambda: cl2r.run_study(None), "spec"),
        (lambda: cl2r.run_study({"seeds": 5}), "seeds"),
        (lambda: cl2r.run_study({}, changes=5), "changes"),
        (lambda: cl2r.run_study({}, changes={"grid": 5}), "grid"),
        (lambda: cl2r.run_study({}, changes={"source": 5}), "source"),
        (lambda: cl2r.run_study({}, name=3), "name"),
        (lambda: cl2r.run_study({}, storage=3), "storage"),
        (lambda: cl2r.run_study({}, worker=2), "'workers'"),
        (lambda: cl2r.run_study({}, workers="two"), "workers"),
        (lambda: cl2r.run_study({}, workers=0), "workers 0"),
        (lambda: cl2r.plan_study({}, gpu_price="4"), "gpu_price"),
        (lambda: cl2r.load_study(3), "path_or_uri"),
    ],
)
@pytest.mark.usefixtures("small")
def test_bad_input_is_one_line_that_names_the_argument(call: Callable[[], object], fault: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in Path().iterdir()] == ["small.yaml"], "nothing is written"


LOGGING = """
import logging
{setup}
import cl2r
for name in ("cl2r.engine.links", "analysis.plots"):
    logging.getLogger(name).warning("link %s is damaged: s3://me:planted@bucket/x", "0f")
    logging.getLogger(name).info("s3://me:planted@bucket/y")
assert logging.getLogger("cl2r").level == logging.NOTSET
"""


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ("", ["link 0f is damaged: s3://bucket/x"]),
        ("logging.basicConfig(format='mine: %(message)s')", ["mine: link 0f is damaged: s3://bucket/x"]),
        (
            "logging.basicConfig(level='INFO', format='mine: %(message)s')",
            ["mine: link 0f is damaged: s3://bucket/x", "mine: s3://bucket/y"],
        ),
    ],
)
def test_a_program_logs_in_its_own_way_and_without_secrets(setup: str, expected: list[str]) -> None:
    script = LOGGING.format(setup=setup)
    done = subprocess.run([sys.executable, "-c", script], env=SEARCHED, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == expected * 2


def test_a_plan_counts_runs_and_links_and_writes_nothing(small: Path, tiny: Path) -> None:
    spec = {"set": {**flat_quick(), "data.name": str(tiny)}, "grid": {"method.name": ["er", "er_fd"]}, "seeds": [0, 1]}
    plan = cl2r.plan_study(spec, name="mine", changes={"tasks": 2})
    assert (plan.name, plan.runs, plan.finished, plan.links, plan.missing) == ("mine", 4, 0, 6, 6)
    assert plan.text == str(plan)
    assert [path.name for path in small.iterdir()] == ["small.yaml"]
    sweep = {**spec, "space": {"optim.lr": {"low": 0.1, "high": 0.2}}, "search": {"trials": 3}}
    del sweep["grid"]
    plan = cl2r.plan_study(sweep)
    assert (plan.runs, plan.links) == (8, None), "ER is the reference"


def test_a_study_without_a_head_writes_nothing(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match="no Ray head answers"):
        cl2r.run_study({"preset": "small.yaml", "grid": {"method.name": ["er"]}})
    assert [path.name for path in small.iterdir()] == ["small.yaml"]


def test_a_folder_too_long_for_rays_dashboard_is_refused_before_the_study_is_written(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    monkeypatch.setitem(SOCKETS, True, "d" * 200)
    with pytest.raises(InputError, match="too long for Ray's sockets"):
        cl2r.run_study({"preset": "small.yaml", "grid": {"method.name": ["er"]}}, workers=2)
    assert [path.name for path in small.iterdir()] == ["small.yaml"]


@pytest.mark.usefixtures("small")
def test_a_study_can_be_planned_by_name_and_by_file(tiny: Path) -> None:
    changes = {"preset": "small.yaml", "seeds": [0], "grid": {"method.name": ["er"]}}
    Path("mine.yaml").write_text(yaml.safe_dump(changes))
    for plan in (cl2r.plan_study("ablation", changes=changes), cl2r.plan_study(Path("mine.yaml"))):
        assert (plan.runs, plan.links) == (1, 3)


def test_importing_takes_no_time() -> None:
    """No library is loaded before a name is used: that is what keeps it under a tenth of a second."""
    script = "import sys; before = set(sys.modules); import cl2r; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], env=SEARCHED, capture_output=True, text=True, check=True)
    assert {name.split(".")[0] for name in done.stdout.split()} <= {"cl2r", *sys.stdlib_module_names}


def test_a_module_of_the_user_that_hides_the_project_is_named(tmp_path: Path) -> None:
    (tmp_path / "analysis.py").touch()
    (tmp_path / "script.py").write_text("from cl2r import load_study")
    words = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(words, env=SEARCHED, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert str(tmp_path / "analysis.py") in done.stderr.splitlines()[-1]


def test_names() -> None:
    assert set(cl2r.__all__) <= set(dir(cl2r))
    assert cl2r.load_study is analysis.load_study
    with pytest.raises(AttributeError, match="run_studies"):
        cl2r.run_studies  # noqa: B018
