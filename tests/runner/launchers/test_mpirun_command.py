"""The command line of mpirun, for each implementation."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

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
def nobody_special(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    mpi.identify.cache_clear()
    mpi.local_slots.cache_clear()


def words(found: Mpirun, ranks: int = 2, **more: Any) -> str:
    return " ".join(mpirun_command(found, ranks, ["program"], **more))


@pytest.mark.parametrize("found", [OPEN_MPI_4, OPEN_MPI_5])
def test_open_mpi(found: Mpirun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert words(found, slots=2) == "mpirun -n 2 --bind-to none --map-by slot program"
    assert words(found, 3, slots=2) == "mpirun -n 3 --bind-to none --map-by slot:OVERSUBSCRIBE program"
    assert words(found, 3) == "mpirun -n 3 --bind-to none --map-by slot program", "slots that nobody could tell"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert words(found, slots=2) == "mpirun -n 2 --allow-run-as-root --bind-to none --map-by slot program"


def test_open_mpi_on_several_hosts() -> None:
    """Their slots are counted before; variables go along that a rank there would lack, and no secret does."""
    names = ["HOME", "PATH", "PYTHONPATH", "OMP_NUM_THREADS", "NCCL_DEBUG", "SCALEBENCH_RUN_ID", "TF_VAR_password"]
    made = words(OPEN_MPI_4, 4, hosts=["a:2", "b:2"], slots=1, variables=names, folder="/here")
    assert made == (
        "mpirun -n 4 --bind-to none --map-by slot --host a:2,b:2 --wdir /here "
        "-x NCCL_DEBUG -x OMP_NUM_THREADS -x PATH -x PYTHONPATH -x SCALEBENCH_RUN_ID program"
    )


def test_hydra_gets_what_it_knows() -> None:
    found = Mpirun("mpirun", HYDRA)
    assert words(found, 8, slots=2) == "mpirun -n 8 program"
    assert words(found, 4, hosts=["a:2", "b:2"], folder="/here") == "mpirun -n 4 -hosts a,b -ppn 2 -wdir /here program"
    assert words(found, 3, hosts=["a:2", "b"], folder="/here") == "mpirun -n 3 -hosts a:2,b:1 -wdir /here program"


def test_an_unknown_mpirun_gets_the_number_of_ranks() -> None:
    assert words(Mpirun("/opt/mpirun", UNKNOWN), 3, slots=1) == "/opt/mpirun -n 3 program"


@pytest.fixture
def stand_in(tmp_path: Path) -> Any:
    """Make an mpirun of this shell text."""

    def make(text: str) -> str:
        path = tmp_path / "mpirun"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize("said", VERSIONS)
def test_which_one_it_is(said: str, stand_in: Any) -> None:
    path = stand_in(f"cat <<'END'\n{said}\nEND")
    found = mpi.identify(path)
    assert (found.path, found.kind, found.major) == (path, *VERSIONS[said])


def test_it_is_asked_once(stand_in: Any, tmp_path: Path) -> None:
    path = stand_in(f"echo asked >>{tmp_path}/asked; echo 'mpirun (Open MPI) 4.1.4'")
    assert mpi.identify(path) == mpi.identify(path) == Mpirun(path, OPEN_MPI, 4)
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_one_that_does_not_answer(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "QUERY_LIMIT_S", 0.2)
    begin_s = time.monotonic()
    assert mpi.identify(path := stand_in("exec sleep 60")) == Mpirun(path, UNKNOWN)
    assert time.monotonic() - begin_s < 30
    assert mpi.identify("/missing/mpirun").kind == UNKNOWN


ALLOCATION = """
======================   ALLOCATED NODES   ======================
    node1: flags=0x11 slots=2 max_slots=0 slots_inuse=0 state=UP
    node2: flags=0x10 slots=3 max_slots=0 slots_inuse=0 state=UP
================================================================="""


def test_slots_are_those_that_open_mpi_shows(stand_in: Any, tmp_path: Path) -> None:
    path = stand_in(f"echo \"$@\" >>{tmp_path}/asked\ncat <<'END'\n{ALLOCATION}\nEND")
    assert mpi.local_slots(Mpirun(path, OPEN_MPI, 4)) == 5
    assert mpi.local_slots(Mpirun(path, OPEN_MPI, 5)) == 5
    assert (tmp_path / "asked").read_text() == "--display-allocation -n 1 true\n--display allocation -n 1 true\n"
    assert mpi.local_slots(Mpirun(path, HYDRA)) is None
    assert mpi.local_slots(Mpirun(stand_in("exit 1"), OPEN_MPI)) is None


def test_waiting_for_an_answer_leaves_no_process(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard of every test looks for children; this one makes sure that there was one."""
    started: list[Any] = []
    start = subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        started.append(start(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(mpi, "QUERY_LIMIT_S", 0.2)
    mpi.identify(stand_in("exec sleep 60"))
    assert len(started) == 1 and started[0].poll() is not None
