"""What a study has left behind, in a form that two studies can be compared by."""

from pathlib import Path

import pandas as pd

VOLATILE = ("seconds", "images_per_second", "extract_seconds", "train_seconds", "wall_seconds", "peak_bytes", "study")
"""What two equal studies need not agree on."""


def finished_events(storage: Path, name: str) -> list[str]:
    """The runs that the ledger calls finished, as often as it does."""
    folder = storage / "studies" / name / "ledger"
    return sorted(path.name.split(".")[2] for path in folder.glob("*.finished.*"))


def most_at_once(storage: Path, name: str) -> int:
    """Between the start and the end of how many runs another one started."""
    running, most = set[str](), 0
    for path in sorted((storage / "studies" / name / "ledger").iterdir()):
        _, kind, run = path.name.split(".")[:3]
        running = running | {run} if kind == "started" else running - {run}
        most = max(most, len(running))
    return most


def frames_of(storage: Path, name: str) -> dict[str, pd.DataFrame]:
    """The four frames without what depends on the clock, in one order."""
    frames = {}
    for frame in ("runs", "tasks", "matrix", "curves"):
        table = pd.read_parquet(storage / "studies" / name / f"{frame}.parquet")
        table = table.drop(columns=[column for column in VOLATILE if column in table])
        keys = [key for key in ("run", "pairs", "t", "k", "task", "stage", "epoch") if key in table]
        frames[frame] = table.sort_values(keys).reset_index(drop=True)
    return frames


def assert_same_frames(one: tuple[Path, str], two: tuple[Path, str]) -> None:
    """Bit for bit, but for clocks."""
    first, second = frames_of(*one), frames_of(*two)
    for name, frame in first.items():
        pd.testing.assert_frame_equal(frame, second[name], check_exact=True)
