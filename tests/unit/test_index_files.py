"""Indexes in files: memory-mapped, as they were written, or refused by name; nothing in them leads elsewhere."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_gallery import changed, damages, one_line

from cl2r.data.scenario import cache_folder
from cl2r.errors import InputError
from cl2r.files import Place, listed
from cl2r.objects import ObjectPath
from cl2r.search.index import (
    IndexOptions,
    Kind,
    NearSearch,
    build,
    open_index,
    read_index_file,
    write_index,
)

NEAR_KINDS: tuple[Kind, ...] = ("ivf", "hnsw", "pq")
ALL = {
    "ivf": IndexOptions("ivf", nlist=8, nprobe=8),
    "hnsw": IndexOptions("hnsw", ef_search=600, ef_construction=200),
    "pq": IndexOptions("pq", nlist=4, nprobe=4, code_bytes=8, refine=60),
}
"""Options with which an index should find nearly all."""


def unit_rows(count: int, dim: int = 12, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def split(rows: np.ndarray, *sizes: int) -> list[np.ndarray]:
    return np.split(rows, np.cumsum(sizes))


@pytest.fixture(scope="module")
def blocks() -> list[np.ndarray]:
    return split(unit_rows(600), 200, 0, 150)


@pytest.fixture(params=["disk", "objects"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path / "index" if request.param == "disk" else request.getfixturevalue("remote") / "index"


@pytest.mark.parametrize("kind", NEAR_KINDS)
def test_a_file_answers_as_what_was_written(blocks: list[np.ndarray], folder: Place, kind: str) -> None:
    built = write_index(folder, "v1", ["a", "b", "c"], blocks, ALL[kind])
    (path,) = listed(folder, "*.json")
    assert path.name.startswith(f"v1-{kind}-")
    assert read_index_file(path) == built
    assert (built.version, built.shards, built.rows, built.dim) == ("v1", ("a", "b", "c"), 600, 12)
    near, asked = open_index(path, built, blocks), unit_rows(20, seed=4)
    options = ALL[kind].chosen(600, 12)
    for mine, theirs in zip(near(asked, 7), NearSearch(build(blocks, options), options, blocks)(asked, 7), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(listed(folder, "*")) == 2, "nothing is left beside"


@pytest.mark.parametrize("kind", NEAR_KINDS)
def test_a_file_is_memory_mapped(blocks: list[np.ndarray], tmp_path: Path, kind: str) -> None:
    built = write_index(tmp_path, "v1", ["a"], blocks, ALL[kind])
    (path,) = listed(tmp_path, "*.json")
    near = open_index(path, built, blocks)
    assert near.index.ntotal == 600
    assert f"{path.name.removesuffix('.json')}.faiss" in Path("/proc/self/maps").read_text()


def test_another_gallery_or_other_options_have_another_file(blocks: list[np.ndarray], tmp_path: Path) -> None:
    write_index(tmp_path, "v1", ["a"], blocks, IndexOptions("hnsw"))
    write_index(tmp_path, "v1", ["b"], blocks, IndexOptions("hnsw"))
    write_index(tmp_path, "v1", ["a"], blocks, IndexOptions("hnsw", links=8))
    write_index(tmp_path, "v1", ["a"], blocks, IndexOptions("hnsw"))
    assert len(listed(tmp_path, "*.faiss")) == len(listed(tmp_path, "*.json")) == 3


DAMAGE = """
import sys
from pathlib import Path
import numpy as np
from cl2r.errors import InputError
from cl2r.search.index import open_index, read_index_file
folder, blocks = Path(sys.argv[1]), [np.load(sys.argv[2])]
for path in sorted(folder.glob("*.json")):
    file = path.with_suffix(".faiss")
    content = file.read_bytes()
    places = sorted({int(place) for place in np.linspace(0, len(content) - 1, 60)} | set(range(0, 200, 7)))
    changed = [content[:place] + bytes([content[place] ^ 64]) + content[place + 1:] for place in places]
    for other in [*changed, *(content[:place] for place in places), b"", content + b"x", b"words" * 100]:
        file.write_bytes(other)
        try:
            open_index(path, read_index_file(path), blocks)(blocks[0][:2], 3)
        except InputError as error:
            assert str(file) in str(error) and "\\n" not in str(error)
        else:
            sys.exit(f"{path}: not noticed")
    file.unlink()
    try:
        open_index(path, read_index_file(path), blocks)
        sys.exit(f"{path}: not missed")
    except InputError:
        pass
print("all refused")
"""


def test_a_damaged_file_is_refused_and_never_searched(blocks: list[np.ndarray], tmp_path: Path) -> None:
    """In a process of its own: FAISS trusts its files, and would end the process."""
    for kind in NEAR_KINDS:
        write_index(tmp_path / "index", "v1", ["a"], blocks, ALL[kind])
    np.save(tmp_path / "rows.npy", np.concatenate(blocks))
    words = [sys.executable, "-c", DAMAGE, str(tmp_path / "index"), str(tmp_path / "rows.npy")]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=alone)
    assert (done.returncode, done.stdout) == (0, "all refused\n"), done.stderr[-2000:]


def test_a_damaged_object_is_refused_and_not_kept(blocks: list[np.ndarray], remote: ObjectPath) -> None:
    built = write_index(remote, "v1", ["a"], blocks, IndexOptions("hnsw", links=5))
    (path,), (file,) = listed(remote, "*.json"), listed(remote, "*.faiss")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(InputError, match="damaged"):
        open_index(path, built, blocks)
    assert not (cache_folder() / "indexes" / f"{built.digest}.faiss").exists()
    file.write_bytes(content)
    assert open_index(path, built, blocks).index.ntotal == 600
    file.unlink()
    assert open_index(path, built, blocks).index.ntotal == 600, "from the cache"


@pytest.mark.parametrize("change", [{"rows": 599}, {"dim": 13}, {"digest": "0" * 64}, {"rows": "600"}])
def test_the_file_of_another_index(blocks: list[np.ndarray], tmp_path: Path, change: dict[str, Any]) -> None:
    built = write_index(tmp_path, "v1", ["a"], blocks, ALL["ivf"])
    (path,) = listed(tmp_path, "*.json")
    with pytest.raises(InputError) as error:
        open_index(path, dataclasses.replace(built, **change), blocks)
    assert one_line(error.value, path.name.removesuffix(".json"))


def test_blocks_of_another_length(blocks: list[np.ndarray], tmp_path: Path) -> None:
    """Else rows of the index would be taken for other images."""
    built = write_index(tmp_path, "v1", ["a", "b", "c"], blocks, ALL["ivf"])
    (path,) = listed(tmp_path, "*.json")
    with pytest.raises(InputError):
        open_index(path, built, blocks[:2])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000])
def test_a_description_that_is_none(blocks: list[np.ndarray], tmp_path: Path, content: bytes) -> None:
    write_index(tmp_path, "v1", ["a"], blocks[:1], ALL["hnsw"])
    (path,) = listed(tmp_path, "*.json")
    assert isinstance(path, Path)
    with changed(path, content), pytest.raises(InputError) as error:
        read_index_file(path)
    assert one_line(error.value, str(path), "cl2r gallery build")
    refused: list[InputError] = []
    for damaged in damages(path.read_bytes(), 40):
        with changed(path, damaged):
            try:
                read_index_file(path)
            except InputError as error:
                refused.append(error)
    assert refused
    assert all(one_line(error, str(path)) for error in refused)


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "../../x"},
        {"digest": 7},
        {"version": "../x"},
        {"shards": ["../x"]},
        {"shards": None},
        {"shards": [7]},
        {"options": None},
        {"options": {"kind": "flat"}},
        {"options": {"nlist": "x"}},
        {"options": {"kind": "exact"}},
        {"options": {"kind": "auto"}},
        {"rows": "many"},
        {"more": 1},
    ],
)
def test_a_description_that_makes_no_sense(blocks: list[np.ndarray], tmp_path: Path, change: dict[str, Any]) -> None:
    write_index(tmp_path, "v1", ["a"], blocks[:1], ALL["hnsw"])
    (path,) = listed(tmp_path, "*.json")
    path.write_bytes(json.dumps(json.loads(path.read_bytes()) | change).encode())
    with pytest.raises(InputError) as error:
        read_index_file(path)
    assert one_line(error.value, str(path))
