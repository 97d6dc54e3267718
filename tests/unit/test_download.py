"""Fetching archives from a server of this test: whole ones, wrong ones, none at all."""

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest
from miniatures import refusal, write_lfw, write_people

from cl2r.data import DATASETS, lfw
from cl2r.data.download import ARCHIVES, ELSEWHERE, Archive, download, how_to_get
from cl2r.errors import InputError

Kind = Literal["md5", "sha256"]


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

    def publish(
        self, file: str, content: bytes, target: str = "toy", digest: str = "", algorithm: Kind = "md5"
    ) -> None:
        """Under an address that does not tell the file's name."""
        address = f"{len(ARCHIVES.get('toy', ()))}"
        (self.folder / address).write_bytes(content)
        digest = digest or hashlib.new(algorithm, content).hexdigest()
        archive = Archive(file, f"{self.address}/{address}", digest, target, algorithm=algorithm)
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
    assert toy.said[0].startswith(f"{toy.address}/0: fetching {file}, ")
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


@pytest.mark.parametrize("folder", lfw.FOLDERS)
@pytest.mark.parametrize("list_at", ["pairs.txt", "FOLDER/pairs.txt"])
def test_lfw_by_any_name_is_the_only_one(tmp_path: Path, folder: str, list_at: str) -> None:
    write_lfw(tmp_path / folder)
    list_at = list_at.replace("FOLDER", folder)
    (tmp_path / folder / "pairs.txt").rename(tmp_path / list_at)
    before = sorted(tmp_path.rglob("*"))
    said: list[str] = []
    download("lfw", tmp_path, said.append)
    assert said == [f"{tmp_path / place}: already there, left as it is" for place in (folder, list_at)]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pair_list_for_lfw_by_another_name(
    tmp_path: Path, served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lfw(tmp_path / "lfw64")
    content = (tmp_path / "lfw64" / "pairs.txt").read_bytes()
    (tmp_path / "lfw64" / "pairs.txt").rename(served[0] / "5976006")
    images, pairs = ARCHIVES["lfw"]
    here = replace(pairs, url=f"{served[1]}/5976006", digest=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(ARCHIVES, "lfw", (images, here))
    download("lfw", tmp_path, print)
    assert (tmp_path / "pairs.txt").read_bytes() == content
    assert len(lfw.lfw_open(tmp_path, 4, 3).pairs) == 4


@pytest.mark.parametrize("with_list", [False, True])
def test_nothing_is_put_between_the_people(tmp_path: Path, with_list: bool) -> None:
    write_people(tmp_path / "lfw64", {"Ann": 1})
    if with_list:
        (tmp_path / "lfw64" / "pairs.txt").write_text("mine")
    message = refusal(lambda: download("lfw", tmp_path / "lfw64", print))
    assert message == f"{tmp_path / 'lfw64'}: is the data set itself, give the folder that holds it: {tmp_path}"


def test_an_empty_root_may_be_named_like_the_data_set(toy: Toy) -> None:
    toy.root = toy.root.parent / "toy"
    toy.root.mkdir(parents=True)
    toy.publish("toy.zip", zip_of({"toy/x": b""}))
    toy.fetch()
    toy.fetch()
    assert toy.left() == ["toy", "toy/x"]


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


@pytest.mark.parametrize(("algorithm", "length"), [("md5", 32), ("sha256", 64)])
@pytest.mark.parametrize("file", PACKERS)
def test_wrong_digest_leaves_nothing(toy: Toy, file: str, algorithm: Kind, length: int) -> None:
    toy.publish(file, PACKERS[file]({"toy/x": b""}), digest="0" * length, algorithm=algorithm)
    differs = f"{algorithm} [0-9a-f]{{{length}}}, expected {'0' * length}"
    refused(toy, InputError, f": {differs}: not the published {file}, nothing is kept")


def test_right_sha256(toy: Toy) -> None:
    toy.publish("toy.zip", zip_of({"toy/x": b"new"}), algorithm="sha256")
    toy.fetch()
    assert toy.left() == ["toy", "toy/x"]


def test_missing_page(toy: Toy) -> None:
    toy.publish("toy.zip", b"")
    (toy.folder / "0").unlink()
    refused(toy, OSError, r"/0: cannot be fetched \(HTTP Error 404.*get toy by hand and put it into ")


def test_no_server(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.address = "http://127.0.0.1:1"
    toy.publish("toy.zip", b"")
    refused(toy, OSError, r"/0: cannot be fetched \(.*Connection refused")


@pytest.mark.parametrize("file", PACKERS)
@pytest.mark.parametrize("member", ["../evil", "toy/../../evil"])
def test_members_that_leave_the_folder_are_refused(toy: Toy, file: str, member: str) -> None:
    toy.publish(file, PACKERS[file]({"toy/x": b"good", member: b"evil"}))
    refused(toy, InputError, "/0: (cannot be unpacked|member .* would leave the folder)")


def test_links_that_leave_the_folder_are_refused(toy: Toy) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        link = tarfile.TarInfo("toy/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
    toy.publish("toy.tgz", buffer.getvalue())
    refused(toy, InputError, "/0: cannot be unpacked")


@pytest.mark.parametrize("file", PACKERS)
@pytest.mark.parametrize("damage", ["garbage", "truncated"])
def test_damaged_archives(toy: Toy, file: str, damage: str) -> None:
    whole = PACKERS[file]({"toy/x": bytes(range(256)) * 40})
    toy.publish(file, b"garbage" if damage == "garbage" else whole[: len(whole) // 2])
    refused(toy, InputError, "/0: cannot be unpacked")


@pytest.mark.parametrize("file", PACKERS)
def test_an_archive_of_something_else(toy: Toy, file: str) -> None:
    toy.publish(file, PACKERS[file]({"other/x": b""}))
    refused(toy, InputError, "/0: no folder toy in it")


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("imagenet900", "image-net.org/download"),
        (
            "casia_lfw",
            "github.com/deepinsight/insightface/.*recognition/_datasets_; `cl2r datasets --download lfw DIR`",
        ),
        ("casia_ijbc", "recognition/_datasets_; .*nist.gov/programs-projects/face-challenges"),
        ("icons", "package"),
    ],
)
def test_what_is_not_free_says_where_to_ask(tmp_path: Path, name: str, where: str) -> None:
    with pytest.raises(InputError, match=f"{name}: nothing to download; .*{where}"):
        download(name, tmp_path / "root", print)
    assert not (tmp_path / "root").exists()


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no data set 'cifar10' to download \(did you mean 'cifar100'\?\)"):
        download("cifar10", tmp_path, print)


def test_how_to_get() -> None:
    assert how_to_get("lfw") == "`cl2r datasets --download lfw DIR` fetches it"
    assert "fetches it; its open set is part of ImageNet: " in how_to_get("tiny_imagenet200")
    assert how_to_get("casia_lfw") == ELSEWHERE["casia_lfw"]
    assert not any("\n" in how_to_get(name) for name in DATASETS)


def test_every_data_set_is_fetched_or_explained() -> None:
    assert sorted([*ARCHIVES, *ELSEWHERE]) == sorted(DATASETS)


def test_what_is_left_to_get_is_said(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    content = zip_of({"tiny-imagenet-200/wnids.txt": b""})
    toy.publish("tiny.zip", content, target="tiny-imagenet-200")
    monkeypatch.setitem(ARCHIVES, "tiny_imagenet200", ARCHIVES["toy"])
    download("tiny_imagenet200", toy.root, toy.said.append)
    assert "image-net.org" in toy.said[-1]
