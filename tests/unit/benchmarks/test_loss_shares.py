"""The share of a method's own terms: the last epoch of every stage counts."""

import pytest

from tests.benchmarks.loss_shares import shares


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
