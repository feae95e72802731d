"""Sweeps over one and two nodes: the same command as on one machine, and its results."""

import itertools
import re

import pytest

import scalebench
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


@pytest.fixture(scope="module")
def done(shared_program):
    return shared_program.run(f"strategy={','.join(BACKENDS)} gpus=1,2,4", report=True)


@pytest.fixture(scope="module")
def rows(done, shared_program):
    return {(row.scale.strategy, row.scale.gpus): row for row in shared_program.rows().values()}


def test_every_run_is_done_on_the_nodes_of_its_number_with_its_backend(done, rows, shared_program):
    """And so are the baselines. The record tells of the job."""
    assert (done.status, done.err) == (0, "")
    assert {case: row.reason for case, row in rows.items() if row.status != "ok"} == {}
    assert set(rows) == {*itertools.product(BACKENDS, NODES), *((name, 1) for name in BASELINES)}
    first, second = shared_program.cluster.nodes
    for (name, gpus), row in rows.items():
        places, job = [rank.hostname for rank in row.ranks], row.scheduler
        assert row.scale.nodes == NODES[gpus] and job.nodes == list(dict.fromkeys(places))
        assert places == [first, first, second, second] if gpus == 4 else len(set(places)) == 1
        assert gpus == 1 or row.scale.backend_used == BACKENDS[name]
        assert (job.name, job.partition, job.reason) == ("slurm", "main", None) and job.queued_s >= 0
        assert job.state in (None, "COMPLETED"), "a row that is there says how it went, without SLURM's last word"
    jobs = [row.scheduler for row in rows.values()]
    assert {job.job_id for job in jobs} == shared_program.ids() and len(shared_program.ids()) == 17
    assert max(job.queued_s for job in jobs) > 0


def test_the_sweep_leaves_its_table_and_its_files(done, shared_program):
    """The table has nodes in its footnotes."""
    notes = {mark: int(nodes) for mark, nodes in re.findall(r"^([a-z]+) on (\d+) nodes *$", done.out, re.MULTILINE)}
    rows = re.findall(r"^ *\d+ +(\w+) +(\d+) .* ok((?: [a-z]+)*) *$", done.out, re.MULTILINE)
    actual = [
        (name, int(gpus), max((notes.get(mark, 1) for mark in marks.split()), default=1))
        for name, gpus, marks in rows
        if name in BACKENDS
    ]
    assert actual == [(name, gpus, nodes) for name in sorted(BACKENDS) for gpus, nodes in NODES.items()], done.out
    assert "17 of 17 runs over" in done.out
    page = (shared_program.sweep / "report.html").read_text()
    assert "lightning_ddp_gloo" in page and f"report: {shared_program.sweep}/report.html" in done.out
    assert {"results.csv", "results.parquet"} <= {path.name for path in shared_program.sweep.iterdir()}
    record = read_sweep(shared_program.sweep)
    assert (len(record.runs), record.ended, record.left_out) == (17, True, [])
    # All jobs were submitted at once, and one question in five seconds is for all of them.
    assert len(shared_program.calls("sbatch")) == 17
    questions = [*shared_program.calls("squeue"), *shared_program.calls("sacct")]
    assert 0 < len(questions) <= 1 + done.lasted_s / 5.0
    assert all(call.startswith("scontrol show hostnames") for call in shared_program.calls("scontrol"))
    assert not shared_program.calls("scancel")


@pytest.mark.parametrize("strategy", ["ddp_gloo", "horovod_gloo"])
def test_losses_are_those_of_one_machine(strategy, rows, shared_program, tmp_path):
    """Which node a rank stands on is not part of what is computed."""
    here = Program(shared_program.cluster, tmp_path / "here", shared_program.cache)
    here.run(f"hardware=cpu hardware.gpus_per_node=4 strategy={strategy} gpus=4 baseline=none")
    (alone,) = here.rows().values()
    assert (alone.status, alone.reason, alone.scheduler) == ("ok", None, None)
    ours, theirs = (row.ranks[0].warmup_losses[:UPDATES] for row in (rows[strategy, 4], alone))
    assert [row.ranks[0].warmup_block_steps for row in (rows[strategy, 4], alone)] == [1, 1]
    assert len(set(theirs)) == UPDATES and ours == pytest.approx(theirs, rel=1e-5)


# Every strategy on one and two nodes: where its ranks run, and what is unsupported there.
FULL = {
    "horovod_tensorflow_gloo": "gloo", "horovod_tensorflow_mpi": "mpi", "independent_tensorflow": None,
    "independent_torch": None, "simulated": None, "parameter_server": "grpc",
    "parameter_server_sync": "grpc",
}  # fmt: skip
UNEVEN = ["ddp_gloo", "horovod_mpi", "horovod_tensorflow_gloo", "multiworker_ring", "simulated"]
UNEVEN += ["parameter_server", "parameter_server_sync"]


def ok_rows(program, text):
    done = program.run(f"{text} baseline=none")
    assert (done.status, done.err) == (0, ""), done.out
    return list(program.rows().values())


def stand(program, *nodes):
    return [program.cluster.nodes[node] for node in nodes]


def measured(strategy, nodes):
    """The hosts of the ranks that measure: the chief alone, where workers take their steps from it."""
    return nodes[:1] if strategy.startswith("parameter_server") else nodes


def test_all_devices_of_both_nodes(program):
    for row in ok_rows(program, f"strategy={','.join(FULL)} gpus=4"):
        name = row.scale.strategy
        assert (name, row.status, row.reason, row.scale.nodes) == (name, "ok", None, 2)
        assert row.scale.backend_used == FULL[name]
        assert [rank.hostname for rank in row.ranks] == measured(name, stand(program, 0, 0, 1, 1))
        assert row.scheduler.nodes == program.cluster.nodes


def test_nodes_that_are_not_full(program):
    rows = ok_rows(program, f"strategy={','.join(UNEVEN)},lightning_ddp_gloo gpus=3")
    found = {row.scale.strategy: row for row in rows}
    assert sorted(found) == sorted([*UNEVEN, "lightning_ddp_gloo"])
    for name in UNEVEN:
        row = found[name]
        assert (name, row.status, row.reason, row.scale.nodes) == (name, "ok", None, 2)
        assert [rank.hostname for rank in row.ranks] == measured(name, stand(program, 0, 0, 1))
    lightning = found["lightning_ddp_gloo"]
    assert lightning.status == "unsupported"
    assert "Lightning needs the same number of processes on every node, not [2, 1]" in (lightning.reason or "")


def test_layouts_are_rows_of_their_own(program):
    done = program.run(
        "strategy=ddp_gloo,mirrored hardware.layout=sequence,spread hardware.max_nodes=2 gpus=2 baseline=none"
    )
    assert (done.status, done.err) == (0, "")
    found = {(row.spec["hardware"]["layout"], row.scale.strategy): row for row in program.rows().values()}
    assert {case: (row.status, row.scale.nodes) for case, row in found.items()} == {
        ("sequence", "ddp_gloo"): ("ok", 1),
        ("spread", "ddp_gloo"): ("ok", 2),
        ("sequence", "mirrored"): ("ok", 1),  # which is what spread would be
    }
    assert [rank.hostname for rank in found["spread", "ddp_gloo"].ranks] == program.cluster.nodes
    table, _, notes = done.out[done.out.index(" scaling, batch ") :].partition("\n\n")
    assert (table.count("layout=sequence"), table.count("layout=spread")) == (2, 1) and " on 2 nodes " in notes


# Gradient synchronization of the materials CNN beyond the first node: the jump is that of the link.
SYNCHRONIZED = ("ddp_gloo", "horovod_gloo", "horovod_mpi")
MTU, PAYLOAD = 1514, 1448  # bytes of a full frame on the wire, and of those that are TCP's to give
LINK_BYTES_PER_S = 125e6
BURST_BYTES = 128 * 1024


@pytest.fixture(scope="module")
def frame(cluster, tmp_path_factory, data_cache):
    program = Program(cluster, tmp_path_factory.mktemp("boundary"), data_cache)
    words = f"sweep=node_boundary strategy={','.join(SYNCHRONIZED)} gpus=2,3,4 baseline=none"
    done = program.run(f"{words} measure.probes=true measure.probe_s=0.5 measure.warmup_max_s=1 measure.max_s=1")
    assert (done.status, done.err) == (0, "")
    yield scalebench.load(program.sweep)
    program.clear()


def sync_s(frame, strategy, gpus):
    rows = frame[(frame.strategy == strategy) & (frame.gpus == gpus)]
    (value,) = rows.sync_isolated_s
    return float(value)


def test_one_job_at_a_time(frame):
    """And three devices stand as the study's nine did: the first node is full."""
    assert frame.nodes.tolist() == frame.gpus.map({2: 1, 3: 2, 4: 2}).tolist()
    assert len(set(frame.job_id)) == 9


@pytest.mark.parametrize("strategy", SYNCHRONIZED)
def test_the_second_node_has_the_cost(frame, strategy):
    """As many bytes as there are gradients have to come into each node, or nobody there could know the sums: no
    strategy is faster than the link is with them, less what a link that was at rest lets through at once."""
    gradient_bytes = int(frame.gradient_bytes.iloc[0])
    least_s = (gradient_bytes * MTU / PAYLOAD - BURST_BYTES) / LINK_BYTES_PER_S
    within, beyond, more = (sync_s(frame, strategy, gpus) for gpus in (2, 3, 4))
    print(f"{strategy}: {1e3 * within:.2f}, {1e3 * beyond:.2f}, {1e3 * more:.2f} ms; link {1e3 * least_s:.2f} ms")
    assert min(beyond, more) > least_s
    assert beyond > 1.5 * within
