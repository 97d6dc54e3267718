"""What cluster files must have beyond what Ray checks: closed to the world, no cost when idle, versions that agree."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.node_provider_availability_tracker import NodeAvailabilitySummary
from ray.autoscaler._private.resource_demand_scheduler import _default_utilization_scorer, get_nodes_for
from ray.autoscaler._private.util import prepare_config, validate_config

from cl2r.runtime.environment import ROOT
from cl2r.runtime.stop import GRACE_SECONDS
from cl2r.study.resources import Resources

CLUSTER = ROOT / "cluster"
WORLD = {"0.0.0.0/0", "::/0"}


def read(name: str) -> Any:
    """Return the content of a YAML file of the folder."""
    return yaml.safe_load((CLUSTER / name).read_text(encoding="utf-8"))


def ray_up(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `ray up` makes of a file before it calls the cloud; raise what it would."""
    prepared: dict[str, Any] = prepare_config(dict(config))
    validate_config(prepared)
    return prepared


def nodes_for(config: Mapping[str, Any], demand: Sequence[Mapping[str, float]]) -> tuple[dict[str, int], int]:
    """Return the nodes that Ray's autoscaler would start for these bundles, and how many would wait for ever."""
    scorer = partial(_default_utilization_scorer, node_availability_summary=NodeAvailabilitySummary({}))
    types, head, bundles = config["available_node_types"], config["head_node_type"], [dict(entry) for entry in demand]
    nodes, waiting = get_nodes_for(types, {head: 1}, head, config["max_workers"], bundles, scorer)
    return dict(nodes), len(waiting)


def environment(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that containers get."""
    options = [option.split(maxsplit=1) for option in config["docker"]["run_options"]]
    return dict(value.split("=", 1) for flag, value in (pair for pair in options if len(pair) == 2) if flag == "-e")


def faults(*found: tuple[str, object]) -> list[str]:
    """Return the faults that are there."""
    return [fault for fault, there in found if there]


def start_faults(config: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with how Ray is installed and started."""
    setup, head = config["setup_commands"], config["head_start_ray_commands"][-1]
    pinned = any("-c" in line and "requirements.txt" in line for line in setup)
    hosts = re.findall(r"--dashboard-host[= ](\S+)", head)
    (project,) = (remote for remote, local in config["file_mounts"].items() if local == ".")
    starts = [line for key in ("head", "worker") for line in config[f"{key}_start_ray_commands"] if "ray start" in line]
    return faults(
        ("the dashboard must listen on 127.0.0.1", hosts != ["127.0.0.1"]),
        ("install the pins", not pinned),
        ("jobs would not find the studies", not all(f"cd {project} && ray start" in line for line in starts)),
    )


def study_resources(variables: Mapping[str, str]) -> Resources:
    """Return what a trial may use if no option says so, in an environment with these variables."""
    with pytest.MonkeyPatch.context() as patch:
        for field in dataclasses.fields(Resources):
            patch.delenv(f"CL2R_{field.name.upper()}", raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        return Resources.from_options({})


def variable_faults(variables: Mapping[str, str], mounts: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the token and the grace."""
    home = variables.get("RAY_AUTH_TOKEN_PATH", "").replace("$HOME", "~").removesuffix("/auth_token")
    wait = float(variables.get("RAY_JOB_STOP_WAIT_TIME_S", 3))
    return faults(
        ("token authentication is off", variables.get("RAY_AUTH_MODE") != "token"),
        ("the token does not reach the nodes", home not in mounts),
        ("`ray job stop` kills before the driver's grace is over", wait <= GRACE_SECONDS),
    )


def aws_faults(config: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a file for AWS, beyond its form."""
    found = [*start_faults(config), *variable_faults(environment(config), config["file_mounts"])]
    found += faults(
        ("stopped nodes cost", config["provider"].get("cache_stopped_nodes", True)),
        ("idle nodes must go", not 0 < config.get("idle_timeout_minutes", 0) <= 30),
    )
    for name, kind in config["available_node_types"].items():
        found += [f"{name}: {fault}" for fault in node_faults(kind, head=name == config["head_node_type"])]
    return found


def node_faults(kind: Mapping[str, Any], head: bool) -> list[str]:
    """Return what is wrong with one node type."""
    node, resources = kind["node_config"], kind["resources"]
    metadata, disks = node.get("MetadataOptions", {}), [disk["Ebs"] for disk in node["BlockDeviceMappings"]]
    spot = node.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
    return faults(
        ("Ray would make a group that lets the world in on port 22", not node.get("SecurityGroupIds")),
        ("IMDSv2 only", metadata.get("HttpTokens") != "required"),
        ("one hop only", metadata.get("HttpPutResponseHopLimit") != 1),
        ("no role: it would need keys", "Name" not in node.get("IamInstanceProfile", {})),
        ("disks must be encrypted", not all(disk["Encrypted"] for disk in disks)),
        ("disks must go with the node", not all(disk["DeleteOnTermination"] for disk in disks)),
        ("costs while idle", kind.get("min_workers", 0) > 0),
        ("the head takes no trials", head and (any(resources.values()) or kind.get("max_workers") != 0)),
        ("the head is on demand, workers are spot", spot == head),
        ("would not grow from zero", not head and not resources.get("accelerator_type:A100")),
    )


def open_rules(permissions: Sequence[Mapping[str, Any]], group: str) -> list[str]:
    """Return the rules of a security group that let in more than the group itself, and SSH from one address."""
    found = []
    for rule in permissions:
        ranges = [*rule.get("IpRanges", []), *rule.get("Ipv6Ranges", [])]
        sources = [entry.get("CidrIp") or entry["CidrIpv6"] for entry in ranges]
        ssh = (rule["IpProtocol"], rule.get("FromPort"), rule.get("ToPort")) == ("tcp", 22, 22)
        found += [f"{source} on {rule}" for source in sources if source in WORLD or not ssh]
        found += [f"{pair} on {rule}" for pair in rule.get("UserIdGroupPairs", []) if pair["GroupId"] != group]
    return found


def pins(path: Path = CLUSTER / "requirements.txt") -> dict[str, str]:
    """Return the exact version of every package."""
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return dict(line.split("==") for line in lines if line)
