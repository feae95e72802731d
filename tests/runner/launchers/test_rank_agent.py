"""The agent of a rank: what mpirun or torchrun starts, here started by the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scalebench.core.errors import InputError
from scalebench.core.run_folder import STOP_FILE, TORCHRUN_FILE
from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner.launchers import rank_agent
from scalebench.runner.launchers.rank_agent import torchrun_rank
from tests.builders.runs import alive, simulated_spec, wait_until

# With less patience than the real one has, where a test wants that.
AGENT = (
    "import os, sys; from scalebench.runner.launchers import rank_agent as mpi_rank; mpi_rank.HOLD_S = {}; "
    "os._exit(mpi_rank.main(sys.argv[1:]))"
)
HELD_S = 60.0  # longer than any test takes


@pytest.fixture
def agent(tmp_path: Path) -> Any:
    """Start the agent of rank 1 of 2 with a module as its worker."""
    started: list[subprocess.Popen[str]] = []

    def start(module: str, hold_s: float = HELD_S, first: str = "pass") -> subprocess.Popen[str]:
        write_spec(simulated_spec(gpus=2), tmp_path)
        group = {"SCALEBENCH_ADDRESSES": "127.0.0.1:5000,127.0.0.1:5001", "SCALEBENCH_RUN_ID": "an id"}
        env = {**os.environ, "OMPI_COMM_WORLD_RANK": "1", **group}
        command = [sys.executable, "-c", f"{first}; {AGENT.format(hold_s)}", str(tmp_path), module]
        started.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(path: Path) -> Any:
    wait_until(path.exists)
    return json.loads(path.read_text())


def test_a_worker_that_ends_well(agent: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    names = "RANK WORLD_SIZE MASTER_PORT SCALEBENCH_ADDRESSES SCALEBENCH_RUN_ID SCALEBENCH_PARENT_PID"
    one = agent(program(f"print(os.getpid(), *(os.environ[n] for n in '{names}'.split()), file=sys.stderr)"))
    assert one.wait(60) == 0
    pid, *rest = (tmp_path / "rank1.log").read_text().split()
    assert rest == ["1", "2", "5000", "127.0.0.1:5000,127.0.0.1:5001", "an", "id", str(one.pid)]
    pids = said(tmp_path / "pid1.json")
    assert pids == {"host": os.uname().nodename, "agent": one.pid, "worker": int(pid)}
    assert said(tmp_path / "exit1.json") == {"code": 0, "terminated_by_launcher": False}


@pytest.mark.parametrize(
    ("end", "code", "status"), [("sys.exit(7)", 7, 7), ("os.kill(os.getpid(), signal.SIGKILL)", -9, 137)]
)
def test_after_a_bad_end_it_stays_for_a_while(
    end: str, code: int, status: int, agent: Any, program: Callable[[str], str], tmp_path: Path
) -> None:
    module = program(end)
    one = agent(module)
    assert said(tmp_path / "exit1.json") == {"code": code, "terminated_by_launcher": False}
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0.3)
    one.terminate()
    assert one.wait(60) == 0, "mpirun has nothing to find out"
    assert said(tmp_path / "exit1.json") == {"code": code, "terminated_by_launcher": False}
    assert agent(module, hold_s=0.1).wait(60) == status, "nobody told it to end"


def test_sigterm_goes_on_to_the_worker(agent: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    one = agent(program("(folder / 'up').touch(); time.sleep(600)"))
    wait_until((tmp_path / "up").exists)
    one.terminate()
    assert one.wait(60) == 0
    assert said(tmp_path / "exit1.json") == {"code": -signal.SIGTERM, "terminated_by_launcher": True}


def test_sigterm_before_there_is_a_worker(agent: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    """It may come while the worker is being started."""
    program("signal.pause()")
    (tmp_path / "early.py").write_text(
        "import os, signal, sys\n"
        "from scalebench.runner.launchers import rank_agent as mpi_rank\n"
        "start = mpi_rank.subprocess.Popen\n"
        "def late(*args, **options):\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    return start(*args, **options)\n"
        "mpi_rank.subprocess.Popen = late\n"
    )
    one = agent("stand_in", first="import early")
    assert one.wait(60) == 0
    assert said(tmp_path / "exit1.json") == {"code": -signal.SIGTERM, "terminated_by_launcher": True}


def test_a_request_for_stacks_goes_on(agent: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    handler = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))"
    one = agent(program(f"{handler}; (folder / 'up').touch(); signal.pause()"))
    wait_until((tmp_path / "up").exists)
    one.send_signal(signal.SIGUSR1)
    assert said(tmp_path / "exit1.json") == {"code": 3, "terminated_by_launcher": False}


def test_children_that_outlive_the_worker_are_ended(agent: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    text = "child = os.fork()\nif child == 0:\n    time.sleep(600)\n(folder / 'child').write_text(str(child))"
    assert agent(program(text)).wait(60) == 0
    wait_until(lambda: not alive([int((tmp_path / "child").read_text())]), 5.0)


def test_a_worker_ends_with_its_agent(agent: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    text = "from scalebench.runner.worker import end_with_parent\nend_with_parent()\n(folder / 'up').touch()\ntime.sleep(600)"
    one = agent(program(text))
    wait_until((tmp_path / "up").exists)
    one.kill()
    wait_until(lambda: not alive([said(tmp_path / "pid1.json")["worker"]]), 10.0)
    assert not (tmp_path / "exit1.json").exists()


@pytest.mark.parametrize(("step", "told"), [("0", True), (None, False)])
def test_in_a_step_the_worker_may_be_told_first(
    step: str | None, told: bool, agent: Any, program: Callable[[str], str], tmp_path: Path
) -> None:
    """SLURM sends SIGTERM to every process of a step; elsewhere a worker that gets it alone was killed by it."""
    first = "import os, signal, threading; from scalebench.runner.launchers import rank_agent as mpi_rank; mpi_rank.SIGTERM_GAP_S = 5.0"
    if step is not None:
        first += f"; os.environ['SLURM_STEP_ID'] = '{step}'"
    one = agent(program("os.kill(os.getpid(), signal.SIGTERM)"), hold_s=0.1, first=first)
    wait_until((tmp_path / "pid1.json").exists)
    wait_until(lambda: not alive([said(tmp_path / "pid1.json")["worker"]]))
    if told:
        one.terminate()
    one.wait(60)
    assert said(tmp_path / "exit1.json") == {"code": -signal.SIGTERM, "terminated_by_launcher": told}


def test_an_agent_ends_with_what_started_it(tmp_path: Path, program: Callable[[str], str]) -> None:
    """mpirun, which may be killed; the worker ends with the agent then."""
    write_spec(simulated_spec(), tmp_path)
    text = "from scalebench.runner.worker import end_with_parent\nend_with_parent()\n(folder / 'up').touch()\ntime.sleep(600)"
    words = [sys.executable, "-m", "scalebench.runner.launchers.rank_agent", str(tmp_path), program(text)]
    starter = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    group = {"SCALEBENCH_ADDRESSES": "127.0.0.1:5000", "SCALEBENCH_RUN_ID": "an id", "OMPI_COMM_WORLD_RANK": "0"}
    mpirun = subprocess.Popen([sys.executable, "-c", starter, *words], env=os.environ | group)
    try:
        wait_until((tmp_path / "up").exists)
    finally:
        mpirun.kill()
        mpirun.wait()
    pids = said(tmp_path / "pid0.json")
    both = [pids["agent"], pids["worker"]]
    try:
        wait_until(lambda: not alive(both), 10.0)
    finally:
        for pid in alive(both):
            os.kill(pid, signal.SIGKILL)


def test_who_is_not_started_by_mpirun_is_told(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in rank_agent.RANK_VARIABLES}
    command = [sys.executable, "-m", "scalebench.runner.launchers.rank_agent", str(tmp_path), "stand_in"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    words = "no rank in OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID: this is for mpirun or srun to start"
    assert (done.returncode, done.stderr) == (2, f"scalebench.runner.launchers.rank_agent: {words}\n")


def test_ranks_by_the_variables_of_each_mpirun() -> None:
    assert rank_agent.mpi_rank({"OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "4"}) == 3
    assert rank_agent.mpi_rank({"PMIX_RANK": "4"}) == 4
    assert rank_agent.mpi_rank({"PMI_RANK": "5"}) == 5
    assert rank_agent.mpi_rank({"SLURM_PROCID": "6"}) == 6
    assert rank_agent.mpi_rank({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "2"}) == 2, "mpirun within a job"
    with pytest.raises(LookupError):
        rank_agent.mpi_rank({"RANK": "6"})


ADDRESSES = ["127.0.0.1:5000", "127.0.0.1:5001"]
RANK_1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_RANK": "0"}
UP = "(folder / 'up').touch(); time.sleep(600)"


def spec_of() -> RunSpec:
    spec = simulated_spec(2)
    spec.config.strategy.launcher = "by_hand"
    return spec


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[Any]:
    """Start `python -m scalebench.runner.worker FOLDER`, as torchrun does for rank 1 of 2, while somebody waits or not."""
    started: list[subprocess.Popen[str]] = []

    def start(module: str | None, **changes: str) -> subprocess.Popen[str]:
        write_spec(spec_of(), tmp_path)
        if module is not None:
            waiting = {"run_id": "an id", "addresses": ADDRESSES, "module": module}
            (tmp_path / TORCHRUN_FILE).write_text(json.dumps(waiting))
        env = {**os.environ, "OMP_NUM_THREADS": "7", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "9"}
        command = [sys.executable, "-m", "scalebench.runner.worker", str(tmp_path)]
        started.append(subprocess.Popen(command, env={**env, **RANK_1, **changes}, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_its_surroundings_are_those_of_every_rank(by_hand: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    names = (
        "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS TORCHELASTIC_USE_AGENT_STORE GROUP_RANK "
        "GLOO_SOCKET_IFNAME SCALEBENCH_ADDRESSES SCALEBENCH_RUN_ID"
    )
    one = by_hand(program(f"print(*(os.environ.get(n) for n in '{names}'.split()), sep='|')"))
    assert one.wait(60) == 0
    threads = spec_of().places[1].threads
    assert (tmp_path / "rank1.log").read_text() == (
        f"1|1|2|127.0.0.1|5000|{threads}|None|None|lo|{','.join(ADDRESSES)}|an id\n"
    )
    pids = json.loads((tmp_path / "pid1.json").read_text())
    assert (pids["host"], pids["agent"]) == (os.uname().nodename, one.pid), "it stays the process that was started"
    assert said(tmp_path / "exit1.json") == {"code": 0, "terminated_by_launcher": False}


@pytest.mark.slow
@pytest.mark.parametrize(("well", "status"), [(True, 0), (False, 1)])
def test_it_ends_when_it_is_told_in_the_folder(
    well: bool, status: int, by_hand: Any, program: Callable[[str], str], tmp_path: Path
) -> None:
    """Of a run that did not go well, badly: torchrun waits for those of other nodes otherwise."""
    one = by_hand(program(UP))
    wait_until((tmp_path / "up").exists)
    (tmp_path / STOP_FILE).write_text(json.dumps(well))
    assert one.wait(60) == status
    assert said(tmp_path / "exit1.json") == {
        "code": -signal.SIGTERM,
        "terminated_by_launcher": True,
    }


@pytest.mark.slow
def test_it_ends_when_the_row_is_there(by_hand: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    """Also a worker that does not listen, after a failure that everybody knows of by then."""
    one = by_hand(program("signal.signal(signal.SIGTERM, signal.SIG_IGN); " + UP))
    wait_until((tmp_path / "up").exists)
    (tmp_path / "result.json").touch()
    assert one.wait(60) == 1
    assert said(tmp_path / "exit1.json") == {
        "code": -signal.SIGKILL,
        "terminated_by_launcher": True,
    }


def test_after_a_bad_end_it_stays_until_it_is_told(by_hand: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    one = by_hand(program("sys.exit(7)"))
    wait_until((tmp_path / "exit1.json").exists)
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0.3)
    (tmp_path / STOP_FILE).write_text("false")
    assert one.wait(5) == 1, "long before it would have left by itself"
    assert said(tmp_path / "exit1.json") == {"code": 7, "terminated_by_launcher": False}


def test_nobody_waits_for_it(by_hand: Any, tmp_path: Path) -> None:
    one = by_hand(None)
    assert (one.wait(60), one.stderr.read()) == (
        2,
        f"scalebench.runner.worker: no scalebench waits for ranks of {tmp_path}; start one with strategy.launcher=by_hand\n",
    )
    (tmp_path / "result.json").touch()
    assert "its run is over" in by_hand(None).stderr.read()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scalebench.runner.worker", str(tmp_path / "elsewhere")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        f"scalebench.runner.worker: {os.uname().nodename} sees no {tmp_path}/elsewhere/spec.json; "
        "a run's folder has to be on a file system that all its hosts share\n",
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"LOCAL_RANK": None, "GROUP_RANK": None}, None),
        ({"RANK": None}, "RANK is not set: start this with torchrun, as the waiting program says"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE is not set: start this with torchrun, as the waiting program says"),
        ({"RANK": "x"}, "RANK=x is no number"),
        ({"WORLD_SIZE": "3"}, "RANK=1 of WORLD_SIZE=3 does not fit the run, which has 2 processes on 1 nodes"),
        ({"RANK": "2"}, "RANK=2 of WORLD_SIZE=2 does not fit the run, which has 2 processes on 1 nodes"),
        ({"RANK": "-1"}, "RANK=-1 of WORLD_SIZE=2 does not fit"),
        ({"LOCAL_RANK": "0"}, "rank 1 should have LOCAL_RANK=1 and has 0; see --nproc-per-node of each node"),
        ({"GROUP_RANK": "1"}, "rank 1 should have GROUP_RANK=0 and has 1"),
    ],
)
def test_variables_that_do_not_fit_the_run(changes: dict[str, str | None], told: str | None) -> None:
    variables = {name: value for name, value in (RANK_1 | changes).items() if value is not None}
    if told is None:
        assert torchrun_rank(variables, spec_of()) == 1
        return
    with pytest.raises(InputError) as caught:
        torchrun_rank(variables, spec_of())
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)
