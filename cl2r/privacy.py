"""What others may read: no home directory, no name of a user or of a machine in a path, no secret.

Neither torch nor Ray is needed: reports clean with it what drivers have written down.
"""

import os
import re
import socket
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

HIDDEN = "…"
NOBODY = ("root", "localhost")
"""Names that tell nothing; `data.root` would suffer from the first."""
END = r"\s:;,'\"()\[\]{}<>"
"""Signs that end a path in a text."""
BEGIN = r"(?:(?<=://)|(?<![\w./~%+-]))"
"""Where a path begins: not in the middle of another one, though an address may end in one."""
SCHEME = r"(?<![\w+.-])[A-Za-z][\w+.-]*://"
TELLING = re.compile(r"token|secret|passw(?:or)?d|passphrase|credential|(?:access|api|private)[_-]?key", re.IGNORECASE)
KEY = rf"(?=[\w.-]*?(?:{TELLING.pattern}))[\w.-]++"
"""Names of options and fields whose values are nobody's business."""
WORDS = r"(?:(?:secret|access|session|api|private)[ ]){1,2}(?:key|token)(?:[ ]id)?"
"""The same in prose."""
VALUE = r"\\?(?:\"[^\"]*\"|'[^']*'|[^\s,;]+)"
SECRET = re.compile(rf"(?<![\w.-])((?:{KEY}|{WORDS})\\?[\"']?[ \t]*[=:][ \t]*){VALUE}", re.IGNORECASE)
LOGIN = re.compile(r"(://)[^/\s'\"]{0,999}@")
PASSWORD = re.compile(r"(://?)[^/\s'\"@:\[]{0,99}:(?!\d+(?:[/?]|$))[^\s'\"@]{0,999}@")
"""`user:password@`: a password may hold slashes, a port holds none. As a path, an address has lost its second slash."""
ENCODED_LOGIN = re.compile(r"(%3A%2F%2F)(?:(?!%2F)[^\s&'\"]){0,999}%40", re.IGNORECASE)
SIGNED = re.compile(r"(?<![\w-])((?:X-(?:Amz|Goog|Ms)-[\w-]+|signature|sig)=)[^&\s'\",;]+", re.IGNORECASE)
"""What makes an address good for whoever has it."""
AUTHORISATION = re.compile(r"\b(Bearer|Basic)[ ]+[\w.~+/=-]{8,}")
ISSUED = re.compile(
    r"\b(?:A(?:KIA|SIA)[A-Z0-9]{16}|hf_[A-Za-z0-9]{20,}|gh[opsru]_[A-Za-z0-9]{30,}|eyJ[\w-]{10,}\.[\w.-]{10,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END)[\s\S])*"
)
"""Tokens that are known by their look: of AWS, Hugging Face, GitHub; JSON web tokens; private keys."""
SHORTEST = 8
"""Letters of a value in the environment that is looked for; a shorter one may be any word."""
A_PLACE = ("_FILE", "_PATH", "_DIR", "_URI", "_URL")
"""Ends of the names of variables that say where a secret is."""
OPTION = re.compile(rf"-{KEY}", re.IGNORECASE)
ASSIGNED = re.compile(rf"\A({KEY}=).*", re.IGNORECASE | re.DOTALL)


def without_secrets(text: str) -> str:
    """A text without logins in addresses, signatures, tokens and the secrets of the environment; paths stay."""
    for secret in _secrets_here():
        text = text.replace(secret, HIDDEN)
    text = PASSWORD.sub(r"\1", LOGIN.sub(r"\1", text))
    text = ENCODED_LOGIN.sub(r"\1", text)
    text = SIGNED.sub(rf"\1{HIDDEN}", text)
    text = AUTHORISATION.sub(rf"\1 {HIDDEN}", text)
    return SECRET.sub(rf"\1{HIDDEN}", ISSUED.sub(HIDDEN, text))


def _secrets_here() -> list[str]:
    """Values of the environment that must not be repeated, also as an address would write them; longest first."""
    found = set[str]()
    for name in filter(TELLING.search, os.environ):
        value = os.environ.get(name, "")
        if len(value) >= SHORTEST and not name.upper().endswith(A_PLACE) and not os.path.exists(value):
            found |= {value, quote(value, safe="")}
    return sorted(found, key=len, reverse=True)


@contextmanager
def errors_without_secrets() -> Iterator[None]:
    """Others write down what is raised: Ray prints it, and keeps it in files. What holds a secret is raised anew."""
    try:
        yield
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        if without_secrets(text) == text:
            raise
        if without_secrets(str(error)) == str(error):
            raise error from None  # what led to it holds the secret
        kind = OSError if isinstance(error, OSError) else RuntimeError
        raise kind(without_secrets(f"{type(error).__name__}: {error}")) from None


def anonymous(text: str) -> str:
    """A word or a text without logins, queries of addresses, secrets, homes (`~`) and names of folders (`…`)."""
    text = without_secrets(text)
    text = re.sub(rf"({SCHEME}[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)
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
