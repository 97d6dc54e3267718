"""The state of studies, read from their ledgers. Needs neither torch nor Ray, and touches nothing."""

import time
from typing import Literal

from cl2r.errors import InputError, nearest
from cl2r.files import Place, listed
from cl2r.progress import clock
from cl2r.study.folder import StudyFolder
from cl2r.study.live import STALE_SECONDS, read_live


def studies(storage: Place) -> list[StudyFolder]:
    """The studies below `storage`."""
    return [StudyFolder(storage, path.parent.name) for path in listed(storage, "studies/*/study.yaml")]


def find_study(storage: Place, name: str) -> StudyFolder:
    """The study called `name` below `storage`."""
    names = [folder.name for folder in studies(storage)]
    if name not in names:
        raise InputError(f"no study {name!r} below {storage / 'studies'}{nearest(name, names)}")
    return StudyFolder(storage, name)


def overview(storage: Place) -> str:
    """A line a study."""
    found = studies(storage)
    if not found:
        raise InputError(f"no studies below {storage / 'studies'}")
    width = max(len(folder.name) for folder in found)
    return "\n".join(f"{folder.name:<{width}}  {_state(folder)}" for folder in found)


def status(storage: Place, name: str) -> str:
    """One study: counts, what is running, what failed and why."""
    folder = find_study(storage, name)
    lines = [f"{name}: {_state(folder)}", *(f"  {line}" for line in running(folder))]
    for run, event in folder.ledger.outcomes().items():
        if event.kind != "finished":
            lines.append(f"  {run} {event.kind}: {event.read()['reason']}")
    return "\n".join(lines)


def running(folder: StudyFolder) -> list[str]:
    """A line a training process."""
    rows = read_live(folder.live)
    width = max((len(row.title) for row in rows), default=0)
    return [row.line(width) for row in rows]


def phase(folder: StudyFolder) -> Literal["running", "closed", "interrupted"]:
    """Whether a driver is at work, and if not, whether the last one came to its end."""
    if folder.is_driven():
        return "running"
    opened, closed = folder.ledger.events("opened"), folder.ledger.events("closed")
    if opened and closed and closed[-1].time_ns > opened[-1].time_ns:
        return "closed"
    return "running" if folder.driver_is_elsewhere() and _was_heard(folder) else "interrupted"


def _was_heard(folder: StudyFolder) -> bool:
    """Whether anybody left word within the last minute."""
    last = max((event.time_ns for event in folder.ledger.events()), default=0)
    return time.time() - last / 1e9 < STALE_SECONDS or any(not row.stale for row in read_live(folder.live))


def counts(folder: StudyFolder) -> str:
    """How many runs came to what end, and whether more will."""
    outcomes = [event.kind for event in folder.ledger.outcomes().values()]
    opened = folder.ledger.events("opened")
    total = max(opened[-1].read()["runs"] if opened else 0, len(outcomes))
    parts = [f"{outcomes.count('finished')} of {total} runs finished"]
    words = {"failed": "failed", "pruned": "stopped early"}
    parts += [f"{outcomes.count(kind)} {word}" for kind, word in words.items() if kind in outcomes]
    state = {"running": ["running"], "interrupted": ["interrupted: the same command goes on"]}
    return ", ".join([*parts, *state.get(phase(folder), [])])


def _state(folder: StudyFolder) -> str:
    last = max((event.time_ns for event in folder.ledger.events()), default=0)
    ago = clock(max(0.0, time.time() - last / 1e9))
    return counts(folder) + (f"; last event {ago} ago" if last else "")
