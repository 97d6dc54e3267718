"""The page on which method when shows what the runs kept beside it say."""

import re

import numpy as np
import pytest
from scipy import stats

from analysis import evidence
from analysis.kept import load_kept
from analysis.study import Study


@pytest.fixture(scope="module")
def study() -> Study:
    return load_kept(evidence.RUNS)


def test_the_page_has_the_tables_of_its_runs(study: Study) -> None:
    page = evidence.PAGE.read_text(encoding="utf-8")
    assert evidence.with_tables(page, study) == page
    assert set(re.findall(r"<!-- end of (.*) -->", page)) == set(evidence.TABLES)


def test_a_paired_difference_is_that_of_scipy(study: Study) -> None:
    runs = study.runs[study.runs["variant"] == "equal_centred"].set_index("seed")
    one, other = (runs.loc[runs["method.name"] == name, "service_accuracy"] for name in ("er_fdm", "er"))
    low, high = stats.ttest_rel(one.sort_index(), other.sort_index()).confidence_interval()
    found = evidence.difference(
        *(evidence.of_variant(study, "equal_centred", m) for m in ("er_fdm", "er")), "service_accuracy"
    )
    np.testing.assert_allclose([found.low, found.high], [low, high])


def test_a_cut_chain_has_the_metrics_of_its_first_tasks(study: Study) -> None:
    values = evidence.first_tasks(study, "cl2r", 14, centred=True, tasks=3)
    (run,) = evidence.of_variant(study, "equal_centred", "cl2r").loc[[0], "run"]
    cells = study.matrix[(study.matrix["run"] == run) & (study.matrix["pairs"] == "report")].set_index(["t", "k"])
    c = cells["accuracy"]
    assert values.loc[0, "BC"] == pytest.approx((c[3, 1] - c[1, 1] + c[3, 2] - c[2, 2]) / 2)
    assert values.loc[0, "service_accuracy"] == pytest.approx((c[3, 1] + c[3, 2] + c[3, 3]) / 3)


@pytest.mark.parametrize("name", evidence.PLOTS)
def test_plots_have_a_line_per_method(name: str, study: Study) -> None:
    figure = evidence.PLOTS[name](study)
    for panel in figure.axes:
        labels = {line.get_label() for line in panel.get_lines()}
        assert {"ER", "Trainable, FD^M", "Fixed", "CL²R"} <= labels
