"""Scalars of a finished task, read back from the event files byte by byte."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")

from cl2r.study.tensorboard import write_task  # noqa: E402


def events_of(path: Path) -> list[Any]:
    """The records of one file: length (8 bytes), checksum (4), event, checksum (4)."""
    content, events, at = path.read_bytes(), [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        body = content[at + 12 : at + 12 + length]
        assert len(body) == length
        events.append(event_pb2.Event.FromString(body))
        at += 12 + length + 4
    assert at == len(content)
    return events


def scalars_below(folder: Path) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {}
    for path in sorted(folder.iterdir()):
        for event in events_of(path):
            for value in event.summary.value:
                found.setdefault((value.tag, event.step), []).append(value.simple_value)
    return found


def row(stage: str, epoch: int, **losses: float) -> dict[str, Any]:
    return {"stage": stage, "epoch": epoch, "lr": 0.5, "seconds": 2.0, **losses}


def test_epochs_are_counted_over_the_run_and_values_over_tasks(tmp_path: Path) -> None:
    curves = [row("train", 1, loss_ce=1.5), row("train", 2, loss_ce=1.25, loss_fd=0.25), row("tune", 1, loss_ce=0.75)]
    write_task(tmp_path / "run", 2, 20, curves, {"BC(t)": 0.5, "self_accuracy": 0.875})
    expected = {
        ("train/loss_ce", 21): 1.5,
        ("train/loss_ce", 22): 1.25,
        ("train/loss_ce", 23): 0.75,
        ("train/loss_fd", 22): 0.25,
        ("task/BC(t)", 2): 0.5,
        ("task/self_accuracy", 2): 0.875,
    }
    for step, epoch in ((21, 1), (22, 2), (23, 1)):
        expected |= {("train/epoch", step): epoch, ("train/lr", step): 0.5, ("train/seconds", step): 2.0}
    assert scalars_below(tmp_path / "run") == {key: [value] for key, value in expected.items()}


def test_nan_is_left_out_and_numpy_numbers_are_kept(tmp_path: Path) -> None:
    curves = [{"loss_ce": math.nan, "loss_fd": np.float32(0.5), "lr": np.float64(np.nan), "epoch": np.int64(1)}]
    write_task(tmp_path, 1, 0, curves, {"BC(t)": math.nan, "self_accuracy": 1})
    assert scalars_below(tmp_path) == {
        ("train/loss_fd", 1): [0.5],
        ("train/epoch", 1): [1.0],
        ("task/self_accuracy", 1): [1.0],
    }


def test_tasks_of_the_same_second_do_not_overwrite_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1.7e9)
    for task in (1, 2, 3):
        write_task(tmp_path, task, task - 1, [{"loss_ce": task / 4}], {})
    assert scalars_below(tmp_path) == {("train/loss_ce", task): [task / 4] for task in (1, 2, 3)}


def test_a_task_written_again_replaces_its_scalars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for now, value in ((1.7e9, 0.25), (1.8e9, 0.5)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        write_task(tmp_path, 1, 0, [], {"self_accuracy": value})
        write_task(tmp_path, 11, 0, [], {"self_accuracy": value})
    assert scalars_below(tmp_path) == {("task/self_accuracy", 1): [0.5], ("task/self_accuracy", 11): [0.5]}
