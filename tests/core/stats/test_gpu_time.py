"""What a GPU does in a step: unions of intervals of traces made by hand."""

import msgspec
import pytest

from scalebench.core.probe_record import GpuTime
from scalebench.core.stats import gpu_time
from scalebench.core.stats.gpu_time import COMMUNICATION, COMPUTE, COPY, GpuActivity


def test_intervals_count_once():
    assert gpu_time.merge([(5, 6), (0, 2), (1, 3), (3, 4), (0, 1)]) == [(0, 4), (5, 6)]
    assert gpu_time.measure(gpu_time.merge([(5, 6), (0, 2), (1, 3)])) == 4 and gpu_time.merge([]) == []


# Two streams: compute 0 to 4 and 6 to 8, NCCL 3 to 7, a copy 7 to 9 and one from 12 on.
TRACE = [
    GpuActivity(COMPUTE, 0.0, 4.0, 0.0),
    GpuActivity(COMMUNICATION, 3.0, 7.0, 1.0),
    GpuActivity(COMPUTE, 6.0, 8.0, 2.0),
    GpuActivity(COPY, 7.0, 9.0, 2.0),
    GpuActivity(COPY, 12.0, 13.0, 11.5),
]


def test_a_trace_made_by_hand():
    """Of the gap from 9 to 12 the host needs 2.5 to start what comes next, which then waits for 0.5."""
    assert gpu_time.sum_up_gpu_time(TRACE, 1) == GpuTime(
        compute_s=6.0, communication_s=4.0, hidden_s=2.0, copy_s=2.0, host_wait_s=2.5, kernel_wait_s=0.5, kernels=3
    )
    halves = gpu_time.sum_up_gpu_time(TRACE[::-1], 2)
    assert msgspec.structs.astuple(halves) == (3.0, 2.0, 1.0, 1.0, 1.25, 0.25, 1.5)


@pytest.mark.parametrize(
    ("called_s", "waits"),
    [(0.5, (0.0, 2.0)), (2.0, (1.0, 1.0)), (3.5, (2.0, 0.0)), (None, (None, None))],
    ids=["started long before", "in the gap", "returned after its kernel began", "unknown"],
)
def test_a_gap_is_split_where_the_call_for_the_next_kernel_returned(called_s, waits):
    trace = [
        GpuActivity(COMPUTE, 0.0, 1.0, 0.0),
        GpuActivity(COMPUTE, 3.0, 4.0, called_s),
    ]
    actual = gpu_time.sum_up_gpu_time(trace, 1)
    assert (actual.host_wait_s, actual.kernel_wait_s) == waits and actual.compute_s == 2.0


def test_the_mean_over_gpus_is_unknown_where_one_is():
    one, other = gpu_time.sum_up_gpu_time(TRACE, 1), gpu_time.sum_up_gpu_time([TRACE[0]._replace(called_s=None)], 1)
    assert gpu_time.mean_gpu_time([one, other]) == GpuTime(5.0, 2.0, 1.0, 1.0, None, None, 2.0)
    assert gpu_time.mean_gpu_time([]) is None and gpu_time.sum_up_gpu_time([], 3) is None
