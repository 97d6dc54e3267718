"""The fields of ray.io/v1 that cluster/kuberay.yaml uses, as KubeRay v1.6.2 publishes them (its docs/reference/api.md).

Kubernetes drops fields it does not know: a misspelt `shutdownAfterJobFinishes` would cost money, not raise an error.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Fields = Mapping[str, Any]
"""Field to: a type, a tuple of allowed words, fields, or a list of one of these (a list of such)."""

CONTAINER: Fields = {
    "name": str,
    "image": str,
    "workingDir": str,
    "securityContext": {"allowPrivilegeEscalation": bool, "capabilities": {"drop": [str]}},
    "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str, "optional": bool}}}],
    "resources": {"limits": dict, "requests": dict},
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
CLAIM: Fields = {"claimName": str, "readOnly": bool}
POD: Fields = {
    "serviceAccountName": str,
    "terminationGracePeriodSeconds": int,
    "securityContext": {
        "runAsNonRoot": bool,
        **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), int),
        "seccompProfile": {"type": ("RuntimeDefault",)},
    },
    "tolerations": [{"key": str, "operator": ("Exists", "Equal"), "effect": str}],
    "nodeSelector": dict,
    "containers": [CONTAINER],
    "volumes": [{"name": str, "persistentVolumeClaim": CLAIM, "emptyDir": {"medium": ("Memory",), "sizeLimit": str}}],
}
GROUP: Fields = {"template": {"spec": POD}, "rayStartParams": dict}
MODES, VERSIONS = ("Default", "Aggressive", "Conservative"), ("v1", "v2")
RAY_CLUSTER: Fields = {
    "authOptions": {"mode": ("disabled", "token")},
    "autoscalerOptions": {"idleTimeoutSeconds": int, "upscalingMode": MODES, "version": VERSIONS},
    "enableInTreeAutoscaling": bool,
    "headGroupSpec": GROUP | {"serviceType": ("ClusterIP", "NodePort", "LoadBalancer"), "enableIngress": bool},
    "rayVersion": str,
    "workerGroupSpecs": [
        GROUP | {"groupName": str} | dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), int),
    ],
}
RAY_JOB: Fields = {
    "entrypoint": str,
    "rayClusterSpec": RAY_CLUSTER,
    "submissionMode": ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    "submitterConfig": {"backoffLimit": int},
    "shutdownAfterJobFinishes": bool,
    "backoffLimit": int,
    "activeDeadlineSeconds": int,
    "preRunningDeadlineSeconds": int,
    "ttlSecondsAfterFinished": int,
}
SPECS = {"RayCluster": RAY_CLUSTER, "RayJob": RAY_JOB}


def unknown(value: Any, allowed: Any, path: str) -> Iterator[str]:
    """Yield every field or value that the resource does not have, with its path."""
    expected = dict if isinstance(allowed, Mapping) else type(allowed) if isinstance(allowed, list) else allowed
    if isinstance(allowed, tuple):
        if value not in allowed:
            yield f"{path}: {value} is none of {', '.join(allowed)}"
    elif type(value) is not expected:
        yield f"{path}: {value!r} is no {expected.__name__}"
    elif isinstance(allowed, list):
        for index, entry in enumerate(value):
            yield from unknown(entry, allowed[0], f"{path}[{index}]")
    elif expected is dict:  # without fields of its own: names to texts
        for key, entry in value.items():
            if isinstance(allowed, Mapping) and key not in allowed:
                yield f"{path}.{key}: no such field"
            else:
                yield from unknown(entry, allowed[key] if isinstance(allowed, Mapping) else str, f"{path}.{key}")
