"""What the report says of a study, and what it must not: states, intervals, names of people."""

import dataclasses
import html
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_study import made_study
from report_text import embedded_data, readable, summary

from analysis import Study
from analysis.report import build_report
from analysis.report.compact import exact, shown, significant
from analysis.report.figures import plain_text
from analysis.report.head import study_head
from analysis.report.labels import labelled
from analysis.report.matrices import matrix_data, whole_matrices
from analysis.report.settings import study_settings


def young(ended: int, expected: int, **columns: Any) -> Study:
    """The first runs of a study."""
    study = made_study(["er", "cl2r"], range(3))
    return dataclasses.replace(
        study, runs=study.runs.iloc[:ended].assign(**columns), about={**study.about, "expected_runs": expected}
    )


@pytest.mark.parametrize(
    ("ended", "expected", "live", "refresh", "status", "kind"),
    [
        (6, 12, [], None, "incomplete: 6 of 12 runs", "incomplete"),
        (6, 12, ["er"], None, "running: 6 of 12 runs ended", "running"),
        (6, 12, [], 30.0, "running: 6 of 12 runs ended", "running"),
        (6, 6, [], None, "finished", "good"),
    ],
)
def test_the_state(ended: int, expected: int, live: list[str], refresh: float | None, status: str, kind: str) -> None:
    for end in (None, "2026-11-16T11:30:00+00:00"):
        study = young(ended, expected)
        head = study_head(dataclasses.replace(study, about={**study.about, "ended": end}), live, refresh)
        assert (head.status, head.kind) == (status, kind)


@pytest.mark.parametrize(
    ("ended", "expected", "status", "sentence"),
    [
        (4, 9, ["finished"] * 4, "4 of 9 runs have ended, all of them finished."),
        (1, 9, ["finished"], "1 of 9 runs has ended, and it finished."),
        (4, 4, ["finished"] * 4, "4 runs, all finished."),
        (1, 1, ["finished"], "1 run, finished."),
        (3, 9, ["finished", "failed", "pruned"], "3 of 9 runs have ended; 1 finished; 1 failed and 1 was stopped"),
        (2, 2, ["finished", "failed"], "1 of 2 runs finished; 1 failed."),
    ],
)
def test_the_runs(ended: int, expected: int, status: list[str], sentence: str) -> None:
    assert f"\nRuns: {sentence}" in summary(young(ended, expected, status=status))


def with_bc(er: list[float], cl2r: list[float], metric: str = "BC") -> Study:
    study = made_study(["er", "cl2r"], range(len(er)))
    return dataclasses.replace(study, runs=study.runs.assign(**{metric: [*er, *cl2r]}))


def test_seeds_that_agree_carry_no_sign() -> None:
    text = summary(with_bc([-0.2, -0.2, -0.2], [0.3, 0.31, 0.32]))
    assert "The t-interval lies above 0 for CL²R. Each" in text
    assert "below 0" not in text
    assert "Sign of BC" not in summary(with_bc([-0.2, -0.2], [0.3, 0.3]))


def test_equal_differences_have_no_interval() -> None:
    assert "the same difference, +0.500." in summary(with_bc([-0.25, -0.125], [0.25, 0.375]))


def test_a_difference_of_shares_ends_at_one() -> None:
    text = summary(with_bc([0.1, 0.0, 0.4], [1.0, 1.0, 1.0], "AC"))
    assert "the difference is +0.833 [+0.316, +1.000]" in text


def test_scores_of_seeds_that_agree_have_no_ends() -> None:
    study = with_bc([-0.2, -0.2, -0.2], [0.3, 0.31, 0.32])
    first = study.matrix["run"].isin(study.runs["run"].iloc[:3])
    study = dataclasses.replace(study, matrix=study.matrix.assign(accuracy=study.matrix["accuracy"].mask(first, 0.5)))
    data = matrix_data(study, labelled(study, ["method.name"]))
    assert data is not None
    place = data["blocks"]["choice"].index(data["choices"]["name"].index("mean over 3 seeds"))
    ends = [data["scores"][name][place] for name in ("BC", "BC_low", "BC_high")]
    assert ends == [-0.2, None, None]
    assert data["cells"]["low"][data["blocks"]["start"][place]] is None
    other = data["blocks"]["choice"].index(len(data["choices"]["name"]) - 4)
    assert None not in (data["scores"]["BC_low"][other], data["cells"]["low"][data["blocks"]["start"][other]])


def test_figures_that_are_not_finite() -> None:
    values = [1.23456, np.nan, np.inf, -np.inf]
    assert exact(values) == [1.23456, None, None, None]
    assert shown(values) == [1.235, None, None, None]
    assert significant(values, 2) == [1.2, None, None, None]


def test_losses_without_bounds_and_missing_cells_cost_no_page() -> None:
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


def test_metrics_are_no_settings() -> None:
    study = made_study()
    rates = study.runs.assign(**{"AC@0.01": study.runs["AC"], "BC@0.01_low": 0.5, "threads": 3})
    found = study_settings(dataclasses.replace(study, runs=rates), ["method.name"])
    names = {key for key, _ in (*found.common, *found.varied, *found.brought)}
    assert not [name for name in names if "@" in name]
    assert {"threads", "seed", "method.name", "data.name"} <= names


def test_nobody_and_no_secret_is_shown() -> None:
    study = made_study(failed=[0])
    fields = {"data.name": "/srv/babbage.private/birds.npz", "data.root": "/home/babbage/data", "x.token": "hf_123"}
    runs = study.runs.assign(**fields)
    runs["reason"] = "no file /home/babbage/data/x.npz at s3://babbage:hf_123@bucket/x?key=hf_123"
    sets = {"data.root": "/home/babbage/data", "data.name": "/srv/babbage.private/birds.npz", "token": "hf_123"}
    spec = {**study.specification, "sets": sets, "note": "a.token=hf_123", "data": {"name": "/srv/babbage/birds.npz"}}
    about = {**study.about, "command": ["cl2r", "--token", "hf_123", "/home/babbage/x"]}
    page = build_report(
        dataclasses.replace(study, runs=runs, specification=spec, about=about), live=["er in /home/babbage/x"]
    )
    assert "babbage" not in page
    assert "hf_123" not in page
    text = readable(page)
    assert "no file ~/data/x.npz at s3://bucket/x" in text
    assert "<dt>data.name</dt><dd>birds</dd>" in text
    assert "on birds" in text
    assert "er in ~/x" in text
    assert runs["data.name"].iloc[0] == "/srv/babbage.private/birds.npz", "frames stay as they are"


def test_the_command_can_be_given_again_and_what_is_off_is_not_listed() -> None:
    study = made_study(seeds=[0])
    about = {
        **study.about,
        "command": ["cl2r", "study", "--set", "optim.milestones=[11, 14]"],
        "resources": {"workers": 2, "gpus_per_worker": 0, "accelerator": None, "sync_batchnorm": False},
    }
    text = html.unescape(readable(build_report(dataclasses.replace(study, about=about))))
    assert "cl2r study --set 'optim.milestones=[11, 14]'" in text
    assert text.count("workers 2, gpus per worker 0") == 2
    assert "accelerator" not in text


def test_data_sets_of_one_name_stay_apart() -> None:
    study = made_study(["er"], [0, 1], grid={"data.name": ["/a/birds.npz", "/b/birds.npz"]})
    text = readable(build_report(study))
    assert "birds (1)" in text
    assert "birds (2)" in text
    assert "/a/birds" not in text


def test_names_are_no_templates() -> None:
    assert plain_text("<b>%{x} & 5%") == "&lt;b&gt;%&#123;x} &amp; 5%"
    study = made_study(["er"], [0])
    named = dataclasses.replace(study, runs=pd.concat([study.runs.assign(variant=v) for v in ("%{x}", "b")]))
    named = dataclasses.replace(named, runs=named.runs.assign(run=[study.runs["run"].iloc[0], "other"]))
    traces = embedded_data(build_report(named))["figures"]["bc-curve"][0]["data"]
    assert "%{x}" not in traces[0]["hovertemplate"].partition("<br>")[0]
