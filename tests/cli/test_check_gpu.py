"""`scalebench check --gpu`: its page, its exit status, and what the page leaves out."""

import io
import sys
from pathlib import Path

import pytest

from scalebench.__main__ import main
from scalebench.cli.commands import check_gpu
from scalebench.cli.commands.check import FAILS, HOLDS, SKIPPED, ContractResult
from scalebench.core.json_files import read_record
from scalebench.core.machine.gpus import GpuRoom
from scalebench.testing import gpu_truths
from scalebench.testing.gpu_worker import FAIL, NOT_POSSIBLE, PASS, TITLES, Truth

pytestmark = pytest.mark.gpu
STEP = Truth("program", PASS, "100 ms, expected 100 ms within 10%", 0.1, 0.1, 0.1)


@pytest.fixture
def no_doctor(monkeypatch):
    monkeypatch.setattr(check_gpu.doctor, "main", lambda options: print("no GPU"))
    monkeypatch.setattr(check_gpu.gpus, "find_nvml_problem", lambda: None)
    monkeypatch.setattr(check_gpu.gpus, "count_gpus", lambda: 0)
    monkeypatch.setattr(check_gpu.gpus, "read_gpu_room", list)
    monkeypatch.setattr(gpu_truths, "observe_simulated_step", lambda folder: [STEP])


def test_on_a_cpu_what_needs_a_gpu_is_not_possible(no_doctor, capsys):
    assert main(["check", "--gpu"]) == 0
    rows = [line for line in Path("gpu-check.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(TITLES) + 2, "doctor and contracts besides"
    assert rows[:2] == [
        "| doctor | pass: 0 GPUs; its findings are below |",
        f"| a step of known length, through the whole program | pass: {STEP.text} |",
    ]
    assert all(row.endswith("| not possible here: no GPU |") for row in rows[2:]), rows
    out = capsys.readouterr().out.splitlines()
    assert out[-2:] == [f"2 pass, 0 fail, {len(rows) - 2} not possible here", "page: gpu-check.md"]
    assert main(["check", "--gpu"]) == 0, "a page of its own is replaced"


def test_the_real_doctor_is_run(monkeypatch):
    monkeypatch.setattr(check_gpu.doctor, "list_horovod_builds", list)  # imports both frameworks
    report = io.StringIO()
    assert [truth.verdict for truth in check_gpu.run_doctor(report)] == [PASS]
    assert "processors" in report.getvalue()


def test_a_line_that_fails_is_the_exit_status(no_doctor, monkeypatch):
    wrong = Truth("program", FAIL, "200 ms | expected\n100 ms", detail="log of the rank")
    monkeypatch.setattr(gpu_truths, "observe_simulated_step", lambda folder: [wrong])
    assert main(["check", "--gpu", "--page", "mine.md"]) == 1
    page = Path("mine.md").read_text()
    assert "| fail: 200 ms \\| expected 100 ms |" in page
    assert "## Failure: a step of known length, through the whole program\n\n```text\nlog of the rank\n```" in page
    # A GPU machine is not taken for one without.
    monkeypatch.setattr(check_gpu.gpus, "find_nvml_problem", lambda: "NVMLError: Driver/library version mismatch")
    assert main(["check", "--gpu"]) == 1
    assert "| doctor | fail: NVMLError: Driver/library version mismatch |" in Path("gpu-check.md").read_text()


@pytest.mark.parametrize(("count", "all_reduce"), [(1, "only one GPU"), (4, "ran 2")])
def test_truths_by_the_number_of_gpus(count, all_reduce, no_doctor, monkeypatch, tmp_path):
    monkeypatch.setattr(check_gpu.gpus, "read_gpu_room", lambda: [GpuRoom(2**34, 2**34, None)] * count)
    monkeypatch.setattr(
        gpu_truths, "observe_rank", lambda name, gpus, names, _: [Truth(n, PASS, f"ran {gpus}") for n in names]
    )
    monkeypatch.setattr(gpu_truths, "observe_bare_and_ddp", lambda folder: [Truth("bare", PASS, "ran")])
    monkeypatch.setattr(gpu_truths, "observe_two_ranks_on_one_gpu", lambda folder: [Truth("one_gpu", PASS, "ran")])

    def run_here(names, words, folder, seconds_left):
        if words[0] not in check_gpu.OBSERVATIONS:
            return [Truth(name, PASS, "ran") for name in names]
        folder.mkdir()
        check_gpu.write_lines(folder, *words)
        return read_record(folder / check_gpu.LINES_FILE, list[Truth])

    monkeypatch.setattr(check_gpu, "run_apart", run_here)
    lines = {line.name: line.text for line in check_gpu.run_checks(tmp_path, check_gpu.io.StringIO(), lambda: 1.0)}
    assert [lines[name] for name in ("device", "all_reduce", "bare", "one_gpu")] == ["ran 1", all_reduce, "ran", "ran"]
    assert lines["contract of fsdp"] == "ran" and "contract of fsdp_nccl" not in lines, "it is the same there"


def test_truths_and_contracts_end_with_the_time(monkeypatch, tmp_path):
    """What runs is stopped, its processes too; what has not begun is not."""
    left = iter([60.0, 0.5, -1.0, -1.0])
    sleeps = 'import subprocess, sys; subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])'
    monkeypatch.setattr(check_gpu, "build_python_command", lambda *words: [sys.executable, "-c", sleeps])
    lines = check_gpu.run_apart(("device", "timer"), ("device",), tmp_path / "device", iter([9.0, 0.5]).__next__)
    assert [line.name for line in lines] == ["device", "timer"] and {line.text for line in lines} == {check_gpu.STOPPED}
    monkeypatch.setattr(check_gpu, "count_usable_cores", lambda: 1)
    lines = list(check_gpu.check_losses(["ddp", "fsdp"], 2, tmp_path / "losses", lambda: next(left)))
    assert [(line.name, line.verdict, line.text.partition(";")[0]) for line in lines] == [
        ("one_gpu", NOT_POSSIBLE, "it was stopped at the end of the time"),
        ("contract of ddp", NOT_POSSIBLE, "no time is left"),
        ("contract of fsdp", NOT_POSSIBLE, "no time is left"),
    ]


def test_the_workload_that_a_gpu_limits_fits_its_memory():
    batches = [check_gpu.truths.choose_gpu_bound(gib and gib * 2**30)[-2] for gib in (None, 8, 16, 80)]
    assert batches == [f"train.batch_per_device={batch}" for batch in (32, 32, 64, 128)]


def test_a_contract_is_one_line():
    """Where only its YAML holds, no test could run."""
    for verdicts, verdict, text in (
        ((HOLDS, HOLDS, SKIPPED), PASS, "2 hold, 1 skipped"),
        ((HOLDS, FAILS, FAILS), FAIL, "2 of 3 do not hold, first 'test 1': reason 1"),
        ((SKIPPED, SKIPPED), NOT_POSSIBLE, "reason 0"),
        ((), NOT_POSSIBLE, "no test could run"),
    ):
        results = [ContractResult(f"test {n}", each, f"reason {n}") for n, each in enumerate(verdicts)]
        line = check_gpu.judge_contract("contract of ddp", results)
        assert (line.verdict, line.text) == (verdict, text)
    line = check_gpu.judge_contract("contract", [ContractResult("yaml has a description", HOLDS)])
    assert line.verdict == NOT_POSSIBLE


@pytest.mark.slow
def test_a_contract_runs_and_an_impossible_one_says_why(tmp_path):
    lines = check_gpu.check_losses(["simulated", "ddp_nccl"], 2, tmp_path / "losses", lambda: 60.0)
    simulated, nccl = sorted((line for line in lines if line.name != "one_gpu"), key=lambda line: line.verdict != PASS)
    assert (simulated.name, simulated.verdict) == ("contract of simulated, gpus=2", PASS), simulated
    assert nccl.verdict == NOT_POSSIBLE and "ddp_nccl" in nccl.text


NAMES = {"/home/alice": "HOME", "node17.lab": "HOST", "node17": "HOST", "alice": "USER", "10.1.2.3": "ADDRESS"}


def test_what_is_private_of_this_user_and_host_stays_out(monkeypatch):
    for text, public in {
        "/home/alice": "HOME",
        "/home/alice/secret/run.py: no": "HOME/secret/run.py: no",
        "in /scratch/group7/x/rank0.log": "in rank0.log",
        "alice@node17.lab, node17:2": "USER@HOST, HOST:2",
        "listens on 10.1.2.3:80": "listens on ADDRESS:80",
    }.items():
        assert check_gpu.hide_private(text, NAMES) == public
    for text in ("malice 110.1.2.3 10.1.2.34", "12 GB/s, 1/2/3, https://a.org/b/c", "driver 580.95.05, cuDNN 9.1.0.70"):
        assert check_gpu.hide_private(text, NAMES) == text
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setattr(check_gpu.socket, "gethostname", lambda: "node17.lab")
    names = check_gpu.list_private_names()
    assert {name: names[name] for name in list(NAMES)[:4]} == {name: NAMES[name] for name in list(NAMES)[:4]}
    assert "127.0.0.1" not in names and next(iter(names)) != "alice", "the longest first"
