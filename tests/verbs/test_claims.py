"""A hardware YAML's figures beside those of made-up machines."""

from __future__ import annotations

import dataclasses

import pytest

from scalebench.gpus import Gpu
from scalebench.machine import Machine
from scalebench.spec import HardwareSpec
from scalebench.verbs import claims
from scalebench.verbs.claims import DIFFERS, OK, UNCHECKED, Claim, of_node, same_model
from tests.helpers import MACHINE

NVLINK = {"intra_node": "NVLink 3, 12 links per A100"}
ALPHA = HardwareSpec(
    "alpha", devices="cuda", gpus_per_node=2, cpus_per_node=48, memory_bytes=10**12, gpu_model="A100 SXM4 40GB",
    gpu_memory_bytes=40 * 10**9, links=NVLINK, here=False,
)  # fmt: skip


def gpu(index: int, name: str | None = "NVIDIA A100-SXM4-40GB", memory_bytes: int | None = 40 * 2**30) -> Gpu:
    return Gpu(index, name, f"GPU-{index}", memory_bytes, None, None, None, None, None)


def host(*gpus: Gpu, word: str = "NV12", **changes: object) -> Machine:
    """A machine with 48 cores and 1 TiB."""
    topology = [["X" if a is b else word for b in gpus] for a in gpus] if gpus else None
    figures = {"cpus": 48, "cpus_physical": 48, "memory_bytes": 2**40, "gpus": list(gpus), "topology": topology}
    return dataclasses.replace(MACHINE, **{**figures, **changes})  # type: ignore[arg-type]


def told(hardware: HardwareSpec, here: Machine, in_job: bool = False) -> dict[str, Claim]:
    return {line.key: line for line in of_node(hardware, here, in_job)}


def test_a_node_that_is_as_said() -> None:
    assert [dataclasses.astuple(line) for line in of_node(ALPHA, host(gpu(0), gpu(1)))] == [
        ("gpus_per_node", "2", "2", OK),
        ("gpu_model", "A100 SXM4 40GB", "2 x NVIDIA A100-SXM4-40GB", OK),
        ("gpu_memory_bytes", "40 GB", "2 x 43 GB", OK),
        ("cpus_per_node", "48", "48 cores", OK),
        ("memory_bytes", "1,000 GB", "1,100 GB", OK),
        ("links.intra_node", "NVLink 3, 12 links per A100", "NV12 in nvidia-smi topo", OK),
    ]


@pytest.mark.parametrize(
    ("key", "here", "shown"),
    [
        ("gpus_per_node", host(gpu(0)), "1"),
        ("gpus_per_node", host(), "0"),
        ("gpu_model", host(gpu(0), gpu(1, "Tesla K80")), "NVIDIA A100-SXM4-40GB, Tesla K80"),
        ("gpu_memory_bytes", host(gpu(0), gpu(1, memory_bytes=80 * 2**30)), "43 GB, 86 GB"),
        ("cpus_per_node", host(cpus=24, cpus_physical=24), "24 cores"),
        ("memory_bytes", host(memory_bytes=512 * 2**30), "550 GB"),
        ("links.intra_node", host(gpu(0), gpu(1), word="SYS"), "SYS in nvidia-smi topo"),
    ],
)
def test_what_differs(key: str, here: Machine, shown: str) -> None:
    line = told(ALPHA, here)[key]
    assert (line.here, line.verdict) == (shown, DIFFERS)


def test_what_is_not_said_or_cannot_be_told_is_not_checked() -> None:
    nothing = HardwareSpec("local", devices="auto")
    assert {line.verdict for line in of_node(nothing, host(gpu(0), gpu(1)))} == {UNCHECKED}
    assert {line.said for line in of_node(nothing, host())} == {"null"}
    found = told(ALPHA, host(gpu(0, None, None), gpu(1, None, None), memory_bytes=None))
    assert (found["memory_bytes"].here, found["memory_bytes"].verdict) == ("cannot be told", UNCHECKED)


def test_workers_of_a_cpu_are_no_gpus() -> None:
    found = told(HardwareSpec("cpu", devices="cpu", gpus_per_node=2, cpus_per_node=48), host())
    assert list(found) == ["cpus_per_node", "memory_bytes", "links.intra_node"]


def test_a_job_may_have_been_given_a_part_of_the_gpus() -> None:
    line = told(ALPHA, host(gpu(0)), in_job=True)["gpus_per_node"]
    assert (line.here, line.verdict) == ("1, as this job was given", UNCHECKED)
    more = told(ALPHA, host(gpu(0), gpu(1), gpu(2)), in_job=True)["gpus_per_node"]
    assert more.verdict == DIFFERS


def test_a_process_with_few_cores_sees_those_of_the_node() -> None:
    line = told(ALPHA, host(cpus=1))["cpus_per_node"]
    assert (line.here, line.verdict) == ("48 cores, 1 for this process", OK)
    assert told(ALPHA, host(cpus_physical=None))["cpus_per_node"].verdict == OK


@pytest.mark.parametrize(("word", "verdict"), [("PHB", OK), ("NV2", DIFFERS)])
def test_no_nvlink_can_be_said_too(word: str, verdict: str) -> None:
    hardware = dataclasses.replace(ALPHA, links={"intra_node": "no NVLink"})
    assert told(hardware, host(gpu(0), gpu(1), word=word))["links.intra_node"].verdict == verdict
    other = dataclasses.replace(ALPHA, links={"intra_node": "PCIe x1 risers"})
    assert told(other, host(gpu(0), gpu(1), word=word))["links.intra_node"].verdict == UNCHECKED


@pytest.mark.parametrize(
    ("said", "here", "same"),
    [
        ("A100 SXM4 40GB", "NVIDIA A100-SXM4-40GB", True),
        ("A100 SXM4 40GB", "NVIDIA A100-SXM4-80GB", False),
        ("GTX 1080 Ti", "NVIDIA GeForce GTX 1080 Ti", True),
        ("GTX 1070", "GeForce GTX 1070 Ti", False),
        ("GTX 1080 Ti", "GeForce GTX 1080", False),
        ("Tesla P100 SXM2", "Tesla P100-SXM2-16GB", True),
        ("Tesla K80", "Tesla K80", True),
        ("H100 PCIe", "NVIDIA H100 80GB HBM3", False),
    ],
)
def test_models_by_name(said: str, here: str, same: bool) -> None:
    assert same_model(said, here) == same


@pytest.mark.parametrize(
    ("here", "same"), [(64 * 10**9, True), (64 * 2**30, True), (62_000 * 2**20, True), (48 * 10**9, False)]
)
def test_sizes_are_compared_loosely(here: int, same: bool) -> None:
    assert claims.near(64 * 10**9, here) == same


def test_lines_of_another_host_are_told_and_not_judged() -> None:
    (line,) = claims.unchecked([Claim("gpus_per_node", "8", "0", DIFFERS)], "not a node")
    assert line == Claim("gpus_per_node", "8", "0 (not a node)", UNCHECKED)
