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
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from cl2r.errors import InputError
from cl2r.gallery.gallery import Gallery
from cl2r.gallery.model import Model, ModelFiles, find_models
from cl2r.gallery.older import NONE, Older, check_older, oldest_of
from cl2r.gallery.search import Searcher
from cl2r.gallery.service import Service, ServiceOptions
from cl2r.gallery.upgrade import Answer, read_answer
from cl2r.gallery.uploads import UploadLimits
from cl2r.rayrun.cluster import cluster, set_environment
from cl2r.rayrun.private import FOLDER, LOOPBACK
from cl2r.runtime.logs import without_secrets
from cl2r.storage.path import StoragePath, at
from cl2r.study.resources import Resources

NAME = "cl2r-search"
ONGOING, QUEUED = 3 * UploadLimits.side_by_side, 128
"""Requests that a replica has, and that wait for one; further requests are answered with 503.

A request occupies a replica from its headers on. There is room for three times the number of slow uploads, so that
these do not block others.
"""
SECONDS = 60.0  # time for one request, upload included
QUIET = {"log_level": "WARNING", "enable_access_log": False}
ELSEWHERE = ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_ENABLE_DIRECT_INGRESS", "RAY_SERVE_THROUGHPUT_OPTIMIZED")
"""Settings of Serve that make further processes listen, at all addresses."""


def serve(
    options: ServiceOptions,
    model: str,
    storage: StoragePath,
    port: int,
    replicas: int,
    verbose: bool,
    old: str | None = None,
    check: StoragePath | None = None,
) -> int:
    """Answer searches with `model` until Ctrl-C or SIGTERM, then return 0. Bad input is refused before Ray starts."""
    if replicas < 1:
        raise InputError(f"--replicas {replicas}: at least 1")
    _check_address(options.host, port)
    files, older = _models(options, model, storage, old)
    if check is not None:
        older = replace(older, check=_read_check(check, files, older))
    set_environment(verbose)
    try:
        with _stoppable() as listen, cluster(Resources(), verbose, _say) as room:
            listen()
            if not _joins() and replicas > room:  # a cluster may grow; this machine does not
                raise InputError(f"--replicas {replicas}: this machine has room for {room}")
            with _deployed(options, port, files, older, replicas, verbose):
                host = f"[{options.host}]" if ":" in options.host else options.host
                items = Gallery(at(options.gallery)).commit.items
                _say(f"{files.card.name} searches {items} images: http://{host}:{port} (Ctrl-C stops)")
                beside = f"{older.files.card.name} beside it" if older.files else "no older model beside it"
                _say(f"{beside}{': ' * bool(older.why)}{older.reason or older.why}")
                if not options.loopback:
                    _say(f"everyone who can reach {host} can search and see the images: there is no login")
                threading.Event().wait()
    except KeyboardInterrupt:
        _say("stopped")
    return 0


def _models(options: ServiceOptions, model: str, storage: StoragePath, old: str | None) -> tuple[ModelFiles, Older]:
    """Return the model that searches and the one beside it; raise InputError if one that was named cannot search."""
    named = old if old != NONE else None
    found = find_models({"--model": model} | ({"--old": named} if named else {}), storage)
    searcher = Searcher(Gallery(at(options.gallery)), Model(found[0], torch.device("cpu")))
    if named:
        return found[0], check_older(searcher, found[1])
    if old == NONE:
        return found[0], Older(why="the service was started with --old none")
    return found[0], oldest_of(searcher, model, storage)


def _read_check(path: StoragePath, files: ModelFiles, older: Older) -> Answer:
    """Read a saved answer; raise InputError if it is about other models."""
    answer, new = read_answer(path), files.card.name
    old = older.files.card.name if older.files else answer.old_model
    if (answer.old_model, answer.new_model) != (old, new):
        other = f"about {answer.old_model} → {answer.new_model}, but the service shows {old} → {new}"
        raise InputError(f"--check {path}: {other}; run `cl2r upgrade-check` with these models")
    return answer


def _say(line: str) -> None:
    print(without_secrets(line), file=sys.stderr, flush=True)


def _joins() -> bool:
    """Return whether Ray is a cluster, whose nodes listen instead of this machine."""
    return os.environ.get("RAY_ADDRESS", "local") != "local"


def _check_address(host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise InputError(f"--port {port}: a number from 1 to 65535")
    for name in ELSEWHERE:
        if os.environ.get(name, "0") != "0":
            raise InputError(f"{name} makes Ray Serve listen at all addresses; unset it")
    if _joins():
        return
    try:  # Serve would silently share a port with another service
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"--port {port}: another program listens there; give another port") from error
        raise InputError(f"--host {host} --port {port}: cannot listen there ({error.strerror or error})") from error


@contextlib.contextmanager
def _stoppable() -> Iterator[Callable[[], object]]:
    """Treat SIGTERM like Ctrl-C. Yield a function to call after `ray.init`, which installs its own handler."""
    if threading.current_thread() is not threading.main_thread():  # other threads receive no signals
        yield lambda: None
        return
    listen = partial(signal.signal, signal.SIGTERM, signal.default_int_handler)  # which raises KeyboardInterrupt
    before = listen()
    try:
        yield listen
    except SystemExit as end:  # Ray's handler ran, while Ray was starting
        raise KeyboardInterrupt from end
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _deployed(
    options: ServiceOptions, port: int, files: ModelFiles, older: Older, replicas: int, verbose: bool
) -> Iterator[None]:
    """Run Serve until the block ends; on entry the first replica is ready. Refuse a cluster that serves already."""
    import ray
    from ray import serve as ray_serve

    if not verbose:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
    others = sorted(ray_serve.status().applications)
    if others:
        raise InputError(f"the cluster serves {others[0]!r} already; `serve shutdown` ends that, if it may be ended")
    logs = None if verbose else QUIET
    replica = ray_serve.deployment(
        Replica,
        num_replicas=replicas,
        max_ongoing_requests=ONGOING,
        max_queued_requests=QUEUED,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=10,
        ray_actor_options={"num_cpus": 1},
        logging_config=logs,
    )
    web = {"host": options.host, "port": port, "request_timeout_s": SECONDS}
    try:
        ray_serve.start(proxy_location="HeadOnly", http_options=web, logging_config=logs)
        handle = ray_serve.run(replica.bind(options, [ray.put(files), ray.put(older)]), name=NAME, route_prefix="/")
        failure = handle.opened.remote().result()
        if failure:
            raise InputError(failure)
        yield
    finally:
        if NAME in ray_serve.status().applications:
            ray_serve.delete(NAME)  # answers the requests it has accepted
        if _joins():
            ray_serve.shutdown()


def _listen_on_loopback() -> None:
    """Move the server that Ray Serve starts in this replica once it is made from all addresses to loopback."""
    from ray.serve._private import replica

    # Other processes of a private Ray bind to the node's address, 127.0.0.1. For this server, which handles of the
    # deployment call, Serve passes "[::]:0" to its helper, whatever that address is, and has no setting for it.
    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: add_port(server, address.replace("[::]", LOOPBACK))


class Replica(Service):
    """One process that answers. It opens the gallery in a thread, and answers 503 meanwhile."""

    def __init__(self, options: ServiceOptions, held: list[Any]) -> None:
        super().__init__(options)
        if FOLDER in os.environ:
            _listen_on_loopback()
        self._held, self._failure, self._tried = held, "", threading.Event()
        threading.Thread(target=self._open, name="open", daemon=True).start()

    def _open(self) -> None:
        import ray

        try:
            files, older = ray.get(self._held)
            self.open(Model(files, torch.device("cpu")), older)
        except (InputError, OSError) as error:
            self._failure = without_secrets(str(error))
        finally:
            self._tried.set()
        self.measure()

    async def opened(self) -> str:
        """Wait until the gallery is open; return why it cannot be opened, or an empty text."""
        await asyncio.to_thread(self._tried.wait)
        return "" if self.gallery else self._failure or "the gallery cannot be opened; Ray's logs say why"

    def check_health(self) -> None:
        """Raise RuntimeError if the gallery cannot be opened; Serve then replaces this replica."""
        if self._tried.is_set() and self.gallery is None:
            raise RuntimeError(self._failure)
