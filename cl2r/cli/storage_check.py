"""The checks of `cl2r fsck`: everything below a storage is read, and what is not as it should be is a finding."""

import contextlib
import dataclasses
import functools
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from analysis.study import SEARCH_FRAMES
from cl2r.cli.findings import (
    LOCK,
    Finding,
    Kind,
    References,
    any_of,
    children,
    foreign,
    is_symlink,
    listing,
    noted,
    size_of,
)
from cl2r.cli.gallery_check import check_export, check_gallery, galleries_and_exports
from cl2r.config.keys import KEY
from cl2r.engine.links import (
    LINK_FILE,
    MANIFEST,
    PARTIAL,
    PARTIAL_FILE,
    DamagedError,
    LinkStore,
    content_name,
)
from cl2r.errors import InputError
from cl2r.rayrun.optuna_journal import check_journal
from cl2r.storage.claims import HOLDER, HeldError
from cl2r.storage.leftovers import is_old, stale, stale_temporary
from cl2r.storage.path import ASIDE, HIDDEN, FileInfo, StoragePath, is_aside, sha256
from cl2r.storage.seal import SUFFIX, SealError, read_beside, run_owner, seal_path, set_aside_with_seal
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import FRAMES, write_frames
from cl2r.study.ledger import NAME as EVENT_NAME
from cl2r.study.live import read_live, read_progress
from cl2r.study.status import phase

OURS = ("links", "partials", "claims", "runs", "studies")
"""Folders of a storage; galleries and exported models may be anywhere else in it."""
RUN_FILES = {"config.yaml", "result.json", *(f"{name}.parquet" for name in ("runs", "tasks", "matrix", "curves"))}
STUDY_FILES = {"study.yaml", "about.json", "paper.json", "optuna.journal", *(f"{name}.parquet" for name in FRAMES)}
"""Files of a study that have their seal beside them."""
STUDY_PARTS = ("ledger", "live", "figures", "search", "tensorboard", "wandb", "ray", "report.html", "recommended.yaml")
READERS = 16  # links that are read at the same time: an object store answers each request after a while


def _with_seals(names: set[str]) -> re.Pattern[str]:
    return any_of(*sorted(names), *sorted(f"{name}{SUFFIX}" for name in names))


IN_CLAIMS = re.compile(rf"(?:run-[0-9a-f]{{32}}|{KEY.pattern}?){LOCK}")
IN_RUN = _with_seals(RUN_FILES)
IN_STUDY = re.compile(
    rf"{_with_seals(STUDY_FILES).pattern}|{any_of(*STUDY_PARTS).pattern}|optuna\.journal\.lock|stop|driver\.lock{LOCK}"
)


Check = Callable[[StoragePath], Iterator[Finding]]
Thing = tuple[StoragePath, Check, References | None]
"""An item, its check, and what it tells about the links that are needed."""


def check_storage(
    storage: StoragePath, report: Callable[[int, int], object] = lambda done, total: None
) -> Iterator[Finding]:
    """Yield the problems below a storage; `report` is called with the number of items read and the total.

    What cannot be read is a finding, and the check continues. Raise InputError if nothing there is of a storage.
    """
    store, used, faults = LinkStore(storage), References(), list[Finding]()
    tops = children(storage)
    galleries, exports = galleries_and_exports(tops, storage, faults)
    if tops and not (galleries or exports or faults or {path.name for path in tops} & set(OURS)):
        raise InputError(f"{storage}: not a storage: it has none of the folders {', '.join(OURS)}")
    # Links of a run that has not finished are still needed by the command that is at work on it.
    used.doubt = _work(store)
    with contextlib.suppress(OSError):  # what cannot be read is found below, and all links stay
        used.read = _outcomes(storage)
    checks: dict[str, Check] = {
        "studies": lambda path: _check_study(StudyFolder.at(path), used),
        "runs": lambda path: _check_run(path, used),
        "links": lambda path: _check_link(store, path, used),
        "partials": lambda path: _check_partial(store, path),
    }
    things: list[Thing] = []
    for name, check in checks.items():
        needs = used if name in ("studies", "runs") else None
        with noted(storage / name, faults, needs):
            paths = children(storage / name)
            things += [(path, check, needs) for path in paths if not path.name.startswith(".")]
            hidden = [path for path in paths if path.name.startswith(".") and not HIDDEN.fullmatch(path.name)]
            faults += [Finding("foreign", path, "hidden, and not ours", size_of(path)) for path in hidden]
    with noted(storage / "claims", faults):
        faults += foreign(storage / "claims", IN_CLAIMS, "not a lock")
    others = (*OURS, *(path.name for path in tops)) if storage in galleries else ()
    things += [(path, functools.partial(check_gallery, others=others), None) for path in galleries]
    things += [(path, check_export, None) for path in exports]
    left_behind = list(_leftovers(storage, [*galleries, *exports], faults))  # before a repair sets anything aside
    yield from faults
    done = 0
    for part, group in itertools.groupby(things, key=lambda thing: thing[0].parent):
        run = _at_once if part in (store.root, store.partials) else _in_turn
        for found in run(list(group)):
            yield from found
            done += 1
            report(done, len(things))
    yield from left_behind


def _in_turn(things: list[Thing]) -> Iterator[Iterator[Finding]]:
    """Yield what is found in each, while it is read: a repair comes before what is read next."""
    for thing in things:
        yield _findings(*thing)


def _at_once(things: list[Thing]) -> Iterator[Iterator[Finding]]:
    """Yield what is found in each, in this order; so many are read at the same time that memory does not grow."""
    ahead = deque[Future[list[Finding]]]()
    with ThreadPoolExecutor(READERS) as pool:
        try:
            for thing in things:
                ahead.append(pool.submit(lambda one: list(_findings(*one)), thing))
                if len(ahead) > 2 * READERS:
                    yield iter(ahead.popleft().result())
            while ahead:
                yield iter(ahead.popleft().result())
        finally:
            for future in ahead:
                future.cancel()


def _findings(path: StoragePath, check: Check, needs: References | None) -> Iterator[Finding]:
    """Yield what is found in one item; an error while reading is a finding too."""
    faults = list[Finding]()
    with noted(path, faults, needs):
        yield from check(path)
    yield from faults


def _work(store: LinkStore) -> str:
    """Return why links may be in use: a command is running, or this cannot be determined; empty if neither."""
    try:
        studies = [path for path in children(store.root.parent / "studies") if path.file_info() is None]
        busy = any(_is_driven(StudyFolder.at(path)) for path in studies)
        busy = busy or any(lock.holder() is not None for lock in _locks(store.locks))
    except OSError as error:
        return f"it cannot be determined whether a command is at work ({error})"
    return "a command is at work" if busy else ""


def _is_driven(folder: StudyFolder) -> bool:
    """Return whether a driver is at work on a study, on this machine or another."""
    with contextlib.suppress(InputError):  # it has ended, but the event that says so is damaged
        return phase(folder) == "running"
    return False


def _locks(claims: StoragePath) -> list[StoragePath]:
    """Return the locks of links and runs that a process holds, or held when it was killed."""
    suffix = r"\.[0-9a-f]{32}\.json" if claims.remote else re.escape(HOLDER)
    found = (re.fullmatch(f"(.+){suffix}", path.name) for path in children(claims))
    return [claims / name for name in sorted({match[1] for match in found if match})]


def _check_link(store: LinkStore, path: StoragePath, used: References) -> Iterator[Finding]:
    files = listing(path) if KEY.fullmatch(path.name) else None
    if files is None:
        yield Finding("foreign", path, "not a link", size_of(path))
        return
    size = sum(entry.size for entries in files.values() for entry in entries)
    # In a folder, a file of its own is one entry with that name; a folder in it has none, or entries below it.
    plain = {name for name, entries in files.items() if [entry.path for entry in entries] == [name]}
    if MANIFEST not in files:
        gone = path.remote and not size and not plain  # only the mark of a folder is left
        if gone or (store.locks / path.name).holder() is not None:
            return
        if all(LINK_FILE.fullmatch(name) and name in plain for name in files):
            yield Finding("left behind", path, "a link that was not written whole", size, path.remove_tree)
        else:
            yield Finding("foreign", path, "not a link", size)
        return
    foreign = [name for name in files if not LINK_FILE.fullmatch(name)]
    yield from (Finding("foreign", path / name, "not a file of a link", size_of(path / name)) for name in foreign)
    try:
        manifest = store.check(path.name)
    except DamagedError as error:
        aside = None if foreign else path.set_aside  # what is set aside is removed one day
        yield Finding("damaged", path, f"{error}; it will be trained again", size, aside)
        return
    listed = {MANIFEST, *(content_name(digest, name) for name, digest in manifest.items())}
    for name in files:
        if name not in listed and name not in foreign and not HIDDEN.fullmatch(name):
            file = path / name
            remove = file.unlink if name in plain else None
            yield Finding("left behind", file, "another attempt's file", size_of(file), remove)
    if path.name not in used.keys:
        doubt = used.doubt or "it holds foreign files" * bool(foreign)
        what = f"no finished run refers to this link{f', but {doubt}' * bool(doubt)}"
        remove = functools.partial(_remove_link, store, path, used.read)
        yield Finding("unused", path, what, size, None if doubt else remove)


def _outcomes(storage: StoragePath) -> set[FileInfo]:
    """Return the files that say which links finished runs use: results of runs, and events of studies."""
    found = {entry for entry in (storage / "runs").walk_files() if entry.path.endswith("/result.json")}
    return found | {entry for entry in (storage / "studies").walk_files() if "/ledger/" in entry.path}


def _remove_link(store: LinkStore, path: StoragePath, read: set[FileInfo]) -> None:
    """Remove a link that no finished run refers to. Raise InputError if a command has begun since that was found."""
    if work := _work(store):
        raise InputError(work)
    if _outcomes(store.root.parent) != read:
        raise InputError("a command has been at work since the check began")
    path.remove_tree()


def _check_partial(store: LinkStore, path: StoragePath) -> Iterator[Finding]:
    if not KEY.fullmatch(path.name) or path.file_info() is not None:
        yield Finding("foreign", path, "not an unfinished epoch", size_of(path))
        return
    if (store.locks / path.name).holder() is not None:
        return  # it is being trained
    foreign = [file for file in children(path) if not PARTIAL_FILE.fullmatch(file.name)]
    yield from (Finding("foreign", file, "not a file of an unfinished epoch", size_of(file)) for file in foreign)
    if not (path / PARTIAL).exists():
        if not foreign:
            yield Finding("left behind", path, "an epoch that was not written whole", size_of(path), path.remove_tree)
        return
    try:
        entry = store.read_partial(path.name)
        if sha256((path / str(entry["file"])).read_bytes()) != entry["sha256"]:
            raise ValueError("the checksum differs")
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        what = f"an unfinished epoch ({error}); the task will start again"
        yield Finding("damaged", path, what, size_of(path), None if foreign else path.set_aside)
        return
    if path.name in store:
        remove = None if foreign else path.remove_tree
        yield Finding("left behind", path, "the epoch of a finished link", size_of(path), remove)


def _check_study(folder: StudyFolder, used: References) -> Iterator[Finding]:
    """Yield what is wrong with a study; repairs hold the lock of its driver."""
    for finding in _study_faults(folder, used):
        locked = functools.partial(_repair_locked, folder, finding.repair) if finding.repair else None
        yield dataclasses.replace(finding, repair=locked)


def _repair_locked(folder: StudyFolder, repair: Callable[[], object]) -> None:
    with folder.driver_lock():
        repair()


def _study_faults(folder: StudyFolder, used: References) -> Iterator[Finding]:
    if not folder.specification.exists() and not (folder.path / "ledger").exists():
        yield Finding("foreign", folder.path, "not a study", size_of(folder.path))
        return
    yield from foreign(folder.path, IN_STUDY, "not a file of a study")
    yield from foreign(folder.ledger.folder, EVENT_NAME, "not an event")
    driven = _is_driven(folder)  # its driver is at work and checks for itself
    if not driven and (fault := folder.fault()):
        yield Finding("damaged", folder.specification, fault)
    children(folder.ledger.folder)  # raises an error if it cannot be read, which the ledger takes for empty
    bad = {event.path: why for event, why in folder.ledger.damaged()}
    for event in folder.ledger.last("finished").values():
        if event.path not in bad:
            used.keys |= {str(row["key"]) for row in event.read().get("frames", {}).get("tasks", ())}
    if driven:
        used.doubt = used.doubt or "a command is at work"
        return
    yield from _left_by_driver(folder)
    closed = not bad and phase(folder) == "closed"
    if bad or folder.ledger.folder.list(f"{ASIDE}*.finished.*"):
        used.doubt = used.doubt or f"an event of {folder.path} is damaged: run the study's command first"
    elif not closed:
        used.doubt = used.doubt or f"{folder.path} has not ended: resume it, or remove its folder"
    for path, why in bad.items():
        yield Finding(
            "damaged", path, f"{why}; its content is rebuilt by the study's command", size_of(path), path.set_aside
        )
    frames = [f"{name}.parquet" for name in FRAMES]
    if missing := [name for name in frames if closed and not (folder.path / name).exists()]:

        def write() -> None:
            write_frames(folder)

        yield Finding("damaged", folder.path / missing[0], "it is missing; it is rebuilt from the ledger", 0, write)
    for name in [*frames, "about.json", "paper.json", *_search_frames(folder)]:
        path = folder.path / name
        try:
            read_beside(path, folder.owner(name))
        except FileNotFoundError:
            if name.startswith("search/") or (name == "paper.json" and seal_path(path).exists()):
                yield Finding("damaged", path, "it is missing; it is written again by the study's command")
        except SealError as error:

            def again(path: StoragePath = path, frame: bool = name in frames) -> None:
                path.set_aside()
                if frame and not bad:  # otherwise the study's command, which first replaces what is lost
                    write_frames(folder)

            yield Finding("damaged", path, str(error), size_of(path), again)
    if fault := check_journal(folder):
        remove = functools.partial(set_aside_with_seal, folder.journal)
        yield Finding("damaged", folder.journal, f"{fault}; it is rebuilt from the ledger", 0, remove)


def _left_by_driver(folder: StudyFolder) -> Iterator[Finding]:
    """Yield what a driver removes when it ends, of a study without one."""
    if folder.live.file_info() is None:
        for path in children(folder.live):
            try:
                read_progress(path)
            except (OSError, ValueError):
                if not HIDDEN.fullmatch(path.name):
                    yield Finding("foreign", path, "not a progress file", size_of(path))
                continue
            yield Finding("left behind", path, "progress of a process that ended", size_of(path), path.unlink)
    else:
        yield Finding("foreign", folder.live, "a file in place of the folder of progress", size_of(folder.live))
    scratch, stop = folder.path / "ray", folder.path / "stop"
    if scratch.exists():
        is_file = scratch.file_info() is not None
        what = "a file in place of Ray's folder" if is_file else "Ray's files of a driver that ended"
        kind: Kind = "foreign" if is_file else "left behind"
        yield Finding(kind, scratch, what, size_of(scratch), None if is_file else scratch.remove_tree)
    if stop.exists():
        working = any(not row.stale for row in read_live(folder.live))  # a process that is to stop
        what = "the request to stop of a driver that ended"
        yield Finding(
            "left behind", stop, what, size_of(stop), None if working or not stop.file_info() else stop.unlink
        )


def _search_frames(folder: StudyFolder) -> list[str]:
    """Return the frames of a search study, also those that are missing; none for other studies."""
    there = {path.name for path in (folder.path / "search").list("*.parquet")}
    return sorted(f"search/{name}" for name in there | {f"{name}.parquet" for name in SEARCH_FRAMES}) if there else []


def _check_run(path: StoragePath, used: References) -> Iterator[Finding]:
    there = {file.name.removesuffix(SUFFIX) for file in path.list("*") if not file.name.startswith(".")}
    if not there & RUN_FILES:
        yield Finding("foreign", path, "not a run", size_of(path))
        return
    yield from foreign(path, IN_RUN, "not a file of a run")
    for file in (path / name for name in sorted(RUN_FILES)):
        try:
            content = read_beside(file, run_owner(path.name, file.name))
            if file.name == "result.json":
                used.keys |= {str(link["key"]) for link in json.loads(content)["links"]}
        except (SealError, FileNotFoundError) as error:
            if file.name == "result.json":
                used.doubt = used.doubt or f"{file} is damaged: run the command that wrote it first"
            fault = "it is missing" if isinstance(error, FileNotFoundError) else str(error)
            size = size_of(file) if file.exists() else 0
            yield Finding("damaged", file, f"{fault}; run the command that wrote it again", size)


def _leftovers(storage: StoragePath, others: list[StoragePath], faults: list[Finding]) -> Iterator[Finding]:
    """Yield what was set aside, and what dead processes wrote aside, in our folders and in the `others`."""
    found: list[StoragePath] = []
    for folder in (*(storage / name for name in OURS), *others):
        with noted(folder, faults):
            found += stale(folder)
    with noted(storage, faults):
        found += stale_temporary()
    for path in dict.fromkeys(found):
        with noted(path, faults):
            what = "set aside" if is_aside(path.name) else "left by a process that ended"
            is_file = path.file_info() or is_symlink(path)
            yield Finding("left behind", path, what, size_of(path), path.unlink if is_file else path.remove_tree)
    claims = storage / "claims"
    with noted(claims, faults):
        for lock in () if claims.remote else _locks(claims):  # `stale` has the tickets of an object store
            if is_old(lock) and lock.holder() is None:
                free = functools.partial(_free, lock)
                yield Finding("left behind", lock, "the lock of a process that ended", repair=free)


def _free(lock: StoragePath) -> None:
    """Remove the files of a lock on a disk. Raise InputError if a process holds it."""
    try:
        with lock.lock(wait=False):
            pass
    except HeldError as error:
        raise InputError(f"{error} holds it") from error
