"""Writing files so that a reader, or a restart, never sees half of one."""

import os
import uuid
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Aside, flushed to disk, renamed: a reader sees the old bytes or the new ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
