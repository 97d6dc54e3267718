"""Interactive figures: lines, bands, ranges and words against values computed by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis import Study
from analysis.groups import finished, group_fields
from analysis.names import HIGHLIGHT
from analysis.report.figures import Figure, labelled, study_figures
from tests.support.made_study import made_study


def drawn(study: Study) -> dict[str, Figure]:
    fields = group_fields(study.runs)
    runs = labelled(study, fields)
    return {figure.id: figure for figure in study_figures(study, runs[finished(runs)], fields)}


def lines(traces: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the traces with a place in the legend by name, without bands."""
    return {trace["name"]: trace for trace in traces if trace.get("showlegend", True)}


def test_lines_come_in_the_order_of_methods_with_bands_of_95_percent_intervals() -> None:
    study = made_study(("cl2r", "lwf", "er"), (0, 1, 2), tasks=2)
    figure = drawn(study)["bc-curve"]
    assert "95 % intervals over 3 seeds" in figure.caption
    found = lines(figure.views[0].data)
    assert [*found] == ["ER", "LwF", "CL²R"]
    own = study.runs.loc[study.runs["method.name"] == "er", "BC"]
    half = 4.302653 * own.std() / np.sqrt(3)
    low, high = own.mean() - half, own.mean() + half
    assert found["ER"]["customdata"] == [f" [{low:+.3f}, {high:+.3f}] (3 seeds)"]
    band = next(trace for trace in figure.views[0].data if trace["name"] == "ER" and trace.get("fill"))
    assert band["y"] == pytest.approx([high, low], abs=1e-5)


def test_metrics_over_a_field_begin_with_service_accuracy() -> None:
    study = made_study(("er", "cl2r"), (0,), grid={"memory.per_class": [5, 10]})
    figure = drawn(study)["over-memory-per_class"]
    assert [view.name for view in figure.views] == ["service accuracy", "BC", "AC"]
    first = study.runs.iloc[0]
    words = f" [{first['service_accuracy_low']:.3f}, {first['service_accuracy_high']:.3f}] (one seed, over pairs)"
    assert lines(figure.views[0].data)["ER"]["customdata"][0] == words
    assert "over its pairs" in figure.caption
    bare = study.runs.drop(columns=[name for name in study.runs if name.endswith(("_low", "_high"))])
    figure = drawn(replace(study, runs=bare))["over-memory-per_class"]
    assert lines(figure.views[0].data)["ER"]["customdata"][0] == " (one seed)"
    assert "no band" in figure.caption


def test_axes_do_not_exaggerate() -> None:
    study = made_study(("er", "cl2r"), (0, 1), grid={"memory.per_class": [5, 6]})
    flat = study.runs.assign(service_accuracy=0.7 + 0.001 * study.runs["seed"])
    served, _, share = drawn(replace(study, runs=flat))["over-memory-per_class"].views
    low, high = served.layout["yaxis"]["range"]
    assert high - low == pytest.approx(0.02, rel=0.2)
    assert low < 0.7 < high
    assert share.layout["yaxis"]["range"] == [-0.03, 1.03]
    wide = study.runs.assign(service_accuracy=0.7 + 0.05 * study.runs["seed"])
    low, high = drawn(replace(study, runs=wide))["over-memory-per_class"].views[0].layout["yaxis"]["range"]
    assert high - low < 0.1, "the intervals are 0.6 long"


def test_storage_is_drawn_from_0_and_only_if_it_differs() -> None:
    study = made_study(("er", "cl2r"), (0, 1), grid={"memory.per_class": [0, 40]})
    figure = drawn(study)["storage"]
    assert [view.name for view in figure.views] == ["service accuracy", "BC", "AC"]
    assert all(view.layout["xaxis"]["range"][0] == 0 for view in figure.views)
    points = lines(figure.views[0].data)
    own = study.runs[(study.runs["method.name"] == "er") & (study.runs["memory.per_class"] == 0)]["service_accuracy"]
    reach = 12.706205 * own.std() / np.sqrt(2)
    assert points["ER, memory=0"]["y"] == pytest.approx([own.mean()], abs=1e-5)
    assert points["ER, memory=0"]["error_y"]["arrayminus"] == pytest.approx([reach])
    assert "means with 95 % intervals over seeds" in figure.caption
    single = drawn(made_study(("er", "cl2r"), (0,), grid={"memory.per_class": [0, 40]}))["storage"]
    assert "of one seed, without intervals" in single.caption
    assert not any("error_y" in trace for trace in single.views[0].data)
    close = made_study(("er", "cl2r"), (0, 1), grid={"memory.per_class": [0, 20]})
    assert "storage" not in drawn(close)


def test_groups_of_a_method_keep_its_colour() -> None:
    figure = drawn(made_study(("er", "cl2r"), (0,), grid={"memory.per_class": [1, 2]}))["bc-curve"]
    own = [trace["line"] for name, trace in lines(figure.views[0].data).items() if name.startswith("CL²R")]
    assert [line["color"] for line in own] == [HIGHLIGHT.colour] * 2
    assert own[0]["dash"] != own[1]["dash"]


def test_every_number_of_tasks_is_a_view_of_the_methods() -> None:
    study = made_study(("er", "cl2r"), (0, 1), grid={"scenario.n_tasks": [2, 4]})
    figure = drawn(study)["bc-curve"]
    assert [view.name for view in figure.views] == ["T=4", "T=2"]
    assert [*lines(figure.views[0].data)] == ["ER", "CL²R"]
    assert lines(figure.views[0].data)["ER"]["x"] == [2, 3, 4]


def test_the_range_is_that_of_the_lines_drawn_at_first() -> None:
    study = made_study(("er", "cl2r"), (0,), grid={"memory.per_class": range(8)}, tasks=2)
    lowest = study.runs.loc[study.runs["BC"].idxmin(), "run"]
    worse = study.matrix["accuracy"].where(
        (study.matrix["run"] != lowest) | (study.matrix["k"] == study.matrix["t"]), 0.1
    )
    view = drawn(replace(study, matrix=study.matrix.assign(accuracy=worse)))["bc-curve"].views[0]
    hidden = [trace["y"][-1] for trace in view.data if trace.get("visible") == "legendonly"]
    assert min(hidden) < -0.5
    assert view.layout["yaxis"]["range"][0] > -0.2


def test_of_many_lines_some_are_drawn_at_first() -> None:
    study = made_study(("er", "cl2r"), (0,), grid={"memory.per_class": range(8)})
    figure = drawn(study)["bc-curve"]
    shown = [trace for trace in figure.views[0].data if trace.get("visible") != "legendonly"]
    assert len(shown) == 10
    assert "10 of 16 lines" in figure.caption
