"""The inspection of an installed Horovod: versions, frameworks, transports and problems."""

import importlib.util
import itertools
import os
import shutil
import subprocess

import pytest

from scalebench.config import horovod_build, support
from scalebench.core.spec import StrategySpec
from tests.builders.horovod_install import Site

BOTH = {"pytorch": "2.13.0+cpu", "tensorflow": "2.21.0"}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """PyTorch 2.13.0+cpu and TensorFlow 2.21.0, an empty cache, and no Horovod yet."""
    monkeypatch.setenv("SCALEBENCH_CACHE", str(tmp_path / "cache"))
    made = Site(tmp_path / "site", monkeypatch)
    made.torch("2.13.0+cpu")
    made.distribution("tensorflow", "2.21.0")
    horovod_build.inspect_horovod.cache_clear()
    yield made
    horovod_build.inspect_horovod.cache_clear()


@pytest.fixture
def requested(monkeypatch):
    calls = []
    run = subprocess.run

    def counted(command, **options):
        calls.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    return calls


def again(framework="torch"):
    horovod_build.inspect_horovod.cache_clear()
    return horovod_build.inspect_horovod(framework)


def test_a_build_lists_its_transports(site):
    for holds, message in {
        "mpi gloo": "MPI, Gloo (no NCCL)", "gloo": "Gloo (no MPI, NCCL)", "mpi gloo nccl": "MPI, Gloo, NCCL",
    }.items():  # fmt: skip
        shutil.rmtree(site.folder / "horovod", ignore_errors=True)
        site.horovod(BOTH, holds)
        for framework, version in (("torch", "2.13.0+cpu"), ("tensorflow", "2.21.0")):
            assert again(framework) == horovod_build.HorovodBuild("0.28.1", version, tuple(holds.split()), None)
            line = f"Horovod 0.28.1 with {horovod_build.FRAMEWORKS[framework]} {version}: {message}"
            assert horovod_build.describe_horovod(framework) == line


def test_none_is_installed(monkeypatch, site, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert horovod_build.inspect_horovod("torch") is None
    line = "Horovod is not installed: scalebench install horovod builds it"
    assert horovod_build.find_horovod_problem("torch", "gloo", "local") == line
    assert horovod_build.main(["torch"]) == 1
    assert capsys.readouterr().out == "Horovod is not installed\n"


def test_an_unsuitable_build_is_recognized_without_an_import(site, requested):
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
        build = again(framework)
        assert build.problem == f"Horovod 0.28.1 was built {message}scalebench install horovod builds it anew"
        assert build.features == ()
        assert horovod_build.find_horovod_problem(framework, None, "local") == build.problem
        assert horovod_build.main([framework]) == 1
    for lost in ("torch/mpi_lib_v2.x.so", "metadata.json"):
        (site.horovod(BOTH) / lost).unlink()
        assert again().problem == "Horovod 0.28.1 was built without PyTorch: scalebench install horovod builds it anew"
    assert requested == []


def test_versions_are_those_that_the_frameworks_report(site):
    """The package index has torch 2.13.0 that reports 2.13.0+cu130, and TensorFlow writes 2.21.0-rc1."""
    site.torch("2.13.0+cu130")
    site.distribution("tensorflow", "2.21.0rc1")
    (site.folder / "tensorflow-2.21.0.dist-info" / "METADATA").unlink()
    (site.folder / "tensorflow-2.21.0.dist-info").rmdir()
    importlib.invalidate_caches()
    site.horovod({"pytorch": "2.13.0+cu130", "tensorflow": "2.21.0-rc1"})
    assert again("torch").problem is None
    assert again("tensorflow").problem is None


def test_a_failing_import_is_explained_and_tried_again(site, monkeypatch):
    anew = "scalebench install horovod builds it anew"
    for code, message in {
        "raise ImportError('libmpi.so.40: cannot open')\n": "ImportError: libmpi.so.40: cannot open",
        "import os, sys\nprint('x', file=sys.stderr, flush=True)\nos.abort()\n": "exit status -6",
        "import os\nos._exit(0)\n": "exit status 0",
        "import time\ntime.sleep(60)\n": "no answer in 1 s",
    }.items():
        monkeypatch.setattr(horovod_build, "MAX_PROBE_S", 1.0 if "sleep" in code else 60.0)
        site.horovod(BOTH, code=code)
        build = again()
        assert build.problem == f"Horovod 0.28.1 does not import with torch: {message}; {anew}"
        assert (build.built_for, build.features) == ("2.13.0+cpu", ())
        assert horovod_build.find_horovod_problem("torch", "gloo", "local") == build.problem
    monkeypatch.setattr(horovod_build, "MAX_PROBE_S", 60.0)
    site.horovod(BOTH)
    assert again().problem is None


def test_the_cache_is_used_until_the_build_or_the_framework_changes(site, requested):
    extension = site.horovod(BOTH, "gloo") / "torch" / "mpi_lib_v2.x.so"
    assert horovod_build.inspect_horovod("torch") == horovod_build.inspect_horovod("torch") == again()
    assert len(requested) == 1
    changes = (lambda: extension.write_text("longer"), lambda: os.utime(extension, ns=(1, 1)))
    for number, change in enumerate(changes, 2):
        change()
        again()
        assert len(requested) == number
    site.torch("2.13.1")
    (extension.parents[1] / "metadata.json").write_text('{"pytorch": "2.13.1"}')
    again()
    assert len(requested) == 4
    assert again().features == ("gloo",) and len(requested) == 4


def test_a_broken_file_of_the_cache_is_written_anew_and_an_unwritable_one_ignored(
    site, requested, tmp_path, monkeypatch
):
    # Other output of the import is ignored.
    site.horovod(BOTH, "gloo", code="print('[1]')\nimport atexit\natexit.register(print, '[2]')\n")
    again()
    (kept,) = (tmp_path / "cache" / "horovod").iterdir()
    complete = kept.read_text()
    for number, garbage in enumerate(("", "{", "[]", '{"features": "mpi"}', '{"features": [1]}'), 2):
        kept.write_text(garbage)
        assert again().features == ("gloo",)
        assert len(requested) == number and kept.read_text() == complete
    monkeypatch.setenv("SCALEBENCH_CACHE", "/dev/null/cache")
    assert again() == again() == horovod_build.HorovodBuild("0.28.1", "2.13.0+cpu", ("gloo",), None)
    assert len(requested) == 8


NO_NCCL = "Horovod 0.28.1 was built without NCCL: HOROVOD_GPU_OPERATIONS=NCCL scalebench install horovod, on a machine "
NO_NCCL += "with nvcc and NCCL"


@pytest.fixture
def install(monkeypatch):
    def holds(transports):
        build = horovod_build.HorovodBuild("0.28.1", "1", tuple(transports.split()), None)
        monkeypatch.setattr(horovod_build, "inspect_horovod", lambda framework: build)

    return holds


def test_why_a_strategy_cannot_run_with_this_build(install):
    crash = "Horovod's Gloo operations crash under mpirun: use strategy.launcher=local"
    started = "Horovod's MPI operations need processes that mpirun started: use strategy.launcher=mpi"
    without = "Horovod 0.28.1 was built without "
    no_mpi = f"{without}MPI: apt-get install openmpi-bin libopenmpi-dev, then scalebench install horovod"
    no_gloo = f"{without}Gloo: scalebench install horovod builds it anew"
    no_tensorflow_nccl = f"{without}NCCL: its operations for it do not compile with TensorFlow; use "
    no_tensorflow_nccl += "strategy=multiworker_nccl"
    for (holds, *asked), message in {
        ("mpi gloo", "torch", "gloo", "local"): None,
        ("mpi gloo", "torch", "mpi", "mpi"): None,
        ("mpi gloo", "tensorflow", "auto", "local"): None,
        ("mpi gloo", "torch", None, "mpi"): None,
        ("mpi gloo", "torch", "gloo", "mpi"): crash,
        ("mpi gloo", "torch", "mpi", "local"): started,
        ("mpi gloo", "torch", "nccl", "local"): NO_NCCL,
        ("mpi gloo", "tensorflow", "nccl", "local"): no_tensorflow_nccl,
        ("mpi gloo nccl", "torch", "nccl", "local"): None,
        ("mpi gloo nccl", "torch", "nccl", "mpi"): None,
        ("gloo nccl", "torch", "nccl", "mpi"): no_mpi,
        ("gloo", "torch", "auto", "mpi"): no_mpi,
        ("gloo", "torch", "mpi", "mpi"): no_mpi,
        ("mpi", "torch", "auto", "local"): no_gloo,
    }.items():
        install(holds)
        assert horovod_build.find_horovod_problem(*asked) == message, (holds, *asked)


@pytest.mark.gpu
def test_a_build_with_nccl_carries_gradients_on_gpus_over_nothing_else(monkeypatch, install):
    monkeypatch.setattr(support.shutil, "which", lambda name: f"/usr/bin/{name}")
    for holds in ("mpi gloo cuda", "mpi gloo nccl cuda"):
        install(holds)
        for transport, launcher in (("gloo", "local"), ("mpi", "mpi"), ("nccl", "mpi"), (None, "mpi")):
            strategy = StrategySpec("x", framework="torch", backend=transport, launcher=launcher, requires=["horovod"])
            problem = support.find_launch_problem(strategy, "cuda")
            if "nccl" in holds and transport in ("gloo", "mpi"):
                assert "with NCCL, which then carries all gradients on GPUs" in problem
                assert support.find_launch_problem(strategy, "cpu") is None
            else:
                assert problem == (NO_NCCL if transport == "nccl" and "nccl" not in holds else None)
    # One without CUDA does not wait for gradients on GPUs; TensorFlow copies tensors of operations on CPUs itself.
    for case in itertools.product(("gloo", "gloo cuda"), ("torch", "tensorflow"), ("cpu", "cuda")):
        holds, framework, devices = case
        install(holds)
        problem = horovod_build.find_horovod_problem(framework, "gloo", "local", devices)
        if case == ("gloo", "torch", "cuda"):
            assert "would average gradients on GPUs before they are copied" in problem
        else:
            assert problem is None


@pytest.mark.real
def test_the_one_that_is_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("SCALEBENCH_CACHE", str(tmp_path))
    build = again()
    assert build.problem is None and "gloo" in build.features
    assert build.built_for == horovod_build.detect_framework_version("torch")
