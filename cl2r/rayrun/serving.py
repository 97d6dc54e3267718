"""The search service on Ray Serve: replicas with the model and the gallery, behind Serve's own proxy."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

from cl2r.errors import InputError
from cl2r.files import Place
from cl2r.privacy import without_secrets
from cl2r.rayrun.cluster import Say, cluster, set_environment
from cl2r.rayrun.resources import Resources
from cl2r.search.gallery import Gallery
from cl2r.search.model import Model
from cl2r.search.searching import Searcher
from cl2r.search.service import MOST_BYTES, Service, ServiceOptions
from cl2r.search.snapshot import Snapshot, find_snapshot

NAME = "cl2r-search"
ONGOING, QUEUED = 16, 128
"""Requests that a replica takes on, and that wait for one; more are answered with 503."""
SECONDS = 60.0
"""For one request, upload included."""
QUIET = {"log_level": "WARNING", "enable_access_log": False}
ELSEWHERE = ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_ENABLE_DIRECT_INGRESS", "RAY_SERVE_THROUGHPUT_OPTIMIZED")
"""Settings of Serve by which other processes listen too, at all addresses."""


def serve(
    gallery: Place,
    model: str,
    storage: Place,
    host: str = "127.0.0.1",
    port: int = 8000,
    top: int = 12,
    replicas: int = 1,
    most_bytes: int = MOST_BYTES,
    names: tuple[str, ...] = (),
    resources: Resources | None = None,
    verbose: bool = False,
    say: Say | None = None,
) -> int:
    """Answer searches of `gallery` with `model` until Ctrl-C or SIGTERM; then 0. What is wrong is said before."""
    say = say or _to_stderr
    gallery = gallery.resolve() if isinstance(gallery, Path) else gallery
    options = ServiceOptions(str(gallery), host, top, most_bytes, tuple(name.lower() for name in names))
    if replicas < 1:
        raise InputError(f"--replicas {replicas}: at least 1")
    _check_address(options, port)
    snapshot = find_snapshot(model, storage)
    items = Searcher(Gallery(gallery), Model(snapshot, torch.device("cpu"))).gallery.commit.items
    set_environment(verbose)
    try:
        with _stoppable() as listen, cluster(resources or Resources(), verbose, say) as room:
            listen()
            _check_room(replicas, room)
            with _deployed(options, port, snapshot, replicas, resources or Resources(), verbose):
                say(f"{snapshot.card.name} searches {items} images: {_address(host, port)} (Ctrl-C stops)")
                if not options.loopback:
                    say(f"anybody who reaches {host} can search and see the images: there is no login")
                threading.Event().wait()
    except KeyboardInterrupt:
        say("stopped")
    return 0


def _to_stderr(line: str) -> None:
    print(without_secrets(line), file=sys.stderr, flush=True)


def _address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _joins() -> bool:
    """Whether Ray is that of a cluster, whose machines listen, not this one."""
    return os.environ.get("RAY_ADDRESS", "local") != "local"


# ---------------------------------------------------------------- before anything starts


def _check_address(options: ServiceOptions, port: int) -> None:
    if not 1 <= port <= 65535:
        raise InputError(f"--port {port}: a number from 1 to 65535")
    for name in ELSEWHERE:
        if os.environ.get(name, "0") != "0":
            raise InputError(f"{name} makes Ray Serve listen at all addresses; unset it")
    if not _joins():
        _check_free(options.host, port)


def _check_free(host: str, port: int) -> None:
    """Two services would share a port without a word: Serve allows that."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"--port {port}: another program listens there; give another port") from error
        raise InputError(f"--host {host} --port {port}: cannot listen there ({error.strerror or error})") from error


def _check_room(replicas: int, room: int) -> None:
    """A cluster may grow; this machine does not."""
    if not _joins() and replicas > room:
        raise InputError(f"--replicas {replicas}: this machine has room for {room}")


# ---------------------------------------------------------------- while it runs


@contextlib.contextmanager
def _stoppable() -> Iterator[Any]:
    """SIGTERM is as good as Ctrl-C; gives what to call after `ray.init`, which installs a handler of its own."""
    if threading.current_thread() is not threading.main_thread():  # who never hears signals
        yield lambda: None
        return
    before = signal.getsignal(signal.SIGTERM)

    def listen() -> None:
        signal.signal(signal.SIGTERM, _interrupt)

    listen()
    try:
        yield listen
    except SystemExit as end:  # Ray's handler was there first: while it starts
        raise KeyboardInterrupt from end
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _deployed(
    options: ServiceOptions, port: int, snapshot: Snapshot, replicas: int, resources: Resources, verbose: bool
) -> Iterator[None]:
    """Serve with replicas, the first of which is ready. Serve is shut down in the end: it is nobody else's."""
    import ray
    from ray import serve as ray_serve

    if not verbose:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
    others = sorted(ray_serve.status().applications)
    if others:
        raise InputError(f"the cluster serves {others[0]!r} already; `serve shutdown` ends that, if it may be ended")
    logs = None if verbose else QUIET
    web = {"host": options.host, "port": port, "request_timeout_s": SECONDS}
    replica = ray_serve.deployment(
        Replica,
        num_replicas=replicas,
        max_ongoing_requests=ONGOING,
        max_queued_requests=QUEUED,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=10,
        ray_actor_options=_actor_options(resources),
        logging_config=logs,
    )
    try:
        ray_serve.start(proxy_location="HeadOnly", http_options=web, logging_config=logs)
        handle = ray_serve.run(replica.bind(options, [ray.put(snapshot)], resources), name=NAME, route_prefix="/")
        failure = handle.opened.remote().result()
        if failure:
            raise InputError(failure)
        yield
    finally:
        if NAME in ray_serve.status().applications:
            ray_serve.delete(NAME)  # answers what it has taken on
        if _joins():
            ray_serve.shutdown()


def _actor_options(resources: Resources) -> dict[str, Any]:
    wanted = resources.per_worker()
    cpus, gpus = wanted.pop("CPU"), wanted.pop("GPU", 0)
    return {"num_cpus": cpus, "num_gpus": gpus, "resources": wanted}


class Replica(Service):
    """One process that answers. It opens the gallery aside, to answer meanwhile that it does."""

    def __init__(self, options: ServiceOptions, held: list[Any], resources: Resources) -> None:
        super().__init__(options)
        self._held, self._resources, self._failure, self._tried = held, resources, "", threading.Event()
        threading.Thread(target=self._open, name="open", daemon=True).start()

    def _open(self) -> None:
        import ray

        try:
            self.open(Model(ray.get(self._held[0]), self._resources.device()))
        except (InputError, OSError) as error:
            self._failure = without_secrets(str(error))
        finally:
            self._tried.set()

    async def opened(self) -> str:
        """Wait until it is; why it cannot be."""
        await asyncio.to_thread(self._tried.wait)
        return "" if self.gallery else self._failure or "the gallery cannot be opened; Ray's logs say why"

    def check_health(self) -> None:
        """Serve asks now and then, and puts another replica in the place of one that raises."""
        if self._tried.is_set() and self.gallery is None:
            raise RuntimeError(self._failure)
