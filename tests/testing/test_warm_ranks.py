"""Ranks that are forked: they see what a new process sees, and where they would not, they are new processes."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from subprocess import Popen

import psutil
import pytest

from scalebench.core.machine import gpus
from scalebench.core.process import build_python_command
from scalebench.core.spec import write_spec
from scalebench.runner.launchers import local
from scalebench.runner.launchers.rank_environment import build_environment
from tests.builders.runs import find_running, simulated_spec, wait_until
from tests.builders.warm_program import WarmSession
from tests.builders.warm_ranks import WarmProcess

RANK = "tests.testing.warm_rank_modules"
LIMIT_S = 300.0


def start_rank(start, task, folder, rank=0, **variables):
    """Start a rank of a run on two devices, and return it and its log."""
    folder.mkdir(exist_ok=True)
    (folder / "task").write_text(task)
    spec = simulated_spec(gpus=2)
    write_spec(spec, folder)
    environment = build_environment(spec, "an id", rank, ("127.0.0.1:1", "127.0.0.1:2")) | variables
    log = folder / f"log{rank}"
    return start(build_python_command("-m", RANK, str(folder)), environment, log, False, None), log


def read_answer(start, task, folder, rank=0):
    process, log = start_rank(start, task, folder, rank)
    assert process.wait(LIMIT_S) == 0, log.read_text()
    return json.loads(log.read_text())


def is_forked(start, folder, **variables):
    process, log = start_rank(start, "end", folder, **variables)
    assert process.wait(LIMIT_S) == 0, log.read_text()
    return isinstance(process, WarmProcess)


@pytest.mark.cold  # else both would be forked
def test_it_sees_what_a_new_process_sees(warm_ranks, tmp_path, monkeypatch):
    """Also a folder and modules' folders that differ from those of the process that forks it."""
    assert is_forked(warm_ranks.start_program, tmp_path / "first")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)]))
    monkeypatch.setenv("SCALEBENCH_IMAGENET", "a folder")
    new = read_answer(local.start_program, "describe", tmp_path / "run")
    assert new["environment"]["SCALEBENCH_IMAGENET"] == "a folder" and new["environment"]["OMP_NUM_THREADS"]
    assert read_answer(warm_ranks.start_program, "describe", tmp_path / "run") == new


def test_ranks_have_random_numbers_and_hash_seeds_of_their_own(warm_ranks, tmp_path):
    answers = [read_answer(warm_ranks.start_program, "draw", tmp_path / "run", rank) for rank in (0, 0, 1)]
    hashes, numbers, pids = zip(*answers, strict=True)
    assert (len(set(hashes)), len(set(numbers)), len(set(pids))) == (2, 3, 3)


@pytest.mark.parametrize(("task", "status"), [("end", 0), ("fail", 7), ("raise", 1)])
def test_its_exit_status_and_its_log_are_those_of_its_module(task, status, warm_ranks, tmp_path):
    process, log = start_rank(warm_ranks.start_program, task, tmp_path / "run")
    assert (process.wait(LIMIT_S), process.poll()) == (status, status)
    assert ("RuntimeError: as it should" in log.read_text()) == (task == "raise")


def test_a_signal_ends_it(warm_ranks, tmp_path):
    process, _ = start_rank(warm_ranks.start_program, "wait", tmp_path / "run")
    wait_until((tmp_path / "run" / "waits0").exists)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == -signal.SIGTERM
    process.send_signal(signal.SIGTERM)  # nobody gets it


def test_it_ends_with_the_process_that_forked_it_and_without_that_is_a_new_process(tmp_path):
    with closing(WarmSession()) as ranks:
        process, _ = start_rank(ranks.start_program, "wait", tmp_path / "run")
        wait_until((tmp_path / "run" / "waits0").exists)
        for pid in ranks.pids:
            os.kill(pid, signal.SIGKILL)
        assert process.wait(LIMIT_S) == -signal.SIGKILL and not is_forked(ranks.start_program, tmp_path / "again")
    wait_until(lambda: not find_running([process.pid]))


def test_where_a_gpu_is_visible_or_a_variable_was_read_on_import_nothing_is_forked(warm_ranks, tmp_path, monkeypatch):
    assert not is_forked(warm_ranks.start_program, tmp_path / "run", TF_CPP_MIN_LOG_LEVEL="0")
    assert is_forked(warm_ranks.start_program, tmp_path / "again", OMP_NUM_THREADS="3")
    monkeypatch.setattr(gpus, "count_gpus", lambda: 1)
    assert not is_forked(warm_ranks.start_program, tmp_path / "run")


NO_RUN = [sys.executable, "-m", "scalebench", "gpus=0"]


def test_the_program_does_what_a_new_process_does(warm_ranks, tmp_path):
    answers = []
    for start in (warm_ranks.popen, Popen):
        with start(NO_RUN, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            is_copy = psutil.Process(process.pid).ppid() in warm_ranks.pids
            answers.append((*process.communicate(timeout=LIMIT_S), process.returncode))
            assert is_copy == (start is warm_ranks.popen)
    assert answers[0] == answers[1] == ("", "scalebench: gpus=0 should be at least 1\n", 2)
