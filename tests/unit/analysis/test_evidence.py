"""The page on which method when shows what the runs kept beside it say."""

import dataclasses
import itertools
import re
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy import stats

from analysis import evidence
from analysis.evidence_runs import CELLS, LONG, REGIMES, of_variant
from analysis.kept import load_kept
from analysis.paper.statements import paper_statements
from analysis.plots.evidence import PLOTS, plot_lengths
from analysis.study import Study
from cl2r.errors import InputError
from cl2r.metrics import BC, SERVICE_ACCURACY


@pytest.fixture(scope="module")
def study() -> Study:
    return load_kept(evidence.RUNS)


def test_the_page_has_the_tables_of_its_runs(study: Study) -> None:
    page = evidence.PAGE.read_text(encoding="utf-8")
    assert evidence.with_tables(page, study) == page
    assert set(re.findall(r"<!-- end of (.*) -->", page)) == set(evidence.TABLES)


@pytest.mark.parametrize("times", [0, 2])
def test_a_page_without_one_place_for_a_table_is_refused(study: Study, times: int) -> None:
    page = evidence.PAGE.read_text(encoding="utf-8")
    place = re.search("<!-- state -->.*<!-- end of state -->", page, re.DOTALL)
    assert place is not None
    with pytest.raises(InputError, match="<!-- state -->"):
        evidence.with_tables(page.replace(place[0], place[0] * times), study)


def test_regimes_that_are_shown_over_three_seeds_have_three(study: Study) -> None:
    leads = {variant for _, *variants in evidence.LEADS for variant in variants}
    for variant in [*REGIMES, *leads]:
        for seeds in study.runs[study.runs["variant"] == variant].groupby("method.name")["seed"]:
            assert sorted(seeds[1]) == [0, 1, 2]


def with_long_runs(study: Study, seeds: Collection[int]) -> Study:
    """Return the study with runs of 70 epochs: those of 14 with these seeds, CL²R with 0.01 more by centring."""
    runs, frames = study.runs[~study.runs["variant"].isin(LONG)], {"tasks": [study.tasks], "matrix": [study.matrix]}
    added = []
    for variant, base in zip(LONG, ("equal", "equal_centred"), strict=True):
        own = runs[(runs["variant"] == base) & runs["seed"].isin(seeds)]
        gain = 0.01 * own["method.name"].eq("cl2r").astype(float) * (base == "equal_centred")
        later = {"variant": variant, "optim.epochs": 70, "run": "long-" + own["run"]}
        added.append(own.assign(**later, service_accuracy=own["service_accuracy"] + gain))
        for name, parts in frames.items():
            rows = getattr(study, name)
            parts.append(rows[rows["run"].isin(own["run"])].assign(run=lambda rows: "long-" + rows["run"]))
    joined = {name: pd.concat(parts, ignore_index=True) for name, parts in frames.items()}
    return dataclasses.replace(study, runs=pd.concat([runs, *added], ignore_index=True), **joined)


def test_three_seeds_of_70_epochs_have_their_rows(study: Study) -> None:
    long = with_long_runs(study, (0, 1, 2))
    page = evidence.with_tables(evidence.PAGE.read_text(encoding="utf-8"), long)
    for name in LONG.values():
        assert f"**What the paper's text states: {name}**" in page
    served, seeds = ("service accuracy", "seeds")
    regimes = evidence.regimes(long)
    assert [cell.text for cell in regimes.column("regime")] == [*REGIMES.values(), *LONG.values()]
    assert "picked on the same seeds" in regimes.notes[0]
    centring, longer = evidence.centring(long), evidence.longer(long)
    assert len(centring.rows) == 3 * (len(CELLS) + 3)
    gain = centring.column(served)[-1].value, centring.column(served)[len(CELLS) + 2].value
    assert gain[0] == pytest.approx(gain[1] + 0.01)
    rows = [row for row in longer.rows if row[1].text == "CL²R − ER, 70 epochs minus 14"]
    assert [row[2].value for row in rows] == pytest.approx([0.0, 0.01])
    for table in (regimes, centring, longer):
        assert {cell.text for cell in table.column(seeds)} == {"3"}
    figure = plot_lengths(long)
    assert figure.get_suptitle().splitlines()[0].endswith("over 3 seeds")
    assert [panel.get_title() for panel in figure.axes] == ["uncentred", "centred"] * 2


def test_one_seed_of_70_epochs_is_told_apart_from_three(study: Study) -> None:
    long = with_long_runs(study, (0,))
    assert len(evidence.regimes(long).rows) == len(REGIMES)
    found = {row[0].text: row[-1].text for row in evidence.centring(long).rows if "minus" in row[1].text}
    assert found == {"ten equal tasks": "3", "half of the classes first": "3", "ten equal tasks, 70 epochs": "1"}
    figure = plot_lengths(long)
    assert figure.get_suptitle().splitlines()[0].endswith("resnet8s; mean and 95 % interval; seed 0"), "one line"


def test_methods_that_were_not_trained_for_70_epochs_are_left_out(study: Study) -> None:
    long = with_long_runs(study, (0, 1))
    gone = long.runs["method.name"].isin(["fixed", "er_fdm"]) | long.runs["seed"].eq(1)
    cut = dataclasses.replace(long, runs=long.runs[~(gone & long.runs["variant"].eq("epochs_70_centred"))])
    figure = plot_lengths(cut)
    assert [panel.get_title() for panel in figure.axes] == ["uncentred (2 seeds)", "centred (seed 0)"] * 2
    assert {"ER", "Fixed"} <= {line.get_label() for line in figure.axes[0].get_lines()}
    assert "Fixed" not in {line.get_label() for line in figure.axes[1].get_lines()}
    rows = [row[1].text for row in evidence.centring(cut).rows if row[0].text == LONG["epochs_70"]]
    assert "CL²R − ER, centred minus uncentred" in rows
    assert "Fixed" not in rows


def test_late_losses_are_those_of_the_matrices(study: Study) -> None:
    (row,) = (row for row in evidence.backward(study).rows if (row[0].text, row[1].text) == (REGIMES["equal"], "CL²R"))
    found = []
    for run in of_variant(study, "equal", "cl2r")["run"]:
        cells = study.matrix[(study.matrix["run"] == run) & (study.matrix["pairs"] == "report")]
        c = cells.set_index(["t", "k"])["accuracy"]
        late = np.mean([c[10, k] - c[k, k] for k in range(1, 10)])
        early, newest = c[2, 1] - c[1, 1], c[10, 9] - c[9, 9]
        found.append((early, late, late - early, newest, newest - early, c[10, 1] - c[2, 1]))
    assert [cell.value for cell in row[2:-1]] == pytest.approx(np.mean(found, axis=0))


def test_every_statement_of_the_paper_has_an_outcome(study: Study) -> None:
    table = evidence.statements(study)
    for row in table.rows:
        total, *counts = (int(cell.text) for cell in row[2:])
        assert sum(counts) == total > 0
    by_item = {row[0].text: int(row[2].text) for row in table.rows}
    assert sum(by_item.values()) == len(paper_statements())


def test_runs_that_are_missing_are_listed(study: Study) -> None:
    runs = study.runs
    gone = runs["variant"].eq("equal") & runs["method.name"].eq("fixed") & runs["seed"].isin([0, 2])
    rows = {row[0].text: row[1].text for row in evidence.missing(dataclasses.replace(study, runs=runs[~gone])).rows}
    assert rows["equal"] == "Fixed (0, 2)"
    assert "half_first" not in rows


def test_a_paired_difference_is_that_of_scipy(study: Study) -> None:
    runs = study.runs[study.runs["variant"] == "equal_centred"].set_index("seed")
    one, other = (runs.loc[runs["method.name"] == name, "service_accuracy"] for name in ("er_fdm", "er"))
    low, high = stats.ttest_rel(one.sort_index(), other.sort_index()).confidence_interval()
    found = evidence.difference(*(of_variant(study, "equal_centred", m) for m in ("er_fdm", "er")), "service_accuracy")
    np.testing.assert_allclose([found.low, found.high], [low, high])


def test_a_cut_chain_has_the_metrics_of_its_first_tasks(study: Study) -> None:
    values = evidence.first_tasks(study, "cl2r", 14, centred=True, tasks=3)
    (run,) = of_variant(study, "equal_centred", "cl2r").loc[[0], "run"]
    cells = study.matrix[(study.matrix["run"] == run) & (study.matrix["pairs"] == "report")].set_index(["t", "k"])
    c = cells["accuracy"]
    assert values.loc[0, "BC"] == pytest.approx((c[3, 1] - c[1, 1] + c[3, 2] - c[2, 2]) / 2)
    assert values.loc[0, "service_accuracy"] == pytest.approx((c[3, 1] + c[3, 2] + c[3, 3]) / 3)


@pytest.mark.parametrize("name", PLOTS)
def test_plots_have_a_line_per_method(name: str, study: Study) -> None:
    figure = PLOTS[name](with_long_runs(study, (0, 1, 2)))
    for panel in figure.axes:
        labels = {line.get_label() for line in panel.get_lines()}
        assert {"ER", "Trainable, FD^M", "Fixed", "CL²R"} <= labels


def told() -> set[tuple[float, ...]]:
    """Return the means with intervals that are written by hand on the page, without those of other pages."""
    page = re.sub(
        r"<!-- (.+?) -->.*?<!-- end of \1 -->", "", evidence.PAGE.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    lines = [line for line in page.splitlines() if "| WA " not in line]
    value = r"[+−]?\d\.\d{3}"
    found = re.findall(rf"({value}) \[({value}), ({value})\]", "\n".join(lines))
    return {tuple(float(part.replace("−", "-")) for part in parts) for parts in found}


def found_in_runs(study: Study) -> npt.NDArray[np.float64]:
    """Return mean and t-interval of all values, differences and differences of leads of the kept runs."""
    names = [metric.name for metric in (*evidence.SHOWN, *evidence.CUT)]
    names += [metric.column("tuning") for metric in (BC, SERVICE_ACCURACY)]
    samples = []
    for name in dict.fromkeys(names):
        own = {
            key: runs.set_index("seed")[name].reindex(range(3)).to_numpy(dtype=float)
            for key, runs in study.runs.groupby(["variant", "method.name"])
        }
        pairs = {(variant, variant) for variant, _ in own} | {(one, other) for _, one, other in evidence.LEADS}
        leads = [
            own[one, "cl2r"] - own[other, "er"] for one, other in pairs if {(one, "cl2r"), (other, "er")} <= set(own)
        ]
        for values in (list(own.values()), leads):
            samples += [*values, *(one - other for one, other in itertools.permutations(values, 2))]
    runs = study.runs.set_index("seed")
    for (variant, method), own_runs in runs.groupby(["variant", "method.name"]):
        gains = own_runs["service_accuracy"] - own_runs["first_accuracy"]
        recall = own_runs["service_recall"] - own_runs["first_recall"]
        samples += [gain.reindex(range(3)).to_numpy(dtype=float) for gain in (gains, recall)]
        if variant in evidence.TEN_TASKS:
            samples += list(evidence.losses(study, str(variant), str(method)).reindex(range(3)).to_numpy().T)
    for variant, method in itertools.product(REGIMES, CELLS):
        by_recall = [evidence.bc_by_recall(study, variant, one) for one in (method, "er")]
        by_accuracy = [of_variant(study, variant, one)[BC.name] for one in (method, "er")]
        samples.append((by_recall[0] - by_recall[1] - by_accuracy[0] + by_accuracy[1]).to_numpy())
    whole = np.array([sample for sample in samples if not np.isnan(sample).any()])
    half = stats.t.ppf(0.975, 2) * whole.std(axis=1, ddof=1) / np.sqrt(3)
    return np.stack([whole.mean(1), whole.mean(1) - half, whole.mean(1) + half], axis=1)


def test_intervals_in_the_text_are_those_of_the_runs(study: Study) -> None:
    written, found = told(), found_in_runs(study)
    assert len(written) > 30

    def unknown(rows: Collection[tuple[float, ...]]) -> list[tuple[float, ...]]:
        return [row for row in rows if not (abs(found - np.array(row)) < 0.00051).all(axis=1).any()]

    assert unknown(written) == []
    typos = {(mean, low, high + shift) for mean, low, high in written for shift in (-0.004, 0.004)}
    assert len(unknown(typos)) > 0.9 * len(typos), "a wrong number is noticed"
