"""The inspection of an installed Horovod: versions, frameworks, transports and problems."""

import importlib.util
import shutil

import pytest

from scalebench.config import horovod_build
from scalebench.core.machine import machine
from tests.builders.horovod_install import Site

BOTH = {"pytorch": "2.13.0+cpu", "tensorflow": "2.21.0"}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """PyTorch 2.13.0+cpu and TensorFlow 2.21.0, and no Horovod yet."""
    made = Site(tmp_path / "site", monkeypatch)
    made.torch("2.13.0+cpu")
    made.distribution("tensorflow", "2.21.0")
    return made


def test_a_build_lists_its_transports(site):
    for holds, message in {
        "mpi gloo": "MPI, Gloo (no NCCL)", "gloo": "Gloo (no MPI, NCCL)", "mpi gloo nccl": "MPI, Gloo, NCCL",
    }.items():  # fmt: skip
        shutil.rmtree(site.folder / "horovod", ignore_errors=True)
        site.horovod(BOTH, holds)
        for framework, version in (("torch", "2.13.0+cpu"), ("tensorflow", "2.21.0")):
            line = f"Horovod 0.28.1 with {horovod_build.FRAMEWORKS[framework]} {version}: {message}"
            assert horovod_build.describe_horovod(framework) == (line, True)


def test_none_is_installed(monkeypatch, site, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = "Horovod is not installed: scalebench install horovod builds it"
    assert horovod_build.find_horovod_problem("torch", "gloo", "local") == line
    assert horovod_build.main(["torch"]) == 1
    assert capsys.readouterr().out == "Horovod is not installed\n"


def test_an_unsuitable_build_is_recognized_without_an_import(site, monkeypatch):
    monkeypatch.setattr(horovod_build, "ask_python", None)
    for framework, built_for, message in (
        ("torch", {"pytorch": "2.12.0"}, "for torch 2.12.0, and 2.13.0+cpu is installed: "),
        # Another build of the same version has other libraries.
        ("torch", {"pytorch": "2.13.0+cu130"}, "for torch 2.13.0+cu130, and 2.13.0+cpu is installed: "),
        ("tensorflow", {"tensorflow": "2.20.0"}, "for tensorflow 2.20.0, and 2.21.0 is installed: "),
        ("torch", {"tensorflow": "2.21.0"}, "without PyTorch: "),
        ("tensorflow", {"pytorch": "2.13.0+cpu"}, "without TensorFlow: HOROVOD_GPU_OPERATIONS=none "),
    ):
        shutil.rmtree(site.folder / "horovod", ignore_errors=True)
        site.horovod(built_for)
        problem = f"Horovod 0.28.1 was built {message}scalebench install horovod rebuilds it"
        assert horovod_build.find_horovod_problem(framework, None, "local") == problem
        assert horovod_build.main([framework]) == 1
    for lost in ("torch/mpi_lib_v2.x.so", "metadata.json"):
        (site.horovod(BOTH) / lost).unlink()
        problem = "Horovod 0.28.1 was built without PyTorch: scalebench install horovod rebuilds it"
        assert horovod_build.find_build_problem("torch") == problem


def test_versions_are_those_that_the_frameworks_report(site):
    """The package index has torch 2.13.0 that reports 2.13.0+cu130, and TensorFlow writes 2.21.0-rc1."""
    site.torch("2.13.0+cu130")
    site.distribution("tensorflow", "2.21.0rc1")
    (site.folder / "tensorflow-2.21.0.dist-info" / "METADATA").unlink()
    (site.folder / "tensorflow-2.21.0.dist-info").rmdir()
    importlib.invalidate_caches()
    site.horovod({"pytorch": "2.13.0+cu130", "tensorflow": "2.21.0-rc1"})
    assert horovod_build.find_build_problem("torch") is horovod_build.find_build_problem("tensorflow") is None


def test_a_failing_import_is_explained(site, monkeypatch):
    anew = "scalebench install horovod rebuilds it"
    for code, message in {
        "raise ImportError('libmpi.so.40: cannot open')\n": "ImportError: libmpi.so.40: cannot open",
        "import os, sys\nprint('x', file=sys.stderr, flush=True)\nos.abort()\n": "exit status -6",
        "import os\nos._exit(0)\n": "exit status 0",
        "import time\ntime.sleep(60)\n": "no answer in 1 s",
    }.items():
        monkeypatch.setattr(horovod_build, "MAX_PROBE_S", 1.0 if "sleep" in code else 60.0)
        site.horovod(BOTH, code=code)
        line = f"Horovod 0.28.1 with PyTorch: no (Horovod 0.28.1 does not import with torch: {message}; {anew})"
        assert horovod_build.describe_horovod("torch") == (line, False)


def test_a_transport_and_a_launcher_have_to_go_together(site):
    site.horovod(BOTH)
    crash = "Horovod's Gloo operations crash under mpirun: use strategy.launcher=local"
    started = "Horovod's MPI operations need processes that mpirun started: use strategy.launcher=mpi"
    for words, problem in {
        ("gloo", "local"): None, ("mpi", "mpi"): None, ("auto", "local"): None, (None, "mpi"): None,
        ("gloo", "mpi"): crash, ("mpi", "local"): started,
    }.items():  # fmt: skip
        assert horovod_build.find_horovod_problem("torch", *words) == problem, words


def test_the_mpirun_on_the_path_is_of_the_mpi_that_horovod_was_built_with(site, monkeypatch):
    """An MPI of another kind starts each rank as a group of its own."""
    extension = site.horovod(BOTH) / "torch" / "mpi_lib_v2.x.so"
    open_mpi, mpich = "mpirun (Open MPI) 4.1.4", "HYDRA build details:"
    for version, library, other in (
        (open_mpi, "libmpi.so.40", None), (mpich, "libmpi.so.12", None), (mpich, "libmpich.so.12", None),
        (mpich, "libmpi.so.40", "MPICH, and Horovod was built with Open MPI: put the mpirun of Open MPI first"),
        ("Intel(R) MPI Library", "libmpi.so.40", "MPICH, and Horovod was built with Open MPI"),
        (open_mpi, "libmpi.so.12", "Open MPI, and Horovod was built with MPICH: put the mpirun of MPICH first"),
        ("a wrapper", "libmpi.so.12", None), (None, "libmpi.so.40", None), (mpich, "libmpi.so", None),
    ):  # fmt: skip
        extension.write_bytes(b"\x7fELF\0\xff" + library.encode() + b"\0libc.so.6")
        monkeypatch.setattr(machine, "mpi_version", lambda version=version: version)
        problem = horovod_build.find_horovod_problem("torch", "mpi", "mpi")
        assert (problem is None) if other is None else problem.startswith(f"the mpirun on the PATH is of {other}")


@pytest.mark.real
def test_the_one_that_is_installed():
    line, is_usable = horovod_build.describe_horovod("torch")
    assert is_usable and "Gloo" in line.partition(" (no ")[0]
