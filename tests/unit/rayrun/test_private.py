"""Folder, token and environment of the Ray that is started on this machine. No Ray is started."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import ray_constants
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray._private.services import resolve_ip_for_localhost
from ray.train.v2._internal import constants as train_constants
from ray.tune.execution.class_cache import _ActorClassCache

from cl2r.errors import InputError
from cl2r.rayrun import private, tune
from cl2r.rayrun.cluster import check_address
from cl2r.rayrun.private import FOLDER, PREFIX, RAY, TOKEN, check_folder
from cl2r.runtime.logs import TELLING

AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN")
SETTINGS = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR", "TMPDIR")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*SETTINGS, "RAY_ENABLE_K8S_TOKEN_AUTH", FOLDER):
        monkeypatch.delenv(name, raising=False)
    yield
    monkeypatch.undo()
    private._read_settings_again()


def refusal() -> str:
    with pytest.raises(InputError) as refused:
        check_address(verbose=False)
    return str(refused.value)


def test_keys_of_the_driver_are_not_copied_into_the_environment_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails with another Ray, find where it takes the variables from: it writes them to a log in clear."""
    assert tune.class_cache.ENV_VARS_TO_PROPAGATE, "other variables still are"
    for name in AWS:
        monkeypatch.setenv(name, f"planted {name}")
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")
    variables = _ActorClassCache().get(type("Trainable", (), {}))._default_options["runtime_env"]["env_vars"]
    assert variables["RAY_CHDIR_TO_TRIAL_DIR"] == "0"
    assert not [name for name, value in variables.items() if TELLING.search(name) or "planted" in value]


def test_ray_train_copies_no_secrets() -> None:
    assert "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S" in train_constants.ENV_VARS_TO_PROPAGATE
    assert not [name for name in train_constants.ENV_VARS_TO_PROPAGATE if TELLING.search(name)]


def failing(monkeypatch: pytest.MonkeyPatch, folder: Path, error: Exception, logs: bool = False) -> None:
    """Make `ray.init` raise an error, after it has written `logs`; the folder is below `folder`."""

    def fail(**options: Any) -> None:
        if logs:
            place = Path(options["_temp_dir"], "session_2026-01-01", "logs")
            place.mkdir(parents=True)
            (place / "raylet.out").touch()
        raise error

    monkeypatch.setattr(private, "SOCKET_BYTES", 1000)  # pytest's folders are long
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setattr(ray, "init", fail)


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Exception("The current node timed out\nduring startup."), "The current node timed out during startup."),
        (ConnectionError("no\nanswer"), "no answer"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", 3), "No such file or directory"),
    ],
    ids=["late", "silent", "no process", "a number as path"],
)
def test_a_ray_that_does_not_start_is_one_line_that_blames_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, reason: str, logs: bool
) -> None:
    failing(monkeypatch, tmp_path, error, logs)
    with pytest.raises(ConnectionError) as caught, private.private_ray({"include_dashboard": False}):
        pytest.fail("it has not started")
    left = list(tmp_path.iterdir())
    assert len(left) == logs, "a folder without logs is of no use"
    assert str(caught.value) == f"Ray does not start ({reason})" + "".join(f"; its logs are in {path}" for path in left)
    assert FOLDER not in os.environ


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing(monkeypatch, tmp_path, TypeError("unexpected keyword"))
    with pytest.raises(TypeError), private.private_ray({"include_dashboard": False}):
        pytest.fail("it has not started")


def test_a_file_system_without_locks_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    old = tmp_path / f"{PREFIX}old"
    (old / RAY).mkdir(parents=True)
    old.chmod(0o700)
    os.utime(old, (1, 1))
    failing(monkeypatch, tmp_path, ConnectionError())
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with private.private_ray({"include_dashboard": False}):
        assert Path(os.environ[FOLDER]).parent == tmp_path
    assert old.exists(), "it may be in use"


@pytest.mark.parametrize("place", ["tempfile.mkdtemp", "secrets.token_hex"])
def test_a_full_disk_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    failing(monkeypatch, tmp_path, ConnectionError())
    monkeypatch.setattr(f"cl2r.rayrun.private.{place}", fail)
    with pytest.raises(InputError) as refused, private.private_ray({"include_dashboard": False}):
        pytest.fail("it has not started")
    assert str(refused.value).startswith(str(tmp_path))
    assert str(refused.value).endswith("Ray cannot start there (No space left on device); fix that, or set RAY_TMPDIR")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_below_the_one_that_the_user_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(private, "SOCKET_BYTES", 1000)  # pytest's folders are long
    assert check_folder() == Path("/tmp")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "general"))
    assert check_folder() == tmp_path / "general"
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "own" / "new"))
    assert check_folder(dashboard=True) == tmp_path / "own" / "new"
    assert list((tmp_path / "own" / "new").iterdir()) == []


def test_a_path_that_is_too_long_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    long = f"/tmp/{'x' * 50}"
    monkeypatch.setenv("TMPDIR", long)
    assert check_folder() == Path("/tmp"), "nobody asked for sockets there"
    monkeypatch.setenv("RAY_TMPDIR", long)
    assert refusal().startswith(f"RAY_TMPDIR={long}: its path is too long for Ray's sockets, 55 bytes of at most ")
    assert not Path(long).exists()


def test_a_variable_that_is_not_used_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setenv("TMPDIR", f"/tmp/{'x' * 50}")
    monkeypatch.setattr("cl2r.rayrun.private.tempfile.TemporaryFile", refuse)
    assert refusal().startswith("/tmp: Ray cannot write there (Permission denied); ")


@pytest.mark.parametrize("dashboard", [False, True])
def test_the_longest_path_that_is_accepted_has_room_for_rays_sockets(
    monkeypatch: pytest.MonkeyPatch, dashboard: bool
) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    monkeypatch.setattr(private.tempfile, "TemporaryFile", lambda **_: open(os.devnull))  # noqa: SIM115
    accepted = []
    for length in range(5, 60):
        monkeypatch.setenv("RAY_TMPDIR", "/" + "x" * (length - 1))
        try:
            accepted.append(str(check_folder(dashboard)))
        except InputError:
            break
    session = f"session_{time.strftime('%Y-%m-%d_%H-%M-%S')}_123456_{os.getpid()}"
    name = "dash_TaskEventsHead" if dashboard else "plasma_store"
    assert len(f"{accepted[-1]}/{PREFIX}abcdefgh/{RAY}/{session}/sockets/{name}") == private.SOCKET_BYTES
    assert len(accepted[-1]) >= 18


def test_a_folder_that_cannot_be_written_to_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/proc/nowhere")
    line = refusal()
    assert line.startswith("RAY_TMPDIR=/proc/nowhere: ")
    assert "set RAY_TMPDIR to" in line


def test_a_start_that_fails_names_the_path_and_is_the_users_to_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for error, words in (
        (PermissionError(13, "Permission denied", "/home/x/.ray"), "/home/x/.ray: Ray cannot start there (Permission"),
        (
            ValueError("must not be child\n of virtualenv"),
            "(must not be child of virtualenv); if that is the cause, set RAY_TMPDIR",
        ),
    ):
        failing(monkeypatch, tmp_path, error)
        with pytest.raises(InputError) as refused, private.private_ray({"include_dashboard": False}):
            pytest.fail("it has not started")
        assert words in str(refused.value)
    assert FOLDER not in os.environ


def test_the_token_is_made_for_this_ray_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # a setting for a cluster
    private._read_settings_again()
    assert not is_token_auth_enabled()
    tokens = set()
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        umask = os.umask(0)
        try:
            with private._in_use(folder), private._settings(folder):
                assert stat.S_IMODE((folder / TOKEN).stat().st_mode) == 0o600
                assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(folder / TOKEN)
                assert is_token_auth_enabled()
                header = ray._raylet.AuthenticationTokenLoader.instance().get_token_for_http_header()
                tokens.add((folder / TOKEN).read_text())
                assert header == {"authorization": f"Bearer {(folder / TOKEN).read_text()}"}
        finally:
            os.umask(umask)
        assert not (folder / TOKEN).exists()
    assert len(tokens) == 2
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    assert not is_token_auth_enabled()


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_of_the_users_own_is_used(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("token-of-the-user")
    value = "token-of-the-user" if name == "RAY_AUTH_TOKEN" else str(tmp_path / "own")
    monkeypatch.setenv(name, value)
    with private._settings(tmp_path):
        assert os.environ[name] == value
        header = ray._raylet.AuthenticationTokenLoader.instance().get_token_for_http_header()
        assert header == {"authorization": "Bearer token-of-the-user"}
    assert not (tmp_path / TOKEN).exists()


def test_ray_takes_loopback_for_the_address_of_the_machine() -> None:
    """If this fails with another Ray, its processes listen at all addresses."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    with private._on_loopback():
        assert resolve_ip_for_localhost(private.LOOPBACK) == private.LOOPBACK
    assert ray_constants.ENABLE_RAY_CLUSTER is before


def test_old_folders_are_removed_unless_in_use_or_not_ours(tmp_path: Path) -> None:
    week = private.KEPT_DAYS * 24 * 3600
    ages = {"old": week + 60, "new": week - 600, "used": week + 60, "shared": week + 60, "other": week + 60}
    for name, age in ages.items():
        folder = tmp_path / (name if name == "other" else f"{PREFIX}{name}")
        (folder / RAY / "session_2026").mkdir(parents=True)
        folder.chmod(0o755 if name == "shared" else 0o700)
        os.utime(folder, (time.time() - age,) * 2)
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "other")
    handle = os.open(tmp_path / f"{PREFIX}used", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    private._remove_old(tmp_path)
    os.close(handle)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"other", *(f"{PREFIX}{name}" for name in ("new", "used", "shared", "link"))}
