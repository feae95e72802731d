"""One run from its spec to its result, where something fails on the way, and a launch that observes how ranks sync."""

import errno
import gzip
import os
import shutil
import signal
from types import SimpleNamespace

import pytest

from scalebench.core.machine import machine
from scalebench.core.probe_record import ProbeRecord
from scalebench.core.result import RankRecord, read_result, write_result
from scalebench.core.run_folder import (
    LOCK_FILE,
    MPIRUN_LOG,
    RESULT_FILE,
    RUN_ID_VARIABLE,
    rank_record_path,
    write_rank_file,
)
from scalebench.core.spec import write_spec
from scalebench.runner import parent as parent
from scalebench.runner import trace_merge
from scalebench.runner.launchers import local
from scalebench.runner.launchers.supervise import GroupExit
from scalebench.runner.parent import run_spec
from tests.builders.launching import FakeInterrupt
from tests.builders.runs import simulated_spec


def test_transports_logged_by_nccl_are_in_the_record(tmp_path, monkeypatch):
    def stand_in(request):
        (request.folder / "rank0.log").write_text("host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n")
        return GroupExit([0, 0], 5.0, 2.0, [])

    monkeypatch.setattr(local, "launch", stand_in)
    run_spec(simulated_spec(2), tmp_path / "run")
    assert read_result(tmp_path / "run" / RESULT_FILE).sync.transports == {"0-1": "P2P/IPC"}


def test_a_failed_launcher_is_the_reason_rather_than_its_consequences(tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def stand_in(request):
        monkeypatch.setenv(RUN_ID_VARIABLE, request.run_id)
        record = RankRecord(0, "here", 1, status="failed", reason="connection lost", failed_at_s=1.0)
        write_rank_file(rank_record_path(folder, 0), record)
        (folder / MPIRUN_LOG).touch()
        return GroupExit([1], 5.0, 2.0, [0], broken="mpirun was killed by SIGKILL")

    monkeypatch.setattr(local, "launch", stand_in)
    result = run_spec(simulated_spec(), folder)
    assert (result.status, result.reason, result.log) == ("failed", "mpirun was killed by SIGKILL", MPIRUN_LOG)
    assert result.phases.wall_s == 2.0 and [rank.reason for rank in result.ranks] == ["connection lost"]


@pytest.mark.parametrize(("before", "after", "status"), [(5, 6, "oom"), (5, 5, "failed"), (None, 6, "failed")])
def test_a_killed_rank_is_oom_where_the_kernel_killed_for_memory(before, after, status, tmp_path, monkeypatch):
    counts = [before, after]
    monkeypatch.setattr(machine, "oom_kills", lambda: counts.pop(0))
    monkeypatch.setattr(local, "launch", lambda *args: GroupExit([-signal.SIGKILL], 0.0, 1.0, [0]))
    result = run_spec(simulated_spec(), tmp_path / "run")
    assert result.status == status and result.reason is not None and "killed by" in result.reason


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_signals_wait_while_the_result_is_written(sign, tmp_path, monkeypatch):
    """The command line handles SIGTERM as Ctrl-C; schedulers send it more than once."""

    def handler(number, frame):
        raise FakeInterrupt

    def interrupted(*args):
        signal.raise_signal(sign)
        return write(*args)

    write, before = write_result, signal.signal(sign, handler)
    monkeypatch.setattr(parent, "write_result", interrupted)
    try:
        assert run_spec(simulated_spec(), tmp_path / "run").status == "ok"
        assert signal.getsignal(sign) is handler
    finally:
        signal.signal(sign, before)
    assert read_result(tmp_path / "run" / RESULT_FILE).status == "ok"


def test_nothing_transient_is_left_beside_a_result(tmp_path, monkeypatch):
    """The parent may be killed as soon as the result is there."""
    beside = []
    monkeypatch.setattr(parent, "write_result", lambda result, folder: beside.extend(os.listdir(folder)))
    run_spec(simulated_spec(), tmp_path / "run")
    assert sorted(beside) == ["rank0.json", "rank0.log", LOCK_FILE, "spec.json"]


def test_a_failure_on_a_full_disk_names_it(tmp_path, monkeypatch):
    """The rank could neither write its record nor its traceback."""

    def fill(*_):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=4096))
        return GroupExit([1], 0.0, 1.0, [0])

    monkeypatch.setattr(local, "launch", fill)
    result = run_spec(simulated_spec(), tmp_path / "run")
    reason = f"rank 0 ended with exit status 1 and without a reason; {os.strerror(errno.ENOSPC)}"
    assert (result.status, result.reason) == ("failed", reason)
    assert sorted(os.listdir(tmp_path / "run")) == ["result.json", "spec.json"]


def run_with_traces(folder, monkeypatch):
    """Run two ranks, of which the second died while it wrote its trace."""

    def stand_in(request):
        monkeypatch.setenv(RUN_ID_VARIABLE, request.run_id)
        for k in (0, 1):
            probes = ProbeRecord(trace=f"trace{k}.json.gz")
            write_rank_file(rank_record_path(folder, k), RankRecord(k, "node", 1, block_s=[1.0], probes=probes))
        (folder / "trace0.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
        (folder / "trace1.json.gz").write_bytes(b"half")
        return GroupExit([0, 0], 0.0, 1.0)

    monkeypatch.setattr(local, "launch", stand_in)
    return run_spec(simulated_spec(gpus=2), folder)


def test_the_traces_of_the_ranks_are_merged(tmp_path, monkeypatch):
    write_spec(simulated_spec(), tmp_path)
    (tmp_path / "trace9.json.gz").write_bytes(b"half")  # of a run that was killed
    result = run_with_traces(tmp_path, monkeypatch)
    assert sorted(path.name for path in tmp_path.glob("trace*")) == ["trace.json.gz", "trace1.json.gz"]
    assert (result.status, result.trace) == ("ok", "trace.json.gz")
    assert [rank.probes.trace for rank in result.ranks if rank.probes] == [None, "trace1.json.gz"]
    assert read_result(tmp_path / RESULT_FILE) == result


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), ValueError("odd")])
def test_a_run_whose_traces_cannot_be_merged_is_ok(tmp_path, monkeypatch, error):
    def broken(folder, offsets_s):
        raise error

    monkeypatch.setattr(trace_merge, "merge_traces", broken)
    result = run_with_traces(tmp_path, monkeypatch)
    assert (result.status, result.trace) == ("ok", None)
    assert [rank.probes.trace for rank in result.ranks if rank.probes] == ["trace0.json.gz", "trace1.json.gz"]


def test_rank_files_of_an_earlier_run_are_removed(tmp_path, monkeypatch):
    """A run whose parent was killed left rank files; the next one in this folder starts nothing."""
    folder = tmp_path / "run"
    run_spec(simulated_spec(), folder)
    (folder / RESULT_FILE).unlink()
    left = ["progress0.json", "turn1.json", "agent.key", MPIRUN_LOG]
    for name in left:
        (folder / name).touch()

    def stand_in(*args):
        assert sorted(os.listdir(folder)) == [LOCK_FILE, "spec.json"]
        for name in left[:-1]:
            (folder / name).touch()
        return GroupExit([0], 0.0, 1.0)

    monkeypatch.setattr(local, "launch", stand_in)
    result = run_spec(simulated_spec(), folder)
    assert (result.status, result.ranks) == ("failed", [])
    assert sorted(os.listdir(folder)) == ["result.json", "spec.json"]


def test_a_result_that_another_program_wrote_meanwhile_stays(tmp_path):
    """The one that submitted the job writes it where it takes a node for dead, which may come back."""
    tracked = run_spec(simulated_spec(), tmp_path / "another")

    def write(progress):
        shutil.copy(tmp_path / "another" / "result.json", tmp_path / "run" / "result.json")

    spec = simulated_spec(options={"step_s": 0.01}, measure={"min_s": 1.5, "max_s": 1.5, "target": 1e-9})
    assert run_spec(spec, tmp_path / "run", write).run_id == tracked.run_id
    assert read_result(tmp_path / "run" / "result.json").run_id == tracked.run_id
