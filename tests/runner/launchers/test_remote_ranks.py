"""Ranks under mpirun, followed by the launcher through the files of their agents."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from scalebench.core.json_files import write_json
from scalebench.core.run_folder import RankProcesses, WorkerExit, rank_processes_path, read_rank_file, worker_exit_path
from scalebench.runner.launchers import remote_ranks
from scalebench.runner.launchers.remote_ranks import RemoteRank, RemoteRanks
from scalebench.runner.launchers.supervise import STACK_SIGNAL
from tests.builders.runs import wait_until

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


def started(folder, pair, host=HOST):
    write_json(rank_processes_path(folder, 1), RankProcesses(host, pair[0].pid, pair[1].pid))
    return RemoteRank(folder, 1)


def state(rank):
    return rank.poll(), rank.over, rank.terminated, rank.lost


def test_a_rank_that_runs_or_has_not_started(tmp_path, pair):
    """A zombie is not alive: mpirun may not have waited for its children yet."""
    rank = RemoteRank(tmp_path, 1)
    assert (rank.pid, rank.alive(), *state(rank)) == (None, False, None, False, False, False)
    rank.signal(signal.SIGKILL)
    rank = started(tmp_path, pair)
    assert (rank.pid, rank.alive(), *state(rank)) == (pair[1].pid, True, None, False, False, False)
    for process in pair:
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not rank.alive(), 10.0)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (WorkerExit(0, False), (0, True, False, False)),
        (WorkerExit(7, False), (7, True, False, False)),
        (WorkerExit(-9, False), (-9, True, False, False)),
        (WorkerExit(-15, True), (None, True, True, False)),
        (WorkerExit(0, True), (0, True, False, False)),  # it had finished before
    ],
)
def test_a_rank_after_its_end(end, expected, tmp_path, pair):
    rank = started(tmp_path, pair)
    assert rank.poll() is None
    write_json(worker_exit_path(tmp_path, 1), end)
    assert state(rank) == expected
    assert rank.alive(), "its agent stays for a while"


def test_a_rank_whose_agent_was_killed_is_lost(tmp_path, pair):
    rank = started(tmp_path, pair)
    pair[0].kill()
    pair[0].wait()
    assert state(rank) == (-signal.SIGKILL, True, False, True)
    assert rank.alive(), "the worker still runs here"
    rank.signal(signal.SIGKILL)
    assert pair[1].wait(10) == -signal.SIGKILL
    assert not rank.alive()


def test_signals_reach_the_worker_and_its_agent(tmp_path, pair):
    """A request for the stack reaches only the worker."""
    rank = started(tmp_path, pair)
    rank.signal(STACK_SIGNAL)
    assert pair[1].wait(10) == -STACK_SIGNAL
    assert pair[0].poll() is None
    rank.signal(signal.SIGTERM)
    assert pair[0].wait(10) == -signal.SIGTERM


def test_a_rank_on_another_host_is_followed_only_by_its_files(tmp_path, pair):
    """Its process ids may belong to other processes on this host."""
    rank = started(tmp_path, pair, host="far")
    rank.signal(signal.SIGKILL)
    assert (rank.pid, rank.alive(), *state(rank)) == (None, False, None, False, False, False)
    assert [process.poll() for process in pair] == [None, None]
    write_json(worker_exit_path(tmp_path, 1), WorkerExit(3, False))
    assert rank.poll() == 3


def test_files_that_an_nfs_client_remembers_as_missing_are_seen(tmp_path, monkeypatch):
    """A file that was looked for before it was there is seen when its folder has been opened again."""
    known = set()

    def read(path, *rest):
        return read_rank_file(path, *rest) if path.name in known else None

    def list_names(folder):
        known.update(entry.name for entry in os.scandir(folder))
        return sorted(known)

    monkeypatch.setattr(remote_ranks, "read_rank_file", read)
    monkeypatch.setattr(os, "listdir", list_names)
    ranks = RemoteRanks(tmp_path, 1, "srun", "srun.log", lambda log: None)
    ranks.starter = SimpleNamespace(poll=lambda: 0)
    assert not ranks.members[0].over
    write_json(worker_exit_path(tmp_path, 0), WorkerExit(0, False))
    assert ranks.broken() is None and ranks.members[0].poll() == 0
