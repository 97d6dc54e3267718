"""cluster/kuberay.yaml: the fields that KubeRay publishes, and what Ray's autoscaler makes of the groups."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import validate_config

from cl2r.runtime.stop import GRACE_SECONDS
from cl2r.study.resources import Resources
from tests.support.cluster_rules import CLUSTER, nodes_for, pins
from tests.support.kuberay_fields import SPECS, unknown

DOCUMENTS = list(yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text(encoding="utf-8")))
KINDS = ["RayCluster", "RayJob"]


def document(kind: str) -> Any:
    (found,) = [entry for entry in DOCUMENTS if entry["kind"] == kind]
    return copy.deepcopy(found)


def cluster(entry: dict[str, Any]) -> Any:
    return entry["spec"].get("rayClusterSpec", entry["spec"])


def autoscaling(entry: dict[str, Any]) -> Any:
    """The configuration that the autoscaler beside the head derives."""
    resource = {"kind": "RayCluster", "metadata": {"name": "cl2r", "namespace": "cl2r"}, "spec": cluster(entry)}
    config = _derive_autoscaling_config_from_ray_cr(resource)
    validate_config(config)
    return config


def faults(entry: dict[str, Any]) -> list[str]:
    """Unknown fields, and what would be open, costly or lost."""
    found = list(unknown(entry["spec"], SPECS[entry["kind"]], "spec"))
    spec = cluster(entry)
    head = spec["headGroupSpec"]
    if spec.get("authOptions", {}).get("mode") != "token":
        found.append("token authentication is off")
    if head.get("serviceType") != "ClusterIP" or head.get("enableIngress"):
        found.append("the head can be reached from outside")
    if spec.get("rayVersion") != pins()["ray"]:
        found.append("rayVersion is not the pin")
    for group in [head, *spec["workerGroupSpecs"]]:
        found += pod_faults(group["template"]["spec"])
    if entry["kind"] == "RayJob" and not (
        entry["spec"].get("shutdownAfterJobFinishes") and entry["spec"].get("activeDeadlineSeconds")
    ):
        found.append("costs after its end")
    return found


def pod_faults(pod: dict[str, Any]) -> list[str]:
    (container,) = pod["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    found = []
    if not pod["securityContext"]["runAsNonRoot"] or container["securityContext"]["allowPrivilegeEscalation"]:
        found.append("may be root")
    if min(pod["terminationGracePeriodSeconds"], float(variables["RAY_JOB_STOP_WAIT_TIME_S"] or 0)) <= GRACE_SECONDS:
        found.append("killed before the driver's grace is over")
    if any(variables[name] is not None for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")):
        found.append("a key in the file")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_unknown_open_or_costly(kind: str) -> None:
    assert document(kind)["apiVersion"] == "ray.io/v1"
    assert faults(document(kind)) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda spec, _: spec.update(shutdownAfterJobFinish=spec.pop("shutdownAfterJobFinishes")), "no such field"),
        (lambda spec, _: spec.update(backoffLimit="5"), "is no int"),
        (lambda spec, _: spec.update(submissionMode="Sidecar"), "is none of"),
        (lambda spec, _: spec.pop("activeDeadlineSeconds"), "costs after its end"),
        (lambda _, ray: ray.update(authOptions={"mode": "disabled"}), "token authentication is off"),
        (lambda _, ray: ray.pop("authOptions"), "token authentication is off"),
        (lambda _, ray: ray.update(rayVersion="2.9.0"), "not the pin"),
        (lambda _, ray: ray["headGroupSpec"].update(serviceType="LoadBalancer"), "from outside"),
        (lambda _, ray: ray["workerGroupSpecs"][0].update(maxWorkers=2), "workerGroupSpecs[0].maxWorkers"),
        (lambda _, ray: ray["workerGroupSpecs"][0]["rayStartParams"].update({"num-gpus": 8}), "is no string"),
        (
            lambda _, ray: ray["workerGroupSpecs"][0]["template"]["spec"].update(terminationGracePeriodSeconds=30),
            "grace",
        ),
        (
            lambda _, ray: ray["headGroupSpec"]["template"]["spec"]["containers"][0]["env"].append(
                {"name": "AWS_ACCESS_KEY_ID", "value": "x"}
            ),
            "a key in the file",
        ),
    ],
)
def test_a_broken_one_is_caught(change: Callable[[Any, Any], object], fault: str) -> None:
    entry = document("RayJob")
    change(entry["spec"], entry["spec"]["rayClusterSpec"])
    assert fault in "; ".join(faults(entry))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("trials", "nodes", "waiting"), [(1, 1, 0), (8, 1, 0), (16, 2, 0), (17, 2, 1)])
def test_how_far_it_grows(kind: str, trials: int, nodes: int, waiting: int) -> None:
    demand = [Resources(gpus_per_worker=1, cpus_per_worker=11, accelerator="A100").per_worker()] * trials
    assert nodes_for(autoscaling(document(kind)), demand) == ({"a100": nodes}, waiting)


def test_without_the_declared_accelerator_nothing_grows() -> None:
    entry = document("RayCluster")
    (group,) = entry["spec"]["workerGroupSpecs"]
    assert "accelerator_type:A100" in json.loads(json.loads(group["rayStartParams"].pop("resources")))
    demand = [Resources(gpus_per_worker=1, accelerator="A100").per_worker()]
    assert nodes_for(autoscaling(entry), demand) == ({}, 1)


def test_both_start_the_same_pods() -> None:
    first, second = (cluster(document(kind)) for kind in KINDS)
    for spec in (first, second):
        for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
            variables = group["template"]["spec"]["containers"][0]["env"]
            variables[:] = [
                entry for entry in variables if entry["name"] != "CL2R_STORAGE"
            ]  # the job's is in its command
    assert first == second


def test_pods_use_accounts_that_exist_and_only_their_namespace_gets_in() -> None:
    accounts = {entry["metadata"]["name"] for entry in DOCUMENTS if entry["kind"] == "ServiceAccount"}
    used = {
        group["template"]["spec"]["serviceAccountName"]
        for kind in KINDS
        for group in [cluster(document(kind))["headGroupSpec"], *cluster(document(kind))["workerGroupSpecs"]]
    }
    assert used == accounts
    policy = document("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == {"ray.io/is-ray-node": "yes"}
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert [sorted(source) for source in rule["from"]] == [["podSelector"], ["namespaceSelector"]]
