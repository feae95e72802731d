"""The keeper of a rank: what mpirun starts, here started by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalebench.launchers import mpi_rank
from scalebench.spec import write_spec
from tests.helpers import alive, simulated_spec, wait_until

# With less patience than the real one has, where a test wants that.
KEEPER = (
    "import os, sys; from scalebench.launchers import mpi_rank; mpi_rank.HOLD_S = {}; "
    "os._exit(mpi_rank.main(sys.argv[1:]))"
)
HELD_S = 60.0  # longer than any test takes


@pytest.fixture
def keeper(tmp_path: Path) -> Any:
    """Start the keeper of rank 1 of 2 with a module as its worker."""
    started: list[subprocess.Popen[str]] = []

    def start(module: str, hold_s: float = HELD_S, first: str = "pass") -> subprocess.Popen[str]:
        write_spec(simulated_spec(gpus=2), tmp_path)
        group = {"SCALEBENCH_ADDRESSES": "127.0.0.1:5000,127.0.0.1:5001", "SCALEBENCH_RUN_ID": "an id"}
        env = {**os.environ, "OMPI_COMM_WORLD_RANK": "1", **group}
        command = [sys.executable, "-c", f"{first}; {KEEPER.format(hold_s)}", str(tmp_path), module]
        started.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(path: Path) -> Any:
    wait_until(path.exists)
    return json.loads(path.read_text())


def test_a_worker_that_ends_well(keeper: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    names = "RANK WORLD_SIZE MASTER_PORT SCALEBENCH_ADDRESSES SCALEBENCH_RUN_ID SCALEBENCH_PARENT_PID"
    one = keeper(program(f"print(os.getpid(), *(os.environ[n] for n in '{names}'.split()), file=sys.stderr)"))
    assert one.wait(60) == 0
    pid, *rest = (tmp_path / "rank1.log").read_text().split()
    assert rest == ["1", "2", "5000", "127.0.0.1:5000,127.0.0.1:5001", "an", "id", str(one.pid)]
    pids = said(tmp_path / "pid1.json")
    assert pids == {"host": os.uname().nodename, "keeper": one.pid, "worker": int(pid)}
    assert said(tmp_path / "exit1.json") == {"code": 0, "told": False}


@pytest.mark.parametrize(
    ("end", "code", "status"), [("sys.exit(7)", 7, 7), ("os.kill(os.getpid(), signal.SIGKILL)", -9, 137)]
)
def test_after_a_bad_end_it_stays_for_a_while(
    end: str, code: int, status: int, keeper: Any, program: Callable[[str], str], tmp_path: Path
) -> None:
    module = program(end)
    one = keeper(module)
    assert said(tmp_path / "exit1.json") == {"code": code, "told": False}
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0.3)
    one.terminate()
    assert one.wait(60) == 0, "mpirun has nothing to find out"
    assert said(tmp_path / "exit1.json") == {"code": code, "told": False}
    assert keeper(module, hold_s=0.1).wait(60) == status, "nobody told it to end"


def test_sigterm_goes_on_to_the_worker(keeper: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    one = keeper(program("(folder / 'up').touch(); time.sleep(600)"))
    wait_until((tmp_path / "up").exists)
    one.terminate()
    assert one.wait(60) == 0
    assert said(tmp_path / "exit1.json") == {"code": -signal.SIGTERM, "told": True}


def test_sigterm_before_there_is_a_worker(keeper: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    """It may come while the worker is being started."""
    program("signal.pause()")
    (tmp_path / "early.py").write_text(
        "import os, signal, sys\n"
        "from scalebench.launchers import mpi_rank\n"
        "start = mpi_rank.subprocess.Popen\n"
        "def late(*args, **options):\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    return start(*args, **options)\n"
        "mpi_rank.subprocess.Popen = late\n"
    )
    one = keeper("stand_in", first="import early")
    assert one.wait(60) == 0
    assert said(tmp_path / "exit1.json") == {"code": -signal.SIGTERM, "told": True}


def test_a_request_for_stacks_goes_on(keeper: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    handler = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))"
    one = keeper(program(f"{handler}; (folder / 'up').touch(); signal.pause()"))
    wait_until((tmp_path / "up").exists)
    one.send_signal(signal.SIGUSR1)
    assert said(tmp_path / "exit1.json") == {"code": 3, "told": False}


def test_children_that_outlive_the_worker_are_ended(keeper: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    text = "child = os.fork()\nif child == 0:\n    time.sleep(600)\n(folder / 'child').write_text(str(child))"
    assert keeper(program(text)).wait(60) == 0
    wait_until(lambda: not alive([int((tmp_path / "child").read_text())]), 5.0)


def test_a_worker_ends_with_its_keeper(keeper: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    text = "from scalebench.worker import end_with_parent\nend_with_parent()\n(folder / 'up').touch()\ntime.sleep(600)"
    one = keeper(program(text))
    wait_until((tmp_path / "up").exists)
    one.kill()
    wait_until(lambda: not alive([said(tmp_path / "pid1.json")["worker"]]), 10.0)
    assert not (tmp_path / "exit1.json").exists()


@pytest.mark.parametrize(("step", "told"), [("0", True), (None, False)])
def test_in_a_step_the_worker_may_be_told_first(
    step: str | None, told: bool, keeper: Any, program: Callable[[str], str], tmp_path: Path
) -> None:
    """SLURM sends SIGTERM to every process of a step; elsewhere a worker that gets it alone was killed by it."""
    first = "import os, signal, threading; from scalebench.launchers import mpi_rank; mpi_rank.ALSO_TOLD_S = 5.0"
    if step is not None:
        first += f"; os.environ['SLURM_STEP_ID'] = '{step}'"
    one = keeper(program("os.kill(os.getpid(), signal.SIGTERM)"), hold_s=0.1, first=first)
    wait_until((tmp_path / "pid1.json").exists)
    wait_until(lambda: not alive([said(tmp_path / "pid1.json")["worker"]]))
    if told:
        one.terminate()
    one.wait(60)
    assert said(tmp_path / "exit1.json") == {"code": -signal.SIGTERM, "told": told}


def test_a_keeper_ends_with_what_started_it(tmp_path: Path, program: Callable[[str], str]) -> None:
    """mpirun, which may be killed; the worker ends with the keeper then."""
    write_spec(simulated_spec(), tmp_path)
    text = "from scalebench.worker import end_with_parent\nend_with_parent()\n(folder / 'up').touch()\ntime.sleep(600)"
    words = [sys.executable, "-m", "scalebench.launchers.mpi_rank", str(tmp_path), program(text)]
    starter = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    group = {"SCALEBENCH_ADDRESSES": "127.0.0.1:5000", "SCALEBENCH_RUN_ID": "an id", "OMPI_COMM_WORLD_RANK": "0"}
    mpirun = subprocess.Popen([sys.executable, "-c", starter, *words], env=os.environ | group)
    try:
        wait_until((tmp_path / "up").exists)
    finally:
        mpirun.kill()
        mpirun.wait()
    pids = said(tmp_path / "pid0.json")
    both = [pids["keeper"], pids["worker"]]
    try:
        wait_until(lambda: not alive(both), 10.0)
    finally:
        for pid in alive(both):
            os.kill(pid, signal.SIGKILL)


def test_who_is_not_started_by_mpirun_is_told(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in mpi_rank.RANK_VARIABLES}
    command = [sys.executable, "-m", "scalebench.launchers.mpi_rank", str(tmp_path), "stand_in"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    words = "no rank in OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID: this is for mpirun or srun to start"
    assert (done.returncode, done.stderr) == (2, f"scalebench.launchers.mpi_rank: {words}\n")


def test_ranks_by_the_variables_of_each_mpirun() -> None:
    assert mpi_rank.rank_of({"OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "4"}) == 3
    assert mpi_rank.rank_of({"PMIX_RANK": "4"}) == 4
    assert mpi_rank.rank_of({"PMI_RANK": "5"}) == 5
    assert mpi_rank.rank_of({"SLURM_PROCID": "6"}) == 6
    assert mpi_rank.rank_of({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "2"}) == 2, "mpirun within a job"
    with pytest.raises(LookupError):
        mpi_rank.rank_of({"RANK": "6"})
