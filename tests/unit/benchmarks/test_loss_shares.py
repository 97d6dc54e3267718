"""The share of a method's own terms: the last epoch of every stage counts."""

import json
from statistics import mean

import pytest

from cl2r.config.method_texts import METHOD_TEXTS
from cl2r.config.methods import METHODS
from cl2r.runtime.environment import ROOT
from tests.benchmarks.loss_shares import by_stage, page, shares

KEPT = ROOT / "studies" / "results" / "loss_shares.json"
NO_TERM_OF_THEIR_OWN = ("er", "fixed", "cores")
ALMOST_ER = "lifelong_bct"
"""Its influence loss is known to be small on the default preset, and its texts say so."""


def row(stage: str, epoch: int, **losses: float) -> dict[str, float | str | int]:
    return {"stage": stage, "epoch": epoch, "lr": 0.1, "seconds": 1.0, **{f"loss_{k}": v for k, v in losses.items()}}


def test_the_last_epoch_of_every_stage_counts() -> None:
    curves = [row("train", 1, ce=9.0, kd=9.0), row("train", 2, ce=0.3, kd=0.1), row("bias", 1, bias_ce=0.5)]
    first, second = shares(curves)
    assert (first.stage, first.labels, first.own) == ("train", 0.3, {"kd": 0.1})
    assert first.share == pytest.approx(0.25)
    assert (second.stage, second.labels, second.own, second.share) == ("bias", 0.5, {}, 0.0)


def test_a_negative_term_counts_by_its_size_and_a_loss_without_labels_is_all_its_own() -> None:
    negative, alone = shares([row("train", 1, ce=1.0, hoc=-3.0), row("compress", 1, bkd=0.7)])
    assert negative.share == pytest.approx(0.75)
    assert alone.share == 1


def test_the_own_terms_of_every_method_count_on_the_default_preset() -> None:
    """Two seeds, first three tasks: at least 5 % of the loss of the first stage, in every task."""
    content = json.loads(KEPT.read_text(encoding="utf-8"))
    assert content["preset"] == "icons"
    assert len(content["seeds"]) > 1
    found: dict[str, float] = {}
    for (method, _, stage), rows in by_stage(content["rows"]).items():
        if stage in ("train", "boost"):
            found[method] = min(found.get(method, 1.0), mean(row["share"] for row in rows))
    assert set(found) == set(METHODS)
    assert {name for name, share in found.items() if share == 0} == set(NO_TERM_OF_THEIR_OWN)
    assert {name for name, share in found.items() if 0 < share < 0.05} == {ALMOST_ER}


def test_the_text_of_lifelong_bct_has_the_measured_numbers() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    own = by_stage(kept["rows"])
    terms = [own[ALMOST_ER, task, "train"] for task in (2, 3)]
    influence = {f"{mean(row['own']['influence'] for row in rows):.3f}" for rows in terms}
    labels = sorted(mean(row["labels"] for row in rows) for rows in terms)
    (share,) = {f"{mean(row['share'] for row in rows):.0%}".replace("%", " %") for rows in terms}
    expected = (
        f"It is almost ER. On icons (first three tasks, {kept['epochs']} epochs, {len(kept['seeds'])} seeds) the second"
        f" term ends at {', '.join(influence)} beside a cross-entropy of {labels[0]:.2f} to {labels[1]:.2f}, {share} of"
    )
    assert METHOD_TEXTS[ALMOST_ER].deviations[0].startswith(expected)


def test_the_kept_page_shows_the_measurements() -> None:
    content = json.loads(KEPT.read_text(encoding="utf-8"))
    assert KEPT.with_suffix(".md").read_text(encoding="utf-8") == page(content)
