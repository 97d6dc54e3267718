"""The scaling study: what it times, on tiny steps; its samples, tables, figures and files, on made-up times."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from drawn import legend, lines
from quick import QUICK, quick_config
from two_workers import WORLD, spawned

from analysis.plots.scaling_model import plot_measured, plot_predicted
from cl2r.engine.workers import Workers
from cl2r.errors import InputError
from cl2r.study import custom
from cl2r.study.cost_model import GpuAssumption, Ring, StepModel, fit, predict
from cl2r.study.layout import Layout
from studies import scaling
from studies.scaling import (
    Results,
    checked_config,
    drift_table,
    fit_note,
    model_lines,
    samples,
    scaling_rows,
    tables,
    write,
)
from studies.scaling_worker import (
    Effort,
    ReduceTime,
    StepTime,
    drifted,
    layouts,
    measure,
    plain_config,
    plan_of,
)

LITTLE = Effort(steps=1, rounds=2, sizes=(4, 4000), seconds=0.01)
MODEL = StepModel(1e-10, 0.01, Ring(1e-3, 1e-8))
ROW, SIZE, BATCH = 2e7, 400_000, 128


@pytest.fixture
def preset(tiny: Path, tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**QUICK, "data": {"name": str(tiny)}}))
    return str(path)


@pytest.fixture
def results() -> Results:
    """Steps as MODEL has them; batches of 128."""
    made = Results(BATCH, link_images=1000, trials=[("one", Layout(1, 1, 50.0, 10**9))])
    for world in (1, 2, 4):
        for rows in dict.fromkeys((BATCH, BATCH * world)):
            together, apart = MODEL.seconds(world, rows * ROW, SIZE), MODEL.seconds(1, rows / world * ROW, 0)
            made.steps.append(StepTime(world, rows, together, apart, ROW, SIZE))
        if world > 1:
            made.reduces += [ReduceTime(world, size, MODEL.ring.seconds(world, size)) for size in (4, 10**6)]
    return made


def predicted() -> pd.DataFrame:
    rows = [
        {"network": network, "mode": mode, "row_flops": 1e9, "gradient_bytes": 10**7, **vars(step)}
        for network in ("small", "large")
        for mode in ("strong", "weak")
        for step in predict(GpuAssumption().model, 1e9, 1e7, BATCH, (1, 8, 16), mode == "weak")
    ]
    return pd.DataFrame(rows)


# ---------------------------------------------------------------- measuring


def test_only_the_second_task_of_another_batch_is_timed(tiny: Path) -> None:
    plan = plan_of(plain_config(quick_config(tiny), 24))
    assert plan.config.batches.size == 24
    assert len(plan.keys) == 2


def test_one_worker_has_steps_and_no_all_reduce(tiny: Path) -> None:
    plain = plain_config(quick_config(tiny), 8)
    found = measure([plain], Workers(device=torch.device("cpu")), LITTLE)
    (step,) = found.steps
    assert (step.workers, step.batch) == (1, 8)
    assert min(step.seconds, step.apart_seconds, step.row_flops, step.gradient_bytes) > 0
    assert found.reduces == ()


def measured_by_two(workers: Workers, plains: list[dict[str, Any]]) -> Any:
    """In a process of its own."""
    return measure(plains, workers, LITTLE)


def test_two_workers_share_a_batch_and_time_their_all_reduces(tiny: Path) -> None:
    plains = [plain_config(quick_config(tiny), rows) for rows in (8, 16)]
    found = spawned(measured_by_two, plains)[0]
    assert [(step.workers, step.batch) for step in found.steps] == [(WORLD, 8), (WORLD, 16)]
    assert [(one.workers, one.size) for one in found.reduces] == [(WORLD, 4), (WORLD, 4000)]
    assert all(one.seconds > 0 for one in (*found.steps, *found.reduces))


def test_layouts_are_those_asked_for_and_the_naive_ones() -> None:
    assert [one[1:] for one in layouts([1, 3], 2, 8)] == [(1, 2), (3, 2), (1, 8), (8, 8)]


@pytest.mark.parametrize(
    ("batch", "workers", "overrides", "told"),
    [
        (6, [1, 4], [], "--batch 6 is too small for 4 workers"),
        (16, [0, 1], [], "different numbers from 1 on"),
        (16, [2, 2], [], "different numbers from 1 on"),
        (16, [1], ["scenario.n_tasks=1"], "this config has one"),
        (16, [1], ["optim.speed=1"], "optim.speed"),
    ],
)
def test_bad_input_is_refused(preset: str, batch: int, workers: list[int], overrides: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        checked_config(preset, overrides, batch, workers)


@pytest.mark.parametrize("words", [["--steps", "0"], ["--rounds", "0"], ["--seconds", "0"], ["--trials", "0"]])
def test_bad_efforts_are_refused(words: list[str]) -> None:
    with pytest.raises(InputError, match="--steps, --rounds and --trials at least 1"):
        scaling.main(words)


# ---------------------------------------------------------------- model and tables


def test_the_study_fits_the_model_behind_its_times(results: Results) -> None:
    found = fit(samples(results))
    assert found.model.seconds_per_flop == pytest.approx(MODEL.seconds_per_flop)
    assert found.model.ring.latency_seconds == pytest.approx(MODEL.ring.latency_seconds)
    assert np.abs(found.residuals).max() < 1e-9


def test_efficiency_and_communication_by_hand(results: Results) -> None:
    results.fitted = fit(samples(results))
    rows = scaling_rows(results).set_index(["mode", "workers"])
    one, two = MODEL.seconds(1, BATCH * ROW, SIZE), MODEL.seconds(2, BATCH * ROW, SIZE)
    assert rows.loc[("strong", 2), "efficiency"] == pytest.approx(one / two / 2)
    assert rows.loc[("strong", 2), "communication"] == pytest.approx(MODEL.ring.seconds(2, SIZE) / two)
    weak = MODEL.seconds(4, 4 * BATCH * ROW, SIZE)
    assert rows.loc[("weak", 4), "images_per_second"] == pytest.approx(4 * BATCH / weak)
    assert rows.loc[("weak", 4), "efficiency"] == pytest.approx(one / weak)
    assert (rows.loc[:, "fitted_seconds"] - rows.loc[:, "seconds"]).abs().max() < 1e-9
    assert list(rows.loc[("strong", 1)]) == list(rows.loc[("weak", 1)])


def test_one_number_of_workers_has_no_model(results: Results) -> None:
    alone = Results(BATCH, steps=results.steps[:1], no_fit="too few")
    with pytest.raises(InputError, match="1 samples tell 1 of the 4"):
        fit(samples(alone))
    assert scaling_rows(alone)["fitted_seconds"].isna().all()
    assert fit_note(alone) == "No model: too few."
    assert model_lines(scaling_rows(alone)).empty


def test_every_table_is_told(results: Results) -> None:
    results.fitted = fit(samples(results))
    results.drift = pd.DataFrame({"seed": [0], "BC": [0.1], "mean_accuracy": [0.6], "FC": [0.2], "workers": [1]})
    titles = [table.title.split(" for ")[0] for table in tables(results, predicted(), GpuAssumption())]
    assert titles == [
        "Workers that share a step",
        "The fit",
        "Trials side by side",
        "Predicted",
        "Metrics by number of workers",
    ]
    (trials,) = (table for table in tables(results, predicted(), GpuAssumption()) if table.title.startswith("Trials"))
    assert trials.column("links an hour")[0].value == pytest.approx(3600 * 50 / 1000)


def test_drift_is_paired_by_seed() -> None:
    runs = pd.DataFrame(
        {
            "seed": [0, 1, 1, 0],
            "workers": [1, 1, 2, 2],
            "BC": [0.1, 0.3, 0.31, 0.11],
            "mean_accuracy": [0.5, 0.7, 0.7, 0.6],
            "FC": [0.0, 0.0, 0.0, 0.0],
        }
    )
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in drift_table(runs).rows}
    assert rows["1"][:2] == ["+0.200 ± 0.141", "0.600 ± 0.141"]
    assert rows["2"][1] == "0.650 ± 0.071"
    assert rows["2 − 1, by seed"] == ["+0.010 ± 0.000", "+0.050 ± 0.071", "0.000 ± 0.000"]


def test_chains_of_every_number_of_workers_have_a_storage_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the study command writes what the real one would."""
    asked: list[list[str]] = []

    def command(path: Path, words: list[str]) -> int:
        content = yaml.safe_load(path.read_text())
        assert content["set"] == {"scenario.stop_after": 3, "optim.epochs": 5}
        asked.append(words)
        folder = Path(words[words.index("--storage") + 1]) / "studies" / words[words.index("--name") + 1]
        folder.mkdir(parents=True)
        world = float(words[words.index("--workers") + 1])
        frame = pd.DataFrame({"seed": content["seeds"], "BC": world, "mean_accuracy": 0.5, "FC": 0.0, "more": 1})
        frame.to_parquet(folder / "runs.parquet")
        return 0

    monkeypatch.setattr(custom, "main", command)
    runs = drifted("icons", ["method.name=er"], [1, 2], [3, 4], 5, tmp_path)
    assert runs[["workers", "seed", "BC"]].to_numpy().tolist() == [[1, 3, 1], [1, 4, 1], [2, 3, 2], [2, 4, 2]]
    assert len({words[words.index("--storage") + 1] for words in asked}) == 2
    assert all(words[-2:] == ["--set", "method.name=er"] for words in asked)


# ---------------------------------------------------------------- figures and files


def test_the_figure_of_what_was_measured(results: Results) -> None:
    results.fitted = fit(samples(results))
    data = scaling_rows(results)
    figure = plot_measured(data, model_lines(data), "heading")
    left, right = figure.axes
    assert set(legend(figure)) == {"strong, measured", "weak, measured", "strong, model", "weak, model", "ideal"}
    strong = data[data["mode"] == "strong"]
    assert np.allclose(lines(left)["strong, measured"], strong[["workers", "speed_up"]])
    assert np.allclose(lines(right)["strong, model"], strong[["workers", "efficiency"]]), "the model is exact here"
    assert lines(left)["ideal"] == [[1, 1], [2, 2], [4, 4]]


def test_the_figure_without_a_model(results: Results) -> None:
    data = scaling_rows(results)
    figure = plot_measured(data, model_lines(data), "heading")
    assert set(legend(figure)) == {"strong, measured", "weak, measured", "ideal"}


def test_the_figure_of_what_is_predicted() -> None:
    data = predicted()
    figure = plot_predicted(data, "heading", "A100s")
    names = {"small, strong", "small, weak", "large, strong", "large, weak", "ideal"}
    assert set(legend(figure)) == names
    own = data[(data["network"] == "large") & (data["mode"] == "weak")]
    assert np.allclose(lines(figure.axes[1])["large, weak"], own[["workers", "efficiency"]])
    assert figure.axes[0].get_xlabel() == "A100s"


def test_files_are_written_beside_one_another(results: Results, tmp_path: Path) -> None:
    """Without a model: JSON has no word for what is not a number."""
    write(tmp_path / "out" / "scaling", results, predicted(), GpuAssumption(), "text", "about")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    figures = {f"scaling{part}.{kind}" for part in ("", "_predicted") for kind in ("png", "svg")}
    assert names == {"scaling.json", "scaling.md", *figures}
    told = json.loads((tmp_path / "out" / "scaling.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert told["scaling"][0]["fitted_seconds"] is None
    assert len(told["steps"]) == len(results.steps)
    assert told["assumed"]["name"] == "A100"
