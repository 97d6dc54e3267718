"""Checks of `cl2r fsck` for galleries and exported models."""

import functools
import re
from collections.abc import Iterator, Sequence

from cl2r.cli.findings import LOCK, Finding, any_of, foreign, listing, noted, size_of
from cl2r.errors import InputError
from cl2r.gallery.gallery import (
    COMMIT_NAME,
    ITEMS,
    MARK,
    SHARD_NAME,
    VECTORS,
    Gallery,
    newest_commit,
    own_files,
    read_commit,
)
from cl2r.gallery.gallery import MANIFEST as SHARD_MANIFEST
from cl2r.gallery.index import FILE_NAME, undescribed
from cl2r.gallery.maintenance import verify
from cl2r.gallery.model import read_export
from cl2r.storage.path import HIDDEN, StoragePath

IN_GALLERY = any_of(MARK, "commits", "shards", "index", "claims")
IN_SHARD = {VECTORS, ITEMS, SHARD_MANIFEST}


def galleries_and_exports(
    tops: list[StoragePath], storage: StoragePath, faults: list[Finding]
) -> tuple[list[StoragePath], list[StoragePath]]:
    """Return the folders of galleries and of exported models, also of those whose first file is missing."""
    names = list[str]()
    for top in tops:
        if top.name not in ("links", "partials", "runs", "claims") and not top.name.startswith("."):
            with noted(top, faults):
                files = [""] if top.file_info() else [f"/{entry.path}" for entry in top.walk_files()]
                names += [top.name + file for file in files]
    galleries, exports = set[str](), set[str]()
    for name in names:
        if "/." in name:
            continue
        if found := re.fullmatch(r"(?:(.+)/)?(?:gallery\.json|commits/\d{8,}\.json)", name):
            galleries.add(found[1] or "")
        elif found := re.fullmatch(r"(?:(.+)/)?(?:model\.json\.seal|task\d+\.safetensors)", name):
            exports.add(found[1] or "")
    first, second = ([storage / name if name else storage for name in sorted(names)] for names in (galleries, exports))
    return first, second


def check_gallery(path: StoragePath, others: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield what is wrong with a gallery; `others` are names in its folder that have checks of their own."""
    yield from (one for one in foreign(path, IN_GALLERY, "not of a gallery") if one.path.name not in others)
    yield from _foreign_below(path)
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
            yield Finding("damaged", commit, what, size_of(commit), commit.set_aside)
    if (path / "claims" / "write").holder() is not None:
        return  # a command is at work, and commits its shards at its end
    for name in gallery.uncommitted():
        shard, remove = gallery.shards.folder / name, functools.partial(_remove_shard, gallery, name)
        yield Finding("left behind", shard, "no commit lists this shard", size_of(shard), remove)
    for file in undescribed(gallery):
        remove = functools.partial(_remove_index, gallery, file)
        yield Finding("left behind", file, "an index without its description", size_of(file), remove)


def _foreign_below(gallery: StoragePath) -> Iterator[Finding]:
    """Yield foreign files in the folders of a gallery. A folder in place of a shard is foreign if it cannot be one."""
    for name, ours in {"commits": COMMIT_NAME, "index": FILE_NAME, "claims": re.compile(f"write{LOCK}")}.items():
        if (gallery / name).file_info() is None:
            yield from foreign(gallery / name, ours, "not of a gallery")
    shards = listing(gallery / "shards") or {}
    for name, entries in shards.items():
        shard = gallery / "shards" / name
        if HIDDEN.fullmatch(name):
            continue
        files = {entry.path.removeprefix(f"{name}/") for entry in entries}
        others = {file for file in files - IN_SHARD if not any(map(HIDDEN.fullmatch, file.split("/")))}
        if SHARD_NAME.fullmatch(name) and (SHARD_MANIFEST in files or (files & IN_SHARD and not others)):
            yield from (Finding("foreign", shard / file, "not a file of a shard") for file in sorted(others))
        else:
            yield Finding("foreign", shard, "not a shard", sum(entry.size for entry in entries))


def _remove_shard(gallery: Gallery, name: str) -> None:
    """Remove a shard, unless a command has committed it since it was found. Raise InputError if one is at work."""
    if who := (gallery.root / "claims" / "write").holder():
        raise InputError(f"{who} is at work")
    with gallery.writing():
        if name in gallery.uncommitted():
            gallery.check_alone()
            (gallery.shards.folder / name).remove_tree()


def _remove_index(gallery: Gallery, file: StoragePath) -> None:
    """Remove an index file, unless a command has described it since it was found."""
    if file in undescribed(gallery):
        file.unlink(missing_ok=True)


def check_export(path: StoragePath) -> Iterator[Finding]:
    """Yield what is wrong with an exported model."""
    try:
        read_export(path)
    except InputError as error:
        yield Finding("damaged", path, str(error))
