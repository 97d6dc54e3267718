"""Frames and events of a study, in a form in which two studies can be compared."""

from pathlib import Path

import pandas as pd

VOLATILE = ("seconds", "images_per_second", "extract_seconds", "train_seconds", "wall_seconds", "peak_bytes", "study")
"""Columns in which two equal studies may differ."""


def finished_events(storage: Path, name: str) -> list[str]:
    """Return the runs that the ledger records as finished, once per event."""
    folder = storage / "studies" / name / "ledger"
    return sorted(path.name.split(".")[2] for path in folder.glob("*.finished.*"))


def frames_of(storage: Path, name: str) -> dict[str, pd.DataFrame]:
    """Return the four frames without columns that depend on the clock, sorted."""
    frames = {}
    for frame in ("runs", "tasks", "matrix", "curves"):
        table = pd.read_parquet(storage / "studies" / name / f"{frame}.parquet")
        table = table.drop(columns=[column for column in VOLATILE if column in table])
        keys = [key for key in ("run", "pairs", "t", "k", "task", "stage", "epoch") if key in table]
        frames[frame] = table.sort_values(keys).reset_index(drop=True)
    return frames


def assert_same_frames(one: tuple[Path, str], two: tuple[Path, str]) -> None:
    """Check that the frames are equal bit for bit, apart from times."""
    first, second = frames_of(*one), frames_of(*two)
    for name, frame in first.items():
        pd.testing.assert_frame_equal(frame, second[name], check_exact=True)
