"""Which version of this project's files is at work."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout, or what the packages were installed into."""


def commit(root: Path = ROOT) -> str:
    """The commit of the checkout at `root`, and whether files differ from it (kept results apart)."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return "unknown, not a git checkout"
    changed = _git(root, "status", "--porcelain", "--", ".", ":(exclude)studies/results")
    return f"{_git(root, 'rev-parse', 'HEAD') or 'none yet'}{', with uncommitted changes' if changed else ''}"


def _git(root: Path, *words: str) -> str | None:
    """What git answers; None if it cannot."""
    try:
        answer = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
