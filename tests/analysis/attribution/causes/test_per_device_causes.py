"""Causes that each device has by itself: reported where the figures say so, and not where they do not."""

import dataclasses

import pytest

from scalebench.analysis.attribution import causes
from scalebench.analysis.attribution.causes import AttributedRun, Cause
from scalebench.analysis.attribution.causes import per_device as checks
from scalebench.analysis.attribution.lost_efficiency import attribute_repeats, attribute_run, measure_repeat
from scalebench.analysis.attribution.reference_runs import ReferenceRuns
from scalebench.core.result import MonitorRecord
from tests.builders.attribution_runs import (
    BARE_S,
    BATCH,
    SELF_S,
    STEPS,
    one_device_run,
    probe_series,
    strong_scaling_runs,
    two_device_run,
)


def attributed(result=None, full=None, bare=None, own=None):
    """Of strong scaling, in three repeats that are equal."""
    made = strong_scaling_runs()
    result, full, bare, own = (changed or usual for changed, usual in zip((result, full, bare, own), made, strict=True))
    references = ReferenceRuns(full, bare, own)
    return AttributedRun(attribute_repeats([measure_repeat(result, references)] * 3), result, references)


def with_parts(result, computing_s, slower=1.0):
    """Forward and backward of so many seconds in all ranks."""
    for one in result.ranks:
        found_causes = {
            "forward_s": probe_series(computing_s / 3 * slower),
            "backward_s": probe_series(computing_s * slower),
        }
        one.probes = dataclasses.replace(one.probes, part_steps=STEPS, **found_causes)
    return result


def contended(**changes):
    """Of whose update a tenth is contention."""
    result = two_device_run("strong", **changes)
    for one in result.ranks:
        for name in ("sync_on_s", "sync_off_s", "fixed_batch_s"):
            setattr(one.probes, name, [seconds + STEPS * 0.002 for seconds in getattr(one.probes, name)])
        one.block_s = [seconds + STEPS * 0.002 for seconds in one.block_s]
    return result


def require_cause(check, one):
    cause = check(one)
    assert isinstance(cause, Cause), check
    return cause


def test_launch_latency_dominates_small_batches():
    cause = require_cause(
        checks.check_launch_latency, attributed(full=one_device_run("bare_torch", 0.011, 20, scaling="strong"))
    )
    # t(10) = 10 ms, t(20) = 11 ms: 9 ms whatever the batch.
    assert cause.part == "batch" and "10 samples take 10.0 ms, 20 take 11.0 ms: 90 %" in cause.evidence
    assert checks.check_launch_latency(attributed()) is None  # 18 ms: 2 ms whatever the batch
    assert (
        checks.check_launch_latency(attributed(full=one_device_run("bare_torch", 0.0199, 20, scaling="strong"))) is None
    )  # nothing lost


def test_samples_take_longer_in_a_small_batch():
    full = with_parts(one_device_run("bare_torch", 0.018, 2 * BATCH, scaling="strong"), 0.016)
    bare = with_parts(one_device_run("bare_torch", BARE_S), 0.009)
    cause = require_cause(checks.check_small_kernels, attributed(full=full, bare=bare))
    assert "900 us per sample with the local batch, 800 us with the full one" in cause.evidence
    assert (
        checks.check_small_kernels(attributed(full=full, bare=with_parts(one_device_run("bare_torch", BARE_S), 0.008)))
        is None
    )
    assert checks.check_small_kernels(attributed(full=full)) is None


@pytest.mark.parametrize(
    ("strategy", "arguments"), [("lightning_ddp_gloo", "Lightning's Trainer"), ("horovod_gloo", "horovod")]
)
def test_overhead_of_a_wrapper(strategy, arguments):
    own, result = one_device_run(strategy, 0.014), contended(strategy=strategy)
    cause = require_cause(checks.check_wrapper_overhead, attributed(result, own=own))
    assert arguments in cause.cause and "4.00 ms in a step of 10 samples" in cause.evidence
    assert ("loggers" in cause.remedy) is strategy.startswith("lightning")
    assert checks.check_wrapper_overhead(attributed()) is None  # of half a millisecond, less than a tenth


def test_merged_overhead_is_not_attributed_to_a_wrapper():
    result, full, _, _ = strong_scaling_runs()
    references = ReferenceRuns(full, None, one_device_run("ddp", 0.02))
    attribution = attribute_run(result, references)
    assert attribution.parts[0].names == ("batch", "overhead")
    assert checks.check_wrapper_overhead(AttributedRun(attribution, result, references)) is None


def test_more_threads_than_cores():
    result = contended()
    for one in result.ranks:
        one.threads = 4
    cause = require_cause(checks.check_oversubscription, attributed(result))
    assert cause.evidence == "8 threads of 2 processes on 2 cores"
    assert checks.check_oversubscription(attributed(contended())) is None
    flagged = require_cause(checks.check_oversubscription, attributed(contended(flags=["oversubscribed"])))
    assert flagged.evidence.endswith("flagged oversubscribed")
    few = two_device_run("strong", flags=["oversubscribed"])
    for one in few.ranks:
        one.probes.fixed_batch_s = probe_series(SELF_S - 0.0012)  # less than a device alone
    assert checks.check_oversubscription(attributed(few)) is None


def test_a_quota_of_cpu_time_is_named():
    """A container that is limited to one CPU's time sees two cores, which two threads do not exceed."""
    result = contended()
    result.machine = dataclasses.replace(result.machine, cpu_quota=1.0)
    for one in result.ranks:
        one.threads = 1
    cause = require_cause(checks.check_oversubscription, attributed(result))
    assert cause.evidence == "2 threads of 2 processes with the time of 1 CPUs on each node of 2 cores"
    assert "quota" in cause.cause and "docker --cpus" in cause.remedy


def test_cpu_workers_share_memory_bandwidth():
    own = with_parts(one_device_run("ddp", SELF_S), 0.009)
    cause = require_cause(checks.check_shared_memory, attributed(with_parts(contended(), 0.0105), own=own))
    assert cause.evidence == "forward and backward take 10.5 ms here, 9.00 ms on one device alone"
    assert checks.check_shared_memory(attributed(with_parts(contended(), 0.0092), own=own)) is None
    assert (
        checks.check_shared_memory(attributed(with_parts(contended(flags=["oversubscribed"]), 0.0105), own=own)) is None
    )
    assert checks.check_shared_memory(attributed(contended(), own=own)) is None


def test_clocks_are_lower_together():
    own = one_device_run("ddp", SELF_S, monitor=MonitorRecord(sm_clock_mhz_mean=1400.0))
    monitor = MonitorRecord(sm_clock_mhz_mean=1300.0, throttle_reasons=["sw_power_cap"])
    cause = require_cause(checks.check_lower_clocks, attributed(contended(monitor=monitor), own=own))
    assert cause.evidence == "1300 MHz here, 1400 MHz on one device; throttle reasons: sw_power_cap"
    assert (
        checks.check_lower_clocks(attributed(contended(monitor=MonitorRecord(sm_clock_mhz_mean=1390.0)), own=own))
        is None
    )
    assert (
        require_cause(checks.check_lower_clocks, attributed(contended(flags=["throttled"]))).evidence
        == "flagged throttled"
    )
    assert checks.check_lower_clocks(attributed(contended())) is None


def test_busy_cores_of_the_host():
    def on_gpu(used):
        result = contended(monitor=MonitorRecord(cpu_util_mean=used))
        return attributed(dataclasses.replace(result, scale=dataclasses.replace(result.scale, device="cuda")))

    assert "97 % of the cores" in require_cause(checks.check_busy_host, on_gpu(0.97)).evidence
    assert checks.check_busy_host(on_gpu(0.5)) is None and checks.check_busy_host(on_gpu(None)) is None
    assert checks.check_busy_host(attributed(contended(monitor=MonitorRecord(cpu_util_mean=0.97)))) is None


def loaded(feed, prefetch, loading_s=0.0015, dataset="materials", **monitor):
    """Of whose update `loading_s` more than a device's millisecond is loading."""
    result = two_device_run("strong", monitor=MonitorRecord(**monitor))
    for one in result.ranks:
        one.probes.sync_on_s, one.probes.sync_off_s = probe_series(0.0135), probe_series(0.0115 + loading_s)
        one.probes.fixed_batch_s = probe_series(0.0105)
    workload = dataclasses.replace(result.workload, feed=feed, prefetch=prefetch, dataset=dataset)
    return attributed(dataclasses.replace(result, workload=workload))


def test_loading():
    disk = require_cause(checks.check_loading, loaded("disk", "none", disk_read_bytes_per_s=3.2e8))
    assert "share the disk" in disk.cause and "320 MB/s read from disk" in disk.evidence
    assert "dataset.prefetch=queue" in disk.remedy and "1.00 ms on one device" in disk.evidence
    host = require_cause(checks.check_loading, loaded("host", "none", 0.0004))
    assert "while its device waits" in host.cause and "nothing is prefetched" in host.evidence
    slower = require_cause(checks.check_loading, loaded("host", "queue", 0.002))
    assert "more slowly than one" in slower.cause and "prefetch" not in slower.remedy
    decoding = require_cause(checks.check_loading, loaded("host", "queue", 0.0004, dataset="imagenet_jpeg"))
    assert "decoded more slowly" in decoding.cause and "dataset.workers" in decoding.remedy
    assert checks.check_loading(loaded("host", "queue", 0.0004)) is None
    assert checks.check_loading(loaded("host", "none", 0.0)) is None


def test_one_process_for_all_devices_has_no_threads_to_count():
    one = contended(flags=["oversubscribed"])
    one.ranks = one.ranks[:1]
    (cause,) = [cause for cause in [checks.check_oversubscription(attributed(one))] if cause]
    assert cause.evidence == "2 devices on 2 cores, flagged oversubscribed"


def test_a_part_that_compares_processes_has_no_cause_in_one_repeat():
    three = attributed(contended(flags=["oversubscribed"]))
    assert require_cause(checks.check_oversubscription, three)
    one = attribute_run(three.result, three.references)
    assert one.part("contention").share.value == three.attribution.part("contention").share.value
    causes_of_one = causes.find_causes(dataclasses.replace(three, attribution=one))
    assert {cause.part for cause in causes_of_one} == {"imbalance", "transfer"}, "within one process"


def test_a_sentence_has_part_cause_evidence_and_remedy():
    found_causes = causes.find_causes(attributed(contended(flags=["oversubscribed"])))
    assert [one.part for one in found_causes] == ["contention", "imbalance", "transfer"]
    assert found_causes[0].sentence() == (
        "contention: there are more threads or devices than cores, so that they take turns on them (2 threads of 2 "
        "processes on 2 cores, flagged oversubscribed). Try fewer devices on a node, or a smaller "
        "hardware.cpus_per_device."
    )
