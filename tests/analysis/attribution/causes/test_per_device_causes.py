"""Causes that each device has by itself: told where the figures say so, and not where they do not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.analysis.attribution import causes
from scalebench.analysis.attribution.causes import Case, Cause
from scalebench.analysis.attribution.causes import per_device as checks
from scalebench.analysis.attribution.ladder import ladder
from scalebench.core.result import Monitor, ProbeRecord, Result
from tests.builders.attribution_runs import BARE_S, BATCH, OWN_S, STEPS, alone, series, strong, together


def case(
    result: Result | None = None, full: Result | None = None, bare: Result | None = None, own: Result | None = None
) -> Case:
    """Of strong scaling."""
    made = strong()
    result, full, bare, own = (given or usual for given, usual in zip((result, full, bare, own), made, strict=True))
    found = ladder(result, full, bare, own)
    assert found is not None
    return Case(found, result, full, bare, own)


def with_parts(result: Result, computing_s: float, slower: float = 1.0) -> Result:
    """Forward and backward of so many seconds in all ranks."""
    for one in result.ranks:
        assert one.probes is not None
        told = {"forward_s": series(computing_s / 3 * slower), "backward_s": series(computing_s * slower)}
        one.probes = dataclasses.replace(one.probes, part_steps=STEPS, **told)
    return result


def contended(**changes: Any) -> Result:
    """Of whose update a tenth is contention."""
    result = together("strong", **changes)
    for one in result.ranks:
        assert one.probes is not None
        for name in ("sync_on_s", "sync_off_s", "fixed_batch_s"):
            setattr(one.probes, name, [seconds + STEPS * 0.002 for seconds in getattr(one.probes, name)])
        one.block_s = [seconds + STEPS * 0.002 for seconds in one.block_s]
    return result


def found(check: Any, one: Case) -> Cause:
    cause = check(one)
    assert isinstance(cause, Cause), check
    return cause


def test_small_updates_that_do_not_depend_on_their_batch() -> None:
    cause = found(checks.launch_latency, case(full=alone("bare_torch", 0.011, 20, scaling="strong")))
    # t(10) = 10 ms, t(20) = 11 ms: 9 ms whatever the batch.
    assert cause.part == "batch" and "10 samples take 10 ms, 20 take 11 ms: 90 %" in cause.evidence
    assert checks.launch_latency(case()) is None  # 18 ms: 2 ms whatever the batch
    assert checks.launch_latency(case(full=alone("bare_torch", 0.0199, 20, scaling="strong"))) is None  # nothing lost


def test_samples_that_take_longer_in_a_small_batch() -> None:
    full = with_parts(alone("bare_torch", 0.018, 2 * BATCH, scaling="strong"), 0.016)
    bare = with_parts(alone("bare_torch", BARE_S), 0.009)
    cause = found(checks.small_kernels, case(full=full, bare=bare))
    assert "900 us a sample with the local batch, 800 us with the full one" in cause.evidence
    assert checks.small_kernels(case(full=full, bare=with_parts(alone("bare_torch", BARE_S), 0.008))) is None
    assert checks.small_kernels(case(full=full)) is None


@pytest.mark.parametrize(
    ("strategy", "words"), [("lightning_ddp_gloo", "Lightning's Trainer"), ("horovod_gloo", "horovod")]
)
def test_a_wrapper(strategy: str, words: str) -> None:
    own, result = alone(strategy, 0.014), contended(strategy=strategy)
    cause = found(checks.wrapper, case(result, own=own))
    assert words in cause.cause and "4 ms an update of 10 samples" in cause.evidence
    assert ("loggers" in cause.remedy) is strategy.startswith("lightning")
    assert checks.wrapper(case()) is None  # of half a millisecond, less than a tenth


def test_merged_overhead_is_no_wrappers() -> None:
    result, full, bare, _ = strong()
    one = ladder(result, full, None, alone("ddp", 0.02))
    assert one is not None and one.parts[0].names == ("batch", "overhead")
    assert checks.wrapper(Case(one, result, full, None, alone("ddp", 0.02))) is None
    assert bare.scale.gpus == 1


def test_more_threads_than_cores() -> None:
    result = contended()
    for one in result.ranks:
        one.threads = 4
    cause = found(checks.oversubscribed, case(result))
    assert cause.evidence == "8 threads of 2 processes on 2 cores"
    assert checks.oversubscribed(case(contended())) is None
    flagged = found(checks.oversubscribed, case(contended(flags=["oversubscribed"])))
    assert flagged.evidence.endswith("flagged oversubscribed")
    few = together("strong", flags=["oversubscribed"])
    for one in few.ranks:
        assert one.probes is not None
        one.probes.fixed_batch_s = series(OWN_S - 0.0012)  # less than a device alone
    assert checks.oversubscribed(case(few)) is None


def test_workers_that_share_memory() -> None:
    own = with_parts(alone("ddp", OWN_S), 0.009)
    cause = found(checks.shared_memory, case(with_parts(contended(), 0.0105), own=own))
    assert cause.evidence == "forward and backward take 10.5 ms here, 9 ms on one device alone"
    assert checks.shared_memory(case(with_parts(contended(), 0.0092), own=own)) is None
    assert checks.shared_memory(case(with_parts(contended(flags=["oversubscribed"]), 0.0105), own=own)) is None
    assert checks.shared_memory(case(contended(), own=own)) is None


def test_clocks_that_are_lower_in_company() -> None:
    own = alone("ddp", OWN_S, monitor=Monitor(sm_clock_mhz_mean=1400.0))
    mine = Monitor(sm_clock_mhz_mean=1300.0, throttle_reasons=["sw_power_cap"])
    cause = found(checks.lower_clocks, case(contended(monitor=mine), own=own))
    assert cause.evidence == "1300 MHz here, 1400 MHz on one device; throttle reasons: sw_power_cap"
    assert checks.lower_clocks(case(contended(monitor=Monitor(sm_clock_mhz_mean=1390.0)), own=own)) is None
    assert found(checks.lower_clocks, case(contended(flags=["throttled"]))).evidence == "flagged throttled"
    assert checks.lower_clocks(case(contended())) is None


def test_a_host_whose_cores_are_busy() -> None:
    def on_gpu(used: float | None) -> Case:
        result = contended(monitor=Monitor(cpu_util_mean=used))
        return case(dataclasses.replace(result, scale=dataclasses.replace(result.scale, device="cuda")))

    assert "97 % of the cores" in found(checks.busy_host, on_gpu(0.97)).evidence
    assert checks.busy_host(on_gpu(0.5)) is None and checks.busy_host(on_gpu(None)) is None
    assert checks.busy_host(case(contended(monitor=Monitor(cpu_util_mean=0.97)))) is None


def loaded(feed: str, prefetch: str, loading_s: float = 0.0015, **monitor: Any) -> Case:
    """Of whose update `loading_s` more than a device's millisecond is loading."""
    result = together("strong", monitor=Monitor(**monitor))
    for one in result.ranks:
        assert one.probes is not None
        one.probes.sync_on_s, one.probes.sync_off_s = series(0.0135), series(0.0115 + loading_s)
        one.probes.fixed_batch_s = series(0.0105)
    workload = dataclasses.replace(result.workload, feed=feed, prefetch=prefetch)
    return case(dataclasses.replace(result, workload=workload))


def test_loading() -> None:
    disk = found(checks.loading, loaded("disk", "none", disk_read_bytes_per_s=3.2e8))
    assert "share the disk" in disk.cause and "320 MB/s read from disk" in disk.evidence
    assert "dataset.prefetch=queue" in disk.remedy and "1 ms on one device" in disk.evidence
    host = found(checks.loading, loaded("host", "none", 0.0004))
    assert "while its device waits" in host.cause and "nothing is prefetched" in host.evidence
    slower = found(checks.loading, loaded("host", "queue", 0.002))
    assert "slower in company" in slower.cause and "prefetch" not in slower.remedy
    assert checks.loading(loaded("host", "queue", 0.0004)) is None
    assert checks.loading(loaded("host", "none", 0.0)) is None


def test_one_process_for_all_devices_has_no_threads_to_count() -> None:
    one = contended(flags=["oversubscribed"])
    one.ranks = one.ranks[:1]
    (cause,) = [cause for cause in [checks.oversubscribed(case(one))] if cause]
    assert cause.evidence == "2 devices on 2 cores, flagged oversubscribed"


def test_parts_within_their_noise_have_no_cause() -> None:
    """A large contention that is not resolved."""
    assert found(checks.oversubscribed, case(contended(flags=["oversubscribed"])))
    wide = contended(flags=["oversubscribed"])
    for one in wide.ranks:
        assert isinstance(one.probes, ProbeRecord)
        one.probes.fixed_batch_s = [seconds * (1 + 0.9 * (-1) ** n) for n, seconds in enumerate(one.probes.fixed_batch_s)]
    assert checks.oversubscribed(case(wide)) is None


def test_a_sentence_has_part_cause_evidence_and_remedy() -> None:
    told = causes.sentences(case(contended(flags=["oversubscribed"])))
    assert [one.part for one in told] == ["contention", "imbalance", "transfer"]
    assert told[0].sentence() == (
        "contention: there are more threads or devices than cores, so that they take turns on them (2 threads of 2 "
        "processes on 2 cores, flagged oversubscribed). Try fewer devices on a node, or a smaller "
        "hardware.cpus_per_device."
    )
