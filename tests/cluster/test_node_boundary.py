"""Gradient synchronization of the materials CNN beyond the first node: the jump is that of the link."""

import pytest

import scalebench
from tests.builders.launching import NEEDS_MPIRUN

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.real, pytest.mark.horovod, NEEDS_MPIRUN]
STRATEGIES = ("ddp_gloo", "horovod_gloo", "horovod_mpi")
MTU, PAYLOAD = 1514, 1448  # bytes of a full frame on the wire, and of those that are TCP's to give
LINK_BYTES_PER_S = 125e6
BURST_BYTES = 128 * 1024


@pytest.fixture(scope="module")
def frame(shared_program):
    words = f"sweep=node_boundary strategy={','.join(STRATEGIES)} gpus=2,3,4 baseline=none"
    done = shared_program.run(f"{words} measure.probes=true measure.probe_s=0.5 measure.warmup_max_s=1 measure.max_s=1")
    assert (done.status, done.err) == (0, "")
    return scalebench.load(shared_program.sweep)


def sync_s(frame, strategy, gpus):
    rows = frame[(frame.strategy == strategy) & (frame.gpus == gpus)]
    (value,) = rows.sync_isolated_s
    return float(value)


def test_one_job_at_a_time(frame, shared_program):
    """And three devices stand as the study's nine did: the first node is full."""
    assert frame.nodes.tolist() == frame.gpus.map({2: 1, 3: 2, 4: 2}).tolist()
    assert len(set(frame.job_id)) == 9


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_second_node_has_the_cost(frame, strategy):
    """As many bytes as there are gradients have to come into each node, or nobody there could know the sums: no
    strategy is faster than the link is with them, less what a link that was at rest lets through at once."""
    gradient_bytes = int(frame.gradient_bytes.iloc[0])
    least_s = (gradient_bytes * MTU / PAYLOAD - BURST_BYTES) / LINK_BYTES_PER_S
    within, beyond, more = (sync_s(frame, strategy, gpus) for gpus in (2, 3, 4))
    print(f"{strategy}: {1e3 * within:.2f}, {1e3 * beyond:.2f}, {1e3 * more:.2f} ms; link {1e3 * least_s:.2f} ms")
    assert min(beyond, more) > least_s
    assert beyond > 1.5 * within
