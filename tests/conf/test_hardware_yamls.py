"""Every hardware YAML has the keys of the typed config, and every figure of a named machine has a source."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from scalebench.core.spec import SlurmSpec

HARDWARE = Path(__file__).parents[2] / "conf" / "hardware"
FILES = sorted(HARDWARE.glob("*.yaml"))
CLUSTERS = ["alpha", "gpu2", "hpdlf"]
SLURM_KEYS = [f.name for f in dataclasses.fields(SlurmSpec)]
OPTIONAL_INT = (int, type(None))
KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "description": (str,),
    "devices": (str,),
    "gpus_per_node": OPTIONAL_INT,
    "cpus_per_node": OPTIONAL_INT,
    "cpus_per_device": OPTIONAL_INT,
    "max_nodes": (int,),
    "memory_bytes": OPTIONAL_INT,
    "gpu_model": (str, type(None)),
    "gpu_memory_bytes": OPTIONAL_INT,
    "device_ids": (list,),
    "bind": (str,),
    "environment": (dict,),
    "this_machine": (bool,),
    "hosts": (list,),
    "layout": (str,),
    "interface": (str, type(None)),
    "stage": (str, type(None)),
    "scheduler": (str,),
    "max_jobs": OPTIONAL_INT,
    "slurm": (dict,),
    "links": (dict,),
    "unsupported": (dict,),
    "sources": (list,),
}
LINKS: dict[str, tuple[type, ...]] = {
    "intra_node_bytes_per_s": (float, type(None)),
    "inter_node_bytes_per_s": (float, type(None)),
    "intra_node": (str, type(None)),
    "inter_node": (str, type(None)),
}
# What a source has to be named for, besides whatever stands under links.
FIGURES = [*list(KEYS)[list(KEYS).index("gpus_per_node") : list(KEYS).index("device_ids")], "stage"]
MACHINES = [path for path in FILES if path.stem not in ("cpu", "local", "testcluster")]


def load(path: Path) -> dict[str, Any]:
    loaded = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


def stem(path: Path) -> str:
    return path.stem


def test_the_files_of_the_design_exist() -> None:
    others = "az_2x_m60 az_4x_m60 7gforce rtx2080ti_4 rtx2080ti_8 dgx1_p100 gce_k80 ec2_k80".split()
    assert {"cpu", "local", *CLUSTERS, *others} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=stem)
def test_keys_order_and_types(path: Path) -> None:
    results = load(path)
    assert list(results) == list(KEYS)
    assert list(results["links"]) == list(LINKS)
    for key, types in KEYS.items():
        assert type(results[key]) in types, key
    for key, types in LINKS.items():
        assert type(results["links"][key]) in types, key
    assert all(isinstance(text, str) for text in [*results["sources"], *results["unsupported"].values()])
    # Only the keys that differ, in their order: 18 lines of nulls in each file would hide them.
    named = list(results["slurm"])
    assert named == [key for key in SLURM_KEYS if key in named]
    usual = dataclasses.asdict(SlurmSpec())
    assert path not in MACHINES or [key for key, value in results["slurm"].items() if value == usual[key]] == []


@pytest.mark.parametrize("path", FILES, ids=stem)
def test_values_make_sense(path: Path) -> None:
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
def test_every_figure_of_another_machine_has_a_source(path: Path) -> None:
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
def test_cpus_per_device_follow_the_rule_of_the_thesis(name: str, cpus_per_device: int) -> None:
    results = load(HARDWARE / f"{name}.yaml")
    assert results["cpus_per_device"] is None  # null = floor(cpus / GPUs)
    assert results["cpus_per_node"] // results["gpus_per_node"] == cpus_per_device
    assert (results["this_machine"], results["scheduler"], results["slurm"]["partition"]) == (False, "slurm", name)


def test_cpu_and_local_assume_nothing() -> None:
    cpu, local = load(HARDWARE / "cpu.yaml"), load(HARDWARE / "local.yaml")
    assert (cpu["devices"], cpu["gpus_per_node"], local["devices"]) == ("cpu", 2, "auto")
    for results in (cpu | {"gpus_per_node": None}, local):
        assert results["this_machine"] and results["max_nodes"] == 1
        assert all(results[key] is None for key in FIGURES if key != "max_nodes")


def test_mpi_is_unsupported_on_gpu2_with_its_reason() -> None:
    assert "InfiniBand" in load(HARDWARE / "gpu2.yaml")["unsupported"]["horovod_mpi"]
