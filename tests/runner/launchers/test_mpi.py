"""Ranks under one mpirun: placed, watched, always ended; and its command line, for each implementation."""

import os
import shutil
import subprocess

import pytest

from scalebench.config import horovod_build
from scalebench.config.resolve import resolve
from scalebench.core.run_folder import MPIRUN_LOG, rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.runner.launchers import mpi
from scalebench.runner.launchers.mpi import HYDRA, OPEN_MPI, UNKNOWN, mpirun_command
from scalebench.runner.parent import run_spec
from tests.builders.launching import NEEDS_MPIRUN
from tests.builders.runs import find_running, simulated_config

pytestmark = pytest.mark.cold


def spec_of(gpus=2, hosts=None, **changes):
    config = simulated_config(gpus=gpus, **changes)
    config.strategy.launcher, config.hardware.hosts = "mpi", hosts or []
    return resolve(config)


def launched(spec, folder, **options):
    write_spec(spec, folder)
    return launchers.launch(spec, folder, "an id", **options)


@NEEDS_MPIRUN
@pytest.mark.parametrize("hosts", [[], ["localhost:3"]], ids=["here", "named"])
def test_ranks_run_according_to_their_placement(hosts, tmp_path, program, monkeypatch):
    """All ranks run, however many slots mpirun counts; the worker's variables agree with mpirun's."""
    named, real = [], mpi.mpirun_command
    monkeypatch.setattr(mpi, "mpirun_command", lambda *words: named.extend(words[3]) or real(*words))
    names = "RANK OMPI_COMM_WORLD_RANK WORLD_SIZE OMPI_COMM_WORLD_SIZE LOCAL_RANK MASTER_ADDR SCALEBENCH_RUN_ID"
    module = program(f"print(*(os.environ.get(n) for n in '{names}'.split())); print('error', file=sys.stderr)")
    ended = launched(spec_of(3, hosts), tmp_path, module=module)
    assert (ended.exit_codes, ended.died_first, ended.timeout, ended.broken) == ([0, 0, 0], [], None, None)
    assert named == hosts
    for k in range(3):
        assert (tmp_path / rank_log_name(k)).read_text() == f"{k} {k} 3 3 {k} 127.0.0.1 an id\nerror\n"
    assert not find_running(ended.pids)
    assert not (tmp_path / MPIRUN_LOG).exists(), "it is empty"


def test_a_missing_mpirun_is_a_failed_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    spec = spec_of()
    spec.unsupported = None  # it was there when the run was resolved
    result = run_spec(spec, tmp_path / "run")
    assert (result.status, result.log) == ("failed", None)
    assert result.reason == (
        "the processes could not be started: there is no mpirun on the PATH; "
        "install Open MPI (openmpi-bin) or take a strategy without MPI"
    )


def test_an_mpirun_of_another_mpi_than_horovods_starts_nothing(tmp_path, monkeypatch):
    """Those of the nodes of a job, which the host that submits it does not see."""
    asked = []
    monkeypatch.setattr(mpi.shutil, "which", lambda name: f"/opt/mpich/bin/{name}")
    monkeypatch.setattr(horovod_build, "find_mpi_problem", lambda framework: asked.append(framework) or "of MPICH")
    spec = spec_of()
    spec.config.strategy.requires, spec.config.strategy.framework = ["horovod"], "torch"
    result = run_spec(spec, tmp_path / "run")
    assert (result.status, result.reason, asked) == (
        "failed", "the processes could not be started: of MPICH", ["torch"],
    )  # fmt: skip


def test_the_first_message_of_mpirun_is_taken():
    for text, reason in {
        "": None,
        "------\n\n": None,
        "-----\nNo slots\nfor you:\n\nAsk for fewer.\n-----\n": "mpirun: No slots for you",
        "Warning: Permanently added 'a'.\nssh: no such host\n----\nORTE was unable\n": "mpirun: ssh: no such host",
        'mpirun: Error: unknown option "--x"\nType': 'mpirun: Error: unknown option "--x" Type',
        "[a:1] plm:rsh: Warning: setpgid(2,2) failed\nno such host\n": "mpirun: no such host",
        "b sees nothing\nb sees nothing\n": "mpirun: b sees nothing",
        "x" * 1000: "mpirun: " + "x" * 300,
    }.items():
        assert mpi.find_mpirun_failure(text) == reason


@NEEDS_MPIRUN
def test_debugging_keeps_rank_0_in_the_foreground(tmp_path, capfd, program):
    spec = spec_of(measure={"hang_s": 0.1, "timeout_s": 0.1}, debug=True)
    ended = launched(spec, tmp_path, module=program("print('this is', rank); time.sleep(0.5)"))
    assert (ended.timeout, ended.exit_codes) == (None, [0, 0])
    assert "this is 0\n" in capfd.readouterr().out
    assert not (tmp_path / rank_log_name(0)).exists()
    assert (tmp_path / rank_log_name(1)).read_text() == "this is 1\n"


# The command line of mpirun, for each implementation.
VERSIONS = {
    "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n": OPEN_MPI,
    "mpirun (Open MPI) 5.0.3\n\nReport bugs to https://www.open-mpi.org/community/help/\n": OPEN_MPI,
    "mpirun (OpenRTE) 10.0": UNKNOWN,
    "HYDRA build details:\n    Version:  4.0.2\n    Release Date:  Thu Apr  7 12:34:45 CDT 2022\n": HYDRA,
    "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\nCopyright 2003-2023": HYDRA,
    "": UNKNOWN,
}


@pytest.fixture
def not_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    mpi.identify_mpirun.cache_clear()


def test_options_are_those_of_the_implementation(not_root, monkeypatch):
    """Variables that a rank on another host would lack are forwarded, and no secrets."""

    def line(kind, ranks, **more):
        monkeypatch.setattr(mpi, "identify_mpirun", lambda path: kind)
        return " ".join(mpirun_command("mpirun", ranks, ["program"], **more))

    names = ["HOME", "PATH", "PYTHONPATH", "OMP_NUM_THREADS", "NCCL_DEBUG", "SCALEBENCH_RUN_ID", "TF_VAR_password"]
    assert line(OPEN_MPI, 4, hosts=["a:2", "b:2"], variables=names, folder="/here") == (
        "mpirun -n 4 --bind-to none --map-by slot --host a:2,b:2 --wdir /here "
        "-x NCCL_DEBUG -x OMP_NUM_THREADS -x PATH -x PYTHONPATH -x SCALEBENCH_RUN_ID program"
    )
    assert line(HYDRA, 8) == "mpirun -n 8 program"
    even, uneven = (line(HYDRA, 4, hosts=["a:2", other], folder="/here") for other in ("b:2", "b"))
    assert even == "mpirun -n 4 -hosts a,b -ppn 2 -wdir /here program"
    assert uneven == "mpirun -n 4 -hosts a:2,b:1 -wdir /here program"
    assert line(UNKNOWN, 3) == "mpirun -n 3 program"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    expected = "mpirun -n 2 --allow-run-as-root --bind-to none --map-by slot:OVERSUBSCRIBE program"
    assert line(OPEN_MPI, 2) == expected


@NEEDS_MPIRUN
@pytest.mark.parametrize(("ranks", "yields"), [(1, "0"), (999, "1")])
def test_only_more_ranks_than_slots_yield_their_core(ranks, yields, tmp_path):
    """Else a rank that waits for another one would not give its core back at once."""
    mpi.identify_mpirun.cache_clear()
    command = mpirun_command(
        shutil.which("mpirun"), min(ranks, os.cpu_count() + 1), ["printenv", "OMPI_MCA_mpi_oversubscribe"]
    )
    if mpi.identify_mpirun(command[0]) != OPEN_MPI:
        pytest.skip("not Open MPI")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == {yields}


@pytest.fixture
def stand_in(tmp_path, not_root):
    """Return a function that makes an mpirun from shell text."""

    def make(text):
        path = tmp_path / "mpirun"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize("version", VERSIONS)
def test_the_implementation_is_identified_by_one_query(version, stand_in, tmp_path):
    path = stand_in(f"echo query >>{tmp_path}/queries; cat <<'END'\n{version}\nEND")
    assert mpi.identify_mpirun(path) == mpi.identify_mpirun(path) == VERSIONS[version]
    assert (tmp_path / "queries").read_text() == "query\n"


def test_an_mpirun_that_does_not_answer_is_unknown(stand_in, monkeypatch):
    """And leaves no process, as the guard of every test checks."""
    monkeypatch.setattr(mpi, "QUERY_LIMIT_S", 0.2)
    assert mpi.identify_mpirun(stand_in("exec sleep 60")) == UNKNOWN
    assert mpi.identify_mpirun("/missing/mpirun") == UNKNOWN
