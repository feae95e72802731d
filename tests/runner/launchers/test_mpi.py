"""Ranks under one mpirun: placed, watched, and always ended."""

import json
import os
import time

import pytest

from scalebench.config.resolve import resolve
from scalebench.core.run_folder import MPIRUN_LOG, rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.runner.launchers import mpi
from scalebench.runner.parent import run_spec
from tests.builders.launching import NEEDS_MPIRUN
from tests.builders.runs import find_running, simulated_config

pytestmark = pytest.mark.cold

LONG = {"min_s": 600.0, "max_s": 600.0}
LIMIT_S = 45.0


def spec_of(gpus=2, hosts=None, **changes):
    config = simulated_config(gpus=gpus, **changes)
    config.strategy.launcher, config.hardware.hosts = "mpi", hosts or []
    return resolve(config)


def launched(spec, folder, **options):
    write_spec(spec, folder)
    return launchers.launch(spec, folder, "an id", **options)


@NEEDS_MPIRUN
@pytest.mark.parametrize("hosts", [[], ["localhost:3"]], ids=["here", "named"])
def test_ranks_run_according_to_their_placement(hosts, tmp_path, program):
    """All ranks run, however many slots mpirun counts; the worker's variables agree with mpirun's."""
    names = "RANK OMPI_COMM_WORLD_RANK WORLD_SIZE OMPI_COMM_WORLD_SIZE LOCAL_RANK MASTER_ADDR SCALEBENCH_RUN_ID"
    module = program(f"print(*(os.environ.get(n) for n in '{names}'.split())); print('error', file=sys.stderr)")
    ended = launched(spec_of(3, hosts), tmp_path, module=module)
    assert (ended.exit_codes, ended.died_first, ended.timeout, ended.broken) == ([0, 0, 0], [], None, None)
    for k in range(3):
        assert (tmp_path / rank_log_name(k)).read_text() == f"{k} {k} 3 3 {k} 127.0.0.1 an id\nerror\n"
        assert json.loads((tmp_path / f"pid{k}.json").read_text())["worker"] == ended.pids[k]
    assert not find_running(ended.pids)
    assert not (tmp_path / MPIRUN_LOG).exists(), "it is empty"


def test_the_hosts_of_the_ranks():
    assert [mpi._hosts(spec_of(3, hosts)) for hosts in ([], ["a:2", "b:2"])] == [[], ["a", "a", "b"]]


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


@pytest.mark.slow
@NEEDS_MPIRUN
def test_the_message_of_mpirun_is_the_reason(tmp_path, monkeypatch):
    """There are more ranks than slots, which is not allowed here."""
    monkeypatch.setattr(mpi, "count_local_slots", lambda processes: None)
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "0")
    ranks = 2 * (os.cpu_count() or 1) + 1
    begin_s = time.monotonic()
    result = run_spec(spec_of(ranks, size=40 * ranks), tmp_path / "run")
    assert time.monotonic() - begin_s < LIMIT_S
    assert (result.status, result.log, result.ranks) == ("failed", MPIRUN_LOG, [])
    assert result.reason == (
        f"mpirun: There are not enough slots available in the system to satisfy the {ranks} "
        "slots that were requested by the application"
    )
    assert result.reason.split()[-1] in (tmp_path / "run" / MPIRUN_LOG).read_text()


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
