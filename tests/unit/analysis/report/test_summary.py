"""The status and findings of a study in words, and its settings without names and secrets."""

import dataclasses
import html
from typing import Any

import pytest

from analysis import Study
from analysis.groups import group_fields
from analysis.report import build_report
from analysis.report.figures import labelled
from analysis.report.matrices import matrix_data
from analysis.report.settings import study_settings
from analysis.report.summary import moment, study_status
from analysis.report.tables import difference_tables
from tests.support.made_study import made_study
from tests.support.report_text import readable, summary


def young(ended: int, expected: int, **columns: Any) -> Study:
    """Return a study with its first `ended` runs."""
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
def test_the_status(ended: int, expected: int, live: list[str], refresh: float | None, status: str, kind: str) -> None:
    for end in (None, "2026-11-16T11:30:00+00:00"):
        study = young(ended, expected)
        head = study_status(dataclasses.replace(study, about={**study.about, "ended": end}), live, refresh)
        assert (head.status, head.kind) == (status, kind)


@pytest.mark.parametrize(
    ("ended", "expected", "status", "start"),
    [
        (4, 9, ["finished"] * 4, "4 of 9"),
        (1, 9, ["finished"], "1 of 9"),
        (4, 4, ["finished"] * 4, "4 runs"),
        (1, 1, ["finished"], "1 run"),
        (3, 9, ["finished", "failed", "pruned"], "3 of 9 runs have ended; 1 finished; 1 failed and 1 was stopped"),
        (2, 2, ["finished", "failed"], "1 of 2 runs finished; 1 failed"),
    ],
)
def test_counts_of_runs(ended: int, expected: int, status: list[str], start: str) -> None:
    assert summary(young(ended, expected, status=status))["Runs"].startswith(start)


def test_times_are_shown_in_utc() -> None:
    assert "2026-11-16 10:00 UTC" in study_status(made_study(seeds=[0]), []).times
    assert moment("2026-11-16T12:00:00+02:00") == "2026-11-16 10:00 UTC"
    assert moment("yesterday") == "yesterday"


def test_the_best_group_is_named_with_value_interval_and_test() -> None:
    study = made_study(["er", "cl2r", "lwf"], [0, 1, 2], failed=[1])
    found, mean = summary(study), study.finished.groupby("method.name")["BC"].mean()["cl2r"]
    assert found["BC"].startswith("CL²R")
    assert (f"{mean:+.3f} [" in found["BC"], "p\u00a0" in found["BC"]) == (True, True)
    assert "above 0 for CL²R" in found["Sign of BC"]


def with_bc(er: list[float], cl2r: list[float], metric: str = "BC") -> Study:
    study = made_study(["er", "cl2r"], range(len(er)))
    return dataclasses.replace(study, runs=study.runs.assign(**{metric: [*er, *cl2r]}))


@pytest.mark.parametrize(
    ("metric", "er", "cl2r", "shown", "absent"),
    [
        ("BC", [-0.1], [0.2], {"+0.200"}, {"[", "p\u00a0"}),  # one seed has neither interval nor test
        ("AC", [0, 0], [1, 1], {"CL²R", "1.000 (the same", "No test"}, {"["}),
        ("BC", [-0.25, -0.125], [0.25, 0.375], {"No test", "+0.500."}, {"p\u00a0"}),  # equal differences
        ("AC", [0.1, 0.0, 0.4], [1.0, 1.0, 1.0], {"+0.833 [+0.316, +1.000]"}, set()),  # of shares: ends at 1
    ],
)
def test_the_difference_to_the_next(
    metric: str, er: list[float], cl2r: list[float], shown: set[str], absent: set[str]
) -> None:
    text = summary(with_bc(er, cl2r, metric))[metric]
    assert {part for part in shown | absent if part in text} == shown


def test_the_sign_of_bc_needs_an_interval() -> None:
    text = summary(with_bc([-0.2, -0.2, -0.2], [0.3, 0.31, 0.32]))["Sign of BC"]
    assert ("above 0 for CL²R" in text, "below 0" in text) == (True, False), "equal seeds have none"
    for none in (with_bc([-0.2, -0.2], [0.3, 0.3]), with_bc([-0.2], [0.3])):
        assert "Sign of BC" not in summary(none)


def test_runs_with_different_numbers_of_tasks_are_not_compared() -> None:
    found = summary(made_study(grid={"scenario.n_tasks": [2, 3]}))
    for tasks in (2, 3):
        assert found[f"BC (T={tasks})"].startswith(f"CL²R, T={tasks} ")
    single = summary(made_study(tasks=1))
    assert ("AC, BC, FC" in single, "BC" in single) == (True, False)


def test_the_service_comes_before_bc() -> None:
    study = made_study(["er", "cl2r", "lwf"], [0, 1, 2])
    words, mean = [*summary(study)], study.finished.groupby("method.name")["service_accuracy"].mean()["cl2r"]
    assert words[words.index("Service accuracy") :][:3] == ["Service accuracy", "BC", "AC"]
    assert f"CL²R is highest with {mean:.3f} [" in summary(study)["Service accuracy"]
    fields = group_fields(study.runs)
    titles = [table.title for table in difference_tables(labelled(study, fields))]
    assert titles == ["service accuracy: differences", "BC: differences", "AC: differences"]
    old = dataclasses.replace(study, runs=study.runs.drop(columns="service_accuracy"))
    assert "Service accuracy" not in summary(old)


def test_scores_of_equal_seeds_have_no_interval() -> None:
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


def test_metrics_are_not_listed_as_settings() -> None:
    study = made_study()
    rates = study.runs.assign(**{"AC@0.01": study.runs["AC"], "BC@0.01_low": 0.5, "threads": 3})
    found = study_settings(dataclasses.replace(study, runs=rates), ["method.name"])
    names = {key for key, _ in (*found.common, *found.varied, *found.brought)}
    assert not [name for name in names if "@" in name]
    assert {"threads", "seed", "method.name", "data.name"} <= names


def test_no_person_and_no_secret_is_shown() -> None:
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
    assert ("babbage" in page, "hf_123" in page) == (False, False)
    text = readable(page)
    for part in ("no file ~/data/x.npz at s3://bucket/x", "<dt>data.name</dt><dd>birds</dd>", "on birds", "er in ~/x"):
        assert part in text
    assert runs["data.name"].iloc[0] == "/srv/babbage.private/birds.npz", "frames stay as they are"


def test_the_command_can_be_repeated_and_unset_resources_are_not_listed() -> None:
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


def test_data_sets_with_the_same_name_are_numbered() -> None:
    study = made_study(["er"], [0, 1], grid={"data.name": ["/a/birds.npz", "/b/birds.npz"]})
    text = readable(build_report(study))
    assert ("birds (1)" in text, "birds (2)" in text, "/a/birds" in text) == (True, True, False)
