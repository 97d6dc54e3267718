"""What killed processes leave behind is found; what a living process writes is not."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import cl2r
from cl2r.storage import claims
from cl2r.storage.leftovers import DAY, stale, stale_temporary
from cl2r.storage.path import LocalPath, ObjectPath, temporary_folder

HEX = "0123456789abcdef" * 2


def aged(path: Path, seconds: float = 2 * DAY) -> Path:
    """Make a file or a folder, and all in it, look as if it had been written `seconds` ago."""
    then = time.time() - seconds
    for one in [*path.rglob("*"), path]:
        os.utime(one, (then, then), follow_symlinks=False)
    return path


def written(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_old_files_and_folders_written_aside_are_listed(tmp_path: Path) -> None:
    file = aged(written(tmp_path / "studies" / f".about.json.{HEX}"))
    folder = tmp_path / "links" / f".0f-1.{HEX}"
    written(folder / "state.safetensors")
    written(folder / f".record.json.{HEX}")
    probe = aged(written(tmp_path / "runs" / f".probe-{HEX}"))
    aged(written(tmp_path / ".hidden" / f".x.{HEX}"))
    assert set(stale(tmp_path)) == {file, probe}
    aged(folder)
    assert set(stale(tmp_path)) == {file, folder, probe}, "a folder once, not what is in it"


def test_what_a_writer_touched_today_is_not_listed(tmp_path: Path) -> None:
    folder = tmp_path / f".0f-1.{HEX}"
    written(folder / "deep" / "state.safetensors")
    aged(folder)
    os.utime(folder / "deep" / "state.safetensors")
    aged(written(tmp_path / f".new.{HEX}"), DAY / 2)
    assert list(stale(tmp_path)) == []
    assert len(list(stale(tmp_path, older_than=DAY / 4))) == 1


def test_other_names_are_not_listed(tmp_path: Path) -> None:
    for name in (f"about.json.{HEX}", f".{HEX}", f".about.{HEX[:-1]}", f".about.{HEX.upper()}", ".gitignore", HEX):
        aged(written(tmp_path / name))
    aged(written(tmp_path / "elsewhere" / f".x.{HEX}"))
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "elsewhere")
    assert list(stale(tmp_path / "root")) == [], "links are not followed"
    assert list(stale(tmp_path)) == [tmp_path / "elsewhere" / f".x.{HEX}"]


def test_a_writer_that_was_killed(tmp_path: Path) -> None:
    """The names are those that `write_file` gives."""
    program = """
import os, signal, sys
from cl2r.storage.path import LocalPath
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
LocalPath(sys.argv[1]).write_file(b"content")
"""
    path = LocalPath(tmp_path / "about.json")
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert list(stale(tmp_path)) == []
    assert list(stale(tmp_path, older_than=-1)) == [left]
    path.write_file(b"content")
    assert set(stale(tmp_path, older_than=-1)) == {left}


def test_temporary_folders_of_dead_processes_are_listed_at_once(temporary: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    digits = claims.process_mark().partition("-")[2]
    dead = temporary / f"cl2r-{process.pid}-{digits}-abc"
    dead.mkdir()
    with ObjectPath("s3://bucket/x").staging() as alive:
        aged(alive)
        assert alive.parent == temporary
        assert list(stale_temporary(0)) == [dead], "a living process may pause for as long as it likes"


def test_temporary_folders_of_this_project_are_found_when_their_process_was_killed(temporary: Path) -> None:
    script = "import os\nfrom cl2r.storage.path import temporary_folder\nwith temporary_folder('x y'): os._exit(9)"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(temporary)}, check=False)
    [left] = temporary.iterdir()
    assert list(stale_temporary()) == [left]
    with temporary_folder("mine") as own:
        assert own.parent == temporary
        assert list(stale_temporary()) == [left], "its process is at work"
    assert not own.exists()


def test_every_temporary_folder_has_the_mark_of_its_process() -> None:
    """Otherwise nobody finds it. A private Ray says in its own file whose its folder is."""
    root = Path(cl2r.__file__).parent
    files = [*root.rglob("*.py"), *(root.parent / "studies").glob("*.py")]
    made = [path.name for path in files if re.search(r"TemporaryDirectory|mkdtemp", path.read_text(encoding="utf-8"))]
    assert sorted(made) == ["path.py", "private.py"]


def test_temporary_folders_of_unknown_processes_are_judged_by_age(temporary: Path) -> None:
    for name in ("cl2r-scaling-abc", "cl2r-1-00000000-abc"):  # no process in the name, and one of another boot
        written(temporary / name / "file")
    assert list(stale_temporary()) == []
    aged(temporary / "cl2r-scaling-abc")
    old = {aged(temporary / "cl2r-1-00000000-abc")}
    aged(written(temporary / "cl2r-file"))
    (temporary / "other").mkdir()
    (temporary / "cl2r-link").symlink_to(temporary / "other")
    assert set(stale_temporary()) == old
