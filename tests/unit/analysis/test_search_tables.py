"""Tables of the search study, from frames made by hand."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from analysis.tables import search


def made(metric: str = "mAP") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return cells and summaries of two methods, three seeds and two tasks."""
    cells, summaries = [], []
    for method, shift in (("er", 0.0), ("cl2r", 0.1)):
        for seed, noise in enumerate((0.0, 0.02, 0.04)):
            head = {"run": f"{method}{seed}", "method": method, "seed": seed, "metric": metric}
            values = {(1, 1): 0.5, (2, 1): 0.4 + shift + noise, (2, 2): 0.7}
            cells += [{**head, "t": t, "k": k, "value": value} for (t, k), value in values.items()]
            bc = values[2, 1] - 0.5
            for name, value in {"AC": float(bc > 0), "BC": bc, "FC": values[2, 1] - 0.7}.items():
                summaries.append({**head, "summary": name, "value": value, "low": value - 0.01, "high": value + 0.01})
    return pd.DataFrame(cells), pd.DataFrame(summaries)


def test_search_values_are_means_over_seeds() -> None:
    table = search.found_table(search.run_values(*made()))
    assert table.columns == ("metric", "method", "C[1,1]", "C[2,1]", "C[2,2]", "AC", "BC", "FC")
    assert ["|".join(cell.text for cell in row) for row in table.rows] == [
        "mAP|ER|0.500 ± 0.000|0.420 ± 0.020|0.700 ± 0.000|0.000 ± 0.000|-0.080 ± 0.020|-0.280 ± 0.020",
        "mAP|CL²R|0.500 ± 0.000|0.520 ± 0.020|0.700 ± 0.000|0.667 ± 0.577|+0.020 ± 0.020|-0.180 ± 0.020",
    ]


def test_intervals_over_seeds_and_paired_differences() -> None:
    cells, summaries = (pd.concat(parts) for parts in zip(made(), made("recall@1"), strict=True))
    table = search.upgrade_table(search.run_values(cells, summaries))
    rows = {(row[0].text, row[1].text): row for row in table.rows}
    half = 4.302653 * 0.02 / np.sqrt(3)
    assert rows["mAP", "CL²R"][2].text == f"+0.020 [{0.02 - half:+.3f}, {0.02 + half:+.3f}]"
    assert rows["mAP", "ER"][4].text == f"0.420 [{0.42 - half:.3f}, {0.42 + half:.3f}]", (
        "no sign because it is no difference"
    )
    assert rows["recall@1", "CL²R − ER"][2].text == "+0.100", "the noise of a seed cancels"
    assert list(rows) == [(m, name) for m in ("recall@1", "mAP") for name in ("ER", "CL²R", "CL²R − ER")]


def test_intervals_over_queries_run_by_run() -> None:
    summaries = pd.concat([made()[1], made("recall@1")[1]])
    table = search.queries_table(summaries)
    assert table.columns == ("method", "seed", "BC by recall@1", "BC by mAP", "FC by recall@1", "FC by mAP")
    assert [cell.text for cell in table.rows[3]][:3] == ["CL²R", "0", "0.000 [-0.010, +0.010]"]
    assert len(table.rows) == 6


def made_backfill() -> pd.DataFrame:
    """Return backfill curves of two runs: powers of the fraction."""
    rows = []
    for seed in (0, 1):
        for order, draw, power in (("random", 0, 0.9), ("random", 1, 1.1), ("worst_first", 0, 2.0), ("oracle", 0, 0.5)):
            for step in range(11):
                head = {"run": f"er{seed}", "method": "er", "seed": seed, "order": order, "draw": draw}
                for metric in ("recall@1", "mAP"):
                    value = 0.4 + 0.1 * seed + 0.3 * (step / 10) ** power
                    rows.append({**head, "fraction": step / 10, "metric": metric, "value": value})
    return pd.DataFrame(rows)


def test_the_mean_height_of_a_curve() -> None:
    areas = search.backfill_areas(made_backfill()).set_index(["metric", "order", "run"])
    steps = np.linspace(0, 1, 11)

    def height(power: float) -> float:
        curve = 0.4 + 0.3 * steps**power
        return float(sum((a + b) / 2 for a, b in pairwise(curve)) / 10)

    draws = [height(0.9), height(1.1)]
    assert areas.loc[("mAP", "random", "er0"), "area"] == pytest.approx(np.mean(draws))
    assert areas.loc[("mAP", "random", "er0"), "spread"] == pytest.approx(np.std(draws, ddof=1))
    assert areas.loc[("mAP", "worst_first", "er1"), "gain"] == pytest.approx(height(2.0) - np.mean(draws))


def test_backfill_heights_gains_and_fractions() -> None:
    start = [{"run": f"er{seed}", "metric": m, "t": 1, "k": 1} for seed in (0, 1) for m in ("recall@1", "mAP")]
    retrieval = pd.DataFrame([{**row, "value": 0.55 + 0.1 * (row["run"] == "er1")} for row in start])
    table = search.backfill_table(made_backfill(), pd.concat([retrieval, retrieval.assign(t=5, value=9.0)]))
    rows = {(row[0].text, row[2].text): [cell.text for cell in row] for row in table.rows}
    assert rows["mAP", "oracle"][3:10] == [f"{0.45 + 0.3 * x**0.5:.3f}" for x in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1)]
    assert rows["mAP", "random"][-2] == "–"
    assert rows["recall@1", "worst first"][-2].startswith("-0.0"), "below random"
    assert rows["mAP", "oracle"][-1] == "25", "half of the way up, because the root of 1/4 is 1/2"
    assert rows["mAP", "random"][-1] == "50"


def test_the_fraction_at_which_a_curve_reaches_a_height() -> None:
    curve = pd.Series([0.2, 0.4, 0.3, 0.8], [0.0, 0.5, 0.6, 1.0])
    assert search.fraction_to(0.3, curve) == pytest.approx(0.25), "the first time"
    assert search.fraction_to(0.55, curve) == pytest.approx(0.8)
    assert search.fraction_to(0.1, curve) == 0
    assert search.fraction_to(0.8, curve) == 1
    assert np.isnan(search.fraction_to(0.9, curve))
