"""Exceptions by who is at fault, the exit codes that follow from them, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable
from types import UnionType

NOT_SAFE = 3  # `cl2r upgrade-check`: the upgrade loses more accuracy than was allowed
NOT_KNOWN = 4  # `cl2r upgrade-check`: the pairs do not tell; give more of them
REQUEUE = 75  # EX_TEMPFAIL: the program was stopped from outside; run the same command again to resume


class InputError(ValueError):
    """Bad input. Its message is one line that names what is wrong and what to do; a program exits with 2."""


class TrainingError(RuntimeError):
    """Training cannot continue, e.g. the loss is NaN. A program exits with 1, a study continues with its next run."""


class StoppedError(Exception):
    """The process was asked to stop (SIGTERM) and has saved everything. A program exits with REQUEUE."""


class ProcessDiedError(OSError):
    """Training processes died through no fault of their own; another attempt resumes from what they saved."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or an empty text if no known name is similar."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_type(name: str, value: object, kinds: type | UnionType, expected: str) -> None:
    """Raise InputError, which names an argument of the Python API, if its value is of another type."""
    if not isinstance(value, kinds):
        raise InputError(f"{name}: give {expected} (got a value of type {type(value).__name__})")
