"""Figures made of the probes' series, from series with known truth."""

import msgspec
import pytest

from scalebench.analysis import step_breakdown, throughput
from scalebench.core.probe_record import GpuTime, ProbeRecord, Profile
from scalebench.report.sections.operations import describe_gpus
from tests.builders.runs import rank, record

BLOCKS = 8


def probes(**changes):
    """Return probes with blocks of two steps, which take 10 ms including everything."""
    defaults = {
        "steps": 2, "sync_on_s": [0.020] * BLOCKS, "sync_off_s": [0.014] * BLOCKS, "fixed_batch_s": [0.012] * BLOCKS,
        "local_step_s": [[0.007] * BLOCKS], "isolated_sync_repeats": 4, "isolated_sync_s": [0.008] * BLOCKS,
        "part_steps": 5, "forward_s": [0.010] * BLOCKS, "backward_s": [0.025] * BLOCKS, "optimizer_s": [0.030] * BLOCKS,
        "copy_repeats": 10, "copy_s": [0.001] * BLOCKS,
    }  # fmt: skip
    return ProbeRecord(**(defaults | changes))


def group(*of_ranks, **changes):
    ranks = [rank(number, [0.1] * 20, probes=one) for number, one in enumerate(of_ranks)]
    return record(gpus=len(ranks), ranks=ranks, **changes)


def value_of(name, *of_ranks):
    return step_breakdown.figure(group(*of_ranks), name).value


def test_seconds_of_one_step():
    expected = {
        "sync_exposed_s": 0.003, "sync_isolated_s": 0.002, "data_s": 0.001, "copy_s": 0.0001,
        "forward_s": 0.002, "backward_s": 0.003, "optimizer_s": 0.001, "imbalance_s": 0.0,
    }  # fmt: skip
    for name, seconds in expected.items():
        estimate = step_breakdown.figure(group(probes(), probes()), name)
        assert (estimate.low, estimate.value, estimate.high) == pytest.approx((seconds,) * 3, abs=1e-12), name
    # Isolated sync lasts until the last rank has it; loading is seen without a switch for synchronization, too.
    assert value_of("sync_isolated_s", probes(), probes(isolated_sync_s=[0.016] * BLOCKS)) == pytest.approx(0.004)
    without = probes(sync_off_s=[], sync_on_s=[0.020] * BLOCKS, fixed_batch_s=[0.018] * BLOCKS)
    assert value_of("data_s", without) == pytest.approx(0.001)


@pytest.mark.parametrize("empty", [ProbeRecord(), None])
def test_unmeasured_figures_are_null(empty):
    result = group(empty, empty)
    assert {step_breakdown.figure(result, name) for name in step_breakdown.SERIES_COLUMNS} == {None}
    cells = step_breakdown.breakdown_cells(result, 0.01)
    assert {name for name, value in cells.items() if value is not None} == set()
    assert step_breakdown.unmeasured_reasons(result) == {}
    half = group(probes(), None)
    assert {step_breakdown.figure(half, name) for name in step_breakdown.SERIES_COLUMNS} == {None}
    assert step_breakdown.figure(group(probes(), status="failed"), "forward_s") is None


def test_the_two_shares_of_collectives_are_independent():
    """0.87 of all kernels' time, as in one study, may be a third of the time of a step."""
    profiles = [Profile(5, step_s=0.030, kernel_s=0.010, collective_s=0.0087) for _ in range(2)]
    of_kernels, of_steps = step_breakdown.collective_shares(group(*(probes(profile=one) for one in profiles)))
    assert (of_kernels, of_steps) == (pytest.approx(0.87), pytest.approx(0.29))
    unknown = Profile(5, step_s=0.030, kernel_s=0.010, collective_s=None)
    assert step_breakdown.collective_shares(group(probes(profile=unknown))) == (None, None)


def gpu_run(*times):
    """Make a run of one-step blocks of 100 ms whose ranks have these profiles."""
    return group(*(probes(profile=Profile(1, 0.3, 0.05, gpu=gpu)) for gpu in times))


BUSY = GpuTime(0.060, 0.030, 0.020, 0.002, host_wait_s=0.200, kernel_wait_s=0.004, kernels=50)
IDLE = GpuTime(0.008, 0.0, 0.0, 0.0, host_wait_s=0.290, kernel_wait_s=0.002, kernels=70)


@pytest.mark.gpu
def test_what_gpus_do_in_a_step_is_a_share_of_the_step_without_the_profiler():
    """The profiler slows the host: its wait is what is left of the step, and not the wait under the profiler."""
    shares = step_breakdown.gpu_cells(gpu_run(BUSY, BUSY), 0.1)
    parts = {
        "gpu_compute_share": 0.6,
        "gpu_communication_share": 0.1,
        "gpu_copy_share": 0.02,
        "kernel_wait_share": 0.04,
    }
    others = {"gpu_hidden_share": 2 / 3, "host_wait_share": 0.24, "gpu_kernels_per_step": 50}
    assert shares == pytest.approx({**parts, **others})
    assert step_breakdown.gpu_cells(gpu_run(BUSY), 0.05)["host_wait_share"] == 0.0  # never less
    assert step_breakdown.gpu_cells(gpu_run(IDLE, IDLE), 0.1)["gpu_hidden_share"] is None


@pytest.mark.gpu
@pytest.mark.parametrize("times", [(BUSY, None), (None, None)])
def test_what_gpus_do_is_null_where_a_rank_has_not_seen_it(times):
    assert set(step_breakdown.gpu_cells(gpu_run(*times), 0.1).values()) == {None}


@pytest.mark.gpu
def test_waits_are_null_where_the_profiler_has_not_seen_who_started_a_kernel():
    unknown = msgspec.structs.replace(BUSY, host_wait_s=None, kernel_wait_s=None)
    shares = step_breakdown.gpu_cells(gpu_run(unknown), 0.1)
    assert (shares["host_wait_share"], shares["kernel_wait_share"]) == (None, None)
    assert shares["gpu_compute_share"] == 0.6


@pytest.mark.gpu
@pytest.mark.parametrize(("gpu", "is_limited"), [(BUSY, False), (IDLE, True), (None, False)])
def test_a_host_that_is_the_limit_is_flagged_and_said(gpu, is_limited):
    run = gpu_run(gpu)
    assert ("host_limited" in throughput.Measurement(run).list_flags()) == is_limited
    said = describe_gpus(step_breakdown.gpu_cells(run, throughput.Measurement(run).step_s))
    if gpu is None:
        assert said is None
    else:
        assert said.startswith("of a step the GPUs compute ") and f"{gpu.kernels} kernels a step" in said
        assert ("hidden behind computing" in said) == (gpu is BUSY)
