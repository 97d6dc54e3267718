"""Hostile files in a study are refused by name, and nothing in them is run."""

import base64
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import load_study
from cl2r.config.layers import override, read_layer
from cl2r.study import frames
from cl2r.study.spec import StudySpec
from tests.support.made_study import made_study, write_made
from tests.support.miniatures import refusal


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "executed"


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
    assert f"{name}.parquet at {made} is damaged (" in refusal(lambda: load_study(made))
    assert not mark.exists()


def test_a_frame_of_absurdly_many_rows(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million equal values take no room in a file."""
    rows = pa.table({"run": pa.array(["x"] * 10**6).dictionary_encode()})
    pq.write_table(rows, made / "runs.parquet")
    assert (made / "runs.parquet").stat().st_size < 10**4
    monkeypatch.setattr(frames, "MAX_CELLS", 10**6 - 1)
    monkeypatch.setattr(pd, "read_parquet", lambda *_: pytest.fail("it was read"))
    assert "1000000 rows" in refusal(lambda: load_study(made))


def test_yaml_that_would_run_a_command(made: Path, mark: Path, tmp_path: Path) -> None:
    text = f"!!python/object/apply:os.system ['touch {mark}']"
    (made / "study.yaml").write_text(f"specification: {text}\n")
    assert f"{made / 'study.yaml'}: not valid YAML (line 1, " in refusal(lambda: load_study(made))
    path = tmp_path / "mine.yaml"
    path.write_text(f"seed: {text}\n")
    assert "mine.yaml" in refusal(lambda: read_layer(str(path)))
    assert "mine.yaml" in refusal(lambda: StudySpec.load(path))
    assert "seed" in refusal(lambda: override(f"seed={text}"))
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"[" * 10**5, b"\xff\xfe", b"7"])
def test_an_about_that_is_none(made: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (made / "about.json").write_bytes(content)
    assert load_study(made).about == {}
    assert "about.json" in caplog.text
