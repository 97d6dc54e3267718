"""Where a study lives below the storage root, and what its name stands for."""

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from cl2r.claims import HeldError, Ticket, is_held
from cl2r.errors import InputError
from cl2r.files import Place, write_file
from cl2r.objects import ObjectPath
from cl2r.study.ledger import Ledger


@dataclass(frozen=True)
class StudyFolder:
    """`storage`/studies/`name`; links are in `storage`, shared by all studies."""

    storage: Place
    name: str

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name or self.name in ("", ".."):
            raise InputError(f"--name {self.name}: a study's name is one folder's name")

    @property
    def path(self) -> Place:
        """The study's own folder."""
        return self.storage / "studies" / self.name

    @property
    def specification(self) -> Place:
        """What the name stands for."""
        return self.path / "study.yaml"

    @property
    def about(self) -> Place:
        """Where and how it was run."""
        return self.path / "about.json"

    @property
    def ledger(self) -> Ledger:
        """What has happened."""
        return Ledger(self.path / "ledger")

    @property
    def live(self) -> Place:
        """What is happening."""
        return self.path / "live"

    @property
    def journal(self) -> Place:
        """Optuna's storage."""
        return self.path / "optuna.journal"

    def claim_name(self, identity: dict[str, Any]) -> str:
        """Write down what the name stands for, or check that it still does; the id of the study."""
        identity = yaml.safe_load(yaml.safe_dump(identity))  # as it will be read back: tuples become lists
        if not self.specification.exists():
            entry = {"id": uuid.uuid4().hex, "specification": identity}
            write_file(self.specification, yaml.safe_dump(entry, sort_keys=False).encode())
        return self.check_name(identity)

    def check_name(self, identity: dict[str, Any]) -> str:
        """The id of the study, if the name stands for this specification or for none yet (then empty)."""
        if not self.specification.exists():
            return ""
        stored = yaml.safe_load(self.specification.read_bytes())
        if stored["specification"] != yaml.safe_load(yaml.safe_dump(identity)):
            raise InputError(_refusal(self.name, stored["specification"], identity))
        return str(stored["id"])

    @contextlib.contextmanager
    def driver_lock(self) -> Iterator[None]:
        """Refuse a second driver of the same study. The lock of a dead one is freed."""
        path = self.path / "driver.lock"
        if isinstance(path, ObjectPath):
            with self._driver_ticket(path):
                yield
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            if not _try_lock(file, fcntl.LOCK_EX, attempts=5):  # `cl2r status` looks at the lock for a moment
                file.seek(0)
                raise InputError(f"study {self.name!r} is being run by {file.read().strip()}")
            file.truncate(0)
            print(f"process {os.getpid()} on {socket.gethostname()}", file=file, flush=True)
            yield

    @contextlib.contextmanager
    def _driver_ticket(self, folder: ObjectPath) -> Iterator[None]:
        """The same in an object store. Who is taken for dead there must stop: another driver may be at work."""
        try:
            with Ticket(folder, on_loss=lambda: os.kill(os.getpid(), signal.SIGTERM)).held(wait=False):
                yield
        except HeldError as error:
            raise InputError(f"study {self.name!r} is being run by {error}") from error

    def is_driven(self) -> bool:
        """Whether a driver is at work: on this machine, or, by an object store, on any."""
        path = self.path / "driver.lock"
        if isinstance(path, ObjectPath):
            return is_held(path)
        try:
            with path.open() as file:
                return not _try_lock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def driver_is_elsewhere(self) -> bool:
        """Whether the last driver sat on another machine, so that its lock need not be felt here."""
        if isinstance(self.path, ObjectPath):
            return False
        try:
            host = (self.path / "driver.lock").read_text().rpartition(" on ")[2].strip()
        except FileNotFoundError:
            return False
        return host not in ("", socket.gethostname())


def _try_lock(file: IO[str], kind: int, attempts: int = 1) -> bool:
    for attempt in range(attempts):
        time.sleep(0.1 * (attempt > 0))
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
    return False


def digest(identity: dict[str, Any]) -> str:
    """Eight hex digits that another specification would not have."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def _refusal(name: str, stored: dict[str, Any], given: dict[str, Any]) -> str:
    old, new = _flat(stored), _flat(given)
    lines = [f"study {name!r} holds another specification; choose another --name"]
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            lines += [f"  {key}: {old.get(key, 'not given')} there, {new.get(key, 'not given')} here"]
    return "\n".join(lines)


def _flat(entry: Any, prefix: str = "") -> dict[str, str]:
    """Leaves by their dotted path, as JSON."""
    if not isinstance(entry, dict) or not entry:
        return {prefix: json.dumps(entry, ensure_ascii=False)}
    flat: dict[str, str] = {}
    for key, value in entry.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
