"""What cluster files must have beyond what Ray checks: closed to the world, no cost when idle, versions that agree."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.node_provider_availability_tracker import NodeAvailabilitySummary
from ray.autoscaler._private.resource_demand_scheduler import _default_utilization_scorer, get_nodes_for
from ray.autoscaler._private.util import prepare_config, validate_config

from cl2r.runtime.environment import ROOT
from cl2r.runtime.stop import GRACE_SECONDS

CLUSTER = ROOT / "cluster"
WORLD = {"0.0.0.0/0", "::/0"}


def read(name: str) -> Any:
    """A YAML file of the folder."""
    return yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))


def ray_up(config: Mapping[str, Any]) -> dict[str, Any]:
    """What `ray up` does to a file before it talks to anybody; raises what it would."""
    prepared: dict[str, Any] = prepare_config(dict(config))
    validate_config(prepared)
    return prepared


def nodes_for(config: Mapping[str, Any], demand: Sequence[Mapping[str, float]]) -> tuple[dict[str, int], int]:
    """The nodes that Ray's autoscaler would start for these bundles, and how many bundles would wait for ever."""
    scorer = partial(
        _default_utilization_scorer, node_availability_summary=NodeAvailabilitySummary(node_availabilities={})
    )
    head = config["head_node_type"]
    nodes, waiting = get_nodes_for(
        config["available_node_types"],
        {head: 1},
        head,
        config["max_workers"],
        [dict(bundle) for bundle in demand],
        scorer,
    )
    return dict(nodes), len(waiting)


def environment(config: Mapping[str, Any]) -> dict[str, str]:
    """The variables that containers get."""
    options = [option.split(maxsplit=1) for option in config["docker"]["run_options"]]
    return dict(value.split("=", 1) for flag, value in (pair for pair in options if len(pair) == 2) if flag == "-e")


def start_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """How Ray is started on head and workers."""
    head = config["head_start_ray_commands"][-1]
    if re.findall(r"--dashboard-host[= ](\S+)", head) != ["127.0.0.1"]:
        yield "the dashboard must listen on 127.0.0.1"
    if not config["setup_commands"]:
        yield "without setup_commands Ray installs a nightly"
    if not any("-c" in line and "requirements.txt" in line for line in config["setup_commands"]):
        yield "install with the pins"


def variable_faults(variables: Mapping[str, str], mounts: Mapping[str, str]) -> Iterator[str]:
    """Token and grace."""
    if variables.get("RAY_AUTH_MODE") != "token":
        yield "token authentication is off"
    home = variables.get("RAY_AUTH_TOKEN_PATH", "").replace("$HOME", "~").removesuffix("/auth_token")
    if home not in mounts:
        yield "the token does not reach the nodes"
    if float(variables.get("RAY_JOB_STOP_WAIT_TIME_S", 3)) <= GRACE_SECONDS:
        yield "`ray job stop` kills before the driver's grace is over"


def aws_faults(config: Mapping[str, Any]) -> list[str]:
    """What is wrong with a file for AWS, beyond its form."""
    found = [*start_faults(config), *variable_faults(environment(config), config["file_mounts"])]
    if config["provider"].get("cache_stopped_nodes", True):
        found.append("stopped nodes cost")
    if not 0 < config.get("idle_timeout_minutes", 0) <= 30:
        found.append("idle nodes must go")
    for name, kind in config["available_node_types"].items():
        found += [f"{name}: {fault}" for fault in node_faults(kind, head=name == config["head_node_type"])]
    return found


def node_faults(kind: Mapping[str, Any], head: bool) -> Iterator[str]:
    """One node type."""
    node, resources = kind["node_config"], kind["resources"]
    if not node.get("SecurityGroupIds"):
        yield "Ray would make a group that lets the world in on port 22"
    metadata = node.get("MetadataOptions", {})
    if metadata.get("HttpTokens") != "required" or metadata.get("HttpPutResponseHopLimit") != 1:
        yield "IMDSv2 only, one hop"
    if "Name" not in node.get("IamInstanceProfile", {}):
        yield "no role: it would need keys"
    if not all(disk["Ebs"]["Encrypted"] and disk["Ebs"]["DeleteOnTermination"] for disk in node["BlockDeviceMappings"]):
        yield "disks must be encrypted, and go with the node"
    if kind.get("min_workers", 0) > 0:
        yield "costs while idle"
    if head and (any(resources.values()) or kind.get("max_workers") != 0 or "InstanceMarketOptions" in node):
        yield "the head is on demand and takes no trials"
    if not head and node.get("InstanceMarketOptions", {}).get("MarketType") != "spot":
        yield "workers are spot"
    if not head and not resources.get("accelerator_type:A100"):
        yield "would not grow from zero for --accelerator A100"


def open_rules(permissions: Sequence[Mapping[str, Any]], group: str) -> list[str]:
    """Rules of a security group that let anybody in but the group itself, and SSH from one place."""
    found = []
    for rule in permissions:
        ranges = [*rule.get("IpRanges", []), *rule.get("Ipv6Ranges", [])]
        sources = [entry.get("CidrIp") or entry["CidrIpv6"] for entry in ranges]
        ssh = (rule["IpProtocol"], rule.get("FromPort"), rule.get("ToPort")) == ("tcp", 22, 22)
        found += [f"{source} on {rule}" for source in sources if source in WORLD or not ssh]
        found += [f"{pair} on {rule}" for pair in rule.get("UserIdGroupPairs", []) if pair["GroupId"] != group]
    return found


def pins(path: Path = CLUSTER / "requirements.txt") -> dict[str, str]:
    """Name to exact version."""
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return dict(line.split("==") for line in lines if line)
