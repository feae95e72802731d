"""The command line of mpirun, for each implementation."""

import os
import subprocess
import time

import pytest

from scalebench.runner.launchers import mpi
from scalebench.runner.launchers.mpi import HYDRA, OPEN_MPI, UNKNOWN, Mpirun, mpirun_command

OPEN_MPI_4, OPEN_MPI_5 = Mpirun("mpirun", OPEN_MPI, 4), Mpirun("mpirun", OPEN_MPI, 5)
VERSIONS = {
    "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n": (OPEN_MPI, 4),
    "mpirun (Open MPI) 5.0.3\n\nReport bugs to https://www.open-mpi.org/community/help/\n": (OPEN_MPI, 5),
    "mpirun (OpenRTE) 10.0": (UNKNOWN, None),
    "HYDRA build details:\n    Version:  4.0.2\n    Release Date:  Thu Apr  7 12:34:45 CDT 2022\n": (HYDRA, None),
    "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\nCopyright 2003-2023": (HYDRA, None),
    "": (UNKNOWN, None),
}


@pytest.fixture(autouse=True)
def not_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    mpi.identify_mpirun.cache_clear()
    mpi.count_local_slots.cache_clear()


def command_line(mpirun, ranks=2, **more):
    return " ".join(mpirun_command(mpirun, ranks, ["program"], **more))


@pytest.mark.parametrize("mpirun", [OPEN_MPI_4, OPEN_MPI_5])
def test_open_mpi_maps_by_slot(mpirun, monkeypatch):
    assert command_line(mpirun, slots=2) == "mpirun -n 2 --bind-to none --map-by slot program"
    assert command_line(mpirun, 3, slots=2) == "mpirun -n 3 --bind-to none --map-by slot:OVERSUBSCRIBE program"
    assert command_line(mpirun, 3) == "mpirun -n 3 --bind-to none --map-by slot program", "an unknown number of slots"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert command_line(mpirun, slots=2) == "mpirun -n 2 --allow-run-as-root --bind-to none --map-by slot program"


def test_open_mpi_on_several_hosts():
    """Slots are not counted; variables that a rank would lack are forwarded, and no secrets."""
    names = ["HOME", "PATH", "PYTHONPATH", "OMP_NUM_THREADS", "NCCL_DEBUG", "SCALEBENCH_RUN_ID", "TF_VAR_password"]
    line = command_line(OPEN_MPI_4, 4, hosts=["a:2", "b:2"], slots=1, variables=names, folder="/here")
    assert line == (
        "mpirun -n 4 --bind-to none --map-by slot --host a:2,b:2 --wdir /here "
        "-x NCCL_DEBUG -x OMP_NUM_THREADS -x PATH -x PYTHONPATH -x SCALEBENCH_RUN_ID program"
    )


def test_hydra_gets_its_own_options():
    mpirun, options = Mpirun("mpirun", HYDRA), {"folder": "/here"}
    assert command_line(mpirun, 8, slots=2) == "mpirun -n 8 program"
    even = command_line(mpirun, 4, hosts=["a:2", "b:2"], **options)
    assert even == "mpirun -n 4 -hosts a,b -ppn 2 -wdir /here program"
    uneven = command_line(mpirun, 3, hosts=["a:2", "b"], **options)
    assert uneven == "mpirun -n 3 -hosts a:2,b:1 -wdir /here program"
    assert command_line(Mpirun("/opt/mpirun", UNKNOWN), 3, slots=1) == "/opt/mpirun -n 3 program"


@pytest.fixture
def stand_in(tmp_path):
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
    assert mpi.identify_mpirun(path) == mpi.identify_mpirun(path) == Mpirun(path, *VERSIONS[version])
    assert (tmp_path / "queries").read_text() == "query\n"


ALLOCATION = """
======================   ALLOCATED NODES   ======================
    node1: flags=0x11 slots=2 max_slots=0 slots_inuse=0 state=UP
    node2: flags=0x10 slots=3 max_slots=0 slots_inuse=0 state=UP
================================================================="""


def test_slots_are_read_from_open_mpi(stand_in, tmp_path):
    path = stand_in(f"echo \"$@\" >>{tmp_path}/queries\ncat <<'END'\n{ALLOCATION}\nEND")
    assert mpi.count_local_slots(Mpirun(path, OPEN_MPI, 4)) == 5
    assert mpi.count_local_slots(Mpirun(path, OPEN_MPI, 5)) == 5
    assert (tmp_path / "queries").read_text() == "--display-allocation -n 1 true\n--display allocation -n 1 true\n"
    assert mpi.count_local_slots(Mpirun(path, HYDRA)) is None
    assert mpi.count_local_slots(Mpirun(stand_in("exit 1"), OPEN_MPI)) is None


def test_an_mpirun_that_does_not_answer_is_unknown_and_leaves_no_process(stand_in, monkeypatch):
    """The check after every test looks for children; here there was one."""
    started = []
    start = subprocess.Popen

    def recorded(*args, **options):
        started.append(start(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", recorded)
    monkeypatch.setattr(mpi, "QUERY_LIMIT_S", 0.2)
    begin_s = time.monotonic()
    assert mpi.identify_mpirun(path := stand_in("exec sleep 60")) == Mpirun(path, UNKNOWN)
    assert time.monotonic() - begin_s < 30
    assert len(started) == 1 and started[0].poll() is not None
    assert mpi.identify_mpirun("/missing/mpirun").kind == UNKNOWN
