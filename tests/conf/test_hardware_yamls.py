"""Every hardware YAML has the keys of the typed config, and every figure of a named machine has a source."""

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scalebench.core.spec import SlurmSpec

HARDWARE = Path(__file__).parents[2] / "conf" / "hardware"
FILES = sorted(HARDWARE.glob("*.yaml"))
SLURM_KEYS = [f.name for f in dataclasses.fields(SlurmSpec)]
OPTIONAL_INT, OPTIONAL_STR = (int, type(None)), (str, type(None))
KEYS = {
    "name": (str,), "description": (str,), "devices": (str,), "gpus_per_node": OPTIONAL_INT,
    "cpus_per_node": OPTIONAL_INT, "cpus_per_device": OPTIONAL_INT, "max_nodes": (int,), "memory_bytes": OPTIONAL_INT,
    "gpu_model": OPTIONAL_STR, "gpu_memory_bytes": OPTIONAL_INT, "device_ids": (list,), "bind": (str,),
    "environment": (dict,), "this_machine": (bool,), "nodes_share_cores": (bool,), "hosts": (list,), "layout": (str,),
    "interface": OPTIONAL_STR, "ports": OPTIONAL_STR, "node_copy": OPTIONAL_STR, "scheduler": (str,),
    "max_jobs": OPTIONAL_INT, "slurm": (dict,), "links": (dict,), "unsupported": (dict,), "sources": (list,),
}  # fmt: skip
LINKS = {
    "intra_node_bytes_per_s": (float, type(None)),
    "inter_node_bytes_per_s": (float, type(None)),
    "intra_node": (str, type(None)),
    "inter_node": (str, type(None)),
}
OPTIONAL_LINKS = {
    "kind": (str,),
    "intra_node_latency_s": (float,),
    "inter_node_latency_s": (float,),
    "oversubscription": (float,),
}
# What a source has to be named for, besides whatever stands under links.
FIGURES = [*list(KEYS)[list(KEYS).index("gpus_per_node") : list(KEYS).index("device_ids")], "node_copy"]
MACHINES = [path for path in FILES if path.stem not in ("cpu", "local", "slurm", "testcluster")]


def load(path):
    loaded = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


def stem(path):
    return path.stem


@pytest.mark.parametrize("path", FILES, ids=stem)
def test_keys_order_and_types(path):
    results = load(path)
    assert list(results) == list(KEYS)
    optional = [key for key in OPTIONAL_LINKS if key in results["links"]]
    assert list(results["links"]) == [*LINKS, *optional]
    for key, types in KEYS.items():
        assert type(results[key]) in types, key
    for key, types in (LINKS | {key: OPTIONAL_LINKS[key] for key in optional}).items():
        assert type(results["links"][key]) in types, key
    assert all(isinstance(text, str) for text in [*results["sources"], *results["unsupported"].values()])
    # Only the keys that differ, in their order: 18 lines of nulls in each file would hide them.
    named = list(results["slurm"])
    assert named == [key for key in SLURM_KEYS if key in named]
    usual = dataclasses.asdict(SlurmSpec())
    assert path not in MACHINES or [key for key, value in results["slurm"].items() if value == usual[key]] == []


@pytest.mark.parametrize("path", FILES, ids=stem)
def test_values_make_sense(path):
    results = load(path)
    assert results["name"] == path.stem
    assert results["description"]
    assert results["devices"] in ("cuda", "cpu", "auto")
    assert results["scheduler"] in ("none", "slurm")
    assert not (results["this_machine"] and results["scheduler"] == "slurm")
    assert results["layout"] == "sequence"  # is a run's to choose, as these are:
    assert (results["device_ids"], results["bind"], results["environment"]) == ([], "numa", {})
    assert bool(results["slurm"]) == (results["scheduler"] == "slurm")
    numbers = [results[key] for key in FIGURES] + list(results["links"].values())
    assert all(value > 0 for value in numbers if isinstance(value, (int, float)))


@pytest.mark.parametrize("path", FILES, ids=stem)
def test_every_figure_of_another_machine_has_a_source(path):
    results = load(path)
    if path not in MACHINES:
        assert results["sources"] == []  # what stands there is our choice, the rest is detected
        return
    figures = {key: results[key] for key in FIGURES} | results["links"] | {"slurm": results["slurm"] or None}
    figures["unsupported"] = results["unsupported"] or None
    for source in results["sources"]:
        assert ": " in source and len(source.split(": ", 1)[1]) > 10, source
    sourced = {key for source in results["sources"] for key in source.split(": ", 1)[0].split(", ")}
    assert sourced == {key for key, value in figures.items() if value is not None}


@pytest.mark.parametrize(("name", "cpus_per_device"), [("alpha", 6), ("gpu2", 6), ("hpdlf", 4)])
def test_cpus_per_device_follow_the_rule_of_the_thesis(name, cpus_per_device):
    results = load(HARDWARE / f"{name}.yaml")
    assert results["cpus_per_device"] is None  # null = floor(cpus / GPUs)
    assert results["cpus_per_node"] // results["gpus_per_node"] == cpus_per_device
    assert (results["this_machine"], results["scheduler"], results["slurm"]["partition"]) == (False, "slurm", name)


def test_cpu_and_local_assume_nothing():
    cpu, local = load(HARDWARE / "cpu.yaml"), load(HARDWARE / "local.yaml")
    assert (cpu["devices"], cpu["gpus_per_node"], local["devices"]) == ("cpu", 2, "auto")
    for results in (cpu | {"gpus_per_node": None}, local):
        assert results["this_machine"] and results["max_nodes"] == 1
        assert all(results[key] is None for key in FIGURES if key != "max_nodes")


def test_slurm_is_a_parent_of_no_cluster():
    results = load(HARDWARE / "slurm.yaml")
    assert (results["scheduler"], results["slurm"]) == ("slurm", {"exclusive": True})
    assert all(results[key] is None for key in FIGURES if key != "max_nodes")
    assert not any(results["links"].values()) and results["unsupported"] == {}


def test_mpi_is_unsupported_on_gpu2_with_its_reason():
    assert "InfiniBand" in load(HARDWARE / "gpu2.yaml")["unsupported"]["horovod_mpi"]


# name: nodes, cores and GB of a node, GPUs of a node (node_specs.csv, or the page that the YAML cites)
NODES = {
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
    "dgx_h100": (32, 112, 2000, 8),  # user guide: 2 x 56 cores, 2 TB; 32 nodes in a scalable unit
}
# GB of one GPU, by the name in gpu_specs.csv (node_specs.csv has no other), or by the one that NVML reports
GPU_GB = {
    "A100 SXM4 40GB": 40, "Tesla K80": 12, "Tesla M60": 8, "GTX 1080 Ti": 11, "GTX 1070": 8, "RTX 2080 Ti": 11,
    "Tesla P100-SXM2-16GB": 16, "H100 80GB HBM3": 80,
}  # fmt: skip
MODELS = {
    "alpha": "A100 SXM4 40GB", "gpu2": "Tesla K80", "hpdlf": "GTX 1080 Ti", "az_2x_m60": "Tesla M60",
    "az_4x_m60": "Tesla M60", "7gforce": "GTX 1070", "rtx2080ti_4": "RTX 2080 Ti", "rtx2080ti_8": "RTX 2080 Ti",
    "dgx1_p100": "Tesla P100-SXM2-16GB", "gce_k80": "Tesla K80", "ec2_k80": "Tesla K80",
    "dgx_h100": "H100 80GB HBM3",
}  # fmt: skip
GB_PER_S_WITHIN = {  # comm_parameters.csv; null for the others
    "alpha": 300,  # NVLink 3 unidirectional total
    "dgx1_p100": 80,  # NVLink 1 unidirectional total
    "az_2x_m60": 5.26,  # P2P through host, no peer access
    "7gforce": 0.73,  # P2P over x1 risers, low
    "dgx_h100": 450,  # NVLink 4 unidirectional total
}
GBIT_PER_S_BETWEEN = {"alpha": 400, "dgx_h100": 3200}  # two HDR ports, ScaDS.AI; 8 ports of 400 Gbit/s, user guide
NODE_COPIES = {"alpha": "/tmp"}  # local_storage of alpha_centauri.md: 3.5 TB NVMe /tmp
UNSUPPORTED = {"gpu2": {"horovod_mpi", "horovod_tensorflow_mpi"}}  # seeds/001


def scaled(figure, by):
    return None if figure is None else figure * by


def test_every_machine_is_looked_at():
    assert {"cpu", "local"} < {path.stem for path in FILES}
    assert {path.stem for path in MACHINES} == set(NODES) == set(MODELS)


@pytest.mark.parametrize("name", NODES)
def test_figures_are_those_of_their_sources(name):
    """The sources are tables beside the project, so their numbers stand here as there: GB, Gbit/s, GB/s."""
    nodes, cores, gb, gpus = NODES[name]
    results = load(HARDWARE / f"{name}.yaml")
    assert (results["max_nodes"], results["cpus_per_node"], results["gpus_per_node"]) == (nodes, cores, gpus)
    assert results["memory_bytes"] == scaled(gb, 1e9)
    assert results["gpu_model"] == MODELS[name]
    assert results["gpu_memory_bytes"] == GPU_GB[MODELS[name]] * 1e9
    assert results["links"]["intra_node_bytes_per_s"] == scaled(GB_PER_S_WITHIN.get(name), 1e9)
    assert results["links"]["inter_node_bytes_per_s"] == scaled(GBIT_PER_S_BETWEEN.get(name), 1e9 / 8)
    assert results["node_copy"] == NODE_COPIES.get(name)
    assert set(results["unsupported"]) == UNSUPPORTED.get(name, set())
