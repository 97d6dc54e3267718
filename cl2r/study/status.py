"""The state of studies, read from their ledgers. Needs neither torch nor Ray, and changes nothing."""

import time
from datetime import UTC, datetime
from typing import Any, Literal

from cl2r.errors import InputError, nearest
from cl2r.runtime.text import clock, printable
from cl2r.storage.path import StoragePath
from cl2r.study.folder import StudyFolder
from cl2r.study.ledger import Event
from cl2r.study.live import STALE_SECONDS, aligned, read_live


def studies(storage: StoragePath) -> list[StudyFolder]:
    """Return the studies below `storage`, also those that have lost their study.yaml; hidden folders are none."""
    files = [path for name in ("study.yaml", "ledger") for path in storage.list(f"studies/*/{name}")]
    names = {path.parent.name for path in files}
    return [StudyFolder(storage, name) for name in sorted(names) if not name.startswith(".")]


def overview(storage: StoragePath) -> str:
    """Return one line per study."""
    found = _known(storage)
    width = max(len(printable(folder.name)) for folder in found)
    lines = []
    for folder in found:
        try:
            state = _state(folder)
        except InputError as error:
            state = f"cannot be read: {printable(str(error))}"
        lines.append(f"{printable(folder.name):<{width}}  {state}")
    return "\n".join(lines)


def status(storage: StoragePath, name: str) -> str:
    """Return the state of one study: counts, running trials, and failed runs with their reasons."""
    folder = _study(storage, name)
    lines = [f"{printable(name)}: {_state(folder)}", *(f"  {line}" for line in running(folder))]
    return "\n".join(
        [*lines, *(f"  {printable(run)} {event.kind}: {event.read()['reason']}" for run, event in _ended(folder))]
    )


def status_json(storage: StoragePath, name: str | None) -> dict[str, Any]:
    """Return the same as plain values: of all studies, or of one in detail."""
    if name is None:
        rows: list[dict[str, Any]] = []
        for folder in _known(storage):
            try:
                rows.append(_summary(folder))
            except InputError as error:
                rows.append({"study": folder.name, "state": "unknown", "error": str(error)})
        return {"studies": rows}
    folder = _study(storage, name)
    return _summary(folder) | {
        "running": [{"title": row.title, **row.progress, "stale": row.stale} for row in read_live(folder.live)],
        "unfinished": [
            {"run": run, "outcome": event.kind, "reason": event.read()["reason"]} for run, event in _ended(folder)
        ],
    }


def _known(storage: StoragePath) -> list[StudyFolder]:
    found = studies(storage)
    if not found:
        raise InputError(f"no studies below {storage / 'studies'}")
    return found


def _study(storage: StoragePath, name: str) -> StudyFolder:
    known = {folder.name: folder for folder in studies(storage)}
    if name not in known:
        raise InputError(f"no study {name!r} below {storage / 'studies'}{nearest(name, known)}")
    return known[name]


def _ended(folder: StudyFolder) -> list[tuple[str, Event]]:
    """Return the runs that ended without a result."""
    return [(run, event) for run, event in folder.ledger.outcomes().items() if event.kind != "finished"]


def _summary(folder: StudyFolder) -> dict[str, Any]:
    outcomes = [event.kind for event in folder.ledger.outcomes().values()]
    last = _last_event(folder)
    return {
        "study": folder.name,
        "state": phase(folder),
        "runs": _total(folder, len(outcomes)),
        "finished": outcomes.count("finished"),
        "failed": outcomes.count("failed"),
        "stopped_early": outcomes.count("pruned"),
        "last_event": datetime.fromtimestamp(last, UTC).isoformat(timespec="seconds") if last else None,
    }


def _total(folder: StudyFolder, ended: int) -> int:
    """Return the number of runs of a study; a trial that repeats another's point has none of its own."""
    events = folder.ledger.events("opened", "repeated", "closed")
    began = max((place for place, event in enumerate(events) if event.kind == "opened"), default=None)
    if began is None:
        return ended
    first, *later = events[began:]
    entry = first.read()
    repeated = sum(event.kind == "repeated" for event in later)
    runs: int = entry["runs"] - repeated * entry.get("runs_per_trial", 0)
    for event in later:
        if event.kind == "closed":
            runs = event.read().get("runs", runs)
    return max(runs, ended)


def _last_event(folder: StudyFolder) -> float:
    """Return the time of the last event, 0 if there is none."""
    return max((event.time_ns for event in folder.ledger.events()), default=0) / 1e9


def running(folder: StudyFolder) -> list[str]:
    """Return one line per training process."""
    return aligned(read_live(folder.live))


def phase(folder: StudyFolder) -> Literal["running", "closed", "interrupted"]:
    """Return whether a driver is at work and, if not, whether the last one ended normally.

    A file lock of a driver on another machine may not be visible here; it counts as running if any process reported
    within the last minute. A study that has lost events of runs that had finished is to be resumed.
    """
    if folder.is_driven():
        return "running"
    opened, closed = folder.ledger.events("opened"), folder.ledger.events("closed")
    if opened and closed and closed[-1].time_ns > opened[-1].time_ns:
        lost = closed[-1].read().get("finished", 0) - len(folder.ledger.last("finished"))
        return "interrupted" if lost > 0 else "closed"
    if not folder.driver_is_elsewhere():
        return "interrupted"
    recent = time.time() - _last_event(folder) < STALE_SECONDS or any(not row.stale for row in read_live(folder.live))
    return "running" if recent else "interrupted"


def counts(folder: StudyFolder) -> str:
    """Return how many runs have which outcome, and whether the study is running or interrupted."""
    outcomes = [event.kind for event in folder.ledger.outcomes().values()]
    parts = [f"{outcomes.count('finished')} of {_total(folder, len(outcomes))} runs finished"]
    words = {"failed": "failed", "pruned": "stopped early"}
    parts += [f"{outcomes.count(kind)} {word}" for kind, word in words.items() if kind in outcomes]
    state = {"running": ["running"], "interrupted": ["interrupted: run the same command again to resume"]}
    return ", ".join([*parts, *state.get(phase(folder), [])])


def _state(folder: StudyFolder) -> str:
    last = _last_event(folder)
    ago = clock(max(0.0, time.time() - last))
    return counts(folder) + (f"; last event {ago} ago" if last else "")
