"""The Ray that is started on this machine for one process: a private folder, its own token, loopback only.

Ray's defaults are made for a machine that trusted users share: its folder is writable by all, its token is one file per
user that others can read, and most of its processes listen at all addresses.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cl2r.errors import InputError
from cl2r.rayrun.probes import kubernetes_tokens

FOLDER = "CL2R_RAY_FOLDER"
"""Variable that tells the processes of such a Ray where its folder is."""
PREFIX, TOKEN, RAY = "cl2r-", "auth_token", "r"  # short: the paths of sockets are limited
KEPT_DAYS = 7
LOOPBACK = "127.0.0.1"
SOCKET_BYTES = 103 if sys.platform == "darwin" else 107
SESSION = "session_2026-01-01_00-00-00_000000_{pid}/sockets/"
SOCKETS = {False: "plasma_store", True: "dash_TaskEventsHead"}
"""The longest name of a socket of Ray, without and with its dashboard."""
UNWRITABLE = (errno.EACCES, errno.EDQUOT, errno.ENAMETOOLONG, errno.ENOSPC, errno.EROFS)
DEFECTS = (AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError)
"""Errors that only a defect of the program raises; they keep their traceback."""


@contextlib.contextmanager
def private_ray(options: Mapping[str, Any]) -> Iterator[None]:
    """Start a Ray with these options of `ray.init`, and end it after the block. Raise InputError if it cannot start.

    Its folder stays, for its logs; one that is a week old is removed when the next Ray starts.
    """
    import ray

    base = check_folder(bool(options["include_dashboard"]))
    _remove_old(base)
    own = {"_node_ip_address": LOOPBACK, "dashboard_host": LOOPBACK}
    folder = base
    with contextlib.ExitStack() as stack:
        try:
            # Nobody else can enter this folder, from the first moment on. Ray makes its own folders writable by all,
            # whatever the umask is; a strict umask would instead make what trials write to a shared storage private.
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            stack.enter_context(_in_use(folder))
            stack.enter_context(_settings(folder))
            stack.callback(ray.shutdown)  # also if it starts only in part
            with _on_loopback():
                ray.init(**options, **own, _temp_dir=str(folder / RAY))
        except DEFECTS:
            raise
        except Exception as error:  # Ray has no class of its own for a process that does not answer in time
            raise _explained(error, folder) from error
        yield


def _explained(error: Exception, folder: Path) -> Exception:
    """Return an error that says why Ray did not start; remove its folder if there are no logs in it."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    path, logs = getattr(error, "filename", None), any(folder.glob(f"{RAY}/session_*/logs/*"))
    if folder.name.startswith(PREFIX) and not logs:
        shutil.rmtree(folder, ignore_errors=True)
    if isinstance(path, str | bytes) or getattr(error, "errno", None) in UNWRITABLE:
        place = os.fsdecode(path) if isinstance(path, str | bytes) else folder
        return InputError(f"{place}: Ray cannot start there ({reason}); fix that, or set RAY_TMPDIR")
    if isinstance(error, ValueError):  # its options do not fit this machine, or this folder
        return InputError(f"Ray does not start below {folder.parent} ({reason}); if that is the cause, set RAY_TMPDIR")
    return ConnectionError(f"Ray does not start ({reason})" + f"; its logs are in {folder}" * logs)


def check_folder(dashboard: bool = False) -> Path:
    """Return the folder below which Ray's own is made: RAY_TMPDIR, else TMPDIR if it is short, else /tmp.

    Raise InputError that names the variable if its path is too long for sockets, or if it cannot be written to.
    """
    name = "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"
    base = Path(os.environ.get(name) or "/tmp").absolute()
    below = Path(f"{PREFIX}12345678", RAY, SESSION.format(pid=os.getpid()), SOCKETS[dashboard])
    longest = SOCKET_BYTES - 1 - len(os.fsencode(below))
    if len(os.fsencode(base)) > longest:
        if name == "RAY_TMPDIR":
            long = f"its path is too long for Ray's sockets, {len(os.fsencode(base))} bytes of at most {longest}"
            raise InputError(f"RAY_TMPDIR={base}: {long}; give a shorter one, or unset it to use /tmp")
        name, base = "", Path("/tmp")  # nobody has asked for sockets in TMPDIR
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            return base
    except OSError as error:
        place = f"{name}={base}" if os.environ.get(name) else str(base)
        reason = error.strerror or error
        raise InputError(f"{place}: Ray cannot write there ({reason}); set RAY_TMPDIR to a folder on a disk") from error


@contextlib.contextmanager
def _in_use(folder: Path) -> Iterator[None]:
    """Lock the folder so that it is not taken for an old one; remove the token at the end."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # without locks, nobody can take it for an old one either
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        (folder / TOKEN).unlink(missing_ok=True)
        os.close(handle)


def _remove_old(base: Path) -> None:
    """Remove this user's folders of Rays that ended a week ago."""
    for path in base.glob(f"{PREFIX}*/{RAY}"):
        try:
            handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # it is another user's, or another process has just removed it
            continue
        try:
            found = os.fstat(handle)
            old = stat.S_IMODE(found.st_mode) == 0o700 and time.time() - found.st_mtime > KEPT_DAYS * 24 * 3600
            if old and found.st_uid == os.getuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:
            continue  # its driver is still running, or the file system has no locks
        finally:
            os.close(handle)


@contextlib.contextmanager
def _settings(folder: Path) -> Iterator[None]:
    """Set the environment of Ray's processes, a token included, and restore it at the end.

    A token of the user's own (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, Kubernetes) is used; otherwise one is made, and the
    file in ~/.ray, which may belong to a cluster, is neither read nor written.
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    values = {FOLDER: str(folder), "RAY_AUTH_MODE": "token", "GLOO_SOCKET_IFNAME": loopback}
    if not (os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH") or kubernetes_tokens()):
        values["RAY_AUTH_TOKEN_PATH"] = str(folder / TOKEN)
        handle = os.open(folder / TOKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
    before = {name: os.environ.get(name) for name in values}
    try:
        os.environ.update(values)
        _read_settings_again()
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_settings_again()


def _read_settings_again() -> None:
    """Make Ray read mode and token again: it read them when it was imported, or for an earlier Ray."""
    import ray

    ray._raylet.Config.initialize("")  # there are no public functions
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let `ray.init` use the loopback address, as it does on macOS; on Linux it replaces it by a reachable one.

    A node whose own address is loopback binds everything there. Ray's switch is RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER,
    but that is read when Ray is imported, and would also hold for a cluster that this process joins later.
    """
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
