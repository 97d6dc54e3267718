"""Figures of the first screen of sweeps and races."""

import dataclasses
from typing import Any

import pytest

from analysis import Study
from analysis.names import GOOD, NEUTRAL
from analysis.report import build_report
from analysis.report.figures import Figure
from analysis.report.race import finalists_figure, rounds_figure
from analysis.report.sweep_figures import LEAST_SPAN, best_figure, front_figure, response_figure, sweep_figures
from analysis.sweep_headline import sweep_results
from analysis.sweeps import ranked_trials, sweep_goals
from tests.support.made_study import confirmed_sweep, made_sweep
from tests.support.report_text import embedded_data
from tests.unit.analysis.test_recommendation import CLEAR, made


def drawn(figure: Figure) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    (view,) = figure.views
    return view.data, view.layout


def test_every_trial_is_a_dot_in_every_panel_and_hollow_if_it_misses_a_constraint() -> None:
    study = made_sweep(12, (2, 5))
    contexts = sweep_results(study)
    traces, layout = drawn(response_figure(study, contexts))
    missed = sum(int((own.ranked["miss"] > 0).sum()) for own in contexts)
    assert 0 < missed < 24
    for axis, name in (("x", "λ_base"), ("x2", "images per class in memory")):
        assert layout[f"xaxis{axis[1:]}"]["title"]["text"] == name
        dots = [trace for trace in traces if trace.get("xaxis") == axis and "text" in trace]
        hollow = [trace for trace in dots if trace["marker"]["symbol"].endswith("-open")]
        assert (sum(len(trace["x"]) for trace in dots), sum(len(trace["x"]) for trace in hollow)) == (24, missed)
        rings = [trace for trace in traces if trace.get("xaxis") == axis and "text" not in trace]
        bests = [own.ranked.loc[own.best, "tuning_service_accuracy"] for own in contexts]
        assert [trace["y"][0] for trace in rings] == pytest.approx(bests, abs=1e-4)
    named = [trace["name"] for trace in traces if trace.get("showlegend", True)]
    assert named == ["T=2", "T=5", "misses a constraint", "best"]
    assert len({trace["marker"]["color"] for trace in traces[:2]}) == 2, "one colour per T"


def test_a_setting_has_the_whole_range_of_the_search_and_its_scale() -> None:
    study = made_sweep(12, (2,))
    axis = drawn(response_figure(study, sweep_results(study)))[1]["xaxis"]
    assert (axis["type"], axis["ticktext"]) == ("log", ["0.1", "1", "10", "100"])
    assert axis["range"] == pytest.approx([-1, 2], abs=0.1)
    space = {**study.specification["space"], "optim.nesterov": [True, False], "memory.per_class": [1, 2, 40]}
    specification = {**study.specification, "space": space}
    runs = study.runs.assign(**{"optim.nesterov": [True, False] * 6 + [True]})
    other = dataclasses.replace(study, runs=runs, specification=specification)
    layout = drawn(response_figure(other, sweep_results(other)))[1]
    assert (layout["xaxis2"]["type"], layout["xaxis3"]["tickvals"]) == ("category", [1, 2, 40])


def test_axes_of_shares_do_not_exaggerate() -> None:
    study = confirmed_sweep((2,))
    for figure, axis in ((response_figure, "yaxis"), (best_figure, "xaxis")):
        low, high = drawn(figure(study, sweep_results(study)))[1][axis]["range"]
        assert high - low >= LEAST_SPAN - 1e-4


def test_the_best_trial_is_blue_beside_the_default_er_and_both_alternatives() -> None:
    study = confirmed_sweep((2, 5), gain=0.02)
    traces, layout = drawn(best_figure(study, sweep_results(study)))
    labels = [text for text in layout["yaxis"]["ticktext"] if text in ("<b>T=2</b>", "ER", "preset's default")]
    assert labels == ["<b>T=2</b>", "ER", "preset's default", "ER", "preset's default"]
    dots = [trace for trace in traces if trace["mode"] == "markers"]
    assert [trace["marker"]["color"] for trace in dots] == [GOOD, NEUTRAL, NEUTRAL] * 2
    assert all(trace["error_x"]["array"][0] > 0 for trace in dots), "three seeds have an interval"
    lines = {trace["name"]: trace["x"] for trace in traces if trace["mode"] == "lines"}
    er = study.runs[study.runs["method.name"] == "er"].groupby("tasks")["first_accuracy"].mean()
    assert lines["never upgrade (ER)"][::3] == pytest.approx(er.tolist(), abs=1e-4)
    assert [*lines] == ["never upgrade (ER)", "re-index (ER)"]


def test_the_caption_has_the_seeds_of_the_trials_that_are_drawn() -> None:
    for study, words in (
        (made_sweep(12, (3,), confirm=(1, 2)), "Mean over 1 to 3 seeds with 95 % interval (of one seed: over pairs), "),
        (confirmed_sweep((2,)), "Mean over 3 seeds with 95 % interval, on"),
        (made_sweep(12, (2,)), "One seed, with 95 % interval over pairs, on"),
    ):
        assert best_figure(study, sweep_results(study)).caption.startswith(words)


def test_with_few_trials_nothing_is_blue() -> None:
    study = made_sweep(4, (2,))
    colours = {
        trace["marker"]["color"] for trace in drawn(best_figure(study, sweep_results(study)))[0] if "marker" in trace
    }
    assert colours == {NEUTRAL}
    assert "best" not in [trace.get("name") for trace in drawn(response_figure(study, sweep_results(study)))[0]]


def test_two_objectives_have_their_front_in_blue() -> None:
    study = made_sweep(12, (2, 5), objectives=("service_recall", "stored_bytes"))
    contexts = sweep_results(study)
    traces, layout = drawn(front_figure(study, contexts))
    for number, own in zip(("", "2"), contexts, strict=True):
        ranked = ranked_trials(own.rows, sweep_goals(study.specification), study.specification)
        blue = [trace for trace in traces if trace["xaxis"] == f"x{number}" and trace["marker"]["color"] == GOOD]
        assert [len(trace["x"]) for trace in blue] == [int(ranked["front"].sum())]
        assert layout[f"xaxis{number}"]["title"]["text"] == f"storage ({own.label})"
    assert [figure.id for figure in sweep_figures(study)] == ["front", "response"]
    three = made_sweep(12, (2,), objectives=("AC", "BC", "FC"))
    assert [figure.id for figure in sweep_figures(three)] == ["best-trials", "response"]


def test_the_page_of_a_sweep_begins_with_its_two_figures() -> None:
    page = build_report(made_sweep(12, (2,)))
    assert page.index('id="best-trials"') < page.index('id="response"') < page.index('<section id="tables">')
    assert {"best-trials", "response", "history"} <= set(embedded_data(page)["figures"])


def test_finalists_have_intervals_and_the_recommended_one_is_bold() -> None:
    study = made(CLEAR)
    traces, layout = drawn(finalists_figure(study))
    assert layout["yaxis"]["ticktext"] == ["<b>Trainable, FD^M</b>", "CL²R", "ER"]
    values = study.runs[study.runs["variant"] == "final"].groupby("method.name")["service_accuracy"].mean()
    dots = [trace for trace in traces if trace["mode"] == "markers"]
    assert [trace["x"][0] for trace in dots] == pytest.approx(values[["er_fdm", "cl2r", "er"]].tolist(), abs=1e-4)
    assert all("error_x" in trace for trace in dots)
    assert [trace["x"][0] for trace in traces if trace["mode"] == "lines"] == [0.7, 0.8]


def test_names_of_finalists_do_not_cover_each_other() -> None:
    close = {"er": (0.72, 0.72), "cl2r": (0.72, 0.7201), "er_fdm": (0.78, 0.7202)}
    study = made(close)
    traces, layout = drawn(rounds_figure(study))
    names = layout["annotations"]
    assert [name["text"] for name in names] == ["CL²R", "ER"], "er_fdm was in one round only"
    values = [value for trace in traces for value in trace["y"]]
    assert names[0]["y"] - names[1]["y"] >= 0.04 * (max(values) - min(values))
    assert layout["showlegend"] is False


def test_a_sweep_whose_trials_cannot_be_ranked_has_no_figures() -> None:
    study: Study = made_sweep(12, (2,))
    runs = study.runs.drop(columns=[name for name in study.runs if name.startswith("tuning_")])
    assert sweep_figures(dataclasses.replace(study, runs=runs)) == []
