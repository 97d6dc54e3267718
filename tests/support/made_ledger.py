"""A made-up study whose ledger grows run by run."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from analysis import Study
from cl2r.config.schema import field_keys
from cl2r.study.folder import StudyFolder


def made_folder(storage: Path, study: Study) -> StudyFolder:
    """Return the folder of a study whose driver has just begun."""
    folder = StudyFolder(storage, study.name)
    folder.claim_name(study.specification)
    folder.ledger.write("opened", "driver", {"runs": len(study.runs), "resources": {}})
    folder.write_about({}, len(study.runs))
    return folder


def enter(folder: StudyFolder, study: Study, number: int, failed: str | None = None) -> None:
    """Record the end of the `number`-th run of the study."""
    run = study.runs["run"].iloc[number]
    frames = {name: _rows(study, name, run) for name in ("runs", "tasks", "matrix", "curves")}
    row, known = frames["runs"][0], set(field_keys())
    config = {name: value for name, value in row.items() if name in known}
    entry = {"trial": row["trial"], "variant": row["variant"], "config": config}
    if failed is not None:
        folder.ledger.write("failed", run, entry | {"reason": failed})
    else:
        folder.ledger.write("finished", run, entry | {"frames": frames})


def _rows(study: Study, name: str, run: str) -> list[dict[str, Any]]:
    frame = getattr(study, name)
    rows: list[dict[str, Any]] = json.loads(frame[frame["run"] == run].to_json(orient="records", double_precision=15))
    return rows


@dataclass(frozen=True)
class Page:
    """The arguments of a written report."""

    name: str
    runs: list[str]
    live: list[str]
    refresh: float | None


def record_pages(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """Return a list that receives every report written from now on; their files hold only its arguments."""
    written: list[Page] = []

    def write(study: Study, path: Path, live: Sequence[str] = (), refresh: float | None = None) -> Path:
        written.append(Page(study.name, study.runs["run"].tolist(), list(live), refresh))
        path.write_text(json.dumps(asdict(written[-1])))
        return path

    monkeypatch.setattr("analysis.report.write_report", write)
    return written
