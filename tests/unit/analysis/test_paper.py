"""The paper's tables, statements, verdicts and reports, from made frames."""

import itertools
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from analysis import names
from analysis.paper.items import COMPARED, ITEMS, RATES
from analysis.paper.report import Report, changes, document, verdicts_table
from analysis.paper.statements import KINDS, paper_statements, read_statements
from analysis.paper.tables import item_tables
from analysis.paper.values import Values
from analysis.paper.verdicts import Change, judge
from cl2r.config.methods import METHODS
from cl2r.errors import InputError
from tests.support.miniatures import refusal
from tests.support.paper_frames import frames, run, seeds, verdict


def rows_of(name: str, given: dict[str, pd.DataFrame]) -> list[list[str]]:
    """Return the texts of an item's only table."""
    (table,) = item_tables(ITEMS[name], given)
    return [[cell.text for cell in row] for row in table.rows]


def test_two_tasks_start_with_the_first_model_and_end_with_methods_that_keep_all_data() -> None:
    cells = {"er": [[0.6], [0.5, 0.8]], "cl2r": [[0.7], [0.75, 0.9]], "bct": [[0.8], [0.9, 0.95]]}
    rows = [run("bct", AC=1.0, BC=0.1), run("cl2r", AC=1.0, BC=0.05, FC=-0.15), run("er", AC=0.0, BC=-0.1, FC=-0.3)]
    given = frames(rows, cells)
    found = rows_of("table 2", given)
    assert found[0][:2] == ["Initial task", "0.700"]
    assert found[1] == ["ER", "0.800", "0.500", "no", "-0.100", "-0.300", "0.600"]
    assert found[2] == ["CL²R", "0.900", "0.750", "yes", "+0.050", "-0.150", "0.700"]
    assert found[4][:5] == ["BCT", "0.950", "0.900", "yes", "+0.100"]
    marks = [cell.mark for cell in item_tables(ITEMS["table 2"], given)[0].column("BC")]
    assert marks == ["", "", "best", "", ""], "BCT keeps all data and is not compared"
    several = rows_of("table 2", frames([*seeds("er", "AC", [0, 1, 1]), *seeds("cl2r", "AC", [1, 1, 1])]))
    assert [row[3] for row in several[1:]] == ["2 of 3", "yes"], "the ECC of several seeds is a count"


def test_every_number_of_tasks_has_its_columns() -> None:
    rows = [*seeds("er", "AC", [0.1, 0.3], tasks=3), run("er", 10, AC=0.2), run("cl2r", 3), run("cl2r", 10)]
    rows += [{**run("cl2r", 10, seed=1), "status": "failed"}]
    (table,) = item_tables(ITEMS["table 3"], frames(rows))
    assert table.columns == ("method", *(f"T={tasks}: {metric}" for tasks in (3, 10) for metric in COMPARED))
    assert table.column("T=3: AC")[0].text == "0.200 ± 0.141"
    assert table.column("T=10: AC")[0].text == "0.200 (1 of 2)", "fewer seeds than the study has"
    rows = [run("er", 3), {**run("cl2r", 3), "status": "failed"}]
    assert rows_of("table 5", frames(rows))[1] == ["CL²R", "failed", "failed", "failed"]


def test_every_false_accept_rate_has_its_columns() -> None:
    rows = [run("cl2r", 2, **{"AC@0.1": 1.0, "BC@0.0001": 0.25}), run("lifelong_bct", 2)]
    (table,) = item_tables(ITEMS["table 8"], frames(rows))
    assert table.columns == ("T", "method", *(f"{metric}@{rate}" for rate in RATES for metric in COMPARED))
    found = rows_of("table 8", frames(rows))
    assert found == [["2", "ℓ-BCT", *["–"] * 9], ["2", "CL²R", "1.000", *["–"] * 6, "+0.250", "–"]]


def test_the_matrix_of_the_first_of_several_rates_counts() -> None:
    given = frames([run("cl2r", 2)], {"cl2r": [[0.5], [0.6, 0.7]]})
    first = given["matrix"].assign(metric="TAR@0.01")
    given["matrix"] = pd.concat([first, first.assign(metric="TAR@0.1", accuracy=0.9)])
    assert Values.of_frames(given).rows[["initial", "cross_test"]].values.tolist() == [[0.5, 0.6]]
    given["matrix"] = first.assign(metric=None)  # written before there were rates
    assert Values.of_frames(given).rows[["initial", "cross_test"]].values.tolist() == [[0.5, 0.6]]


def test_the_ablation_has_one_table_per_number_of_tasks() -> None:
    found = rows_of("table ablation", frames([run("er", 10, AC=0.1), run("cl2r", 10, AC=0.4)]))
    assert [row[:2] for row in found] == [["ER", "0.100"], ["CL²R", "0.400"]]
    two = item_tables(ITEMS["table ablation"], frames([run("er", 5, AC=0.1), run("er", 10, AC=0.4)]))
    assert [table.column("AC")[0].text for table in two] == ["0.100", "0.400"], "never a mean over numbers of tasks"


def test_bc_over_tasks_is_computed_on_the_report_pairs() -> None:
    cells = {"fan": [[0.5], [0.4, 0.6], [0.3, 0.5, 0.7]]}
    assert rows_of("figure bc", frames([run("fan", 3)], cells)) == [["FAN", "-0.100", "-0.150", "-0.125"]]


def test_memory_has_one_table_per_metric() -> None:
    rows = [run("er", 10, memory=0, AC=0.1), run("er", 10, memory=50, AC=0.3)]
    tables = item_tables(ITEMS["figure memory"], frames(rows))
    assert [table.columns for table in tables] == [("method", "0", "50")] * 3
    assert [cell.text for cell in tables[0].rows[0]] == ["ER", "0.100", "0.300"]


def test_runs_that_differ_in_more_than_their_seed_are_refused() -> None:
    with pytest.raises(InputError, match=r"differ in optim\.epochs"):
        item_tables(ITEMS["table 3"], frames([run("er"), {**run("er"), "optim.epochs": 3}]))


CHECK: dict[str, Any] = {"method": "cl2r", "metric": "AC", "tasks": 2}
CHECK_BC = {**CHECK, "metric": "BC"}
LEAD = {"along": "memory", "start": 0, "end": 9, "direction": "rises"}
FALL = {"along": "tasks", "start": 3, "end": 10, "direction": "falls"}
LOWEST = {"tasks": [2, 3], "metric": "FC", "relation": "<=", "value": 0, "over": "lowest"}
Runs = list[dict[str, Any]]


def runs_of(metric: str, where: dict[str, int] | None = None, **values: list[float]) -> Runs:
    """Return one run per value of every method, with this number of tasks or memory."""
    return [row for method, own in values.items() for row in seeds(method, metric, own, **(where or {}))]


ER, CL2R, HIGH = [0.1, 0.2], [0.5, 0.6], [0.7, 0.8]
START = runs_of("AC", {"memory": 0}, cl2r=CL2R, er=[0.4, 0.5])
KIND_CASES: list[tuple[dict[str, Any], Runs, Runs]] = [  # a check, runs that agree, runs that differ
    (
        {**CHECK, "kind": "value", "value": 0.27, "within": 0.005},
        *(runs_of("AC", cl2r=own) for own in ([0.268, 0.27], [0.29, 0.291])),
    ),
    (
        {**CHECK, "kind": "bound", "relation": "=", "value": 1},
        *(runs_of("AC", cl2r=own) for own in ([1, 1], [0.89, 0.9])),
    ),
    (
        {**CHECK_BC, "kind": "bound", "relation": "<", "value": 0},
        *(runs_of("BC", cl2r=own) for own in ([-0.1, -0.11], [0.1, 0.11])),
    ),
    (
        {**CHECK, "kind": "bound", **LOWEST},
        *(seeds("cl2r", "FC", [0.1, 0.1]) + seeds("cl2r", "FC", own, tasks=3) for own in ([-0.1, -0.11], [0.2, 0.2])),
    ),
    (
        {**CHECK, "kind": "order", "above": ["er", "fan"]},
        *(runs_of("AC", cl2r=CL2R, er=ER, fan=own) for own in ([0.3, 0.39], [0.7, 0.81])),
    ),
    (
        {**CHECK, "kind": "difference", "method": "upper_bound", "minus": "cl2r", "value": 0.11, "within": 0.005},
        *(runs_of("AC", upper_bound=CL2R, cl2r=own) for own in ([0.39, 0.488], [0.3, 0.41])),
    ),
    (
        {**CHECK, "kind": "factor", "of": "bct", "factor": 2},
        *(runs_of("AC", cl2r=CL2R, bct=own) for own in ([0.2, 0.25], [0.3, 0.35])),
    ),
    (
        {"kind": "trend", "method": "fan", "metric": "AC", **FALL},
        *(runs_of("AC", {"tasks": 3}, fan=CL2R) + runs_of("AC", {"tasks": 10}, fan=own) for own in (ER, HIGH)),
    ),
    (
        {**CHECK, "kind": "trend", "minus": "er", **LEAD},
        *(START + runs_of("AC", {"memory": 9}, cl2r=own, er=er) for own, er in ((CL2R, ER), (HIGH, HIGH))),
    ),
    (
        {**CHECK_BC, "kind": "nearest_zero", "others": ["er", "bct"]},
        runs_of("BC", cl2r=[-0.01, 0.01], er=[-0.1, -0.1], bct=[0.2, 0.2]),
        runs_of("BC", cl2r=[-0.1, -0.1], er=[-0.2, -0.2], bct=[0.02, 0.02]),
    ),
]


@pytest.mark.parametrize(("check", "agreeing", "differing"), KIND_CASES, ids=lambda case: str(case)[:40])
def test_every_kind_agrees_and_differs_and_numbers_need_the_budget(
    check: dict[str, Any], agreeing: Runs, differing: Runs
) -> None:
    assert (verdict(agreeing, check), verdict(differing, check)) == (["agrees"], ["differs"])
    number = check["kind"] in ("value", "difference", "factor")
    changed = [Change("optim.epochs", "70", "3")]
    assert verdict(agreeing, check, changed) == ["not comparable at this budget" if number else "agrees"]
    assert verdict(differing, check, changed) == ["not comparable at this budget" if number else "differs"]
    elsewhere = [Change("memory.per_class", "0", "20", ("lwf",))]
    assert verdict(agreeing, check, elsewhere) == ["agrees"], "the statement does not name this method"
    assert verdict([run("hoc")], check, changed) == ["not run"]


ORDER: dict[str, Any] = {**CHECK, "kind": "order", "above": ["er"]}


def test_nothing_is_judged_on_other_data() -> None:
    assert {check["kind"] for check, *_ in KIND_CASES} == set(KINDS), "all kinds are tested"
    check = {**CHECK_BC, "kind": "bound", "tasks": [2, 3], "relation": ">", "value": 0}
    other = [Change("data.name", "cifar100", "icons")]
    assert verdict([run("cl2r", 2, BC=0.1)], check, other) == ["not comparable at this budget", "not run"]


def test_noise_is_paired_by_seed() -> None:
    ahead = runs_of("AC", cl2r=[0.2, 0.5, 0.8])  # both vary by 0.3 over seeds, but CL²R is 0.1 ahead for each of them
    assert verdict([*ahead, *runs_of("AC", er=[0.1, 0.4, 0.7])], ORDER) == ["agrees"]
    other_seeds = [{**row, "seed": row["seed"] + 7} for row in runs_of("AC", er=[0.1, 0.4, 0.7])]
    assert verdict([*ahead, *other_seeds], ORDER) == ["agrees, within noise"]
    assert verdict([*ahead, *runs_of("AC", er=[0.1, 0.8, 0.7])], ORDER) == ["differs, within noise"]


BOUND = {"kind": "bound", "method": "cl2r", "metric": "BC", "tasks": 2, "relation": ">", "value": 0}


@pytest.mark.parametrize(
    ("rows", "check", "expected"),
    [
        ([run("cl2r", AC=0.5), run("er", AC=0.4)], ORDER, "agrees, one seed"),
        ([run("cl2r", AC=0.3), run("er", AC=0.4)], ORDER, "differs, one seed"),
        ([run("cl2r", BC=0.5)], BOUND, "agrees, one seed"),
        (runs_of("BC", cl2r=[-0.1, 0.15]), BOUND, "agrees, within noise"),
        (runs_of("AC", cl2r=[0, 0], er=[0, 0]), ORDER, "differs"),  # equal is not above
    ],
)
def test_remarks_on_noise(rows: Runs, check: dict[str, Any], expected: str) -> None:
    assert verdict(rows, check) == [expected]


def test_one_clear_rival_is_enough_to_differ() -> None:
    check = {**ORDER, "above": ["er", "fan"]}
    rows = runs_of("AC", cl2r=[0.5, 0.5], er=[0.4, 0.7], fan=[0.8, 0.8])
    assert verdict(rows, check) == ["differs"]
    assert verdict(rows[:4], check) == ["differs, within noise"]


def test_methods_and_tasks_that_were_not_run_are_named() -> None:
    two = runs_of("AC", cl2r=CL2R, er=ER)
    assert verdict(two, {**ORDER, "above": ["er", "fan"]}) == ["agrees, of those run"]
    assert verdict(two, {**ORDER, "above": ["fan"]}) == ["not run"]
    assert verdict(two, {**ORDER, "tasks": [2, 5]}) == ["agrees", "not run"]
    failed = [two[0], two[1], {**two[2], "status": "failed"}, {**two[3], "status": "failed"}]
    assert verdict(failed, ORDER) == ["not run"]


def test_a_statement_is_judged_for_every_method_metric_and_number_of_tasks() -> None:
    check = {"kind": "bound", "method": ["er", "cl2r"], "metric": ["AC", "FC"], "tasks": [2, 3]}
    rows = [run(method, tasks, AC=0.5, FC=-1.0) for method in ("er", "cl2r") for tasks in (2, 3)]
    found = verdict(rows, {**check, "relation": ">", "value": 0})
    assert found == ["agrees, one seed", "agrees, one seed", "differs, one seed", "differs, one seed"] * 2


def test_runs_with_the_settings_of_the_preset_have_no_changes() -> None:
    rows = frames([run(method, 7, seed=3) for method in ("er", "lucir", "cl2r")])["runs"]
    assert changes(rows, "icons") == []
    rows = frames([run("cl2r")])["runs"].assign(**{"simplex.scale": "1.0"})  # text and numbers of frames
    rows["memory.per_class"] = rows["memory.per_class"].astype("Int64")
    rows["head.k_max"] = pd.Series([pd.NA], dtype="Int64")
    assert changes(rows, "icons") == []


def test_changes_are_named_with_both_values() -> None:
    rows = [{**run("er"), "optim.epochs": 3}, {**run("lucir"), "optim.epochs": 3, "lucir.margin": 9.0}]
    found = changes(frames(rows)["runs"].assign(**{"optim.milestones": "[2]"}), "icons")
    assert [change for change in found if change.field.startswith("optim")] == [
        Change("optim.epochs", "20", "3"),
        Change("optim.milestones", "[14, 18]", "[2]"),
    ]
    assert [change.methods for change in found if change.field == "lucir.margin"] == [("lucir",)]
    named = frames([{**run("er"), "data.name": "/somewhere/else/mine.npz"}])["runs"]
    assert changes(named, "icons") == [Change("data.name", "icons", "mine.npz")], "without the folder"


def test_every_statement_is_about_its_item() -> None:
    for statement in paper_statements():
        item, check = ITEMS[statement.item], statement.check
        entries = [getattr(check, field, None) or () for field in ("above", "others", "minus", "of")]
        others = {name for entry in entries for name in ([entry] if isinstance(entry, str) else entry)}
        assert {*check.method, *others} <= set(item.methods), statement
        assert set(check.tasks) <= set(item.tasks), statement
        assert set(check.memory) <= set(item.sizes), statement
    assert {statement.item for statement in paper_statements()} == set(ITEMS)
    assert {*names.METHODS, *(name for item in ITEMS.values() for name in item.methods)} <= set(METHODS)


def test_tables_and_figure_2_run_the_implementation_of_bic_that_the_paper_cites() -> None:
    for name in ("table 2", "table 3", "table 4", "table 5", "figure bc"):
        assert "bic_inclearn" in ITEMS[name].methods
        assert "bic" not in ITEMS[name].methods
    checked = [
        [*check.method, *getattr(check, "above", ()), *getattr(check, "others", ())]
        for check in (statement.check for statement in paper_statements())
    ]
    assert any("bic_inclearn" in methods for methods in checked)
    assert not any("bic" in methods for methods in checked)


def test_every_statement_can_be_judged_at_its_item() -> None:
    for name, item in ITEMS.items():
        rates = {f"{metric}@{rate}": 0.1 for metric in COMPARED for rate in RATES}
        places = itertools.product(item.methods, item.tasks, [0], item.sizes or [4])
        rows = [run(*place, **rates) for place in places]
        own = [statement for statement in paper_statements() if statement.item == name]
        found = {row.verdict.partition(",")[0] for row in judge(own, Values.of_frames(frames(rows)))}
        assert found <= {"agrees", "differs"}, name


GOOD = {"item": "table 2", "source": "here", "says": "so", "check": BOUND}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"item": "table 9"}, "statement 1.item"),
        ({"sauce": "x"}, "'sauce'"),
        ({"check": {**BOUND, "kind": "bond"}}, "'bound'"),
        ({"check": {**BOUND, "method": "cl2"}}, "statement 1.check.method.0"),
        ({"check": {**BOUND, "metric": ["BC", "CB"]}}, "statement 1.check.metric.1"),
        ({"check": {**BOUND, "relation": "~"}}, "statement 1.check.relation"),
        ({"check": {**BOUND, "above": ["er"]}}, "'above'"),
        ({"check": {"kind": "bound", "method": "cl2r", "metric": "BC"}}, "statement 1.check.relation"),
        ({"check": {**BOUND, "tasks": 1}}, "statement 1.check.tasks.0"),
    ],
)
def test_a_faulty_statement_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump({"groups": {}, "statements": [{**GOOD, **change}]}))
    message = refusal(lambda: read_statements(path))
    assert message.startswith(f"{path}: ")
    assert fault in message


def test_a_good_statement_is_read(tmp_path: Path) -> None:
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump({"groups": {}, "statements": [GOOD]}))
    assert read_statements(path)[0].check.method == ("cl2r",)
    path.write_text("statements: [")
    with pytest.raises(InputError, match=r"paper\.yaml"):
        read_statements(path)


def test_a_report_has_changes_verdicts_and_their_counts() -> None:
    given = frames([{**run(method, 10, seed), "optim.epochs": 3} for method in ("fixed", "er_fdm") for seed in (0, 1)])
    given["runs"].loc[given["runs"]["method.name"] == "fixed", ["AC", "FC"]] = [0.9, 0.1]
    report = Report.of_frames("table ablation", ITEMS["table ablation"], given, "icons")
    assert Change("optim.epochs", "20", "3") in report.changes
    assert "optim.epochs" in report.text()
    verdicts = {(row.where, row.metric, row.here): row.verdict for row in report.judgements}
    assert verdicts["T=10", "AC", "Fixed 0.900 ± 0.000"] == "not comparable at this budget"
    assert verdicts["T=10", "AC", "Fixed 0.900 ± 0.000; Trainable, FD^M 0.500 ± 0.000"] == "agrees"
    table = verdicts_table(report.judgements)
    assert re.findall(r"\d+", table.notes[0]) == ["2", "0", "2", "10"]
    assert len(table.rows) == len(table.data) == len(report.judgements)
    assert (table.data["statement"] != "").all()
    assert any(cell.text == "" for cell in table.column("statement")), "shown once"
    assert table.data["verdict"].tolist() == [row.verdict for row in report.judgements]


def test_a_document_names_its_origin_and_counts_shared_links_once() -> None:
    given = frames([run("cl2r", 2, seed) for seed in (4, 5)])
    given["tasks"]["key"] = ["a", "b", "a", "c"]
    report = Report.of_frames("table 2", ITEMS["table 2"], given, "icons")
    text = document(report, given, "cl2r study paper --table 2")
    for part in ("`cl2r study paper --table 2`", "- commit: ", "4, 5", "- data: icons", " 6 s "):
        assert part in text
    assert "![" not in text
    assert "![Table 2](a.png)" in document(report, given, "x", ["a.png"])
