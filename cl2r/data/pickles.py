"""Pickles of plain data (CIFAR batches, InsightFace's lfw.bin), read without running any code they might hold.

Arrays are made by classes of this module: numpy's own types trust whatever memory layout a pickle claims.
"""

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cl2r.errors import InputError

_PLAIN_TYPE = re.compile("[biufSU][1-9][0-9]*")  # booleans, numbers, bytes, text, none of 0 bytes
_ARRAY_PICKLE = 1  # version of the state of an array


class _Call:
    """A function that a pickle may call, but neither change nor return."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("changes a function")


class _Type:
    """Takes the place of numpy's dtype: a code like u1 and a byte order."""

    def __init__(self, code: str | bytes, align: bool = False, copy: bool = True) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])

    def plain(self) -> np.dtype[Any]:
        """Return numpy's own type; raise UnpicklingError unless it is a plain one."""
        if not _PLAIN_TYPE.fullmatch(self.code) or self.order not in "<>|=":
            raise pickle.UnpicklingError(f"holds an array of type {self.code!r}")
        return np.dtype(self.code).newbyteorder("=" if self.order == "|" else self.order)  # type: ignore[arg-type]


class _Array(np.ndarray[Any, Any]):
    """An array whose shape and type numpy checks against its bytes."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, kind, fortran, content = state[1:]
        super().__setstate__((_ARRAY_PICKLE, shape, kind.plain(), fortran, content))


def _from_buffer(
    content: bytes | bytearray, kind: _Type, shape: tuple[int, ...], order: str
) -> npt.NDArray[np.generic]:
    """Return an array as protocol 5 writes it; a view of another array would outlive that array's memory."""
    if type(content) not in (bytes, bytearray):
        raise pickle.UnpicklingError(f"holds an array made of {type(content).__name__}")
    return np.frombuffer(content, kind.plain()).reshape(shape, order="F" if order == "F" else "C")


def _latin1(text: str, encoding: str) -> bytes:
    """Return bytes as old protocols write them."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes encoded as {encoding!r}")
    return text.encode("latin-1")


def _text(code: str | bytes) -> str:
    return code if isinstance(code, str) else code.decode("ascii")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _Call(_latin1),
    ("numpy", "dtype"): _Call(_Type),
    ("numpy", "ndarray"): None,  # an argument of _reconstruct, never called
}
for _core in ("numpy.core", "numpy._core"):  # numpy 1 and 2
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _Call(lambda *_: _Array(0, np.uint8))  # its state comes next
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _Call(_from_buffer)


class _PlainUnpickler(pickle._Unpickler):
    """Knows arrays and nothing else that could be called.

    It is the one in Python: that in C allocates 64 GB if a few bytes ask it to store a value under a large number.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"holds {module}.{name}, which is never loaded")
        return _ALLOWED[module, name]


def load_plain(path: Path) -> Any:
    """Return arrays, bytes, text, numbers, and lists, tuples and dicts of them; raise InputError for anything else."""
    try:
        held = _PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if isinstance(held, _Call | _Type):
            raise pickle.UnpicklingError("holds no data")
        return held
    except Exception as error:  # a damaged pickle can raise almost anything
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not a readable pickle of plain data ({why}); get the file again") from error
