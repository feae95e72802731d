"""Processes on this machine: started with their own surroundings, watched, and ended whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalebench import machine
from scalebench.launchers import local
from scalebench.launchers.local import Ended, environment, free_port, launch, log_name
from scalebench.records import from_dict, read_json
from scalebench.results import RankRecord
from scalebench.run import run
from scalebench.spec import RunSpec, write_spec
from scalebench.worker import rank_path
from tests.helpers import alive, null_spec, ranks_of, wait_until

FOREVER = {"measure": {"min_s": 600.0, "max_s": 600.0, "timeout_s": 600.0}}


class Interrupted(Exception):
    """In place of KeyboardInterrupt, which pytest would take for its own."""


def launched(spec: RunSpec, folder: Path, **options: Any) -> Ended:
    write_spec(spec, folder)
    return launch(spec, folder, "an id", **options)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Make a module that stands in for the worker; its folder is sys.argv[1], its rank is `rank`."""

    def make(text: str) -> str:
        lines = "import os, signal, sys, time\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n"
        (tmp_path / "stand_in.py").write_text(f"{lines}rank = int(os.environ['RANK'])\n{textwrap.dedent(text)}")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
        return "stand_in"

    return make


def test_each_rank_has_its_own_variables() -> None:
    spec = null_spec(gpus=3)
    spec.places[1].threads = 7
    spec.places[2].node, spec.places[2].local_rank = 1, 0
    first, second, third = (environment(spec, "an id", rank, ["127.0.0.1:12345"]) for rank in range(3))
    assert (first["RANK"], second["RANK"], third["RANK"]) == ("0", "1", "2")
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"], third["LOCAL_RANK"]) == ("0", "1", "0")
    assert (first["LOCAL_WORLD_SIZE"], third["LOCAL_WORLD_SIZE"], third["NODE_RANK"]) == ("2", "1", "1")
    for variables in (first, second, third):
        assert (variables["WORLD_SIZE"], variables["MASTER_ADDR"], variables["MASTER_PORT"]) == (
            "3",
            "127.0.0.1",
            "12345",
        )
        assert variables["SCALEBENCH_RUN_ID"] == "an id"
        assert variables["SCALEBENCH_PARENT_PID"] == str(os.getpid())
        assert variables["PATH"] == os.environ["PATH"], "what is set here reaches the workers"
    for name in local.THREAD_VARIABLES:
        assert (first[name], second[name]) == (str(spec.places[0].threads), "7")


def test_each_rank_knows_the_addresses_of_all() -> None:
    addresses = ["10.0.0.1:5000", "10.0.0.1:5001"]
    variables = environment(null_spec(gpus=2), "an id", 1, addresses)
    assert variables["SCALEBENCH_ADDRESSES"] == "10.0.0.1:5000,10.0.0.1:5001"
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.1", "5000")


def test_the_variables_of_this_process_stay_as_they_are(tmp_path: Path) -> None:
    before = dict(os.environ)
    launched(null_spec(), tmp_path)
    assert dict(os.environ) == before


def test_a_free_port_can_be_bound() -> None:
    ports = [free_port() for _ in range(20)]
    assert all(1024 <= port < 65536 for port in ports)
    with socket.socket() as one:
        one.bind(("127.0.0.1", ports[-1]))


def test_free_ports_are_all_different() -> None:
    assert len(set(local.free_ports(50))) == 50


def test_ranks_run_in_their_places(tmp_path: Path) -> None:
    spec = null_spec(gpus=2)
    cores = machine.usable_cpus()
    for place, core in zip(spec.places, (cores[-1], cores[0]), strict=True):
        place.cpus, place.threads = [core], 5
    begin_s = time.time()
    ended = launched(spec, tmp_path)
    assert (ended.exit_codes, ended.died_first, ended.timeout, ended.stopped) == ([0, 0], [], None, [])
    assert begin_s <= ended.started_at_s <= time.time() and ended.wall_s > 0
    records = [from_dict(RankRecord, read_json(rank_path(tmp_path, rank))) for rank in range(2)]
    assert [r.affinity for r in records] == [[cores[-1]], [cores[0]]]
    assert [r.threads for r in records] == [5, 5]
    assert [r.pid for r in records] == ended.pids
    assert not alive(ended.pids)


def test_output_goes_to_the_log_of_the_rank(tmp_path: Path, program: Callable[[str], str]) -> None:
    module = program("print('out of', rank); print('error of', rank, file=sys.stderr)")
    launched(null_spec(gpus=2), tmp_path, module=module)
    for rank in range(2):
        assert (tmp_path / log_name(rank)).read_text() == f"out of {rank}\nerror of {rank}\n"


def test_progress_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LOOK_S", 0.02)
    seen: list[tuple[int, str]] = []
    launched(null_spec(gpus=2), tmp_path, on_look=lambda progress: seen.extend((p.rank, p.phase) for p in progress))
    assert {(0, "measure"), (1, "measure")} <= set(seen)


@pytest.mark.parametrize("error", [RuntimeError("a look went wrong"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_an_exception_while_watching_ends_the_group(error: BaseException, tmp_path: Path) -> None:
    pids: list[int] = []

    def on_look(progress: list[Any]) -> None:
        if {p.rank for p in progress if p.phase == "measure"} == {0, 1}:
            pids.extend(p.pid for p in progress)
            raise error

    with pytest.raises(type(error)):
        launched(null_spec(gpus=2, **FOREVER), tmp_path, on_look=on_look)
    assert len(pids) == 2 and not alive(pids)


def test_a_start_that_fails_half_way_ends_those_that_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    start = local._start

    def two_only(*arguments: Any) -> Any:
        if len(started) == 2:
            raise OSError("no more processes")
        process = start(*arguments)
        started.append(process.pid)
        return process

    monkeypatch.setattr(local, "_start", two_only)
    with pytest.raises(OSError, match="no more processes"):
        launched(null_spec(gpus=3, **FOREVER), tmp_path)
    assert len(started) == 2 and not alive(started)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_start_does_not_lose_the_process(
    sign: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the fork and the list of the group nobody else knows of it."""
    started: list[Any] = []
    start = local._start

    def interrupted(*arguments: Any) -> Any:
        started.append(start(*arguments))
        signal.raise_signal(sign)
        return started[-1]

    def handler(number: int, frame: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(local, "_start", interrupted)
    before = signal.signal(sign, handler)
    try:
        with pytest.raises(Interrupted):
            launched(null_spec(gpus=2, **FOREVER), tmp_path)
        assert signal.getsignal(sign) is handler
    finally:
        signal.signal(sign, before)
    assert len(started) == 1 and not alive([started[0].pid])


def test_no_interpreter_is_a_failed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/missing/python")
    result = run(null_spec(gpus=2), tmp_path / "run")
    assert result.status == "failed"
    assert result.reason == "the processes could not be started: No such file or directory"
    assert result.ranks == [] and (tmp_path / "run" / "result.json").exists()


def test_a_worker_that_ignores_sigterm_is_killed(
    tmp_path: Path, program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE_S", 0.5)
    monkeypatch.setattr(local, "FOLLOW_S", 0.2)
    module = program("""
        if rank == 0:
            signal.signal(signal.SIGTERM, lambda *_: print("told to end", flush=True))
            (folder / "deaf").touch()
            while True:
                time.sleep(60)
        while not (folder / "deaf").exists():
            time.sleep(0.01)
        sys.exit(3)
    """)
    begin_s = time.monotonic()
    ended = launched(null_spec(gpus=2), tmp_path, module=module)
    assert time.monotonic() - begin_s < 30
    assert (ended.exit_codes, ended.died_first) == ([None, 3], [1])
    assert "told to end" in (tmp_path / log_name(0)).read_text()
    assert not alive(ended.pids)


def test_processes_of_workers_end_with_them(tmp_path: Path, program: Callable[[str], str]) -> None:
    """Loader processes, say, of a rank that was killed."""
    module = program("""
        child = os.fork()
        if child == 0:
            time.sleep(600)
        (folder / f"child{rank}").write_text(str(child))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = launched(null_spec(gpus=2), tmp_path, module=module)
    assert ended.exit_codes[1] == -signal.SIGKILL
    children = [int((tmp_path / f"child{rank}").read_text()) for rank in range(2)]
    wait_until(lambda: not alive(children), 5.0)


def test_the_second_ctrl_c_kills_at_once(
    tmp_path: Path, program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who presses it again does not want to wait for a worker that is slow to end."""
    monkeypatch.setattr(local, "GRACE_S", 60.0)
    wait, pids = local._wait_all, []
    module = program("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "deaf").touch()
        time.sleep(600)
    """)

    def interrupted(group: list[Any], limit_s: float) -> None:
        pids.extend(process.pid for process in group)
        if limit_s == 60.0:
            raise KeyboardInterrupt
        wait(group, limit_s)

    def on_look(progress: list[Any]) -> None:
        if (tmp_path / "deaf").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(local, "_wait_all", interrupted)
    begin_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launched(null_spec(), tmp_path, module=module, on_look=on_look)
    assert time.monotonic() - begin_s < 30
    assert pids and not alive(pids)


def test_no_progress_for_hang_s_ends_the_run(tmp_path: Path) -> None:
    spec = null_spec(gpus=2, options={"fault": "hang", "fault_rank": 1}, measure={"hang_s": 2.0})
    ended = launched(spec, tmp_path)
    assert ended.timeout == "no rank made progress for 2 s (measure.hang_s)"
    assert (ended.exit_codes, ended.died_first, ended.stopped) == ([None, None], [], [])
    assert 2.0 <= ended.wall_s < 60 and not alive(ended.pids)


def test_progress_postpones_hang_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LOOK_S", 0.05)
    spec = null_spec(measure={"hang_s": 2.5, "min_s": 3.5, "max_s": 3.5})
    ended = launched(spec, tmp_path)
    assert ended.timeout is None and ended.exit_codes == [0]
    assert ended.wall_s > 3.5


def test_timeout_s_ends_the_run_whatever_its_progress(tmp_path: Path) -> None:
    spec = null_spec(gpus=2, measure={"min_s": 600.0, "max_s": 600.0, "timeout_s": 1.5})
    ended = launched(spec, tmp_path)
    assert ended.timeout == "not over after 1.5 s (measure.timeout_s)"
    assert ended.wall_s >= 1.5 and not alive(ended.pids)


def test_debugging_knows_no_limits_and_keeps_rank_0_in_the_foreground(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], program: Callable[[str], str]
) -> None:
    spec = null_spec(gpus=2, measure={"hang_s": 0.1, "timeout_s": 0.1}, debug=True)
    module = program("print('this is', rank, os.getpgid(os.getppid()) == os.getpgid(0)); time.sleep(1)")
    ended = launched(spec, tmp_path, module=module)
    assert (ended.timeout, ended.exit_codes) == (None, [0, 0])
    assert capfd.readouterr().out == "this is 0 True\n"
    assert not (tmp_path / log_name(0)).exists()
    assert (tmp_path / log_name(1)).read_text() == "this is 1 False\n"


def test_a_port_in_use_is_a_failed_row_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "FOLLOW_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(local, "free_ports", lambda count: [port] * count)
        result = run(null_spec(gpus=2), tmp_path / "run")
    assert result.status == "failed" and result.log == "rank0.log"
    words = f"cannot listen on port {port} of 127.0.0.1 (Address already in use); run it again"
    assert result.reason == f"rank 0: OSError: {words}"
    assert words in (tmp_path / "run" / "rank0.log").read_text()
    assert not ranks_of(tmp_path / "run")


def with_services(spec: RunSpec) -> RunSpec:
    """Rank 0 as the chief of the others."""
    for place, role in zip(spec.places, ("chief", "ps", "worker"), strict=True):
        place.role = role
    return spec


def test_services_end_with_the_chief(tmp_path: Path, program: Callable[[str], str]) -> None:
    """Also one that is deaf to SIGTERM, and none of them counts as failed."""
    module = program("""
        if rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / f"up{rank}").touch()
        while rank or len(list(folder.glob("up*"))) < 3:
            time.sleep(0.01)
    """)
    begin_s = time.monotonic()
    ended = launched(with_services(null_spec(gpus=3)), tmp_path, module=module)
    assert time.monotonic() - begin_s < 20
    assert (ended.exit_codes, ended.died_first, ended.timeout) == ([0, None, None], [], None)
    assert ended.services == {1: "ps", 2: "worker"} and not alive(ended.pids)


@pytest.mark.parametrize("code", [0, 3])
def test_a_service_that_ends_before_the_chief_ends_the_run(
    code: int, tmp_path: Path, program: Callable[[str], str]
) -> None:
    """However it ended: the chief would wait for it. Nobody waits for the other services to follow."""
    module = program(f"""
        if rank == 2:
            sys.exit({code})
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        time.sleep(600 if rank == 1 else 1)
    """)
    begin_s = time.monotonic()
    ended = launched(with_services(null_spec(gpus=3)), tmp_path, module=module)
    assert time.monotonic() - begin_s < local.FOLLOW_S
    assert (ended.exit_codes[1:], ended.died_first) == ([None, code], [2])
    assert not alive(ended.pids)
