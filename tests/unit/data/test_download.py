"""Archives are fetched from addresses of this test: whole ones, wrong ones, none at all."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from cl2r.data import DATASETS, Archive, lfw
from cl2r.data.download import download
from cl2r.errors import InputError
from tests.support.miniatures import member, refusal, tar, write_lfw, write_people, zipped

Kind = Literal["md5", "sha256"]


def tar_of(members: dict[str, bytes]) -> bytes:
    return tar(*(member(name, content) for name, content in members.items()))


PACKERS = {"toy.tar.gz": tar_of, "toy.tgz": tar_of, "toy.zip": zipped}


class Toy:
    """A data set of archives that this test publishes, under addresses that do not contain their names."""

    def __init__(self, served: Path, root: Path) -> None:
        self.served, self.root, self.reports = served, root, list[str]()
        self.dataset = replace(DATASETS["icons"], name="toy")
        served.mkdir()

    def publish(
        self, file: str, content: bytes, target: str = "toy", digest: str = "", algorithm: Kind = "md5"
    ) -> None:
        path = self.served / f"{len(self.dataset.archives)}"
        path.write_bytes(content)
        digest = digest or hashlib.new(algorithm, content).hexdigest()
        archive = Archive(file, path.as_uri(), digest, target, algorithm=algorithm)
        self.dataset = replace(self.dataset, archives=(*self.dataset.archives, archive))

    def fetch(self) -> None:
        download(self.dataset, self.root, self.reports.append)

    def left(self) -> list[str]:
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*"))


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "served", tmp_path / "new" / "root")


@pytest.mark.parametrize("file", PACKERS)
def test_archives_are_unpacked_and_nothing_else_is_left(toy: Toy, file: str) -> None:
    toy.publish(file, PACKERS[file]({"toy/a/1.bin": b"one", "toy/2.bin": b"two" * 10**6}))
    toy.dataset = replace(toy.dataset, how_to_get="ask the owner of the rest")
    toy.fetch()
    assert "ask the owner of the rest" in toy.reports[-1]
    assert toy.left() == ["toy", "toy/2.bin", "toy/a", "toy/a/1.bin"]
    assert (toy.root / "toy" / "2.bin").read_bytes() == b"two" * 10**6
    assert toy.reports[0].startswith(f"{toy.dataset.archives[0].url}: fetching {file}, ")


def test_what_is_there_stays_and_the_rest_is_fetched(toy: Toy) -> None:
    toy.publish("toy.zip", zipped({"toy/x": b"new"}))
    toy.publish("pairs.txt", b"new", target="pairs.txt")
    (toy.root / "toy").mkdir(parents=True)
    (toy.root / "toy" / "mine").write_text("old")
    toy.fetch()
    assert toy.left() == ["pairs.txt", "toy", "toy/mine"]
    assert (toy.root / "pairs.txt").read_text() == "new", "a file that is no archive is kept as it is"
    assert toy.reports[0].startswith(f"{toy.root / 'toy'}: already there")
    toy.fetch()
    assert toy.reports[-1].startswith(f"{toy.root / 'pairs.txt'}: already there")


@pytest.mark.parametrize("folder", lfw.FOLDERS)
@pytest.mark.parametrize("list_at", ["pairs.txt", "FOLDER/pairs.txt"])
def test_lfw_by_any_name_is_not_fetched_again(tmp_path: Path, folder: str, list_at: str) -> None:
    write_lfw(tmp_path / folder)
    list_at = list_at.replace("FOLDER", folder)
    (tmp_path / folder / "pairs.txt").rename(tmp_path / list_at)
    before = sorted(tmp_path.rglob("*"))
    reports: list[str] = []
    download(lfw.LFW, tmp_path, reports.append)
    assert [report.split(": ")[0] for report in reports] == [str(tmp_path / place) for place in (folder, list_at)]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pair_list_for_lfw_by_another_name(tmp_path: Path) -> None:
    write_lfw(tmp_path / "lfw64")
    content = (tmp_path / "lfw64" / "pairs.txt").read_bytes()
    served = (tmp_path / "lfw64" / "pairs.txt").rename(tmp_path / "5976006")
    images, pairs = lfw.LFW.archives
    here = replace(pairs, url=served.as_uri(), digest=hashlib.sha256(content).hexdigest())
    download(replace(lfw.LFW, archives=(images, here)), tmp_path, print)
    assert (tmp_path / "pairs.txt").read_bytes() == content
    assert len(lfw.find_lfw(tmp_path)[1]) == 4


@pytest.mark.parametrize("with_list", [False, True])
def test_nothing_is_put_between_the_people(tmp_path: Path, with_list: bool) -> None:
    write_people(tmp_path / "lfw64", {"Ann": 1})
    if with_list:
        (tmp_path / "lfw64" / "pairs.txt").write_text("mine")
    message = refusal(lambda: download(lfw.LFW, tmp_path / "lfw64", print))
    assert message.startswith(f"{tmp_path / 'lfw64'}: is the data set itself")
    assert message.endswith(str(tmp_path))


def test_an_empty_root_may_be_named_like_the_data_set(toy: Toy) -> None:
    toy.root = toy.root.parent / "toy"
    toy.root.mkdir(parents=True)
    toy.publish("toy.zip", zipped({"toy/x": b""}))
    toy.fetch()
    toy.fetch()
    assert toy.left() == ["toy", "toy/x"]


def test_the_rest_of_a_killed_download_is_replaced(toy: Toy) -> None:
    toy.publish("toy.zip", zipped({"toy/x": b"new"}))
    (toy.root / "toy.unpacking" / "toy").mkdir(parents=True)
    (toy.root / "toy.unpacking" / "toy" / "half").write_text("old")
    (toy.root / "toy.zip.part").write_text("old and longer than the archive" * 100)
    toy.fetch()
    assert toy.left() == ["toy", "toy/x"]


def refused(toy: Toy, kind: type[Exception], message: str) -> None:
    """The message names the address, and nothing is left."""
    with pytest.raises(kind, match=message) as caught:
        toy.fetch()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{toy.dataset.archives[0].url}: ")
    assert toy.left() == []
    assert [path.name for path in toy.root.parent.iterdir()] == ["root"]


@pytest.mark.parametrize(("algorithm", "length"), [("md5", 32), ("sha256", 64)])
@pytest.mark.parametrize("file", PACKERS)
def test_wrong_digest_leaves_nothing(toy: Toy, file: str, algorithm: Kind, length: int) -> None:
    toy.publish(file, PACKERS[file]({"toy/x": b""}), digest="0" * length, algorithm=algorithm)
    differs = f"{algorithm} [0-9a-f]{{{length}}}, expected {'0' * length}"
    refused(toy, InputError, f": {differs}: not the published {file}")


@pytest.mark.parametrize("server", [False, True])
def test_a_missing_page_or_server_is_named(toy: Toy, server: bool) -> None:
    toy.publish("toy.zip", b"")
    (toy.served / "0").unlink()
    if server:
        archive = replace(toy.dataset.archives[0], url="http://127.0.0.1:1/0")
        toy.dataset = replace(toy.dataset, archives=(archive,))
    refused(toy, OSError, "Connection refused.*get toy by hand" if server else "No such file.*get toy by hand")


@pytest.mark.parametrize("file", PACKERS)
def test_damaged_and_other_archives_are_refused(toy: Toy, file: str) -> None:
    whole = PACKERS[file]({"other/x": bytes(range(256)) * 40})
    toy.publish(file, whole)
    refused(toy, InputError, "no folder toy in it")
    for damaged in (b"garbage", whole[: len(whole) // 2]):
        toy.dataset = replace(toy.dataset, archives=())
        toy.publish(file, damaged)
        refused(toy, InputError, "cannot be unpacked")


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("imagenet900", "image-net.org/download"),
        ("casia_lfw", "github.com/deepinsight/insightface/.*; `cl2r datasets download lfw DIR`"),
        ("casia_ijbc", "github.com/deepinsight/insightface/.*nist.gov"),
        ("icons", "package"),
    ],
)
def test_what_is_not_free_says_where_to_ask(tmp_path: Path, name: str, where: str) -> None:
    with pytest.raises(InputError, match=f"{name}: nothing to download; .*{where}"):
        download(DATASETS[name], tmp_path / "root", print)
    assert not (tmp_path / "root").exists()
