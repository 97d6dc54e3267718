"""Frames of many runs joined, and the tables made of them."""

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import quick_config, train

from analysis import ablation_table, best_trials, comparison_table, load_runs
from analysis.formats import render
from analysis.shown import shown_ablation, shown_comparison
from analysis.table import Table
from analysis.trials import shown_trials
from cl2r.engine.records import write_run
from cl2r.errors import InputError

HEADER = "| classifier | distillation | seeds | AC | BC | FC | mean accuracy | s/run |"


def lines_of(table: Table) -> list[str]:
    """A table in Markdown, without what stands above and below it."""
    return [line for line in render(table, "markdown").splitlines() if line.startswith("|")]


def runs_frame(rows: list[tuple[str, str, float]]) -> pd.DataFrame:
    """Runs with a metric each that is easy to average by hand."""
    return pd.DataFrame(
        {
            "run": f"run{number}",
            "method.classifier": classifier,
            "method.fd": fd,
            "AC": value,
            "BC": -value,
            "FC": value / 10,
            "mean_accuracy": 0.5 + value / 10,
            "train_seconds": 10 * value,
        }
        for number, (classifier, fd, value) in enumerate(rows)
    )


@pytest.fixture(scope="module")
def root(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds; one of the runs without bootstrap, hence with fewer columns."""
    folder = tmp_path_factory.mktemp("study")
    for method in ("er", "cl2r"):
        for seed in (0, 1):
            layer = {"method": {"name": method}, "seed": seed, "optim": {"epochs": 1, "milestones": []}}
            bootstrap = {"eval": {"bootstrap": 0 if (method, seed) == ("er", 1) else 20}}
            write_run(train(quick_config(tiny, layer, bootstrap), folder), folder)
    return folder


def test_load_runs_joins(root: Path) -> None:
    frames = load_runs(root)
    assert len(frames.runs) == frames.runs["run"].nunique() == 4
    for table, rows in ((frames.tasks, 3), (frames.matrix, 12), (frames.curves, 3)):
        assert table.groupby("run").size().tolist() == [rows] * 4
        assert set(table["run"]) == set(frames.runs["run"])
    joined = frames.matrix.merge(frames.runs, on="run")
    assert sorted(zip(joined["method.name"], joined["seed"], strict=True)) == sorted(
        [(method, seed) for method in ("er", "cl2r") for seed in (0, 1)] * 12
    )
    plain = frames.runs[(frames.runs["method.name"] == "er") & (frames.runs["seed"] == 1)]
    assert plain["AC_low"].isna().all()
    assert frames.runs["AC_low"].notna().sum() == 3


def test_load_runs_takes_text(root: Path) -> None:
    assert len(load_runs(str(root)).runs) == 4


def test_metrics_can_be_recomputed_from_the_matrix_frame(root: Path) -> None:
    frames = load_runs(root)
    for _, run in frames.runs.iterrows():
        cells = frames.matrix[(frames.matrix["run"] == run["run"]) & (frames.matrix["pairs"] == "report")]
        below = cells[cells["k"] < cells["t"]]
        assert run["AC"] == pytest.approx(below["compatible"].astype(float).mean())
        assert run["mean_accuracy"] == pytest.approx(cells["accuracy"].mean())


def test_load_runs_of_an_empty_folder_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "runs")):
        load_runs(tmp_path)
    with pytest.raises(FileNotFoundError, match="no finished runs"):
        load_runs(tmp_path / "nowhere")


def test_a_folder_without_frames_is_no_run(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "unfinished").mkdir()
    assert len(load_runs(tmp_path).runs) == 4


def test_ablation_of_real_runs(root: Path) -> None:
    runs = load_runs(root).runs
    table = ablation_table(runs)
    assert table.index.tolist() == [("Trainable", "none"), ("Fixed", "FD^M")]
    er = runs[runs["method.name"] == "er"]["BC"]
    assert table.loc[("Trainable", "none"), "BC"] == pytest.approx(er.mean())
    assert table["seeds"].tolist() == [2, 2]


def test_means_and_deviations_over_seeds() -> None:
    values = [0.2, 0.4, 0.9]
    table = ablation_table(runs_frame([("fixed", "memory", v) for v in values] + [("trainable", "none", 0.5)]))
    er, row = table.reset_index().to_dict("records")
    assert (row["seeds"], row["AC"], row["BC"]) == (3, pytest.approx(0.5), pytest.approx(-0.5))
    assert row["AC_sd"] == pytest.approx(np.std(values, ddof=1))
    assert row["FC_sd"] == pytest.approx(np.std(values, ddof=1) / 10)
    assert (row["mean_accuracy"], row["seconds"]) == (pytest.approx(0.55), pytest.approx(4.0))
    assert np.isnan(er["AC_sd"]), "one seed has no deviation"


def test_rows_come_in_the_order_of_the_paper() -> None:
    cells = [(c, d) for d in ("memory", "none", "all") for c in ("fixed", "trainable")]
    table = ablation_table(runs_frame([(c, d, 0.5) for c, d in cells]))
    assert table.index.tolist() == [(c, d) for c in ("Trainable", "Fixed") for d in ("none", "FD", "FD^M")]


def test_markdown() -> None:
    rows = [("trainable", "none", 0.5), ("fixed", "memory", 0.2), ("fixed", "memory", 0.4)]
    lines = lines_of(shown_ablation(runs_frame(rows)))
    assert lines[0] == HEADER
    assert lines[1].count("---") == HEADER.count("|") - 1
    assert lines[2] == "| Trainable | none | 1 | 0.500 | -0.500 | +0.050 | 0.550 | 5 |"
    assert lines[3] == ("| Fixed | FD^M | 2 | 0.300 ± 0.141 | -0.300 ± 0.141 | +0.030 ± 0.014 | 0.530 ± 0.014 | 3 |")
    assert len(lines) == 4


def test_runs_that_did_not_finish_count_for_no_seed() -> None:
    rows = [("fixed", "memory", v) for v in (0.2, 0.4, 0.9, np.nan)] + [("trainable", "none", 0.5)]
    runs = runs_frame(rows).assign(status=["finished", "finished", "pruned", "finished", "failed"])
    table = ablation_table(runs)
    assert table["seeds"].tolist() == [0, 2]
    assert table.loc[("Fixed", "FD^M"), "AC"] == pytest.approx(0.3)
    assert table.loc[("Fixed", "FD^M"), "seconds"] == pytest.approx(3.0)
    lines = lines_of(shown_ablation(runs))
    assert lines[2] == "| Trainable | none | 0 | failed | failed | failed | failed | – |"
    pruned = lines_of(shown_ablation(runs.assign(status="pruned")))
    assert [line.count("stopped early") for line in pruned[2:]] == [4, 4]


def test_rows_joined_under_equal_labels_stay_apart() -> None:
    finished = runs_frame([("fixed", "memory", 0.2)]).assign(status="finished")
    holes = pd.DataFrame([{"method.classifier": "trainable", "method.fd": "none"}])
    assert ablation_table(pd.concat([finished, holes]))["seeds"].tolist() == [0, 1]


def test_a_study_of_failed_runs_only_has_a_table() -> None:
    holes = pd.DataFrame([{"method.classifier": "fixed", "method.fd": "none", "status": "failed", "AC": None}])
    assert render(shown_ablation(holes), "markdown").count("failed") == 4


def test_one_task_has_no_ac_but_has_not_failed() -> None:
    runs = runs_frame([("fixed", "none", 0.5)]).assign(AC=np.nan, BC=np.nan, FC=np.nan, status="finished")
    assert lines_of(shown_ablation(runs))[2] == "| Fixed | none | 1 | – | – | – | 0.550 | 5 |"


@pytest.mark.parametrize("plain", [None, ""])
def test_variants_are_the_first_level(plain: str | None) -> None:
    rows = [("fixed", "memory", 0.1), ("trainable", "none", 0.2), ("fixed", "memory", 0.5)]
    runs = runs_frame(rows).assign(variant=[plain, "masked", "masked"])
    table = ablation_table(runs)
    expected = [("plain", "Fixed", "FD^M"), ("masked", "Trainable", "none"), ("masked", "Fixed", "FD^M")]
    assert table.index.tolist() == expected
    assert table.index.names == ["variant", "classifier", "distillation"]
    assert table["AC"].tolist() == pytest.approx([0.1, 0.2, 0.5])
    lines = lines_of(shown_ablation(runs))
    assert lines[0] == "| variant " + HEADER
    assert lines[1].count("---") == 9
    assert lines[2].startswith("| plain | Fixed | FD^M | 1 | 0.100 |")


def test_markdown_leaves_a_single_variant_out() -> None:
    runs = runs_frame([("fixed", "memory", 0.1)]).assign(variant=None)
    assert ablation_table(runs).index.tolist() == [("plain", "Fixed", "FD^M")]
    assert lines_of(shown_ablation(runs))[0] == HEADER


def comparison_runs() -> pd.DataFrame:
    """Two methods, two sizes, two seeds; one run failed, one was pruned with good figures, one cell has no run."""
    cells = [
        ("er", 10, 0, -0.2, "finished"),
        ("er", 10, 1, -0.4, "finished"),
        ("er", 5, 0, -0.1, "finished"),
        ("er", 5, 1, 9.0, "pruned"),
        ("cl2r", 10, 0, np.nan, "failed"),
        ("lwf", 5, 0, 0.25, "finished"),
    ]
    names = ["method.name", "scenario.n_tasks", "seed", "BC", "status"]
    return pd.DataFrame(cells, columns=names).assign(AC=0.5, FC=0.125)


def test_comparison_means_over_seeds() -> None:
    table = comparison_table(comparison_runs(), "scenario.n_tasks", ("AC", "BC"))
    means = table["BC", "mean"]
    assert means.index.tolist() == ["er", "cl2r", "lwf"]
    assert means.columns.tolist() == [5, 10]
    np.testing.assert_allclose(means, [[-0.1, -0.3], [np.nan, np.nan], [0.25, np.nan]])
    np.testing.assert_allclose(table["BC", "sd"].loc["er"], [np.nan, np.sqrt(0.02)])
    assert table["AC", "seeds"].to_numpy().tolist() == [[1, 2], [0, 0], [1, 0]]


def test_comparison_markdown() -> None:
    text = render(shown_comparison(comparison_runs(), "scenario.n_tasks", ("AC", "BC")), "markdown")
    assert text.split("\n\n") == [
        "**AC by scenario.n_tasks**",
        "| method | 5 | 10 |\n|---|---:|---:|\n"
        "| er | 0.500 (1 of 2) | 0.500 ± 0.000 |\n| cl2r | – | failed |\n| lwf | 0.500 (1 of 2) | – |",
        "**BC by scenario.n_tasks**",
        "| method | 5 | 10 |\n|---|---:|---:|\n"
        "| er | -0.100 (1 of 2) | -0.300 ± 0.141 |\n| cl2r | – | failed |\n| lwf | **+0.250 (1 of 2)** | – |",
        "± is one standard deviation over the seeds of a cell; one seed has none.",
        "**bold**: best mean of its column; no test was made, for want of seeds or of spread over them.",
    ]


def test_a_cell_says_why_it_is_empty() -> None:
    more = pd.DataFrame({"method.name": "lwf", "scenario.n_tasks": 10, "seed": [0, 1], "status": "pruned"})
    runs = pd.concat([comparison_runs(), more]).astype({"scenario.n_tasks": "Int64", "status": "string"})
    (table,) = shown_comparison(runs, "scenario.n_tasks", ["BC"])
    assert [[cell.text for cell in row[1:]] for row in table.rows[1:]] == [
        ["–", "failed"],
        ["+0.250 (1 of 2)", "stopped early"],
    ]
    both = pd.concat([runs, more.assign(seed=2, status="failed")[:1]])
    assert shown_comparison(both, "scenario.n_tasks", ["BC"])[0].rows[2][2].text == "failed"


def test_comparison_of_variants() -> None:
    runs = pd.concat([comparison_runs().assign(variant=name) for name in (None, "masked")])
    table = comparison_table(runs, "scenario.n_tasks", ["BC"])
    assert table.index.tolist() == [(v, m) for v in ("plain", "masked") for m in ("er", "cl2r", "lwf")]
    (shown,) = shown_comparison(runs, "scenario.n_tasks", ["BC"])
    lines = lines_of(shown)
    assert lines[0] == "| variant | method | 5 | 10 |"
    assert lines[5] == "| masked | er | -0.100 (1 of 2) | -0.300 ± 0.141 |"


def test_comparison_refuses_to_mix_what_is_no_seed() -> None:
    runs = comparison_runs()
    mixed = pd.concat([runs.assign(**{"memory.per_class": size}) for size in (5, 20)])
    with pytest.raises(InputError, match=r"differ in memory\.per_class;"):
        comparison_table(mixed, "scenario.n_tasks")
    with pytest.raises(InputError, match=r"did you mean 'scenario\.n_tasks'"):
        comparison_table(runs, "scenario.ntasks")


def sweep_runs() -> pd.DataFrame:
    """Four trials of two seeds, tuning BC 0.1, 0.3, 0.2 and (a seed pruned) 0.9; report BC is the negative."""
    rows: list[dict[str, Any]] = []
    for trial, (tuning, size) in enumerate([(0.1, 100), (0.3, 300), (0.2, 400), (0.9, 50)]):
        for seed, shift in ((0, -0.01), (1, 0.01)):
            row = {"trial": trial, "seed": seed, "status": "finished", "method.lambda_base": trial / 8, "optim.lr": 0.1}
            row |= {"tuning_BC": tuning + shift, "BC": -tuning + shift, "stored_bytes": size, "train_seconds": 60.0}
            rows.append(row)
    rows[-1]["status"] = "pruned"
    return pd.DataFrame(rows)


def test_best_trials_by_one_objective() -> None:
    table = best_trials(sweep_runs(), {"BC": "max"}, count=2)
    assert table.columns.tolist() == [
        *("trial", "method.lambda_base", "seeds", "tuning_BC", "tuning_BC_sd", "BC", "BC_sd"),
    ]
    assert table["trial"].tolist() == [1, 2], "trial 3 did not finish, trial 0 is third"
    assert table["tuning_BC"].tolist() == pytest.approx([0.3, 0.2])
    assert table["BC"].tolist() == pytest.approx([-0.3, -0.2]), "chosen on tuning pairs, not on report pairs"
    assert table["BC_sd"].tolist() == pytest.approx([np.sqrt(0.0002)] * 2)
    assert best_trials(sweep_runs(), {"BC": "min"})["trial"].tolist() == [0, 2, 1]


def test_a_trial_that_is_still_running_is_no_candidate() -> None:
    runs = sweep_runs()
    running = runs[~((runs["trial"] == 1) & (runs["seed"] == 1))]
    assert best_trials(running, {"BC": "max"})["trial"].tolist() == [2, 0]
    assert best_trials(runs[runs["seed"] == 0], {"BC": "max"})["trial"].tolist() == [3, 1, 2, 0], "all have one seed"


def test_best_trials_by_several_objectives() -> None:
    table = best_trials(sweep_runs(), {"BC": "max", "stored_bytes": "min"}, count=1)
    assert table["trial"].tolist() == [1, 0], "trial 2 is worse and larger than trial 1"
    assert table["stored_bytes"].tolist() == [300, 100]
    assert best_trials(sweep_runs(), {"stored_bytes": "min", "BC": "max"})["trial"].tolist() == [0, 1]


def test_trials_markdown() -> None:
    table = shown_trials(sweep_runs(), {"BC": "max", "stored_bytes": "min", "seconds": "min"})
    assert lines_of(table) == [
        "| trial | method.lambda_base | seeds | tuning_BC | BC | stored_bytes | train_seconds |",
        "|---:|---:|---:|---:|---:|---:|---:|",
        "| 1 | 0.125 | 2 | +0.300 ± 0.014 | -0.300 ± 0.014 | 300 ± 0 | 60 ± 0 |",
        "| 0 | 0 | 2 | +0.100 ± 0.014 | -0.100 ± 0.014 | 100 ± 0 | 60 ± 0 |",
    ]
    one_seed = sweep_runs().query("seed == 0")
    assert "±" not in render(shown_trials(one_seed, {"BC": "max"}), "markdown")


def test_trials_without_a_finished_run_make_an_empty_table() -> None:
    runs = sweep_runs().assign(status="failed", tuning_BC=None, BC=None)
    table = best_trials(runs, {"BC": "max", "stored_bytes": "min"})
    assert table.empty
    assert len(lines_of(shown_trials(runs, {"BC": "max", "stored_bytes": "min"}))) == 2


def test_best_trials_leaves_a_trial_without_the_metric_out() -> None:
    runs = sweep_runs()
    runs.loc[runs["trial"] == 1, "tuning_BC"] = [np.nan, 0.7]
    assert best_trials(runs, {"BC": "max"})["trial"].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ({"tuning_BC": "max"}, "unknown objective 'tuning_BC'"),
        ({"BC": "maximise"}, "unknown direction of BC 'maximise'.*'max'"),
        ({"AC": "max"}, "no column 'tuning_AC'"),
        ({}, "needs an objective"),
    ],
)
def test_best_trials_names_the_fault(objectives: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        best_trials(sweep_runs(), objectives)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_the_front_is_what_no_other_trial_dominates(points: list[tuple[int, int, int]]) -> None:
    runs = pd.DataFrame(points, columns=["tuning_AC", "tuning_BC", "stored_bytes"]).assign(AC=0.0, BC=0.0)
    runs = runs.assign(trial=range(len(points)), status="finished")
    front = best_trials(runs, {"AC": "max", "BC": "max", "stored_bytes": "min"})["trial"]
    gains = [(ac, bc, -size) for ac, bc, size in points]
    dominated = {
        a
        for a, b in itertools.permutations(range(len(points)), 2)
        if gains[a] != gains[b] and all(x <= y for x, y in zip(gains[a], gains[b], strict=True))
    }
    assert set(front) == set(range(len(points))) - dominated
    assert [gains[trial][0] for trial in front] == sorted((gains[trial][0] for trial in front), reverse=True)


def test_the_statistics_load_no_more_of_scipy_than_they_need() -> None:
    script = "import sys, analysis.comparisons, analysis.report.intervals; print('scipy.stats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_neither_analysis_nor_the_command_line_loads_torch_to_start() -> None:
    heavy = {"torch", "ray", "matplotlib", "plotly", "optuna"}
    script = f"import sys, analysis, cl2r.cli; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
