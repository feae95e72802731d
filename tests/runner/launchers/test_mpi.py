"""Ranks under one mpirun: placed, watched, always ended; and its command line, for each implementation."""

import os

import pytest

from scalebench.config import horovod_build
from scalebench.config.resolve import resolve
from scalebench.core.run_folder import MPIRUN_LOG, rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.runner.launchers import mpi
from scalebench.runner.launchers.mpi import HYDRA, OPEN_MPI, UNKNOWN, Mpirun, mpirun_command
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


def test_the_first_message_of_mpirun_is_taken(tmp_path):
    log = tmp_path / MPIRUN_LOG
    assert mpi.find_mpirun_failure(log) is None
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
        log.write_text(text)
        assert mpi.find_mpirun_failure(log) == reason


@NEEDS_MPIRUN
def test_debugging_keeps_rank_0_in_the_foreground(tmp_path, capfd, program):
    spec = spec_of(measure={"hang_s": 0.1, "timeout_s": 0.1}, debug=True)
    ended = launched(spec, tmp_path, module=program("print('this is', rank); time.sleep(0.5)"))
    assert (ended.timeout, ended.exit_codes) == (None, [0, 0])
    assert "this is 0\n" in capfd.readouterr().out
    assert not (tmp_path / rank_log_name(0)).exists()
    assert (tmp_path / rank_log_name(1)).read_text() == "this is 1\n"


# The command line of mpirun, for each implementation.
OPEN_MPI_4, OPEN_MPI_5 = Mpirun("mpirun", OPEN_MPI, 4), Mpirun("mpirun", OPEN_MPI, 5)
VERSIONS = {
    "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n": (OPEN_MPI, 4),
    "mpirun (Open MPI) 5.0.3\n\nReport bugs to https://www.open-mpi.org/community/help/\n": (OPEN_MPI, 5),
    "mpirun (OpenRTE) 10.0": (UNKNOWN, None),
    "HYDRA build details:\n    Version:  4.0.2\n    Release Date:  Thu Apr  7 12:34:45 CDT 2022\n": (HYDRA, None),
    "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\nCopyright 2003-2023": (HYDRA, None),
    "": (UNKNOWN, None),
}


@pytest.fixture
def not_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    mpi.identify_mpirun.cache_clear()
    mpi.count_local_slots.cache_clear()


def command_line(mpirun, ranks=2, **more):
    return " ".join(mpirun_command(mpirun, ranks, ["program"], **more))


@pytest.mark.parametrize("mpirun", [OPEN_MPI_4, OPEN_MPI_5])
def test_open_mpi_maps_by_slot(mpirun, not_root, monkeypatch):
    assert command_line(mpirun, slots=2) == "mpirun -n 2 --bind-to none --map-by slot program"
    assert command_line(mpirun, 3, slots=2) == "mpirun -n 3 --bind-to none --map-by slot:OVERSUBSCRIBE program"
    assert command_line(mpirun, 3) == "mpirun -n 3 --bind-to none --map-by slot program", "an unknown number of slots"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert command_line(mpirun, slots=2) == "mpirun -n 2 --allow-run-as-root --bind-to none --map-by slot program"


def test_options_for_hosts_are_those_of_the_implementation(not_root):
    # Slots are not counted; variables that a rank would lack are forwarded, and no secrets.
    names = ["HOME", "PATH", "PYTHONPATH", "OMP_NUM_THREADS", "NCCL_DEBUG", "SCALEBENCH_RUN_ID", "TF_VAR_password"]
    line = command_line(OPEN_MPI_4, 4, hosts=["a:2", "b:2"], slots=1, variables=names, folder="/here")
    assert line == (
        "mpirun -n 4 --bind-to none --map-by slot --host a:2,b:2 --wdir /here "
        "-x NCCL_DEBUG -x OMP_NUM_THREADS -x PATH -x PYTHONPATH -x SCALEBENCH_RUN_ID program"
    )
    # Hydra gets its own options.
    mpirun, options = Mpirun("mpirun", HYDRA), {"folder": "/here"}
    assert command_line(mpirun, 8, slots=2) == "mpirun -n 8 program"
    even = command_line(mpirun, 4, hosts=["a:2", "b:2"], **options)
    assert even == "mpirun -n 4 -hosts a,b -ppn 2 -wdir /here program"
    uneven = command_line(mpirun, 3, hosts=["a:2", "b"], **options)
    assert uneven == "mpirun -n 3 -hosts a:2,b:1 -wdir /here program"
    assert command_line(Mpirun("/opt/mpirun", UNKNOWN), 3, slots=1) == "/opt/mpirun -n 3 program"


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


def test_an_mpirun_that_does_not_answer_is_unknown(stand_in, monkeypatch):
    """And leaves no process, as the guard of every test checks."""
    monkeypatch.setattr(mpi, "QUERY_LIMIT_S", 0.2)
    assert mpi.identify_mpirun(path := stand_in("exec sleep 60")) == Mpirun(path, UNKNOWN)
    assert mpi.identify_mpirun("/missing/mpirun").kind == UNKNOWN
