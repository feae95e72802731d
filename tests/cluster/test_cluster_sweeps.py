"""A sweep of strategies over one and two nodes: the same command as on one machine, and its results."""

import itertools
import re

import pytest

from scalebench.core.sweep_file import read_sweep
from tests.builders.launching import NEEDS_MPIRUN
from tests.cluster.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.real, pytest.mark.horovod, NEEDS_MPIRUN]
BACKENDS = {
    "ddp_gloo": "gloo", "horovod_gloo": "gloo", "horovod_mpi": "mpi", "lightning_ddp_gloo": "gloo",
    "multiworker_ring": "ring",
}  # fmt: skip
BASELINES = ["bare_torch", "bare_tensorflow"]
NODES = {1: 1, 2: 1, 4: 2}  # by devices
UPDATES = 5  # whose losses are compared
Case = tuple[str, int]


@pytest.fixture(scope="module")
def done(shared_program):
    return shared_program.run(f"strategy={','.join(BACKENDS)} gpus=1,2,4", report=True)


@pytest.fixture(scope="module")
def rows(done, shared_program):
    return {(row.scale.strategy, row.scale.gpus): row for row in shared_program.rows().values()}


def test_every_run_is_done_and_so_are_the_baselines(done, rows):
    assert (done.status, done.err) == (0, "")
    assert {case: row.reason for case, row in rows.items() if row.status != "ok"} == {}
    assert set(rows) == {*itertools.product(BACKENDS, NODES), *((name, 1) for name in BASELINES)}


def test_each_has_nodes_of_its_own_number(rows, shared_program):
    for (_, gpus), row in rows.items():
        assert row.scale.nodes == NODES[gpus]
        places = [rank.hostname for rank in row.ranks]
        assert row.scheduler is not None and row.scheduler.nodes == list(dict.fromkeys(places))
        if gpus == 4:
            first, second = shared_program.cluster.nodes
            assert places == [first, first, second, second]
        else:
            assert len(set(places)) == 1


def test_the_backend_is_the_requested_one(rows):
    assert {case: row.scale.backend_used for case, row in rows.items() if case[1] > 1} == {
        (name, gpus): backend for name, backend in BACKENDS.items() for gpus in (2, 4)
    }


def test_the_record_tells_of_the_job(rows, shared_program):
    jobs = [row.scheduler for row in rows.values()]
    assert {job.job_id for job in jobs if job is not None} == shared_program.ids() and len(shared_program.ids()) == 17
    for job in jobs:
        assert job is not None and (job.name, job.partition, job.reason) == ("slurm", "main", None)
        assert job.queued_s is not None and job.queued_s >= 0
        assert job.state in (None, "COMPLETED"), "a row that is there says how it went, without SLURM's last word"
    assert max(job.queued_s for job in jobs if job is not None and job.queued_s is not None) > 0


def test_one_table_tells_the_nodes(done):
    """In its footnotes."""
    notes = {mark: int(nodes) for mark, nodes in re.findall(r"^([a-z]+) on (\d+) nodes$", done.out, re.MULTILINE)}
    rows = re.findall(r"^ *\d+ +(\w+) +(\d+) .* ok((?: [a-z]+)*)$", done.out, re.MULTILINE)
    actual = [
        (name, int(gpus), max((notes.get(mark, 1) for mark in marks.split()), default=1))
        for name, gpus, marks in rows
        if name in BACKENDS
    ]
    assert actual == [(name, gpus, nodes) for name in sorted(BACKENDS) for gpus, nodes in NODES.items()], done.out


def test_the_sweep_leaves_its_files(done, shared_program):
    assert "17 of 17 runs over" in done.out
    page = (shared_program.sweep / "report.html").read_text()
    assert "lightning_ddp_gloo" in page and f"report: {shared_program.sweep}/report.html" in done.out
    assert {"results.csv", "results.parquet"} <= {path.name for path in shared_program.sweep.iterdir()}
    record = read_sweep(shared_program.sweep)
    assert record is not None and (len(record.runs), record.ended, record.left_out) == (17, True, [])
    assert not list(shared_program.sweep.rglob("*.pkl")), "submitit's hand-over, which nobody needs any more"


def test_slurm_is_queried_rarely(done, shared_program):
    """All jobs were submitted at once, and one question in five seconds is for all of them."""
    assert len(shared_program.calls("sbatch")) == 17
    questions = [*shared_program.calls("squeue"), *shared_program.calls("sacct")]
    assert 0 < len(questions) <= 1 + done.lasted_s / 5.0
    assert all(call.startswith("scontrol show hostnames") for call in shared_program.calls("scontrol"))
    assert not shared_program.calls("scancel")


@pytest.mark.parametrize("strategy", ["ddp_gloo", "horovod_gloo"])
def test_losses_are_those_of_one_machine(strategy, rows, shared_program, tmp_path):
    """Which node a rank stands on is no part of what is computed."""
    here = Program(shared_program.cluster, tmp_path / "here", shared_program.cache)
    here.run(f"hardware=cpu hardware.gpus_per_node=4 strategy={strategy} gpus=4 baseline=none")
    (alone,) = here.rows().values()
    assert (alone.status, alone.reason, alone.scheduler) == ("ok", None, None)
    ours, theirs = (row.ranks[0].warmup_losses[:UPDATES] for row in (rows[strategy, 4], alone))
    assert [row.ranks[0].warmup_block_steps for row in (rows[strategy, 4], alone)] == [1, 1]
    assert len(set(theirs)) == UPDATES and ours == pytest.approx(theirs, rel=1e-5)
