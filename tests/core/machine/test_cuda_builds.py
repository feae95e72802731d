"""The check of the CUDA builds of PyTorch and TensorFlow that are installed."""

import importlib

import pytest

from scalebench.core.machine import cuda_builds

pytestmark = pytest.mark.gpu
CU130_CODE = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120".split()
CU126_CODE = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90".split()


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
    for cuda, code, driver, capability, message in (
        ("13.0", CU130_CODE, "535.183.01", (8, 0), "needs NVIDIA driver 580 or newer, and 535.183.01 is in"),
        ("13.0", CU130_CODE, None, (7, 0), "has no code for compute capability 7.0, only for sm_75 "),
        ("12.6", CU126_CODE, None, (12, 0), "has no code for compute capability 12.0"),
        ("12.6", ["sm_90a"], None, (10, 0), "has no code"),
        (None, [], "580.65.06", (9, 0), "is a build without CUDA"),
    ):
        problem = cuda_builds.find_torch_problem("2.13.0+cu130", cuda, code, driver, [capability])
        assert problem.startswith(f"PyTorch 2.13.0+cu130 {message}")
        assert problem.endswith(f": {cuda_builds.TORCH_REMEDY}")


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
