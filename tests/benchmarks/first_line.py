"""Seconds until every command shows its first line and its first progress, quiet and with all cores busy.

    python -m tests.benchmarks.first_line                    # two to five minutes for each of the two columns
    python -m tests.benchmarks.first_line --only quiet
    python -m tests.benchmarks.first_line --source ../old    # another checkout of the project

The commands see a terminal, as users have one. Progress is an epoch of training or, where nothing is trained, the
result. A study is stopped there. "quiet" means little if other programs run meanwhile: the load is printed.
"""

import argparse
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.busy import busy

CONTROL = re.compile(r"\033\[[?\d;]*[A-Za-z]|\r")
EPOCH = r"epoch \d+/\d+"
SHORT = ["--tasks", "2", "--set", "optim.epochs=1", "--set", "optim.milestones=[]"]


@dataclass(frozen=True)
class Timing:
    """Seconds to the first line, to the first progress and to the end; None if it did not come."""

    first: float | None
    progress: float | None
    ended: float | None


def timed(words: list[str], folder: Path, source: Path, progress: str, stop: bool, limit: float) -> Timing:
    """Run a command on a terminal of its own; with `stop`, interrupt it at its first progress."""
    own, other = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "160", "TERM": "xterm"}
    environment.pop("OMP_WAIT_POLICY", None)  # set by this process, which imports cl2r
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "cl2r", *words], cwd=folder, env=environment, stdout=other, stderr=other, stdin=other
    )
    os.close(other)
    text, first, seen = "", None, None
    while time.monotonic() - began < limit:
        if select.select([own], [], [], 0.05)[0]:
            try:
                text += os.read(own, 65536).decode(errors="replace")
            except OSError:  # the command has closed its terminal
                break
            shown, now = CONTROL.sub("", text), time.monotonic() - began
            first = now if first is None and shown.strip() else first
            seen = now if seen is None and re.search(progress, shown) else seen
            if seen is not None and stop:
                break
        elif process.poll() is not None:
            break
    ended = None
    if not stop or seen is None:
        ended = time.monotonic() - began
    if process.poll() is None:
        process.send_signal(signal.SIGINT if stop else signal.SIGCONT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    os.close(own)
    if not stop and process.returncode not in (0, 3, 4):  # 3 and 4: an upgrade that is not safe, or not known to be
        print(f"{' '.join(words)} ended with {process.returncode}:\n{CONTROL.sub('', text)}", file=sys.stderr)
    return Timing(first, seen, ended)


def commands(storage: Path, folder: Path) -> list[tuple[str, list[str], str, bool]]:
    """Return name, words, the form of progress, and whether to stop there. Later ones use what earlier ones leave."""
    runs = sorted(path.name for path in (storage / "runs").glob("icons-*"))
    model = f"{runs[0]}@" if runs else "icons-cl2r@"
    where, gallery, images = ["--storage", str(storage)], str(folder / "gallery"), folder / "images"
    query = next(iter(sorted(images.rglob("*.png"))), images / "none.png")
    return [
        ("run", ["run", "icons", *SHORT, *where], EPOCH, False),
        ("plan", ["plan", "ablation", *where], "finished ", False),
        ("calibrate", ["calibrate", "icons"], "fastest: ", False),
        ("datasets check", ["datasets", "check", "icons"], "complete", False),
        ("index", ["index", str(images), "--model", f"{model}1", "--gallery", gallery, *where], "images added", False),
        ("search", ["search", gallery, "--query", str(query), "--model", f"{model}2", *where], r"\d\.\d", False),
        (
            "upgrade-check",
            ["upgrade-check", gallery, "--old", f"{model}1", "--new", f"{model}2", *where],
            "safe|not known",
            False,
        ),
        ("export", ["export", f"{model}2", str(folder / "exported"), *where], "exported", False),
        ("study", ["study", "ablation", "--cells", "er", "--name", "one", *SHORT, *where], EPOCH, False),
        ("status", ["status", *where], "runs finished", False),
        ("report", ["report", "one", *where], "report: ", False),
        ("study (default)", ["study", "ablation", "--storage", str(folder / "other")], EPOCH, True),
        ("recommend", ["recommend", "--hours", "12", "--storage", str(folder / "race")], EPOCH, True),
    ]


def measure(source: Path, limit: float) -> dict[str, Timing]:
    """Time all commands in a new folder."""
    found: dict[str, Timing] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, storage = Path(name), Path(name, "results")
        subprocess.run(
            [sys.executable, "-m", "cl2r", "datasets", "open-images", "icons", str(folder / "images")],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(source)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        for number in range(len(commands(storage, folder))):
            title, words, progress, stop = commands(storage, folder)[number]  # names of runs are known by now
            found[title] = timed(words, folder, source, progress, stop, limit)
            print(f"{title}: {found[title]}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--only", choices=["quiet", "busy"])
    parser.add_argument("--limit", type=float, default=90.0, help="seconds after which a command is stopped")
    options = parser.parse_args()
    columns = [options.only] if options.only else ["quiet", "busy"]
    found = {}
    for column in columns:
        with busy((os.cpu_count() or 1) if column == "busy" else 0):
            found[column] = measure(options.source.resolve(), options.limit)
    heads = [f"{column}: {what}" for column in columns for what in ("first line", "first progress", "end")]
    print(f"| command | {' | '.join(heads)} |\n|{'---|' * (1 + len(heads))}")
    for title in found[columns[0]]:
        times = [found[column][title] for column in columns]
        cells = [value for one in times for value in (one.first, one.progress, one.ended)]
        print(f"| {title} | {' | '.join('–' if cell is None else f'{cell:.1f}' for cell in cells)} |")


if __name__ == "__main__":
    main()
