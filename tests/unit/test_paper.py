"""The paper's tables, statements and verdicts, from frames written here; nothing is trained."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from paper_frames import frames, run, seeds, verdict

from analysis.formats import render
from analysis.names import TITLES, ordered
from analysis.paper.budget import Change, changes
from analysis.paper.items import ITEMS
from analysis.paper.statements import KINDS, paper_statements, read_statements
from analysis.paper.tables import item_tables
from analysis.paper.values import Values, bc_curves
from analysis.paper.verdicts import judge
from cl2r.errors import InputError
from cl2r.methods.catalog import METHODS

# Layout


def lines_of(name: str, given: dict[str, pd.DataFrame]) -> list[str]:
    """The tables of an item in Markdown, without what stands above and below them."""
    text = render(item_tables(ITEMS[name], given), "markdown")
    return [line for line in text.splitlines() if line.startswith("|")]


def test_two_tasks_begin_with_the_first_model() -> None:
    cells = {"er": [[0.6], [0.5, 0.8]], "cl2r": [[0.7], [0.75, 0.9]], "bct": [[0.8], [0.9, 0.95]]}
    rows = [run("bct", AC=1.0, BC=0.1), run("cl2r", AC=1.0, BC=0.05, FC=-0.15), run("er", AC=0.0, BC=-0.1, FC=-0.3)]
    lines = lines_of("table 2", frames(rows, cells))
    assert lines[0].startswith("| method | self-test C[2,2] | cross-test C[2,1] | ECC | BC | FC |")
    assert lines[2].startswith("| Initial task | 0.700 |")
    assert lines[3] == "| ER | 0.800 | 0.500 | no | -0.100 | -0.300 | 0.600 |"
    assert lines[4] == "| CL²R | 0.900 | 0.750 | yes | **+0.050** | **-0.150** | 0.700 |"
    assert lines[5].startswith("| *all data at every task:* |")
    assert lines[6].startswith("| BCT | 0.950 | 0.900 | yes | +0.100 |"), "keeps all data: not compared"
    assert len(lines) == 7


def test_the_ecc_of_several_seeds() -> None:
    lines = lines_of("table 2", frames([*seeds("er", "AC", [0, 1, 1]), *seeds("cl2r", "AC", [1, 1, 1])]))
    assert "| 2 of 3 |" in lines[3]
    assert "| yes |" in lines[4]


def test_task_counts_have_a_group_of_columns_each() -> None:
    rows = [*seeds("er", "AC", [0.1, 0.3], tasks=3), run("er", 10, AC=0.2), run("cl2r", 3), run("cl2r", 10)]
    rows += [{**run("cl2r", 10, seed=1), "status": "failed"}]
    lines = lines_of("table 3", frames(rows))
    assert lines[0] == "| method | T=3: AC | T=3: BC | T=3: FC | T=10: AC | T=10: BC | T=10: FC |"
    assert lines[2].startswith("| ER | 0.200 ± 0.141 | 0.000 ± 0.000 |")
    assert "0.200 (1 of 2)" in lines[2], "fewer seeds than the study has"
    assert len(lines) == 4


def test_a_cell_whose_runs_all_failed_says_so() -> None:
    rows = [run("er", 3), {**run("cl2r", 3), "status": "failed"}]
    assert lines_of("table 5", frames(rows))[3] == "| CL²R | failed | failed | failed |"


def test_rates_have_a_group_of_columns_each() -> None:
    rows = [run("cl2r", 2, **{"AC@0.1": 1.0, "BC@0.0001": 0.25}), run("lifelong_bct", 2)]
    lines = lines_of("table 8", frames(rows))
    assert lines[0].startswith("| T | method | AC@0.1 | BC@0.1 | FC@0.1 | AC@0.01 |")
    assert lines[2].startswith("| 2 | ℓ-BCT | – |")
    assert lines[3] == "| 2 | CL²R | 1.000 | – | – | – | – | – | – | +0.250 | – |"


def test_of_several_rates_the_matrix_of_the_first_counts() -> None:
    given = frames([run("cl2r", 2)], {"cl2r": [[0.5], [0.6, 0.7]]})
    first = given["matrix"].assign(metric="TAR@0.01")
    given["matrix"] = pd.concat([first, first.assign(metric="TAR@0.1", accuracy=0.9)])
    assert Values.of_frames(given).rows[["initial", "cross_test"]].values.tolist() == [[0.5, 0.6]]
    given["matrix"] = first.assign(metric=None)  # written before there were rates
    assert Values.of_frames(given).rows[["initial", "cross_test"]].values.tolist() == [[0.5, 0.6]]


def test_the_ablation_by_number_of_tasks() -> None:
    one = lines_of("table ablation", frames([run("er", 10, AC=0.1), run("cl2r", 10, AC=0.4)]))
    assert [line.split(" | ")[:4] for line in one[2:]] == [
        ["| Trainable", "none", "1", "0.100"],
        ["| Fixed", "FD^M", "1", "**0.400**"],
    ]
    two = item_tables(ITEMS["table ablation"], frames([run("er", 5, AC=0.1), run("er", 10, AC=0.4)]))
    assert [table.title for table in two] == ["Ablation, T=5", "Ablation, T=10"], "never a mean over numbers of tasks"
    assert [table.column("AC")[0].text for table in two] == ["0.100", "0.400"]


def test_bc_over_the_tasks_is_taken_from_the_report_pairs() -> None:
    cells = {"fan": [[0.5], [0.4, 0.6], [0.3, 0.5, 0.7]]}
    given = frames([run("fan", 3)], cells)
    assert bc_curves(given)[["t", "BC"]].round(9).values.tolist() == [[2, -0.1], [3, -0.15]]
    assert lines_of("figure bc", given)[2] == "| FAN | -0.100 | -0.150 | -0.125 |"


def test_memory_has_a_table_a_metric() -> None:
    rows = [run("er", 10, memory=0, AC=0.1), run("er", 10, memory=50, AC=0.3)]
    text = render(item_tables(ITEMS["figure memory"], frames(rows)), "markdown")
    head = "**AC by images a class in memory, T=10**\n\n| method | 0 | 50 |\n|---|---:|---:|\n"
    assert text.startswith(head + "| ER | 0.100 | 0.300 |\n\n**BC by")


def test_methods_come_in_the_order_of_the_paper() -> None:
    assert ordered(["upper_bound", "hoc", "cl2r", "er", "er"]) == ["er", "cl2r", "hoc", "upper_bound"]


def test_runs_that_differ_in_more_than_their_seed_are_refused() -> None:
    with pytest.raises(InputError, match=r"differ in optim\.epochs"):
        item_tables(ITEMS["table 3"], frames([run("er"), {**run("er"), "optim.epochs": 3}]))


# Kinds of statements: runs that agree, runs that differ

CHECK: dict[str, Any] = {"method": "cl2r", "metric": "AC", "tasks": 2}
KIND_CASES: list[tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [
    (
        {**CHECK, "kind": "value", "value": 0.27, "within": 0.005},
        seeds("cl2r", "AC", [0.268, 0.27]),
        seeds("cl2r", "AC", [0.29, 0.291]),
    ),
    (
        {**CHECK, "kind": "bound", "relation": "=", "value": 1},
        seeds("cl2r", "AC", [1, 1]),
        seeds("cl2r", "AC", [0.8, 0.9]),
    ),
    (
        {**CHECK, "kind": "bound", "metric": "BC", "relation": "<", "value": 0},
        seeds("cl2r", "BC", [-0.1, -0.11]),
        seeds("cl2r", "BC", [0.1, 0.11]),
    ),
    (
        {**CHECK, "kind": "bound", "tasks": [2, 3], "metric": "FC", "relation": "<=", "value": 0, "over": "lowest"},
        [*seeds("cl2r", "FC", [0.1, 0.1]), *seeds("cl2r", "FC", [-0.1, -0.11], tasks=3)],
        [*seeds("cl2r", "FC", [0.1, 0.1]), *seeds("cl2r", "FC", [0.2, 0.2], tasks=3)],
    ),
    (
        {**CHECK, "kind": "order", "above": ["er", "fan"]},
        [*seeds("cl2r", "AC", [0.5, 0.6]), *seeds("er", "AC", [0.1, 0.2]), *seeds("fan", "AC", [0.3, 0.39])],
        [*seeds("cl2r", "AC", [0.5, 0.6]), *seeds("er", "AC", [0.1, 0.2]), *seeds("fan", "AC", [0.7, 0.81])],
    ),
    (
        {**CHECK, "kind": "difference", "method": "upper_bound", "minus": "cl2r", "value": 0.11, "within": 0.005},
        [*seeds("upper_bound", "AC", [0.5, 0.6]), *seeds("cl2r", "AC", [0.39, 0.488])],
        [*seeds("upper_bound", "AC", [0.5, 0.6]), *seeds("cl2r", "AC", [0.3, 0.41])],
    ),
    (
        {**CHECK, "kind": "factor", "of": "bct", "factor": 2},
        [*seeds("cl2r", "AC", [0.5, 0.6]), *seeds("bct", "AC", [0.2, 0.24])],
        [*seeds("cl2r", "AC", [0.5, 0.6]), *seeds("bct", "AC", [0.3, 0.36])],
    ),
    (
        {
            "kind": "trend",
            "method": "fan",
            "metric": "AC",
            "along": "tasks",
            "start": 3,
            "end": 10,
            "direction": "falls",
        },
        [*seeds("fan", "AC", [0.5, 0.6], tasks=3), *seeds("fan", "AC", [0.1, 0.2], tasks=10)],
        [*seeds("fan", "AC", [0.5, 0.6], tasks=3), *seeds("fan", "AC", [0.7, 0.8], tasks=10)],
    ),
    (
        {
            **CHECK,
            **{"kind": "trend", "minus": "er", "along": "memory", "start": 0, "end": 9, "direction": "rises"},
        },
        [
            *seeds("cl2r", "AC", [0.5, 0.6], memory=0),
            *seeds("er", "AC", [0.4, 0.5], memory=0),
            *seeds("cl2r", "AC", [0.5, 0.6], memory=9),
            *seeds("er", "AC", [0.1, 0.2], memory=9),
        ],
        [
            *seeds("cl2r", "AC", [0.5, 0.6], memory=0),
            *seeds("er", "AC", [0.4, 0.5], memory=0),
            *seeds("cl2r", "AC", [0.7, 0.8], memory=9),
            *seeds("er", "AC", [0.7, 0.8], memory=9),
        ],
    ),
    (
        {**CHECK, "kind": "nearest_zero", "metric": "BC", "others": ["er", "bct"]},
        [*seeds("cl2r", "BC", [-0.01, 0.01]), *seeds("er", "BC", [-0.1, -0.1]), *seeds("bct", "BC", [0.2, 0.2])],
        [*seeds("cl2r", "BC", [-0.1, -0.1]), *seeds("er", "BC", [-0.2, -0.2]), *seeds("bct", "BC", [0.02, 0.02])],
    ),
]


@pytest.mark.parametrize(("check", "agreeing", "differing"), KIND_CASES, ids=lambda case: str(case)[:40])
def test_every_kind_agrees_and_differs(
    check: dict[str, Any], agreeing: list[dict[str, Any]], differing: list[dict[str, Any]]
) -> None:
    assert verdict(agreeing, check) == ["agrees"]
    assert verdict(differing, check) == ["differs"]


def test_all_kinds_are_tried() -> None:
    assert {check["kind"] for check, *_ in KIND_CASES} == set(KINDS)


# Rules of the verdicts


@pytest.mark.parametrize(("check", "agreeing", "differing"), KIND_CASES, ids=lambda case: str(case)[:40])
def test_numbers_need_the_budget_of_the_preset(
    check: dict[str, Any], agreeing: list[dict[str, Any]], differing: list[dict[str, Any]]
) -> None:
    number = check["kind"] in ("value", "difference", "factor")
    changed = [Change("optim.epochs", "70", "3")]
    assert verdict(agreeing, check, changed) == ["not comparable at this budget" if number else "agrees"]
    assert verdict(differing, check, changed) == ["not comparable at this budget" if number else "differs"]
    elsewhere = [Change("memory.per_class", "0", "20", ("lwf",))]
    assert verdict(agreeing, check, elsewhere) == ["agrees"], "a method that the statement does not name"
    assert verdict([run("hoc")], check, changed) == ["not run"]


ORDER: dict[str, Any] = {**CHECK, "kind": "order", "above": ["er"]}


def test_nothing_is_judged_on_other_data() -> None:
    check = {"kind": "bound", "method": "cl2r", "metric": "BC", "tasks": [2, 3], "relation": ">", "value": 0}
    other = [Change("data.name", "cifar100", "icons")]
    assert verdict([run("cl2r", 2, BC=0.1)], check, other) == ["not comparable at this budget", "not run"]


def test_noise_is_paired_by_seed() -> None:
    """Both vary by 0.3 over seeds, but CL²R is 0.1 ahead with each of them."""
    ahead = seeds("cl2r", "AC", [0.2, 0.5, 0.8])
    assert verdict([*ahead, *seeds("er", "AC", [0.1, 0.4, 0.7])], ORDER) == ["agrees"]
    other_seeds = [{**row, "seed": row["seed"] + 7} for row in seeds("er", "AC", [0.1, 0.4, 0.7])]
    assert verdict([*ahead, *other_seeds], ORDER) == ["agrees, within noise"]
    assert verdict([*ahead, *seeds("er", "AC", [0.1, 0.8, 0.7])], ORDER) == ["differs, within noise"]


def test_one_seed_knows_no_noise() -> None:
    assert verdict([run("cl2r", AC=0.5), run("er", AC=0.4)], ORDER) == ["agrees, one seed"]
    assert verdict([run("cl2r", AC=0.3), run("er", AC=0.4)], ORDER) == ["differs, one seed"]
    bound = {**CHECK, "kind": "bound", "relation": ">", "value": 0}
    assert verdict([run("cl2r", AC=0.5)], bound) == ["agrees, one seed"]


def test_a_sign_within_noise() -> None:
    bound = {**CHECK, "kind": "bound", "metric": "BC", "relation": ">", "value": 0}
    assert verdict(seeds("cl2r", "BC", [-0.1, 0.15]), bound) == ["agrees, within noise"]


def test_one_clear_rival_is_enough_to_differ() -> None:
    check = {**ORDER, "above": ["er", "fan"]}
    rows = [*seeds("cl2r", "AC", [0.5, 0.5]), *seeds("er", "AC", [0.4, 0.7]), *seeds("fan", "AC", [0.8, 0.8])]
    assert verdict(rows, check) == ["differs"]
    assert verdict(rows[:4], check) == ["differs, within noise"]


def test_equal_is_not_above() -> None:
    assert verdict([*seeds("cl2r", "AC", [0, 0]), *seeds("er", "AC", [0, 0])], ORDER) == ["differs"]


def test_what_was_not_run() -> None:
    two = [*seeds("cl2r", "AC", [0.5, 0.6]), *seeds("er", "AC", [0.1, 0.2])]
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


# The budget


def test_runs_by_the_preset_change_nothing() -> None:
    assert changes(frames([run(method, 7, seed=3) for method in ("er", "lucir", "cl2r")])["runs"], "icons") == []


def test_changes_are_named_with_both_values() -> None:
    rows = [{**run("er"), "optim.epochs": 3}, {**run("lucir"), "optim.epochs": 3, "lucir.margin": 9.0}]
    found = changes(frames(rows)["runs"].assign(**{"optim.milestones": "[2]"}), "icons")
    assert [str(change) for change in found if change.field.startswith("optim")] == [
        "optim.epochs: 20 -> 3",
        "optim.milestones: [14, 18] -> [2]",
    ]
    assert [change.methods for change in found if change.field == "lucir.margin"] == [("lucir",)]


def test_a_path_is_shown_by_its_name_only() -> None:
    rows = frames([{**run("er"), "data.name": "/somewhere/else/mine.npz"}])["runs"]
    assert list(map(str, changes(rows, "icons"))) == ["data.name: icons -> mine.npz"]


def test_text_and_numbers_of_frames_are_compared_by_value() -> None:
    rows = frames([run("cl2r")])["runs"].assign(**{"simplex.scale": "1.0"})
    rows["memory.per_class"] = rows["memory.per_class"].astype("Int64")
    rows["head.k_max"] = pd.Series([pd.NA], dtype="Int64")
    assert changes(rows, "icons") == []


# The statements of the paper


def test_every_statement_is_about_its_item() -> None:
    for statement in paper_statements():
        item, check = ITEMS[statement.item], statement.check
        others = {name for field in ("above", "others", "minus", "of") for name in _names(check, field)}
        assert {*check.method, *others} <= set(item.methods), statement
        assert set(check.tasks) <= set(item.tasks), statement
        assert set(check.memory) <= set(item.sizes), statement
    assert {statement.item for statement in paper_statements()} == set(ITEMS)


def _names(check: object, field: str) -> list[str]:
    value = getattr(check, field, None) or []
    return [value] if isinstance(value, str) else list(value)


def test_every_method_of_an_item_is_known() -> None:
    assert {name for item in ITEMS.values() for name in item.methods} <= set(METHODS)
    assert set(TITLES) <= set(METHODS)


def test_every_statement_can_be_judged_at_its_item() -> None:
    for name, item in ITEMS.items():
        sizes = item.sizes or (4,)
        rows = [
            run(
                method,
                tasks,
                0,
                size,
                **{f"{metric}@{rate}": 0.1 for metric in ("AC", "BC", "FC") for rate in RATES},
            )
            for method in item.methods
            for tasks in item.tasks
            for size in sizes
        ]
        own = [statement for statement in paper_statements() if statement.item == name]
        found = {row.verdict.partition(",")[0] for row in judge(own, Values.of_frames(frames(rows)))}
        assert found <= {"agrees", "differs"}, name


RATES = ("0.1", "0.01", "0.0001")
BOUND = {"kind": "bound", "method": "cl2r", "metric": "BC", "tasks": 2, "relation": ">", "value": 0}
GOOD = {"item": "table 2", "source": "here", "says": "so", "check": BOUND}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"item": "table 9"}, "statement 1.item: no item 'table 9'"),
        ({"sauce": "x"}, "statement 1: unknown key 'sauce'"),
        ({"check": {**BOUND, "kind": "bond"}}, "statement 1.check: no kind 'bond' (did you mean 'bound'?)"),
        ({"check": {**BOUND, "method": "cl2"}}, "statement 1.check.method.0: no method 'cl2' (did you mean 'cl2r'?)"),
        ({"check": {**BOUND, "metric": ["BC", "CB"]}}, "statement 1.check.metric.1: no metric 'CB'"),
        ({"check": {**BOUND, "relation": "~"}}, "statement 1.check.relation: "),
        ({"check": {**BOUND, "above": ["er"]}}, "statement 1.check: unknown key 'above'"),
        ({"check": {"kind": "bound", "method": "cl2r", "metric": "BC"}}, "statement 1.check.relation: Field required"),
        ({"check": {**BOUND, "tasks": 1}}, "statement 1.check.tasks.0: "),
    ],
)
def test_a_faulty_statement_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump({"groups": {}, "statements": [{**GOOD, **change}]}))
    with pytest.raises(InputError) as caught:
        read_statements(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert fault in message
    assert "\n" not in message


def test_a_good_statement_is_read(tmp_path: Path) -> None:
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump({"groups": {}, "statements": [GOOD]}))
    assert read_statements(path)[0].check.method == ("cl2r",)
    path.write_text("statements: [")
    with pytest.raises(InputError, match="not a readable YAML file"):
        read_statements(path)
