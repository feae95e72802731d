"""The agent of a rank, which mpirun or torchrun starts, here the test; and ranks that are followed by its files."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from scalebench.core import run_folder
from scalebench.core.errors import InputError
from scalebench.core.json_files import write_json
from scalebench.core.spec import write_spec
from scalebench.runner.launchers import rank_agent, remote_ranks
from scalebench.runner.launchers.rank_agent import read_torchrun_rank
from scalebench.runner.launchers.remote_ranks import RemoteRank, RemoteRanks
from scalebench.runner.launchers.supervise import STACK_SIGNAL, TURN_SIGNAL
from tests.builders.runs import find_running, simulated_spec, wait_until

# An agent that stays for a shorter time after a failure, where a test needs that.
AGENT = (
    "import os, sys; from scalebench.runner.launchers import rank_agent; rank_agent.STAY_AFTER_FAILURE_S = {}; "
    "os._exit(rank_agent.main(sys.argv[1:]))"
)
WITH_PARENT = """
from scalebench.runner.worker import end_with_parent
end_with_parent()
(folder / "up").touch()
time.sleep(600)
"""
STAY_S = 60.0  # longer than any test takes


@pytest.fixture
def started():
    """Return a function that starts a process, which is killed at the end of the test."""
    processes = []

    def start(command, **variables):
        environment = {**os.environ, **variables}
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for each in processes:
        each.kill()
        each.communicate()


@pytest.fixture
def agent(tmp_path, started):
    """Start the agent of rank 1 of 2 with a module as its worker."""

    def start(module, stay_s=STAY_S, first="pass"):
        write_spec(simulated_spec(gpus=2), tmp_path)
        group = {"SCALEBENCH_ADDRESSES": "127.0.0.1:5000,127.0.0.1:5001", "SCALEBENCH_RUN_ID": "an id"}
        command = [sys.executable, "-c", f"{first}; {AGENT.format(stay_s)}", str(tmp_path), module]
        return started(command, OMPI_COMM_WORLD_RANK="1", **group)

    return start


def read_when_written(path):
    wait_until(path.exists)
    tree = json.loads(path.read_text())
    assert tree.pop("run_id") == "an id"
    return tree


def test_a_worker_that_succeeds(agent, program, tmp_path):
    names = "RANK WORLD_SIZE MASTER_PORT SCALEBENCH_ADDRESSES SCALEBENCH_RUN_ID SCALEBENCH_PARENT_PID"
    process = agent(program(f"print(os.getpid(), *(os.environ[n] for n in '{names}'.split()), file=sys.stderr)"))
    assert process.wait(60) == 0
    pid, *rest = (tmp_path / "rank1.log").read_text().split()
    assert rest == ["1", "2", "5000", "127.0.0.1:5000,127.0.0.1:5001", "an", "id", str(process.pid)]
    pids = read_when_written(tmp_path / "pid1.json")
    assert pids == {"host": os.uname().nodename, "agent": process.pid, "worker": int(pid)}
    assert read_when_written(tmp_path / "exit1.json") == {"code": 0, "terminated_by_launcher": False}


@pytest.mark.parametrize(
    ("end", "code", "status"), [("sys.exit(7)", 7, 7), ("os.kill(os.getpid(), signal.SIGKILL)", -9, 137)]
)
def test_after_a_failure_the_agent_stays_for_a_while(end, code, status, agent, program, tmp_path):
    module = program(end)
    process = agent(module)
    assert read_when_written(tmp_path / "exit1.json") == {"code": code, "terminated_by_launcher": False}
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.terminate()
    assert process.wait(60) == 0, "mpirun should report no failure"
    assert read_when_written(tmp_path / "exit1.json") == {"code": code, "terminated_by_launcher": False}
    assert agent(module, stay_s=0.1).wait(60) == status, "nothing ended it"


EARLY = """
import os, signal, sys
from scalebench.runner.launchers import rank_agent
start = rank_agent.subprocess.Popen
def late(*args, **options):
    signal.raise_signal(signal.SIGTERM)
    return start(*args, **options)
rank_agent.subprocess.Popen = late
"""


@pytest.mark.parametrize("early", [False, True], ids=["while it runs", "while it is being started"])
def test_sigterm_is_forwarded_to_the_worker(early, agent, program, tmp_path):
    (tmp_path / "early.py").write_text(EARLY)
    module = program("(folder / 'up').touch(); time.sleep(600)")
    process = agent(module, first="import early" if early else "pass")
    if not early:
        wait_until((tmp_path / "up").exists)
        process.terminate()
    assert process.wait(60) == 0
    assert read_when_written(tmp_path / "exit1.json") == {"code": -signal.SIGTERM, "terminated_by_launcher": True}


def test_an_agent_parks_its_worker_when_its_turn_is_over(agent, program, tmp_path):
    """SLURM sends the signal to all processes of a step. A parked worker is ended like any other."""
    process = agent(program("(folder / 'up').touch(); time.sleep(600)"))
    wait_until((tmp_path / "up").exists)
    worker = psutil.Process(read_when_written(tmp_path / "pid1.json")["worker"])
    paused = tmp_path / "paused1.json"
    for number in range(2):
        write_json(run_folder.turn_path(tmp_path), run_folder.Turn(number, over=True))
        for receiver in (worker, process):
            receiver.send_signal(TURN_SIGNAL)
        wait_until(lambda number=number: paused.exists() and json.loads(paused.read_text())["turn"] == number)
        assert worker.status() == psutil.STATUS_STOPPED
        if number == 0:
            process.send_signal(TURN_SIGNAL)  # before a shared file system shows the turn
            time.sleep(0.1)
            write_json(run_folder.turn_path(tmp_path), run_folder.Turn(1, 0.5))
            wait_until(lambda: worker.status() != psutil.STATUS_STOPPED)
    process.terminate()
    assert process.wait(60) == 0
    assert read_when_written(tmp_path / "exit1.json") == {"code": -signal.SIGTERM, "terminated_by_launcher": True}


def test_a_request_for_stacks_is_forwarded(agent, program, tmp_path):
    """Not as SIGUSR1, for which the user's code may have a handler."""
    handler = f"signal.signal({int(STACK_SIGNAL)}, lambda *_: sys.exit(3))"
    process = agent(program(f"{handler}; (folder / 'up').touch(); signal.pause()"))
    wait_until((tmp_path / "up").exists)
    process.send_signal(signal.SIGUSR1)
    assert read_when_written(tmp_path / "exit1.json") == {"code": 3, "terminated_by_launcher": False}


def test_children_that_outlive_the_worker_are_ended(agent, program, tmp_path):
    text = "child = os.fork()\nif child == 0:\n    time.sleep(600)\n(folder / 'child').write_text(str(child))"
    assert agent(program(text)).wait(60) == 0
    wait_until(lambda: not find_running([int((tmp_path / "child").read_text())]), 5.0)


@pytest.mark.parametrize(("step", "terminated"), [("0", True), (None, False)])
def test_in_a_step_the_worker_may_get_sigterm_first(step, terminated, agent, program, tmp_path):
    """SLURM sends SIGTERM to every process of a step; elsewhere a worker that is the only one to get it was killed."""
    first = "import os; from scalebench.runner.launchers import rank_agent; rank_agent.SIGTERM_GAP_S = 5.0"
    if step is not None:
        first += f"; os.environ['SLURM_STEP_ID'] = '{step}'"
    process = agent(program("os.kill(os.getpid(), signal.SIGTERM)"), stay_s=0.1, first=first)
    wait_until((tmp_path / "pid1.json").exists)
    wait_until(lambda: not find_running([read_when_written(tmp_path / "pid1.json")["worker"]]))
    if terminated:
        process.terminate()
    process.wait(60)
    assert read_when_written(tmp_path / "exit1.json") == {"code": -signal.SIGTERM, "terminated_by_launcher": terminated}


def test_an_agent_ends_with_the_program_that_started_it(tmp_path, program):
    """mpirun may be killed; the worker ends with the agent."""
    write_spec(simulated_spec(), tmp_path)
    command = [sys.executable, "-m", "scalebench.runner.launchers.rank_agent", str(tmp_path), program(WITH_PARENT)]
    starter = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    group = {"SCALEBENCH_ADDRESSES": "127.0.0.1:5000", "SCALEBENCH_RUN_ID": "an id", "OMPI_COMM_WORLD_RANK": "0"}
    mpirun = subprocess.Popen([sys.executable, "-c", starter, *command], env=os.environ | group)
    try:
        wait_until((tmp_path / "up").exists)
    finally:
        mpirun.kill()
        mpirun.wait()
    pids = read_when_written(tmp_path / "pid0.json")
    both = [pids["agent"], pids["worker"]]
    try:
        wait_until(lambda: not find_running(both), 10.0)
    finally:
        for pid in find_running(both):
            os.kill(pid, signal.SIGKILL)


def test_an_agent_has_one_thread():
    """Those of numpy would take signals, and leave the main thread waiting for its worker."""
    text = "import os; from scalebench.runner.launchers import rank_agent; print(len(os.listdir('/proc/self/task')))"
    assert subprocess.check_output([sys.executable, "-c", text], timeout=60) == b"1\n"


def test_the_rank_is_read_from_the_variables_of_each_mpirun(tmp_path, monkeypatch, capsys):
    for text, rank in {
        "OMPI_COMM_WORLD_RANK=3 PMIX_RANK=4": 3,
        "PMIX_RANK=4": 4,
        "PMI_RANK=5": 5,
        "SLURM_PROCID=6": 6,
        "SLURM_PROCID=0 OMPI_COMM_WORLD_RANK=2": 2,  # mpirun within a job
    }.items():
        assert rank_agent.read_mpi_rank(dict(word.split("=") for word in text.split())) == rank
    for name in rank_agent.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert rank_agent._run_under_mpi(tmp_path, "stand_in") == 2
    reason = "no rank in OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID: this is for mpirun or srun to start"
    assert capsys.readouterr().err == f"scalebench.runner.launchers.rank_agent: {reason}\n"


ADDRESSES = ["127.0.0.1:5000", "127.0.0.1:5001"]
RANK_1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_RANK": "0"}


def by_hand_spec():
    spec = simulated_spec(2)
    spec.config.strategy.launcher = "by_hand"
    return spec


@pytest.fixture
def by_hand(tmp_path, started):
    """Start `python -m scalebench.runner.worker FOLDER`, as torchrun does for rank 1 of 2."""

    def start(module):
        write_spec(by_hand_spec(), tmp_path)
        if module is not None:
            waiting = {"run_id": "an id", "addresses": ADDRESSES, "module": module}
            (tmp_path / run_folder.TORCHRUN_FILE).write_text(json.dumps(waiting))
        env = {"OMP_NUM_THREADS": "7", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "9", **RANK_1}
        return started([sys.executable, "-m", "scalebench.runner.worker", str(tmp_path)], **env)

    return start


def test_under_torchrun_a_rank_has_the_usual_environment(by_hand, program, tmp_path):
    names = (
        "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS TORCHELASTIC_USE_AGENT_STORE GROUP_RANK "
        "GLOO_SOCKET_IFNAME SCALEBENCH_ADDRESSES SCALEBENCH_RUN_ID"
    )
    process = by_hand(program(f"print(*(os.environ.get(n) for n in '{names}'.split()), sep='|')"))
    assert process.wait(60) == 0
    threads = by_hand_spec().places[1].threads
    assert (tmp_path / "rank1.log").read_text() == (
        f"1|1|2|127.0.0.1|5000|{threads}|None|None|lo|{','.join(ADDRESSES)}|an id\n"
    )
    pids = json.loads((tmp_path / "pid1.json").read_text())
    assert (pids["host"], pids["agent"]) == (os.uname().nodename, process.pid), "the process that torchrun started"
    assert read_when_written(tmp_path / "exit1.json") == {"code": 0, "terminated_by_launcher": False}


@pytest.mark.slow
def test_under_torchrun_a_result_ends_the_agent_of_a_worker_that_ignores_sigterm(by_hand, program, tmp_path):
    """The exit status is not 0, since torchrun would wait for other nodes otherwise."""
    process = by_hand(
        program("signal.signal(signal.SIGTERM, signal.SIG_IGN); (folder / 'up').touch(); time.sleep(600)")
    )
    wait_until((tmp_path / "up").exists)
    (tmp_path / "result.json").touch()
    assert process.wait(60) == 1
    assert read_when_written(tmp_path / "exit1.json") == {"code": -signal.SIGKILL, "terminated_by_launcher": True}


def test_under_torchrun_the_agent_stays_after_a_failure_until_stop_json(by_hand, program, tmp_path):
    process = by_hand(program("sys.exit(7)"))
    wait_until((tmp_path / "exit1.json").exists)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    (tmp_path / run_folder.STOP_FILE).write_text("false")
    assert process.wait(5) == 1, "long before the end of its stay"
    assert read_when_written(tmp_path / "exit1.json") == {"code": 7, "terminated_by_launcher": False}


def test_under_torchrun_an_agent_needs_a_launcher_that_waits(by_hand, tmp_path):
    process = by_hand(None)
    reason = f"no scalebench waits for ranks of {tmp_path}; start one with strategy.launcher=by_hand"
    assert (process.wait(60), process.stderr.read()) == (2, f"scalebench.runner.worker: {reason}\n")
    (tmp_path / "result.json").touch()
    assert "its run is over" in by_hand(None).stderr.read()


def test_a_folder_that_the_host_does_not_see_is_an_error(tmp_path):
    command = [sys.executable, "-m", "scalebench.runner.worker", str(tmp_path / "elsewhere")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    reason = f"{os.uname().nodename} sees no {tmp_path}/elsewhere/spec.json; a run's folder has to be on a file system"
    assert done.returncode == 1
    assert done.stderr == f"scalebench.runner.worker: {reason} that all its hosts share\n"


def test_torchrun_variables_have_to_fit_the_run():
    spec = by_hand_spec()
    assert read_torchrun_rank(RANK_1, spec) == read_torchrun_rank({"RANK": "1", "WORLD_SIZE": "2"}, spec) == 1
    for name, value, reason in (
        ("RANK", None, "RANK is not set: start this with torchrun, as the waiting program says"),
        ("WORLD_SIZE", None, "WORLD_SIZE is not set: start this with torchrun"),
        ("RANK", "x", "RANK=x is not a number"),
        ("WORLD_SIZE", "3", "RANK=1 of WORLD_SIZE=3 does not fit the run, of processes=2 nodes=1"),
        ("RANK", "2", "RANK=2 of WORLD_SIZE=2 does not fit"),
        ("RANK", "-1", "RANK=-1 of WORLD_SIZE=2 does not fit"),
        ("LOCAL_RANK", "0", "rank 1 should have LOCAL_RANK=1 and has 0; see each node's --nproc-per-node"),
        ("GROUP_RANK", "1", "rank 1 should have GROUP_RANK=0 and has 1"),
    ):
        variables = {key: text for key, text in (RANK_1 | {name: value}).items() if text is not None}
        with pytest.raises(InputError, match=f"^{reason}"):
            read_torchrun_rank(variables, spec)


# Ranks under mpirun, followed by the launcher through the files of their agents.
HOST = os.uname().nodename
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def pair():
    """Two processes that sleep: agent and worker, each in a group of its own."""
    both = [subprocess.Popen(SLEEP, start_new_session=True) for _ in range(2)]
    yield both
    for process in both:
        process.kill()
        process.wait()


def remote(folder, pair, host=HOST):
    write_json(run_folder.rank_processes_path(folder, 1), run_folder.RankProcesses(host, pair[0].pid, pair[1].pid))
    return RemoteRank(folder, 1)


def state(rank):
    return rank.poll(), rank.over, rank.terminated, rank.lost


ENDS = [
    (run_folder.WorkerExit(0, False), (0, True, False, False)),
    (run_folder.WorkerExit(7, False), (7, True, False, False)),
    (run_folder.WorkerExit(-9, False), (-9, True, False, False)),
    (run_folder.WorkerExit(-15, True), (None, True, True, False)),
    (run_folder.WorkerExit(0, True), (0, True, False, False)),  # it had finished before
]


def test_a_rank_is_followed_by_its_files_and_processes(tmp_path, pair):
    """A request for the stack reaches only the worker."""
    rank = RemoteRank(tmp_path, 1)
    assert (rank.pid, rank.alive(), *state(rank)) == (None, False, None, False, False, False), "it has not started"
    rank.signal(signal.SIGKILL)
    rank = remote(tmp_path, pair)
    assert (rank.pid, rank.alive(), *state(rank)) == (pair[1].pid, True, None, False, False, False)
    rank.signal(STACK_SIGNAL)
    assert pair[1].wait(10) == -STACK_SIGNAL and pair[0].poll() is None
    for end, expected in ENDS:
        rank = remote(tmp_path, pair)
        write_json(run_folder.worker_exit_path(tmp_path, 1), end)
        assert state(rank) == expected and rank.alive(), "its agent stays for a while"
    rank.signal(signal.SIGTERM)
    wait_until(lambda: not rank.alive(), 10.0)  # a zombie is not: mpirun may not have waited for its children yet
    assert pair[0].wait(10) == -signal.SIGTERM


def test_a_rank_whose_agent_was_killed_is_lost(tmp_path, pair):
    rank = remote(tmp_path, pair)
    pair[0].kill()
    pair[0].wait()
    assert state(rank) == (-signal.SIGKILL, True, False, True) and rank.alive(), "the worker still runs here"
    rank.signal(signal.SIGKILL)
    assert pair[1].wait(10) == -signal.SIGKILL and not rank.alive()


def test_a_rank_on_another_host_is_followed_only_by_its_files(tmp_path, pair):
    """Its process ids may belong to other processes on this host."""
    rank = remote(tmp_path, pair, host="far")
    rank.signal(signal.SIGKILL)
    assert (rank.pid, rank.alive(), *state(rank)) == (None, False, None, False, False, False)
    assert [process.poll() for process in pair] == [None, None]
    write_json(run_folder.worker_exit_path(tmp_path, 1), run_folder.WorkerExit(3, False))
    assert rank.poll() == 3


def test_files_that_an_nfs_client_remembers_as_missing_are_seen(tmp_path, monkeypatch):
    """A file that was looked for before it was there is seen when its folder has been opened again."""
    known = set()

    def read(path, *rest):
        return run_folder.read_rank_file(path, *rest) if path.name in known else None

    def list_names(folder):
        known.update(entry.name for entry in os.scandir(folder))
        return sorted(known)

    monkeypatch.setattr(remote_ranks, "read_rank_file", read)
    monkeypatch.setattr(os, "listdir", list_names)
    ranks = RemoteRanks(tmp_path, 1, "srun", "srun.log", lambda log: None)
    ranks.starter = SimpleNamespace(poll=lambda: 0)
    assert not ranks.members[0].over
    write_json(run_folder.worker_exit_path(tmp_path, 0), run_folder.WorkerExit(0, False))
    assert ranks.broken() is None and ranks.members[0].poll() == 0
