"""Fetching archives from a server of this test: whole ones, wrong ones, none at all."""

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cl2r.data import DATASETS
from cl2r.data.download import ARCHIVES, ELSEWHERE, Archive, download
from cl2r.errors import InputError


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def tar_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return buffer.getvalue()


PACKERS = {"toy.tar.gz": tar_of, "toy.tgz": tar_of, "toy.zip": zip_of}


class Toy:
    """A data set `toy` of one archive, that unpacks to the folder `toy`."""

    def __init__(self, served: tuple[Path, str], root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.address = served
        self.root, self.said = root, list[str]()
        self.monkeypatch = monkeypatch

    def publish(self, file: str, content: bytes, target: str = "toy", md5: str = "") -> None:
        (self.folder / file).write_bytes(content)
        archive = Archive(f"{self.address}/{file}", md5 or hashlib.md5(content).hexdigest(), target)
        self.monkeypatch.setitem(ARCHIVES, "toy", (*ARCHIVES.get("toy", ()), archive))

    def fetch(self) -> None:
        download("toy", self.root, self.said.append)

    def left(self) -> list[str]:
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*"))


@pytest.fixture
def toy(served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    return Toy(served, tmp_path / "new" / "root", monkeypatch)


@pytest.mark.parametrize("file", PACKERS)
def test_archives_are_unpacked_and_nothing_else_is_left(toy: Toy, file: str) -> None:
    toy.publish(file, PACKERS[file]({"toy/a/1.bin": b"one", "toy/2.bin": b"two" * 10**6}))
    toy.fetch()
    assert toy.left() == ["toy", "toy/2.bin", "toy/a", "toy/a/1.bin"]
    assert (toy.root / "toy" / "2.bin").read_bytes() == b"two" * 10**6
    assert toy.said[0].startswith(f"{toy.address}/{file}: fetching ")
    assert toy.said[1:] == [f"{toy.root / 'toy'}: done"]


def test_a_file_that_is_no_archive_is_kept_as_it_is(toy: Toy) -> None:
    toy.publish("toy.zip", zip_of({"toy/x": b""}))
    toy.publish("pairs.txt", b"10\t300\n", target="pairs.txt")
    toy.fetch()
    assert (toy.root / "pairs.txt").read_bytes() == b"10\t300\n"
    assert toy.left() == ["pairs.txt", "toy", "toy/x"]


def test_what_is_there_stays_and_the_rest_is_fetched(toy: Toy) -> None:
    toy.publish("toy.zip", zip_of({"toy/x": b"new"}))
    toy.publish("pairs.txt", b"new", target="pairs.txt")
    (toy.root / "toy").mkdir(parents=True)
    (toy.root / "toy" / "mine").write_text("old")
    toy.fetch()
    assert toy.left() == ["pairs.txt", "toy", "toy/mine"]
    assert toy.said[0] == f"{toy.root / 'toy'}: already there, left as it is"
    toy.fetch()
    assert toy.said[-1] == f"{toy.root / 'pairs.txt'}: already there, left as it is"


def test_a_pair_list_inside_lfw_is_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "lfw").mkdir()
    (tmp_path / "lfw" / "pairs.txt").write_text("mine")
    said: list[str] = []
    download("lfw", tmp_path, said.append)
    assert said == [f"{tmp_path / place}: already there, left as it is" for place in ("lfw", "lfw/pairs.txt")]
    assert not (tmp_path / "pairs.txt").exists()


def test_a_killed_download_does_not_hinder(toy: Toy) -> None:
    toy.publish("toy.zip", zip_of({"toy/x": b"new"}))
    (toy.root / "toy.unpacking" / "toy").mkdir(parents=True)
    (toy.root / "toy.unpacking" / "toy" / "half").write_text("old")
    (toy.root / "toy.zip.part").write_text("old and longer than the archive" * 100)
    toy.fetch()
    assert toy.left() == ["toy", "toy/x"]


def refused(toy: Toy, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        toy.fetch()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(toy.address)
    assert toy.left() == []
    assert [path.name for path in toy.root.parent.iterdir()] == ["root"]


@pytest.mark.parametrize("file", PACKERS)
def test_wrong_md5_leaves_nothing(toy: Toy, file: str) -> None:
    toy.publish(file, PACKERS[file]({"toy/x": b""}), md5="0" * 32)
    refused(toy, InputError, f"{file}: MD5 [0-9a-f]{{32}}, expected {'0' * 32}: not the published file")


def test_missing_page(toy: Toy) -> None:
    toy.publish("toy.zip", b"")
    (toy.folder / "toy.zip").unlink()
    refused(toy, OSError, r"toy\.zip: cannot be fetched \(HTTP Error 404.*get toy by hand and put it into ")


def test_no_server(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.address = "http://127.0.0.1:1"
    toy.publish("toy.zip", b"")
    refused(toy, OSError, r"toy\.zip: cannot be fetched \(.*Connection refused")


@pytest.mark.parametrize("file", PACKERS)
@pytest.mark.parametrize("member", ["../evil", "toy/../../evil"])
def test_members_that_leave_the_folder_are_refused(toy: Toy, file: str, member: str) -> None:
    toy.publish(file, PACKERS[file]({"toy/x": b"good", member: b"evil"}))
    refused(toy, InputError, f"{file}: (cannot be unpacked|member .* would leave the folder)")


def test_links_that_leave_the_folder_are_refused(toy: Toy) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        link = tarfile.TarInfo("toy/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
    toy.publish("toy.tgz", buffer.getvalue())
    refused(toy, InputError, r"toy\.tgz: cannot be unpacked")


@pytest.mark.parametrize("file", PACKERS)
@pytest.mark.parametrize("damage", ["garbage", "truncated"])
def test_damaged_archives(toy: Toy, file: str, damage: str) -> None:
    whole = PACKERS[file]({"toy/x": bytes(range(256)) * 40})
    toy.publish(file, b"garbage" if damage == "garbage" else whole[: len(whole) // 2])
    refused(toy, InputError, f"{file}: cannot be unpacked")


@pytest.mark.parametrize("file", PACKERS)
def test_an_archive_of_something_else(toy: Toy, file: str) -> None:
    toy.publish(file, PACKERS[file]({"other/x": b""}))
    refused(toy, InputError, f"{file}: no folder toy in it")


@pytest.mark.parametrize(
    ("name", "where"),
    [("imagenet900", "image-net.org"), ("casia_lfw", "InsightFace"), ("casia_ijbc", "NIST"), ("icons", "package")],
)
def test_what_is_not_free_says_where_to_ask(tmp_path: Path, name: str, where: str) -> None:
    with pytest.raises(InputError, match=f"{name}: nothing to download; .*{where}"):
        download(name, tmp_path / "root", print)
    assert not (tmp_path / "root").exists()


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no data set 'cifar10' to download \(did you mean 'cifar100'\?\)"):
        download("cifar10", tmp_path, print)


def test_every_data_set_is_fetched_or_explained() -> None:
    assert sorted([*ARCHIVES, *ELSEWHERE]) == sorted(DATASETS)


def test_what_is_left_to_get_is_said(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    content = zip_of({"tiny-imagenet-200/wnids.txt": b""})
    toy.publish("tiny.zip", content, target="tiny-imagenet-200")
    monkeypatch.setitem(ARCHIVES, "tiny_imagenet200", ARCHIVES["toy"])
    download("tiny_imagenet200", toy.root, toy.said.append)
    assert "image-net.org" in toy.said[-1]
