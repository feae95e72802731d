"""Which CUDA builds of PyTorch and TensorFlow fit a machine, and the check of those that are installed."""

import importlib

import pytest

from scalebench.core.errors import InputError
from scalebench.core.machine import cuda_builds

pytestmark = pytest.mark.gpu
CU130, CU126 = (f"https://download.pytorch.org/whl/{name}" for name in ("cu130", "cu126"))
CU130_CODE = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120".split()
CU126_CODE = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90".split()


# Driver and compute capabilities: the index, or why no build fits.
CHOICES = [
    ("580.65.06", [(9, 0)], CU130),
    ("580.65.06", [], CU130),
    (None, [], CU130),
    ("590.1", [(8, 9), (12, 1)], CU130),
    ("570.86.15", [(9, 0)], CU126),
    ("525.60.13", [(8, 0)], CU126),
    ("580.65.06", [(7, 0)], CU126),  # V100
    ("580.65.06", [(9, 0), (6, 1)], CU126),
    ("535.183.01", [(5, 2)], CU126),  # M60
    ("470.82.01", [(8, 0)], "with NVIDIA driver 470.82.01: update it to 525 or newer, or set SCALEBENCH_GPU=no"),
    ("570.86.15", [(10, 0)], "with NVIDIA driver 570.86.15: update it to 580 or newer"),
    ("525.60.13", [(3, 7)], "on GPUs of compute capability 3.7: set SCALEBENCH_GPU=no"),  # K80
    ("580.65.06", [(12, 0), (7, 0), (7, 0)], "on GPUs of compute capability 7.0 and 12.0"),
]


def test_the_build_is_the_newest_that_driver_and_all_gpus_allow():
    for driver, capabilities, answer in CHOICES:
        if answer in (CU130, CU126):
            assert cuda_builds.choose_torch_build(driver, capabilities).index == answer
        else:
            with pytest.raises(InputError, match=f"no CUDA build of PyTorch runs {answer}"):
                cuda_builds.choose_torch_build(driver, capabilities)


def test_nvidia_smi_is_read_and_the_variables_come_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    smi = tmp_path / "nvidia-smi"
    is_old = 'case "$1" in *compute_cap*) echo "Field \\"compute_cap\\" is not a valid field"; exit 2;; esac\n'
    for script, answer in {
        "echo '580.65.06, [N/A]'": ("580.65.06", []),
        f"{is_old}echo 470.82.01": ("470.82.01", []),
        "echo 'No devices were found'": None,
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18": None,
        "echo '535.183.01, 7.0'; echo '535.183.01, 8.0'": ("535.183.01", [(7, 0), (8, 0)]),
    }.items():
        smi.write_text(f"#!/bin/sh\n{script}\n")
        smi.chmod(0o755)
        assert cuda_builds.read_nvidia_smi() == answer
    for here, by_itself, wanted in ((True, CU126, CU126), (False, cuda_builds.CPU_INDEX, CU130)):
        if not here:
            smi.unlink()
            assert cuda_builds.read_nvidia_smi() is None
        chosen = cuda_builds.choose_index({}), cuda_builds.choose_index({"SCALEBENCH_GPU": "yes"})
        assert chosen == (by_itself, wanted)
        assert cuda_builds.choose_index({"SCALEBENCH_GPU": "no"}) == cuda_builds.CPU_INDEX
        assert cuda_builds.choose_index({"SCALEBENCH_TORCH_INDEX": "https://mirror/cu126"}) == "https://mirror/cu126"
        with pytest.raises(InputError, match="SCALEBENCH_GPU=1 should be yes or no"):
            cuda_builds.choose_index({"SCALEBENCH_GPU": "1"})


@pytest.mark.parametrize(
    ("torch_cuda", "requirement"),
    [(None, "tensorflow-cpu==2.21.0"), ("12.6", "tensorflow[and-cuda]==2.21.0"), ("13.0", "tensorflow-cpu==2.21.0")],
)
def test_tensorflow_for_gpus_only_beside_pytorch_of_its_cuda(capsys, monkeypatch, torch_cuda, requirement):
    chosen, remark = cuda_builds.choose_tensorflow(torch_cuda, "2.21.0")
    assert (chosen, remark is not None) == (requirement, torch_cuda == "13.0")
    monkeypatch.setattr(cuda_builds, "detect_torch_cuda", lambda: torch_cuda)
    assert cuda_builds.main(["tensorflow", "2.21.0"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{requirement}\n"
    assert ("pip install 'scalebench-train[tensorflow_cuda]'" in err) == (torch_cuda == "13.0")


def test_an_installed_pytorch_is_checked_against_driver_and_gpu():
    for cuda, code, driver, capability in (
        ("13.0", CU130_CODE, None, (9, 0)),
        ("13.0", CU130_CODE, None, (8, 9)),  # by sm_86
        ("13.0", CU130_CODE, None, (12, 1)),
        ("13.0", CU130_CODE, "580.65.06", (9, 0)),
        ("13.0", [], None, (7, 0)),  # unknown: CUDA decides
        ("12.6", CU126_CODE, None, (7, 0)),
        ("12.6", ["sm_90a"], None, (9, 0)),
        ("12.6", ["sm_80", "sm_90a"], None, (8, 9)),
    ):
        assert cuda_builds.find_torch_problem("2.13.0+cu130", cuda, code, driver, [capability]) is None
    for cuda, code, driver, capability, message, index in (
        ("13.0", CU130_CODE, "535.183.01", (8, 0), "needs NVIDIA driver 580 or newer, and 535.183.01 is in", CU126),
        ("13.0", CU130_CODE, None, (7, 0), "has no code for compute capability 7.0, only for sm_75 ", CU126),
        ("12.6", CU126_CODE, None, (12, 0), "has no code for compute capability 12.0", CU130),
        ("12.6", ["sm_90a"], None, (10, 0), "has no code", CU130),
        (None, [], "580.65.06", (9, 0), "is a build without CUDA", CU130),
    ):
        problem = cuda_builds.find_torch_problem("2.13.0+cu130", cuda, code, driver, [capability])
        assert problem.startswith(f"PyTorch 2.13.0+cu130 {message}")
        assert problem.endswith(f": pip install --force-reinstall torch --index-url {index}")


def test_two_packages_that_own_the_same_library_are_a_problem(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def put_package(name, version, *files):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        importlib.invalidate_caches()  # A folder that changes twice within a tick of the clock would look unchanged.

    nccl, cudnn = "nvidia/nccl/lib/libnccl.so.2", "nvidia/cudnn/lib/libcudnn.so.9"
    put_package("nvidia-nccl-cu13", "2.29.7", nccl, "nvidia/__init__.py")
    put_package("nvidia-cudnn-cu13", "9.20.0", cudnn)
    put_package("nvidia-cudnn-cu12", "9.10.2", f"nvidia/cu12/{cudnn}")
    assert cuda_builds.find_library_conflict() is None
    put_package("nvidia-nccl-cu12", "2.27.7", nccl, "nvidia/__init__.py")
    assert cuda_builds.find_library_owners()[nccl] == ["nvidia-nccl-cu12 2.27.7", "nvidia-nccl-cu13 2.29.7"]
    owners = "nvidia-nccl-cu12 2.27.7 and nvidia-nccl-cu13 2.29.7"
    assert cuda_builds.find_library_conflict().startswith(f"{owners} both own {nccl}, ")
