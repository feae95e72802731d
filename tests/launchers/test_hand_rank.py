"""The keeper of a rank that is started by hand: the folder of the run has its surroundings, and tells it to end."""

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

from scalebench.launchers.hand_rank import STOP_FILE, WAITING_FILE, rank_of
from scalebench.spec import InputError, RunSpec, write_spec
from tests.helpers import simulated_spec, wait_until

ADDRESSES = ["127.0.0.1:5000", "127.0.0.1:5001"]
RANK_1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_RANK": "0"}
UP = "(folder / 'up').touch(); time.sleep(600)"


def spec_of() -> RunSpec:
    spec = simulated_spec(2)
    spec.config.strategy.launcher = "by_hand"
    return spec


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[Any]:
    """Start `python -m scalebench.worker FOLDER`, as torchrun does for rank 1 of 2, while somebody waits or not."""
    started: list[subprocess.Popen[str]] = []

    def start(module: str | None, **changes: str) -> subprocess.Popen[str]:
        write_spec(spec_of(), tmp_path)
        if module is not None:
            waiting = {"run_id": "an id", "addresses": ADDRESSES, "module": module}
            (tmp_path / WAITING_FILE).write_text(json.dumps(waiting))
        env = {**os.environ, "OMP_NUM_THREADS": "7", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "9"}
        command = [sys.executable, "-m", "scalebench.worker", str(tmp_path)]
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
    assert (pids["host"], pids["keeper"]) == (os.uname().nodename, one.pid), "it stays the process that was started"
    assert json.loads((tmp_path / "exit1.json").read_text()) == {"code": 0, "told": False}


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
    assert json.loads((tmp_path / "exit1.json").read_text()) == {"code": -signal.SIGTERM, "told": True}


@pytest.mark.slow
def test_it_ends_when_the_row_is_there(by_hand: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    """Also a worker that does not listen, after a failure that everybody knows of by then."""
    one = by_hand(program("signal.signal(signal.SIGTERM, signal.SIG_IGN); " + UP))
    wait_until((tmp_path / "up").exists)
    (tmp_path / "result.json").touch()
    assert one.wait(60) == 1
    assert json.loads((tmp_path / "exit1.json").read_text()) == {"code": -signal.SIGKILL, "told": True}


def test_after_a_bad_end_it_stays_until_it_is_told(by_hand: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    one = by_hand(program("sys.exit(7)"))
    wait_until((tmp_path / "exit1.json").exists)
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0.3)
    (tmp_path / STOP_FILE).write_text("false")
    assert one.wait(5) == 1, "long before it would have left by itself"
    assert json.loads((tmp_path / "exit1.json").read_text()) == {"code": 7, "told": False}


def test_nobody_waits_for_it(by_hand: Any, tmp_path: Path) -> None:
    one = by_hand(None)
    assert (one.wait(60), one.stderr.read()) == (
        2,
        f"scalebench.worker: no scalebench waits for ranks of {tmp_path}; start one with strategy.launcher=by_hand\n",
    )
    (tmp_path / "result.json").touch()
    assert "its run is over" in by_hand(None).stderr.read()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scalebench.worker", str(tmp_path / "elsewhere")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        f"scalebench.worker: {os.uname().nodename} sees no {tmp_path}/elsewhere/spec.json; "
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
        assert rank_of(variables, spec_of()) == 1
        return
    with pytest.raises(InputError) as caught:
        rank_of(variables, spec_of())
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)
