"""Data sets of a few tiny images in the layouts of the real ones, and how a test hears what is refused."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cl2r.data.check import Check
from cl2r.errors import InputError


@cache
def jpeg(grey: int, size: tuple[int, int] = (8, 8)) -> bytes:
    """A JPEG of one grey."""
    stream = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(stream, "JPEG")
    return stream.getvalue()


def greys(images: object) -> list[int]:
    """The grey of every decoded image."""
    assert isinstance(images, np.ndarray)
    return images[:, 1, 1, 0].tolist()  # type: ignore[no-any-return]


def write_people(folder: Path, people: Mapping[str, int], step: int = 40, size: tuple[int, int] = (8, 8)) -> None:
    """<name>/<name>_0001.jpg and on for every person; image i of person p has the grey step · p + i."""
    for number, (name, count) in enumerate(people.items()):
        (folder / name).mkdir(parents=True)
        for image in range(1, count + 1):
            (folder / name / f"{name}_{image:04d}.jpg").write_bytes(jpeg(step * number + image, size))


def write_pairs(path: Path, folds: Sequence[tuple[str, str]]) -> None:
    """An LFW pair list whose folds have one pair of one person and one of two people."""
    path.write_text(f"{len(folds)}\t1\n" + "".join(f"{same}\n{different}\n" for same, different in folds))


LFW_PEOPLE = {"Al_B": 2, "Cy": 2}
LFW_FOLDS = (("Al_B\t1\t2", "Al_B\t1\tCy\t1"), ("Cy\t1\t2", "Cy\t2\tAl_B\t2"))


def write_lfw(
    folder: Path,
    people: Mapping[str, int] = LFW_PEOPLE,
    folds: Sequence[tuple[str, str]] = LFW_FOLDS,
) -> None:
    """People and pairs.txt in one folder."""
    write_people(folder, people)
    write_pairs(folder / "pairs.txt", folds)


def refusal(act: Callable[[], object]) -> str:
    """The one line that refuses bad input."""
    with pytest.raises(InputError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def wrongs(check: Check) -> list[str]:
    """What a full check complains of."""
    check.decode(every=True)
    assert not any("\n" in line for line in check.wrong)
    return check.wrong
