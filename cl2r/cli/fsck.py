"""`cl2r fsck`: read everything below a storage and list what is damaged, foreign or left behind."""

import contextlib
import dataclasses
import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import click

from cl2r.cli import options as shared

if TYPE_CHECKING:
    from cl2r.engine.links import LinkStore
    from cl2r.storage.path import StoragePath
    from cl2r.study.folder import StudyFolder

DAMAGED, LEFT_BEHIND = 5, 6
"""Exit codes: something is damaged; nothing is damaged, but there are foreign files or leftovers."""
Kind = Literal["damaged", "foreign", "left behind", "unused"]
RUN_FILES = {"config.yaml", "result.json", *(f"{name}.parquet" for name in ("runs", "tasks", "matrix", "curves"))}


@dataclass(frozen=True)
class Finding:
    """A file or folder that is not as it should be; `repair` does what can be done about it."""

    kind: Kind
    path: "StoragePath"
    what: str
    bytes: int = 0
    repair: Callable[[], object] | None = None
    repaired: bool = False


@dataclass
class References:
    """Keys of the links that finished runs refer to, and why links may be needed that are not among them."""

    keys: set[str] = field(default_factory=set)
    doubt: str = ""


@click.command()
@click.argument("storage", required=False, callback=lambda ctx, param, value: shared.find_storage(value))
@click.option("--repair", is_flag=True, help="Set damaged files aside, make frames again, remove leftovers.")
@click.option("--remove-unused", is_flag=True, help="Remove links that no finished run refers to.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def fsck(storage: "StoragePath", repair: bool, remove_unused: bool, as_json: bool) -> None:
    """Check every link, study, run, gallery and exported model below a storage.

    Reads all of it, on a disk or in an object store, and changes nothing unless asked. Damaged links and events are
    set aside by --repair: the next command trains or evaluates again what they told. What was set aside is listed from
    then on, and removed by the next --repair. Exit code 0: all is sound; 5: something is damaged; 6: nothing is
    damaged, but files are foreign, unused or left behind. After repairs the code tells what is left.
    """
    from rich.console import Console
    from rich.progress import Progress

    if not storage.exists():
        raise click.UsageError(f"{storage}: no such folder")
    found, left, console = list[Finding](), list[Finding](), Console(stderr=True)
    with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        bar = progress.add_task("reading", total=None)
        for finding in check_storage(storage, lambda done, total: progress.update(bar, completed=done, total=total)):
            wanted = remove_unused if finding.kind == "unused" else repair
            if wanted and finding.repair is not None:
                finding.repair()
                finding = dataclasses.replace(finding, repaired=True)
            else:
                left.append(finding)
            found.append(finding)
    if as_json:
        names = ("kind", "path", "what", "bytes", "repaired")
        entries = [{name: getattr(one, name) for name in names} | {"path": str(one.path)} for one in found]
        click.echo(json.dumps({"storage": str(storage), "findings": entries, "left": len(left)}))
    else:
        for finding in found:
            size = f", {finding.bytes:,} bytes" if finding.bytes else ""
            click.echo(f"{finding.kind}: {finding.path}: {finding.what}{size}{'; repaired' * finding.repaired}")
        counts = Counter(finding.kind for finding in found)
        click.echo(", ".join(f"{count} {kind}" for kind, count in counts.items()) or f"{storage}: all is sound")
    if left:
        raise SystemExit(DAMAGED if any(finding.kind == "damaged" for finding in left) else LEFT_BEHIND)


def check_storage(
    storage: "StoragePath", report: Callable[[int, int], object] = lambda done, total: None
) -> Iterator[Finding]:
    """Yield what is wrong below a storage; `report` is told how many things were read, of how many."""
    from cl2r.engine.links import LinkStore
    from cl2r.study.folder import StudyFolder

    store = LinkStore(storage)
    left_behind = list(_leftovers(storage))  # before anything is set aside by a repair
    links, partials = _children(store.root), _children(store.partials)
    studies = [path for path in _children(storage / "studies") if not path.name.startswith(".")]
    runs = [path for path in _children(storage / "runs") if not path.name.startswith(".")]
    galleries, exports = _galleries_and_exports(storage)
    total, done = sum(map(len, (links, partials, studies, runs, galleries, exports))), 0
    # Links of a run that has not finished are still needed by the command that is at work on it.
    busy = any(StudyFolder.at(path).is_driven() for path in studies) or _is_training(store)
    used = References(doubt="a command is at work" * busy)
    checks: list[tuple[list[StoragePath], Callable[[StoragePath], Iterator[Finding]]]] = [
        (studies, lambda path: _check_study(StudyFolder.at(path), used)),
        (runs, lambda path: _check_run(path, used)),
        (links, lambda path: _check_link(store, path, used)),
        (partials, lambda path: _check_partial(store, path)),
        (galleries, _check_gallery),
        (exports, _check_export),
    ]
    for paths, check in checks:
        for path in paths:
            try:
                yield from check(path)
            except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
                yield Finding("damaged", path, f"it cannot be read ({error})")
            done += 1
            report(done, total)
    yield from left_behind


def _children(folder: "StoragePath") -> "list[StoragePath]":
    return [*folder.list("*")] if folder.exists() else []


def _is_training(store: "LinkStore") -> bool:
    """Return whether a process holds the lock of a link."""
    suffix = r"\.[0-9a-f]{32}\.json" if store.locks.remote else r"\.holder"
    names = {re.sub(f"{suffix}$", "", path.name) for path in _children(store.locks)}
    return any((store.locks / name).holder() is not None for name in names)


def _galleries_and_exports(storage: "StoragePath") -> "tuple[list[StoragePath], list[StoragePath]]":
    """Return the folders of galleries and of exported models, also of those whose first file is missing."""
    ours = ("links/", "partials/", "runs/", "claims/")
    galleries, exports = set[str](), set[str]()
    for entry in storage.walk_files():
        if entry.path.startswith(ours) or "/." in f"/{entry.path}":
            continue
        if found := re.fullmatch(r"(?:(.+)/)?(?:gallery\.json|commits/\d{8,}\.json)", entry.path):
            galleries.add(found[1] or "")
        elif found := re.fullmatch(r"(?:(.+)/)?(?:model\.json\.seal|task\d+\.safetensors)", entry.path):
            exports.add(found[1] or "")
    first, second = ([storage / name if name else storage for name in sorted(names)] for names in (galleries, exports))
    return first, second


def _size(path: "StoragePath") -> int:
    info = path.file_info()
    return info.size if info else sum(entry.size for entry in path.walk_files())


def _check_link(store: "LinkStore", path: "StoragePath", used: References) -> Iterator[Finding]:
    from cl2r.config.keys import KEY
    from cl2r.engine.links import MANIFEST, DamagedError, content_name

    if path.name.startswith("."):
        return  # set aside, or being written
    if not KEY.fullmatch(path.name) or path.file_info() is not None:
        yield Finding("foreign", path, "not a link", _size(path))
        return
    if not (path / MANIFEST).exists():
        gone = path.remote and next(path.walk_files(), None) is None  # only the mark of a folder is left
        if not gone and (store.locks / path.name).holder() is None:
            yield Finding("left behind", path, "a link that was not written whole", _size(path), path.remove_tree)
        return
    try:
        store.check(path.name)
    except DamagedError as error:
        yield Finding("damaged", path, f"{error}; it will be trained again", _size(path), path.set_aside)
        return
    listed = {MANIFEST, *(content_name(digest, name) for name, digest in store.manifest(path.name).items())}
    for file in path.list("*"):
        if file.name not in listed and not file.name.startswith("."):
            remove = file.unlink if file.file_info() else file.remove_tree
            yield Finding("left behind", file, "another attempt's file", _size(file), remove)
    if path.name not in used.keys:
        what = f"no finished run refers to this link{f', but {used.doubt}' * bool(used.doubt)}"
        yield Finding("unused", path, what, _size(path), None if used.doubt else path.remove_tree)


def _check_partial(store: "LinkStore", path: "StoragePath") -> Iterator[Finding]:
    from cl2r.config.keys import KEY
    from cl2r.storage.path import sha256

    if path.name.startswith("."):
        return
    if not KEY.fullmatch(path.name) or path.file_info() is not None:
        yield Finding("foreign", path, "not an unfinished epoch", _size(path))
        return
    if (store.locks / path.name).holder() is not None:
        return  # it is being trained
    try:
        entry = store.read_partial(path.name)
        if sha256((path / str(entry["file"])).read_bytes()) != entry["sha256"]:
            raise ValueError("the checksum differs")
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        what = f"an unfinished epoch ({error}); the task will start again"
        yield Finding("damaged", path, what, _size(path), path.set_aside)
        return
    if path.name in store:
        yield Finding("left behind", path, "the epoch of a finished link", _size(path), path.remove_tree)


def _check_study(folder: "StudyFolder", used: References) -> Iterator[Finding]:
    from cl2r.rayrun.optuna_source import check_journal
    from cl2r.storage.path import ASIDE
    from cl2r.storage.seal import SealError, read_beside, set_aside_with_seal
    from cl2r.study.frames import FRAMES, write_frames
    from cl2r.study.status import phase

    if not folder.specification.exists() and not (folder.path / "ledger").exists():
        yield Finding("foreign", folder.path, "not a study", _size(folder.path))
        return
    driven = folder.is_driven()  # its driver is at work and checks for itself
    if not driven and (fault := folder.fault()):
        yield Finding("damaged", folder.specification, fault)
    damaged = folder.ledger.damaged()
    bad = {event.path: why for event, why in damaged}
    for event in folder.ledger.last("finished").values():
        if event.path not in bad:
            used.keys |= {str(row["key"]) for row in event.read().get("frames", {}).get("tasks", ())}
    if any(event.kind == "finished" for event, _ in damaged) or folder.ledger.folder.list(f"{ASIDE}*.finished.*"):
        used.doubt = used.doubt or f"an event of {folder.path} is damaged: run the study's command first"
    if driven:
        return
    for path, why in bad.items():
        yield Finding("damaged", path, f"{why}; what it told is made again", _size(path), path.set_aside)
    frames = [f"{name}.parquet" for name in FRAMES]
    closed = phase(folder) == "closed" if not bad else False
    if missing := [name for name in frames if closed and not (folder.path / name).exists()]:

        def write() -> None:
            write_frames(folder)

        yield Finding("damaged", folder.path / missing[0], "it is missing; it is made again from the ledger", 0, write)
    for name in [*frames, "about.json", "paper.json", *_search_frames(folder)]:
        path = folder.path / name
        with contextlib.suppress(FileNotFoundError):
            try:
                read_beside(path, folder.owner(name))
            except SealError as error:

                def again(path: "StoragePath" = path, frame: bool = name in frames) -> None:
                    path.set_aside()
                    if frame and not bad:  # otherwise the study's command, which first replaces what is lost
                        write_frames(folder)

                yield Finding("damaged", path, str(error), _size(path), again)
    if fault := check_journal(folder):
        remove = functools.partial(set_aside_with_seal, folder.journal)
        yield Finding("damaged", folder.journal, f"{fault}; it is made again from the ledger", 0, remove)


def _search_frames(folder: "StudyFolder") -> list[str]:
    return [f"search/{path.name}" for path in (folder.path / "search").list("*.parquet")]


def _check_run(path: "StoragePath", used: References) -> Iterator[Finding]:
    from cl2r.storage.seal import SUFFIX, SealError, read_beside, run_owner

    there = {file.name.removesuffix(SUFFIX) for file in path.list("*") if not file.name.startswith(".")}
    if not there & RUN_FILES:
        yield Finding("foreign", path, "not a run", _size(path))
        return
    for file in (path / name for name in sorted(RUN_FILES)):
        try:
            content = read_beside(file, run_owner(path.name, file.name))
            if file.name == "result.json":
                used.keys |= {str(link["key"]) for link in json.loads(content)["links"]}
        except (SealError, FileNotFoundError) as error:
            if file.name == "result.json":
                used.doubt = used.doubt or f"{file} is damaged: run the command that wrote it first"
            fault = "it is missing" if isinstance(error, FileNotFoundError) else str(error)
            size = _size(file) if file.exists() else 0
            yield Finding("damaged", file, f"{fault}; run the command that wrote it again", size)


def _check_gallery(path: "StoragePath") -> Iterator[Finding]:
    from cl2r.errors import InputError
    from cl2r.gallery.gallery import COMMIT_NAME, Gallery, newest_commit, own_files, read_commit
    from cl2r.gallery.maintenance import verify

    try:
        gallery = Gallery(path)
        problems = verify(gallery, prune=False)
    except InputError as error:
        yield Finding("damaged", path, str(error))
        return
    yield from (Finding("damaged", path, problem) for problem in problems)
    newest = newest_commit(path)
    for commit in own_files(path / "commits", COMMIT_NAME):
        try:
            if commit != newest:
                read_commit(commit, gallery.id)
        except InputError as error:
            what = f"{error.__cause__}; no search needs this older commit"
            yield Finding("damaged", commit, what, _size(commit), commit.set_aside)
    for name in gallery.uncommitted():
        shard = gallery.shards.folder / name
        yield Finding("left behind", shard, "no commit lists this shard", _size(shard), shard.remove_tree)


def _check_export(path: "StoragePath") -> Iterator[Finding]:
    from cl2r.errors import InputError
    from cl2r.gallery.model import read_export

    try:
        read_export(path)
    except InputError as error:
        yield Finding("damaged", path, str(error))


def _leftovers(storage: "StoragePath") -> Iterator[Finding]:
    """Yield what was set aside, and what dead processes wrote aside."""
    from cl2r.storage.leftovers import stale, stale_temporary
    from cl2r.storage.path import ASIDE, LocalPath

    if isinstance(storage, LocalPath):
        aside = [path for path in stale(storage, 0) if path.name.startswith(ASIDE)]  # nobody is writing it
        for path in dict.fromkeys([*aside, *stale(storage), *stale_temporary()]):
            what = "set aside" if path.name.startswith(ASIDE) else "left by a process that ended"
            yield Finding("left behind", path, what, _size(path), path.remove_tree if path.is_dir() else path.unlink)
        return
    names = set[str]()
    for entry in storage.walk_files():
        before, mark, after = entry.path.partition(ASIDE)
        names |= {before + mark + after.partition("/")[0]} if mark else set()
    for object_path in (storage / name for name in sorted(names)):
        remove = object_path.unlink if object_path.file_info() else object_path.remove_tree
        yield Finding("left behind", object_path, "set aside", _size(object_path), remove)
