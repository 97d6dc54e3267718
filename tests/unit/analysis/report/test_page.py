"""The page: its parts and embedded values, sweeps, and that names in the data cannot break it."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import Study
from analysis.report import build_report, write_report
from analysis.report.figures import plain_text
from analysis.report.matrices import training_losses, whole_matrices
from analysis.report.page import embedded, exact, shown, significant
from analysis.report.sweep import sweep_plots
from analysis.sweeps import feasible
from tests.support.made_study import made_study
from tests.support.made_study import made_sweep as swept
from tests.support.report_text import embedded_data, readable

NASTY = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'
SPACE = {"method.lambda_base": {"low": 0.1, "high": 100.0, "log": True}, "memory.per_class": [1, 5]}


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="([a-z]+)"', page)


def made_sweep(trials: int = 7, **entries: Any) -> Study:
    values = np.geomspace(0.2, 50, trials).tolist()
    study = made_study(["cl2r"], [0, 1], grid={"method.lambda_base": values}, **{"space": SPACE, **entries})
    return dataclasses.replace(study, runs=study.runs.assign(trial=study.runs["trial"] // 2, **{"memory.per_class": 5}))


@pytest.fixture(scope="module")
def study() -> Study:
    return made_study(["er", "cl2r", "lwf"], [0, 1, 2], failed=[1])


@pytest.fixture(scope="module")
def page(study: Study) -> str:
    return build_report(study)


def test_sections_are_in_order_and_linked(page: str) -> None:
    wanted = ["tables", "matrix", "curves", "cost", "failures", "runs", "settings"]
    assert sections(page) == ["first", *wanted]
    assert re.findall(r'<a href="#([a-z]+)"', page) == wanted


def test_matrices_are_those_of_the_frames(study: Study, page: str) -> None:
    data = embedded_data(page)["matrices"]
    blocks, cells = data["blocks"], data["cells"]
    frame, runs = study.matrix.set_index(["run", "pairs", "t", "k"]), study.runs.set_index("run")
    names = [data["choices"]["run"][choice] for choice in blocks["choice"]]
    single = [place for place, run in enumerate(names) if run]  # the others are means
    for place in single:
        run, pairs, start = names[place], blocks["pairs"][place], blocks["start"][place]
        for at, (t, k) in enumerate([(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)], start):
            row = frame.loc[run, pairs, t, k]
            assert cells["accuracy"][at] == row["accuracy"]
            assert (cells["low"][at], cells["high"][at]) == (round(row["low"], 3), round(row["high"], 3))
            assert cells["compatible"][at] == (None if t == k else float(row["compatible"]))
        assert data["scores"]["BC"][place] == round(runs.loc[run, "tuning_BC" if pairs == "tuning" else "BC"], 3)
    assert 6 * len(single) == len(study.matrix)


def test_a_mean_matrix_is_the_mean_over_seeds(study: Study, page: str) -> None:
    data = embedded_data(page)["matrices"]
    choice = data["choices"]["name"].index("mean over 3 seeds")
    group = data["groups"][data["choices"]["group"][choice]]
    own = study.finished[study.finished["method.name"] == {"CL²R": "cl2r", "LwF": "lwf"}[group]]
    cells = study.matrix[study.matrix["run"].isin(own["run"]) & (study.matrix["pairs"] == "report")]
    place = data["blocks"]["choice"].index(choice)
    start = data["blocks"]["start"][place]
    expected = cells.groupby(["t", "k"])["accuracy"].mean().tolist()
    assert data["cells"]["accuracy"][start : start + 6] == pytest.approx(expected)
    values = own["BC"]
    half = 4.302653 * values.std() / np.sqrt(3)
    assert data["scores"]["BC_low"][place] == pytest.approx(values.mean() - half, abs=0.00051)


def test_every_metric_has_its_matrices() -> None:
    study = made_study(["er"], [0, 1])
    rates = [study.matrix.assign(metric=f"TAR@{r}", accuracy=study.matrix["accuracy"] - r) for r in (0.01, 0.1)]
    columns = {f"{name}@{rate}": study.runs[name] + rate for name in ("AC", "BC", "FC") for rate in (0.01, 0.1)}
    study = dataclasses.replace(study, matrix=pd.concat(rates), runs=study.runs.assign(**columns))
    data = embedded_data(build_report(study))
    assert data["matrices"]["metrics"] == ["TAR@0.01", "TAR@0.1"]
    first, blocks = study.runs.iloc[0], data["matrices"]["blocks"]
    choice = data["matrices"]["choices"]["run"].index(first["run"])
    keys = zip(blocks["choice"], blocks["pairs"], blocks["metric"], strict=True)
    found = dict(zip(keys, data["matrices"]["scores"]["BC"], strict=True))
    assert found[choice, "report", "TAR@0.1"] == round(first["BC@0.1"], 3)
    assert found[choice, "tuning", "TAR@0.01"] == round(first["tuning_BC"], 3)
    assert found[choice, "tuning", "TAR@0.1"] is None
    assert len(data["figures"]["bc-curve"]) == 2


def test_bc_curve_and_runs_are_those_of_the_frames(study: Study, page: str) -> None:
    traces = embedded_data(page)["figures"]["bc-curve"][0]["data"]
    ends = {trace["name"]: trace["y"][-1] for trace in traces if trace.get("showlegend", True)}
    means = study.finished.groupby("method.name")["BC"].mean()
    assert ends == pytest.approx({"ER": means["er"], "CL²R": means["cl2r"], "LwF": means["lwf"]}, abs=1e-5)
    table = readable(page).partition('id="all-runs"')[2]
    for value in study.finished["BC"]:
        assert f"{value:+.3f}</td>" in table
    csv = embedded_data(page)["texts"]["all-runs"]["csv"].splitlines()
    assert len(csv) == 1 + len(study.runs)


def test_losses_are_those_of_the_frames(study: Study, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = embedded_data(page)["losses"]
    run = study.finished["run"].iloc[0]
    own = study.curves[study.curves["run"] == run]
    assert data["runs"][run]["terms"]["ce"] == pytest.approx(own["loss_ce"].tolist(), rel=1e-3)
    assert data["runs"][run]["terms"]["fd"][0] is None
    assert data["schedules"][data["runs"][run]["schedule"]]["task"] == own["task"].tolist()
    monkeypatch.setattr("analysis.report.matrices.MOST_VALUES", 10)
    kept, remark = training_losses(study.curves, study.finished)
    assert (kept, "120" in remark) == (None, True), "too many are left out with a remark"


def test_one_task_has_a_matrix_but_no_bc() -> None:
    page = build_report(made_study(tasks=1))
    assert embedded_data(page)["matrices"]["blocks"]["tasks"] == [1] * 12
    assert embedded_data(page)["figures"].get("bc-curve") is None


def test_nothing_finished_or_no_run_has_ended() -> None:
    study = made_study(["er"], [0, 1], failed=[0, 1])
    page = build_report(study)
    assert sections(page) == ["first", "tables", "failures", "runs", "settings"]
    assert "no run finished, 2 failed" in page
    assert "loss_ce is nan in epoch 3 of task 2 &lt;b&gt;&amp;" in page
    empty = {name: getattr(study, name).iloc[:0] for name in ("runs", "tasks", "matrix", "curves")}
    page = build_report(dataclasses.replace(study, **empty, about={"expected_runs": 4, "ended": None}))
    assert sections(page) == ["first", "failures", "settings"]
    assert "incomplete: 0 of 4 runs" in page


def test_live_lines_and_refresh_without_about(study: Study, page: str) -> None:
    bare = dataclasses.replace(study, about={}, specification={})
    running = build_report(bare, live=["icons-er: task <2> of 3"], refresh=30)
    assert "<li>icons-er: task &lt;2&gt; of 3</li>" in running
    assert embedded_data(running)["refresh"] == 30
    assert 'id="pause"' not in readable(page)


def test_optional_columns_may_be_missing(study: Study) -> None:
    matrix = study.matrix.drop(columns=["metric", "low", "high", "p_compatible"])
    runs = study.runs.drop(columns=[name for name in study.runs if name.endswith(("_low", "_high"))])
    runs, curves = runs.drop(columns=["adapter_flops", "gallery_items_touched"]), study.curves.drop(columns="stage")
    tasks = study.tasks[["run", "task", "key", "reused", "seconds"]]
    old = dataclasses.replace(study, runs=runs, matrix=matrix, tasks=tasks, curves=curves)
    data = embedded_data(build_report(old))["matrices"]
    assert data["metrics"] == ["accuracy"]
    assert set(data["cells"]["low"][: data["blocks"]["start"][1]]) == {None}


def test_a_sweep_has_optunas_plots() -> None:
    study = made_sweep(20, search={"objectives": ["BC", "stored_bytes"]})
    page = build_report(study)
    figures = embedded_data(page)["figures"]
    assert [*figures][-5:] == ["pareto", "importance", "parallel", "history", "slices"]
    history = figures["history"][0]["data"][0]
    assert history["y"] == pytest.approx(study.runs.groupby("trial")["tuning_BC"].mean().tolist())


def test_plots_that_cannot_be_made_say_why() -> None:
    alone = sweep_plots(made_sweep(1))
    assert (alone.figures, alone.complete, len(alone.missing)) == ((), 1, 1)
    few = sweep_plots(made_sweep(3))
    assert [line.partition(":")[0] for line in few.missing] == ["Importance of parameters"]
    assert [figure.id for figure in few.figures] == ["parallel", "history", "slices"]
    lost = sweep_plots(made_sweep(4, failed=[3]))
    assert (lost.complete, lost.trials) == (3, 4), "a seed of one trial failed"
    misfit = made_sweep(3, space={"method.lambda_base": {"low": 90, "high": 99}})
    assert (sweep_plots(misfit).figures, len(sweep_plots(misfit).missing)) == ((), 1)
    assert sweep_plots(made_sweep(4, search={"objectives": ["AC", "BC", "FC"]})).missing[0].startswith("Pareto front")


def test_choices_of_a_space_are_recognised_in_frames() -> None:
    space = {
        "method.lambda_base": {"low": 0.1, "high": 100.0},
        "optim.nesterov": [True, False],
        "optim.clip": [None, 4],
    }
    study = made_sweep(20, space=space)
    given = {"optim.nesterov": [True, False] * 20, "optim.clip": [np.nan, np.nan, 4.0, 4.0] * 10}
    found = sweep_plots(dataclasses.replace(study, runs=study.runs.assign(**given)))
    assert found.complete == 20
    assert found.missing == ()


def test_each_context_is_a_view_and_infeasible_trials_are_drawn_as_such() -> None:
    study = swept(20, (2, 5), confirm=(1,), constraints={"reindexed_accuracy": ">= er + 0.002"})
    found = sweep_plots(study)
    assert (found.trials, found.complete) == (40, 40), "reference runs and confirmed ones are no trials"
    views = {figure.id: [view.name for view in figure.views] for figure in found.figures}
    assert views == {name: ["T=2", "T=5"] for name in ("importance", "parallel", "history", "slices")}
    history = next(figure for figure in found.figures if figure.id == "history").views[0]
    assert "Infeasible Trial" in [trace.get("name") for trace in history.data]
    missed = (feasible(study.runs, study.specification).iloc[:20, 0] > 0).sum()
    hollow = [trace for trace in history.data if trace.get("marker", {}).get("symbol") == "circle-open"]
    assert [len(trace["x"]) for trace in hollow] == [missed]
    parallel = next(figure for figure in found.figures if figure.id == "parallel").views[0]
    dotted = [trace for trace in parallel.data if trace.get("line", {}).get("dash") == "dot"]
    assert len(dotted) == missed + 1, "and the sample in the legend"
    both = sweep_plots(swept(3, (2, 5), objectives=["BC", "stored_bytes"]))
    views = {figure.id: [view.name for view in figure.views] for figure in both.figures}
    assert views["pareto"] == ["T=2", "T=5"]
    assert views["slices"] == ["T=2, BC", "T=2, stored_bytes", "T=5, BC", "T=5, stored_bytes"]
    assert both.missing == tuple(f"T={t}: Importance of parameters: 3 finished trials, fewer than 20." for t in (2, 5))
    few = swept(3, (2, 5))
    runs = few.runs.assign(status=few.runs["status"].mask(few.runs["tasks"] == 2, "failed"))
    one = sweep_plots(dataclasses.replace(few, runs=runs))
    assert {view.name for figure in one.figures for view in figure.views} == {"T=5"}
    assert one.missing[0].startswith("T=2: No plots: 0 of 3")


def test_names_in_the_data_cannot_break_the_page(study: Study) -> None:
    runs = study.runs.assign(reason=study.runs["reason"].where(study.runs["reason"].isna(), NASTY), variant=NASTY)
    runs.loc[runs.index[::2], "variant"] = "plain"
    nasty = dataclasses.replace(
        study, name=NASTY, runs=runs, specification={"note": NASTY}, about={**study.about, "command": [NASTY]}
    )
    page = build_report(nasty, live=[NASTY])
    assert page.count("</script>") == 3
    assert "<img" not in readable(page)
    assert "alert" not in re.sub(r"&lt;script&gt;alert|onerror=alert", "", readable(page))
    assert NASTY in embedded_data(page)["texts"]["lost-runs"]["csv"].replace('""', '"')


def test_embedded_json_has_no_tags_and_null_for_values_that_are_not_finite() -> None:
    text = embedded({"a": "</script>&\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script>&\u2028"}
    with pytest.raises(ValueError, match="JSON"):
        embedded({"a": float("nan")})
    values = [1.23456, np.nan, np.inf, -np.inf]
    assert [exact(values), shown(values), significant(values, 2)] == [[v, *[None] * 3] for v in (1.23456, 1.235, 1.2)]


def test_nothing_is_fetched(page: str) -> None:
    text = readable(page)
    assert re.findall(r'(?:src|href)\s*=(?!\s*"(?:#|data:))', text) == []
    style, own = re.findall(r"<style>(.*?)</style>", page, re.S)[0], page.rpartition("<script>")[2]
    assert re.findall(r"url\(|@import", style) == re.findall(r"http|import\(", own) == []
    assert "default-src 'none'" in page


def test_a_page_of_many_runs_is_small() -> None:
    grid = {"memory.per_class": [0, 5, 10, 20, 50], "method.lambda_base": [1.0, 3.0]}
    many = made_study(["er", "cl2r", "lwf", "lucir", "bic"], range(10), 10, grid)
    page = build_report(many)
    assert len(page.encode()) < 15e6
    assert len(embedded_data(page)["matrices"]["blocks"]["start"]) == 2 * (500 + 50)


def test_writes_a_file(tmp_path: Path) -> None:
    path = write_report(made_study(seeds=[0]), tmp_path / "new" / "report.html")
    assert path.read_text().startswith("<!doctype html>")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_infinite_losses_and_missing_cells_do_not_break_the_page() -> None:
    study = made_study(["er", "cl2r"], [0, 1])
    matrix = study.matrix.drop(study.matrix.index[3]).reset_index(drop=True)
    matrix.loc[len(matrix) - 2, "accuracy"] = np.nan
    curves = study.curves.assign(loss_ce=np.inf)
    data = embedded_data(build_report(dataclasses.replace(study, matrix=matrix, curves=curves)))
    assert set(data["losses"]["runs"][study.runs["run"].iloc[0]]["terms"]["ce"]) == {None}
    lines = [trace for trace in data["figures"]["bc-curve"][0]["data"] if trace.get("customdata")]
    assert {trace["name"]: trace["customdata"][0] for trace in lines}["ER"] == " (one seed)"
    whole = whole_matrices(matrix)
    assert len(whole) == len(study.matrix) - 2 * 6
    assert len(whole_matrices(matrix.iloc[:0])) == 0


def test_names_are_not_read_as_templates() -> None:
    assert plain_text("<b>%{x} & 5%") == "&lt;b&gt;%&#123;x} &amp; 5%"
    study = made_study(["er"], [0])
    named = dataclasses.replace(study, runs=pd.concat([study.runs.assign(variant=v) for v in ("%{x}", "b")]))
    named = dataclasses.replace(named, runs=named.runs.assign(run=[study.runs["run"].iloc[0], "other"]))
    traces = embedded_data(build_report(named))["figures"]["bc-curve"][0]["data"]
    assert "%{x}" not in traces[0]["hovertemplate"].partition("<br>")[0]
