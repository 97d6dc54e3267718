"""What others may read: no home directory, no name of a user or of a machine in a path, no secret.

Neither torch nor Ray is needed: reports clean with it what drivers have written down.
"""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HIDDEN = "…"
NOBODY = ("root", "localhost")
"""Names that tell nothing; `data.root` would suffer from the first."""
END = r"\s:;,'\"()\[\]{}<>"
"""Signs that end a path in a text."""
BEGIN = r"(?:(?<=://)|(?<![\w./~%+-]))"
"""Where a path begins: not in the middle of another one, though an address may end in one."""
SCHEME = r"(?<![\w+.-])[A-Za-z][\w+.-]*://"
KEY = r"(?=[\w.-]*?(?:token|secret|password|credential|(?:access|api|private)[_-]?key))[\w.-]++"
"""Names of options and fields whose values are nobody's business."""
SECRET = re.compile(rf"(?<![\w.-])({KEY}[\"']?[ \t]*[=:][ \t]*)(\"[^\"]*\"|'[^']*'|[^\s,;]+)", re.IGNORECASE)
OPTION = re.compile(rf"-{KEY}", re.IGNORECASE)
ASSIGNED = re.compile(rf"\A({KEY}=).*", re.IGNORECASE | re.DOTALL)


def anonymous(text: str) -> str:
    """A word or a text without logins, queries of addresses, secrets, homes (`~`) and names of folders (`…`)."""
    text = re.sub(rf"({SCHEME})[^/\s'\"]*@", r"\1", text)
    text = re.sub(rf"({SCHEME}[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)
    text = SECRET.sub(rf"\1{HIDDEN}", text)
    home = _home()
    if home is not None and home != Path(home.anchor):
        text = re.sub(rf"{BEGIN}{re.escape(str(home))}(?=[/{END}]|$)", "~", text)
    text = re.sub(rf"{BEGIN}/(?:home|Users)/[^/{END}]+", "~", text)
    return _without_names(text, _names(home))


def anonymous_words(words: Sequence[str]) -> list[str]:
    """The words of a command: the value of `--token` may be the next one, and may hold blanks."""
    shown, hidden = [], False
    for word in words:
        if hidden:
            shown.append(HIDDEN)
        else:
            shown.append(anonymous(ASSIGNED.sub(rf"\1{HIDDEN}", word)))
        hidden = not hidden and OPTION.fullmatch(word) is not None
    return shown


def anonymous_entries(value: Any, key: str = "") -> Any:
    """The same for all that a mapping holds; `key` is the name of the value."""
    if isinstance(value, Mapping):
        return {anonymous(str(name)): anonymous_entries(entry, str(name)) for name, entry in value.items()}
    if value is not None and re.fullmatch(KEY, key, re.IGNORECASE):
        return HIDDEN
    if isinstance(value, list | tuple):
        if all(isinstance(entry, str) for entry in value):
            return anonymous_words(value)
        return [anonymous_entries(entry) for entry in value]
    return anonymous(value) if isinstance(value, str) else value


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a process of a user whom the machine does not know
        return None


def _names(home: Path | None) -> list[str]:
    """The user's and the machine's, longest first: one may begin with another."""
    machine = socket.gethostname()
    names = {os.environ.get("USER"), os.environ.get("LOGNAME"), machine, machine.partition(".")[0]}
    names |= {home.name} if home else set()
    return sorted((name for name in names if name and name not in NOBODY), key=len, reverse=True)


def _without_names(text: str, names: Sequence[str]) -> str:
    if not names:
        return text
    known = "(?:" + "|".join(map(re.escape, names)) + ")"
    text = re.sub(rf"(?<![A-Za-z0-9]){known}(?=@|:/)", HIDDEN, text)
    whole = re.compile(rf"(?<![A-Za-z0-9]){known}(?![A-Za-z0-9])")
    return re.sub(rf"(?<![^={END}])[^={END}]*/[^{END}]*", lambda path: whole.sub(HIDDEN, path[0]), text)
