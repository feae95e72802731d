"""The description of the hardware: its facts, limits and unusual values, and how the GPUs are connected."""

import dataclasses
import io

import pytest
from rich.console import Console

from scalebench.__main__ import main
from scalebench.cli.commands import doctor
from scalebench.cli.commands.doctor import cuda_check
from scalebench.core.machine import machine
from scalebench.core.machine.cpus import NumaNode
from scalebench.core.machine.gpus import Gpu
from tests.builders.runs import MACHINE
from tests.nvml_stand_in import parse_matrix, put_in, read_table

PLAIN = Gpu(0, "A100", None, 40 * 2**30, 1410, 1215, 400.0, 0, None, power_limit_default_w=400.0, ecc=True, mig=False)
TOPOLOGY = [["X", "PIX", "SYS"], ["PIX", "X", "SYS"], ["SYS", "SYS", "X"]]
NODES = [NumaNode(0, [0, 1, 2, 3], 64 * 2**30, {}), NumaNode(1, [4, 5, 6, 7], None, {})]


def rows(**changes):
    results = doctor.list_machine_rows(dataclasses.replace(MACHINE, **changes))
    assert len({name for name, _ in results}) == len(results)
    return dict(results)


def drawn(here):
    console = Console(width=200, record=True, color_system=None, file=io.StringIO())
    table = doctor.make_link_table(here)
    assert table is not None
    console.print(table)
    return [" ".join(line.split()) for line in console.export_text().splitlines() if line.strip()]


def test_processors_nodes_and_limits():
    results = rows(
        cpu_sockets=2, cpus_allowed=[0, 1, 2, 5], smt=True, cpu_governors=["performance", "powersave"],
        cpu_max_mhz=3500.4, numa=NODES, cpu_quota=1.5, memory_limit_bytes=3 * 2**29,
        gpus=[PLAIN, dataclasses.replace(PLAIN, index=1)],
    )  # fmt: skip
    assert results["processors"] == (
        "a processor, 2 sockets, CPUs 0-2,5, two or more threads a core, governor performance and powersave, "
        "up to 3500 MHz"
    )
    assert results["NUMA node 0"] == "CPUs 0-2, 64 GiB, GPU 0-1"
    assert results["NUMA node 1"] == "CPUs 5"
    assert results["limits"] == "1.5 CPUs' worth of time, 1.5 GiB of memory"
    assert rows(numa=NODES, cpus_allowed=[0])["NUMA node 1"] == "no CPU for this process"
    assert "NUMA node 0" not in rows(numa=NODES[:1])
    assert rows() == {"machine": "2 x a processor cores, 8 GiB, no GPU"}, "nothing else is known"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"power_limit_w": 250.0}, "250 W instead of 400 W"),
        ({"sm_clock_application_mhz": 1200, "sm_clock_default_mhz": 1095}, "SM up to 1410 MHz (set to 1200)"),
        ({"mem_clock_application_mhz": 1215, "mem_clock_default_mhz": 1215}, "memory up to 1215 MHz"),
        (
            {"pcie_generation": 3, "pcie_generation_max": 4, "pcie_width": 8, "pcie_width_max": 16},
            "PCIe 4 x16 (now 3 x8)",
        ),
        ({"pcie_generation": 4, "pcie_generation_max": 4, "pcie_width": 16, "pcie_width_max": 16}, "PCIe 4 x16"),
        ({"mig": True}, "MIG"),
        ({"ecc": False}, "no ECC"),
        ({"persistence": False}, "no persistence mode"),
        ({"compute_mode": "exclusive_process"}, "compute mode exclusive_process"),
    ],
)
def test_unusual_facts_of_a_gpu_are_shown(changes, message):
    usual = ["A100", "40 GiB", "400 W", "NUMA node 0", "SM up to 1410 MHz", "memory up to 1215 MHz"]
    words = rows(gpus=[dataclasses.replace(PLAIN, **changes)])["GPU 0"].split(", ")
    new = [word for word in words if word not in usual]
    assert new == ([message] if message not in ("", *usual) else [])


def test_pairs_come_with_the_command_that_compares_them():
    gpus = [dataclasses.replace(PLAIN, index=index) for index in range(3)]
    results = rows(gpus=gpus, topology=TOPOLOGY)
    assert (results["PIX pairs"], results["SYS pairs"]) == ("0-1", "0-2 1-2")
    command = "scalebench --multirun 'hardware.device_ids=[0,1],[0,2]'"
    assert results["compare them"] == command
    assert rows(gpus=gpus, topology=TOPOLOGY, numa=NODES)["compare them"] == f"{command} hardware.bind=numa,far"
    hidden = rows(gpus=gpus, topology=TOPOLOGY, environment={"CUDA_VISIBLE_DEVICES": "2,0"})
    assert "compare them" not in hidden and hidden[""].startswith("CUDA_VISIBLE_DEVICES=2,0: ")
    assert "compare them" not in rows(gpus=gpus[:1], topology=[["X"]])
    many = rows(gpus=gpus, topology=[["X" if a == b else "NV12" for b in range(8)] for a in range(8)])
    assert many["NV12 pairs"] == "0-1 0-2 0-3 0-4 0-5 0-6 0-7 1-2 and 20 more"


def test_pairs_without_peer_access_are_marked():
    read = [["X", "OK", "OK"], ["OK", "X", "CNS"], ["OK", "CNS", "X"]]
    write = [["X", "OK", "NS"], ["OK", "X", "CNS"], ["OK", "CNS", "X"]]
    nvlink = [["X", "NS", "NS"], ["NS", "X", "NS"], ["NS", "NS", "X"]]
    here = dataclasses.replace(MACHINE, topology=TOPOLOGY, peer_access={"read": read, "write": write, "nvlink": nvlink})
    assert drawn(here)[2:] == [
        "GPU 0 X PIX SYS, no peer access (NS)",
        "GPU 1 PIX X SYS, no peer access (CNS)",
        "GPU 2 SYS SYS, no peer access (CNS) X",
    ]
    plain = ["GPU 0 X PIX SYS", "GPU 1 PIX X SYS", "GPU 2 SYS SYS X"]
    assert drawn(dataclasses.replace(here, peer_access=None))[2:] == plain


def test_the_doctor_with_the_stand_in(nvml_library, monkeypatch, capsys):
    put_in(monkeypatch, nvml_library, NVLINKS=0, ANCESTOR=30, P2P=1, MIG_1=1)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(machine, "numa_nodes", lambda: NODES)
    monkeypatch.setattr(doctor, "list_horovod_builds", list)  # imports frameworks, as the next one
    monkeypatch.setattr(cuda_check, "describe_torch_build", lambda host: "")
    assert main(["doctor"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]
    message = {line.partition(",")[0]: line for line in lines}
    assert "MIG" not in message["GPU 0 NVIDIA Stand-in 0"] and ", MIG" in message["GPU 1 NVIDIA Stand-in 1"]
    assert "PCIe 4 x16" in message["GPU 0 NVIDIA Stand-in 0"]
    assert "PHB pairs 0-1" in lines
    assert lines[-2:] == ["GPU 0 X PHB, no peer access (CNS)", "GPU 1 PHB, no peer access (CNS) X"]


@pytest.mark.gpu
@pytest.mark.parametrize("table", ["hgx_h100", "dgx_a100", "dgx1_v100"])
def test_the_doctor_draws_the_matrix_that_nvidia_smi_prints(table, nvml_library, monkeypatch, capsys):
    put_in(monkeypatch, nvml_library, table)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(doctor, "list_horovod_builds", list)
    monkeypatch.setattr(cuda_check, "describe_torch_build", lambda host: "")
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.split()[:1] == ["links"])
    drawn_rows = [line.replace("GPU ", "GPU") for line in lines[begin:]]
    published = parse_matrix("\n".join(read_table(table)["topology"]))
    assert len(published) == 8 and parse_matrix("\n".join(line.strip() for line in drawn_rows)) == published
