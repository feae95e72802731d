"""What Horovod is built for: the frameworks, MPI, compilers and GPUs that are there, and what may be installed."""

import shutil
import subprocess

import pytest

from scalebench.cli.commands.install import HOROVOD_SCRIPT
from tests.builders.horovod_install import BUILT, COMPILER, MPI, THERE
from tests.builders.horovod_install import home as home

SMI = {"nvidia-smi": "echo 'GPU 0: some GPU'"}


def nvcc(version):
    return {"nvcc": f"echo 'Cuda compilation tools, release {version}, V{version}.88'"}


GPU = {**SMI, **nvcc("13.0")}


def test_both_frameworks_and_a_compiler_of_ones_own(home):
    home.programs(COMPILER, MPI, {"my-c++": "exit 0"})
    home.site.distribution("tensorflow", "2.21.0")
    home.site.horovod({"pytorch": "2.13.0+cpu", "tensorflow": "2.21.0"})
    status, out, _ = home.install(HOROVOD_WITH_MPI="0", CXX="my-c++")
    assert (status, out[1:]) == (0, [BUILT, BUILT.replace("PyTorch 2.13.0+cpu", "TensorFlow 2.21.0")])
    environment = home.environment_of_build()
    assert (environment["HOROVOD_WITH_TENSORFLOW"], environment["SCALEBENCH_CXX"]) == ("1", "my-c++")
    assert environment["CXX"].endswith("horovod_cxx.sh")


NO_MPI = "Horovod with Gloo alone, since there is no MPI: apt-get install openmpi-bin libopenmpi-dev, "
NO_MPI += "then scalebench install horovod"


@pytest.mark.parametrize(
    ("there", "variables", "note"),
    [
        pytest.param({"apt-get": "exit 1", "id": "echo 0"}, {"SCALEBENCH_APT": "no"}, NO_MPI, marks=pytest.mark.slow),
        ({"apt-get": "exit 1", "id": "echo 0"}, {}, NO_MPI),
        pytest.param({"apt-get": "exit 1", "id": "echo 1000"}, {}, NO_MPI, marks=pytest.mark.slow),  # there is no sudo
        ({"apt-get": "exit 1", "id": "echo 1000", "sudo": "exit 1"}, {}, NO_MPI),  # it asks for a password
        (MPI, {"HOROVOD_WITHOUT_MPI": "1"}, "Horovod without MPI, as HOROVOD_WITHOUT_MPI=1 asks"),
    ],
)
def test_without_mpi_the_gloo_part_is_built(home, there, variables, note):
    home.programs(COMPILER, there)
    home.site.horovod({"pytorch": "2.13.0+cpu"}, "gloo")
    status, out, err = home.install(**variables)
    assert (status, err, out[-1]) == (0, [], "Horovod 0.28.1 with PyTorch 2.13.0+cpu: Gloo (no MPI, NCCL)")
    tried = there.get("id") == "echo 0" and not variables
    assert out[:-2] == (["installing openmpi-bin libopenmpi-dev with apt-get"] if tried else []) + [note]
    assert "nompi" in out[-2]
    assert home.environment_of_build()["HOROVOD_WITHOUT_MPI"] == "1"


@pytest.mark.parametrize("user", ["0", "1000"])
def test_missing_packages_are_installed_where_that_is_allowed(home, user):
    apt_get = f"""echo "$USED $*" >>"$FAKE_HOME/apt.log"
for name in mpicxx g++ cmake make; do
  case "$*" in *install*"$name"*|*install*libopenmpi-dev*) echo '#!/bin/sh' >"{home.bin}/$name" ;; esac
  [ ! -e "{home.bin}/$name" ] || /bin/chmod +x "{home.bin}/$name"
done"""
    home.programs({"apt-get": apt_get, "id": f"echo {user}", "mpirun": MPI["mpirun"]})
    home.programs({"sudo": 'shift; USED=sudo exec "$@"'})
    status, out, err = home.install()
    assert (status, err, out[-1]) == (0, [], BUILT)
    assert out[0] == "installing openmpi-bin libopenmpi-dev with apt-get"
    used = [line.split(" ", 1) for line in (home.folder / "apt.log").read_text().splitlines()]
    assert {who for who, _ in used} == {"" if user == "0" else "sudo"}
    assert used[0][1].endswith("update") and used[1][1].endswith("openmpi-bin libopenmpi-dev")


def test_nccl_where_everything_for_it_is_there(home):
    home.programs(COMPILER, MPI, GPU)
    home.site.torch("2.13.0+cu130", "13.0")
    home.site.distribution("tensorflow", "2.21.0")
    home.site.horovod({"pytorch": "2.13.0+cu130"}, "mpi gloo nccl")
    (home.folder / "nccl.h").touch()
    status, out, _ = home.install(HOROVOD_NCCL_INCLUDE=str(home.folder))
    assert (status, out[-1]) == (0, "Horovod 0.28.1 with PyTorch 2.13.0+cu130: MPI, Gloo, NCCL")
    assert out[0].startswith("Horovod without TensorFlow, with which the GPU operations do not compile")
    reported = home.environment_of_build()
    assert (reported["HOROVOD_GPU_OPERATIONS"], reported["HOROVOD_WITHOUT_TENSORFLOW"]) == ("NCCL", "1")
    assert reported["NVCC_APPEND_FLAGS"] == "-std=c++17"
    # Without a GPU in sight, as while an image is built, it has to be asked for.
    (home.bin / "nvidia-smi").unlink()
    variables = {"HOROVOD_NCCL_INCLUDE": str(home.folder)}
    assert home.install(HOROVOD_GPU_OPERATIONS="NCCL", **variables) == THERE
    home.site.horovod({"pytorch": "2.13.0+cu130", "tensorflow": "2.21.0"})
    assert home.install(**variables)[0] == 0 and "HOROVOD_GPU_OPERATIONS" not in home.environment_of_build()
    home.programs(GPU)
    assert home.install(HOROVOD_GPU_OPERATIONS="none", **variables) == THERE
    shutil.rmtree(home.wheels)
    home.stamp.unlink()
    home.install(HOROVOD_GPU_OPERATIONS="none", **variables)
    assert "HOROVOD_GPU_OPERATIONS" not in home.environment_of_build()


OTHER_NVCC = "nvcc of CUDA 13 as PyTorch 2.13.0+cu130 ({}/nvcc is of CUDA 12.4; "
OTHER_NVCC += "HOROVOD_CUDA_HOME=/usr/local/cuda-13.0 names another)"


@pytest.mark.gpu
@pytest.mark.parametrize(("compiler", "operations"), [("13.2", "none"), ("12.4", "auto"), (None, "none")])
def test_horovod_is_built_for_cuda_with_the_nvcc_of_pytorch_alone(home, compiler, operations):
    """Its CUDA code is compiled wherever PyTorch has CUDA, also without GPU operations; NCCL is refused at once."""
    home.programs(COMPILER, MPI, SMI, nvcc(compiler) if compiler else {})
    home.site.torch("2.13.0+cu130", "13.0")
    home.site.horovod({"pytorch": "2.13.0+cu130"}, "mpi gloo cuda")
    needs = OTHER_NVCC.format(home.bin) if compiler else "nvcc"
    if compiler == "12.4":
        (home.folder / "nccl.h").touch()
        (err,) = home.install(HOROVOD_GPU_OPERATIONS="NCCL", HOROVOD_NCCL_INCLUDE=str(home.folder))[2]
        assert err == f"Horovod was not installed: HOROVOD_GPU_OPERATIONS=NCCL needs {needs}" and home.builds() == 0
    nowhere = {"HOROVOD_NCCL_INCLUDE": "/nowhere", "CUDA_HOME": "/nowhere"}
    status, out, _ = home.install(HOROVOD_GPU_OPERATIONS=operations, **nowhere)
    environment = home.environment_of_build()
    assert status == 0 and environment["NVCC_APPEND_FLAGS"] == "-std=c++17"
    assert (".build-" in environment["PYTHONPATH"]) == (compiler != "13.2"), "where it is hidden"
    if compiler == "13.2":
        assert environment["CUDA_HOME"] == environment["HOROVOD_CUDA_HOME"] == str(home.folder)
    else:
        assert out[0] == f"Horovod for training on CPUs alone; on GPUs it needs {needs}"


@pytest.mark.gpu
@pytest.mark.parametrize(("choice", "is_built"), [("yes", True), ("no", False)])
def test_the_variable_stands_in_for_nvidia_smi(home, choice, is_built):
    """An image is built, and a login node installs, where no GPU is in sight."""
    home.programs(COMPILER, MPI, nvcc("13.0"), SMI if choice == "no" else {})
    home.site.torch("2.13.0+cu130", "13.0")
    home.site.horovod({"pytorch": "2.13.0+cu130"}, "mpi gloo nccl cuda")
    (home.folder / "nccl.h").touch()
    assert home.install(SCALEBENCH_GPU=choice, HOROVOD_NCCL_INCLUDE=str(home.folder))[0] == 0
    assert ("HOROVOD_GPU_OPERATIONS" in home.environment_of_build()) == is_built


def test_what_is_missing_is_named(home):
    home.programs(COMPILER, MPI, SMI)
    variables = {"HOROVOD_CUDA_HOME": "/nowhere"}
    status, out, _ = home.install(**variables)
    assert status == 0 and out[0].startswith("Horovod without NCCL, which needs nccl.h, a CUDA build of PyTorch")
    refused = "Horovod was not installed: "
    for more, message in (
        ({"HOROVOD_GPU_OPERATIONS": "NCCL"}, "HOROVOD_GPU_OPERATIONS=NCCL needs nccl.h, a CUDA build of PyTorch"),
        ({"HOROVOD_GPU_OPERATIONS": "DDL"}, "HOROVOD_GPU_OPERATIONS=DDL should be NCCL or none"),
        ({"SCALEBENCH_GPU": "perhaps"}, "SCALEBENCH_GPU=perhaps should be yes or no"),
        ({"SCALEBENCH_PYTHON": "/nowhere/python"}, "there is no /nowhere/python"),
    ):
        status, _, (err,) = home.install(**variables, **more)
        assert status == 1 and err.startswith(f"{refused}{message}")
    shutil.rmtree(home.site.folder / "torch")
    shutil.rmtree(home.site.folder / "torch-2.13.0.dist-info")
    status, _, (err,) = home.install()
    assert status == 1 and err.endswith("has neither PyTorch nor TensorFlow: pip install 'scalebench-train[torch]'")


def test_the_compiler_is_asked_for_another_standard_and_no_debug_symbols(home):
    home.programs({"cxx": 'printf "%s\\n" "$@"'})
    arguments = ["-std=c++14", "-g", "-DX=a b", "-std=c++11", "x/xla_mpi_ops.cc", "-o", "y"]
    command = [HOROVOD_SCRIPT.with_name("horovod_cxx.sh"), *arguments]
    env = {"PATH": home.environment["PATH"], "SCALEBENCH_CXX": "cxx"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    reported = ["-std=c++17", "-DX=a b", "-std=c++11", "x/xla_mpi_ops.cc", "-UTENSORFLOW_VERSION", "-o", "y"]
    assert done.stdout.splitlines() == reported
