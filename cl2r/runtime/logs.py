"""Logging, and texts that can be shown to other people: without secrets, homes, and names of users and machines.

The handler of `configure` removes secrets from messages and tracebacks. Texts that leave a process in another way (the
ledger, exit lines, HTTP answers, exceptions raised into Ray) go through `without_secrets`.
"""

import logging
import os
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cl2r.errors import REQUEUE, InputError, StoppedError, TrainingError

PROJECT = ("cl2r", "analysis", "studies")  # packages whose loggers `configure` sets up
HIDDEN = "…"
UNTELLING = ("root", "localhost")  # names of users and machines; hiding the first would damage `data.root`
END = r"\s:;,'\"()\[\]{}<>"  # characters that end a path in a text
BEGIN = r"(?:(?<=://)|(?<![\w./~%+-]))"
"""Where a path begins: not inside another one, except after the scheme of an address."""
TELLING = re.compile(r"token|secret|passw(?:or)?d|passphrase|credential|(?:access|api|private)[_-]?key", re.IGNORECASE)
KEY = rf"(?=[\w.-]*?(?:{TELLING.pattern}))[\w.-]++"  # names of options and fields whose values are secret
WORDS = r"(?:(?:secret|access|session|api|private)[ ]){1,2}(?:key|token)(?:[ ]id)?"  # the same in prose
VALUE = r"\\?(?:\"[^\"]*\"|'[^']*'|[^\s,;]+)"
SECRET = re.compile(rf"(?<![\w.-])((?:{KEY}|{WORDS})\\?[\"']?[ \t]*[=:][ \t]*){VALUE}", re.IGNORECASE)
LOGIN = re.compile(r"(://)[^/\s'\"]{0,999}@")
PASSWORD = re.compile(r"(://?)[^/\s'\"@:\[]{0,99}:(?!\d+(?:[/?]|$))[^\s'\"@]{0,999}@")
"""`user:password@`: a password may hold slashes, a port does not. As a path, an address has lost its second slash."""
ENCODED_LOGIN = re.compile(r"(%3A%2F%2F)(?:(?!%2F)[^\s&'\"]){0,999}%40", re.IGNORECASE)
SIGNED = re.compile(r"(?<![\w-])((?:X-(?:Amz|Goog|Ms)-[\w-]+|signature|sig)=)[^&\s'\",;]+", re.IGNORECASE)
"""Parameters that let anyone who has the address use it."""
AUTHORISATION = re.compile(r"\b(Bearer|Basic)[ ]+[\w.~+/=-]{8,}")
ISSUED = re.compile(
    r"\b(?:A(?:KIA|SIA)[A-Z0-9]{16}|hf_[A-Za-z0-9]{20,}|gh[opsru]_[A-Za-z0-9]{30,}|eyJ[\w-]{10,}\.[\w.-]{10,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END)[\s\S])*"
)
"""Tokens with a known form: AWS, Hugging Face, GitHub, JSON web tokens, private keys."""
SHORTEST = 8  # characters of a secret value of the environment; a shorter one may be any word
LOCATION = ("_FILE", "_PATH", "_DIR", "_URI", "_URL")  # suffixes of variables that say where a secret is
OPTION = re.compile(rf"-{KEY}", re.IGNORECASE)
ASSIGNED = re.compile(rf"\A({KEY}=).*", re.IGNORECASE | re.DOTALL)


class Handler(logging.StreamHandler[Any]):
    """Writes to standard error as it is at that moment: a live display may have replaced it."""

    def __init__(self, label: str = "") -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(f"{label.replace('%', '%%')}%(message)s"))
        self.addFilter(redact)

    @property
    def stream(self) -> Any:
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream.isatty():
            self.stream.write("\r\033[K")  # a progress line may stand there
        super().emit(record)


def configure(label: str = "", level: int = logging.INFO) -> None:
    """Write the project's log to standard error, one line per message after `label`; the last call counts."""
    for name in PROJECT:
        logger = logging.getLogger(name)
        logger.handlers = [handler for handler in logger.handlers if not isinstance(handler, Handler)]
        logger.addHandler(Handler(label))
        logger.setLevel(level)


def redact(record: logging.LogRecord) -> bool:
    """Remove secrets from message and traceback of a record; a filter for any handler."""
    record.msg, record.args = without_secrets(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        record.exc_info = None
    return True


class LibraryHandler(Handler):
    """The handler in a program that imports this project: writes only warnings that the program has no handler for."""

    def emit(self, record: logging.LogRecord) -> None:
        others = [*logging.getLogger(record.name.partition(".")[0]).handlers, *logging.root.handlers]
        if record.levelno >= logging.WARNING and all(isinstance(other, Handler) for other in others):
            super().emit(record)


def redact_library_logs() -> None:
    """Remove secrets from the project's log records before a handler of the program sees them; change nothing else.

    A filter of a logger does not see records of the loggers below it; a filter of its first handler does.
    """
    for name in PROJECT:
        logging.getLogger(name).handlers.insert(0, LibraryHandler())


def exit_code(name: str, main: Callable[[], int]) -> int:
    """Run `main` and return its exit code. Errors the user can fix end in one line without a traceback or secrets."""
    try:
        return main()
    except InputError as error:
        message, code = str(error), 2
    except (TrainingError, OSError) as error:
        message, code = str(error), 1
    except StoppedError as error:
        message, code = str(error), REQUEUE
    except KeyboardInterrupt:
        message, code = "stopped; run the same command again to resume", 130
    except Exception:
        print(without_secrets(traceback.format_exc()), end="", file=sys.stderr)
        return 1
    print(f"{name}: {without_secrets(message)}", file=sys.stderr)
    return code


def without_secrets(text: str) -> str:
    """Return the text without logins in addresses, signatures, tokens and secrets of the environment; paths stay."""
    secrets = set[str]()  # of the environment, also as an address would encode them
    for name in filter(TELLING.search, os.environ):
        value = os.environ.get(name, "")
        if len(value) >= SHORTEST and not name.upper().endswith(LOCATION) and not os.path.exists(value):
            secrets |= {value, quote(value, safe="")}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = ENCODED_LOGIN.sub(r"\1", PASSWORD.sub(r"\1", LOGIN.sub(r"\1", text)))
    text = SIGNED.sub(rf"\1{HIDDEN}", text)
    text = AUTHORISATION.sub(rf"\1 {HIDDEN}", text)
    return SECRET.sub(rf"\1{HIDDEN}", ISSUED.sub(HIDDEN, text))


@contextmanager
def errors_without_secrets() -> Iterator[None]:
    """Re-raise an exception without the secrets in its message or its causes: Ray prints and stores exceptions."""
    try:
        yield
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        if without_secrets(text) == text:
            raise
        if without_secrets(str(error)) == str(error):
            raise error from None  # its cause holds the secret
        kind = OSError if isinstance(error, OSError) else RuntimeError
        raise kind(without_secrets(f"{type(error).__name__}: {error}")) from None


def anonymous(text: str) -> str:
    """Return the text without secrets, queries of addresses, homes (`~`) and names of users and machines (`…`)."""
    text = re.sub(r"((?<![\w+.-])[A-Za-z][\w+.-]*://[^\s?'\"]*)\?[^\s'\"]*", r"\1", without_secrets(text))
    machine = socket.gethostname()
    names = {os.environ.get("USER"), os.environ.get("LOGNAME"), machine, machine.partition(".")[0]}
    with suppress(RuntimeError):  # the machine does not know the user of this process
        home = Path.home()
        names.add(home.name)
        if home != Path(home.anchor):
            text = re.sub(rf"{BEGIN}{re.escape(str(home))}(?=[/{END}]|$)", "~", text)
    text = re.sub(rf"{BEGIN}/(?:home|Users)/[^/{END}]+", "~", text)
    telling = [re.escape(name) for name in names if name and name not in UNTELLING]
    if not telling:
        return text
    known = f"(?:{'|'.join(sorted(telling, key=len, reverse=True))})"  # one name may begin with another
    text = re.sub(rf"(?<![A-Za-z0-9]){known}(?=@|:/)", HIDDEN, text)
    whole = re.compile(rf"(?<![A-Za-z0-9]){known}(?![A-Za-z0-9])")
    return re.sub(rf"(?<![^={END}])[^={END}]*/[^{END}]*", lambda path: whole.sub(HIDDEN, path[0]), text)


def anonymous_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command; the value of `--token` may be the next word, and may hold blanks."""
    shown, hidden = [], False
    for word in words:
        shown.append(HIDDEN if hidden else anonymous(ASSIGNED.sub(rf"\1{HIDDEN}", word)))
        hidden = not hidden and OPTION.fullmatch(word) is not None
    return shown


def anonymous_entries(value: Any, key: str = "") -> Any:
    """Return a value with all texts in it anonymous, at any depth; `key` is the name of the value."""
    if isinstance(value, Mapping):
        return {anonymous(str(name)): anonymous_entries(entry, str(name)) for name, entry in value.items()}
    if value is not None and re.fullmatch(KEY, key, re.IGNORECASE):
        return HIDDEN
    if isinstance(value, list | tuple):
        if all(isinstance(entry, str) for entry in value):
            return anonymous_words(value)
        return [anonymous_entries(entry) for entry in value]
    return anonymous(value) if isinstance(value, str) else value
