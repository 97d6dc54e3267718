"""The kept comparison of all methods on icons: its table and its sentences are what its JSON says.

Means, t-intervals and paired tests are computed here by SciPy; the page was written from the package's own tables.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from scipy import stats

from analysis.names import on_all_data, ordered, title
from cl2r.config.method_texts import METHOD_TEXTS
from cl2r.runtime.environment import ROOT

RESULTS = ROOT / "studies" / "results"
SEEDS = (0, 1, 2)
METRICS = {
    "service accuracy": "service_accuracy",
    "BC": "BC",
    "AC": "AC",
    "re-indexed accuracy": "reindexed_accuracy",
    "service recall": "service_recall",
}
ROUNDED = 0.00052  # three decimals on the page, five in the JSON
Values = npt.NDArray[np.float64]
Rows = dict[str, dict[str, str]]
COSTS: dict[str, tuple[str, Callable[[Values], Any], float, float]] = {
    "stored MB": ("stored_bytes", np.max, 1e6, 0.05),
    "FLOPs per mapped vector": ("adapter_flops", np.max, 1.0, 0.0),
    "gallery vectors rewritten": ("gallery_items_touched", np.max, 1.0, 0.0),
}
"""Column of the page: that of the JSON, over the seeds, in this unit, and how much it may be rounded."""


@cache
def kept() -> dict[str, list[dict[str, Any]]]:
    """Return the runs of every method, in the order of the seeds."""
    runs = json.loads((RESULTS / "methods_icons.json").read_text(encoding="utf-8"))["runs"]
    return {
        name: sorted((run for run in runs if run["method"] == name), key=lambda run: int(run["seed"]))
        for name in ordered(run["method"] for run in runs)
    }


@cache
def page() -> str:
    """Return the page."""
    return (RESULTS / "methods_icons.md").read_text(encoding="utf-8")


@cache
def table() -> Rows:
    """Return the cells of the first table of the page, by row and column."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page().splitlines() if line[:1] == "|"]
    head, rows = lines[0], lines[2 : next(i for i, line in enumerate(lines) if line[0] == "re-index (ER)") + 1]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def values(method: str, column: str) -> Values:
    return np.array([run[column] for run in kept()[method]], dtype=np.float64)


def interval(sample: Values, low: float = -np.inf, high: float = np.inf) -> list[float]:
    """Return mean and 95 % t-interval, the mean alone if all values are equal."""
    if np.ptp(sample) == 0:
        return [float(sample[0])]
    ends = stats.t.interval(0.95, len(sample) - 1, sample.mean(), stats.sem(sample))
    return [float(sample.mean()), *np.clip(ends, low, high).tolist()]


def numbers(text: str) -> list[float]:
    return [float(found.replace("−", "-").replace(",", "")) for found in re.findall(r"[-−+]?\d[\d,]*(?:\.\d+)?", text)]


def agrees(shown: str, expected: list[float]) -> None:
    found = numbers(shown)
    assert len(found) == len(expected), shown
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDED, err_msg=shown)


def test_the_runs_are_those_of_the_study() -> None:
    grid = yaml.safe_load((ROOT / "studies" / "methods.yaml").read_text(encoding="utf-8"))["grid"]
    assert set(grid["method.name"]) == set(kept())
    assert all(tuple(run["seed"] for run in runs) == SEEDS for runs in kept().values())


def test_the_text_of_lifelong_bct_has_its_numbers_and_those_of_er() -> None:
    text = METHOD_TEXTS["lifelong_bct"].deviations[0]
    found = re.search(r"BC over six tasks \(10 epochs, 3 seeds\) is (\S+ \[.*?\]), ER's (\S+ \[.*?\])\.", text)
    assert found
    for shown, name in zip(found.groups(), ("lifelong_bct", "er"), strict=True):
        agrees(shown, interval(values(name, "BC")))


@pytest.mark.parametrize("name", kept())
def test_the_metrics_are_those_of_the_matrix(name: str) -> None:
    for run in kept()[name]:
        c = run["C"]
        last, gaps = len(c) - 1, [[c[t][k] - c[k][k] for k in range(t)] for t in range(len(c))]
        expected = {
            "service_accuracy": np.mean(c[last]),
            "BC": np.mean(gaps[last]),
            "AC": np.mean([gap > 0 for row in gaps for gap in row]),
            "FC": np.mean([c[k][k - 1] - c[k][k] for k in range(1, last + 1)]),
            "mean_accuracy": np.mean([value for row in c for value in row]),
            "reindexed_accuracy": c[last][last],
            "first_accuracy": c[0][0],
        }
        for column, value in expected.items():
            assert run[column] == pytest.approx(value, abs=2e-5), column


@pytest.mark.parametrize("name", kept())
def test_a_row_of_the_page_is_what_the_runs_say(name: str) -> None:
    row = table()[title(name)]
    for column, metric in METRICS.items():
        agrees(row[column], interval(values(name, metric), *((0, 1) if metric != "BC" else ())))
    for column, (cost, over_seeds, unit, rounding) in COSTS.items():
        (shown,) = numbers(row[column])
        assert shown == pytest.approx(over_seeds(values(name, cost)) / unit, abs=rounding + 1e-9), column


def test_the_reference_rows_are_the_first_and_the_last_model_of_er() -> None:
    first, last = table()["never upgrade (ER)"], table()["re-index (ER)"]
    agrees(first["service accuracy"], interval(values("er", "first_accuracy")))
    agrees(first["service recall"], interval(values("er", "first_recall")))
    agrees(last["service accuracy"], interval(values("er", "reindexed_accuracy")))


def test_the_page_has_the_rows_of_the_runs_and_no_others() -> None:
    references = ["never upgrade (ER)", "re-index (ER)"]
    assert list(table()) == [*map(title, kept()), *references]


@pytest.mark.parametrize("column", METRICS)
def test_best_and_clearly_worse_are_marked(column: str) -> None:
    own = [name for name in kept() if not on_all_data(name)]
    sample = {name: values(name, METRICS[column]) for name in own}
    best = max(own, key=lambda name: float(sample[name].mean()))
    bold = {name for name in kept() if table()[title(name)][column].startswith("**")}
    worse = {name for name in kept() if table()[title(name)][column].endswith("▾")}
    assert bold == {best}
    found = {name for name in own if stats.ttest_rel(sample[best], sample[name]).pvalue < 0.05}
    assert worse == found


def told(pattern: str) -> list[list[float]]:
    """Return the numbers of every group of a pattern that the page must hold, whatever its line breaks."""
    found = re.search(re.sub(r"\s+", r"\\s+", pattern), page())
    assert found, f"the page does not say: {pattern}"
    return [numbers(group) for group in found.groups()]


def claim(pattern: str, *expected: list[float], atol: float = ROUNDED) -> None:
    for shown, value in zip(told(pattern), expected, strict=True):
        np.testing.assert_allclose(shown, value, rtol=0, atol=atol, err_msg=pattern)


def test_what_is_said_of_the_best_method() -> None:
    wa, bic = (values(name, "service_accuracy") for name in ("wa", "bic"))
    claim(
        r"Re-indexed, ER reaches ([\d.]+); never upgrading it ([\d.]+)\.",
        [float(values("er", "reindexed_accuracy").mean())],
        [float(values("er", "first_accuracy").mean())],
    )
    claim(
        r"WA serves best without re-indexing, ([^,]+, [^,]+), (\+[^\]]+\]) over its own first model;",
        interval(wa),
        interval(wa - values("wa", "first_accuracy")),
    )
    claim(r"is not distinguishable from BiC \(([^)]+)\)", interval(wa - bic))
    own = sorted(
        (name for name in kept() if not on_all_data(name)), key=lambda name: -values(name, "service_accuracy").mean()
    )
    assert own[:2] == ["wa", "bic"]
    claim(r"the best of (\d+)", [len(own)])
    behind = float((wa - values("cl2r", "service_accuracy")).mean())
    claim(
        r"number (\d+) of (\d+) by service accuracy, ([\d.]+) behind WA", [own.index("cl2r") + 1], [len(own)], [behind]
    )


def test_what_is_said_of_drift() -> None:
    compared = [name for name in kept() if "+" not in name and name not in ("fan", "der_trunc")]
    drift, bc = ([float(values(name, column).mean()) for name in compared] for column in ("drift", "BC"))
    claim(r"the tasks \([^)]+\) is (0\.\d\d) over the (\d+)\s", [stats.spearmanr(drift, bc)[0]], [16], atol=0.005)
    assert len(compared) == 16
    at = dict(zip(compared, drift, strict=True))
    claim(r"drift ([\d.]+) and ([\d.]+)\)", [at["lifelong_bct"]], [at["er"]], atol=0.0051)
    claim(r"φ moves \(drift ([\d.]+), ([\d.]+)\); UB", [at["bct"]], [at["cores"]], atol=0.0051)
    claim(r"holds it at ([\d.]+)\.", [at["upper_bound"]], atol=0.0051)


def test_what_is_said_of_groups_of_methods() -> None:
    bc = {name: float(values(name, "BC").mean()) for name in kept()}
    holding = [bc[name] for name in ("lwf", "lwf_er", "icarl", "lucir", "bic", "wa", "podnet", "foster")]
    others = [bc[name] for name in ("er", "lifelong_bct", "cl2r")]
    claim(
        r"have a mean BC between ([−+\d.]+) and ([−+\d.]+), `bic_inclearn` ([−\d.]+\d); ER,"
        r" ℓ-BCT and CL²R are between ([−\d.]+) and ([−\d.]+\d)\.",
        *([value] for value in (min(holding), max(holding), bc["bic_inclearn"], max(others), min(others))),
    )
    claim(
        r"learns\*\*: service accuracy ([\d.]+), BC ([−\d.]+\d)\.",
        [float(values("icarl", "service_accuracy").mean())],
        [bc["icarl"]],
    )
    claim(r"almost ER\*\* \(BC ([−\d.]+) and ([−\d.]+),", [bc["lifelong_bct"]], [bc["er"]])


def test_what_is_said_of_adapters() -> None:
    bc = {name: values(name, "BC") for name in kept()}
    mean = {name: float(sample.mean()) for name, sample in bc.items()}
    claim(
        r"takes CL²R's BC from ([−\d.]+) to ([−\d.]+) \(`procrustes`\) and ER's from ([−\d.]+) to ([−\d.]+)",
        *([mean[name]] for name in ("cl2r", "cl2r+procrustes", "er", "er+orthogonal")),
    )
    gaps = [
        interval(bc[f"{base}+{adapter}"] - bc[f"{base}+aligner"])
        for base in ("er", "cl2r")
        for adapter in ("low_rank", "residual_mlp")
    ]
    assert all(low < 0 < high for _, low, high in gaps), "not distinguishable with three seeds"
    one = r"([-−+\d.]+ \[[^]]+\])"
    claim(rf"\(BC {one} and {one} on ER, {one} and {one} on CL²R\)", *gaps)
    claim(r"`slerp` is best \((\S+) and ([^)]+)\)", [mean["er+slerp"]], [mean["cl2r+slerp"]])
    for base in ("er", "cl2r"):
        mapped = {name: mean[name] for name in kept() if name.startswith(f"{base}+")}
        assert max(mapped, key=mapped.__getitem__) == f"{base}+slerp"
        assert min(mapped, key=mapped.__getitem__) == f"{base}+query_drift"
        assert mapped[f"{base}+query_drift"] < mean[base] < sorted(mapped.values())[1]


def test_what_is_said_of_recall() -> None:
    recall = {name: float(values(name, "service_recall").mean()) for name in kept()}
    never = float(values("er", "first_recall").mean())
    better = sorted((name for name in recall if recall[name] > never), key=lambda name: -recall[name])
    assert better[:4] == ["der_trunc", "wa", "bic", "icarl"]
    assert len(better) == 12
    claim(
        r"twelve rows have a higher mean than never upgrading ER \(([\d.]+)\), DER, WA, BiC and iCaRL first;"
        r" ER \(([\d.]+)\), ℓ-BCT \(([\d.]+)\) and CL²R \(([\d.]+)\) serve worse",
        [never],
        *([recall[name]] for name in ("er", "lifelong_bct", "cl2r")),
    )
