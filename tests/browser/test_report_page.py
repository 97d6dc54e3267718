"""The report of a made study in a browser, opened as a file."""

import dataclasses
import re
from pathlib import Path

import pytest

from analysis import Study
from analysis.names import ADAPTERS, METHODS
from analysis.report import write_report
from cl2r.config.builtin import ABLATION_CELLS
from tests.support import report_checks
from tests.support.made_study import made_study, made_sweep
from tests.support.opened_page import Open, Opened
from tests.support.report_checks import check_figures, check_fits, check_print, choose, details


@pytest.fixture(scope="module")
def study() -> Study:
    return made_study(["er", "cl2r", "lwf"], [0, 1, 2], 4, {"memory.per_class": [0, 10]}, failed=[1])


@pytest.fixture(scope="module")
def path(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(study, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def opened(path: Path, open_report: Open) -> Opened:
    return open_report(path)


@pytest.mark.parametrize("name", ["figures", "fits", "sorting", "filter", "matrix", "cell_details", "mean", "copies"])
def test_the_page_passes_the_checks_of_every_report(opened: Opened, study: Study, name: str) -> None:
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    getattr(report_checks, f"check_{name}")(opened.page, study)
    assert opened.complaints == []


KINDS = {
    "ablation": lambda: made_study(list(ABLATION_CELLS), [0, 1, 2], 6),
    "one seed": lambda: made_study(list(ABLATION_CELLS), [0], 6),
    "methods": lambda: made_study([*METHODS, *(f"er+{name}" for name in ADAPTERS)], [0, 1], 5),
    "field": lambda: made_study(["er", "er_fdm", "fixed", "cl2r"], [0, 1], 3, {"memory.per_class": [0, 10, 50]}),
    "sweep": lambda: made_sweep(12, (2, 5), confirm=(1,)),
}


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_screen_answers_and_everybody_can_use_the_page(
    open_report: Open, tmp_path: Path, kind: str, width: int, scheme: str
) -> None:
    study = KINDS[kind]()
    view = open_report(write_report(study, tmp_path / "page.html"), width, scheme)
    for check in (report_checks.check_first_screen, check_fits, report_checks.check_accessible):
        check(view.page, study)
    assert view.complaints == []


def test_losses_follow_the_chosen_run(opened: Opened, study: Study) -> None:
    choose(opened.page, study, study.finished.iloc[-1])
    assert opened.page.inner_text("#loss-caption").startswith("LwF, memory=10, seed 2:")


def test_a_figure_can_show_another_metric(opened: Opened, study: Study) -> None:
    opened.page.select_option('[data-view-of="over-memory-per_class"]', label="AC")
    title = opened.page.locator("#over-memory-per_class .ytitle").text_content()
    assert str(title).startswith("AC")
    check_figures(opened.page, study)


def test_print(opened: Opened, study: Study) -> None:
    opened.page.emulate_media(color_scheme="dark")
    check_print(opened.page, study)
    opened.page.emulate_media(color_scheme="light")


def test_a_change_to_dark_reaches_the_figures(opened: Opened) -> None:
    colour = "getComputedStyle(document.querySelector('#bc-curve .xtick text')).fill"
    light = opened.page.evaluate(colour)
    opened.page.emulate_media(color_scheme="dark")
    assert opened.page.evaluate(colour) != light
    ink = opened.page.evaluate("getComputedStyle(document.body).color")
    assert opened.page.evaluate(colour) == ink
    opened.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1400, "dark")])
def test_narrow_and_wide_screens(path: Path, study: Study, open_report: Open, width: int, scheme: str) -> None:
    view = open_report(path, width, scheme)
    for shown in (scheme, {"light": "dark", "dark": "light"}[scheme]):
        view.page.emulate_media(color_scheme=shown)
        check_fits(view.page, study)
        check_figures(view.page, study)
        dark = view.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark == (shown == "dark")
    assert view.complaints == []


def test_reloading_keeps_the_reader_s_choices(study: Study, open_report: Open, tmp_path: Path) -> None:
    view = open_report(write_report(study, tmp_path / "live.html", live=["icons-er: task 2 of 3"], refresh=1.0), 800)
    page, run = view.page, study.finished.iloc[-1]
    assert page.locator(".live li").all_inner_texts() == ["icons-er: task 2 of 3"]
    choose(page, study, run, "tuning")
    page.locator("#all-runs thead th", has_text=re.compile("^BC$")).click()
    page.click("#settings-common summary")
    page.fill('[data-filter="all-runs"]', "finished")
    page.evaluate("document.querySelector('#all-runs .scroll').scrollLeft = 30")
    page.focus('#matrix-grid td[data-t="3"][data-k="2"]')
    with page.expect_navigation():
        page.evaluate("window.scrollTo(0, document.getElementById('cost').offsetTop + 40)")
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#matrix-run option:checked").inner_text() == f"seed {run['seed']}"
    assert page.locator("#matrix-group option:checked").inner_text() == "LwF, memory=10"
    assert page.input_value("#matrix-pairs") == "tuning"
    assert page.locator('#all-runs th[aria-sort="descending"]').inner_text().strip() == "BC"
    assert page.locator("#all-runs tbody tr:visible").count() == len(study.finished)
    assert page.evaluate("window.scrollY - document.getElementById('cost').offsetTop") == pytest.approx(40, abs=3)
    assert page.locator("details[open]").evaluate_all("all => all.map((node) => node.id)") == ["settings-common"]
    assert page.evaluate("document.querySelector('#all-runs .scroll').scrollLeft") == 30
    assert page.evaluate("[document.activeElement.dataset.t, document.activeElement.dataset.k]") == ["3", "2"]
    assert details(page)["gallery by model k"] == "2"
    page.click("#pause")
    page.evaluate("window.before = true")
    page.wait_for_timeout(1500)
    assert page.evaluate("window.before") is True
    assert view.complaints == []


def test_one_run_of_one_task(open_report: Open, tmp_path: Path) -> None:
    single = made_study(["er"], [0], 1)
    page = open_report(write_report(single, tmp_path / "one.html")).page
    for name in ("run", "metric"):
        assert not page.locator(f"#matrix-{name}").is_visible()
    assert page.locator("#matrix-group").is_visible()
    assert page.locator(".ramp").count() == 0
    assert page.inner_text("#matrix-legend").strip() == "C[k,k]"


def test_a_run_without_a_matrix_on_some_pairs(study: Study, open_report: Open, tmp_path: Path) -> None:
    first, last = study.finished["run"].iloc[0], study.finished["run"].iloc[-1]
    some = study.matrix[(study.matrix["run"] != last) | (study.matrix["pairs"] == "report")]
    some = some[some["run"].isin([first, last])]
    view = open_report(write_report(dataclasses.replace(study, matrix=some), tmp_path / "some.html"))
    choose(view.page, study, study.finished.iloc[-1])
    assert view.page.locator("#matrix-scores span").count() > 0
    view.page.select_option("#matrix-pairs", label="tuning")
    assert view.page.locator("#matrix-detail dl").count() == 0
    for part in ("grid", "scores", "legend"):
        assert view.page.inner_text(f"#matrix-{part}").strip() == "", part
    assert view.complaints == []


def test_a_sweep(open_report: Open, tmp_path: Path) -> None:
    space = {"method.lambda_base": {"low": 0.1, "high": 100.0, "log": True}}
    grid = {"method.lambda_base": [0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 90.0]}
    search = {"objectives": ["BC", "stored_bytes"]}
    sweep = made_study(["cl2r"], [0], 3, grid, space=space, search=search)
    view = open_report(write_report(sweep, tmp_path / "sweep.html"), 400, "dark")
    assert view.page.locator("#sweep .plot").count() == 4, "too few trials for the importance of parameters"
    check_figures(view.page, sweep)
    check_fits(view.page, sweep)
    assert view.complaints == []
