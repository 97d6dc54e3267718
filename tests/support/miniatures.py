"""Data sets of a few tiny images in the layouts of the real ones."""

import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cl2r.data import Check, check_dataset
from cl2r.data.face_alignment import REFERENCE
from cl2r.data.imagenet import IMAGENET20
from cl2r.data.images import Images
from cl2r.errors import InputError


@cache
def jpeg(grey: int, size: tuple[int, int] = (8, 8)) -> bytes:
    """Return a JPEG of one grey."""
    stream = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(stream, "JPEG")
    return stream.getvalue()


def greys(images: Images) -> list[int]:
    """Return the grey of every image."""
    return images.all()[:, 1, 1, 0].tolist()  # type: ignore[no-any-return]


def write(path: Path, content: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def refusal(act: Callable[[], object]) -> str:
    """Return the message, which must be one line, of the InputError that `act` raises."""
    with pytest.raises(InputError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def full_check(name: str, root: Path) -> Check:
    """Check a data set and decode all of its images."""
    check = check_dataset(name, root, full=True)
    assert not any("\n" in line for line in check.problems)
    return check


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """Return a file for `tar`, or something else by its header's fields."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return a gzipped tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for info, content in members:
            packed.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, bytes], mode: int = 0o644) -> bytes:
    """Return a zip file whose members have that file mode."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            packed.writestr(info, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


LFW_PEOPLE = {"Al_B": 2, "Cy": 2}
LFW_FOLDS = (("Al_B\t1\t2", "Al_B\t1\tCy\t1"), ("Cy\t1\t2", "Cy\t2\tAl_B\t2"))
CASIA_PEOPLE = {"0000045": 3, "0000099": 1, "0000100": 2}


def write_people(folder: Path, people: Mapping[str, int], step: int = 40, size: tuple[int, int] = (8, 8)) -> None:
    """Write <name>/<name>_0001.jpg and so on; image i of person p has the grey step · p + i."""
    for number, (name, count) in enumerate(people.items()):
        (folder / name).mkdir(parents=True)
        for image in range(1, count + 1):
            write(folder / name / f"{name}_{image:04d}.jpg", jpeg(step * number + image, size))


def write_pairs(path: Path, folds: Sequence[tuple[str, str]]) -> None:
    """Write an LFW pair list whose folds have one pair of one person and one of two people."""
    path.write_text(f"{len(folds)}\t1\n" + "".join(f"{same}\n{different}\n" for same, different in folds))


def write_lfw(
    folder: Path, people: Mapping[str, int] = LFW_PEOPLE, folds: Sequence[tuple[str, str]] = LFW_FOLDS
) -> None:
    """Write people and pairs.txt into one folder."""
    write_people(folder, people)
    write_pairs(folder / "pairs.txt", folds)


def write_lfw_alone(root: Path) -> None:
    """Write LFW with two people that have the images to be trained on."""
    folds = [("Bo\t1\t3", "Bo\t2\tDi\t1"), ("Ann\t1\t2", "Di\t2\tEd\t19"), ("Di\t1\t2", "Cy_D\t21\tBo\t1")]
    write_lfw(root / "lfw", {"Ann": 20, "Bo": 3, "Cy_D": 21, "Di": 2, "Ed": 19}, folds)


def write_casia(folder: Path, people: Mapping[str, int] = CASIA_PEOPLE) -> None:
    """Write <id>/001.jpg and so on."""
    for number, (name, count) in enumerate(people.items()):
        (folder / name).mkdir(parents=True)
        for image in range(count):
            write(folder / name / f"{image + 1:03d}.jpg", jpeg(50 * number + image))


def write_records(folder: Path, labels: Sequence[float], broken: int | None = None) -> None:
    """Write InsightFace's train.rec and train.idx: record 0, then images of grey 0, 1, ... with these labels."""
    payloads = [struct.pack("<IfQQff", 2, 0, 0, 0, len(labels) + 1, len(labels) + 1)]
    for row, label in enumerate(labels):
        payloads.append(struct.pack("<IfQQ", 0, label, row, 0) + jpeg(row)[: 300 if row == broken else None])
    body, index = b"", ""
    for key, payload in enumerate(payloads):
        index += f"{key}\t{len(body)}\n"
        body += struct.pack("<II", 0xCED7230A, len(payload)) + payload + bytes(-len(payload) % 4)
    write(folder / "train.rec", body)
    write(folder / "train.idx", index.encode())


def write_casia_lfw(root: Path) -> None:
    """Write both in folders."""
    write_casia(root / "casia-webface")
    write_lfw(root / "lfw")


def write_casia_bin(root: Path) -> None:
    """Write both as InsightFace packs them."""
    write_records(root / "faces_webface_112x112", [4, 4, 0, 7])
    pairs = [jpeg(grey) for grey in range(20)], [True, False] * 5
    write(root / "faces_webface_112x112" / "lfw.bin", pickle.dumps(pairs, 2))


# template 30 has a photo and a video of three frames, 7 two photos, 12 one
IJBC_MEDIA = [("1.jpg", 30, 501), ("2.jpg", 30, 502), ("3.jpg", 30, 502), ("4.jpg", 30, 502)]
IJBC_MEDIA += [("5.jpg", 7, 503), ("6.jpg", 7, 504), ("7.jpg", 12, 502)]
IJBC_PAIRS = [(30, 7, 1), (7, 12, 0), (12, 30, 0)]


def landmarks(name: str) -> str:
    """Return a line of landmarks."""
    return f"{name} " + " ".join(f"{number:.3f}" for number in (REFERENCE + 4).ravel()) + " 0.987\n"


def write_casia_ijbc(root: Path) -> None:
    """Write CASIA-WebFace in folders, and IJB-C with loose crops."""
    write_casia(root / "casia-webface")
    meta = root / "ijbc" / "meta"
    for name, rows in (("face_tid_mid", [*IJBC_MEDIA]), ("template_pair_label", [*IJBC_PAIRS])):
        write(meta / f"ijbc_{name}.txt", "".join(" ".join(map(str, row)) + "\n" for row in rows).encode())
    write(meta / "ijbc_name_5pts_score.txt", "".join(landmarks(name) for name, *_ in reversed(IJBC_MEDIA)).encode())
    draw = np.random.default_rng(0)
    (root / "ijbc" / "loose_crop").mkdir()
    for name, *_ in IJBC_MEDIA:
        Image.fromarray(draw.integers(0, 256, (130, 120, 3), np.uint8)).save(root / "ijbc" / "loose_crop" / name)


TRAIN_WNIDS, OPEN_WNIDS = ("n01440764", "n02119789", "n03000000"), ("n01500000", "n04000000")
TINY_WNIDS = ("n02124075", "n04067472", "n01443537")  # as in wnids.txt, not sorted


def write_imagenet(folder: Path) -> None:
    """Write class k of train/ with k + 1 images in grey 50·k + i, class k of val/ with two in grey 200 + 10·k + i."""
    for k, wnid in enumerate(TRAIN_WNIDS):
        for i in range(k + 1):
            write(folder / "train" / wnid / f"{wnid}_{i}.JPEG", jpeg(50 * k + i))
    for k, wnid in enumerate(OPEN_WNIDS):
        for i in range(2):
            write(folder / "val" / wnid / f"ILSVRC2012_val_{i:08d}.JPEG", jpeg(200 + 10 * k + i))


def write_wnid_lists(root: Path) -> None:
    """Write the lists of the classes of `write_imagenet`."""
    (root / "imagenet900.txt").write_text("\n".join(reversed(TRAIN_WNIDS)) + "\n\n")
    (root / "imagenet100.txt").write_text("\n".join(OPEN_WNIDS))


def write_imagenet900(root: Path, folder: str = "imagenet") -> None:
    """Write ImageNet with lists of its classes."""
    write_imagenet(root / folder)
    write_wnid_lists(root)


def write_tiny_imagenet200(root: Path) -> None:
    """Write two images per class, in grey 50·k + i for the class at place k of wnids.txt, and ImageNet20."""
    tiny = root / "tiny-imagenet-200"
    for k, wnid in enumerate(TINY_WNIDS):
        for i in range(2):
            write(tiny / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", jpeg(50 * k + i))
        (tiny / "train" / wnid / f"{wnid}_boxes.txt").write_text("0 0 63 63\n")
    (tiny / "wnids.txt").write_text("\n".join(TINY_WNIDS) + "\n")
    for k, wnid in enumerate(IMAGENET20):
        write(root / "imagenet" / "val" / wnid / "ILSVRC2012_val_00000001.JPEG", jpeg(10 * k))
    write(root / "imagenet" / "val" / "n01440764" / "x.JPEG", jpeg(7))


CIFAR_TRAIN, CIFAR_META = "cifar-100-python/train", "cifar-100-python/meta"
CIFAR_OPEN = "cifar-10-batches-py/test_batch"


def cifar_pixels(count: int) -> np.ndarray:
    """Return random rows of a CIFAR batch."""
    return np.random.default_rng(count).integers(0, 256, (count, 3072), np.uint8)


def write_cifar100(root: Path) -> None:
    """Write every class of CIFAR-100 twice, backwards, and every class of CIFAR-10 once."""
    batches = {
        CIFAR_TRAIN: {b"fine_labels": list(range(99, -1, -1)) * 2, b"data": cifar_pixels(200)},
        CIFAR_META: {b"fine_label_names": [b"name%d" % i for i in range(100)], b"coarse_label_names": []},
        CIFAR_OPEN: {b"labels": list(range(10)), b"data": cifar_pixels(10)},
    }
    for path, held in batches.items():
        write(root / path, pickle.dumps(held, 2))


@dataclass(frozen=True)
class Miniature:
    """A small copy of a data set, and what the contract of all data sets does to it.

    It needs the files and folders `needed`. The file `damaged` is cut short, which a loader sees unless it `decodes`.
    The class folder `empty` is emptied, `roots` may be given as ROOT, and a `twin` by another name is refused.
    """

    dataset: str
    write: Callable[[Path], None]
    needed: tuple[str, ...]
    damaged: str
    decodes: bool = True
    empty: str = ""
    roots: tuple[str, ...] = ()
    twin: tuple[str, str] | None = None


MINIATURES = {
    "cifar100": Miniature(
        "cifar100",
        write_cifar100,
        needed=(CIFAR_TRAIN, CIFAR_META, CIFAR_OPEN),
        damaged=CIFAR_TRAIN,
        decodes=False,
        roots=("cifar-100-python", "cifar-10-batches-py"),
    ),
    "tiny_imagenet200": Miniature(
        "tiny_imagenet200",
        write_tiny_imagenet200,
        needed=(f"tiny-imagenet-200/train/{TINY_WNIDS[0]}", f"imagenet/val/{IMAGENET20[3]}", "imagenet"),
        damaged=f"tiny-imagenet-200/train/{TINY_WNIDS[1]}/images/{TINY_WNIDS[1]}_1.JPEG",
        empty=f"tiny-imagenet-200/train/{TINY_WNIDS[1]}/images",
        roots=("tiny-imagenet-200",),
    ),
    "imagenet900": Miniature(
        "imagenet900",
        write_imagenet900,
        needed=(f"imagenet/train/{TRAIN_WNIDS[1]}", "imagenet/train", "imagenet/val"),
        damaged=f"imagenet/train/{TRAIN_WNIDS[2]}/{TRAIN_WNIDS[2]}_1.JPEG",
        empty=f"imagenet/val/{OPEN_WNIDS[0]}",
        roots=("imagenet",),
    ),
    "casia_lfw": Miniature(
        "casia_lfw",
        write_casia_lfw,
        needed=("casia-webface", "lfw", "lfw/pairs.txt", "lfw/Cy"),
        damaged="casia-webface/0000045/002.jpg",
        empty="casia-webface/0000099",
        roots=("casia-webface", "lfw"),
        twin=("casia-webface", "casia_webface"),
    ),
    "casia_lfw packed": Miniature(
        "casia_lfw",
        write_casia_bin,
        needed=("faces_webface_112x112/train.rec", "faces_webface_112x112/train.idx", "faces_webface_112x112/lfw.bin"),
        damaged="faces_webface_112x112/lfw.bin",
        decodes=False,
        roots=("faces_webface_112x112",),
    ),
    "casia_ijbc": Miniature(
        "casia_ijbc",
        write_casia_ijbc,
        needed=("casia-webface", "ijbc", *(f"ijbc/{name}" for name in ("loose_crop", "loose_crop/5.jpg", "meta"))),
        damaged="ijbc/loose_crop/6.jpg",
        empty="ijbc/loose_crop",
        roots=("ijbc", "casia-webface"),
    ),
    "lfw": Miniature(
        "lfw",
        write_lfw_alone,
        needed=("lfw", "lfw/pairs.txt", "lfw/Ed/Ed_0019.jpg"),
        damaged="lfw/Di/Di_0002.jpg",
        empty="lfw/Di",
        roots=("lfw",),
        twin=("lfw", "lfw64"),
    ),
}
