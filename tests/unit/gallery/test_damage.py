"""Damaged, forged or missing files of galleries, indexes and exported models are refused by name and never run."""

import contextlib
import hashlib
import io
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cl2r.errors import InputError
from cl2r.gallery.gallery import ITEMS, MANIFEST, MARK, VECTORS, Gallery
from cl2r.gallery.index import IndexOptions, build_indexes, open_index, read_index_file
from cl2r.gallery.model import CARD, EXPORT, SUPPORTS, find_model, write_export
from cl2r.storage import seal
from tests.support.galleries import filled, made_version, refused, resealed, trained

EXPORTED = ("task1.safetensors", "task2.safetensors", "task3.safetensors", SUPPORTS)
SEAL = CARD + seal.SUFFIX
KINDS = (MARK, "commit", MANIFEST, VECTORS, ITEMS, "description", "index", CARD, *EXPORTED)
NO_RECORDS = (b"", b"{", b"[]", b"null", b"3", b"{}", b"\xff", b"[" * 100_000, b'{"name": 1}', b'"format"')
"""Contents of a JSON file that are no record."""
Target = tuple[Path, Callable[[], object]]
"""A file and a function that reads it."""


@pytest.fixture(scope="module")
def targets(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    """Files of every kind; tests that change one put it back."""
    root = tmp_path_factory.mktemp("damage")
    gallery = filled(root / "gallery", made_version(1), made_version(2))
    build_indexes(gallery, IndexOptions("hnsw"))
    write_export(trained(tiny, "er+slerp").files(3), root / "model")
    assert {path.name for path in (root / "model").iterdir()} == {*EXPORTED, CARD, SEAL}
    shard, (description, _) = gallery.commit.shards[0], (gallery.root / "index").list("*.json")
    folder, blocks = gallery.shards.folder / shard.name, [gallery.shards.vectors(gallery.commit.shards[0])]
    (index,) = description.parent.glob(f"{description.stem}-*.faiss")

    def exported() -> object:
        return find_model(str(root / "model"), root)

    return {
        MARK: (gallery.root / MARK, lambda: Gallery(gallery.root)),
        "commit": (gallery.root / "commits" / "00000002.json", lambda: Gallery(gallery.root)),
        VECTORS: (folder / VECTORS, lambda: gallery.shards.vectors(shard)),
        ITEMS: (folder / ITEMS, lambda: gallery.shards.items(shard)),
        "description": (description, lambda: read_index_file(description, gallery.id)),
        "index": (index, lambda: open_index(description, read_index_file(description, gallery.id), blocks)),
        MANIFEST: (folder / MANIFEST, lambda: gallery.shards.read_manifest(shard.name)),
        **{name: (root / "model" / name, exported) for name in (CARD, *EXPORTED)},
    }


@contextlib.contextmanager
def changed(path: Path, content: bytes | None) -> Iterator[None]:
    """Replace a file's content, or remove the file, for a while."""
    before = path.read_bytes()
    path.unlink() if content is None else path.write_file(content)
    try:
        yield
    finally:
        path.write_file(before)


def shown(path: Path) -> Path:
    """Return what a message names: the file, or the folder of a gallery or an exported model."""
    return path.parent if path.name == MARK or path.parent.name == "model" else path


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "PAUSE_SECONDS", 0)


def damages(content: bytes) -> Iterator[bytes]:
    """Yield the content torn, extended, and with a bit flipped at 40 places, first and last byte included."""
    yield from (b"", content[: len(content) // 2], content[:-1], content + b"x")
    for place in sorted({round(at) for at in np.linspace(0, len(content) - 1, 40)}):
        yield content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_or_missing_file_is_refused_by_name(targets: dict[str, Target], kind: str) -> None:
    path, read = targets[kind]
    read()
    for content in [*damages(path.read_bytes()), None]:
        with changed(path, content), refused(shown(path)):
            read()


@pytest.mark.parametrize("kind", [MARK, "commit", MANIFEST, "description", CARD])
def test_a_file_that_is_no_record_is_refused(targets: dict[str, Target], kind: str) -> None:
    path, read = targets[kind]
    for content in NO_RECORDS:
        with changed(path, content), refused(shown(path)):
            read()


def seal_of(card: bytes) -> bytes:
    """Return the seal beside the card of an exported model."""
    return seal.sealed(card, EXPORT).removesuffix(card)


@contextlib.contextmanager
def forged(path: Path, change: Callable[[Any], Any], files: dict[str, bytes] | None = None) -> Iterator[None]:
    """Replace parts of a record, and for a card files beside it, with right checksums, for a while."""
    content = path.read_bytes()
    others = dict(files or {})
    if path.name == CARD:
        entry = json.loads(content)
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in others.items()}
        content = json.dumps(entry | {"files": entry["files"] | digests, "card": change(entry["card"])}).encode()
        others[SEAL] = seal_of(content)
    else:
        content = resealed(content, change)
    with contextlib.ExitStack() as stack:
        for name, data in (others | {path.name: content}).items():
            stack.enter_context(changed(path.parent / name, data))
        yield


FIELDS: dict[str, dict[str, list[Any]]] = {
    MARK: {"format": [1, "2", None], "id": ["../x", None, "another"], "commits": [-1, None, 3], "more": [1]},
    "commit": {
        "number": [7],
        "more": [1],
        "versions": [{}, 1],
        "shards": [{}, 1],
        **{f"shards.0.{name}": ["../../x", None] for name in ("name", "vectors", "rows")},
        "shards.0.version": ["../../x", "another"],
        "versions.key1.key": ["../x", "another"],
        "versions.key1.keys": [None],
    },
    "description": {
        **{name: ["../x", None, -7] for name in ("digest", "version")},
        "shards": [["../x"], None, [7]],
        "options": [None, {"kind": "flat"}, {"nlist": "x"}, {"kind": "exact"}, {"kind": "auto"}],
        "rows": [None, -7],
        "more": [1],
    },
    CARD: {
        "task": ["3/../../er/task3", 10**15, 0, 2, True],
        "keys": [[], ["../x", "../y", "../z"]],
        "classes": [[4, 4], [4, 4, 0], [4, 4, -3]],
        "num_outputs": [0, -5, 10**13],
        "run": ["", "a\x1b[31m", "a\0", "a\n"],
        "config": [{}, [], {"method": {"name": "er"}, "adapter": "slerp"}, {"method": {"name": "nothing"}}],
        "size": [0, "16", 10**6],
        "channels": [2],
        "mean": [[0.5, 0.5, 0.5], [float("nan")]],
        "std": [[], [0.0], [-1.0], [float("inf")]],
        "fit": ["somehow"],
        "more": [1],
    },
}
"""Values that make no sense, by record and field."""


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [(kind, field, value) for kind, fields in FIELDS.items() for field, values in fields.items() for value in values],
)
def test_a_forged_record_that_makes_no_sense_is_refused(
    targets: dict[str, Target], kind: str, field: str, value: object
) -> None:
    """Even with right checksums: a stranger who offers a gallery or a model computes them too."""
    path, read = targets[kind]

    def change(entry: Any) -> Any:
        inner, (*parents, last) = entry, field.split(".")
        for part in parents:
            inner = inner[int(part) if part.isdecimal() else part]
        inner[last] = value
        return entry

    with forged(path, lambda entry: entry):
        read()
    with forged(path, change), refused(shown(path)):
        read()


def test_a_forged_card_that_makes_sense_is_read(targets: dict[str, Target]) -> None:
    path, read = targets[CARD]
    with forged(path, lambda card: card | {"run": "another"}):
        assert read().card.name == "another@3"  # type: ignore[attr-defined]
    other = json.dumps(json.loads(path.read_bytes()) | {"format": 1}).encode()
    with changed(path, other), changed(path.parent / SEAL, seal_of(other)), refused(path, "version"):
        read()


class Boom:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_run(targets: dict[str, Target], tmp_path: Path) -> None:
    content, array = pickle.dumps(Boom(tmp_path / "boom")), io.BytesIO()
    for name in EXPORTED:
        with forged(targets[CARD][0], lambda card: card, {name: content}), refused(targets[CARD][0].parent):
            targets[CARD][1]()
    np.save(array, np.array([Boom(tmp_path / "boom")], dtype=object), allow_pickle=True)
    path, gallery = targets[VECTORS][0], Gallery(targets[MARK][0].parent)
    for data in (content, array.getvalue()):
        with changed(path, data), refused(path):
            gallery.shards.vectors(gallery.commit.shards[0])
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("items", [0, 1])
def test_vectors_that_are_no_array_are_one_line(targets: dict[str, Target], items: int) -> None:
    """numpy parses the header as Python, and its own message for other files says how to unpickle them all the same."""
    path, gallery, array = targets[VECTORS][0], Gallery(targets[MARK][0].parent), io.BytesIO()
    np.save(array, np.array([{1}], dtype=object), allow_pickle=True)
    shard = gallery.commit.shards[0].model_copy(update={"items": items})
    headers = [b"\x93NUMPY\1\0\x10\0" + b"(" * 16, b"\x93NUMPY\3\0\x10\x27\0\0" + b"-" * 10_000, b"\x93NUMPY\7\0"]
    for data in (b"", b"nothing", pickle.dumps({1}), array.getvalue(), *headers):
        with changed(path, data), pytest.raises(InputError) as caught:
            gallery.shards.vectors(shard)
        message = str(caught.value)
        assert message.startswith(f"{path} is damaged (")
        assert "\n" not in message
        assert not any(word in message for word in ("pickle", "trust", "unsafe"))
