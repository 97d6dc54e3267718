"""Finished runs by name: of a storage, of the studies in it, or by the path of their folder.

The beginning of a name is enough. A whole name comes first, then names that continue with a dash (`icons-er` stands for
icons-er-T5-s0-1a2b3c4d, not for icons-er_ace-T5-s0-5e6f7a8b), then all others that begin like this. Of several runs the
one that finished last is taken, and the log says so. The time is that of the ledger's event or, for a run of its own,
the one in its result.json; a file that states none is as old as it is.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from cl2r.config.layers import from_dotted, merge_layers, resolve
from cl2r.config.schema import Config
from cl2r.errors import InputError, nearest
from cl2r.gallery.gallery import reason
from cl2r.storage.documents import RESTORE, json_mapping, yaml_mapping
from cl2r.storage.path import StoragePath, at
from cl2r.storage.seal import SealError, read_beside, run_owner
from cl2r.study.folder import finished_runs
from cl2r.study.ledger import Event

log = logging.getLogger(__name__)

CONFIG, RESULT = "config.yaml", "result.json"


@dataclass(frozen=True)
class StoredRun:
    """A finished run: a folder of its own, an event in the ledger of a study, or both."""

    name: str
    storage: StoragePath  # holds its links
    folder: StoragePath | None = None
    event: Event | None = None

    @cached_property
    def config(self) -> Config:
        """The config; InputError if its file is damaged."""
        if self.folder is None:
            fields: dict[str, Any] = self._entry["config"]
            return resolve([merge_layers(from_dotted(*field) for field in fields.items())])
        return resolve([yaml_mapping(self._read(CONFIG), self.folder / CONFIG, RESTORE)])

    def _read(self, name: str) -> bytes:
        """Return a file of the run's folder. Raise InputError if it is damaged, or belongs to another run."""
        assert self.folder is not None
        try:
            return read_beside(self.folder / name, run_owner(self.name, name))
        except SealError as error:
            raise self._damaged(name, error) from error

    @cached_property
    def keys(self) -> list[str]:
        """Keys of its links; empty if they were not recorded."""
        try:
            if self.folder is None:
                return [str(row["key"]) for row in self._entry.get("frames", {}).get("tasks", ())]
            return [str(link["key"]) for link in self._entry.get("links", ())]
        except (TypeError, KeyError, AttributeError) as error:
            raise self._damaged(RESULT, error) from error

    @cached_property
    def finished_ns(self) -> int:
        """When it finished, in nanoseconds since 1970."""
        times = [self.event.time_ns] if self.event else []
        if self.folder is not None:
            if stated := self._entry.get("finished"):
                try:
                    times.append(int(datetime.fromisoformat(stated).timestamp() * 1e9))
                except (TypeError, ValueError) as error:
                    raise self._damaged(RESULT, error) from error
            else:
                file = (self.folder / RESULT).file_info() or (self.folder / CONFIG).file_info()
                times += [file.mtime_ns] if file else []
        return max(times, default=0)

    @cached_property
    def _entry(self) -> dict[str, Any]:
        """What was written at its end: result.json, {} if there is none, or the content of the event."""
        if self.folder is None:
            assert self.event is not None
            return self.event.read()
        try:
            return json_mapping(self._read(RESULT), self.folder / RESULT)
        except FileNotFoundError:
            return {}

    def _damaged(self, name: str, error: Exception) -> InputError:
        where = self.event.path if self.folder is None and self.event else f"{self.folder}/{name}"
        return InputError(f"{where} is damaged ({reason(error)}); run the command that wrote it again")


def find_runs(names: Mapping[str, str], storage: StoragePath, with_runs: Collection[str] = ()) -> dict[str, StoredRun]:
    """Return the run that every option names, e.g. {"--old": "icons-er", "--new": "icons-er"}.

    Short names stand for a run that all of them can stand for, also the runs `with_runs`, if there is one.
    """
    found = {option: _matches(option, name, storage) for option, name in names.items()}
    sets = [{run.name for run in runs} for runs in found.values()] + [{name} for name in with_runs]
    common = set.intersection(*sets) if sets else set[str]()
    chosen, lines = {}, []
    for option, runs in found.items():
        shared = [run for run in runs if run.name in common] or runs
        chosen[option] = newest = max(shared, key=lambda run: (run.finished_ns, run.name))
        if len(runs) > 1:
            match = f"{len(runs)} runs that match {names[option]}"
            how = f"newest of {match}" if shared == runs else f"of {match}, the newest that both models can be of"
            lines.append(f"model: {newest.name} ({how})")
    for line in dict.fromkeys(lines):
        log.info(line)
    return chosen


def _matches(option: str, name: str, storage: StoragePath) -> list[StoredRun]:
    """Return all runs that `name` can stand for; raise InputError if there is none."""
    folder = at(name)
    if (folder / CONFIG).exists():
        folder = folder.resolve()  # `.`, or the name alone
        return [StoredRun(folder.name, folder.parent.parent, folder)]
    folders = {path.parent.name: path.parent for path in (storage / "runs").list(f"*/{CONFIG}")}
    events = finished_runs(storage)
    known = sorted({*folders, *events})
    found = [one for one in known if one == name]
    found = found or [one for one in known if one.startswith(f"{name.removesuffix('-')}-")]
    found = found or [one for one in known if one.startswith(name)]
    if not found:
        there = f"; runs there: {', '.join(known[:4])}{', …' * (len(known) > 4)}" if known else "; `cl2r run` makes one"
        asked = f"{option} {name}: no run below {storage} and no exported model"
        raise InputError(f"{asked}{nearest(name, known)}{there}")
    return [StoredRun(one, storage, folders.get(one), events.get(one)) for one in found]
