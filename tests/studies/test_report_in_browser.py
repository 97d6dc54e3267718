"""The page of a real study, in a browser."""

from pathlib import Path

from analysis import load_study
from analysis.headline import headline
from tests.support.opened_page import Open
from tests.support.report_checks import (
    check_cell_details,
    check_figures,
    check_filter,
    check_fits,
    check_matrix,
    check_sorting,
)


def test_the_page_of_a_study_shows_its_frames(undisturbed: Path, open_report: Open) -> None:
    folder = undisturbed / "studies" / "calm"
    study, view = load_study(folder), open_report(folder / "report.html")
    for check in (check_figures, check_fits, check_sorting, check_filter, check_matrix, check_cell_details):
        check(view.page, study)
    assert view.page.inner_text(".finding") == headline(study).finding
    view.page.click("#findings > summary")
    assert "6 runs, all finished." in view.page.inner_text("#findings")
    assert study.about["environment"]["processor"] in view.page.inner_text("#settings")
    assert view.complaints == []


def test_the_page_fits_a_phone_in_the_dark(undisturbed: Path, open_report: Open) -> None:
    folder = undisturbed / "studies" / "calm"
    view = open_report(folder / "report.html", 400, "dark")
    check_fits(view.page, load_study(folder))
    assert view.complaints == []
