"""The script that builds Horovod: what it decides, what it builds for, what it keeps and what it leaves."""

import functools
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from scalebench.__main__ import run_command
from scalebench.cli.commands.install import HOROVOD_SCRIPT
from scalebench.core.errors import InputError
from tests.builders.horovod_install import BUILT, COMPILER, MPI, THERE
from tests.builders.horovod_install import home as home
from tests.builders.runs import wait_until
from tests.conftest import ROOT

WHEEL = ["KEY", "KEY.lock", "KEY.log", "KEY/horovod-0.28.1-x.whl"]
ELSEWHERE = "set SCALEBENCH_WHEELS=/another/folder"
COMMAND = [sys.executable, "-m", "scalebench", "install", "horovod"]
WAIT = 'for _ in {1..600}; do [ ! -e "$FAKE_HOME/go" ] || break; sleep 0.05; done'


def test_a_build_and_a_second_call(home):
    home.programs(COMPILER, MPI)
    status, out, err = home.install()
    assert (status, err, out[1:]) == (0, [], [BUILT])
    versions = "torch 2.13.0+cpu, tensorflow none, openmpi4.1.4, cpu"
    assert out[0].startswith(f"building Horovod 0.28.1 ({versions}): 3 to 8 min")
    reported = home.environment_of_build()
    assert reported["CXX"] == str(HOROVOD_SCRIPT.with_name("horovod_cxx.sh")) and reported["SCALEBENCH_CXX"] == "g++"
    requested = [name for name in reported if name.startswith("HOROVOD_")]
    parts = "WITHOUT_MXNET WITHOUT_TENSORFLOW WITH_GLOO WITH_MPI WITH_PYTORCH".split()
    assert {name: reported[name] for name in requested} == {f"HOROVOD_{part}": "1" for part in parts}
    assert reported["MAKEFLAGS"].startswith("-j") and "MAKELEVEL" not in reported
    assert reported["TMPDIR"].startswith(str(home.wheels)) and home.kept() == WHEEL
    # pip's own cache of wheels would hand out one that was built for something else.
    (wheel,) = [line for line in home.pip() if "--wheel-dir" in line]
    assert "--no-cache-dir" in wheel and "--no-build-isolation" in wheel and wheel.endswith("horovod==0.28.1")

    calls = len(home.pip())
    assert home.install() == THERE
    assert len(home.pip()) == calls
    # Another environment takes the wheel, and so does one whose Horovod other hands have installed.
    record = home.site.folder / "horovod-0.28.1.dist-info" / "RECORD"
    for change in (home.stamp.unlink, lambda: record.write_text("another build")):
        change()
        assert home.install() == (0, [BUILT], []) and home.builds() == 1


@pytest.mark.slow
def test_other_versions_are_built_for_anew(home):
    home.programs(COMPILER, MPI)
    home.install()
    home.programs({"mpirun": "echo 'mpirun (Open MPI) 5.0.1'"})
    assert "openmpi5.0.1" in home.install()[1][0]
    home.site.torch("2.13.1")
    home.site.horovod({"pytorch": "2.13.1"})
    assert home.install()[1][1:] == [BUILT.replace("2.13.0+cpu", "2.13.1")]
    assert home.builds() == 3 and home.install() == THERE


def test_a_missing_tool_is_one_line(home):
    home.programs(MPI)
    for missing, arguments in (("g++", ()), ("g++", ("--optional",)), ("cmake", ()), ("make", ())):
        status, out, err = home.install(*arguments, SCALEBENCH_APT="no")
        reason = f"there is no {missing}: apt-get install {missing}"
        optional = f"Horovod is left out: {reason}; scalebench install horovod tries again"
        assert (status, out, err) == (1, [], [optional if arguments else f"Horovod was not installed: {reason}"])
        assert home.builds() == 0 and home.kept() == ["KEY.lock"]
        if arguments or missing != "g++":
            home.programs({missing: "exit 0"})


def test_wheels_of_others_are_not_installed(home):
    home.programs(COMPILER, MPI)
    home.install()
    home.stamp.unlink()
    (key,) = (path for path in home.wheels.iterdir() if path.is_dir())
    (wheel,) = key.glob("*.whl")
    for path in (home.wheels, key, wheel):
        path.chmod(path.stat().st_mode | 0o002)
        status, _, err = home.install()
        reason = f"everybody can write {path}: chmod o-w, or {ELSEWHERE}"
        assert (status, err) == (1, [f"Horovod was not installed: {reason}"])
        path.chmod(path.stat().st_mode & ~0o002)
        if os.geteuid() == 0 and path is not key:
            os.chown(path, 1234, 1234)
            reason = f"{path} is another user's; remove it, or {ELSEWHERE}"
            assert home.install()[::2] == (1, [f"Horovod was not installed: {reason}"])
            os.chown(path, 0, 0)
    assert home.install() == (0, [BUILT], []) and home.builds() == 1


def test_without_a_home_nothing_is_kept_and_wheels_that_cannot_be_kept_are_refused(home, tmp_path):
    """A folder below /tmp that everybody could have made is no cache."""
    home.programs(COMPILER, MPI)
    status, _, err = home.install(SCALEBENCH_WHEELS="/dev/null/wheels")
    assert status == 1
    assert err[-1].endswith("/dev/null/wheels cannot be written; set SCALEBENCH_WHEELS=/another/folder")
    del home.environment["SCALEBENCH_WHEELS"], home.environment["HOME"]
    (tmp_path / "temporary").mkdir()
    status, out, err = home.install(TMPDIR=str(tmp_path / "temporary"))
    assert (status, out[1:], err) == (0, [BUILT], [])
    assert not list((tmp_path / "temporary").iterdir())


def test_a_build_that_fails_or_does_not_import_leaves_its_log_alone(home):
    home.programs(COMPILER, MPI)
    for arguments in ((), ("--optional",)):
        status, _, err = home.install(*arguments, FAKE_BUILD="exit 7")
        assert status == 1 and len(err) == (1 if arguments else 3)
        assert "it does not build (exit status 7), see " in err[-1]
        assert arguments or err[0] == "some.cc: error: what went wrong"
        assert home.kept() == ["KEY.lock", "KEY.log"] and not home.stamp.exists()
    home.site.horovod({"pytorch": "2.13.0+cpu"}, code="raise ImportError('libmpi.so.40')\n")
    status, out, err = home.install()
    assert (status, err) == (1, ["Horovod was not installed: what was built does not import"])
    assert "does not import with torch: ImportError: libmpi.so.40" in out[-1]
    assert home.kept() == ["KEY.lock", "KEY.log"] and not home.stamp.exists()
    assert "uninstall --yes horovod" in home.pip()[-1]
    home.site.horovod({"pytorch": "2.13.0+cpu"})
    assert home.install()[0] == 0 and home.kept() == WHEEL


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_a_build_that_is_stopped_leaves_nothing(home, number, status):
    home.programs(COMPILER, MPI)
    with home.start(FAKE_BUILD=WAIT) as process:
        wait_until((home.folder / "environment").exists)
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == status
    assert home.kept() == ["KEY.lock", "KEY.log"] and not home.stamp.exists()


def test_two_at_once_build_once(home):
    home.programs(COMPILER, MPI)
    with home.start(FAKE_BUILD=WAIT) as first:
        wait_until((home.folder / "environment").exists)
        with home.start() as second:
            assert second.stdout.readline() == "waiting for another build of the same Horovod\n"
            (home.folder / "go").touch()
            assert second.communicate(timeout=60) == ("Horovod 0.28.1 is there\n", "")
        first.communicate(timeout=60)
    assert (first.returncode, second.returncode, home.builds()) == (0, 0, 1)


def test_what_a_killed_build_left_goes(home):
    home.programs(COMPILER, MPI)
    with home.start(FAKE_BUILD=WAIT) as process:
        wait_until((home.folder / "environment").exists)
        process.kill()
    (home.folder / "go").touch()  # nobody is left to end the compilers, but they end
    wait_until(lambda: list(home.wheels.glob(".build-*/wheel/*.whl")))
    assert home.install()[1][-1] == BUILT
    assert home.kept() == WHEEL


def test_the_command_becomes_the_script_for_its_own_python_or_is_refused_in_one_line(home, monkeypatch):
    """From any folder; SCALEBENCH_PYTHON is what the script needs, and no choice of the user's."""
    home.programs({"bash": 'echo "$SCALEBENCH_PYTHON $*"; exit 7'})
    done = subprocess.run(COMMAND, cwd=home.folder, env=home.environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{sys.executable} {HOROVOD_SCRIPT}\n", "")
    with pytest.raises(InputError, match="install builds horovod, not 'torch'; pip install brings all other packages"):
        run_command("install", ["torch"])
    monkeypatch.setenv("PATH", "/nowhere")
    reason = "^install horovod needs bash, which is not on the PATH: apt-get install bash$"
    with pytest.raises(InputError, match=reason):
        run_command("install", ["horovod"])


@pytest.fixture
def install(home, tmp_path):
    """Return a function that calls install.sh of a checkout whose .venv is the environment of `home`."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    # The scripts ask modules of the package for PyTorch's build and for Horovod's.
    shutil.copytree(ROOT / "scalebench", folder / "scalebench", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "plugins/scalebench-search/pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(home.folder / "env", folder / ".venv")
    call = functools.partial(home.install, script=folder / "scripts" / "install.sh", SCALEBENCH_APT="no")
    return functools.partial(call, SCALEBENCH_PYTHON=".venv/bin/python")


def test_an_install_goes_on_without_horovod_and_tries_once(home, install, tmp_path):
    home.programs(MPI)
    status, out, err = install()
    assert (status, len(out)) == (0, 1)
    assert err == ["Horovod is left out: there is no g++: apt-get install g++; scalebench install horovod tries again"]
    assert install() == (0, [], [])
    (tmp_path / "checkout/.venv/.installed").unlink()  # as after a change of versions, but for Horovod
    status, out, err = install()
    assert (status, len(out), err) == (0, 1, [])


def test_a_light_install_brings_no_tensorflow_no_test_tools_and_no_horovod(home, install, tmp_path):
    home.programs(MPI, COMPILER)
    status, out, err = install("--light")
    assert (status, out, err) == (0, ["installing scalebench with PyTorch and Lightning"], [])
    assert home.pip() == ["-m pip install --quiet --constraint constraints.txt --editable .[torch]"]
    assert install("--light") == (0, [], [])
    status, out, err = install(SCALEBENCH_HOROVOD="no")  # the rest comes when it is asked for
    assert (status, len(out), err, home.builds()) == (0, 1, [], 0) and "tensorflow" in out[0]
    (tmp_path / "checkout/.venv/.installed-light").unlink()
    assert install("--light") == (0, [], [])  # everything is more
    status, out, err = install()
    assert (status, out[-1], err, home.builds()) == (0, BUILT, [], 1)
    assert install() == (0, [], [])


@pytest.mark.slow
def test_an_install_that_is_stopped_goes_on_with_horovod_the_next_time(home, install):
    home.programs(MPI, COMPILER)
    with home.start(**install.keywords, FAKE_BUILD=WAIT) as process:
        wait_until((home.folder / "environment").exists)
        (building,) = psutil.Process(process.pid).children()
        building.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 143
    assert install()[1][-1] == BUILT


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


@pytest.mark.parametrize(("there", "variables", "note"), [
    pytest.param({"apt-get": "exit 1", "id": "echo 0"}, {"SCALEBENCH_APT": "no"}, NO_MPI, marks=pytest.mark.slow),
    ({"apt-get": "exit 1", "id": "echo 0"}, {}, NO_MPI),
    pytest.param({"apt-get": "exit 1", "id": "echo 1000"}, {}, NO_MPI, marks=pytest.mark.slow),  # there is no sudo
    ({"apt-get": "exit 1", "id": "echo 1000", "sudo": "exit 1"}, {}, NO_MPI),  # it asks for a password
    (MPI, {"HOROVOD_WITHOUT_MPI": "1"}, "Horovod without MPI, as HOROVOD_WITHOUT_MPI=1 asks"),
])  # fmt: skip
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


OTHER_NVCC = "nvcc of CUDA 13 as PyTorch 2.13.0+cu130 ({}/nvcc is of CUDA 12.4; "
OTHER_NVCC += "HOROVOD_CUDA_HOME=/usr/local/cuda-13.0 names another)"
NCCL, CUDA_13 = "HOROVOD_GPU_OPERATIONS", nvcc("13.2")


@pytest.mark.gpu
@pytest.mark.parametrize(("there", "variables", "is_nccl", "needs"), [
    (GPU, {}, True, None),
    (CUDA_13, {"SCALEBENCH_GPU": "yes"}, True, None),  # an image is built where no GPU is in sight
    (CUDA_13, {NCCL: "NCCL"}, True, None),
    (CUDA_13, {}, False, None),
    (GPU, {"SCALEBENCH_GPU": "no"}, False, None),
    (GPU, {NCCL: "none"}, False, None),
    ({**SMI, **nvcc("12.4")}, {}, False, OTHER_NVCC),
    (SMI, {NCCL: "none"}, False, "nvcc"),
])  # fmt: skip
def test_horovod_is_built_for_cuda_with_the_nvcc_of_pytorch_alone(home, there, variables, is_nccl, needs):
    """Its CUDA code is compiled wherever PyTorch has CUDA, also without GPU operations."""
    home.programs(COMPILER, MPI, there)
    home.site.torch("2.13.0+cu130", "13.0")
    home.site.horovod({"pytorch": "2.13.0+cu130"}, "mpi gloo nccl cuda")
    (home.folder / "nccl.h").touch()
    status, out, _ = home.install(HOROVOD_NCCL_INCLUDE=str(home.folder), CUDA_HOME="/nowhere", **variables)
    reported = home.environment_of_build()
    assert status == 0 and reported["NVCC_APPEND_FLAGS"] == "-std=c++17"
    assert reported.get(NCCL) == ("NCCL" if is_nccl else None)
    assert (".build-" in reported["PYTHONPATH"]) == (needs is not None), "where it is hidden"
    if needs is None:
        assert reported["CUDA_HOME"] == reported["HOROVOD_CUDA_HOME"] == str(home.folder)
    else:
        notes = [line for line in out if line.startswith("Horovod for")]
        assert notes == [f"Horovod for training on CPUs alone; on GPUs it needs {needs.format(home.bin)}"]


def test_nccl_leaves_tensorflow_out_and_without_it_another_horovod_is_built(home):
    home.programs(COMPILER, MPI, GPU)
    home.site.torch("2.13.0+cu130", "13.0")
    home.site.distribution("tensorflow", "2.21.0")
    home.site.horovod({"pytorch": "2.13.0+cu130"}, "mpi gloo nccl")
    (home.folder / "nccl.h").touch()
    status, out, _ = home.install(HOROVOD_NCCL_INCLUDE=str(home.folder))
    assert (status, out[-1]) == (0, "Horovod 0.28.1 with PyTorch 2.13.0+cu130: MPI, Gloo, NCCL")
    assert out[0].startswith("Horovod without TensorFlow, with which the GPU operations do not compile")
    assert home.environment_of_build()["HOROVOD_WITHOUT_TENSORFLOW"] == "1"
    home.site.horovod({"pytorch": "2.13.0+cu130", "tensorflow": "2.21.0"})
    assert home.install(HOROVOD_GPU_OPERATIONS="none")[0] == 0 and home.builds() == 2
    assert "HOROVOD_WITHOUT_TENSORFLOW" not in home.environment_of_build()


@pytest.mark.gpu
def test_the_nccl_of_pytorchs_wheel_is_taken_unless_another_is_named(home):
    home.programs(COMPILER, MPI, GPU, {"ln": f'exec {shutil.which("ln")} "$@"'})
    home.site.torch("2.13.0+cu130", "13.0")
    home.site.horovod({"pytorch": "2.13.0+cu130"}, "mpi gloo nccl")
    package = home.site.folder / "nvidia" / "nccl"
    for path in ("include/nccl.h", "lib/libnccl.so.2"):
        (package / path).parent.mkdir(parents=True)
        (package / path).touch()
    seen = 'readlink "$HOROVOD_NCCL_LIB/libnccl.so" >"$FAKE_HOME/link"'
    home.programs({"readlink": f'exec {shutil.which("readlink")} "$@"'})
    status, out, _ = home.install(CUDA_HOME="/nowhere", FAKE_BUILD=seen)
    assert (status, out[-1]) == (0, "Horovod 0.28.1 with PyTorch 2.13.0+cu130: MPI, Gloo, NCCL")
    reported = home.environment_of_build()
    assert (reported["HOROVOD_NCCL_INCLUDE"], reported["HOROVOD_NCCL_LINK"]) == (str(package / "include"), "SHARED")
    assert (home.folder / "link").read_text().strip() == str(package / "lib/libnccl.so.2")
    shutil.rmtree(home.wheels)
    home.stamp.unlink()
    other = home.folder / "other"
    other.mkdir()
    (other / "nccl.h").touch()
    home.install(HOROVOD_NCCL_INCLUDE=str(other))
    reported = home.environment_of_build()
    assert reported["HOROVOD_NCCL_INCLUDE"] == str(other) and "HOROVOD_NCCL_LIB" not in reported


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
    reported = ["-std=c++17", "-DX=a b", "-std=c++11", "x/xla_mpi_ops.cc", "-UTENSORFLOW_VERSION"]
    assert done.stdout.splitlines() == [*reported, "-include", "stdexcept", "-include", "cstdint", "-o", "y"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_what_headers_of_gcc_13_no_longer_include_is_included(tmp_path):
    """Horovod's common.h throws std::logic_error and uses uint8_t, and includes neither's header."""
    (tmp_path / "common.cc").write_text('uint8_t byte; void fail() { throw std::logic_error("no"); }\n')
    command = ["-std=c++14", "-fsyntax-only", "common.cc"]
    assert subprocess.run(["g++", *command], cwd=tmp_path, capture_output=True).returncode != 0
    done = subprocess.run([HOROVOD_SCRIPT.with_name("horovod_cxx.sh"), *command], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
