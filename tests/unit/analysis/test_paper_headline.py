"""What became of the paper's statements: outcomes, headline and page of a study of the paper, from made frames."""

from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from analysis.groups import group_fields
from analysis.headline import headline, study_kind
from analysis.paper.items import ITEMS
from analysis.paper.report import Report
from analysis.paper.statements import Statement
from analysis.paper.verdicts import Judgement, outcomes
from analysis.report import build_report
from analysis.report.figures import labelled
from analysis.report.paper import paper_pictures, verdict_list
from analysis.study import Study
from tests.support.made_study import made_study
from tests.support.paper_frames import frames, seeds

Rows = list[dict[str, Any]]


def judged(verdicts: Sequence[str], says: str = "so") -> list[Judgement]:
    """Return judgements with these verdicts on one statement."""
    check = {"kind": "bound", "method": "cl2r", "metric": "BC", "relation": ">", "value": 0}
    statement = Statement.model_validate({"item": "table 3", "source": "here", "says": says, "check": check})
    return [Judgement(statement, "", "BC", "", verdict) for verdict in verdicts]


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        (["agrees", "agrees, of those run"], ("holds", 2, 2)),
        (["agrees, one seed"], ("holds", 1, 1)),
        (["agrees", "agrees, within noise"], ("open", 2, 2)),
        (["agrees", "differs, within noise"], ("open", 1, 2)),
        (["agrees", "differs, within noise", "differs"], ("does not hold", 1, 3)),
        (["agrees", "not run"], ("holds", 1, 1)),
        (["not comparable at this budget", "not run"], ("not judged", 0, 0)),
    ],
)
def test_a_statement_holds_if_all_judgements_agree_and_is_open_within_noise(
    verdicts: list[str], outcome: tuple[str, int, int]
) -> None:
    (found,) = outcomes(judged(verdicts))
    assert (found.verdict, found.agreeing, found.judged) == outcome


def test_statements_have_their_own_outcomes_in_their_order() -> None:
    found = outcomes([*judged(["agrees"], "first"), *judged(["differs"], "second")])
    assert [(row.statement.says, row.verdict) for row in found] == [("first", "holds"), ("second", "does not hold")]


def test_a_verdict_is_a_sign_and_a_word_and_texts_are_escaped() -> None:
    shown = verdict_list(outcomes([*judged(["agrees"], "a < b"), *judged(["differs", "agrees"]), *judged(["not run"])]))
    for part in ("✓</span> holds</span>", "✗</span> does not hold</span>", "–</span> not judged</span>", "a &lt; b"):
        assert part in shown
    assert "1 of 2 agree" in shown
    assert shown.count(" agree<") == 1, "one judgement needs no count"


def table_two(rows: Rows, **about: Any) -> Study:
    """Return a study of the paper's Table 2, whose settings are compared with those of `icons`."""
    return Study(**frames(rows), name="made", paper={"item": "table 2", "preset": "icons"}, search={}, about=about)


COMPATIBLE = [row for method in ("lucir", "podnet", "foster") for row in seeds(method, "BC", [0.11, 0.12])]
"""Six statements are about Table 2: one says so about LUCIR and PODNet, and another says the contrary about FOSTER."""


def test_the_headline_counts_statements_that_hold() -> None:
    study = table_two(COMPATIBLE, command=["python", "studies/paper.py", "--table", "2"])
    found = headline(study)
    assert study_kind(study) == "paper"
    assert found.title == "Table 2 of the paper on icons: 3 methods, 2 tasks, 2 seeds"
    assert found.finding == (
        "1 of the 2 statements of the paper's text about Table 2 that these runs can judge holds and 1 does not; 4 of "
        "6 cannot be judged here."
    )
    assert found.certainty.startswith(
        "Judged on means over 2 seeds; all settings are the paper's, so numbers are judged"
    )
    assert found.command == "python studies/paper.py --table 2 --seeds 0 1 2 3"


def test_a_statement_within_noise_is_open() -> None:
    found = headline(table_two(seeds("foster", "BC", [-0.10, 0.12])))
    assert (
        "The only statement of the paper's text about Table 2 that these runs can judge is open; 5 of 6"
        in found.finding
    )
    assert "open: the 95 % interval of a difference includes the opposite verdict" in found.certainty


def test_other_settings_and_one_seed_are_said() -> None:
    changed = [{**row, "optim.epochs": 3} for row in COMPATIBLE if row["seed"] == 0]
    certainty = headline(table_two(changed)).certainty
    assert certainty == (
        "One seed cannot tell an agreement from chance; optim.epochs differs from the paper's settings, so orders, "
        "signs and trends are judged, but no numbers."
    )


def test_nothing_is_claimed_on_other_data() -> None:
    found = headline(table_two([{**row, "data.name": "/home/someone/birds.npz"} for row in COMPATIBLE]))
    assert found.title.startswith("Table 2 of the paper on birds: ")
    assert found.finding.startswith("These runs can judge none of the ")
    assert found.certainty.endswith("these runs are on birds, not on icons.")
    assert found.command == "", "more seeds would not help"


def test_runs_that_cannot_be_laid_out_are_explained() -> None:
    study = table_two([*COMPATIBLE, {**COMPATIBLE[0], "run": "other", "optim.lr": 9.0}])
    found = headline(study)
    assert found.finding.startswith("The runs cannot be laid out as in the paper: ")
    assert found.finding in unescape(build_report(study))


def test_the_page_shows_verdicts_first_and_the_items_tables_below() -> None:
    study = replace(made_study(["fixed", "er_fdm"]), paper={"item": "table ablation", "preset": "icons"})
    page = unescape(build_report(study))
    assert f'<p class="finding">{headline(study).finding}</p>' in page
    for row in Report.of_study(study).outcomes:
        assert row.statement.says in page
    assert page.index('class="verdicts"') < page.index('id="paper"')
    assert 'href="#paper">Table 9</a>' in page
    assert 'id="paper-1-title">Ablation, T=3</h3>' in page
    assert "All settings are those of the preset icons." in page


@pytest.mark.parametrize(
    ("item", "grid", "drawn"),
    [
        ("table 3", {"scenario.n_tasks": [3, 5]}, "BC"),
        ("figure memory", {"memory.per_class": [0, 5]}, "BC"),
        ("figure bc", {"scenario.n_tasks": [3, 5]}, "T=5"),
        ("table 2", {}, ""),
    ],
)
def test_the_values_of_the_item_are_drawn_beside_the_verdicts(
    item: str, grid: dict[str, list[int]], drawn: str
) -> None:
    study = replace(made_study(grid=grid), paper={"item": item, "preset": "icons"})
    verdicts, values = paper_pictures(study, labelled(study, group_fields(study.runs)))
    assert verdicts.id == "verdicts"
    if drawn:
        assert values.title == f"Values of {ITEMS[item].number}"
        assert values.figure is not None
        assert values.figure.views[0].name == drawn
    else:
        assert "ranking" in values.svg, "one row per method"
