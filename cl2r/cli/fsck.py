"""`cl2r fsck`: read everything below a storage and list what is damaged, foreign or left behind."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Finding:
    """A file or folder that is not as it should be; `repair` does what can be done about it."""

    kind: Kind
    path: "StoragePath"
    what: str
    bytes: int = 0
    repair: Callable[[], object] | None = None


@click.command()
@click.argument("storage", required=False, callback=lambda ctx, param, value: shared.find_storage(value))
@click.option("--repair", is_flag=True, help="Set damaged files aside, make frames again, remove leftovers.")
@click.option("--remove-unused", is_flag=True, help="Remove links that no finished run refers to.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def fsck(storage: "StoragePath", repair: bool, remove_unused: bool, as_json: bool) -> None:
    """Check every link, study, run and gallery below a storage.

    Reads all of it, on a disk or in an object store, and changes nothing unless asked. Damaged links and events are
    set aside by --repair: the next command trains or evaluates again what they told. Exit code 0: all is sound; 5:
    something is damaged; 6: nothing is damaged, but files are foreign, unused or left behind. After repairs the code
    tells what is left.
    """
    from rich.console import Console
    from rich.progress import Progress

    if not storage.exists():
        raise click.UsageError(f"{storage}: no such folder")
    found, left = list[Finding](), list[Finding]()
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as progress:
        bar = progress.add_task("reading", total=None)
        for finding in check_storage(storage, lambda done, total: progress.update(bar, completed=done, total=total)):
            found.append(finding)
            wanted = remove_unused if finding.kind == "unused" else repair
            if wanted and finding.repair is not None:
                finding.repair()
            else:
                left.append(finding)
    codes = [DAMAGED if finding.kind == "damaged" else LEFT_BEHIND for finding in left]
    if as_json:
        entries = [{**vars(one), "path": str(one.path), "repaired": one not in left} for one in found]
        click.echo(json.dumps([{name: entry[name] for name in entry if name != "repair"} for entry in entries]))
    else:
        for finding in found:
            size = f", {finding.bytes:,} bytes" if finding.bytes else ""
            done = "" if finding in left else "; repaired"
            click.echo(f"{finding.kind}: {finding.path}: {finding.what}{size}{done}")
        counts = [f"{sum(one.kind == kind for one in found)} {kind}" for kind in dict.fromkeys(f.kind for f in found)]
        click.echo(", ".join(counts) or f"{storage}: all is sound")
    if codes:
        raise SystemExit(min(codes))


def check_storage(
    storage: "StoragePath", report: Callable[[int, int], object] = lambda done, total: None
) -> Iterator[Finding]:
    """Yield what is wrong below a storage; `report` is told how many things were read, of how many."""
    from cl2r.engine.links import LinkStore
    from cl2r.study.folder import StudyFolder

    store = LinkStore(storage)
    links = _children(store.root)
    partials = _children(store.partials)
    studies = [path for path in _children(storage / "studies") if not path.name.startswith(".")]
    runs = [path for path in _children(storage / "runs") if not path.name.startswith(".")]
    marks = [] if (storage / "gallery.json").exists() else _galleries(storage)
    galleries = [storage] if (storage / "gallery.json").exists() else marks
    total, done, used = sum(map(len, (links, partials, studies, runs, galleries))), 0, set[str]()
    checks: list[tuple[list[StoragePath], Callable[[StoragePath], Iterator[Finding]]]] = [
        (studies, lambda path: _check_study(StudyFolder.at(path), used)),
        (runs, lambda path: _check_run(path, used)),
        (links, lambda path: _check_link(store, path, used)),
        (partials, lambda path: _check_partial(store, path)),
        (galleries, _check_gallery),
    ]
    for paths, check in checks:
        for path in paths:
            yield from check(path)
            done += 1
            report(done, total)
    yield from _leftovers(storage)


def _children(folder: "StoragePath") -> "list[StoragePath]":
    return [*folder.list("*")] if folder.exists() else []


def _galleries(storage: "StoragePath") -> "list[StoragePath]":
    ours = ("links/", "partials/", "runs/", "claims/")
    names = [entry.path for entry in storage.walk_files() if entry.path.endswith("gallery.json")]
    return [(storage / name).parent for name in names if not name.startswith(ours)]


def _size(path: "StoragePath") -> int:
    info = path.file_info()
    return info.size if info else sum(entry.size for entry in path.walk_files())


def _check_link(store: "LinkStore", path: "StoragePath", used: set[str]) -> Iterator[Finding]:
    from cl2r.config.keys import KEY
    from cl2r.engine.links import MANIFEST, DamagedError, content_name

    if path.name.startswith("."):
        return  # set aside, or being written
    if not KEY.fullmatch(path.name) or path.file_info() is not None:
        yield Finding("foreign", path, "not a link", _size(path))
        return
    if not (path / MANIFEST).exists():
        if (store.locks / path.name).holder() is None:
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
            yield Finding("left behind", file, "another attempt's file", _size(file), file.unlink)
    if path.name not in used:
        yield Finding("unused", path, "no finished run refers to this link", _size(path), path.remove_tree)


def _check_partial(store: "LinkStore", path: "StoragePath") -> Iterator[Finding]:
    from cl2r.storage.path import sha256

    if path.name.startswith("."):
        return
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


def _check_study(folder: "StudyFolder", used: set[str]) -> Iterator[Finding]:
    from cl2r.errors import InputError
    from cl2r.rayrun.optuna_source import check_journal
    from cl2r.storage.seal import SealError, read_beside
    from cl2r.study.frames import FRAMES, write_frames

    if not folder.specification.exists() and not (folder.path / "ledger").exists():
        yield Finding("foreign", folder.path, "not a study", _size(folder.path))
        return
    if folder.is_driven():
        return  # its driver is at work and checks for itself
    if fault := folder.fault():
        yield Finding("damaged", folder.specification, f"{fault}; run the study's command again, which writes it")
    bad = {event.path: why for event, why in folder.ledger.damaged()}
    for path, why in bad.items():
        yield Finding("damaged", path, f"{why}; what it told is made again", _size(path), path.set_aside)
    for event in folder.ledger.last("finished").values():
        if event.path not in bad:
            used |= {str(row["key"]) for row in event.read()["frames"]["tasks"]}
    names = [f"{name}.parquet" for name in FRAMES] + ["about.json", "paper.json"]
    search = [f"search/{path.name}" for path in (folder.path / "search").list("*.parquet")]
    for name in [*names, *search]:
        path = folder.path / name
        with contextlib.suppress(FileNotFoundError):
            try:
                read_beside(path, folder.owner(name))
            except SealError as error:
                frame = name in names and name.endswith(".parquet")

                def again(path: "StoragePath" = path, frame: bool = frame) -> None:
                    path.set_aside()
                    if frame:
                        with contextlib.suppress(InputError):  # of a damaged event, which is listed by itself
                            write_frames(folder)

                yield Finding("damaged", path, str(error), _size(path), again)
    if fault := check_journal(folder):
        yield Finding(
            "damaged", folder.journal, f"{fault}; it is made again from the ledger", 0, folder.journal.set_aside
        )


def _check_run(path: "StoragePath", used: set[str]) -> Iterator[Finding]:
    from cl2r.storage.seal import SUFFIX, SealError, read_beside, run_owner

    files = [file for file in path.list("*.seal") if not file.name.startswith(".")]
    if not files:
        yield Finding("foreign", path, "not a run", _size(path))
    for seal in files:
        file = path / seal.name.removesuffix(SUFFIX)
        try:
            content = read_beside(file, run_owner(path.name, file.name))
            if file.name == "result.json":
                used |= {str(link["key"]) for link in json.loads(content)["links"]}
        except (SealError, FileNotFoundError) as error:
            cure = "run the command that wrote it again"
            yield Finding("damaged", file, f"{error}; {cure}", _size(file) if file.exists() else 0)


def _check_gallery(path: "StoragePath") -> Iterator[Finding]:
    from cl2r.errors import InputError
    from cl2r.gallery.gallery import Gallery
    from cl2r.gallery.maintenance import verify

    try:
        gallery = Gallery(path)
        problems = verify(gallery, prune=False)
    except InputError as error:
        yield Finding("damaged", path, str(error))
        return
    yield from (Finding("damaged", path, problem) for problem in problems)
    for name in gallery.uncommitted():
        shard = gallery.shards.folder / name
        yield Finding("left behind", shard, "no commit lists this shard", _size(shard), shard.remove_tree)


def _leftovers(storage: "StoragePath") -> Iterator[Finding]:
    """Yield what was set aside, and what dead processes wrote aside."""
    from cl2r.storage.leftovers import stale, stale_temporary
    from cl2r.storage.path import ASIDE, LocalPath

    if isinstance(storage, LocalPath):
        for path in [*stale(storage), *stale_temporary()]:
            what = "set aside" if path.name.startswith(ASIDE) else "left by a process that ended"
            yield Finding("left behind", path, what, _size(path), path.remove_tree if path.is_dir() else path.unlink)
        return
    names = set[str]()
    for entry in storage.walk_files():
        before, aside, after = entry.path.partition(ASIDE)
        names |= {before + aside + after.partition("/")[0]} if aside else set()
    for object_path in (storage / name for name in sorted(names)):
        yield Finding("left behind", object_path, "set aside", _size(object_path), object_path.remove_tree)
