"""The fields of ray.io/v1 that KubeRay v1.6.2 publishes (docs/reference/api.md of ray-project/kuberay at that release).

Kubernetes drops fields it does not know: a misspelt `shutdownAfterJobFinishes` would cost money, not raise an error.
Pods are held against the part of core/v1 that the documents use.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Fields = Mapping[str, Any]
"""Field to: None (any value), a type, a tuple of allowed words, fields, or a list of one of these (a list of such)."""

RESOURCES: Fields = {"limits": dict, "requests": dict}
CONTAINER: Fields = {
    "name": str,
    "image": str,
    "securityContext": {"allowPrivilegeEscalation": bool, "capabilities": {"drop": [str]}},
    "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str, "optional": bool}}}],
    "resources": RESOURCES,
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
POD: Fields = {
    "metadata": {"labels": dict, "annotations": dict},
    "spec": {
        "serviceAccountName": str,
        "terminationGracePeriodSeconds": int,
        "securityContext": {
            "runAsNonRoot": bool,
            "runAsUser": int,
            "runAsGroup": int,
            "fsGroup": int,
            "seccompProfile": {"type": ("RuntimeDefault",)},
        },
        "tolerations": [{"key": str, "operator": ("Exists", "Equal"), "effect": str, "value": str}],
        "nodeSelector": dict,
        "containers": [CONTAINER],
        "volumes": [
            {
                "name": str,
                "persistentVolumeClaim": {"claimName": str, "readOnly": bool},
                "emptyDir": {"medium": ("Memory",), "sizeLimit": str},
            }
        ],
    },
}
HEAD_GROUP: Fields = {
    "template": POD,
    "headService": dict,
    "enableIngress": bool,
    "resources": dict,
    "labels": dict,
    "rayStartParams": dict,
    "serviceType": ("ClusterIP", "NodePort", "LoadBalancer"),
}
WORKER_GROUP: Fields = {
    "suspend": bool,
    "groupName": str,
    "replicas": int,
    "minReplicas": int,
    "maxReplicas": int,
    "idleTimeoutSeconds": int,
    "resources": dict,
    "labels": dict,
    "rayStartParams": dict,
    "template": POD,
    "scaleStrategy": {"workersToDelete": [str]},
    "numOfHosts": int,
}
AUTOSCALER: Fields = {
    "resources": RESOURCES,
    "image": str,
    "imagePullPolicy": str,
    "securityContext": dict,
    "idleTimeoutSeconds": int,
    "upscalingMode": ("Default", "Aggressive", "Conservative"),
    "version": ("v1", "v2"),
    "env": list,
    "envFrom": list,
    "volumeMounts": list,
}
RAY_CLUSTER: Fields = {
    "upgradeStrategy": {"type": ("Recreate", "None")},
    "authOptions": {"enableK8sTokenAuth": bool, "secretName": str, "mode": ("disabled", "token")},
    "suspend": bool,
    "managedBy": str,
    "autoscalerOptions": AUTOSCALER,
    "headServiceAnnotations": dict,
    "enableInTreeAutoscaling": bool,
    "gcsFaultToleranceOptions": dict,
    "headGroupSpec": HEAD_GROUP,
    "rayVersion": str,
    "workerGroupSpecs": [WORKER_GROUP],
}
RAY_JOB: Fields = {
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "rayClusterSpec": RAY_CLUSTER,
    "submitterPodTemplate": POD,
    "metadata": dict,
    "clusterSelector": dict,
    "submitterConfig": {"backoffLimit": int},
    "managedBy": str,
    "deletionStrategy": dict,
    "entrypoint": str,
    "runtimeEnvYAML": str,
    "jobId": str,
    "submissionMode": ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    "entrypointResources": str,
    "entrypointNumCpus": float,
    "entrypointNumGpus": float,
    "ttlSecondsAfterFinished": int,
    "preRunningDeadlineSeconds": int,
    "shutdownAfterJobFinishes": bool,
    "suspend": bool,
}
SPECS = {"RayCluster": RAY_CLUSTER, "RayJob": RAY_JOB}


def unknown(value: Any, allowed: Any, path: str) -> Iterator[str]:
    """Every field or value that the CRD does not have, with its path."""
    if isinstance(allowed, Mapping):
        if not isinstance(value, dict):
            yield f"{path}: must have fields"
            return
        for key, entry in value.items():
            if key in allowed:
                yield from unknown(entry, allowed[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}: no such field"
    elif isinstance(allowed, list):
        if not isinstance(value, list):
            yield f"{path}: must be a list"
            return
        for index, entry in enumerate(value):
            yield from unknown(entry, allowed[0], f"{path}[{index}]")
    elif isinstance(allowed, tuple):
        if value not in allowed:
            yield f"{path}: {value} is none of {', '.join(allowed)}"
    elif type(value) is not allowed:
        yield f"{path}: {value!r} is no {allowed.__name__}"
    elif allowed is dict:
        yield from (
            f"{path}.{key}: {entry!r} is no string" for key, entry in value.items() if not isinstance(entry, str)
        )
