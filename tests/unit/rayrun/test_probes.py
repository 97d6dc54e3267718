"""What a study says of a cluster that it cannot use: no head, another token, nodes without the package or the data."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from cl2r.config.schema import DataConfig
from cl2r.errors import InputError
from cl2r.rayrun import probes, tune
from cl2r.rayrun.probes import FIRST_CALL, NodeChecks, check_head
from cl2r.study.ledger import DIED
from cl2r.study.resources import Resources

TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token in the environment or in the home."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_K8S_TOKEN_AUTH", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def head() -> Iterator[Callable[[str], str]]:
    """Start servers that answer Ray's first request; with a token they take no other one. Return their addresses."""
    servers = []

    def start(token: str = "") -> str:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            given = dict(context.invocation_metadata()).get("authorization", "")
            if token and given != f"Bearer {token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        service, _, method = FIRST_CALL.strip("/").partition("/")
        handler = grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(answer)})
        server = grpc.server(ThreadPoolExecutor(1), handlers=[handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None)


def refusal(address: str) -> str:
    with pytest.raises(InputError) as refused:
        check_head(address)
    return str(refused.value)


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray replaces 127.0.0.1 by another address of this machine, at which the servers here do not listen."""
    monkeypatch.setattr("ray._private.services.resolve_ip_for_localhost", lambda host: host)


def test_a_head_that_answers(head: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_head("local")
    check_head(head(""))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    (tmp_path / "own").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "own"))
    check_head(head(TOKEN))
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)  # Ray reads it first
    (tmp_path / "own").write_text("another")
    check_head(head(TOKEN))


def test_a_head_that_wants_a_token(head: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = head(TOKEN)
    for words in (address, "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"):
        assert words in refusal(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert f"no token in {tmp_path}/.ray/auth_token" in refusal(address)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "nothing"))
    assert f"no token in {tmp_path}/nothing (RAY_AUTH_TOKEN_PATH)" in refusal(address)
    (tmp_path / "nothing").write_text("of another cluster")
    assert f"the token in {tmp_path}/nothing (RAY_AUTH_TOKEN_PATH) is not the cluster's" in refusal(address)


def test_a_token_file_that_is_not_there_is_said_before_a_ray_of_our_own_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "nothing"))
    assert "write one there, or unset RAY_AUTH_TOKEN_PATH" in refusal("local")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    check_head("local")


def test_an_address_without_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(probes, "HEAD_S", 0.2)
        assert f"RAY_ADDRESS={address}: no Ray head answers" in refusal(address)  # it accepts, and is silent
    monkeypatch.undo()
    assert "Connection refused" in refusal(address)
    assert 2 * probes.HEAD_S < 10


@pytest.mark.parametrize("address", ["http://head:8265", "https://head", "ray://head:10001", "head"])
def test_an_address_of_another_kind(address: str) -> None:
    assert f"RAY_ADDRESS={address}" in refusal(address)
    assert "`auto` or HOST:PORT" in refusal(address)


def test_a_host_whose_name_begins_like_an_address_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", lambda address: address)
    assert probes._resolved("httpd-7:6379") == "httpd-7:6379"


def test_tokens_of_kubernetes_are_left_to_ray(
    head: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ENABLE_K8S_TOKEN_AUTH", "true")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "nothing"))
    check_head("local")
    check_head(head(TOKEN))


@pytest.mark.parametrize("certificate", [None, "nothing.pem"])
def test_certificates_that_are_not_there(
    certificate: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("SERVER_CERT", "SERVER_KEY", "CA_CERT"):
        monkeypatch.delenv(f"RAY_TLS_{name}", raising=False)
        if certificate:
            monkeypatch.setenv(f"RAY_TLS_{name}", str(tmp_path / certificate))
    monkeypatch.setenv("RAY_USE_TLS", "1")
    assert "check RAY_TLS_SERVER_CERT" in refusal("127.0.0.1:1")


def test_auto_without_a_ray_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(address: str) -> str:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", nothing)
    assert "no Ray runs on this machine" in refusal("auto")


class Nodes(NodeChecks):
    """Nodes that are known to lack something."""

    def __init__(self, problem: str) -> None:
        super().__init__(Resources(), [DataConfig()], pytest.fail)
        self.problem = problem

    def problems(self) -> str:
        return self.problem


@pytest.mark.parametrize(
    ("problem", "reason"),
    [("node 192.0.2.7: no cl2r", f"{DIED}, perhaps because of node 192.0.2.7: no cl2r"), ("", DIED)],
)
def test_a_process_that_died_may_have_run_on_such_a_node(
    problem: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes: list[tuple[str, str]] = []

    class Trial:
        trial_id, config, error_file = "7", {"job": ""}, None

    class Searcher:
        retried: frozenset[str] = frozenset()

        def record_crash(self, *crash: Any) -> None:
            crashes.append(crash)

    monkeypatch.setattr(tune.Job, "from_json", lambda text: text)
    monitor = tune.TrialMonitor.__new__(tune.TrialMonitor)
    monitor.searcher, monitor.nodes = Searcher(), Nodes(problem)
    monkeypatch.setattr(monitor, "log_new_events", lambda: None)
    monitor.on_trial_error(0, [], Trial())
    assert crashes == [("7", reason)]
