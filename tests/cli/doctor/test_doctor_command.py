"""`scalebench doctor`: the facts of a machine, each in one line, its links, and commands for what is missing.

After a wanted change `python -m tests.cli.doctor.test_doctor_command` writes golden/doctor_here.txt anew.
"""

import contextlib
import dataclasses
import io
import re
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from scalebench.__main__ import main
from scalebench.cli.commands import doctor
from scalebench.config import horovod_build
from scalebench.core.machine import cuda_builds, machine, private_network
from scalebench.core.machine.cpus import NumaNode
from scalebench.core.machine.gpus import Gpu
from scalebench.strategies import registry
from tests.builders.runs import MACHINE
from tests.conftest import ROOT
from tests.nvml_stand_in import parse_matrix, put_in, read_table

HERE = dataclasses.replace(MACHINE, os="Linux-6", versions={"torch": "2.13.0+cpu", "numpy": "2.4.6"})
GPUS = [
    Gpu(0, "NVIDIA H100", "GPU-a", 80 * 2**30, 1980, 2619, 700.0, 0, "0"),
    Gpu(1, None, None, None, None, None, None, None, None),
]
BUILDS = {
    "torch": ("Horovod 0.28.1 with PyTorch 2.13.0+cpu: MPI, Gloo (no NCCL)", True),
    "tensorflow": ("Horovod 0.28.1 with TensorFlow: no (it was built for tensorflow 2.20.0)", False),
}


TORCH = """
import sys, types
__version__, version = "2.13.0+cu130", types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(is_available=lambda: {is_available}, get_arch_list=lambda: ["sm_75", "sm_90"])
{code}
"""
OWNERS = {"nvidia/nccl/lib/libnccl.so.2": ["nccl-cu13 2"], "nvidia/cudnn/lib/libcudnn.so.9": ["cudnn-cu13 9"]}
TWO_OWNERS = OWNERS | {"nvidia/nccl/lib/libnccl.so.2": ["nccl-cu13 2", "nccl-cu12 2"]}
LINKED = {"gpus": GPUS, "topology": [["X", "NV18"], ["NV18", "X"]], "driver_version": "580.1", "container": "docker"}
SILENT = "printf 'sbatch: error: a\\nsbatch: fatal: no configuration\\n' >&2; exit 1"


def of_capability(capability):
    return {"gpus": [dataclasses.replace(GPUS[0], compute_capability=capability)], "driver_version": "535.1"}


# A machine: its facts, its programs, its PyTorch, and what else differs. golden/doctor_here.txt has what is printed.
CASES = {
    "a machine without a GPU, mpirun and sbatch": {},
    "without networks of their own": {"kernel_problem": "not here"},
    "with GPUs": {"here": LINKED},
    "PyTorch fits": {"here": of_capability("9.0"), "torch": (True, "")},
    "PyTorch needs another driver": {"here": of_capability("9.0"), "torch": (False, "")},
    "PyTorch lacks the code": {"here": of_capability("7.0"), "torch": (True, "")},
    "PyTorch does not import": {"here": of_capability("7.0"), "torch": (True, "raise ImportError('undefined symbol')")},
    "NCCL and cuDNN": {"here": {"gpus": GPUS}, "owners": OWNERS},
    "two packages own NCCL": {"here": {"gpus": GPUS}, "owners": TWO_OWNERS},
    "missing packages": {"missing": ("torch", "horovod", "PIL")},
    "Horovod is described for installed frameworks only": {"frameworks": {"torch": "1"}},
    "mpirun": {"programs": {"mpirun": "#!/bin/sh\necho; echo ' mpirun (Some MPI) 9 '; echo more"}},
    "mpirun that writes to stderr": {"programs": {"mpirun": "#!/bin/sh\necho on stderr >&2"}},
    "mpirun without a version": {"programs": {"mpirun": "#!/bin/sh\nexit 3"}},
    "mpirun that does not answer": {"programs": {"mpirun": "#!/bin/sh\nexec /bin/sleep 60"}},
    "sbatch that is none": {"programs": {"sbatch": "no program"}},
    "sbatch without a configuration": {"programs": {"sbatch": f"#!/bin/sh\n{SILENT}"}},
}


def run_doctor(
    folder, here=None, programs=None, torch=None, owners=None, missing=(), frameworks=None, kernel_problem=None
):
    for name, script in (programs or {}).items():
        (folder / name).write_text(f"{script}\n")
        (folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(horovod_build, "describe_horovod", BUILDS.__getitem__)
        patch.setattr(horovod_build, "detect_framework_version", (frameworks or dict.fromkeys(BUILDS, "1")).get)
        patch.setattr(private_network, "find_kernel_problem", lambda: kernel_problem)
        patch.setattr(machine, "detect_machine", lambda: dataclasses.replace(HERE, **(here or {})))
        patch.setattr(registry, "missing_packages", lambda names: [name for name in names if name in missing])
        patch.setattr(cuda_builds, "find_library_owners", lambda: owners or {})
        patch.setattr(doctor, "MAX_ANSWER_S", 0.5 if "sleep" in str(programs) else 30.0)
        patch.setenv("PATH", str(folder))
        if torch is None:
            patch.setattr(doctor, "describe_torch_build", lambda host: "")  # imports PyTorch
        else:
            (folder / "torch.py").write_text(TORCH.format(is_available=torch[0], code=torch[1]))
            patch.setenv("PYTHONPATH", str(folder))
        assert main(["doctor"]) == 0
    lines = out.getvalue().replace(str(folder), "BIN").splitlines()
    return "".join(f"{' '.join(line.split())}\n" for line in lines if line.strip())


PLAIN = Gpu(0, "A100", None, 40 * 2**30, 1410, 1215, 400.0, 0, None, power_limit_default_w=400.0, ecc=True, mig=False)
PCIE = {"pcie_generation": 4, "pcie_generation_max": 4, "pcie_width": 16, "pcie_width_max": 16}
TOPOLOGY = [["X", "PIX", "SYS"], ["PIX", "X", "SYS"], ["SYS", "SYS", "X"]]
NODES = [NumaNode(0, [0, 1, 2, 3], 64 * 2**30, {}), NumaNode(1, [4, 5, 6, 7], None, {})]
ACCESS = {
    "read": [["X", "OK", "OK"], ["OK", "X", "CNS"], ["OK", "CNS", "X"]],
    "write": [["X", "OK", "NS"], ["OK", "X", "CNS"], ["OK", "CNS", "X"]],
    "nvlink": [["X", "NS", "NS"], ["NS", "X", "NS"], ["NS", "NS", "X"]],
}


def several(count):
    return [dataclasses.replace(PLAIN, index=index) for index in range(count)]


CORES = {
    "cpu_sockets": 2, "cpus_allowed": [0, 1, 2, 5], "smt": True, "cpu_governors": ["performance", "powersave"],
    "cpu_max_mhz": 3500.4, "cpu_quota": 1.5, "memory_limit_bytes": 3 * 2**29,
}  # fmt: skip
PAIRS = {"gpus": several(3), "topology": TOPOLOGY}
MANY = [["X" if a == b else "NV12" for b in range(8)] for a in range(8)]
# The hardware alone: its facts, limits, unusual values and links.
MACHINES = {
    "nothing else is known": {},
    "processors, NUMA nodes and limits": CORES | {"numa": NODES, "gpus": several(2)},
    "one processor of two nodes": {"numa": NODES, "cpus_allowed": [0]},
    "one NUMA node": {"numa": NODES[:1]},
    "pairs of GPUs": PAIRS,
    "pairs of GPUs on two NUMA nodes": PAIRS | {"numa": NODES},
    "pairs of GPUs, some of them hidden": PAIRS | {"environment": {"CUDA_VISIBLE_DEVICES": "2,0"}},
    "pairs of GPUs without peer access": PAIRS | {"peer_access": ACCESS},
    "a GPU at its full PCIe": {"gpus": [dataclasses.replace(PLAIN, **PCIE)]},
    "one GPU has no pair": {"gpus": several(1), "topology": [["X"]]},
    "many pairs": {"gpus": several(8), "topology": MANY},
    **{
        f"a GPU with {', '.join(changes)}": {"gpus": [dataclasses.replace(PLAIN, **changes)]}
        for changes in (
            {"power_limit_w": 250.0}, {"sm_clock_application_mhz": 1200, "sm_clock_default_mhz": 1095},
            {"mem_clock_application_mhz": 1215, "mem_clock_default_mhz": 1215},
            PCIE | {"pcie_generation": 3, "pcie_width": 8}, {"mig": True}, {"ecc": False},
            {"persistence": False}, {"compute_mode": "exclusive_process"},
        )
    },
}  # fmt: skip


def describe_machine(changes):
    here = dataclasses.replace(MACHINE, **changes)
    lines = [f"{name} {value}" for name, value in doctor.list_machine_rows(here)]
    if (table := doctor.make_link_table(here)) is not None:
        console = Console(width=200, record=True, color_system=None, file=io.StringIO())
        console.print(table)
        lines += console.export_text().splitlines()[2:]
    return "".join(f"{' '.join(line.split())}\n" for line in lines if line.strip())


GOLDEN = ROOT / "tests/golden/doctor_here.txt"


def describe(case, folder):
    return run_doctor(folder, **CASES[case]) if case in CASES else describe_machine(MACHINES[case])


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *MACHINES])
def test_the_facts_of_a_machine_are_one_line_each(case, tmp_path):
    expected = re.findall(r"^== (.*)\n((?:(?!== ).*\n)+)", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE)
    assert describe(case, tmp_path) == dict(expected)[case]


@pytest.fixture
def no_frameworks(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(doctor, "list_horovod_builds", list)
    monkeypatch.setattr(doctor, "describe_torch_build", lambda host: "")


@pytest.mark.gpu
@pytest.mark.parametrize("table", ["hgx_h100", "dgx_a100", "dgx1_v100"])
def test_the_doctor_draws_the_matrix_that_nvidia_smi_prints(table, nvml_library, no_frameworks, monkeypatch, capsys):
    put_in(monkeypatch, nvml_library, table)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.split()[:1] == ["links"])
    drawn_rows = [line.replace("GPU ", "GPU") for line in lines[begin:]]
    published = parse_matrix("\n".join(read_table(table)["topology"]))
    assert len(published) == 8 and parse_matrix("\n".join(line.strip() for line in drawn_rows)) == published


if __name__ == "__main__":
    texts = []
    for case in [*CASES, *MACHINES]:
        with tempfile.TemporaryDirectory() as folder:
            texts.append(f"== {case}\n{describe(case, Path(folder))}")
    GOLDEN.write_text("".join(texts), encoding="utf-8")
