"""Every hardware YAML has the keys of the typed config, and every figure of a named machine has a source."""

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scalebench.core.spec import SlurmSpec

HARDWARE = Path(__file__).parents[2] / "conf" / "hardware"
FILES = sorted(HARDWARE.glob("*.yaml"))
USUAL_SLURM = dataclasses.asdict(SlurmSpec())
OPTIONAL_INT, OPTIONAL_STR = (int, type(None)), (str, type(None))
KEYS = {
    "name": (str,), "description": (str,), "devices": (str,), "gpus_per_node": OPTIONAL_INT,
    "cpus_per_node": OPTIONAL_INT, "cpus_per_device": OPTIONAL_INT, "max_nodes": (int,), "memory_bytes": OPTIONAL_INT,
    "gpu_model": OPTIONAL_STR, "gpu_memory_bytes": OPTIONAL_INT, "device_ids": (list,), "bind": (str,),
    "environment": (dict,), "this_machine": (bool,), "nodes_share_cores": (bool,), "hosts": (list,), "layout": (str,),
    "interface": OPTIONAL_STR, "ports": OPTIONAL_STR, "node_copy": OPTIONAL_STR, "scheduler": (str,),
    "max_jobs": OPTIONAL_INT, "slurm": (dict,), "links": (dict,), "unsupported": (dict,), "sources": (list,),
}  # fmt: skip
LINKS = dict.fromkeys(("intra_node_bytes_per_s", "inter_node_bytes_per_s"), (float, type(None)))
LINKS |= dict.fromkeys(("intra_node", "inter_node"), OPTIONAL_STR)
OPTIONAL_LINKS = {"kind": (str,)}
OPTIONAL_LINKS |= dict.fromkeys(("intra_node_latency_s", "inter_node_latency_s", "oversubscription"), (float,))
# What a source has to be named for, besides whatever stands under links.
FIGURES = [*list(KEYS)[list(KEYS).index("gpus_per_node") : list(KEYS).index("device_ids")], "node_copy"]


# Nodes; cores and GB of a node, GPUs of a node (node_specs.csv, or the page that the YAML cites); the GPU by the name
# in gpu_specs.csv (node_specs.csv has no other), or by the one that NVML reports, and its GB; GB/s within a node
# (comm_parameters.csv, unidirectional) and Gbit/s between nodes
NODES = {
    # alpha_centauri.md; NVLink 3; two HDR ports, ScaDS.AI
    "alpha": (34, 48, 1000, 8, "A100 SXM4 40GB", 40, 300, 400),
    "gpu2": (64, 24, 64, 4, "Tesla K80", 12, None, None),  # hardware_overview.md: 4 GPUs, 2 cards
    "hpdlf": (14, 12, 95, 3, "GTX 1080 Ti", 11, None, None),  # partitions_and_limits.md
    "az_2x_m60": (1, 12, 112, 2, "Tesla M60", 8, 5.26, None),  # Standard_NV12; P2P through host, no peer access
    "az_4x_m60": (1, None, None, 4, "Tesla M60", 8, None, None),  # hardware.md: Standard_NV24, "4x Tesla M60"
    # hardware.md: 10 cores; the row of 7gforce, not of 7gforce-v2; P2P over x1 risers, low
    "7gforce": (1, 10, 128, 7, "GTX 1070", 8, 0.73, None),
    "rtx2080ti_4": (1, None, None, 4, "RTX 2080 Ti", 11, None, None),  # seeds/000: "a 4 and 8 GPUs machine"
    "rtx2080ti_8": (1, None, None, 8, "RTX 2080 Ti", 11, None, None),
    "dgx1_p100": (1, None, None, 8, "Tesla P100-SXM2-16GB", 16, 80, None),  # benchmarks.md; NVLink 1
    "gce_k80": (1, None, None, 8, "Tesla K80", 12, None, None),  # benchmarks.md, GPUs: the instance is ...-k80x8
    "ec2_k80": (8, None, None, 8, "Tesla K80", 12, None, None),  # benchmarks.md: 64 GPUs on 8 instances
    # user guide: 2 x 56 cores, 2 TB; 32 nodes in a scalable unit; NVLink 4; 8 ports of 400 Gbit/s
    "dgx_h100": (32, 112, 2000, 8, "H100 80GB HBM3", 80, 450, 3200),
}
NODE_COPIES = {"alpha": "/tmp"}  # local_storage of alpha_centauri.md: 3.5 TB NVMe /tmp
UNSUPPORTED = {"gpu2": {"horovod_mpi", "horovod_tensorflow_mpi"}}  # seeds/001


def load(path):
    return {str(key): value for key, value in OmegaConf.to_container(OmegaConf.load(path)).items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_keys_values_and_sources(path):
    results = load(path)
    assert list(results) == list(KEYS)
    links = {**LINKS, **{key: kinds for key, kinds in OPTIONAL_LINKS.items() if key in results["links"]}}
    assert list(results["links"]) == list(links)
    assert [key for key, kinds in KEYS.items() if type(results[key]) not in kinds] == []
    assert [key for key, kinds in links.items() if type(results["links"][key]) not in kinds] == []
    assert all(isinstance(text, str) for text in [*results["sources"], *results["unsupported"].values()])
    assert results["name"] == path.stem and results["description"]
    assert results["devices"] in ("cuda", "cpu", "auto") and results["scheduler"] in ("none", "slurm")
    assert not (results["this_machine"] and results["scheduler"] == "slurm")
    # Are a run's to choose:
    chosen = [results[key] for key in ("layout", "device_ids", "bind", "environment")]
    assert chosen == ["sequence", [], "numa", {}]
    assert bool(results["slurm"]) == (results["scheduler"] == "slurm")
    # Only the keys that differ, in their order: 18 lines of nulls in each file would hide them.
    assert list(results["slurm"]) == [key for key in USUAL_SLURM if key in results["slurm"]]
    numbers = [results[key] for key in FIGURES] + list(results["links"].values())
    assert all(value > 0 for value in numbers if isinstance(value, (int, float)))
    if path.stem not in NODES:
        assert results["sources"] == []  # what stands there is our choice, the rest is detected
        return
    assert [key for key, value in results["slurm"].items() if value == USUAL_SLURM[key]] == []
    figures = {key: results[key] for key in FIGURES} | results["links"]
    figures |= {key: results[key] or None for key in ("slurm", "unsupported")}
    sources = [source.split(": ", 1) for source in results["sources"]]
    assert all(len(text) > 10 for _, text in sources)
    named = {key for keys, _ in sources for key in keys.split(", ")}
    assert named == {key for key, value in figures.items() if value is not None}


def test_cpu_local_and_slurm_assume_nothing():
    cpu, local, slurm = (load(HARDWARE / f"{name}.yaml") for name in ("cpu", "local", "slurm"))
    assert (cpu["devices"], cpu["gpus_per_node"], local["devices"]) == ("cpu", 2, "auto")
    for results in (cpu | {"gpus_per_node": None}, local, slurm):
        assert all(results[key] is None for key in FIGURES if key != "max_nodes")
        assert results is slurm or (results["this_machine"] and results["max_nodes"] == 1)
    assert (slurm["scheduler"], slurm["slurm"]) == ("slurm", {"exclusive": True})
    assert not any(slurm["links"].values()) and slurm["unsupported"] == {}


def scaled(figure, by):
    return None if figure is None else figure * by


@pytest.mark.parametrize("name", NODES)
def test_figures_are_those_of_their_sources(name):
    """The sources are tables beside the project, so their numbers stand here as there: GB, Gbit/s, GB/s."""
    assert set(NODES) == {path.stem for path in FILES} - {"cpu", "local", "slurm", "testcluster"}
    nodes, cores, gb, gpus, model, gpu_gb, within, between = NODES[name]
    results = load(HARDWARE / f"{name}.yaml")
    assert (results["max_nodes"], results["cpus_per_node"], results["gpus_per_node"]) == (nodes, cores, gpus)
    assert (results["memory_bytes"], results["gpu_model"]) == (scaled(gb, 1e9), model)
    assert results["gpu_memory_bytes"] == gpu_gb * 1e9
    assert results["links"]["intra_node_bytes_per_s"] == scaled(within, 1e9)
    assert results["links"]["inter_node_bytes_per_s"] == scaled(between, 1e9 / 8)
    assert results["node_copy"] == NODE_COPIES.get(name)
    assert set(results["unsupported"]) == UNSUPPORTED.get(name, set())
    if name in ("alpha", "gpu2", "hpdlf"):  # of the thesis, whose rule is cores / GPUs
        assert (results["cpus_per_device"], results["slurm"]["partition"]) == (None, name)
