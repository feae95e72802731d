"""The manifests of a JobSet and of its Secret, which has the key of the agents and the specs of the runs."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalebench.core.errors import InputError
from scalebench.core.process import NODE_AGENT
from scalebench.core.spec import HardwareSpec, KubernetesSpec, RunSpec

# Variables of the leader: the name of the JobSet, and the host names of the pods with agents, by node.
JOBSET_VARIABLE, PODS_VARIABLE = "SCALEBENCH_JOBSET", "SCALEBENCH_PODS"
PORT = 29_400  # of the leader, for agents
MAX_SECRET_BYTES = 1 << 20
NAME, WORD = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"), re.compile(r"[^\s$-][^\s$]*")


def is_on_pods(spec: RunSpec) -> bool:
    return spec.config.hardware.scheduler == "kubernetes"


def check_kubernetes_options(settings: KubernetesSpec) -> None:
    """Raise InputError for values that no cluster accepts."""
    for key, value in vars(settings).items():
        is_name = key in ("namespace", "queue", "claim")
        if value is not None and not (NAME if is_name else WORD).fullmatch(value):
            should = "a name of lower-case letters, digits and -" if is_name else "one word"
            raise InputError(f"hardware.kubernetes.{key}='{value}' should be {should}")


def make_jobset(name: str, hardware: HardwareSpec, nodes: int, gpus_per_node: int | None, limit_s: int) -> Any:
    """Return the manifest of a JobSet with so many nodes; without GPUs its devices are CPU workers."""
    from omegaconf import OmegaConf

    settings = hardware.kubernetes
    limits = {"cpu": hardware.cpus_per_node, "memory": hardware.memory_bytes, settings.resource: gpus_per_node}
    values = {
        **{key: value for key, value in vars(settings).items() if key != "claim"},
        "name": name,
        "nodes": nodes,
        "limit_s": limit_s,
        "limits": limits,
        "agent": NODE_AGENT,
        "port": str(PORT),
        "leader": f"{name}-leader-0-0.{name}",
        "pods": ",".join(f"{name}-workers-0-{node}.{name}" for node in range(nodes)),
        "pod": f"{name}-workers-0-$(JOB_COMPLETION_INDEX).{name}",
        "claim": settings.claim and {"claimName": settings.claim},
        "scratch": None if settings.claim else {},
    }
    template = OmegaConf.load(settings.template or Path(__file__).with_suffix(".yaml"))
    manifest = OmegaConf.to_container(OmegaConf.merge(values, template), resolve=True)
    assert isinstance(manifest, Mapping)
    return _drop_nulls({key: value for key, value in manifest.items() if key not in values})


def _drop_nulls(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_drop_nulls(each) for each in tree]
    if not isinstance(tree, Mapping):
        return tree
    return {str(key): _drop_nulls(value) for key, value in tree.items() if value is not None}


def make_secret(name: str, settings: KubernetesSpec, key: str, runs: bytes) -> Any:
    """Return the manifest of the Secret of a JobSet. InputError where it is larger than Kubernetes takes."""
    data = {name: base64.b64encode(content).decode() for name, content in (("key", key.encode()), ("runs", runs))}
    if sum(map(len, data.values())) > MAX_SECRET_BYTES:
        raise InputError("these runs do not fit into a Secret of Kubernetes, of 1 MiB: run fewer of one size at a time")
    metadata = _drop_nulls({"name": name, "namespace": settings.namespace})
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
