"""Addresses, and what can go wrong on one kind of storage only; `tests/contract/test_storage.py` has the rest."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from cl2r.errors import InputError
from cl2r.storage.path import LocalPath, ObjectPath, at


def test_a_path_on_a_disk(tmp_path: Path) -> None:
    assert at("results") == Path("results")
    assert at((tmp_path / "with blank").as_uri()) == tmp_path / "with blank"
    assert at(Path("odd:/name")) == Path("odd:/name"), "a Path is never an address"
    path = at(Path("a")) / "b"
    assert isinstance(path.parent, LocalPath)
    assert pickle.loads(pickle.dumps(path)) == path


def test_the_query_stays_with_every_path() -> None:
    path = ObjectPath("s3://lab//deep/?region=x") / "a" / "b"
    assert str(path) == "s3://lab/deep/a/b?region=x"
    assert str(path.parent.parent) == "s3://lab/deep?region=x"
    assert path == ObjectPath(str(path)) == pickle.loads(pickle.dumps(path))
    assert len({path, ObjectPath(str(path)), path.parent}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAPLANTED:planted-secret@bucket/x",
        "s3://bucket/x?access_key=planted-secret",
        "s3://bucket/x?region=a&session_token=planted-secret",
        "s3://bucket/../other",
        "s3://",
        "s3:/bucket/x",
    ],
)
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        at(text)
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize("text", ["nimbus://bucket/x", "s3://bucket/x?nonsense=1"])
def test_an_unknown_kind_of_store_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="address"):
        at(text).exists()


def test_a_full_disk_keeps_nothing_of_a_file_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = at(tmp_path / "file")
    path.write_file(b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        path.write_file(b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_pipe_is_not_read(tmp_path: LocalPath) -> None:
    """It would wait for a writer for ever."""
    os.mkfifo(tmp_path / "pipe")
    for read in (LocalPath.read_bytes, LocalPath.checksum):
        with pytest.raises(IsADirectoryError, match="not a regular file"):
            read(tmp_path / "pipe")


def test_a_folder_that_exists_stays(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        at(tmp_path / "folder").write_folder({"file": content}, last="file")
    assert (tmp_path / "folder" / "file").read_bytes() == b"first"
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]


def test_an_object_that_is_replaced_while_it_is_read(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may write between the request for the size and the request for the bytes."""
    path, files = remote / "file", remote.files
    contents = [b"one", b"a longer one", b"two", b"2", b"three"]
    path.write_file(contents.pop(0))

    class Replacing:
        def __getattr__(self, name: str) -> Any:
            return getattr(files, name)

        def open_input_file(self, key: str) -> Any:
            stream = files.open_input_file(key)
            if contents:
                path.write_file(contents.pop(0))
            return stream

    with monkeypatch.context() as patch:
        patch.setattr(ObjectPath, "files", Replacing())
        patch.setattr("cl2r.storage.path.ATTEMPTS", 6)
        assert path.read_bytes() == b"three"
    assert contents == []


def test_an_unreachable_store_is_tried_again_then_reported(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    class Broken:
        def open_input_file(self, key: str) -> Any:
            tries.append(key)
            raise OSError("AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(ObjectPath, "files", Broken())
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        (remote / "file").read_bytes()
    assert len(tries) == 4


def test_a_folder_that_cannot_be_removed_is_an_error(tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder" / "file").write_file(b"content")
    (tmp_path / "folder" / "file" / "below").remove_tree()
    with pytest.raises(NotADirectoryError):
        (tmp_path / "folder" / "file").remove_tree()

    def refuse(path: object, **settings: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError):
        (tmp_path / "folder").remove_tree()
    assert (tmp_path / "folder" / "file").exists()


def test_a_folder_is_removed_while_another_process_removes_it(
    tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder" / "file").write_file(b"content")
    remove = os.unlink

    def late(path: Any, **settings: Any) -> None:
        remove(path, **settings)
        remove(path, **settings)

    monkeypatch.setattr(os, "unlink", late)
    (tmp_path / "folder").remove_tree()
    assert list(tmp_path.iterdir()) == []
