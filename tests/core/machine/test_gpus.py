"""GPUs and their links, of a made-up NVML and of a stand-in library; what NCCL logs of them; peak FLOP/s of cards."""

import dataclasses
import json
import re
import sys
from types import SimpleNamespace

import pytest

from scalebench.__main__ import main
from scalebench.config.compose import compose_config
from scalebench.config.resolve import detect_hardware, resolve
from scalebench.core.errors import InputError
from scalebench.core.machine import cpus as system_files
from scalebench.core.machine import cuda_builds, gpus, nccl_log
from scalebench.core.machine.peak_flops import find_peak_flops, read_peaks
from scalebench.core.spec import HardwareSpec
from tests.conftest import ROOT
from tests.core.machine.conftest import put
from tests.nvml_stand_in import TABLES, parse_matrix, put_in, read_table

pytestmark = pytest.mark.gpu
UUIDS = [f"GPU-{i}b2c4f5e-0000-4000-8000-00000000000{i}" for i in range(4)]
A100 = "NVIDIA A100-SXM4-40GB"


def refuse(*_):
    raise RuntimeError("Not Supported")  # stands for an NVMLError


@pytest.fixture
def nvml(monkeypatch):
    """Return the functions of pynvml that gpus.py calls: four A100 in two pairs; handles are plain indices."""
    constants = {
        "CudaComputeCapability": [8, 0], "Count": 4, "EnforcedPowerLimit": 400_000,
        "PowerManagementDefaultLimit": 425_500,
        "MemoryInfo": SimpleNamespace(total=42_949_672_960, free=1, used=2), "MigMode": [0, 1], "EccMode": [1, 0],
        "PowerManagementLimitConstraints": [100_000, 450_000], "ComputeMode": 3, "PersistenceMode": 0,
        "CurrPcieLinkGeneration": 1, "MaxPcieLinkGeneration": 4, "CurrPcieLinkWidth": 8, "MaxPcieLinkWidth": 16,
    }  # fmt: skip
    by_kind = {
        "MaxClockInfo": {1: 1410, 2: 1215}, "ClockInfo": {1: 210, 2: 405}, "ApplicationsClock": {1: 1200, 2: 1100},
        "DefaultApplicationsClock": {1: 1095, 2: 1215}, "TemperatureThreshold": {0: 92, 1: 89},
    }  # fmt: skip
    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"550.54.15",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 12040,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: 0 if uuid == "MIG-known" else refuse(),
        nvmlDeviceGetName=lambda handle: A100.encode() if handle % 2 else A100,  # older pynvml: bytes
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=f"00000000:{handle:X}A:00.0"),
        nvmlDeviceGetP2PStatus=lambda a, b, kind: 5 if kind == 2 else 0,
        nvmlDeviceGetTopologyCommonAncestor=lambda a, b: 20 if a // 2 == b // 2 else 50,
        **{f"nvmlDeviceGet{name}": lambda *_, value=value: value for name, value in constants.items()},
        **{f"nvmlDeviceGet{name}": lambda _, kind, values=values: values[kind] for name, values in by_kind.items()},
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_all_fields_of_a_gpu(nvml, root):
    put(root, "sys/bus/pci/devices/0000:2a:00.0/numa_node", "1\n")
    put(root, "sys/bus/pci/devices/0000:3a:00.0/numa_node", "-1\n")
    found = gpus.detect_gpus()
    assert found.gpus[2] == gpus.Gpu(
        index=2, name=A100, uuid=UUIDS[2], memory_bytes=42_949_672_960, numa_node=1, pci_bus_id="00000000:2A:00.0",
        sm_clock_max_mhz=1410, sm_clock_mhz=210, sm_clock_application_mhz=1200, sm_clock_default_mhz=1095,
        mem_clock_max_mhz=1215, mem_clock_mhz=405, mem_clock_application_mhz=1100, mem_clock_default_mhz=1215,
        power_limit_w=400.0, power_limit_min_w=100.0, power_limit_max_w=450.0, power_limit_default_w=425.5,
        slowdown_temperature_c=89, mig=False, ecc=True, compute_mode="exclusive_process", persistence=False,
        pcie_generation=1, pcie_generation_max=4, pcie_width=8, pcie_width_max=16, compute_capability="8.0",
    )  # fmt: skip
    assert (found.gpus[3].name, found.gpus[3].numa_node) == (A100, None)
    assert (found.driver_version, found.cuda_driver_version) == ("550.54.15", "12.4")
    json.dumps(dataclasses.asdict(found))
    nvml.nvmlDeviceGetPciInfo = lambda handle: SimpleNamespace(busId="what:ever")
    assert gpus.detect_gpus().gpus[0].numa_node is None
    nvml.nvmlDeviceGetHandleByIndex = refuse  # lost GPUs stay counted
    assert len(gpus.detect_gpus().gpus) == 4
    nvml.nvmlInit = nvml.nvmlShutdown = refuse
    assert (gpus.detect_gpus().gpus, gpus.count_gpus()) == ([], 0)


def test_a_topology_that_is_not_complete_is_none_and_pairs_by_their_link(nvml):
    del nvml.nvmlDeviceGetTopologyCommonAncestor  # a library older than this function
    assert gpus.detect_gpus().topology is None
    nvml.nvmlDeviceGetCount = lambda: 0
    assert gpus.detect_gpus().topology is None
    pairs = [["X", "PIX", "PHB", "SYS"], ["PIX", "X", "PHB", "SYS"], ["PHB", "PHB", "X", "SYS"], ["SYS"] * 3 + ["X"]]
    expected = {"PIX": [(0, 1)], "PHB": [(0, 2), (1, 2)], "SYS": [(0, 3), (1, 3), (2, 3)]}
    assert gpus.pairs_by_link(pairs) == expected and gpus.pairs_by_link([["X"]]) == {}


@pytest.mark.parametrize(
    ("visible", "is_refused"), [("7", True), ("0,0", True), ("-1", False), ("", False), ("NoDevFiles", False)]
)
def test_hidden_gpus_are_named(nvml, monkeypatch, visible, is_refused, capsys):
    """Who chose none gets the CPU and reads so; a number that there is not, or one twice, is a mistake."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    hidden = f"CUDA_VISIBLE_DEVICES={visible or chr(39) * 2} hides all 4 GPUs of this machine"
    assert gpus.find_hidden_gpus() == hidden
    words = ["strategy=simulated", "gpus=1"]
    if is_refused:
        with pytest.raises(InputError, match=f"^{hidden}: correct or unset it, or take CPU workers with hardware=cpu$"):
            resolve(compose_config(words))
        assert main(["strategy=simulated", "sweep=gpus", "dry_run=true"]) == 2
        line = f"scalebench: {hidden}: correct or unset it, or take CPU workers with hardware=cpu\n"
        assert capsys.readouterr().err == line
    else:
        local = resolve(compose_config(words))
        assert local.device == "cpu" and "hidden_gpus" in local.flags
    assert "hidden_gpus" not in resolve(compose_config([*words, "hardware=cpu"])).flags
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,7")
    assert gpus.find_hidden_gpus() is None


def test_the_visible_gpus_are_those_that_cuda_shows(nvml, monkeypatch):
    assert (gpus.visible_gpus(), gpus.count_gpus()) == ([0, 1, 2, 3], 4)
    for split, seen in (({0, 1, 2, 3}, [None]), ({1}, [0, 2, 3])):  # into instances, of which a process sees one
        with monkeypatch.context() as patch:
            patch.setattr(nvml, "nvmlDeviceGetMigMode", lambda handle, split=split: [int(handle in split), 0])
            assert (gpus.visible_gpus(), gpus.count_gpus()) == (seen, len(seen))
    for visible, found in {
        "": [], "0": [0], "2, 0": [2, 0], "0,1,2,3": [0, 1, 2, 3], "-1": [], "1,-1,2": [1], "0,7,1": [0], "0,0": [],
        "none": [], UUIDS[3]: [3], f"{UUIDS[3]},{UUIDS[0]}": [3, 0], "GPU-2b2c": [2], "GPU-ffff": [], "G": [],
        "GPU-": [], "MIG-known": [None], "MIG-unknown": [],
    }.items():  # fmt: skip
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert (gpus.visible_gpus(), gpus.count_gpus()) == (found, len(found)), visible
    # Devices are named whatever their numbers mean.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"3,{UUIDS[1]}")
    assert gpus.name_visible_gpus([1, 0, 2]) == [f"{A100} {UUIDS[1]}", f"{A100} {UUIDS[3]}", None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")  # of one rank: it takes the GPU that it sees, whatever its number
    assert gpus.name_visible_gpus([3]) == [f"{A100} {UUIDS[2]}"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-known")
    assert gpus.name_visible_gpus([0]) == [None]
    nvml.nvmlInit = refuse
    assert gpus.name_visible_gpus([0]) == [None]


def test_gpus_whose_library_does_not_answer_are_no_machine_without_gpus(nvml, monkeypatch, tmp_path):
    """After an update of the driver, a machine with GPUs must not be measured as one without."""
    monkeypatch.setattr(system_files, "SYSTEM_ROOT", tmp_path)
    nvml.nvmlInit = refuse
    assert gpus.find_nvml_problem() is None
    detect_hardware(HardwareSpec("local"))
    put(tmp_path, "dev/nvidia0", "")
    with pytest.raises(InputError, match=r"NVML does not answer \(RuntimeError: Not Supported\); see that nvidia-smi"):
        detect_hardware(HardwareSpec("local"))
    assert detect_hardware(HardwareSpec("cpu", devices="cpu")).devices == "cpu"
    nvml.nvmlInit = lambda: None
    assert gpus.find_nvml_problem() is None and detect_hardware(HardwareSpec("local")).devices == "cuda"


def test_amd_gpus_are_named(tmp_path, monkeypatch):
    """A run that takes the CPU beside them says so, one that asks for CPU workers does not."""
    monkeypatch.setattr(system_files, "SYSTEM_ROOT", tmp_path)
    monkeypatch.setattr(cuda_builds, "read_torch_version", lambda name: "2.13.0+cpu")
    assert gpus.find_unsupported_gpus() is None
    put(tmp_path, "dev/kfd", "")
    reason = "AMD GPUs (/dev/kfd), and torch 2.13.0+cpu is a build without"
    assert (gpus.find_unsupported_gpus() or "").startswith(reason)
    local = resolve(compose_config(["strategy=simulated", "hardware=local"]))
    assert local.device == "cpu" and "unsupported_gpus" in local.flags
    assert "unsupported_gpus" not in resolve(compose_config(["strategy=simulated", "hardware=cpu"])).flags
    asked = resolve(compose_config(["strategy=simulated", "hardware=local", "hardware.devices=cuda", "gpus=1"]))
    assert asked.unsupported is not None and "0 GPUs here; there are AMD GPUs (/dev/kfd" in asked.unsupported


def test_amd_gpus_are_devices_of_a_build_for_rocm(tmp_path, monkeypatch):
    """NVML has no number for them; a processor is a node of their driver, too."""
    monkeypatch.setattr(system_files, "SYSTEM_ROOT", tmp_path)
    monkeypatch.setattr(cuda_builds, "read_torch_version", lambda name: "2.13.0+rocm7.0")
    put(tmp_path, "dev/kfd", "")
    for node, units in enumerate((0, 1216, 1216, 1216)):
        put(tmp_path, f"sys/class/kfd/kfd/topology/nodes/{node}/properties", f"cpu_cores_count 0\nsimd_count {units}\n")
    assert gpus.visible_gpus() == [None, None, None] and gpus.find_unsupported_gpus() is None
    local = resolve(compose_config(["strategy=ddp", "hardware=local", "gpus=3"]))
    assert (local.device, local.unsupported) == ("cuda", None) and "unsupported_gpus" not in local.flags
    seen = {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "1,2,0"}  # 2 is not among the first two
    for name, value in seen.items():
        monkeypatch.setenv(name, value)
    assert gpus.count_amd_gpus() == 1
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "-1")
    hides = "HIP_VISIBLE_DEVICES=-1 CUDA_VISIBLE_DEVICES=1,2,0"
    assert gpus.find_unsupported_gpus() == f"AMD GPUs (/dev/kfd), which PyTorch does not see ({hides})"


def test_facts_of_the_visible_gpus_are_in_their_order(nvml, root, monkeypatch):
    for index, node in enumerate([0, 0, 1, 1]):
        put(root, f"sys/bus/pci/devices/0000:{index}a:00.0/numa_node", f"{node}\n")
    assert gpus.gpu_numa_nodes() == [0, 0, 1, 1]
    assert gpus.pair_of_each_link() == [(0, 1), (0, 2)]  # PXB and SYS
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,0")
    assert gpus.gpu_numa_nodes() == [1, 0, 0]
    assert gpus.pair_of_each_link() == [(0, 1), (1, 2)]  # SYS and PXB, by the numbers that a process sees
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-known")
    assert (gpus.gpu_numa_nodes(), gpus.pair_of_each_link()) == ([None], [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus.read_gpu_room() == [gpus.GpuRoom(1, 42_949_672_960, "exclusive_process")]


def test_peer_access_has_the_names_of_nvidia_smi():
    states = {(0, 1): 0, (1, 0): 1, (0, 2): 2, (2, 0): 3, (1, 2): 4, (2, 1): 5}

    def ask(name, a, b, kind):
        assert name == "nvmlDeviceGetP2PStatus"
        return states[a, b] if kind == 1 else 6 if kind == 0 else None

    assert gpus.detect_peer_access(ask, [0, 1, 2]) == {
        "read": [["X", "U", "U"], ["U", "X", "U"], ["U", "U", "X"]],
        "write": [["X", "OK", "GNS"], ["CNS", "X", "DR"], ["TNS", "NS", "X"]],
    }
    assert gpus.detect_peer_access(lambda *_: None, [0, 1]) is gpus.detect_peer_access(ask, []) is None


def test_constants_are_those_of_the_library():
    pynvml = pytest.importorskip("pynvml")
    kinds = {kind: getattr(pynvml, f"NVML_P2P_CAPS_INDEX_{kind.upper()}") for kind in gpus.PEER_KINDS}
    # A comma too many makes tuples of some of them.
    assert {kind: n[0] if isinstance(n, tuple) else n for kind, n in kinds.items()} == gpus.PEER_KINDS
    names = ["OK", "CHIPSET_NOT_SUPPORTED", "GPU_NOT_SUPPORTED", "IOH_TOPOLOGY_NOT_SUPPORTED", "DISABLED_BY_REGKEY"]
    numbers = [getattr(pynvml, f"NVML_P2P_STATUS_{name}") for name in [*names, "NOT_SUPPORTED", "UNKNOWN"]]
    assert numbers == list(gpus.PEER_STATES)


@pytest.mark.parametrize("table", sorted(path.stem for path in TABLES.glob("*.json") if path.stem != "two_gpus"))
def test_public_machines_have_the_published_topology(table, nvml_library, monkeypatch):
    put_in(monkeypatch, nvml_library, table)
    published = parse_matrix("\n".join(read_table(table).get("topology", [])))
    found = gpus.detect_gpus()
    assert len(published) == len(found.gpus) or table in ("mig_a100", "gb10")
    assert found.topology == (published or ([["X"]] if table == "gb10" else None))
    assert all(gpu.name for gpu in found.gpus)


@pytest.mark.parametrize(("table", "changes", "link"), [
    # A virtual machine does not see the switches: another type of device, at an address that is none.
    ("hgx_h100", {"RemoteDeviceType": [255], "RemotePciInfo": [{"busId": "FFFFFFFF:FFFF:FF.F"}]}, "NV18"),
    ("hgx_h100", {"RemoteDeviceType": [{"error": 3}], "RemotePciInfo": [{"error": 3}]}, "NV18"),
    # Drivers before 465 do not name the type of the other end.
    ("dgx1_v100", {"RemoteDeviceType": [{"error": 13}]}, "NV1"),
    # As published where the fabric manager did not run: rapidsai/ucx-py issue 749.
    ("dgx_a100", {"State": [{"error": 3}]}, "PXB"),
    ("dgx_a100", {"State": [0]}, "PXB"),
])  # fmt: skip
def test_links_whose_other_end_is_not_named(table, changes, link, nvml_library, monkeypatch):
    rows = {f"nvmlDeviceGetNvLink{name} {number}": cell for name, cell in changes.items() for number in range(18)}
    put_in(monkeypatch, nvml_library, table, rows)
    topology = gpus.detect_gpus().topology
    in_pairs = [["X" if a == b else "PXB" if a // 2 == b // 2 else "SYS" for b in range(8)] for a in range(8)]
    assert topology == (in_pairs if link == "PXB" else parse_matrix("\n".join(read_table(table)["topology"])))
    assert topology[0][1] == link


def test_a_fact_that_a_card_does_not_support_is_none(nvml_library, monkeypatch):
    for table, facts in {
        "tesla_m60": {"mig": None, "ecc": False, "sm_clock_max_mhz": None, "memory_bytes": 8123 * 2**20},
        "gtx_1070": {"mig": None, "ecc": None, "power_limit_w": 151.0, "pcie_generation": None},
        "gb10": {"memory_bytes": None, "power_limit_w": None, "power_limit_min_w": None, "mig": None},
        "mig_a100": {"mig": True, "ecc": True, "memory_bytes": 80 * 2**30},
        "hgx_h100": {"mig": False, "persistence": False, "slowdown_temperature_c": None},
    }.items():
        with monkeypatch.context() as patch:
            put_in(patch, nvml_library, table)
            found = gpus.detect_gpus()
        assert {name: getattr(found.gpus[0], name) for name in facts} == facts, table
        if len(found.gpus) > 1:  # one GPU has no peer to be asked about
            assert set(found.peer_access or {}) == ({"read", "write"} if table == "gtx_1070" else set())
    put_in(monkeypatch, nvml_library, "gb10", {"nvmlDeviceGetMemoryInfo": [{"total": 0, "free": 0, "used": 0}]})
    assert gpus.detect_gpus().gpus[0].memory_bytes is None, "0 is unknown"


LINES = {
    "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read": {"0-1": "P2P/CUMEM/read"},
    "a:1:2 [1] NCCL INFO Channel 15/0 : 1[1] -> 0[0] via P2P/IPC": {"0-1": "P2P/IPC"},
    "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 7[7] via P2P/direct pointer/read": {"0-7": "P2P/direct pointer/read"},
    "a:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct": {"0-1": "SHM/direct/direct"},
    "a:1:2 [1] NCCL INFO Channel 00 : 1[1a000] -> 2[af000] via direct shared memory": {"1-2": "direct shared memory"},
    "a:1:2 [3] NCCL INFO Ring 04 : 3[3] -> 2[2] via P2P/IPC": {"2-3": "P2P/IPC"},
    "a:1:2 [0] NCCL INFO Ring 00 : 43 -> 44 [receive] via NET/Socket/0": {"43-44": "NET/Socket/0"},
    "a:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 10[0] [send] via NET/IB/0(1)/GDRDMA": {"1-10": "NET/IB/0(1)/GDRDMA"},
    "a:1:2 [7] NCCL INFO Channel 08/0 : 33[1] -> 40[0] [send] via NET/IBext_v8/7": {"33-40": "NET/IBext_v8/7"},
    "[1,6]<stdout>:a:3:7 [6] NCCL INFO Channel 03 : 15[a01d0] -> 6[a01c0] [receive] via NET/AWS Libfabric/3/GDRDMA": {
        "6-15": "NET/AWS Libfabric/3/GDRDMA"
    },
    "a:1:2 [0] NCCL INFO Channel 00/24 :    0   1": {},
    "a:1:2 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1": {},
    "a:1:2 [1] NCCL INFO Trees [0] -1/-1/-1->1->0 [1] 0/3/-1->1->-1": {},
    "a:1:2 [6] NCCL INFO a:3:4 [7] NCCL INFO Ring 04 : 7[7] -> 3[3] via P2P/IPC": {"3-7": "P2P/IPC"},  # two writers
    "Ring 04 : 6[6] -> 5[5] via P2P/IPC": {},  # the rest of the first of them
    "epoch 1 via SHM": {},
}
RECORDED = {  # logs of GPU machines in golden/recordings
    "aws_p5_two_nodes": {"all": "NVLS"},
    "hgx_ring_and_tree": {"0-7": "P2P/IPC", "0-1": "P2P/IPC"},  # NVLS is set up, and NCCL_ALGO keeps NCCL from using it
    "sharp_connected": {"all": "COLLNET/SHARP/1/GDRDMA + COLLNET/SHARP/1/GDRDMA(PCI) + COLLNET/SHARP/5/GDRDMA"},
    "sharp_failed": {"0-1": "P2P/CUMEM/read", "0-7": "NET/IBext_v8/1(6)/GDRDMA + NET/IBext_v8/1/GDRDMA"},
}
ALLOWED = {  # NCCL_ALGO: whether NVLS and COLLNET may be used
    "Ring": (False, False), "NVLS,Tree": (True, False), "^NVLS,NVLSTree": (False, True),
    "allreduce:nvlstree;allgather:ring": (True, False), "CollnetDirect": (False, True), "^ring": (True, True),
}  # fmt: skip


def test_transports_in_the_logs_of_nccl_and_their_pairs():
    for line, transports in LINES.items():
        assert nccl_log.parse_transports([line]) == nccl_log.parse_transports([f"{line}\r"]) == transports, line
    folder = ROOT / "tests/golden/recordings"
    assert {name: nccl_log.read_transports([folder / f"nccl_{name}.log"]) for name in RECORDED} == RECORDED
    # Multicast through NVSwitch is one of all pairs; that it is available says nothing.
    for line, found in {
        "h1:1795:1795 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 24)": {},
        "h1:4227:4228 [3] NCCL INFO NVLS comm 0x5598478b07c0 headRank 1 nHeads 8 buffSize 4194304": {"all": "NVLS"},
        "[1,3]<stdout>:test-nccl-efa-worker-0:23:75 [3] NCCL INFO Connected NVLS tree": {"all": "NVLS"},
    }.items():
        assert nccl_log.parse_transports([line, *LINES]) == nccl_log.parse_transports(LINES) | found
    for algorithms, allowed in ALLOWED.items():
        assert (*(nccl_log.allows_transport(algorithms, name) for name in ("NVLS", "COLLNET")),) == allowed
    connections = [(10, 2, "SHM/direct/direct"), (0, 1, "NET/IB/1"), (2, 3, "P2P/IPC")]
    connections += [(1, 0, "NET/IB/0"), (0, 1, "NET/IB/1")]
    lines = [f"a [0] NCCL INFO Channel 00/0 : {a}[0] -> {b}[1] via {transport}" for a, b, transport in connections]
    found = nccl_log.parse_transports(lines)
    assert list(found.items()) == [("0-1", "NET/IB/0 + NET/IB/1"), ("2-3", "P2P/IPC"), ("2-10", "SHM/direct/direct")]
    assert nccl_log.summarize_transports(found) == "NET/IB/0 + NET/IB/1 + P2P/IPC + SHM/direct/direct"
    assert nccl_log.summarize_transports(None) is None


def test_logs_are_read_together_up_to_a_limit(monkeypatch, tmp_path):
    logs = [tmp_path / f"rank{rank}.log" for rank in range(3)]
    line = b"a [0] NCCL INFO Channel 00/0 : %d[0] -> %d[1] via P2P/IPC\n"
    logs[0].write_bytes(b"\xff\xfe no text\n" + line % (0, 1))
    logs[1].write_bytes(line % (1, 2) + b"x" * 1000 + b"\n" + line % (2, 3))
    assert nccl_log.read_transports(logs) == {"0-1": "P2P/IPC", "1-2": "P2P/IPC", "2-3": "P2P/IPC"}
    monkeypatch.setattr(nccl_log, "MAX_LOG_BYTES", 1000)
    assert nccl_log.read_transports(logs) == {"0-1": "P2P/IPC", "1-2": "P2P/IPC"}
    assert nccl_log.read_transports([logs[2], tmp_path]) is None


# Tera FLOP/s of float32, tf32, bfloat16, float16
PEAKS = {  # one for each way in which names differ; names without NVIDIA in front are of drivers before 470
    "NVIDIA A100-SXM4-40GB": (19.5, 156, 312, 312), "A100-SXM4-80GB": (19.5, 156, 312, 312),
    "NVIDIA A100 80GB PCIe": (19.5, 156, 312, 312), "NVIDIA H100 80GB HBM3": (67, 494.5, 989, 989),
    "NVIDIA H100 PCIe": (51, 378, 756, 756), "NVIDIA H200 NVL": (60, 417.5, 835, 835),
    "NVIDIA GeForce RTX 4090": (82.6, 82.6, 165.2, 165.2), "GeForce RTX 2080 Ti": (13.4, None, None, 53.8),
    "Quadro RTX 6000": (16.3, None, None, 130.5), "NVIDIA RTX 6000 Ada Generation": (91.06, 182.12, 364.24, 364.24),
    "Tesla V100-SXM2-16GB": (15.7, None, None, 125), "Tesla P100-SXM2-16GB": (10.6, None, None, 21.2),
    "GeForce GTX 1080 Ti": (11.34, None, None, None), "Tesla K80": (4.37, None, None, None),
}  # fmt: skip
UNLISTED = [
    None, "", "NVIDIA", "NVIDIA H100 MIG 1g.10gb", "NVIDIA A100-SXM-64GB", "NVIDIA GeForce RTX 2080 Ti Laptop GPU",
    "NVIDIA H100 NVL", "NVIDIA H800", "NVIDIA A10G", "NVIDIA A30", "TITAN V", "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3080 Laptop GPU", "Tesla V100-FHHL-16GB", "MI300X",
]  # fmt: skip


def test_dense_peaks_by_the_name_of_the_driver():
    for name, peaks in PEAKS.items():
        for precision, tera in zip(("float32", "tf32", "bfloat16", "float16"), peaks, strict=True):
            assert find_peak_flops(name, precision) == (None if tera is None else pytest.approx(tera * 1e12)), name
    assert [name for name in UNLISTED if find_peak_flops(name, "float32") is not None] == []
    for precision in (None, "", "float64", "tf32+float64"):
        assert find_peak_flops("NVIDIA A100-SXM4-40GB", precision) is None
    assert find_peak_flops("NVIDIA A100-SXM4-40GB", "bfloat16+float32") == 312e12, "of several the fastest counts"
    # No pattern shadows another: each alternative without options is the complete name of one entry alone.
    for pattern in read_peaks():
        if re.escape(pattern).replace("\\ ", " ") == pattern:
            assert [each for each in read_peaks() if re.fullmatch(each, pattern)] == [pattern]
