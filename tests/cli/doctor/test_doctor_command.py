"""`scalebench doctor`: the facts of a machine, each in one line, and the commands for what is missing."""

import dataclasses

import pytest

from scalebench.__main__ import main
from scalebench.cli.commands import doctor
from scalebench.cli.commands.doctor import cuda_check
from scalebench.config import horovod_build
from scalebench.config.horovod_build import HorovodBuild
from scalebench.core.machine import cuda_builds, machine, private_network
from scalebench.core.machine.gpus import Gpu
from scalebench.strategies import registry
from tests.builders.runs import MACHINE

HERE = dataclasses.replace(MACHINE, os="Linux-6", versions={"torch": "2.13.0+cpu", "numpy": "2.4.6"})
GPUS = [
    Gpu(0, "NVIDIA H100", "GPU-a", 80 * 2**30, 1980, 2619, 700.0, 0, "0"),
    Gpu(1, None, None, None, None, None, None, None, None),
]
BUILDS = {
    "torch": HorovodBuild("0.28.1", "2.13.0+cpu", ("mpi", "gloo"), None),
    "tensorflow": HorovodBuild("0.28.1", "2.20.0", (), "it was built for tensorflow 2.20.0"),
}


@pytest.fixture
def run_command(monkeypatch, capsys):
    """The doctor's lines for a machine where some packages are missing, without mpirun and sbatch."""
    monkeypatch.setattr(horovod_build, "inspect_horovod", BUILDS.__getitem__)
    monkeypatch.setattr(horovod_build, "detect_framework_version", lambda name: "1")
    monkeypatch.setattr(private_network, "find_kernel_problem", lambda: None)

    def message(here=HERE, missing=(), programs="/nowhere"):
        monkeypatch.setattr(machine, "detect_machine", lambda: here)
        monkeypatch.setattr(registry, "missing_packages", lambda names: [name for name in names if name in missing])
        monkeypatch.setenv("PATH", programs)
        assert main(["doctor"]) == 0
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]

    return message


def test_a_machine_without_a_gpu(run_command):
    assert run_command() == [
        "machine 2 x a processor cores, 8 GiB, no GPU",
        "system Linux-6, Python 3.11",
        "packages torch 2.13.0+cpu, numpy 2.4.6",
        "MPI no mpirun on the PATH: apt-get install openmpi-bin",
        "SLURM no sbatch on the PATH: runs start here, or on hardware.hosts; hardware.slurm.bin names its folder",
        "Horovod Horovod 0.28.1 with PyTorch 2.13.0+cpu: MPI, Gloo (no NCCL)",
        "Horovod 0.28.1 with TensorFlow: no (it was built for tensorflow 2.20.0)",
        "listening runs on this machine: the loopback only, while a run lasts; "
        "TensorFlow's servers and MPI have a network of their own",
        "runs on several hosts: for all who reach these hosts, while a run lasts; docs/guides/cluster.md",
    ]


def test_a_machine_without_networks_of_their_own(run_command, monkeypatch):
    monkeypatch.setattr(private_network, "find_kernel_problem", lambda: "not here")
    (line,) = (line for line in run_command() if line.startswith("listening"))
    assert "(not here): MPI listens on all interfaces" in line and line.endswith("strategy.options.open_port=true")


def test_a_machine_with_gpus(run_command, monkeypatch):
    monkeypatch.setattr(cuda_check, "describe_torch_build", lambda host: "")  # imports PyTorch
    here = dataclasses.replace(
        HERE, gpus=GPUS, topology=[["X", "NV18"], ["NV18", "X"]], driver_version="580.1", container="docker"
    )
    lines = run_command(here)
    assert lines[1:8] == [
        "processors a processor",
        "GPU 0 NVIDIA H100, 80 GiB, 700 W, NUMA node 0, SM up to 1980 MHz, memory up to 2619 MHz",
        "GPU 1 unknown GPU",
        "driver 580.1, CUDA up to unknown",
        "NV18 pairs 0-1",
        "compare them scalebench --multirun 'hardware.device_ids=[0,1]'",
        "system Linux-6, Python 3.11, in docker",
    ]
    assert lines[-4] == "links GPU 0 GPU 1"
    assert lines[-2:] == ["GPU 0 X NV18", "GPU 1 NV18 X"]


TORCH = """
import sys, types
__version__, version = "2.13.0+cu130", types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(is_available=lambda: {is_available})
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "sm_75 sm_90")
{code}
"""
CUDA_LINES = {
    "fits": (True, "", "9.0", "2.13.0+cu130 has code for sm_75 sm_90; driver 535.1, compute capability 9.0"),
    "driver": (False, "", "9.0", "2.13.0+cu130 needs NVIDIA driver 580 or newer, and 535.1 is installed: "),
    "capability": (True, "", "7.0", "2.13.0+cu130 has no code for compute capability 7.0, only for sm_75"),
    "import": (True, "raise ImportError('undefined symbol')", "7.0", "does not import: ImportError: undef"),
}


@pytest.mark.gpu
@pytest.mark.parametrize(("is_available", "code", "capability", "line"), CUDA_LINES.values(), ids=list(CUDA_LINES))
def test_pytorch_beside_driver_and_gpus(is_available, code, capability, line, run_command, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(TORCH.format(is_available=is_available, code=code))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    gpu = dataclasses.replace(GPUS[0], compute_capability=capability)
    here = dataclasses.replace(HERE, gpus=[gpu], driver_version="535.1")
    lines = run_command(here)
    assert [text for text in lines if text.startswith(f"CUDA PyTorch {line}")], lines
    assert f"compute capability {capability}" in lines[2]


@pytest.mark.gpu
def test_the_owners_of_nccl_and_cudnn(run_command, monkeypatch):
    here = dataclasses.replace(HERE, gpus=GPUS)
    monkeypatch.setattr(cuda_check, "describe_torch_build", lambda host: "")
    owners = {"nvidia/nccl/lib/libnccl.so.2": ["nccl-cu13 2"], "nvidia/cudnn/lib/libcudnn.so.9": ["cudnn-cu13 9"]}
    monkeypatch.setattr(cuda_builds, "find_library_owners", lambda: owners)
    assert "NCCL, cuDNN nccl-cu13 2, cudnn-cu13 9" in run_command(here)
    owners["nvidia/nccl/lib/libnccl.so.2"].append("nccl-cu12 2")
    (line,) = (line for line in run_command(here) if line.startswith("NCCL, cuDNN"))
    assert line.startswith("NCCL, cuDNN nccl-cu13 2 and nccl-cu12 2 both own nvidia/nccl/lib/libnccl.so.2")


def test_a_missing_package_has_its_install_command(run_command, monkeypatch):
    """Horovod is described for installed frameworks only."""
    lines = run_command(missing=("torch", "horovod", "PIL"))
    assert [line for line in lines if line.startswith(("missing", "Horovod"))] == [
        "missing PIL: pip install 'scalebench-train[images]'",
        "missing horovod: scalebench install horovod",
        "missing torch: pip install 'scalebench-train[torch]'",
        "Horovod not installed: scalebench install horovod",
    ]
    monkeypatch.setattr(horovod_build, "detect_framework_version", {"torch": "1"}.get)
    assert not [line for line in run_command() if "with TensorFlow" in line]


SILENT = "printf 'sbatch: error: a\\nsbatch: fatal: no configuration\\n' >&2; exit 1"


@pytest.mark.parametrize(
    ("name", "script", "message"),
    [
        ("mpirun", "#!/bin/sh\necho; echo ' mpirun (Some MPI) 9 '; echo more", "MPI mpirun (Some MPI) 9"),
        ("mpirun", "#!/bin/sh\necho on stderr >&2", "MPI on stderr"),
        ("mpirun", "#!/bin/sh\nexit 3", "MPI mpirun prints no version"),
        ("mpirun", "#!/bin/sh\nexec /bin/sleep 60", "MPI mpirun does not answer: "),
        ("sbatch", "no program", "SLURM sbatch does not answer: "),
        ("sbatch", f"#!/bin/sh\n{SILENT}", "SLURM sbatch does not answer: no configuration"),
    ],
)
def test_launchers_show_their_version(run_command, tmp_path, monkeypatch, name, script, message):
    monkeypatch.setattr(doctor, "MAX_ANSWER_S", 0.5 if "sleep" in script else 30.0)
    (tmp_path / name).write_text(f"{script}\n")
    (tmp_path / name).chmod(0o755)
    assert [line for line in run_command(programs=str(tmp_path)) if line.startswith(message)]
