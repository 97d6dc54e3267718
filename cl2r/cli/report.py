"""`cl2r report` and `cl2r status`: a study's page, figures, tables and state. Needs neither torch nor Ray."""

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from cl2r.cli.options import StudyName, storage_option
from cl2r.errors import InputError, nearest
from cl2r.runtime.logs import without_secrets

if TYPE_CHECKING:
    from analysis.study import Study
    from cl2r.storage.path import StoragePath
    from cl2r.study.folder import StudyFolder

Form = Literal["markdown", "latex", "csv", "html", "terminal"]
UNREADABLE = (OSError, InputError, json.JSONDecodeError)
"""A disk or a network that may be back soon, or a file that is only half copied yet."""
READ_ATTEMPTS = 3
"""How often `--watch` reads a study at its end before it keeps the last state that it could read."""
BUILD_SHARE = 4
"""A pause lasts at least this many times as long as building the page took: the runs need the processors more."""


@click.command()
@click.argument("name", required=False, type=StudyName())
@storage_option
def status(name: str | None, storage: "StoragePath") -> None:
    """Show the progress of all studies, or of one in detail."""
    from cl2r.study import status as state

    click.echo(state.status(storage, name) if name else state.overview(storage))


@click.command()
@click.argument("study", required=False, type=StudyName())
@storage_option
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Default: report.html in its folder.")
@click.option("--watch", is_flag=True, help="Rebuild the page while the study runs.")
@click.option("--interval", type=click.FloatRange(min=1), default=10, show_default=True, metavar="SECONDS")
@click.option("--tables", type=click.Choice(get_args(Form)), help="Print the tables instead of writing the page.")
@click.option("--figures", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write figures there.")
def report(
    study: str | None,
    storage: "StoragePath",
    out: Path | None,
    watch: bool,
    interval: float,
    tables: Form | None,
    figures: Path | None,
) -> int:
    """Write a study's page, or print its tables.

    STUDY is a name as in `cl2r status`, a folder or an s3:// address; the default is the only study of the storage. If
    its folder cannot be written, the page is STUDY-report.html in the working directory.
    """
    if tables and (watch or out):
        raise InputError(f"--tables {tables} prints; --watch and --out are for the page")
    if watch and figures:
        raise InputError("--figures: draw them without --watch")
    source = find_source(study, storage)
    path = source.page_path(out)
    if watch:
        return Watch(source, path, interval).run()
    from cl2r.storage.path import at

    found = source.load()
    if figures is not None:
        click.echo(_write_figures(found, at(figures)), err=tables is not None)  # tables can be piped
    if tables is None:
        click.echo(_write_page(found, at(path.parent), path.name))
        return 0
    from analysis.tables import study_tables
    from analysis.tables.formats import render

    if found.runs.empty:
        raise InputError(f"no run of {found.name} has ended: there is no table to show")
    click.echo(render(study_tables(found), tables).rstrip("\n"))
    return 0


# ---------------------------------------------------------------- which study, and what there is of it


@dataclasses.dataclass(frozen=True)
class Source:
    """A study to report on."""

    path: "StoragePath"
    shown: str
    """Its folder or address as the user wrote it."""

    @property
    def name(self) -> str:
        """The name of the study."""
        return self.path.name

    @cached_property
    def folder(self) -> "StudyFolder | None":
        """The folder with its ledger; None for frames that were copied elsewhere."""
        from cl2r.study.folder import StudyFolder

        root = self.path.parent
        return StudyFolder(root.parent, self.name) if root.name == "studies" and self._has("ledger") else None

    def _has(self, name: str) -> bool:
        return (self.path / name).exists()

    def has_runs(self) -> bool:
        """Return whether there is anything to report on."""
        return self._has("runs.parquet") or bool(self.folder and self.folder.ledger.outcomes())

    def load(self) -> "Study":
        """Return the stored frames, or rebuild them in memory if the ledger has newer runs."""
        from analysis.study import Study, find_study, load_study, read_specification
        from cl2r.study.frames import study_frames

        folder = self.folder
        if folder is None:
            return load_study(self.shown)
        about, outcomes = folder.read_about(), folder.ledger.outcomes()
        if self._has("runs.parquet"):
            study = load_study(self.shown)
            known = dict(zip(study.runs["run"], study.runs["status"], strict=True))
            if all(known.get(run) == event.kind for run, event in outcomes.items()):
                return dataclasses.replace(study, about=about)
        if not outcomes:
            raise InputError(f"no run of {self.name} has ended yet; `cl2r status {self.name}` shows its progress")
        specification = read_specification(find_study(self.shown))
        return Study(**study_frames(folder), name=self.name, specification=specification, about=about)

    def page_path(self, out: Path | None) -> Path:
        """Return where the page goes: `out`, the study's folder or the working directory."""
        path = out
        if path is None:
            local = not self.path.remote and os.access(self.shown, os.W_OK)
            path = Path(self.shown) / "report.html" if local else Path(f"{self.name}-report.html")
        if path.is_dir():
            raise InputError(f"--out {path} is a folder; name a file, e.g. {path / 'report.html'}")
        parent = next(parent for parent in path.absolute().parents if parent.exists())
        if not parent.is_dir():
            raise InputError(f"--out {path}: {parent} is a file; name a file in a folder")
        return path

    def is_running(self) -> bool:
        """Return whether a driver is at work, or may be: without a ledger only about.json tells when it ended."""
        from analysis.study import find_study, read_about
        from cl2r.study import status as state

        if self.folder is not None:
            return state.phase(self.folder) == "running"
        return read_about(find_study(self.shown)).get("ended") is None

    def stamp(self) -> list[Any]:
        """Return values that change when the study does."""
        names = [*(f"{name}.parquet" for name in ("runs", "tasks", "matrix", "curves")), "about.json"]
        stamps: list[Any] = [(self.path / name).info() for name in names]
        if self.folder is not None:
            stamps += [event.path.name for event in self.folder.ledger.events()]
            stamps += [(path.name, path.info()) for path in self.folder.live.list("*.json")]
        return stamps

    def live(self) -> list[str]:
        """Return one line with counts and one line per training process."""
        from cl2r.study import status as state

        return [state.counts(self.folder), *state.running(self.folder)] if self.folder else []


def find_source(study: str | None, storage: "StoragePath") -> Source:
    """Return a study by its name below `storage`, its folder or its address; None is the only study there."""
    from analysis.study import find_study
    from cl2r.storage.path import at
    from cl2r.study.status import studies

    known = {folder.name: folder.path for folder in ([] if study and "://" in study else studies(storage))}
    if study is None:
        if len(known) != 1:
            fault = f"which one? {', '.join(known)}" if known else "there are none"
            raise InputError(f"studies below {storage / 'studies'}: {fault}")
        (shown,) = map(str, known.values())
    elif study in known:
        shown = str(known[study])
    elif "://" in study or Path(study).is_dir():
        shown = str(at(study))  # file:// addresses are paths
    else:
        raise InputError(f"no study {study!r} below {storage / 'studies'}{nearest(study, known)}, and no such folder")
    found = find_study(shown)
    return Source(found.resolve(), str(found))


# ---------------------------------------------------------------- pages, figures


def leave_report(folder: "StudyFolder") -> list[str]:
    """Write figures and the page into the folder of a study that has ended; return lines that name them.

    An error here is a line as well: the runs are done and the frames are written.
    """
    from analysis.study import load_study

    lines: list[str] = []
    study: Study | None = None
    for what in ("figures", "report"):
        try:
            study = study or load_study(str(folder.path))
            if what == "report":
                lines.append(_write_page(study, folder.path))
            elif len(study.finished):
                lines.append(_write_figures(study, folder.path / "figures"))
        except Exception as error:
            reason = without_secrets(" ".join(f"{type(error).__name__}: {error}".split()))
            lines.append(f"no {what}: {reason}; the frames are complete, see `cl2r report --help`")
    return lines


def _write_figures(study: "Study", folder: "StoragePath") -> str:
    from analysis.plots import write_figures

    with folder.staging() as here:
        written = write_figures(study, here)
    return f"figures: {folder} ({len({path.stem for path in written})})"


def _write_page(study: "Study", folder: "StoragePath", name: str = "report.html") -> str:
    from analysis.report import write_report

    with folder.staging() as here:
        write_report(study, here / name)
    return f"report: {folder / name}"


# ---------------------------------------------------------------- --watch


class Watch:
    """Rebuilds the page at `path` while a study runs, at most every `interval` seconds and only if it has changed."""

    def __init__(self, source: Source, path: Path, interval: float) -> None:
        self.source, self.path, self.interval = source, path, interval
        self._built: list[Any] = []
        self._study: Study | None = None
        self._said: set[str] = set()

    def run(self) -> int:
        """Return 0 when the study has ended, 130 after Ctrl-C, 1 if no run has ended. The last page stands still."""
        from analysis.report import write_report

        code = 0
        try:
            self._follow()
            self._read(READ_ATTEMPTS)
        except KeyboardInterrupt:
            code = 130
        with _without_interrupts():
            if code:
                self._read(1)
            if self._study is None:
                click.echo(f"no run of {self.source.name} has ended: there is no report")
                return code or 1
            write_report(self._study, self.path)
            click.echo(f"report: {self.path}")
        return code

    def _follow(self) -> None:
        """Rebuild the page, which reloads itself, until no driver is at work."""
        self._say_once(f"watching {self.source.name}; Ctrl-C stops")
        while True:
            began = time.monotonic()
            try:
                if not self.source.is_running():
                    return
                self._rebuild()
            except UNREADABLE as error:
                self._say_once(f"cannot read {self.source.name} at the moment: {error}")
            time.sleep(max(self.interval, BUILD_SHARE * (time.monotonic() - began)))

    def _rebuild(self) -> None:
        from analysis.report import write_report

        stamp = self.source.stamp()
        if not self.source.has_runs():
            self._say_once(f"no run of {self.source.name} has ended yet: waiting for the first")
        elif stamp != self._built:
            self._study = self.source.load()
            write_report(self._study, self.path, live=self.source.live(), refresh=self.interval)
            self._built = stamp
            self._say_once(f"report: {self.path} (rebuilt while the study runs)")

    def _read(self, attempts: int) -> None:
        """Read the study as it is now; if it cannot be read, keep the last state."""
        for left in reversed(range(attempts)):
            try:
                self._study = self.source.load() if self.source.has_runs() else None
                return
            except UNREADABLE as error:
                self._say_once(f"cannot read {self.source.name} at the moment: {error}")
                if left:
                    time.sleep(self.interval)
                elif self._study is None:
                    raise

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            click.echo(without_secrets(line))


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C: a page that reloads itself for ever must not be the last one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
