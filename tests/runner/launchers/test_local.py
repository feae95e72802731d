"""Processes on this machine: started with their own environment, and always ended."""

import os
import signal
import subprocess
import time

import pytest

from scalebench.core.machine import machine
from scalebench.core.run_folder import rank_log_name
from scalebench.runner.collect import read_ranks
from scalebench.runner.launchers import local
from tests.builders.launching import FOREVER, FakeInterrupt, launch_run
from tests.builders.runs import find_running, simulated_spec, wait_until


def test_ranks_run_according_to_their_placement(tmp_path):
    spec = simulated_spec(gpus=2)
    cores = machine.usable_cpus()
    for place, core in zip(spec.places, (cores[-1], cores[0]), strict=True):
        place.cpus, place.threads = [core], 5
    before, begin_s = dict(os.environ), time.time()
    ended = launch_run(spec, tmp_path)
    assert dict(os.environ) == before
    assert (ended.exit_codes, ended.died_first, ended.timeout, ended.stopped) == ([0, 0], [], None, [])
    assert begin_s <= ended.started_at_s <= time.time() and ended.wall_s > 0
    records = [record for record in read_ranks(tmp_path, 2) if record is not None]
    assert [r.affinity for r in records] == [[cores[-1]], [cores[0]]]
    assert [r.threads for r in records] == [5, 5]
    assert [r.pid for r in records] == ended.pids
    assert not find_running(ended.pids)


def test_a_start_that_fails_half_way_ends_those_that_started(tmp_path, monkeypatch):
    started = []
    start = local._start

    def two_only(*arguments):
        if len(started) == 2:
            raise OSError("no more processes")
        process = start(*arguments)
        started.append(process.pid)
        return process

    monkeypatch.setattr(local, "_start", two_only)
    with pytest.raises(OSError, match="no more processes"):
        launch_run(simulated_spec(gpus=3, **FOREVER), tmp_path)
    assert len(started) == 2 and not find_running(started)


def test_a_process_that_a_driver_holds_does_not_hold_the_run(monkeypatch):
    """The kernel ends a killed process only when its driver lets go of it, which may take for ever."""
    monkeypatch.setattr(local, "REAP_LIMIT_S", 0.01)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as started:
        child = local.Child(started)
        monkeypatch.setattr(child, "signal", lambda sign: None)  # as if it had no effect
        begin_s = time.monotonic()
        child.reap()
        assert child.alive() and time.monotonic() - begin_s < 30
        started.kill()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_start_does_not_lose_the_process(sign, tmp_path, monkeypatch):
    """Between the fork and its entry in the group, only this thread has its process id."""
    started = []
    start = local._start

    def interrupted(*arguments):
        started.append(start(*arguments))
        signal.raise_signal(sign)
        return started[-1]

    def handler(number, frame):
        raise FakeInterrupt

    monkeypatch.setattr(local, "_start", interrupted)
    before = signal.signal(sign, handler)
    try:
        with pytest.raises(FakeInterrupt):
            launch_run(simulated_spec(gpus=2, **FOREVER), tmp_path)
        assert signal.getsignal(sign) is handler
    finally:
        signal.signal(sign, before)
    assert len(started) == 1 and not find_running([started[0].pid])


def test_processes_of_workers_end_with_them(tmp_path, program):
    """Loader processes, say, of a rank that was killed."""
    module = program("""
        child = os.fork()
        if child == 0:
            time.sleep(600)
        (folder / f"child{rank}").write_text(str(child))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = launch_run(simulated_spec(gpus=2), tmp_path, module=module)
    assert ended.exit_codes[1] == -signal.SIGKILL
    children = [int((tmp_path / f"child{rank}").read_text()) for rank in range(2)]
    wait_until(lambda: not find_running(children), 5.0)


def test_debugging_knows_no_limits_and_keeps_rank_0_in_the_foreground(tmp_path, capfd, program):
    spec = simulated_spec(gpus=2, measure={"hang_s": 0.1, "timeout_s": 0.1}, debug=True)
    module = program("print('this is', rank, os.getpgid(os.getppid()) == os.getpgid(0)); time.sleep(1)")
    ended = launch_run(spec, tmp_path, module=module)
    assert (ended.timeout, ended.exit_codes) == (None, [0, 0])
    assert capfd.readouterr().out == "this is 0 True\n"
    assert not (tmp_path / rank_log_name(0)).exists()
    assert (tmp_path / rank_log_name(1)).read_text() == "this is 1 False\n"
