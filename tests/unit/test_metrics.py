"""The registry of metrics, and that one new entry reaches the frames."""

import numpy as np
import pytest

from cl2r import metrics
from cl2r.engine.chain import RunResult
from cl2r.engine.evaluation import Evaluation
from cl2r.engine.frames import frames
from cl2r.errors import InputError
from cl2r.metrics import AC, METRICS, STORED_BYTES, Metric, Registry


def test_columns_of_a_metric() -> None:
    assert AC.column() == "AC"
    assert AC.column("tuning") == "tuning_AC"
    assert AC.column(far=0.01, end="low") == "AC_low@0.01"
    assert STORED_BYTES.column("tuning") == "stored_bytes", "a cost does not depend on pairs"


def test_signed_metrics_show_their_sign() -> None:
    assert METRICS["BC"].text(0.0214) == "+0.021"
    assert METRICS["AC"].text(0.0214) == "0.021"


def test_objectives_have_a_direction() -> None:
    objectives = METRICS.objectives()
    assert objectives["seconds"].name == "train_seconds"
    assert objectives["seconds"].direction == "minimize"
    assert objectives["BC"].direction == "maximize"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="mean_accuracy"):
        METRICS["mean_acuracy"]


def test_a_name_can_be_registered_once() -> None:
    with pytest.raises(ValueError, match="AC"):
        METRICS.register(AC)


def test_a_new_metric_is_one_entry(finished: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is all that a new metric takes; its column appears in `runs` for report and tuning pairs."""
    lowest = Metric("lowest", "lowest self-test", lambda c, ties: np.diagonal(c, 0, -2, -1).min(axis=-1), interval=True)
    registry = Registry(*METRICS.values(), lowest)
    monkeypatch.setattr(metrics, "METRICS", registry)
    monkeypatch.setattr("cl2r.engine.evaluation.METRICS", registry)
    monkeypatch.setattr("cl2r.engine.frames.METRICS", registry)
    boot = np.stack([finished.report.matrix, finished.report.matrix])
    report = Evaluation.of_matrix("accuracy", finished.report.matrix, ties=False, boot=boot)
    assert report.values["lowest"] == finished.report.matrix.diagonal().min()
    changed = finished.__class__(**{**finished.__dict__, "report": report})
    (row,) = frames(changed, "x")["runs"]
    assert row["lowest"] == row["lowest_low"] == report.values["lowest"]
