"""Processes are watched, and always ended."""

import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from scalebench.core import process
from scalebench.core.run_folder import rank_log_name
from scalebench.runner.launchers import supervise
from tests.builders.launching import FOREVER, launch_run
from tests.builders.runs import find_running, simulated_spec, wait_until


@pytest.mark.parametrize("error", [RuntimeError("the callback failed"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_an_exception_while_watching_ends_the_group(error, tmp_path):
    pids = []

    def on_progress(progress):
        if {p.rank for p in progress if p.phase == "measure"} == {0, 1}:
            pids.extend(p.pid for p in progress)
            raise error

    with pytest.raises(type(error)):
        launch_run(simulated_spec(gpus=2, **FOREVER), tmp_path, on_progress=on_progress)
    assert len(pids) == 2 and not find_running(pids)


def test_an_interrupt_whose_exception_got_lost_still_ends_the_run(tmp_path, monkeypatch):
    """Python drops what a signal handler raises within a __del__; the handler's flag stays."""
    monkeypatch.setattr(supervise, "PROGRESS_INTERVAL_S", 0.02)
    pids = []

    def on_progress(progress):
        pids.extend(p.pid for p in progress)
        if pids:
            process.cancelled.set()

    try:
        with pytest.raises(KeyboardInterrupt):
            launch_run(simulated_spec(gpus=2, **FOREVER), tmp_path, on_progress=on_progress)
    finally:
        process.cancelled.clear()
    assert pids and not find_running(pids)


def test_a_worker_that_ignores_sigterm_is_killed(tmp_path, program, monkeypatch):
    monkeypatch.setattr(supervise, "GRACE_PERIOD_S", 0.5)
    monkeypatch.setattr(supervise, "FOLLOW_LIMIT_S", 0.2)
    module = program("""
        if rank == 0:
            signal.signal(signal.SIGTERM, lambda *_: print("got SIGTERM", flush=True))
            (folder / "ready").touch()
            while True:
                time.sleep(60)
        while not (folder / "ready").exists():
            time.sleep(0.01)
        sys.exit(3)
    """)
    begin_s = time.monotonic()
    ended = launch_run(simulated_spec(gpus=2), tmp_path, module=module)
    assert time.monotonic() - begin_s < 30
    assert (ended.exit_codes, ended.died_first) == ([None, 3], [1])
    assert "got SIGTERM" in (tmp_path / rank_log_name(0)).read_text()
    assert not find_running(ended.pids)


def test_a_second_ctrl_c_kills_at_once(tmp_path, program, monkeypatch):
    """A user who presses it again does not want to wait for a slow worker."""
    monkeypatch.setattr(supervise, "GRACE_PERIOD_S", 60.0)
    wait = process.wait_until
    module = program("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "ready").write_text(str(os.getpid()))
        time.sleep(600)
    """)

    def interrupted(condition, limit_s):
        if limit_s == 60.0:
            raise KeyboardInterrupt
        return wait(condition, limit_s)

    def on_progress(progress):
        if (tmp_path / "ready").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(supervise, "wait_until", interrupted)
    begin_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch_run(simulated_spec(), tmp_path, module=module, on_progress=on_progress)
    assert time.monotonic() - begin_s < 30
    assert not find_running([int((tmp_path / "ready").read_text())])


def test_states_of_processes(monkeypatch):
    """A debugger stops a process in another state than SIGSTOP; one that is gone has none."""
    states = {1: b"S", 2: b"T", 3: b"t", 4: b"Z"}
    monkeypatch.setattr(supervise, "_read_state", states.get)
    pids = [1, 2, 3, 4, 5, None]
    assert [supervise.is_stopped(pid) for pid in pids] == [False, True, True, True, True, True]
    assert supervise.find_stopped([SimpleNamespace(pid=pid) for pid in pids]) == [1, 2]


def test_the_state_of_a_process_that_is_stopped_and_ends():
    with subprocess.Popen(["sleep", "60"]) as started:
        assert not supervise.is_stopped(started.pid)
        started.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: supervise.is_stopped(started.pid))
        assert supervise.find_stopped([started]) == [0]
        started.kill()
        assert wait_until(lambda: not supervise.find_stopped([started]))
    assert supervise.is_stopped(started.pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "measure", "timeout", "exit_codes", "least_s"),
    [
        (
            {"fault": "hang", "fault_rank": 1}, {"hang_s": 2.0},
            "no rank made progress for 2 s (measure.hang_s)", [None, None], 2.0,
        ),
        ({}, {"hang_s": 2.5, "min_s": 3.5, "max_s": 3.5}, None, [0], 3.5),
        # A rank that still starts may die of the request for its stacks.
        ({}, {"min_s": 600.0, "max_s": 600.0, "timeout_s": 1.5}, "not over after 1.5 s (measure.timeout_s)", None, 1.5),
    ],
    ids=["a hang", "progress postpones hang_s", "timeout_s in spite of progress"],
)  # fmt: skip
def test_a_run_without_progress_or_time_is_ended(
    options, measure, timeout, exit_codes,
    least_s, tmp_path, monkeypatch
):  # fmt: skip
    monkeypatch.setattr(supervise, "PROGRESS_INTERVAL_S", 0.05)
    spec = simulated_spec(gpus=1 if timeout is None else 2, options=options, measure=measure)
    ended = launch_run(spec, tmp_path)
    assert ended.timeout == timeout and least_s <= ended.wall_s < 60
    if exit_codes is not None:
        assert (ended.exit_codes, ended.died_first, ended.stopped) == (exit_codes, [], [])
    assert not find_running(ended.pids)


def with_services(spec):
    """Return the spec with rank 0 as the chief, and the others as services."""
    for place, role in zip(spec.places, ("chief", "ps", "worker"), strict=True):
        place.role = role
    return spec


@pytest.mark.slow
def test_services_end_with_the_chief(tmp_path, program):
    """Also one that ignores SIGTERM; none of them counts as failed."""
    module = program("""
        if rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / f"up{rank}").touch()
        while rank or len(list(folder.glob("up*"))) < 3:
            time.sleep(0.01)
    """)
    begin_s = time.monotonic()
    ended = launch_run(with_services(simulated_spec(gpus=3)), tmp_path, module=module)
    assert time.monotonic() - begin_s < 20
    assert (ended.exit_codes, ended.died_first, ended.timeout) == ([0, None, None], [], None)
    assert ended.services == {1: "ps", 2: "worker"} and not find_running(ended.pids)


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
