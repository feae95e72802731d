"""What a job of SLURM runs."""

import os
import signal
import subprocess
import sys

import pytest

from scalebench.core import process
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE, SPEC_FILE
from scalebench.core.spec import write_spec
from scalebench.runner.jobs import job_main
from tests.builders.runs import find_run_processes, find_running, record, simulated_spec, wait_until

BATCH = "import sys; from scalebench.runner.jobs.job_main import run_job; run_job(sys.argv[1])"


@pytest.fixture(autouse=True)
def handlers():
    """It is the only thing that its process does, and leaves its handlers."""
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    yield
    for sign, handler in before.items():
        signal.signal(sign, handler)
    process.cancelled.clear()


def replaced(monkeypatch, run):
    monkeypatch.setattr(job_main, "run_spec", run)


def test_a_job_performs_the_run_of_its_folder(tmp_path, monkeypatch, capsys):
    spec = simulated_spec(gpus=2)
    write_spec(spec, tmp_path)
    requests = []

    def run(*words):
        requests.append(words)
        return record("simulated", gpus=2, status="failed", reason="failed as configured")

    replaced(monkeypatch, run)
    job_main.run_job(str(tmp_path))
    assert requests == [(spec, tmp_path)]
    assert capsys.readouterr().out == "scalebench: simulated gpus=2 failed: failed as configured\n"


def test_sigterm_cancels_the_run(tmp_path, monkeypatch, capsys):
    """Whatever handler stood there before: submitit's passes it by."""
    write_spec(simulated_spec(), tmp_path)
    signal.signal(signal.SIGTERM, lambda *_: None)
    replaced(monkeypatch, lambda *_: os.kill(os.getpid(), signal.SIGTERM) or process.wait_until(lambda: False, 10.0))
    job_main.run_job(str(tmp_path))
    assert capsys.readouterr().out == "scalebench: cancelled\n"


@pytest.mark.parametrize("lacking", [SPEC_FILE, RESULT_FILE])
def test_a_folder_without_a_valid_run_is_an_error_in_the_log(lacking, tmp_path, capsys):
    """A job that SLURM has restarted finds the result of the first start."""
    if lacking == RESULT_FILE:
        write_spec(simulated_spec(), tmp_path)
        (tmp_path / RESULT_FILE).write_text("{}")
    job_main.run_job(str(tmp_path))
    assert str(tmp_path) in capsys.readouterr().out


def test_a_cancelled_job_leaves_a_result_and_no_process(tmp_path):
    spec = simulated_spec(gpus=2, measure={"min_s": 600.0, "max_s": 600.0})
    write_spec(spec, tmp_path)
    job = subprocess.Popen([sys.executable, "-c", BATCH, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        pids = wait_until(lambda: found if len(found := find_run_processes(tmp_path)) == 2 else [])
        wait_until(lambda: len(list(tmp_path.glob("progress*.json"))) == 2)
        job.terminate()
        line = job.communicate(timeout=60)[0]
    finally:
        job.kill()
        job.wait()
    assert (job.returncode, line) == (0, "scalebench: cancelled\n")
    assert read_result(tmp_path / RESULT_FILE).status == "cancelled"
    assert not find_running(pids)
