"""Quick questions to a cluster: does its head answer and take our token, do its nodes have this package and the data?

Ray itself waits for minutes for a head that is not there, and reports a node without this package as a dead process.
"""

import dataclasses
import os
from collections.abc import Callable, Collection
from pathlib import Path

import cl2r
from cl2r.config.schema import DataConfig
from cl2r.data import load_dataset
from cl2r.errors import InputError
from cl2r.study.resources import Resources

HEAD_S = 4.0  # for an answer of the head; it is asked at most twice
NODE_S = 60.0  # for an answer of a node, which may have to read a data set
FIRST_CALL = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""Ray's own first request to a head; one that does not know it answers all the same."""


def check_head(address: str) -> None:
    """Raise InputError if no Ray head answers at the address within seconds, or if it does not take our token."""
    _check_token_file()
    if address == "local":
        return
    name, target = f"RAY_ADDRESS={address}", _resolved(address)
    status, details = _ask(target)
    if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED") or "http2 header with status" in details:  # a web server's
        hint = "give the port of `ray start`, 6379 by default, or unset RAY_ADDRESS to use this machine"
        raise InputError(f"{name}: no Ray head answers at {target} ({details}); {hint}")
    if kubernetes_tokens():
        return
    token, place = find_token()
    enabled = os.environ.get("RAY_AUTH_MODE", "token" if token and address == "auto" else "").lower() == "token"
    if status == "UNAUTHENTICATED":
        how = "set RAY_AUTH_MODE=token, and the token in RAY_AUTH_TOKEN, in a file that RAY_AUTH_TOKEN_PATH names"
        how += ", or in ~/.ray/auth_token"
        if not enabled:
            raise InputError(f"{name}: this cluster asks for a token; {how}")
        if token and _ask(target, token)[0] == "UNAUTHENTICATED":
            raise InputError(f"{name}: the token in {place} is not the cluster's; copy the head's")
    if enabled and not token:
        raise InputError(f"{name}: RAY_AUTH_MODE=token, but there is no token in {place}; copy the head's")


def find_token() -> tuple[str, str]:
    """Return the token that Ray would use, and where it is expected; the token is empty if there is none."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return os.environ["RAY_AUTH_TOKEN"].strip(), "RAY_AUTH_TOKEN"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    place = f"{path} (RAY_AUTH_TOKEN_PATH)" if os.environ.get("RAY_AUTH_TOKEN_PATH") else str(path)
    try:
        return path.read_text(encoding="utf-8").strip(), place
    except (OSError, UnicodeDecodeError):
        return "", place


def kubernetes_tokens() -> bool:
    """Return whether Ray uses the token of the pod's service account, which it finds on its own."""
    return os.environ.get("RAY_ENABLE_K8S_TOKEN_AUTH", "0").lower() in ("1", "true")


def _check_token_file() -> None:
    """Raise InputError if a token file is named but holds none, which Ray reports with a traceback."""
    wanted = os.environ.get("RAY_AUTH_MODE", "token").lower() == "token" and os.environ.get("RAY_AUTH_TOKEN_PATH")
    token, place = find_token()
    if wanted and not token and not kubernetes_tokens():
        raise InputError(f"no token in {place}; write one there, or unset RAY_AUTH_TOKEN_PATH")


def _resolved(address: str) -> str:
    """Return HOST:PORT; `auto` is the head that was started last on this machine."""
    if address.startswith(("http://", "https://", "ray://")):
        raise InputError(f"RAY_ADDRESS={address} is for `ray job submit`; a study joins `auto` or HOST:PORT")
    from ray._private.services import canonicalize_bootstrap_address  # no public function returns what `auto` means

    try:
        found = canonicalize_bootstrap_address(address)
    except (ConnectionError, ValueError, OSError) as error:
        if address == "auto":
            hint = "start it with `ray start --head`, or unset RAY_ADDRESS to use this machine alone"
            raise InputError(f"RAY_ADDRESS=auto: no Ray runs on this machine; {hint}") from error
        raise InputError(f"RAY_ADDRESS={address}: give `auto` or HOST:PORT ({error})") from error
    return str(found)


def _ask(target: str, token: str = "") -> tuple[str, str]:
    """Return the name of gRPC's status for Ray's first request, `OK` if it succeeds, and one line of details."""
    import grpc

    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        from ray._private.grpc_utils import init_grpc_channel  # finds the certificates

        try:
            channel = init_grpc_channel(target, [("grpc.enable_http_proxy", 0)])
        except (RuntimeError, OSError) as error:
            hint = "check RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT, or unset RAY_USE_TLS"
            raise InputError(f"RAY_USE_TLS: {' '.join(str(error).split())}; {hint}") from error
    else:
        channel = grpc.insecure_channel(target, [("grpc.enable_http_proxy", 0)])
    metadata = [("authorization", f"Bearer {token}")] if token else None
    with channel:
        try:
            channel.unary_unary(FIRST_CALL)(b"", timeout=HEAD_S, metadata=metadata)
        except grpc.RpcError as error:
            details = (error.details() or "").rpartition("last error: ")[2]
            return error.code().name, " ".join(details.split())[:200]
    return "OK", ""


class NodeChecks:
    """Finds nodes without this package, with another version of it, or without the data sets; asks each node once.

    Nodes may join at any time: `problems` is called before a study starts, and again when a process has died. The node
    of this process is not asked, because everything has been checked here already.
    """

    def __init__(self, resources: Resources, data: Collection[DataConfig], say: Callable[[str], None]) -> None:
        self.worker = dataclasses.replace(resources, workers=1, sync_batchnorm=False)
        self.data, self.say = data, say
        self.known = dict[str, str]()  # problem by id of a node; empty: none

    def problems(self) -> str:
        """Ask nodes that are new. Return what is missing on which nodes of the cluster; empty if nothing is."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here}
        used = [key for key, node in nodes.items() if self.worker.fit_into(*self.worker.suitable([node["Resources"]]))]
        new = [key for key in used if key not in self.known]
        if new:
            self._ask({key: f"node {nodes[key]['NodeManagerAddress']}" for key in new})
        return "; ".join(sorted(filter(None, (self.known[key] for key in used))))

    def _ask(self, names: dict[str, str]) -> None:
        """Ask the nodes, whose names are by their ids, all at once."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        wanted = [(one.name, one.size, one.channels, one.root) for one in self.data]
        needed = [(one, load_dataset(*one).fingerprint) for one in wanted]
        asked = {}
        for key in names:
            there = NodeAffinitySchedulingStrategy(key, soft=False)
            # max_calls: the process ends and does not keep the data in memory.
            options = {"num_cpus": 0, "max_retries": 0, "max_calls": 1, "scheduling_strategy": there}
            task = ray.remote(**options)(_node_question())
            asked[task.remote(cl2r.__version__, needed)] = key
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=NODE_S)
        for answer, key in asked.items():
            self.known[key] = ""
            if answer not in answered:
                self.say(f"note: {names[key]} has not answered within {NODE_S:g} s; it was not checked")
                continue
            try:
                problem = ray.get(answer)
            except ray.exceptions.RayError as error:
                self.say(f"note: {names[key]} could not be checked: {type(error).__name__}")
                continue
            self.known[key] = f"{names[key]}: {problem}" if problem else ""


def _node_question() -> Callable[..., str]:
    """Return the function that a node runs. As a local function it is sent by value: the node may lack this module."""

    def answer(version: str, needed: list[tuple[tuple[str, int, int, str | None], str]]) -> str:
        import importlib

        try:
            there = importlib.import_module("cl2r").__version__
            load = importlib.import_module("cl2r.data").load_dataset
            bad_input = importlib.import_module("cl2r.errors").InputError
        except ImportError as error:
            return f"cl2r cannot be imported ({error}); install it there, as cluster/README.md says"
        if there != version:
            return f"it has cl2r {there}, the driver has {version}; install the same version there"
        for wanted, fingerprint in needed:
            try:
                if load(*wanted).fingerprint != fingerprint:
                    return f"its data set {wanted[0]} differs from the driver's; copy that there"
            except bad_input as error:
                return str(error)
        return ""

    return answer
