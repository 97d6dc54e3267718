"""The state of studies, read from their ledgers. Needs neither torch nor Ray, and touches nothing."""

import time
from pathlib import Path

from cl2r.errors import InputError, nearest
from cl2r.progress import clock
from cl2r.study.folder import StudyFolder
from cl2r.study.live import read_live


def studies(storage: Path) -> list[StudyFolder]:
    """The studies below `storage`."""
    return [StudyFolder(storage, path.parent.name) for path in sorted(storage.glob("studies/*/study.yaml"))]


def overview(storage: Path) -> str:
    """A line a study."""
    found = studies(storage)
    if not found:
        raise InputError(f"no studies below {storage / 'studies'}")
    width = max(len(folder.name) for folder in found)
    return "\n".join(f"{folder.name:<{width}}  {_counts(folder)}" for folder in found)


def status(storage: Path, name: str) -> str:
    """One study: counts, what is running, what failed and why."""
    names = [folder.name for folder in studies(storage)]
    if name not in names:
        raise InputError(f"no study {name!r} below {storage / 'studies'}{nearest(name, names)}")
    folder = StudyFolder(storage, name)
    lines = [f"{name}: {_counts(folder)}"]
    rows = read_live(folder.live)
    width = max((len(row.title) for row in rows), default=0)
    lines += [f"  {row.line(width)}" for row in rows]
    for run, event in folder.ledger.outcomes().items():
        if event.kind != "finished":
            lines.append(f"  {run} {event.kind}: {event.read()['reason']}")
    return "\n".join(lines)


def _counts(folder: StudyFolder) -> str:
    ledger = folder.ledger
    outcomes = [event.kind for event in ledger.outcomes().values()]
    opened, closed = ledger.events("opened"), ledger.events("closed")
    total = opened[-1].read()["runs"] if opened else 0
    total = max(total, len(outcomes))
    counts = [f"{outcomes.count('finished')} of {total} runs finished"]
    words = {"failed": "failed", "pruned": "stopped early"}
    counts += [f"{outcomes.count(kind)} {word}" for kind, word in words.items() if kind in outcomes]
    if folder.is_driven():
        counts.append("running")
    elif not opened or not closed or closed[-1].time_ns < opened[-1].time_ns:
        counts.append("interrupted: the same command goes on")
    last = max((event.time_ns for event in ledger.events()), default=0)
    ago = clock(max(0.0, time.time() - last / 1e9))
    return ", ".join(counts) + (f"; last event {ago} ago" if last else "")
