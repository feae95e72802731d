"""Ranks under one mpirun: in their places, watched, and ended whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from scalebench import launchers
from scalebench.launchers import mpi
from scalebench.launchers.mpi import HYDRA, OPEN_MPI, UNKNOWN, Mpirun, command
from scalebench.launchers.watch import GroupExit
from scalebench.measure.progress import Progress
from scalebench.resolve import resolve
from scalebench.run import run
from scalebench.run_folder import MPIRUN_LOG, rank_log_name
from scalebench.spec import RunSpec, write_spec
from tests.helpers import alive, in_parallel, null_config
from tests.launchers.launching import NEEDS_MPIRUN

LONG = {"min_s": 600.0, "max_s": 600.0}
LIMIT_S = 45.0


def spec_of(gpus: int = 2, hosts: list[str] | None = None, **changes: Any) -> RunSpec:
    made = null_config(gpus=gpus, **changes)
    made.strategy.launcher, made.hardware.hosts = "mpi", hosts or []
    return resolve(made)


def launched(spec: RunSpec, folder: Path, **options: Any) -> GroupExit:
    write_spec(spec, folder)
    return launchers.launch(spec, folder, "an id", **options)


@NEEDS_MPIRUN
@pytest.mark.parametrize("hosts", [[], ["localhost:3"]], ids=["here", "named"])
def test_ranks_run_in_their_places(hosts: list[str], tmp_path: Path, program: Callable[[str], str]) -> None:
    """As many as there are, whatever mpirun takes for slots; the worker's variables agree with mpirun's."""
    names = "RANK OMPI_COMM_WORLD_RANK WORLD_SIZE OMPI_COMM_WORLD_SIZE LOCAL_RANK MASTER_ADDR SCALEBENCH_RUN_ID"
    module = program(f"print(*(os.environ.get(n) for n in '{names}'.split())); print('error', file=sys.stderr)")
    ended = launched(spec_of(3, hosts), tmp_path, module=module)
    assert (ended.exit_codes, ended.died_first, ended.timeout, ended.broken) == ([0, 0, 0], [], None, None)
    for k in range(3):
        assert (tmp_path / rank_log_name(k)).read_text() == f"{k} {k} 3 3 {k} 127.0.0.1 an id\nerror\n"
        assert json.loads((tmp_path / f"pid{k}.json").read_text())["worker"] == ended.pids[k]
    assert not alive(ended.pids)
    assert not (tmp_path / MPIRUN_LOG).exists(), "it had nothing to say"


@NEEDS_MPIRUN
def test_a_run_leaves_what_every_run_leaves(tmp_path: Path) -> None:
    result = run(spec_of(), tmp_path / "run")
    ranks = [name for k in range(2) for name in (f"rank{k}.json", f"rank{k}.log")]
    assert sorted(os.listdir(tmp_path / "run")) == sorted(["spec.json", "result.json", *ranks])
    assert (result.status, result.reason, result.log) == ("ok", None, None)


def test_addresses_on_this_machine_and_on_others() -> None:
    names = [[address.rpartition(":")[0] for address in mpi.addresses(spec_of(3, hosts))] for hosts in (
        [], ["localhost:2", f"{os.uname().nodename}:1"], ["a:2", "b:2"]
    )]  # fmt: skip
    assert names == [["127.0.0.1"] * 3, ["127.0.0.1"] * 3, ["a", "a", "b"]]


def test_no_mpirun_is_a_failed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    spec = spec_of()
    spec.unsupported = None  # it was there when the run was resolved
    result = run(spec, tmp_path / "run")
    assert (result.status, result.log) == ("failed", None)
    assert result.reason == (
        "the processes could not be started: there is no mpirun on the PATH; "
        "install Open MPI (openmpi-bin) or take a strategy without MPI"
    )


@pytest.mark.slow
@NEEDS_MPIRUN
def test_what_mpirun_says_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More ranks than slots, which it was not told to allow."""
    monkeypatch.setattr(mpi, "local_slots", lambda found: None)
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "0")
    ranks = 2 * (os.cpu_count() or 1) + 1
    begin_s = time.monotonic()
    result = run(spec_of(ranks, size=40 * ranks), tmp_path / "run")
    assert time.monotonic() - begin_s < LIMIT_S
    assert (result.status, result.log, result.ranks) == ("failed", MPIRUN_LOG, [])
    assert result.reason == (
        f"mpirun: There are not enough slots available in the system to satisfy the {ranks} "
        "slots that were requested by the application"
    )
    assert result.reason.split()[-1] in (tmp_path / "run" / MPIRUN_LOG).read_text()


def test_the_first_thing_it_says(tmp_path: Path) -> None:
    log = tmp_path / MPIRUN_LOG
    assert mpi.words(log) is None
    for text, said in {
        "": None,
        "------\n\n": None,
        "-----\nNo slots\nfor you:\n\nAsk for fewer.\n-----\n": "mpirun: No slots for you",
        "Warning: Permanently added 'a'.\nssh: no such host\n----\nORTE was unable\n": "mpirun: ssh: no such host",
        'mpirun: Error: unknown option "--x"\nType': 'mpirun: Error: unknown option "--x" Type',
        "[a:1] plm:rsh: Warning: setpgid(2,2) failed\nno such host\n": "mpirun: no such host",
        "b sees nothing\nb sees nothing\n": "mpirun: b sees nothing",
        "x" * 1000: "mpirun: " + "x" * 300,
    }.items():
        log.write_text(text)
        assert mpi.words(log) == said


# (who gets it, the signal, what the row says): of a rank what its own end would have said
VICTIMS = [
    ("mpirun", signal.SIGKILL, "mpirun was killed by SIGKILL"),
    ("mpirun", signal.SIGTERM, "mpirun told rank "),
    ("keeper", signal.SIGKILL, "rank 1 was killed by SIGKILL"),
    ("worker", signal.SIGTERM, "rank 1 was killed by SIGTERM"),
]


def processes_of(folder: Path) -> dict[str, psutil.Process]:
    """mpirun, and the keeper and the worker of rank 1."""
    pids = json.loads((folder / "pid1.json").read_text())
    keeper = psutil.Process(pids["keeper"])
    return {"mpirun": psutil.Process(keeper.ppid()), "keeper": keeper, "worker": psutil.Process(pids["worker"])}


@pytest.mark.slow
@NEEDS_MPIRUN
def test_whoever_is_killed_is_named_and_nobody_is_left(tmp_path: Path) -> None:
    def killed(victim: tuple[str, signal.Signals, str]) -> tuple[str, float, list[int]]:
        folder, pids = tmp_path / f"{victim[0]} {victim[1].name}", []

        def on_look(progress: list[Progress]) -> None:
            if not pids and {p.phase for p in progress} == {"measure"} and len(progress) == 2:
                found = processes_of(folder)
                pids.extend(process.pid for process in [*found["mpirun"].children(recursive=True), found["mpirun"]])
                found[victim[0]].send_signal(victim[1])

        begin_s = time.monotonic()
        result = run(spec_of(measure=LONG), folder, on_look)
        assert len(pids) == 5, "mpirun, two keepers, two workers"
        assert result.status == "failed" and not list(folder.glob("pid*")) and not list(folder.glob("exit*"))
        return str(result.reason), time.monotonic() - begin_s, alive(pids)

    for (who, sign, words), (reason, took_s, left) in in_parallel(killed, VICTIMS).items():
        assert words in reason and took_s < LIMIT_S and not left, (who, sign, reason, took_s, left)


@NEEDS_MPIRUN
def test_debugging_keeps_rank_0_in_the_foreground(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], program: Callable[[str], str]
) -> None:
    spec = spec_of(measure={"hang_s": 0.1, "timeout_s": 0.1}, debug=True)
    ended = launched(spec, tmp_path, module=program("print('this is', rank); time.sleep(0.5)"))
    assert (ended.timeout, ended.exit_codes) == (None, [0, 0])
    assert "this is 0\n" in capfd.readouterr().out
    assert not (tmp_path / rank_log_name(0)).exists()
    assert (tmp_path / rank_log_name(1)).read_text() == "this is 1\n"


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
    return " ".join(command(found, ranks, ["program"], **more))


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
