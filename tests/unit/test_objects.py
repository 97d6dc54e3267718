"""Paths of an object store do what paths of a disk do."""

from pathlib import Path
from typing import Any

import pytest

from cl2r.errors import InputError
from cl2r.files import Place, listed, modified, place, remove_tree, staged, write_file
from cl2r.objects import ObjectPath


@pytest.fixture(params=["disk", "objects"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty folder, of either kind."""
    return tmp_path / "root" if request.param == "disk" else request.getfixturevalue("remote")


def test_a_file_is_written_read_replaced_and_removed(root: Place) -> None:
    path = root / "deep" / "er" / "file.json"
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        path.read_bytes()
    write_file(path, b"one")
    write_file(path, "zwei φ".encode())
    assert (path.read_bytes(), path.read_text()) == ("zwei φ".encode(), "zwei φ")
    assert path.exists()
    assert modified(path) > 1.7e9
    assert (path.name, path.parent) == ("file.json", root / "deep" / "er")
    path.unlink()
    assert not path.exists()
    path.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        path.unlink()
    with pytest.raises(FileNotFoundError):
        modified(path)


def test_what_is_below(root: Place) -> None:
    for name in ("studies/b/study.yaml", "studies/a/study.yaml", "studies/c/other", "top.json", "x.json", "top.txt"):
        write_file(root / name, name.encode())
    assert [path.name for path in listed(root, "*.json")] == ["top.json", "x.json"]
    assert [path.parent.name for path in listed(root, "studies/*/study.yaml")] == ["a", "b"]
    assert listed(root, "nowhere/*") == []
    assert listed(root / "nowhere", "*.json") == []
    remove_tree(root / "studies")
    assert listed(root, "studies/*/*") == []
    remove_tree(root / "studies")
    assert [path.name for path in listed(root, "*.json")] == ["top.json", "x.json"]


def test_a_folder_is_staged(root: Place) -> None:
    with staged(root / "figures") as here:
        (here / "sub").mkdir(parents=True)
        (here / "sub" / "one.png").write_bytes(b"1")
        (here / "two.png").write_bytes(b"2")
    assert (root / "figures" / "sub" / "one.png").read_bytes() == b"1"
    assert [path.name for path in listed(root, "figures/*.png")] == ["two.png"]


def test_what_an_error_cut_off_is_not_staged(remote: ObjectPath) -> None:
    with pytest.raises(FileNotFoundError), staged(remote / "figures") as here:
        (here / "half.png").write_bytes((here / "nowhere").read_bytes() if (here / "one").write_bytes(b"1") else b"")
    assert remote.below() == []


def test_a_full_disk_keeps_nothing_of_a_file_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "file", b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_the_query_stays_with_every_path() -> None:
    path = ObjectPath("s3://lab//deep/?region=x") / "a" / "b"
    assert str(path) == "s3://lab/deep/a/b?region=x"
    assert str(path.parent.parent) == "s3://lab/deep?region=x"
    assert path == ObjectPath(str(path))
    assert len({path, ObjectPath(str(path)), path.parent}) == 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("s3://AKIAPLANTED:planted-secret@bucket/x", "leave credentials out"),
        ("s3://bucket/x?access_key=planted-secret", "leave credentials out"),
        ("s3://bucket/x?region=a&session_token=planted-secret", "leave credentials out"),
        ("s3://bucket/../other", "give an address like"),
        ("s3://", "give an address like"),
        ("s3:/bucket/x", "two slashes"),
    ],
)
def test_addresses_that_are_refused(text: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as refused:
        place(text)
    assert "planted-secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["nimbus://bucket/x", "s3://bucket/x?nonsense=1"])
def test_a_store_that_nobody_knows(text: str) -> None:
    with pytest.raises(InputError, match="cannot use the address"):
        place(text).exists()


def test_a_path_is_a_path(tmp_path: Path) -> None:
    assert place("results") == Path("results")
    assert place((tmp_path / "with blank").as_uri()) == tmp_path / "with blank"


def test_an_object_that_is_replaced_while_it_is_read(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer, shorter or gone between the question for its size and the question for its bytes."""
    path, files = remote / "file", remote.files
    contents = [b"one", b"a longer one", b"two", b"2", b"three"]
    path.write_bytes(contents.pop(0))

    class Opening:
        """Replaces the object between the two questions."""

        def __getattr__(self, name: str) -> Any:
            return getattr(files, name)

        def open_input_file(self, key: str) -> Any:
            stream = files.open_input_file(key)
            if contents:
                path.write_bytes(contents.pop(0))
            return stream

    with monkeypatch.context() as patch:
        patch.setattr(ObjectPath, "files", Opening())
        patch.setattr("cl2r.objects.ATTEMPTS", 6)
        assert path.read_bytes() == b"three"
    assert contents == []


def test_a_store_that_cannot_be_reached_is_said_to_be(remote: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    path = remote / "file"
    path.write_bytes(b"1")
    tries = []

    class Broken:
        def open_input_file(self, key: str) -> Any:
            tries.append(key)
            raise OSError("AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(ObjectPath, "files", Broken())
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        path.read_bytes()
    assert len(tries) == 4
