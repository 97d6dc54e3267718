"""Pickles of plain data are read; code in them is refused and never run."""

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cl2r.data.lfw import read_packed
from cl2r.data.pickles import load_plain
from cl2r.errors import InputError
from tests.support.miniatures import refusal

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def reload(path: Path, held: object, protocol: int = 2) -> Any:
    path.write_bytes(pickle.dumps(held, protocol))
    return load_plain(path)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", ["u1", "i8", ">i4", "f4", ">f8", "?", "S3", "U2"])
def test_arrays(tmp_path: Path, protocol: int, kind: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    read = reload(tmp_path / "a", array, protocol)
    assert read.dtype == (array.dtype if protocol == 5 else array.dtype.newbyteorder("="))  # older ones become native
    np.testing.assert_array_equal(read, array)
    for other in (np.asfortranarray(array), array[::2, 1:], array.T, np.array(7)):
        np.testing.assert_array_equal(reload(tmp_path / "a", other, protocol), other)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values(tmp_path: Path, protocol: int) -> None:
    held = {b"k": [1, 2.5, True, None, "text é", b"\xff\x00"], "t": (2**80, -1), 3: bytearray(b"x")}
    if protocol < 5:
        held.pop(3)  # older protocols write it as a call of bytearray
    assert reload(tmp_path / "a", held, protocol) == held


def test_text_of_python_2_is_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x80\x02}q\x00U\x04dataq\x01U\x02\xff\x01q\x02s.")
    assert load_plain(tmp_path / "a") == {b"data": b"\xff\x01"}


class Runs:
    """Runs a command if an ordinary unpickler loads it."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_commands_are_not_run(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    (tmp_path / "bad").write_bytes(pickle.dumps(([Runs(f"touch {trace}")], [True]), protocol))
    for read in (load_plain, read_packed):
        with pytest.raises(InputError, match=r"bad: .*holds \w+\.system"):
            read(tmp_path / "bad")
    assert not trace.exists()
    pickle.loads((tmp_path / "bad").read_bytes())
    assert trace.exists()  # the file is a real attack


@pytest.mark.parametrize(
    "call", [b"c__builtin__\neval\n", b"cbuiltins\ngetattr\n", b"cnumpy\nload\n", b"cnumpy.core.multiarray\nscalar\n"]
)
def test_no_other_function_is_found(tmp_path: Path, call: bytes) -> None:
    (tmp_path / "bad").write_bytes(b"\x80\x02" + call + b"X\x01\x00\x00\x001\x85R.")
    with pytest.raises(InputError, match="never loaded"):
        load_plain(tmp_path / "bad")


@pytest.mark.parametrize("array", [np.array([{}, []], object), np.zeros(2, [("a", "u1")]), np.zeros(2, "M8[s]")])
def test_other_arrays_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(InputError, match="holds an array of type"):
        reload(tmp_path / "bad", array)


def pickled_array(kind: bytes, shape: bytes, content: bytes) -> bytes:
    """Return an array with any claims in protocol 2."""
    made = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    dtype = (
        b"cnumpy\ndtype\nU" + bytes([len(kind)]) + kind + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffK\x00K\x00tb"
    )
    return made + b"(K\x01" + shape + dtype + b"\x89C" + bytes([len(content)]) + content + b"tb."


HUGE = b"\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x85"


def test_elements_of_no_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pickled_array(b"S2", b"K\x02\x85", b"abcd"))
    assert load_plain(tmp_path / "a").tolist() == [b"ab", b"cd"]
    for kind in (b"S0", b"U0", b"S00", b"V0"):
        (tmp_path / "bad").write_bytes(pickled_array(kind, HUGE, b""))
        assert f"holds an array of type {kind.decode()!r}" in refusal(lambda: load_plain(tmp_path / "bad"))


CALLS = [
    b"c_codecs\nencode\n",
    b"cnumpy\ndtype\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy._core.numeric\n_frombuffer\n",
]


@pytest.mark.parametrize("call", CALLS)
def test_a_function_is_neither_returned_nor_changed(tmp_path: Path, call: bytes) -> None:
    path, state = tmp_path / "bad", b"}U\x08__name__U\x01xs"
    for no_data in (b"\x80\x02" + call + b".", pickle.dumps(np.dtype("u1"))):
        path.write_bytes(no_data)
        assert "(holds no data)" in refusal(lambda: load_plain(path))
    for built in (state, b"N" + state + b"\x86"):  # attributes, and those of slots
        path.write_bytes(b"\x80\x02" + call + built + b"b0].")
        assert "(changes a function)" in refusal(lambda: load_plain(path))


def test_an_array_is_not_made_of_another(tmp_path: Path) -> None:
    """It would show the memory of the other array after that has been freed."""
    other = pickled_array(b"u1", b"K\x02\x85", b"ab")[2:-1]
    kind = b"cnumpy\ndtype\nU\x02u1\x85R"
    call = b"cnumpy.core.numeric\n_frombuffer\n"
    (tmp_path / "bad").write_bytes(b"\x80\x02" + call + b"(" + other + kind + b"K\x02\x85U\x01CtR.")
    assert "holds an array made of _Array" in refusal(lambda: load_plain(tmp_path / "bad"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_damage_is_an_input_error_in_one_line(tmp_path: Path, protocol: int) -> None:
    """Truncated anywhere, and with any bytes changed: loaded or refused, never another exception."""
    sound = pickle.dumps({b"data": np.arange(12, dtype=np.uint8).reshape(3, 4), b"labels": [1, 2, 3]}, protocol)
    rng, path = random.Random(protocol), tmp_path / "bad"
    assert "bad: " in refusal(lambda: load_plain(path)), "a missing file"
    for end in range(0, len(sound), 5):
        path.write_bytes(sound[:end])
        with pytest.raises(InputError):
            load_plain(path)
    messages = []
    for _ in range(60):
        changed = bytearray(sound)
        changed[rng.randrange(len(sound))] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            load_plain(path)
        except InputError as error:
            messages.append(str(error))
    assert messages
    assert not any("\n" in message for message in messages)
