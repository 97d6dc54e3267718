"""The four frames of many runs, joined. Columns are described in analysis/README.md."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pandas as pd


@dataclass(frozen=True, eq=False)
class Frames:
    """`runs`: a row a run; `tasks`: a row a task; `matrix`: a row a cell of C; `curves`: a row an epoch."""

    runs: pd.DataFrame
    tasks: pd.DataFrame
    matrix: pd.DataFrame
    curves: pd.DataFrame


def load_runs(root: str | Path, names: Collection[str] | None = None) -> Frames:
    """All finished runs below `root`/runs, or those with the given names; e.g. load_runs("results")."""
    folders = sorted(path.parent for path in Path(root).glob("runs/*/runs.parquet"))
    folders = [folder for folder in folders if names is None or folder.name in names]
    if not folders:
        raise FileNotFoundError(f"no finished runs below {Path(root) / 'runs'}")
    return Frames(
        *(
            pd.concat([pd.read_parquet(folder / f"{name}.parquet") for folder in folders], ignore_index=True)
            for name in ("runs", "tasks", "matrix", "curves")
        )
    )
