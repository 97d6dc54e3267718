"""`cl2r report` and `cl2r status`: a study's page, figures, tables and state. Needs neither torch nor Ray."""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

from cl2r.cli.options import NameType, storage_option
from cl2r.errors import InputError, nearest
from cl2r.runtime.logs import without_secrets
from cl2r.runtime.progress import announced

if TYPE_CHECKING:
    import pandas as pd

    from analysis.study import Study
    from cl2r.storage.path import FileInfo, StoragePath
    from cl2r.study.folder import StudyFolder

FILE = click.Path(path_type=Path, dir_okay=False)
Form = Literal["markdown", "latex", "csv", "html", "terminal"]
UNREADABLE = (OSError, InputError, json.JSONDecodeError)  # a disk may be back soon, a file be copied only in part yet
WATCHED = ("runs.", "tasks.", "matrix.", "curves.", "about.json", "paper.json", "ledger/", "live/", "search/")
"""Files that the page depends on."""
READ_ATTEMPTS = 3  # of a study at its end, before `--watch` keeps the last state that it could read
BUILD_SHARE = 4  # a pause is at least this many times as long as building took: the runs need the processors more


@click.command()
@click.argument("name", required=False, type=NameType("study"))
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def status(name: str | None, storage: "StoragePath", as_json: bool) -> None:
    """Show the progress of all studies, or of one in detail.

    \b
    JSON: {"studies": [...]}, or one study by its name; each with
      study, state (running, interrupted or closed), runs, finished, failed, stopped_early, last_event (ISO time)
    and, of one study, also
      running [{title, task, tasks, epoch, epochs, images_per_second, loss, seconds_left, stale}]
      unfinished [{run, outcome, reason}]
    """
    from cl2r.study import status as state

    with announced(f"reading {storage / 'studies'}…"):
        if as_json:
            text = json.dumps(state.status_json(storage, name))
        else:
            text = state.status(storage, name) if name else state.overview(storage)
    click.echo(text)


@click.command()
@click.argument("study", required=False, type=NameType("study"))
@storage_option
@click.option("--out", type=FILE, metavar="FILE", help="Default: report.html in its folder.")
@click.option("--watch", is_flag=True, help="Rebuild the page while the study runs.")
@click.option("--interval", type=click.FloatRange(min=1), default=10, show_default=True, metavar="SECONDS")
@click.option("--tables", type=click.Choice(get_args(Form)), help="Print the tables instead of writing the page.")
@click.option("--deviations", is_flag=True, help="With --tables: standard deviations instead of intervals.")
@click.option("--figures", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write figures there.")
def report(
    study: str | None,
    storage: "StoragePath",
    out: Path | None,
    watch: bool,
    interval: float,
    tables: Form | None,
    deviations: bool,
    figures: Path | None,
) -> int:
    """Write a study's page, or print its tables.

    STUDY is a name as in `cl2r status`, a folder or an s3:// address; the default is the only study of the storage. If
    its folder cannot be written, the page is STUDY-report.html in the working directory.
    """
    if tables and (watch or out):
        raise InputError(f"--tables {tables} prints; --watch and --out are for the page")
    if deviations and not tables:
        raise InputError("--deviations is for --tables; the page has intervals")
    if watch and figures:
        raise InputError("--figures: draw them without --watch")
    with announced(f"looking for {study or 'the study'}…"):
        path = find_path(study, storage)
    page = page_path(path, out)
    if watch:
        return watch_study(path, page, interval)
    from cl2r.storage.path import at

    name = path.resolve().name
    with announced(f"reading {name}…"):
        found = load(path)
    if found is None:
        raise InputError(f"no run of {name} has ended yet; `cl2r status {name}` shows its progress")
    if figures is not None:
        logging.getLogger("analysis.plots").setLevel(logging.DEBUG)  # the user asked for them: say why some are missing
        click.echo(_write_figures(found, at(figures)), err=tables is not None)  # tables can be piped
    if tables is None:
        click.echo(_write_page(found, at(page.parent), page.name))
        return 0
    from analysis.tables import study_tables, study_text
    from analysis.tables.formats import render

    if found.runs.empty:
        raise InputError(f"no run of {found.name} has ended: there is no table to show")
    if tables in ("terminal", "markdown"):
        text = study_text(found, tables, deviations)
    else:
        fitting = study_tables(found, deviations)
        if not fitting:
            raise InputError(f"no candidate of {found.name} has finished the final round: there is no table to show")
        text = render(fitting, tables)
    click.echo(text.rstrip("\n"))
    return 0


def find_path(study: str | None, storage: "StoragePath") -> "StoragePath":
    """Return the folder of a study by its name below `storage`, its folder or its address; None is the only one."""
    from analysis.study import find_study
    from cl2r.study.status import studies

    if study is not None and "://" in study:
        return find_study(study)
    known = {folder.name: str(folder.path) for folder in studies(storage)}
    if study is None:
        if len(known) != 1:
            fault = f"which one? {', '.join(known)}" if known else "there are none"
            raise InputError(f"studies below {storage / 'studies'}: {fault}")
        (study,) = known
    if study not in known and not Path(study).is_dir():
        raise InputError(f"no study {study!r} below {storage / 'studies'}{nearest(study, known)}, and no such folder")
    return find_study(known.get(study, study))


def page_path(study: "StoragePath", out: Path | None) -> Path:
    """Return where the page goes: `out`, the study's folder or, if that cannot be written, the working directory."""
    page = out
    if page is None:
        local = not study.remote and os.access(str(study), os.W_OK)
        page = Path(str(study)) / "report.html" if local else Path(f"{study.resolve().name}-report.html")
    parent = next(parent for parent in page.absolute().parents if parent.exists())
    if not parent.is_dir():
        raise InputError(f"--out {page}: {parent} is a file; name a file in a folder")
    return page


def ledger_folder(path: "StoragePath") -> "StudyFolder | None":
    """Return the folder of a study with its ledger; None for frames that were copied elsewhere."""
    from cl2r.study.folder import StudyFolder

    root = path.resolve().parent
    has_ledger = root.name == "studies" and (path / "ledger").exists()
    return StudyFolder(root.parent, path.resolve().name) if has_ledger else None


def load(path: "StoragePath") -> "Study | None":
    """Return the stored frames, or rebuild them in memory if the ledger has newer runs; None if there are none."""
    from analysis.study import load_study
    from cl2r.study.frames import study_frames

    folder = ledger_folder(path)
    if folder is None:
        return load_study(str(path))
    outcomes = folder.ledger.outcomes()
    if (path / "runs.parquet").exists():
        study = load_study(str(path))
        known = dict(zip(study.runs["run"], study.runs["status"], strict=True))
        if all(known.get(run) == event.kind for run, event in outcomes.items()):
            return study
    return study_of(folder, study_frames(folder)) if outcomes else None


def study_of(folder: "StudyFolder", frames: "dict[str, pd.DataFrame]") -> "Study":
    """Return the study with these frames and what its folder says about it."""
    from analysis.study import Study, read_paper, read_search, read_specification

    return Study(
        **frames,
        name=folder.name,
        specification=read_specification(folder),
        about=folder.read_about(),
        search=read_search(folder, frames["runs"]),
        paper=read_paper(folder),
    )


def leave_report(
    folder: "StudyFolder", frames: "dict[str, pd.DataFrame]", say: Callable[[str], object] = click.echo
) -> None:
    """Write figures and the page of a study that has ended into its folder, and say where they are.

    An error here is a line as well: the runs are done and the frames are written.
    """
    for what in ("figures", "report"):
        try:
            study = study_of(folder, frames)
            if what == "report":
                say(_write_page(study, folder.path))
            elif len(study.finished):
                say(_write_figures(study, folder.path / "figures"))
        except Exception as error:
            reason = without_secrets(" ".join(f"{type(error).__name__}: {error}".split()))
            say(f"no {what}: {reason}; the frames are complete, see `cl2r report --help`")


def _write_figures(study: "Study", folder: "StoragePath") -> str:
    from analysis.plots import write_figures

    with announced("drawing figures…"), folder.staging() as here:
        written = write_figures(study, here)
    return f"figures: {folder} ({len({path.stem for path in written})})"


def _write_page(study: "Study", folder: "StoragePath", name: str = "report.html") -> str:
    from analysis.report import write_report

    with announced("building the page…"), folder.staging() as here:
        write_report(study, here / name)
    return f"report: {folder / name}"


def watch_study(path: "StoragePath", page: Path, interval: float) -> int:
    """Rebuild the page when the study has changed, until no driver is at work or the user presses Ctrl-C.

    The last page does not reload itself. Return 0, 130 after Ctrl-C, or 1 if no run has ended.
    """
    from analysis.report import write_report
    from cl2r.study import status as state
    from cl2r.study.folder import StudyFolder

    folder, name, study = ledger_folder(path), path.resolve().name, None
    copied = StudyFolder.at(path)
    built: list[FileInfo] | None = None
    running, failures, code, said = True, 0, 0, ""
    click.echo(f"watching {name}; Ctrl-C stops")
    try:
        while failures < READ_ATTEMPTS:
            began, line = time.monotonic(), ""
            try:
                # Without a ledger only about.json says whether the study has ended.
                running = state.phase(folder) == "running" if folder else copied.read_about().get("ended") is None
                files = sorted(file for file in path.walk_files() if file.path.startswith(WATCHED))
                if files != built:
                    study, built = load(path), files
                    if running and study is None:
                        line = f"no run of {name} has ended yet: waiting for the first"
                    elif running and study is not None:
                        live = [state.counts(folder), *state.running(folder)] if folder else []
                        write_report(study, page, live, interval)
                        line = f"report: {page} (rebuilt while the study runs)"
                if not running:
                    break
            except UNREADABLE as error:
                failures += not running
                line = f"cannot read {name} at the moment: {error}"
            if line not in ("", said):
                click.echo(without_secrets(line))
                said = line
            time.sleep(max(interval, BUILD_SHARE * (time.monotonic() - began)))
    except KeyboardInterrupt:
        code = 130
    if study is None:
        click.echo(f"no run of {name} has ended, or none can be read: there is no report")
        return code or 1
    write_report(study, page)
    click.echo(f"report: {page}")
    return code
