"""Hostile stores and studies: what others have written is data. It is refused by name, and nothing in it is run."""

import base64
import hashlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made_study import made_study, write_made
from miniatures import refusal
from safetensors.torch import save

from analysis import load_study
from analysis import study as studies
from cl2r.engine.store import FEATURES, MANIFEST, PARTIAL, RECORD, STATE, DamagedError, LinkStore, Partial
from cl2r.errors import InputError
from cl2r.layers import override, read_layer
from cl2r.study.folder import StudyFolder
from cl2r.study.spec import read_study

KEY = "0123456789abcdef0123456789abcdef"
TENSORS = {"w": torch.arange(4.0)}


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


class Warned(LinkStore):
    """A store that remembers its warnings."""

    def __init__(self, root: Path) -> None:
        self.warnings: list[str] = []
        super().__init__(root, self.warnings.append)


@pytest.fixture
def store(tmp_path: Path) -> Warned:
    made = Warned(tmp_path / "results")
    made.save(KEY, TENSORS, {"open": torch.ones(2, 2)}, {"seconds": 1.0})
    return made


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "executed"


def plant(store: LinkStore, name: str, content: bytes) -> None:
    """Put a file into the link, and have the manifest vouch for it."""
    link = store.root / KEY
    manifest = json.loads((link / MANIFEST).read_bytes())
    (link / name).write_bytes(content)
    (link / MANIFEST).write_text(json.dumps(manifest | {name: hashlib.sha256(content).hexdigest()}))


def header(length: int, text: bytes = b"{}") -> bytes:
    return struct.pack("<Q", length) + text


NOT_TENSORS = {
    "no header": b"",
    "a header without end": header(2**63 - 1),
    "a header longer than the file": header(10**9, b'{"w":'),
    "a header of brackets": header(10**5, b"[" * 10**5),
    "more than there is": header(62, b'{"w":{"dtype":"F32","shape":[99999999],"data_offsets":[0,4]}}\n') + bytes(4),
    "beyond the end": header(60, b'{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,99999999]}}') + bytes(8),
}


def readers(store: LinkStore) -> dict[str, Callable[[str], Any]]:
    return {STATE: store.state, FEATURES: store.features, RECORD: store.record}


def damage(act: Callable[[], object]) -> str:
    with pytest.raises((DamagedError, InputError)) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- links


@pytest.mark.parametrize("name", [STATE, FEATURES, RECORD])
def test_a_pickle_that_the_manifest_vouches_for(store: Warned, mark: Path, name: str) -> None:
    payload = pickle.dumps(Bomb(mark))
    plant(store, name, payload)
    assert name in damage(lambda: readers(store)[name](KEY))
    store.has(KEY)
    assert not mark.exists()
    pickle.loads(payload)
    assert mark.exists(), "the bomb would have gone off"


@pytest.mark.parametrize("content", NOT_TENSORS.values(), ids=NOT_TENSORS)
@pytest.mark.parametrize("name", [STATE, FEATURES])
def test_tensors_of_absurd_claims(store: Warned, name: str, content: bytes) -> None:
    plant(store, name, content)
    assert name in damage(lambda: readers(store)[name](KEY))


@pytest.mark.parametrize("content", [b"\x80\x04.", b"[" * 10**5, b"\xff\xfe", b""])
def test_a_record_that_is_none(store: Warned, content: bytes) -> None:
    plant(store, RECORD, content)
    assert RECORD in damage(lambda: store.record(KEY))


@pytest.mark.parametrize("content", [pickle.dumps(Bomb(Path("x"))), b"[" * 10**5, b"[]", b'{"state.safetensors": 7}'])
def test_a_manifest_that_is_none(store: Warned, content: bytes) -> None:
    (store.root / KEY / MANIFEST).write_bytes(content)
    assert MANIFEST in damage(lambda: store.state(KEY))
    assert not store.has(KEY)
    assert KEY in store.warnings[0]


def test_a_manifest_cannot_send_the_store_elsewhere(store: Warned, tmp_path: Path) -> None:
    """Whatever names and digests it holds: what is outside is neither read as a link nor removed."""
    outside = tmp_path / "victim"
    outside.mkdir()
    (outside / STATE).write_bytes(save(TENSORS))
    content = json.loads((store.root / KEY / MANIFEST).read_bytes())
    for lie in ("../../../victim/state.safetensors", str(outside / STATE), "../../../victim", ".."):
        hostile = {lie: content[STATE], STATE: lie, FEATURES: lie, RECORD: lie}
        (store.root / KEY).mkdir(exist_ok=True)
        (store.root / KEY / MANIFEST).write_text(json.dumps(hostile))
        damage(lambda: store.state(KEY))
        assert not store.has(KEY)
        assert (outside / STATE).read_bytes() == save(TENSORS)


@pytest.mark.parametrize("key", ["../victim", "../../victim", "ABSOLUTE", "..", ".", ""])
def test_a_key_is_one_name(store: Warned, tmp_path: Path, key: str) -> None:
    """A damaged link is removed: a key that leads elsewhere would remove what is there."""
    kept = []
    for place in (tmp_path / "victim", tmp_path / "results" / "victim"):
        (place / "precious").mkdir(parents=True)
        kept.append(place / "precious")
    key = str(tmp_path / "victim") if key == "ABSOLUTE" else key
    for look in (store.has, store.partial, store.state):
        with pytest.raises((InputError, DamagedError, ValueError)):
            look(key)
    with pytest.raises((InputError, DamagedError, ValueError)):
        store.save_partial(key, Partial(0, 1, TENSORS, {}))
    assert all(place.is_dir() for place in kept)
    assert (store.root / KEY / MANIFEST).exists()


# ---------------------------------------------------------------- unfinished epochs


def partial_entry(store: LinkStore, entry: dict[str, Any]) -> None:
    body = json.dumps(entry).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    (store.partials / KEY / PARTIAL).write_bytes(digest + b"\n" + body)


def test_an_epoch_that_lies_elsewhere(store: Warned, tmp_path: Path) -> None:
    content = save(TENSORS)
    victim = tmp_path / "stage0-victim.safetensors"
    victim.write_bytes(content)
    for name in ("../../../stage0-victim.safetensors", str(victim), "stage/../../../../stage0-victim.safetensors"):
        store.save_partial(KEY, Partial(0, 1, TENSORS, {}))
        assert store.partial(KEY) is not None
        digest = hashlib.sha256(content).hexdigest()
        partial_entry(store, {"file": name, "sha256": digest, "stage": 0, "epoch": 1, "record": {}})
        (store.partials / KEY / "stage").mkdir()
        assert store.partial(KEY) is None
        assert KEY in store.warnings[-1]
        assert "\n" not in store.warnings[-1]
        assert victim.read_bytes() == content


@pytest.mark.parametrize("content", NOT_TENSORS.values(), ids=NOT_TENSORS)
def test_an_epoch_of_absurd_claims(store: Warned, content: bytes) -> None:
    store.save_partial(KEY, Partial(0, 1, TENSORS, {}))
    (name,) = (path.name for path in (store.partials / KEY).glob("stage*"))
    (store.partials / KEY / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    partial_entry(store, {"file": name, "sha256": digest, "stage": 0, "epoch": 1, "record": {}})
    assert store.partial(KEY) is None
    assert KEY in store.warnings[-1]


# ---------------------------------------------------------------- studies


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", "..", ".", ""])
def test_a_name_of_a_study_is_one_folder(tmp_path: Path, name: str) -> None:
    assert "a study's name is one folder's name" in refusal(lambda: StudyFolder(tmp_path, name))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    write_made(made_study(), tmp_path / "studies" / "made")
    return tmp_path / "studies" / "made"


class Pickled(pa.ExtensionType):
    """As old releases of pyarrow stored a class: pickled, and unpickled when it is read (CVE-2023-47248)."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        super().__init__(pa.int64(), "arrow.py_extension_type")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.payload

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, payload: bytes) -> "Pickled":
        return cls(payload)


def test_a_frame_with_a_pickled_type(made: Path, mark: Path) -> None:
    frame = pq.read_table(made / "runs.parquet")
    column = pa.ExtensionArray.from_storage(Pickled(pickle.dumps(Bomb(mark))), pa.array([7] * len(frame)))
    pq.write_table(frame.append_column("extra", column), made / "runs.parquet")
    schema = pq.read_metadata(made / "runs.parquet").metadata[b"ARROW:schema"]
    assert b"arrow.py_extension_type" in base64.b64decode(schema)
    assert load_study(made).runs["extra"].tolist() == [7] * len(frame)  # the numbers, and no class
    assert not mark.exists()


@pytest.mark.parametrize("name", ["runs", "tasks", "matrix", "curves"])
def test_a_frame_that_is_a_pickle(made: Path, mark: Path, name: str) -> None:
    (made / f"{name}.parquet").write_bytes(pickle.dumps(Bomb(mark)))
    assert f"{name}.parquet at {made} is damaged: " in refusal(lambda: load_study(made))
    assert not mark.exists()


def test_a_frame_of_absurdly_many_rows(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million equal values take no room in a file."""
    rows = pa.table({"run": pa.array(["x"] * 10**6).dictionary_encode()})
    pq.write_table(rows, made / "runs.parquet")
    assert (made / "runs.parquet").stat().st_size < 10**4
    monkeypatch.setattr(studies, "MOST_CELLS", 10**6 - 1)
    monkeypatch.setattr(pd, "read_parquet", lambda *_: pytest.fail("it was read"))
    assert "1000000 rows of 1 columns are more than a study has" in refusal(lambda: load_study(made))


YAML = "!!python/object/apply:os.system ['touch {mark}']"


def test_yaml_that_would_run_a_command(made: Path, mark: Path, tmp_path: Path) -> None:
    text = YAML.format(mark=mark)
    (made / "study.yaml").write_text(f"specification: {text}\n")
    assert f"study.yaml at {made} is damaged: could not determine a constructor" in refusal(lambda: load_study(made))
    path = tmp_path / "mine.yaml"
    path.write_text(f"seed: {text}\n")
    assert "not valid YAML" in refusal(lambda: read_layer(str(path)))
    assert "mine.yaml" in refusal(lambda: read_study(path, {}, [], None))
    assert "the value is not valid YAML" in refusal(lambda: override(f"seed={text}"))
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"[" * 10**5, b"\xff\xfe", b"7"])
def test_an_about_that_is_none(made: Path, content: bytes) -> None:
    (made / "about.json").write_bytes(content)
    assert "about.json" in refusal(lambda: load_study(made))
