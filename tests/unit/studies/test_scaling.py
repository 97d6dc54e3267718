"""The scaling study: what it times, on tiny steps; its tables, figures and files, from the times of a known model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import cl2r
from analysis.plots.scaling import plot_measured, plot_predicted
from analysis.report.scaling import measured_figure, predicted_figure, scaling_headline, scaling_page
from analysis.tables.scaling import drift_table, layouts_table, predicted_table, samples_table, scaling_table
from cl2r.config.schema import Config
from cl2r.engine.workers import Workers
from cl2r.errors import InputError
from cl2r.rayrun.scaling import Effort, Measured, StepTime, measure, with_batch
from cl2r.study.scaling_model import GPU_MODEL, AllReduceCost, Sample, StepModel, fit, predict
from studies import scaling
from studies.scaling import metrics_by_workers, scaling_frame, write
from tests.support.drawn import legend, lines
from tests.support.quick import quick_config
from tests.support.small_study import write_preset
from tests.support.two_workers import WORLD, spawned

LITTLE = Effort(steps=1, rounds=2, sizes=(4, 4000), seconds=0.01)
MODEL = StepModel(1e-10, 0.01, AllReduceCost(1e-3, 1e-8))
ROW, SIZE, BATCH = 2e7, 400_000, 128


@pytest.fixture
def preset(tiny: Path, tmp_path: Path) -> str:
    return str(write_preset(tmp_path, tiny))


@pytest.fixture
def steps() -> list[StepTime]:
    """Steps of 1, 2 and 4 workers as MODEL has them."""
    return [
        StepTime(
            world, rows, MODEL.seconds(world, rows * ROW, SIZE), MODEL.seconds(1, rows / world * ROW, 0), ROW, SIZE
        )
        for world in (1, 2, 4)
        for rows in dict.fromkeys((BATCH, BATCH * world))
    ]


@pytest.fixture
def samples(steps: list[StepTime]) -> list[Sample]:
    """What the model is fitted to: the steps and, by themselves, all-reduces."""
    reduces = [Sample("", 0, world, size, MODEL.ring.seconds(world, size)) for world in (2, 4) for size in (4, 10**6)]
    return [*(sample for step in steps for sample in step.samples()), *reduces]


def predicted() -> pd.DataFrame:
    rows = [
        {"network": network, "mode": mode, "row_flops": 1e9, "gradient_bytes": 10**7, **step}
        for network in ("small", "large")
        for mode in ("strong", "weak")
        for step in predict(GPU_MODEL, 1e9, 1e7, BATCH, (1, 8, 16), mode == "weak")
    ]
    return pd.DataFrame(rows)


def test_one_worker_has_steps_and_no_all_reduce(tiny: Path) -> None:
    (step,), reduces = measure([with_batch(quick_config(tiny), 8)], Workers(device=torch.device("cpu")), LITTLE)
    assert (step.workers, step.batch) == (1, 8)
    assert min(step.seconds, step.apart_seconds, step.row_flops, step.gradient_bytes) > 0
    assert reduces == []


def measured_by_two(workers: Workers, configs: list[Config]) -> Measured:
    """Run in a process of its own."""
    return measure(configs, workers, LITTLE)


def test_two_workers_share_a_batch_and_time_their_all_reduces(tiny: Path) -> None:
    configs = [with_batch(quick_config(tiny), rows) for rows in (8, 16)]
    steps, reduces = spawned(measured_by_two, configs)[0]
    assert [(step.workers, step.batch) for step in steps] == [(WORLD, 8), (WORLD, 16)]
    assert [(one.world, one.gradient_bytes) for one in reduces] == [(WORLD, 4), (WORLD, 4000)]
    assert all(one.seconds > 0 for one in (*steps, *reduces))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--batch", "6", "--workers", "1", "4"], "--batch 6"),
        (["--workers", "0", "1"], "--workers"),
        (["--workers", "2", "2"], "--workers 2 2"),
        (["--set", "scenario.n_tasks=1"], "scenario.n_tasks"),
        (["--set", "optim.speed=1"], "optim.speed"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_bad_input_is_refused(preset: str, words: list[str], named: str) -> None:
    with pytest.raises(InputError, match=named):
        scaling.main(["--preset", preset, *words])


def test_efficiency_and_communication_by_hand(steps: list[StepTime], samples: list[Sample]) -> None:
    rows = scaling_frame(steps, BATCH, fit(samples)[0]).set_index(["mode", "workers"])
    one, two = MODEL.seconds(1, BATCH * ROW, SIZE), MODEL.seconds(2, BATCH * ROW, SIZE)
    assert rows.loc[("strong", 2), "efficiency"] == pytest.approx(one / two / 2)
    assert rows.loc[("strong", 2), "communication"] == pytest.approx(MODEL.ring.seconds(2, SIZE) / two)
    weak = MODEL.seconds(4, 4 * BATCH * ROW, SIZE)
    assert rows.loc[("weak", 4), "images_per_second"] == pytest.approx(4 * BATCH / weak)
    assert rows.loc[("weak", 4), "efficiency"] == pytest.approx(one / weak)
    assert (rows["fitted_seconds"] - rows["seconds"]).abs().max() < 1e-9, "the fit finds the model"
    assert list(rows.loc[("strong", 1)]) == list(rows.loc[("weak", 1)])


def test_one_number_of_workers_has_no_model(steps: list[StepTime]) -> None:
    with pytest.raises(InputError, match="1 of the 4"):
        fit(steps[0].samples())
    data = scaling_frame(steps[:1], BATCH, None)
    assert data["fitted_seconds"].isna().all()
    assert "too few" in scaling_table(data, None, pd.DataFrame(), "too few").notes[1]


def test_tables_have_the_measured_values(steps: list[StepTime], samples: list[Sample]) -> None:
    model, fitted = fit(samples)
    data = scaling_frame(steps, BATCH, model)
    assert scaling_table(data, model, fitted).column("images/s")[0].value == data["images_per_second"][0]
    assert [cell.value for cell in samples_table(fitted).column("ms")] == [1e3 * one.seconds for one in samples]
    columns = ["name", "processes", "threads", "images_per_second", "links_per_hour", "bytes"]
    layouts = pd.DataFrame([("one", 1, 1, 50.0, 180.0, 1e9)], columns=columns)
    assert layouts_table(layouts, 1000, BATCH).column("links per hour")[0].value == 180
    assert len(predicted_table(predicted(), "A100", "assumed", BATCH).rows) == len(predicted())


def test_drift_is_paired_by_seed() -> None:
    values = [(0, 1, 0.1, 0.5, 0.0), (1, 1, 0.3, 0.7, 0.0), (1, 2, 0.31, 0.7, 0.0), (0, 2, 0.11, 0.6, 0.0)]
    runs = pd.DataFrame(values, columns=["seed", "workers", "BC", "mean_accuracy", "FC"])
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in drift_table(runs).rows}
    assert rows["1"][:2] == ["+0.200 ± 0.141", "0.600 ± 0.141"]
    assert rows["2"][1] == "0.650 ± 0.071"
    assert rows["2 − 1, by seed"] == ["+0.010 ± 0.000", "+0.050 ± 0.071", "0.000 ± 0.000"]


def test_every_number_of_workers_has_its_own_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    class Stored:
        def __init__(self, world: int) -> None:
            values = {"BC": float(world), "mean_accuracy": 0.5, "FC": 0.0, "status": "finished"}
            self.runs = pd.DataFrame([{"seed": seed, **values} for seed in (3, 4)])

    def run_study(spec: Any, **options: Any) -> Stored:
        asked.append({**options, "spec": spec})
        return Stored(options["workers"])

    monkeypatch.setattr(cl2r, "run_study", run_study, raising=False)
    runs = metrics_by_workers("icons", ("method.name=er",), (1, 2), (3, 4), 5)
    assert runs[["workers", "seed", "BC"]].to_numpy().tolist() == [[1, 3, 1], [1, 4, 1], [2, 3, 2], [2, 4, 2]]
    assert len({one["storage"] for one in asked}) == 2
    assert asked[0]["spec"]["set"] == {"scenario.stop_after": 3, "optim.epochs": 5, "method.name": "er"}


def test_the_figure_of_measured_and_fitted_steps(steps: list[StepTime], samples: list[Sample]) -> None:
    data = scaling_frame(steps, BATCH, fit(samples)[0])
    figure = plot_measured(data, "heading")
    left, right = figure.axes
    assert set(legend(figure)) == {"strong, measured", "weak, measured", "strong, model", "weak, model", "ideal"}
    strong = data[data["mode"] == "strong"]
    assert np.allclose(lines(left)["strong, measured"], strong[["workers", "speed_up"]])
    assert np.allclose(lines(right)["strong, model"], strong[["workers", "efficiency"]])
    assert lines(left)["ideal"] == [[1, 1], [2, 2], [4, 4]]


def test_the_figure_of_predictions() -> None:
    data = predicted()
    figure = plot_predicted(data, "heading", "A100s")
    assert set(legend(figure)) == {"small, strong", "small, weak", "large, strong", "large, weak", "ideal"}
    own = data[(data["network"] == "large") & (data["mode"] == "weak")]
    assert np.allclose(lines(figure.axes[1])["large, weak"], own[["workers", "efficiency"]])
    assert figure.axes[0].get_xlabel() == "A100s"


def layouts() -> pd.DataFrame:
    """Return one, two and four trials, of which four are 3.5 times as fast as one."""
    rows = [
        (f"{count} at the same time", count, 1, rate, 1.0, 1e9) for count, rate in ((1, 50.0), (2, 90.0), (4, 175.0))
    ]
    rows.append(("one, all cores", 1, 4, 120.0, 1.0, 1e9))
    columns = ["name", "processes", "threads", "images_per_second", "links_per_hour", "bytes"]
    return pd.DataFrame(rows, columns=columns)


def test_the_headline_says_what_was_measured_and_what_is_predicted(
    steps: list[StepTime], samples: list[Sample]
) -> None:
    model, fitted = fit(samples)
    frames = {"scaling": scaling_frame(steps, BATCH, model), "trials": layouts(), "predicted": predicted()}
    found = scaling_headline("icons", frames, fitted, "Times are medians", "A100", 8)
    assert found.title == "Scaling on icons: 1, 2 and 4 workers, 1, 2 and 4 trials at the same time"
    gains = frames["scaling"].set_index(["mode", "workers"])["speed_up"]
    strong, weak = (f"{gains[mode, 4]:.2f} times" for mode in ("strong", "weak"))
    assert found.finding.startswith(
        f"4 workers train {strong} as fast as 1 if they share a batch, {weak} with a batch each;"
    )
    assert "4 trials at the same time train 3.50 times as fast as 1." in found.finding
    eight = predicted().query("network == 'large' and mode == 'strong' and workers == 8")["speed_up"].item()
    assert "8 A100s that share a batch are predicted, not measured, to train" in found.finding
    assert f"{eight:.2f} (large)" in found.finding
    assert found.certainty.startswith("Times are medians; constants for A100s are assumed, and the model misses")


def test_the_headline_of_one_number_of_workers_and_trials_states_no_gain(steps: list[StepTime]) -> None:
    frames = {"scaling": scaling_frame(steps[:1], BATCH, None), "trials": layouts()[:1], "predicted": predicted()}
    found = scaling_headline("icons", frames, pd.DataFrame(), "Times are medians", "A100", 8)
    assert found.finding.startswith("One number of workers and of trials was measured, so no gain is known.")
    assert found.certainty == "Times are medians; constants for A100s are assumed."


def test_figures_of_the_page_show_measured_points_the_model_and_the_ideal(
    steps: list[StepTime], samples: list[Sample]
) -> None:
    data = scaling_frame(steps, BATCH, fit(samples)[0])
    speed, efficiency = measured_figure(data).views
    names = ["ideal", "strong, measured", "strong, model", "weak, measured", "weak, model"]
    assert [trace["name"] for trace in speed.data] == names
    assert speed.data[0]["y"] == [1, 2, 4]
    assert np.allclose(speed.data[1]["y"], data.loc[data["mode"] == "strong", "speed_up"], rtol=1e-4)
    assert efficiency.layout["yaxis"]["range"][0] == 0
    without = measured_figure(scaling_frame(steps, BATCH, None)).views[0]
    assert [trace["name"] for trace in without.data] == ["ideal", "strong, measured", "weak, measured"], "no model"
    dashes = {trace["name"]: trace["line"]["dash"] for trace in predicted_figure(predicted(), "A100").views[0].data}
    assert dashes["large, strong"] != dashes["large, weak"]


def test_the_page_begins_with_the_headline_and_has_all_tables(steps: list[StepTime]) -> None:
    frames = {"scaling": scaling_frame(steps, BATCH, None), "trials": layouts(), "predicted": predicted()}
    tables = [scaling_table(frames["scaling"], None, pd.DataFrame(), "too few"), layouts_table(layouts(), 1000, BATCH)]
    found = scaling_headline("icons", frames, pd.DataFrame(), "Times are medians", "A100", 8)
    page = scaling_page(found, frames, tables, "A100", "icons <b>on 4 cores")
    assert f'<p class="finding">{found.finding}</p>' in page
    assert "icons &lt;b&gt;on 4 cores" in page
    for text in ("Workers that share a step", "Trials at the same time", "Strong scaling", 'data-figure="predicted"'):
        assert text in page
    assert 'id="failures"' not in page, "there are no runs"


def test_files_without_a_model_are_valid_json(steps: list[StepTime], tmp_path: Path) -> None:
    frames = {"scaling": scaling_frame(steps, BATCH, None), "predicted": predicted()}
    write(tmp_path / "out" / "scaling", frames, "text", "page", "about", "A100s")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    figures = {f"scaling{part}.{kind}" for part in ("", "_predicted") for kind in ("png", "svg")}
    assert names == {"scaling.html", "scaling.json", "scaling.md", *figures}
    written = json.loads((tmp_path / "out" / "scaling.json").read_text(), parse_constant=pytest.fail)
    assert written["scaling"][0]["fitted_seconds"] is None
    assert len(written["predicted"]) == len(predicted())


def test_the_kept_tables_are_those_of_the_kept_measurements() -> None:
    kept = Path(__file__).parents[3] / "studies" / "results" / "scaling"
    content = json.loads(kept.with_suffix(".json").read_text(encoding="utf-8"))
    frames = {name: pd.DataFrame(content[name]) for name in ("scaling", "predicted")}
    samples = [{name: value for name, value in row.items() if name != "step"} for row in content["fitted"]["samples"]]
    _, fitted = fit([Sample(**sample) for sample in samples])
    made = [
        *scaling_table(frames["scaling"], None, pd.DataFrame()).rows,
        *samples_table(fitted).rows,
        *predicted_table(frames["predicted"], "A100", "", content["batch"]).rows,
    ]
    rows = {line for line in kept.with_suffix(".md").read_text(encoding="utf-8").splitlines() if line.startswith("|")}
    assert {f"| {' | '.join(cell.text for cell in row)} |" for row in made} <= rows
    for _, layout in content["trials"]:
        speed = f"{layout['rate']:,.0f} | {3600 * layout['rate'] / content['link_images']:,.1f}"
        shown = f"| {layout['trials']} | {layout['threads']} | {speed} | {layout['bytes'] / 1e6:,.0f} |"
        assert any(row.endswith(shown) for row in rows)
