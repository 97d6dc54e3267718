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
from tests.support.cluster_rules import CLUSTER, nodes_for, pins, study_resources
from tests.support.kuberay_fields import SPECS, unknown

DOCUMENTS = list(yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text(encoding="utf-8")))
KINDS = ["RayCluster", "RayJob"]
PROJECT = "/home/ray/cl2r"  # WORKDIR of the image
ONE_A100 = Resources(1, 11, 1, "A100")


def document(kind: str) -> Any:
    (found,) = [entry for entry in DOCUMENTS if entry["kind"] == kind]
    return copy.deepcopy(found)


def cluster(entry: dict[str, Any]) -> Any:
    return entry["spec"].get("rayClusterSpec", entry["spec"])


def pods(entry: dict[str, Any]) -> list[Any]:
    groups = [cluster(entry)["headGroupSpec"], *cluster(entry)["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def growth(entry: dict[str, Any], studies: list[Resources]) -> tuple[dict[str, int], int]:
    """Return the nodes that the autoscaler beside the head would start, and how many trials would wait for ever."""
    resource = {"kind": "RayCluster", "metadata": {"name": "cl2r", "namespace": "cl2r"}, "spec": cluster(entry)}
    config = _derive_autoscaling_config_from_ray_cr(resource)
    validate_config(config)
    return nodes_for(config, [study.per_worker() for study in studies for _ in range(study.max_concurrent or 1)])


def faults(entry: dict[str, Any]) -> str:
    """Return unknown fields, and what would be open, costly or lost."""
    job, spec, head = entry["spec"], cluster(entry), cluster(entry)["headGroupSpec"]
    ends = entry["kind"] == "RayCluster" or (job.get("shutdownAfterJobFinishes") and job.get("activeDeadlineSeconds"))
    found = [
        ("token authentication is off", spec.get("authOptions", {}).get("mode") != "token"),
        ("the head can be reached from outside", head.get("serviceType") != "ClusterIP" or head.get("enableIngress")),
        ("rayVersion is not the pin", spec.get("rayVersion") != pins()["ray"]),
        ("costs after its end", not ends),
    ]
    for pod in pods(entry):
        (container,) = pod["containers"]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        graces = pod["terminationGracePeriodSeconds"], float(variables["RAY_JOB_STOP_WAIT_TIME_S"] or 0)
        root = not pod["securityContext"]["runAsNonRoot"] or container["securityContext"]["allowPrivilegeEscalation"]
        keys = [variables[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
        study = study_resources({name: value for name, value in variables.items() if name.startswith("CL2R_")})
        found += [("jobs would not find the studies", container.get("workingDir") != PROJECT)]
        found += [("a bare study would not use the GPUs", growth(entry, [study]) != ({"a100": 2}, 0))]
        found += [("results would be lost", not str(variables.get("CL2R_STORAGE")).startswith("s3://"))]
        found += [("may be root", root), ("a key in the file", keys != [None, None])]
        found += [("killed before the driver's grace is over", min(graces) <= GRACE_SECONDS)]
    return "; ".join([*unknown(job, SPECS[entry["kind"]], "spec"), *(fault for fault, there in found if there)])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_unknown_open_or_costly(kind: str) -> None:
    assert document(kind)["apiVersion"] == "ray.io/v1"
    assert faults(document(kind)) == ""


KEY = {"name": "AWS_ACCESS_KEY_ID", "value": "x"}
ONE_TRIAL = {"name": "CL2R_MAX_CONCURRENT", "value": "1"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda job, *_: job.update(shutdownAfterJobFinish=job.pop("shutdownAfterJobFinishes")), "no such field"),
        (lambda job, *_: job.update(backoffLimit="5"), "is no int"),
        (lambda job, *_: job.update(submissionMode="Sidecar"), "is none of"),
        (lambda job, *_: job.pop("activeDeadlineSeconds"), "costs after its end"),
        (lambda _, ray, *__: ray.update(authOptions={"mode": "disabled"}), "token authentication is off"),
        (lambda _, ray, *__: ray.pop("authOptions"), "token authentication is off"),
        (lambda _, ray, *__: ray.update(rayVersion="2.9.0"), "not the pin"),
        (lambda _, ray, *__: ray["headGroupSpec"].update(serviceType="LoadBalancer"), "from outside"),
        (lambda _, ray, *__: ray["workerGroupSpecs"][0].update(maxWorkers=2), "workerGroupSpecs[0].maxWorkers"),
        (lambda _, ray, *__: ray["workerGroupSpecs"][0]["rayStartParams"].update({"num-gpus": 8}), "is no str"),
        (lambda _, __, head, worker: worker.update(terminationGracePeriodSeconds=30), "grace"),
        (lambda _, __, head, worker: head["securityContext"].update(runAsNonRoot=False), "may be root"),
        (lambda _, __, head, worker: head["containers"][0]["env"].append(KEY), "a key in the file"),
        (lambda _, __, head, worker: head["containers"][0].pop("workingDir"), "would not find the studies"),
        (lambda _, __, head, worker: head["containers"][0]["env"].append(ONE_TRIAL), "would not use the GPUs"),
        (lambda _, __, head, worker: head["containers"][0]["env"].pop(0), "results would be lost"),
    ],
)
def test_a_broken_one_is_caught(change: Callable[..., object], fault: str) -> None:
    entry = document("RayJob")
    change(entry["spec"], entry["spec"]["rayClusterSpec"], *pods(entry))
    assert fault in faults(entry)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("trials", "nodes", "waiting"), [(1, 1, 0), (8, 1, 0), (16, 2, 0), (17, 2, 1)])
def test_how_far_it_grows(kind: str, trials: int, nodes: int, waiting: int) -> None:
    assert growth(document(kind), [ONE_A100] * trials) == ({"a100": nodes}, waiting)


def test_without_the_declared_accelerator_nothing_grows() -> None:
    entry = document("RayCluster")
    (group,) = entry["spec"]["workerGroupSpecs"]
    assert "accelerator_type:A100" in json.loads(json.loads(group["rayStartParams"].pop("resources")))
    assert growth(entry, [ONE_A100]) == ({}, 1)


def test_both_start_the_same_pods() -> None:
    first, second = map(document, KINDS)
    assert cluster(first) == cluster(second)
    assert f"WORKDIR {PROJECT}\n" in (CLUSTER / "Dockerfile").read_text(encoding="utf-8")


def test_pods_use_accounts_that_exist_and_only_their_namespace_gets_in() -> None:
    accounts = {entry["metadata"]["name"] for entry in DOCUMENTS if entry["kind"] == "ServiceAccount"}
    assert {pod["serviceAccountName"] for kind in KINDS for pod in pods(document(kind))} == accounts
    policy = document("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == {"ray.io/is-ray-node": "yes"}
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert [sorted(source) for source in rule["from"]] == [["podSelector"], ["namespaceSelector"]]
