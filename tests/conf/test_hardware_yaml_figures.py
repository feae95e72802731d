"""Each figure of a named machine is the one in the source that its YAML cites.

The sources are tables beside the project, so their numbers stand here as they stand there: GB, Gbit/s, GB/s.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conf.test_hardware_yamls import HARDWARE, MACHINES, load

# name: nodes, cores and GB of a node, GPUs of a node (node_specs.csv, or the page that the YAML cites)
NODES: dict[str, tuple[int, int | None, float | None, int]] = {
    "alpha": (34, 48, 1000, 8),  # alpha_centauri.md
    "gpu2": (64, 24, 64, 4),  # hardware_overview.md: 4 GPUs, 2 cards
    "hpdlf": (14, 12, 95, 3),  # partitions_and_limits.md
    "az_2x_m60": (1, 12, 112, 2),  # Standard_NV12
    "az_4x_m60": (1, None, None, 4),  # hardware.md: Standard_NV24, "4x Tesla M60"
    "7gforce": (1, 10, 128, 7),  # hardware.md: 10 cores; the row of 7gforce, not of 7gforce-v2
    "rtx2080ti_4": (1, None, None, 4),  # seeds/000: "a 4 and 8 GPUs machine"
    "rtx2080ti_8": (1, None, None, 8),
    "dgx1_p100": (1, None, None, 8),  # benchmarks.md: "8x NVIDIA Tesla P100"
    "gce_k80": (1, None, None, 8),  # benchmarks.md: "8x NVIDIA Tesla K80", GPUs: the instance is ...-k80x8
    "ec2_k80": (8, None, None, 8),  # benchmarks.md: 64 GPUs on 8 instances
}
# GB of one GPU, by the name in gpu_specs.csv (node_specs.csv has no other)
GPU_GB = {
    "A100 SXM4 40GB": 40,
    "Tesla K80": 12,
    "Tesla M60": 8,
    "GTX 1080 Ti": 11,
    "GTX 1070": 8,
    "RTX 2080 Ti": 11,
    "Tesla P100 SXM2": 16,
}
MODELS = {
    "alpha": "A100 SXM4 40GB",
    "gpu2": "Tesla K80",
    "hpdlf": "GTX 1080 Ti",
    "az_2x_m60": "Tesla M60",
    "az_4x_m60": "Tesla M60",
    "7gforce": "GTX 1070",
    "rtx2080ti_4": "RTX 2080 Ti",
    "rtx2080ti_8": "RTX 2080 Ti",
    "dgx1_p100": "Tesla P100 SXM2",
    "gce_k80": "Tesla K80",
    "ec2_k80": "Tesla K80",
}
GB_PER_S_WITHIN = {  # comm_parameters.csv; null for the others
    "alpha": 300,  # NVLink 3 unidirectional total
    "dgx1_p100": 80,  # NVLink 1 unidirectional total
    "az_2x_m60": 5.26,  # P2P through host, no peer access
    "7gforce": 0.73,  # P2P over x1 risers, low
}
GBIT_PER_S_BETWEEN = {"alpha": 400}  # two HDR ports, ScaDS.AI
STAGES = {"alpha": "/tmp"}  # local_storage of alpha_centauri.md: 3.5 TB NVMe /tmp
UNSUPPORTED = {"gpu2": {"horovod_mpi", "horovod_tensorflow_mpi"}}  # seeds/001


def scaled(figure: float | None, by: float) -> float | None:
    return None if figure is None else figure * by


def figures(name: str) -> dict[str, Any]:
    return load(HARDWARE / f"{name}.yaml")


def test_every_machine_is_looked_at() -> None:
    assert {path.stem for path in MACHINES} == set(NODES) == set(MODELS)


@pytest.mark.parametrize("name", NODES)
def test_nodes(name: str) -> None:
    nodes, cores, gb, gpus = NODES[name]
    results = figures(name)
    assert (results["max_nodes"], results["cpus_per_node"], results["gpus_per_node"]) == (nodes, cores, gpus)
    assert results["memory_bytes"] == scaled(gb, 1e9)


@pytest.mark.parametrize("name", MODELS)
def test_gpus(name: str) -> None:
    results = figures(name)
    assert results["gpu_model"] == MODELS[name]
    assert results["gpu_memory_bytes"] == GPU_GB[MODELS[name]] * 1e9


@pytest.mark.parametrize("name", NODES)
def test_links_and_disks(name: str) -> None:
    results = figures(name)
    assert results["links"]["intra_node_bytes_per_s"] == scaled(GB_PER_S_WITHIN.get(name), 1e9)
    assert results["links"]["inter_node_bytes_per_s"] == scaled(GBIT_PER_S_BETWEEN.get(name), 1e9 / 8)
    assert results["stage"] == STAGES.get(name)


@pytest.mark.parametrize("name", NODES)
def test_strategies_that_failed_in_a_study_are_unsupported(name: str) -> None:
    assert set(figures(name)["unsupported"]) == UNSUPPORTED.get(name, set())
