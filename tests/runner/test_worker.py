"""The worker process: its placement, its record, its end, its memory limit, and the signs that this was reached."""

import dataclasses
import errno
import gc
import os
import re
import resource
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from scalebench.core.errors import InputError
from scalebench.core.result import RankRecord
from scalebench.core.run_folder import rank_record_path, read_rank_file
from scalebench.core.spec import write_spec
from scalebench.measure.train_to_target import Diverged
from scalebench.runner import memory_limit, worker
from scalebench.runner.launchers.rank_environment import build_environment, find_free_ports
from scalebench.runner.worker import classify_error, run_rank
from scalebench.strategies.base import Unsupported
from scalebench.strategies.simulated import Simulated
from tests.builders.runs import simulated_spec
from tests.conftest import ROOT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a run's folder with its spec, with this process as rank 0, not pinned."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("SCALEBENCH_PARENT_PID", raising=False)
    monkeypatch.setattr(worker, "pin_to_cpus", lambda cpus: None)
    write_spec(simulated_spec(), tmp_path)
    return tmp_path


def record_in(folder, rank=0):
    record = read_rank_file(rank_record_path(folder, rank), RankRecord)
    assert record is not None
    return record


@pytest.mark.gpu
def test_a_rank_on_gpus_names_them(folder, monkeypatch):
    """Their numbers alone say nothing under CUDA_VISIBLE_DEVICES."""
    monkeypatch.setattr(worker.gpus, "name_visible_gpus", lambda devices: [f"card {device}" for device in devices])
    assert worker.main([str(folder)]) == 0 and record_in(folder).gpus == []
    spec = simulated_spec()
    write_spec(dataclasses.replace(spec, device="cuda"), folder)
    assert worker.main([str(folder)]) == 0
    assert record_in(folder).gpus == [f"card {device}" for device in spec.places[0].devices] != []


def body(error):
    def raising(spec, strategy, record, progress):
        record.block_s = [0.5]
        raise error

    return raising


GRAPH_ERROR = (
    'Graph execution error:\n\nDetected at node add defined at (most recent call last):\n  File "a.py", '
    'line 1, in f\n\n  File "b.py", line 2, in g\n\nIncompatible\nshapes\n\t [[{{node add}}]]'
)
LOADER_ERROR = (
    "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    '  File "a.py", line 1, in f\n    raise ValueError("no label")\nValueError: no label\n'
)


@pytest.mark.parametrize(("error", "status", "reason"), [
    (RuntimeError("it\nbroke   here"), "failed", "RuntimeError: it broke here"),
    (KeyError(), "failed", "KeyError: KeyError"),
    (ValueError("x" * 1000), "failed", "ValueError: " + "x" * 300),
    (Unsupported("it takes a GPU"), "unsupported", "it takes a GPU"),
    (InputError("dataset.size is too small"), "failed", "dataset.size is too small"),
    (RuntimeError(GRAPH_ERROR), "failed", "RuntimeError: Incompatible shapes"),
    (ValueError(LOADER_ERROR), "failed", "in DataLoader worker process 0: ValueError: no label"),
    (RuntimeError("Graph execution error:"), "failed", "RuntimeError: Graph execution error:"),
    (RuntimeError("OOM when allocating tensor"), "oom", "out of memory: OOM when allocating tensor"),
    (MemoryError(), "oom", "out of memory: MemoryError"),
    (RuntimeError("CUDA out of memory. Tried to"), "oom", "out of memory: CUDA out of memory. Tried to"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "oom", None),
    (RuntimeError("Unable to find an engine to execute this computation"), "oom", None),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "oom", None),
    (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "oom", None),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "failed", "OSError: [Errno 28] No space left on device"),
    (SystemExit(3), "failed", "SystemExit: 3"),
    (KeyboardInterrupt(), "failed", "KeyboardInterrupt: KeyboardInterrupt"),
])  # fmt: skip
def test_a_failure_is_classified_and_recorded(error, status, reason, folder, capsys):
    assert run_rank(folder, body(error)) == 1
    record = record_in(folder)
    assert record.status == status and record.reason is not None and "\n" not in record.reason
    assert record.reason == reason or (reason is None and record.reason.startswith("out of memory: "))
    assert record.failed_at_s is not None and record.marks_s["end"] >= record.failed_at_s
    assert record.block_s == [0.5], "what was measured before it stays"
    err = capsys.readouterr().err
    assert "Traceback" in err and type(error).__name__ in err


@pytest.mark.parametrize("phase", ["evaluate", "probes"])
@pytest.mark.parametrize(
    ("error", "is_ok"), [(RuntimeError("CUDA out of memory. Tried to"), True), (Diverged("mse is nan"), False)]
)
def test_figures_outlive_a_failure_after_them(phase, error, is_ok, folder):
    """A model that trains sharded may not fit whole; a metric that is not a number says that training went wrong."""

    def fail_in_phase(spec, strategy, record, progress):
        record.marks_s[phase] = time.time()
        raise error

    assert run_rank(folder, fail_in_phase) == 1
    record = record_in(folder)
    assert record.status == ("ok" if is_ok else "failed")
    assert record.probe_failures == ({phase: "RuntimeError: CUDA out of memory. Tried to"} if is_ok else {})


def test_an_import_is_not_gone_through_for_garbage(monkeypatch):
    monkeypatch.setattr(worker.registry, "create_strategy", lambda spec, rank: gc.isenabled())
    try:
        assert worker.import_strategy(simulated_spec(), 0) is False
        assert gc.isenabled() and gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("gone", [False, True])
def test_ranks_wait_for_each_other_before_they_end(gone, folder, monkeypatch):
    """A rank that exits too early can break the last collective of another; a peer that has exited is not a failure."""
    done = []

    def broadcast(self, value):
        done.append("broadcast")
        if gone:
            raise EOFError("the other has left")
        return value

    monkeypatch.setattr(Simulated, "broadcast", broadcast)
    monkeypatch.setattr(Simulated, "close", lambda self: done.append("close"))
    assert run_rank(folder, lambda *parts: done.append("body")) == 0
    assert done == ["body", "broadcast", "close"]
    assert record_in(folder).status == "ok"


def test_a_failure_in_closing_is_a_failure_and_after_another_only_printed(folder, monkeypatch, capsys):
    closed = []

    def close(self):
        closed.append(rank_record_path(folder, 0).exists())
        raise RuntimeError("the group is broken")

    monkeypatch.setattr(Simulated, "close", close)
    assert run_rank(folder, body(RuntimeError("first"))) == 1
    assert closed == [True], "once, after the record was written"
    assert record_in(folder).reason == "RuntimeError: first"
    assert "the group is broken" in capsys.readouterr().err
    assert run_rank(folder, lambda *parts: None) == 1
    assert record_in(folder).reason == "RuntimeError: the group is broken"


def test_stacks_are_written_also_where_a_user_handles_sigusr1(tmp_path):
    code = (
        "import os, signal\nfrom scalebench.runner.launchers.supervise import STACK_SIGNAL\n"
        "from scalebench.runner.worker import end_with_parent\nend_with_parent()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "def step_of_the_user():\n    os.kill(os.getpid(), STACK_SIGNAL)\nstep_of_the_user()\n"
    )
    variables = {**os.environ, "SCALEBENCH_PARENT_PID": str(os.getpid())}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "in step_of_the_user" in done.stderr


def environment(spec):
    return build_environment(spec, "an id", 0, [f"127.0.0.1:{find_free_ports(1)[0]}"])


@pytest.mark.parametrize(
    "trap",
    ["threading.Thread(target=threading.Event().wait).start()", "atexit.register(os.abort)"],
    ids=["a thread that never ends", "an abort by the interpreter's end"],
)
@pytest.mark.parametrize(("fault", "status"), [("raise", 1), ("none", 0)])
def test_the_clean_up_of_the_interpreter_does_not_affect_a_worker(trap, fault, status, tmp_path):
    (tmp_path / "stuck.py").write_text(
        f"import atexit, os, runpy, sys, threading\n{trap}\nprint('said', end='')\n"
        "runpy.run_module('scalebench.runner.worker', run_name='__main__')\n"
    )
    write_spec(spec := simulated_spec(options={"fault": fault}), tmp_path)
    variables = environment(spec)
    del variables["PYTHONUNBUFFERED"]
    command = [sys.executable, str(tmp_path / "stuck.py"), str(tmp_path)]
    worker_process = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (worker_process.returncode, worker_process.stdout) == (status, "said")
    assert ("failed as configured" in worker_process.stderr) == (fault == "raise")
    assert record_in(tmp_path).status == ("ok" if status == 0 else "failed")


def test_a_worker_ends_whose_parent_is_gone_at_its_start(tmp_path):
    """Its parent is another process than the variable names."""
    write_spec(spec := simulated_spec(options={"setup_s": 600.0}), tmp_path)
    variables = environment(spec) | {"SCALEBENCH_PARENT_PID": "1"}
    command = [sys.executable, "-m", "scalebench.runner.worker", str(tmp_path)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert not rank_record_path(tmp_path, 0).exists()


def test_a_service_leaves_a_record_only_where_it_fails(folder, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    spec, served = simulated_spec(gpus=2), []
    spec.places[0].role, spec.places[1].role = "chief", "ps"
    write_spec(spec, folder)
    with monkeypatch.context() as patch:
        patch.setattr(Simulated, "serve", lambda self: served.append(self.place.role))
        assert run_rank(folder, lambda *parts: pytest.fail("a service has no body")) == 1
    assert served == ["ps"]
    assert not list(folder.glob("rank*.json")) and not list(folder.glob("progress*"))
    assert worker.main([str(folder)]) == 1
    record = record_in(folder, 1)
    reason = "simulated has no process that serves others"
    assert (record.rank, record.status, record.reason) == (1, "unsupported", reason)
    assert reason in capsys.readouterr().err


# The memory limit of a process, and the signs that it was reached.
LIMITED_PROGRAM = """
import mmap, sys, threading
from scalebench.runner.memory_limit import apply_limit
apply_limit(200_000_000)
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
reserved = mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE, prot=0)
held = b"1" * 100_000_000
print(len(mapped), len(reserved), len(held))
try:
    b"1" * 200_000_000
except MemoryError:
    print("MemoryError")
"""


def test_only_private_writable_memory_counts(tmp_path):
    """A mapped file of the data set does not count, nor do reserved addresses."""
    with open(tmp_path / "data", "wb") as file:
        file.truncate(2**30)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED_PROGRAM, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split("\n") == [f"{2**30} {2**30} 100000000", "MemoryError", ""]


def test_a_lower_hard_limit_stays(monkeypatch):
    calls = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: calls.append(limits))
    for limit, hard in ((None, resource.RLIM_INFINITY), (1000, resource.RLIM_INFINITY), (1000, 300)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, hard=hard: (hard, hard))
        memory_limit.apply_limit(limit)
    assert calls == [(1000, 1000), (300, 300)]


def test_the_limit_is_a_share_of_memory(monkeypatch):
    for cgroup, hard, processes, each in (
        (None, resource.RLIM_INFINITY, 1, 800),
        (None, resource.RLIM_INFINITY, 4, 200),
        (500, resource.RLIM_INFINITY, 2, 200),
        (5000, resource.RLIM_INFINITY, 2, 400),
        (None, 100, 1, 80),
    ):
        monkeypatch.setattr("os.sysconf", lambda name: {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 100}[name])
        monkeypatch.setattr(memory_limit, "memory_limit_bytes", lambda cgroup=cgroup: cgroup)
        monkeypatch.setattr(resource, "getrlimit", lambda which, hard=hard: (hard, hard))
        assert memory_limit.limit_per_process_bytes(processes) == each

    monkeypatch.setattr(memory_limit, "_node_bytes", lambda: 1000)
    raised = {(100, 1): 200, (400, 2): 475, (480, 2): 475}  # at most the memory of the node
    assert {each: memory_limit.raised_limit_bytes(*each) for each in raised} == raised


def test_a_limit_needs_linux(monkeypatch):
    assert memory_limit.limit_unsupported_reason() is None
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert "Darwin" in str(memory_limit.limit_unsupported_reason())


MESSAGES = (ROOT / "tests/golden/logs/memory.txt").read_text(encoding="utf-8")
PARTS = re.split(r"^== .*\n", MESSAGES, flags=re.MULTILINE)
OUT_OF_MEMORY, AT_LIMIT_ONLY, OTHER, SHARED_MEMORY = (part.splitlines() for part in PARTS[1:])


@pytest.mark.parametrize("line", [*OUT_OF_MEMORY, *AT_LIMIT_ONLY, *OTHER])
def test_messages_of_a_process_at_its_limit_are_recognized(line):
    """Messages that frameworks have printed."""
    assert (memory_limit.AT_LIMIT.search(line) is not None) == (line not in OTHER)
    assert (memory_limit.OUT_OF_MEMORY.search(line) is not None) == (line in OUT_OF_MEMORY)


@pytest.mark.parametrize("line", SHARED_MEMORY)
def test_full_shared_memory_is_no_lack_of_memory(line, tmp_path, monkeypatch):
    """A search for the largest batch would take a smaller one for it."""
    found = os.statvfs_result((1, 4096, (64 << 20) // 4096, *[0] * 7))
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    record = RankRecord(0, "host", 1)
    classify_error(RuntimeError(line), record)
    assert record.status == "failed"
    assert str(record.reason).startswith("/dev/shm is full (64 MB): make it larger, in docker with --shm-size (")
    assert not memory_limit.lacks_memory(str(record.reason))
    (tmp_path / "rank0.log").write_text(line)
    assert memory_limit.find_out_of_memory_line(tmp_path / "rank0.log") is None


@pytest.mark.gpu
def test_tensorflow_may_go_on_with_less_memory(tmp_path):
    log = tmp_path / "rank0.log"
    log.write_text(
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB with freed_by_count=0. The caller "
        "indicates that this is not a failure, but this may mean that there could be performance gains if more memory "
        "were available.\nRuntimeError: something else\n"
    )
    assert memory_limit.find_out_of_memory_line(log) is None


def test_the_last_message_in_the_end_of_a_log_is_found(tmp_path):
    log = tmp_path / "rank0.log"
    assert memory_limit.find_out_of_memory_line(log) is None
    log.write_text("x" * 300_000 + "\nMemoryError\n  what():   std::bad_alloc\nlater\n")
    assert memory_limit.find_out_of_memory_line(log) == "what(): std::bad_alloc"
    log.write_text("MemoryError of old\n" + "x" * 300_000)
    assert memory_limit.find_out_of_memory_line(log) is None


def test_a_rank_leaves_no_file_of_a_function_that_tensorflow_has_rewritten(tmp_path, monkeypatch):
    """TensorFlow itself removes them at the interpreter's end, which a rank does without."""
    file = tmp_path / f"{worker.AUTOGRAPH_FILE}_x.py"
    file.write_text("")
    monkeypatch.setitem(sys.modules, file.stem, SimpleNamespace(__file__=str(file)))
    monkeypatch.setattr(os, "_exit", lambda status: None)
    worker.exit_without_cleanup(0)
    assert not file.exists()
