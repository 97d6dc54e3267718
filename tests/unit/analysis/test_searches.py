"""The headline of a search study, and its figures and tables on the page, from made frames."""

from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from analysis.headline import headline, study_kind
from analysis.names import method_style
from analysis.report import build_report
from analysis.report.search import backfill_figure, upgrade_figure
from analysis.searches import state_estimates, state_values
from analysis.tables.search import search_tables
from tests.support.made_search import VALUES, made_search, one_seed


def test_the_best_method_after_the_upgrades_is_named_with_its_first_model_and_re_indexing() -> None:
    study = made_search()
    found = headline(study)
    assert study_kind(study) == "search"
    assert found.title == "Search after upgrades on icons: 2 methods, 3 tasks, 2 seeds"
    # 0.64 and 0.68 have mean 0.66 and s = 0.0283; t(1) = 12.706, so half the interval is 0.254.
    assert found.finding == (
        "After 2 upgrades without re-indexing, CL²R finds the right class first in 0.660 [0.406, 0.914] of searches on "
        "the oldest gallery (recall@1), ER in 0.510 [0.383, 0.637]; the first model of CL²R found it in 0.610, "
        "re-indexing would give 0.840."
    )
    assert "CL²R differs from the next, ER, by +0.150 [+0.023, +0.277] (clear)" in found.certainty
    assert "from its own first model by +0.050 [-0.077, +0.177] (not clear)" in found.certainty
    assert found.command == "python studies/ablation.py --seeds 0 1 2 3"


def test_the_remark_says_what_re_indexing_a_part_brings() -> None:
    assert headline(made_search()).remark == (
        "Re-indexing 20 % of the oldest gallery in random order would lift CL²R to 0.750, 50 % of the way to "
        "re-indexing all of it."
    )
    # From 0.51 to 0.80, the first model's 0.71 is 20/29 of the way: 0.2 + (20/29 - 1/2)/0.625 = 50 %.
    alone = made_search({"er": VALUES["er"]})
    assert headline(alone).remark.endswith("; 50 % would be needed to reach the first model's 0.710.")
    useless = made_search({"er": [(0.7, 0.8, 0.7)]})
    assert headline(useless).remark == "", "re-indexing brings nothing"


def test_no_upgrade_paid_if_every_method_finds_less_than_its_first_model() -> None:
    finding = headline(made_search({"er": [(0.7, 0.5, 0.8)], "cl2r": [(0.7, 0.6, 0.8)]})).finding
    assert finding.startswith(
        "No upgrade paid without re-indexing: after 2 upgrades CL²R finds the right class first in"
    )


def test_one_seed_has_intervals_over_its_queries() -> None:
    found = headline(one_seed())
    assert "CL²R finds the right class first in 0.640 [0.610, 0.670]" in found.finding
    assert found.certainty.startswith("One seed cannot tell a finding from chance: its intervals are over queries")


def test_only_seeds_that_all_methods_have_are_compared() -> None:
    missing = made_search({"er": VALUES["er"][:1], "cl2r": VALUES["cl2r"]})
    assert "CL²R finds the right class first in 0.640 [0.610, 0.670]" in headline(missing).finding
    assert "would lift CL²R to 0.740, 50 % of the way" in headline(missing).remark, "0.64 + (0.84 - 0.64)/2"
    random = backfill_figure(missing).views[0].data
    solid = next(trace["y"] for trace in random if trace.get("mode") == "lines+markers" and trace["name"] == "CL²R")
    dotted = [trace["y"][0] for trace in random if trace.get("hoverinfo") == "skip"]
    assert (solid[0], dotted) == (0.64, [0.7, 0.6])
    search = {
        name: own[(own["run"].str.contains("er")) == (own["run"].str.contains("s0"))]
        for name, own in made_search().search.items()
    }
    apart = replace(made_search(), search=search)
    assert set(search["retrieval"].groupby("method")["seed"].unique().map(tuple)) == {(0,), (1,)}
    assert headline(apart).finding == "No seed finished with every method: they are not ranked."


def test_many_methods_are_counted_and_those_that_keep_all_data_are_not_ranked() -> None:
    states = {name: [(0.6, 0.5 + place / 20, 0.9)] for place, name in enumerate(("er", "lwf", "fan", "cl2r", "bct"))}
    found = headline(made_search(states))
    finding = found.finding
    assert found.remark.endswith(" BCT trains on all data at every task and is not ranked.")
    assert "After 2 upgrades without re-indexing, CL²R finds the right class first in 0.650" in finding
    assert ", FAN in 0.600 [0.570, 0.630], LwF in 0.550 [0.520, 0.580], 1 other method in less;" in finding


def test_the_figure_shows_every_state_of_every_method_with_its_interval() -> None:
    study = made_search()
    (view,) = upgrade_figure(study).views
    estimates = state_estimates(state_values(study.search["retrieval"]))
    points = [trace for trace in view.data if "error_x" in trace]
    assert len(points) == len(estimates) == 6
    for point in points:
        name = point["hovertemplate"].partition(",")[0]
        own = next(own for own in estimates.values() if own.mean == pytest.approx(point["x"][0], abs=1e-4))
        assert own.mean + point["error_x"]["array"][0] == pytest.approx(own.high, abs=1e-4)
        assert f": {own.mean:.3f}" in point["hovertemplate"]
        assert point["marker"]["color"] == method_style({"ER": "er", "CL²R": "cl2r"}[name]).colour
    assert view.layout["yaxis"]["ticktext"] == ["ER", "CL²R"]
    assert view.layout["xaxis"]["range"][0] == 0
    assert len({point["marker"]["symbol"] for point in points}) == 3, "states differ by shape, methods by colour"


def test_the_backfill_figure_has_a_view_per_order_and_a_line_per_method() -> None:
    figure = backfill_figure(made_search())
    assert [view.name for view in figure.views] == ["in random order", "worst first", "most moved first (oracle)"]
    lines = {trace["name"]: trace for trace in figure.views[0].data if trace.get("mode") == "lines+markers"}
    assert np.allclose(lines["CL²R"]["y"][:3], [0.66, 0.705, 0.75])
    assert lines["ER"]["x"][-1] == 1
    assert figure.views[0].layout["yaxis"]["range"] == [0, 1]


def test_the_page_of_a_search_study_has_its_sentences_figures_and_tables() -> None:
    study = made_search()
    page, found = unescape(build_report(study)), headline(study)
    assert f'<p class="finding">{found.finding}</p>' in page
    assert found.remark in page
    for place, table in enumerate(search_tables(study.search), start=1):
        assert f'id="search-{place}-title">{table.title}</h3>' in page
    assert 'href="#search"' in page
    assert 'data-figure="search-upgrade"' in page
    assert 'data-figure="search-backfill"' in page
    assert "Recall@1" in page


def test_a_study_without_search_frames_has_no_such_section() -> None:
    study = replace(made_search(), search={})
    assert study_kind(study) == "ablation"
    assert 'id="search"' not in build_report(study)
