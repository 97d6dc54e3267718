"""Checks that the report of any study passes in a browser; each takes the page and the study."""

import itertools
import re
from typing import Any

import pandas as pd
from axe_playwright_python.sync_playwright import Axe

from analysis import Study
from analysis.groups import group_fields
from analysis.headline import headline
from analysis.report.figures import labelled
from analysis.tables import grid_tables
from analysis.tables.formats import render
from cl2r.metrics import COMPATIBILITY

RUNS = "#all-runs"


def signed(value: float) -> str:
    return "–" if pd.isna(value) else "0.000" if abs(value) < 0.0005 else f"{value:+.3f}"


def check_fits(page: Any, study: Study) -> None:
    """Check that the page is no wider than the window; wider parts scroll in their own boxes."""
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert page.title().startswith(headline(study).title)


def check_first_screen(page: Any, study: Study) -> None:
    """Check that finding, first picture and definitions can be seen without scrolling, whatever the width."""
    page.evaluate("window.scrollTo(0, 0)")
    found = headline(study)
    assert page.inner_text("h1") == found.title
    assert page.inner_text(".finding") == found.finding
    assert page.inner_text(".certainty") == found.certainty
    height = page.evaluate("window.innerHeight")
    for part in (".finding", ".certainty", ".picture", ".definitions"):
        box = page.locator(f"#first > {part}").first.bounding_box()
        assert box["height"] > 0
        tall = part == ".picture" and box["height"] > height / 2  # such as a ranking of 26 methods on a phone
        end = box["y"] + (200 if tall else box["height"])
        assert end <= height, f"{part} ends at {end:.0f} of {height}"


def check_accessible(page: Any, study: Study) -> None:
    """Check with axe-core that nothing serious keeps people with a disability from using the page."""
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    places = {one["id"]: [node["target"] for node in one["nodes"]][:3] for one in serious}
    assert places == {}


def check_figures(page: Any, study: Study) -> None:
    """Check that every figure shows lines, points or bars, and that no button sends data."""
    plots = page.locator(".plot")
    drawn = plots.evaluate_all("all => all.map((n) => [n.id, n.querySelectorAll('svg .trace').length])")
    assert drawn
    assert [name for name, traces in drawn if traces == 0] == []
    buttons = page.locator(".modebar-btn")
    titles = buttons.evaluate_all("all => all.map((n) => n.dataset.title || n.ariaLabel || n.title)")
    assert len(titles) == 4 * len(drawn)
    assert [title for title in titles if re.search("share|cloud|edit|upload|send", title, re.IGNORECASE)] == []


def column(page: Any, place: int) -> list[str]:
    texts: list[str] = page.locator(f"{RUNS} tbody tr td:nth-child({place + 1})").all_inner_texts()
    return texts


def check_sorting(page: Any, study: Study) -> None:
    """Check that a click sorts runs by BC, best first, and a key reverses the order; runs without BC stay last."""
    heads = [text.strip() for text in page.locator(f"{RUNS} thead th").all_inner_texts()]
    place = heads.index("BC")
    known = study.finished["BC"].dropna().sort_values()
    rest = [signed(float("nan"))] * (len(study.runs) - len(known))
    head = page.locator(f"{RUNS} thead th").nth(place)
    head.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, place) == [*map(signed, known[::-1]), *rest]
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, place) == [*map(signed, known), *rest]
    first = page.locator(f"{RUNS} thead th").first
    first.locator("button").focus()
    page.keyboard.press("Space")
    assert (first.get_attribute("aria-sort"), head.get_attribute("aria-sort")) == ("ascending", "none")
    methods = column(page, heads.index("method"))
    assert [name for name, _ in itertools.groupby(methods)] == list(dict.fromkeys(methods)), "equal ones are together"
    assert len(methods) == len(study.runs)


def check_filter(page: Any, study: Study) -> None:
    """Check that the filter shows only rows with all the words."""
    method = str(study.runs["method.name"].iloc[-1])
    seed = int(study.runs["seed"].iloc[-1])
    words = f"-{method}- -s{seed}-"
    expected = {run for run in study.runs["run"] if f"-{method}-" in run and f"-s{seed}-" in run}
    page.fill('[data-filter="all-runs"]', words.upper())
    shown = page.locator(f"{RUNS} tbody tr:visible td:last-child").all_inner_texts()
    assert set(shown) == expected
    assert page.inner_text('[data-count="all-runs"]') == f"{len(expected)} of {len(study.runs)} runs"
    page.fill('[data-filter="all-runs"]', "")
    assert page.locator(f"{RUNS} tbody tr:visible").count() == len(study.runs)


def choose(page: Any, study: Study, run: pd.Series, pairs: str = "report") -> None:
    """Choose a run in the matrix browser."""
    rows = labelled(study, group_fields(study.runs))
    page.select_option("#matrix-group", label=rows.set_index("run")["group"][run["run"]])
    if page.locator("#matrix-run").is_visible():  # a control with one choice is not
        page.select_option("#matrix-run", label=f"seed {run['seed']}")
    if page.locator("#matrix-pairs").is_visible():
        page.select_option("#matrix-pairs", label=pairs)


def details(page: Any) -> dict[str, str]:
    words = page.locator("#matrix-detail dt").all_inner_texts()
    return dict(zip(words, page.locator("#matrix-detail dd").all_inner_texts(), strict=True))


def cells_of(study: Study, run: str, pairs: str) -> pd.DataFrame:
    cells = study.matrix[(study.matrix["run"] == run) & (study.matrix["pairs"] == pairs)]
    first = cells[cells["metric"] == cells["metric"].iloc[0]] if "metric" in cells else cells
    return first.set_index(["t", "k"]).sort_index()


def check_matrix(page: Any, study: Study) -> None:
    """Check that cells and scores of the first and the last run are those of the frames."""
    for run, pairs in ((study.finished.iloc[0], "report"), (study.finished.iloc[-1], study.matrix["pairs"].iloc[-1])):
        choose(page, study, run, pairs)
        cells = cells_of(study, run["run"], pairs)
        assert page.locator("#matrix-grid td.cell").all_inner_texts() == [f"{v:.3f}" for v in cells["accuracy"]]
        found = page.locator("#matrix-grid td.compatible")
        marked = found.evaluate_all("all => all.map((n) => [+n.dataset.t, +n.dataset.k])")
        assert [tuple(place) for place in marked] == list(cells.index[cells["compatible"].fillna(False).astype(bool)])
        prefix = "tuning_" if pairs == "tuning" else ""
        for score in COMPATIBILITY:
            mean = run[prefix + score.name]
            wanted = signed(mean) if score.signed or pd.isna(mean) else f"{mean:.3f}"
            assert page.inner_text(f'[data-score="{score.name}"] b') == wanted


def check_cell_details(page: Any, study: Study) -> None:
    """Check that the mouse and the arrow keys show the details of a cell, as in the frame."""
    run = study.finished.iloc[0]
    choose(page, study, run)
    cells = cells_of(study, run["run"], "report")
    size = int(cells.index.max()[0])

    def check(t: int, k: int) -> None:
        cell, own, found = cells.loc[t, k], cells.loc[k, k], details(page)
        assert (found["queries by model t"], found["gallery by model k"]) == (str(t), str(k))
        assert f"{cell['accuracy']:.3f}" in found.values()
        if "low" in cells:
            assert found["95 % over pairs"] == f"[{cell['low']:.3f}, {cell['high']:.3f}]"
        if t == k:
            assert "compatible" not in found
            return
        assert found["C[k,k]"] == f"{own['accuracy']:.3f}"
        assert found["difference"] == signed(cell["accuracy"] - own["accuracy"])
        assert found["compatible"] == ("yes" if cell["compatible"] else "no")
        if "p_compatible" in cells:
            share = float(found["compatible in draws"].removesuffix(" %"))
            assert share == round(100 * round(cell["p_compatible"], 3), 1)

    page.hover(f'#matrix-grid td[data-t="{size}"][data-k="1"]')
    check(size, 1)
    page.focus(f'#matrix-grid td[data-t="{size}"][data-k="1"]')
    for key, t, k in (("ArrowRight", size, 2), ("ArrowUp", size - 1, 2), ("ArrowLeft", size - 1, 1)):
        page.keyboard.press(key)
        check(t, k)
    page.click(f'#matrix-grid td[data-t="{size}"][data-k="{size}"]')
    check(size, size)


def check_mean(page: Any, study: Study) -> None:
    """Check the mean over seeds of the first group that has several."""
    rows = labelled(study, group_fields(study.runs))
    rows = rows[rows["run"].isin(study.finished["run"])]
    counts = rows["group"].value_counts()
    group = next(name for name in rows["group"] if counts[name] > 1)
    page.select_option("#matrix-group", label=group)
    page.select_option("#matrix-run", label=f"mean over {counts[group]} seeds")
    own = rows.loc[rows["group"] == group, "run"]
    parts = [cells_of(study, run, page.input_value("#matrix-pairs"))["accuracy"] for run in own]
    means = pd.concat(parts, axis=1).mean(axis=1)
    assert page.locator("#matrix-grid td.cell").all_inner_texts() == [f"{value:.3f}" for value in means]


def check_copies(page: Any, study: Study) -> None:
    """Check that buttons copy the first table as text, even without a clipboard."""
    table = grid_tables(study)[0]
    for form in ("markdown", "latex", "csv"):
        page.click(f'#table-0 [data-copy="{form}"]')
        page.locator("#table-0 .copied:not(:empty)").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == render(table, form)
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.click('#table-0 [data-copy="csv"]')
    page.wait_for_selector("#table-0 textarea")
    assert page.input_value("#table-0 textarea") == render(table, "csv")


def check_print(page: Any, study: Study) -> None:
    """Check that print is white, without buttons, with all runs, the name of the matrix, and all lists open."""
    group = page.locator("#matrix-group option:checked").inner_text()
    run = page.locator("#matrix-run option:checked").inner_text()
    pairs, metric = page.input_value("#matrix-pairs"), page.input_value("#matrix-metric")
    page.fill('[data-filter="all-runs"]', "no such words")
    page.emulate_media(media="print")
    assert page.locator("#matrix-caption:visible").inner_text() == f"{group}, {run}: {metric} on {pairs} pairs"
    assert page.locator(f"{RUNS} tbody tr:visible").count() == len(study.runs)
    assert page.locator(f"{RUNS} thead th:visible").first.inner_text() == "method"
    for kind in ("button:not(th > button)", "nav", "select", "input", ".modebar"):
        assert page.locator(f"{kind}:visible").count() == 0, kind
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.locator("h1").inner_text() == headline(study).title
    widths = page.locator(".plot svg").evaluate_all("all => all.map((n) => n.getBoundingClientRect().width)")
    assert max(widths) < 700
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    page.emulate_media(media="screen")
    assert page.locator("#matrix-caption:visible").count() == 0
    assert page.locator(f"{RUNS} tbody tr:visible").count() == 0
    page.fill('[data-filter="all-runs"]', "")
