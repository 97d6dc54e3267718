"""The Ray that a study starts: no secret of the environment in any file, a private folder, a token, loopback only.

Every planted secret holds the word `planted`, and nothing else does.
"""

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import cl2r
from cl2r.rayrun.private import PREFIX, TOKEN
from cl2r.rayrun.probes import _ask
from tests.support.ports import LOOPBACK, listening
from tests.support.small_study import write_preset

ROOT = Path(cl2r.__file__).parents[1]
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED12",
    "AWS_SECRET_ACCESS_KEY": "wJalrPlanted/K7MDENG+bPxPlanted",
    "AWS_SECURITY_TOKEN": "FwoGZXIvYXdzPlanted-old",
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzPlanted//////wEaDPlanted",
    "HF_TOKEN": "hf_PlantedPlantedPlantedPlanted12",
    "MLFLOW_TRACKING_URI": "https://plantedUser:plantedPass@host.example/x",
}
NO_HOME = "/proc/no-home"  # where not even root can write
PATIENCE_SECONDS = 600


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for RAY_TMPDIR that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="p-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def holding(word: bytes, *folders: Path) -> list[Path]:
    """Return the files below the folders that hold the word in any spelling."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20, "everything is searched"
    return [path for path in files if word in path.read_bytes().lower()]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_study_leaks_nothing_and_listens_on_loopback(tiny: Path, tmp_path: Path, short: Path, workers: int) -> None:
    preset = write_preset(tmp_path, tiny, scenario={"n_tasks": 2}, optim={"epochs": 1, "milestones": []})
    words = ["--preset", preset, "--storage", tmp_path / "results", "--name", "x", "--seeds", "0", "--cells", "er"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "CL2R_", "AWS_"))}
    paths = {"HOME": NO_HOME, "RAY_TMPDIR": str(short), "PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(tmp_path)}
    driver = psutil.Popen(
        [sys.executable, ROOT / "studies" / "ablation.py", *words, "--workers", str(workers)],
        cwd=tmp_path,
        env=plain | paths | SECRETS,
        umask=0o002,  # of people who share a storage
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    addresses: dict[tuple[str, int], str] = {}
    answers: dict[str, str] = {}
    token, modes = "", set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while driver.poll() is None:
            assert time.monotonic() < deadline
            with contextlib.suppress(psutil.NoSuchProcess):
                addresses |= listening(driver)
            with contextlib.suppress(OSError):  # before Ray starts and after it ends
                for folder in short.iterdir():
                    modes |= {("folder", mode(folder)), ("token", mode(folder / TOKEN))}
                    token = (folder / TOKEN).read_text()
            ports = [port for (_, port), name in addresses.items() if name == "gcs_server"]
            if ports and token and answers.get("own") != "OK":  # it listens a moment before it answers
                head = f"127.0.0.1:{ports[0]}"
                answers = {"without": _ask(head)[0], "other": _ask(head, "other")[0], "own": _ask(head, token)[0]}
            time.sleep(0.5)
    finally:
        if driver.poll() is None:
            driver.kill()
    said = driver.communicate()[0]
    assert driver.returncode == 0, said
    assert modes == {("folder", 0o700), ("token", 0o600)}
    assert answers == {"without": "UNAUTHENTICATED", "other": "UNAUTHENTICATED", "own": "OK"}
    assert {"gcs_server", "raylet"} <= set(addresses.values())
    assert {at: name for at, name in addresses.items() if at[0] not in LOOPBACK} == {}

    (folder,) = short.iterdir()
    assert folder.name.startswith(PREFIX)
    assert list(folder.rglob("runtime_env_agent.log")), "Ray's logs can still be read"
    assert not (folder / TOKEN).exists()
    assert (tmp_path / "results" / "studies" / "x" / "report.html").exists()
    assert "planted" not in said.lower(), said
    assert holding(b"planted", tmp_path, short) == []
    assert len(token) == 64
    assert holding(token.encode(), tmp_path, short) == []
    assert token not in said
    links = [path for path in (tmp_path / "results").rglob("*.safetensors")]
    assert {mode(path) for path in links} == {0o664}, "what trials write is not private"
