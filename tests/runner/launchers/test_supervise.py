"""Processes on this machine: started with their own environment, watched, and always ended."""

import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from scalebench.core import process
from scalebench.core.machine import machine
from scalebench.core.run_folder import rank_log_name
from scalebench.runner.collect import read_ranks
from scalebench.runner.launchers import local, supervise
from tests.builders.launching import FOREVER, FakeInterrupt, launch_run
from tests.builders.runs import find_running, simulated_spec, wait_until


def test_a_second_ctrl_c_kills_at_once(tmp_path, program, monkeypatch):
    """A user who presses it again does not want to wait for a slow worker."""
    monkeypatch.setattr(supervise, "GRACE_PERIOD_S", 60.0)
    wait = process.wait_until
    module = program("""
        signal.signal(signal.SIGTERM, lambda *_: (folder / "ignored").touch())
        (folder / "ready").write_text(str(os.getpid()))
        time.sleep(600)
    """)

    def interrupted(condition, limit_s):
        if limit_s == 60.0:
            wait((tmp_path / "ignored").exists, 20.0)
            raise KeyboardInterrupt
        return wait(condition, limit_s)

    def on_progress(progress):
        if (tmp_path / "ready").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(local, "wait_until", interrupted)
    begin_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch_run(simulated_spec(), tmp_path, module=module, on_progress=on_progress)
    assert time.monotonic() - begin_s < 30
    assert (tmp_path / "ignored").exists() and not find_running([int((tmp_path / "ready").read_text())])


def test_states_of_processes(monkeypatch):
    """A debugger stops a process in another state than SIGSTOP; one that is gone has none."""
    states = {1: "S", 2: "T", 3: "t", 4: "Z"}
    monkeypatch.setattr(supervise, "_read_state", states.get)
    pids = [1, 2, 3, 4, 5, None]
    assert [supervise.is_stopped(pid) for pid in pids] == [False, True, True, True, True, True]
    assert supervise.find_stopped([SimpleNamespace(pid=pid) for pid in pids]) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("measure", "timeout", "least_s"), [
    ({"hang_s": 2.5, "min_s": 3.5, "max_s": 3.5}, None, 3.5),
    ({"min_s": 600.0, "max_s": 600.0, "timeout_s": 1.5}, "not over after 1.5 s (measure.timeout_s)", 1.5),
], ids=["progress postpones hang_s", "timeout_s in spite of progress"])  # fmt: skip
def test_a_run_that_makes_progress_ends_at_its_limit(measure, timeout, least_s, tmp_path, monkeypatch):
    """One that hangs is in tests/faults."""
    monkeypatch.setattr(supervise, "PROGRESS_INTERVAL_S", 0.05)
    ended = launch_run(simulated_spec(gpus=2, measure=measure), tmp_path)
    assert ended.timeout == timeout and least_s <= ended.wall_s < 60
    assert timeout is not None or (ended.exit_codes, ended.died_first, ended.stopped) == ([0, 0], [], [])
    assert not find_running(ended.pids)


def with_services(spec):
    """Return the spec with rank 0 as the chief, and the others as services."""
    for place, role in zip(spec.places, ("chief", "ps", "worker"), strict=True):
        place.role = role
    return spec


@pytest.mark.parametrize("code", [0, 3])
def test_a_service_that_ends_before_the_chief_ends_the_run(code, tmp_path, program):
    """With any exit status, since the chief would wait for it. The other services are ended at once."""
    module = program(f"""
        if rank == 2:
            sys.exit({code})
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        time.sleep(600 if rank == 1 else 1)
    """)
    begin_s = time.monotonic()
    ended = launch_run(with_services(simulated_spec(gpus=3)), tmp_path, module=module)
    assert time.monotonic() - begin_s < supervise.FOLLOW_LIMIT_S
    assert (ended.exit_codes[1:], ended.died_first) == ([None, code], [2])
    assert not find_running(ended.pids)


# Processes on this machine: started with their own environment, and always ended.
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
    start = local.start_program

    def interrupted(*arguments):
        started.append(start(*arguments))
        signal.raise_signal(sign)
        return started[-1]

    def handler(number, frame):
        raise FakeInterrupt

    monkeypatch.setattr(local, "start_program", interrupted)
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
