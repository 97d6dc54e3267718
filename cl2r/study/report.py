"""`cl2r report`: a study's page, figures and tables, from whatever of it there is. Needs neither torch nor Ray."""

import dataclasses
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from analysis.study import Place, Study, find_study, read_specification, read_study
from cl2r import files
from cl2r.errors import InputError, nearest
from cl2r.privacy import without_secrets
from cl2r.study import status
from cl2r.study.about import read_about
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import study_frames

Form = Literal["markdown", "latex", "csv", "html", "terminal"]
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Source:
    """A study to report on: where it lies and, if its driver put it there, the folder with its ledger."""

    place: Place
    disk: Path | None
    """The folder on this machine; None for object storage."""
    folder: StudyFolder | None

    @property
    def name(self) -> str:
        """Of the study."""
        return self.place.name

    def has_runs(self) -> bool:
        """Whether there is anything to report on."""
        return self.place.has("runs.parquet") or bool(self.folder and self.folder.ledger.outcomes())

    def load(self) -> Study:
        """The study with every run that has ended."""
        return current_study(self.folder, self.place) if self.folder else read_study(self.place)

    def report_path(self) -> Path:
        """Into the study's folder; where nobody can write there, into the working directory."""
        if self.disk and os.access(self.disk, os.W_OK):
            return self.disk / "report.html"
        return Path(f"{self.name}-report.html")


def find_source(study: str | None, storage: files.Place) -> Source:
    """A study by its name below `storage`, by its folder or by its address; without any of them the only one there."""
    if study is None:
        return _source(_only_study(storage).path)
    if "://" in study:
        return _source(files.place(study))
    names = [folder.name for folder in status.studies(storage)]
    if study in names:
        return _source(StudyFolder(storage, study).path)
    if Path(study).is_dir():
        return _source(Path(study))
    raise InputError(f"no study {study!r} below {storage / 'studies'}{nearest(study, names)}, and no such folder")


def _only_study(storage: files.Place) -> StudyFolder:
    found = status.studies(storage)
    if not found:
        raise InputError(f"no studies below {storage / 'studies'}")
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found)
        raise InputError(f"which study below {storage / 'studies'}? {names}")
    return found[0]


def _source(path: files.Place) -> Source:
    place = find_study(path if isinstance(path, Path) else str(path))
    whole = place.root
    driven = whole.parent.name == "studies" and place.has("ledger")
    disk = Path(place.shown) if isinstance(path, Path) else None
    return Source(place, disk, StudyFolder(whole.parent.parent, whole.name) if driven else None)


def current_study(folder: StudyFolder, place: Place) -> Study:
    """The frames as they are or, where the ledger knows of runs that they do not, joined anew and not written."""
    about = read_about(folder)
    outcomes = {run: event.kind for run, event in folder.ledger.outcomes().items()}
    if place.has("runs.parquet"):
        study = read_study(place)
        known = zip(study.runs["run"], study.runs["status"], strict=True)
        if outcomes.items() <= dict(known).items():
            return dataclasses.replace(study, about=about)
    if not outcomes:
        raise InputError(f"no run of {folder.name} has ended yet; `cl2r status {folder.name}` shows how far it is")
    return Study(**study_frames(folder), name=folder.name, specification=read_specification(place), about=about)


def report(source: Source, out: Path | None, tables: Form | None, figures: Path | None, say: Say) -> None:
    """Write the page and say where, or print the tables; and write the figures if asked to."""
    path = checked_path(source, out)
    study = source.load()
    if figures is not None:
        line = _write_figures(study, figures)
        print(line, file=sys.stderr) if tables else say(line)
    if tables is None:
        say(_write_page(study, path.parent, path.name))
        return
    if study.runs.empty:
        raise InputError(f"no run of {study.name} has ended: there is no table to show")
    from analysis.formats import render
    from analysis.study_tables import study_tables

    say(render(study_tables(study), tables).rstrip("\n"))


def checked_path(source: Source, out: Path | None) -> Path:
    """Where the page goes, if it can."""
    path = out or source.report_path()
    if path.is_dir():
        raise InputError(f"--out {path} is a folder; name a file, e.g. {path / 'report.html'}")
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not there.is_dir():
        raise InputError(f"--out {path}: {there} is a file; name one in a folder")
    return path


def leave_report(folder: StudyFolder) -> list[str]:
    """What a study leaves for people, at its end: figures and a page in its folder; lines that name them.

    Whatever goes wrong here is said and no more: the runs are done and the frames are written.
    """
    try:
        study = read_study(_source(folder.path).place)
    except Exception as error:  # as in `_attempt`
        return [f"no report: {_reason(error)}; see `cl2r report --help`"]
    figures = partial(_write_figures, study, folder.path / "figures")
    page = partial(_write_page, study, folder.path)
    lines = [_attempt("figures", figures)] if len(study.finished) else []
    return [*lines, _attempt("report", page)]


def _attempt(what: str, write: Callable[[], str]) -> str:
    try:
        return write()
    except Exception as error:  # of whatever kind
        return f"no {what}: {_reason(error)}; the frames are whole, see `cl2r report --help`"


def _reason(error: Exception) -> str:
    return without_secrets(" ".join(f"{type(error).__name__}: {error}".split()))


def _write_figures(study: Study, folder: files.Place) -> str:
    from analysis.plots import write_figures

    with files.staged(folder) as here:
        written = write_figures(study, here)
    return f"figures: {folder} ({len({path.stem for path in written})})"


def _write_page(study: Study, folder: files.Place, name: str = "report.html") -> str:
    from analysis.report import write_report

    with files.staged(folder) as here:
        write_report(study, here / name)
    return f"report: {folder / name}"
