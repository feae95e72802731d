"""The GPUs as a made-up NVML tells them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalebench import gpus
from scalebench.gpus import Gpu

UUIDS = [f"GPU-{i}b2c4f5e-0000-4000-8000-00000000000{i}" for i in range(4)]
A100 = "NVIDIA A100-SXM4-40GB"


def refuse(*_: object) -> Any:
    raise RuntimeError("Not Supported")  # stands for an NVMLError


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As much of pynvml as gpus.py asks for: four A100 in two pairs; handles are plain indices."""
    links: dict[int, list[Any]] = {}  # GPU -> the other end of each of its links

    def bus(handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:{handle:X}A:00.0")

    fake = SimpleNamespace(
        links=links,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"550.54.15",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 12040,
        nvmlDeviceGetCount=lambda: 4,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: 0 if uuid == "MIG-known" else refuse(),
        nvmlDeviceGetName=lambda handle: A100.encode() if handle % 2 else A100,  # older pynvml: bytes
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=42_949_672_960, free=1, used=2),
        nvmlDeviceGetMaxClockInfo=lambda handle, clock: {1: 1410, 2: 1215}[clock],
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 400_000,
        nvmlDeviceGetPciInfo=bus,
        nvmlDeviceGetTopologyCommonAncestor=lambda a, b: 20 if a // 2 == b // 2 else 50,
        nvmlDeviceGetNvLinkState=lambda handle, link: int(link < len(links[handle])),  # no links: KeyError
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda handle, link: 2 if links[handle][link] == "switch" else 0,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, link: bus(links[handle][link]),
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty file system in place of /sys."""
    monkeypatch.setattr(gpus, "_ROOT", tmp_path)
    return tmp_path


def put(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_gpus_as_nvml_tells_them(nvml: SimpleNamespace, root: Path) -> None:
    put(root, "sys/bus/pci/devices/0000:2a:00.0/numa_node", "1\n")
    put(root, "sys/bus/pci/devices/0000:3a:00.0/numa_node", "-1\n")
    found = gpus.detect_gpus()
    assert found.gpus[2] == Gpu(2, A100, UUIDS[2], 42_949_672_960, 1410, 1215, 400.0, 1, "00000000:2A:00.0")
    assert (found.gpus[3].name, found.gpus[3].numa_node) == (A100, None)
    assert (found.driver_version, found.cuda_driver_version) == ("550.54.15", "12.4")
    json.dumps(dataclasses.asdict(found))


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("nvmlDeviceGetName", {"name"}),
        ("nvmlDeviceGetUUID", {"uuid"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_bytes"}),
        ("nvmlDeviceGetMaxClockInfo", {"sm_clock_max_mhz", "mem_clock_max_mhz"}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_limit_w"}),
        ("nvmlDeviceGetPciInfo", {"pci_bus_id", "numa_node"}),
    ],
)
def test_a_refused_field_is_none(nvml: SimpleNamespace, root: Path, call: str, fields: set[str]) -> None:
    put(root, "sys/bus/pci/devices/0000:0a:00.0/numa_node", "0\n")
    setattr(nvml, call, refuse)
    gpu = dataclasses.asdict(gpus.detect_gpus().gpus[0])
    assert {name for name, value in gpu.items() if value is None} == fields


def test_an_nvml_that_misbehaves(nvml: SimpleNamespace) -> None:
    nvml.nvmlDeviceGetPciInfo = lambda handle: SimpleNamespace(busId="what:ever")
    assert gpus.detect_gpus().gpus[0].numa_node is None
    nvml.nvmlDeviceGetHandleByIndex = refuse  # lost GPUs stay counted
    assert len(gpus.detect_gpus().gpus) == 4
    nvml.nvmlInit = nvml.nvmlShutdown = refuse
    assert (gpus.detect_gpus().gpus, gpus.gpu_count()) == ([], 0)


def test_topology(nvml: SimpleNamespace) -> None:
    assert gpus.detect_gpus().topology == [
        ["X", "PXB", "SYS", "SYS"],
        ["PXB", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "PXB"],
        ["SYS", "SYS", "PXB", "X"],
    ]
    nvml.links |= {0: [1, 1, 2], 1: [0, 0], 2: [0]}
    assert (gpus.detect_gpus().topology or [])[:2] == [["X", "NV2", "NV1", "SYS"], ["NV2", "X", "SYS", "SYS"]]
    nvml.links |= {gpu: ["switch"] * 12 for gpu in range(4)}
    assert (gpus.detect_gpus().topology or [])[3] == ["NV12", "NV12", "NV12", "X"]


def test_topology_that_cannot_be_told_is_none(nvml: SimpleNamespace) -> None:
    del nvml.nvmlDeviceGetTopologyCommonAncestor  # a library older than this function
    assert gpus.detect_gpus().topology is None
    nvml.nvmlDeviceGetCount = lambda: 1
    assert gpus.detect_gpus().topology == [["X"]]
    nvml.nvmlDeviceGetCount = lambda: 0
    assert gpus.detect_gpus().topology is None


VISIBLE = {"": 0, "0": 1, "2, 0": 2, "0,1,2,3": 4, "-1": 0, "1,-1,2": 1, "0,7,1": 1, "0,0": 0, "none": 0}
VISIBLE |= {UUIDS[3]: 1, f"{UUIDS[3]},{UUIDS[0]}": 2, "GPU-2b2c": 1, "GPU-ffff": 0, "G": 0}
VISIBLE |= {"GPU-": 0, "MIG-known": 1, "MIG-unknown": 0}  # the first of these fits more than one


def test_gpu_count_sees_what_cuda_sees(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.gpu_count() == 4
    for visible, count in VISIBLE.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpus.gpu_count() == count, visible
    assert len(gpus.detect_gpus().gpus) == 4  # the record tells of hidden ones, too
