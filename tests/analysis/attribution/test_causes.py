"""Causes of lost efficiency: reported where the figures say so, and not where they do not."""

import dataclasses

import msgspec
import pytest

from scalebench.analysis.attribution import causes
from scalebench.analysis.attribution.causes import AttributedRun
from scalebench.analysis.attribution.lost_efficiency import (
    ReferenceRuns,
    attribute_repeats,
    attribute_run,
    measure_repeat,
)
from scalebench.core.probe_record import GpuTime, Profile
from scalebench.core.result import DeviceMonitorRecord, MonitorRecord, Sync, write_result
from tests.builders import attribution_runs as sample
from tests.builders.runs import MACHINE, record
from tests.builders.sweeps import ratio_of_rows

ROW = {
    "status": "ok", "model": "m", "dataset": "d", "hardware": "h", "scaling": "weak", "precision": "float32",
    "feed": "host", "framework": "tensorflow", "gpus": 2, "global_batch": 20, "strategy": "mirrored_nccl",
    "options": None, "flags": None, "interval_over": "repeats", "repeats": 3, "run_id": "ddp-2-10-weak-0",
}  # fmt: skip
# Words that only one cause, or the variants of one, begin with.
WORDS = {
    "launch_latency": ("a step takes nearly as long",), "small_kernels": ("a device computes a sample more slowly",),
    "wrapper_overhead": ("Lightning's Trainer runs", "horovod_gloo does", "ddp does"),
    "oversubscription": ("a quota", "there are more threads"), "shared_memory": ("workers on one machine",),
    "lower_clocks": ("devices run at lower clocks",), "busy_host": ("the cores that start",),
    "loading": ("devices share the disk", "pictures are", "several devices load", "each batch is drawn"),
    "slow_device": ("one device is slower",), "random_delays": ("each time another device",),
    "unequal_clocks": ("devices run at different",), "changed_conditions": ("the probes came after",),
    "single_message": ("all gradients travel",), "sync_slower_in_training": ("gradient synchronization costs more",),
    "sync_longer_than_backward": ("gradient synchronization takes longer",),
    "small_messages": ("messages are so small",), "large_messages": ("large messages",),
    "nccl_without_links": ("NCCL has no direct link",), "waiting_kernels": ("the backend waits",),
}  # fmt: skip
PCIE, NVLINK = ([["X", link], [link, "X"]] for link in ("PHB", "NV4"))
NO_PEERS, PEERS = ({"read": [["X", access], [access, "X"]]} for access in ("CNS", "OK"))


def find_cause(run, name):
    """Return the cause of that name that the figures of `run` support, None if they do not."""
    return next((cause for cause in causes.find_causes(run) if cause.cause.startswith(WORDS[name])), None)


def attributed_weak(rows=(), local_s=None, later_s=0.0, change=lambda result: result, **changes):
    """`local_s`: single updates of each rank; `later_s`: what an update of the headline takes more."""
    result, bare, own = sample.weak_scaling_runs(**changes)
    for number, one in enumerate(result.ranks):
        one.block_s = [seconds + sample.STEPS * later_s for seconds in one.block_s]
        if local_s is not None:
            one.probes.local_step_s = [local_s[number]]
    change(result)
    references = ReferenceRuns(bare, bare, own)
    run = AttributedRun(attribute_run(result, references), result, references, rows)
    run.configurations.estimate_ratio = ratio_of_rows
    return run


def exchanging(messages=(), isolated_s=sample.TRANSFER_S, backward_s=None, options=None, probes=None, **changes):
    """Exposed without the wait are 1.2 ms; `isolated_s`: the same exchange alone."""
    parts = {} if backward_s is None else {"part_steps": sample.STEPS, "forward_s": sample.probe_series(0.001),
                                           "backward_s": sample.probe_series(0.001 + backward_s)}  # fmt: skip
    probes = {"isolated_sync_s": sample.probe_series(isolated_s, 0.001), **parts, **(probes or {})}
    run = attributed_weak(probes=probes, sync=Sync(message_bytes=list(messages)), **changes)
    run.result.spec["strategy"]["options"] = options or {}
    return run


@pytest.mark.parametrize(("check", "changes", "evidence", "remedy"), [
    ("single_message", {"messages": [614_000], "options": {"bucket_cap_mb": 25.0}},
     "1 message of 614 kB, 1.20 ms exposed, 1.20 ms in isolation", "(lower strategy.options.bucket_cap_mb, now 25)"),
    ("single_message", {"messages": [300_000, 314_000]}, None, ""),
    ("single_message", {"messages": [614_000], "isolated_s": 0.002}, None, ""),  # a part of it is hidden
    ("single_message", {"messages": [614_000], "probes": {"sync_on_s": sample.probe_series(0.0108)}}, None, ""),  # all
    ("sync_slower_in_training", {"isolated_s": 0.0009},
     "1.20 ms of the step without the imbalance, 900 us in isolation", ""),
    ("sync_slower_in_training", {}, None, ""),
    ("sync_slower_in_training", {"isolated_s": 0.0009, "probes": {"local_step_s": []}}, None, ""),
    ("sync_longer_than_backward", {"backward_s": 0.001}, "1.20 ms in isolation, a backward pass of 1.00 ms", ""),
    ("sync_longer_than_backward", {"backward_s": 0.002}, None, ""), ("sync_longer_than_backward", {}, None, ""),
    ("small_messages", {"messages": [40_000] * 8, "options": {"fusion_threshold_mb": 0.5}},
     "8 messages of 40.0 kB, 150 us each in isolation", "(raise strategy.options.fusion_threshold_mb, now 0.5)"),
    ("small_messages", {"messages": [40_000]}, "1 message of 40.0 kB, 1.20 ms each in isolation",
     "Try a larger train.batch_per_device"),
    ("small_messages", {"messages": [400_000] * 3}, None, ""), ("small_messages", {}, None, ""),
    # A ring of two moves each byte once over each link: 2 (2 - 1) / 2.
    ("large_messages", {"messages": [25_000_000, 5_000_000], "options": {"compression": "none"}},
     "30.0 MB in 2 take 1.20 ms in isolation, 25.0 GB/s on each link of a ring", "compression=fp16"),
    ("large_messages", {"messages": [400_000] * 3}, None, ""),
])  # fmt: skip
def test_causes_of_exposed_synchronization(check, changes, evidence, remedy):
    cause = find_cause(exchanging(**changes), check)
    assert (cause and (cause.part, cause.evidence)) == (evidence and ("communication", evidence))
    assert cause is None or remedy in cause.remedy


@pytest.mark.parametrize(("changes", "evidence"), [
    ({}, "somebodys 3,000 samples/s, this 2,000; no NVLink (GPUs connected by PHB)"),
    ({"peers": NO_PEERS}, "no peer access between all"),
    *((changes, None) for changes in (
        {"topology": NVLINK}, {"topology": None}, {"peers": PEERS}, {"backend": "gloo"}, {"rate": 2020.0},
        {"place": "devices"}, {"gpus": 4}, {"framework": "torch"}, {"status": "failed"}, {"throughput_low": None},
        {"throughput_samples_per_s": None}, {"interval_over": "blocks"},
    )),
])  # fmt: skip
def test_nccl_without_direct_links(tmp_path, changes, evidence):
    facts = {"topology": PCIE, "peers": None, "backend": "nccl", "rate": 3000.0, "place": "cpu", **changes}
    of_row = {key: value for key, value in changes.items() if key in {**ROW, **rates(0)}}

    def on_gpus(result):
        result.machine = dataclasses.replace(MACHINE, topology=facts["topology"], peer_access=facts["peers"])
        result.scale.backend_used = facts["backend"]

    rival = record("somebodys", 2)
    rival.spec["strategy"]["reduces_on"] = facts["place"]
    write_result(rival, tmp_path)
    other = {**ROW, "run_id": "cpu", "strategy": "somebodys", "path": str(tmp_path), **rates(facts["rate"]), **of_row}
    cause = find_cause(attributed_weak([{**ROW, **rates(2000.0)}, other], change=on_gpus), "nccl_without_links")
    assert (cause is None) == (evidence is None) and (cause is None or cause.evidence.endswith(evidence))


def rates(rate):
    return {"throughput_samples_per_s": rate, "throughput_low": 0.99 * rate, "throughput_high": 1.01 * rate}


WAITING = (
    "from 1 to 2 devices utilization goes from 40 % to 90 %, power per device from 105 to 105 W, speedup from 1.00 "
    "to 1.50"
)


@pytest.mark.parametrize(("changes", "evidence"), [
    ({"collective_kernel_share": 0.87}, f"{WAITING}; collective operations are 87 % of kernel time"), ({}, WAITING),
    *((changes, None) for changes in (
        {"gpu_util_mean": 0.5}, {"gpu_util_mean": None}, {"gpu_power_w_mean": 260.0}, {"speedup_self": 2.1},
        {"strategy": "mirrored"}, {"options": "loop=fit"}, {"run_id": "another"},
    )),
])  # fmt: skip
def test_kernels_that_wait_for_other_devices(changes, evidence):
    row = {**ROW, "gpu_util_mean": 0.9, "gpu_power_w_mean": 210.0, "speedup_self": 1.5, **changes}
    one = {"run_id": "one", "gpus": 1, "gpu_util_mean": 0.4, "gpu_power_w_mean": 105.0, "speedup_self": 1.0}
    cause = find_cause(attributed_weak([row, {**ROW, **one}]), "waiting_kernels")
    assert (cause and cause.evidence) == evidence


SLOW = [[0.010] * 20, [0.013] * 20]
TURNS = [[0.010, 0.013] * 10, [0.013, 0.010] * 10]
EQUAL = [[0.010] * 20, [0.0101] * 20]
CLOCKS = [DeviceMonitorRecord(0, sm_clock_mhz_mean=1410.0), DeviceMonitorRecord(3, sm_clock_mhz_mean=1200.0)]
SWAPPING = MonitorRecord(cpu_cores_others_mean=1.5, swap_in_bytes=2_000_000, swap_out_bytes=1_000_000)
CHANGED = "flagged busy_machine, swapping, 1.5 cores in use by others, 3.00 MB swapped"


@pytest.mark.parametrize(("check", "changes", "evidence"), [
    ("slow_device", {"local_s": SLOW},
     "device 1 is the slowest in 100 % of the steps: 13.0 ms by itself, the median device 11.5 ms"),
    ("slow_device", {"local_s": TURNS}, None), ("slow_device", {"local_s": EQUAL}, None),
    ("slow_device", {"probes": {"local_step_s": []}}, None),
    ("random_delays", {"local_s": TURNS, "monitor": MonitorRecord(cpu_cores_others_mean=0.53)},
     "no device is the slowest in more than 50 % of the steps; other programs use 0.53 cores"),
    ("random_delays", {"local_s": TURNS}, "no device is the slowest in more than 50 % of the steps"),
    ("random_delays", {"local_s": SLOW}, None), ("random_delays", {"local_s": EQUAL}, None),
    ("unequal_clocks", {"local_s": SLOW, "flags": ["unequal_clocks"], "monitor": MonitorRecord(devices=CLOCKS)},
     "flagged unequal_clocks, GPU 3 at 1200 MHz, GPU 0 at 1410 MHz"),
    ("unequal_clocks", {"local_s": SLOW, "flags": ["throttled"]}, "flagged throttled"),
    ("unequal_clocks", {"local_s": SLOW}, None),
    *(("changed_conditions", {"later_s": later_s, "flags": ["busy_machine", "swapping"], "monitor": SWAPPING}, CHANGED)
      for later_s in (0.002, -0.002)),
    ("changed_conditions", {"later_s": 0.002}, None), ("changed_conditions", {"later_s": -0.002}, None),
    ("changed_conditions", {"flags": ["busy_machine"]}, None),  # no drift
])  # fmt: skip
def test_causes_of_imbalance_and_of_drift(check, changes, evidence):
    cause = find_cause(attributed_weak(**changes), check)
    assert (cause and cause.evidence) == evidence
    assert cause is None or cause.part == ("drift" if check == "changed_conditions" else "imbalance")


def test_devices_of_one_process_and_flags_added_on_load():
    one = attributed_weak()
    first, second = one.result.ranks
    first.probes.local_step_s, second.probes.local_step_s = [[0.01] * 9, [0.02] * 9], [[0.01] * 9, [0.01] * 9]
    assert find_cause(one, "slow_device").evidence.startswith("device 1 is the slowest in 100 %")
    later = attributed_weak([{"run_id": "ddp-2-10-weak-0", "flags": "target_missed drifts", "status": "ok"}],
                            later_s=0.002)  # fmt: skip
    assert "its level changed while it was measured" in find_cause(later, "changed_conditions").cause


def attributed(result=None, full=None, bare=None, own=None):
    """Of strong scaling, in three repeats that are equal."""
    made = sample.strong_scaling_runs()
    result, full, bare, own = (changed or usual for changed, usual in zip((result, full, bare, own), made, strict=True))
    references = ReferenceRuns(full, bare, own)
    return AttributedRun(attribute_repeats([measure_repeat(result, references)] * 3), result, references)


def with_parts(result, computing_s):
    """Forward and backward of so many seconds in all ranks."""
    for one in result.ranks:
        passes = {"forward_s": sample.probe_series(computing_s / 3), "backward_s": sample.probe_series(computing_s)}
        one.probes = msgspec.structs.replace(one.probes, part_steps=sample.STEPS, **passes)
    return result


def contended(threads=None, **changes):
    """Of whose update a tenth is contention."""
    result = sample.two_device_run("strong", **changes)
    for one in result.ranks:
        one.threads = threads or one.threads
        for name in ("sync_on_s", "sync_off_s", "fixed_batch_s"):
            setattr(one.probes, name, [seconds + sample.STEPS * 0.002 for seconds in getattr(one.probes, name)])
        one.block_s = [seconds + sample.STEPS * 0.002 for seconds in one.block_s]
    return result


def full_batch(step_s):
    return sample.one_device_run("bare_torch", step_s, 2 * sample.BATCH, scaling="strong")


def test_launch_latency_and_small_kernels():
    cause = find_cause(attributed(full=full_batch(0.011)), "launch_latency")
    # t(10) = 10 ms, t(20) = 11 ms: 9 ms whatever the batch.
    assert cause.part == "batch" and "10 samples take 10.0 ms, 20 take 11.0 ms: 90 %" in cause.evidence
    assert find_cause(attributed(), "launch_latency") is None  # 18 ms: 2 ms whatever the batch
    assert find_cause(attributed(full=full_batch(0.0199)), "launch_latency") is None  # nothing lost
    full = with_parts(full_batch(0.018), 0.016)
    slower, equal = (
        with_parts(sample.one_device_run("bare_torch", sample.BARE_S), seconds) for seconds in (0.009, 0.008)
    )
    cause = find_cause(attributed(full=full, bare=slower), "small_kernels")
    assert "900 us per sample with the local batch, 800 us with the full one" in cause.evidence
    assert find_cause(attributed(full=full, bare=equal), "small_kernels") is None
    assert find_cause(attributed(full=full), "small_kernels") is None


@pytest.mark.parametrize(
    ("strategy", "wrapper"), [("lightning_ddp_gloo", "Lightning's Trainer"), ("horovod_gloo", "horovod")]
)
def test_overhead_of_a_wrapper(strategy, wrapper):
    own = sample.one_device_run(strategy, 0.014)
    cause = find_cause(attributed(contended(strategy=strategy), own=own), "wrapper_overhead")
    assert wrapper in cause.cause and "4.00 ms in a step of 10 samples" in cause.evidence
    assert ("loggers" in cause.remedy) is strategy.startswith("lightning")
    assert find_cause(attributed(), "wrapper_overhead") is None  # of half a millisecond, less than a tenth
    result, full, _, _ = sample.strong_scaling_runs()
    references = ReferenceRuns(full, None, sample.one_device_run("ddp", 0.02))
    merged = attribute_run(result, references)
    assert merged.parts[0].names == ("batch", "wrapper")
    assert find_cause(AttributedRun(merged, result, references), "wrapper_overhead") is None


@pytest.mark.gpu
def test_a_wrapper_on_a_host_that_is_the_limit():
    """The baseline waits for its host as well, so that the wait is not a part, and stands beside one."""
    result = contended(strategy="ddp")
    for each in result.ranks:
        gpu = GpuTime(0.002, 0.0, 0.0, 0.0, host_wait_s=0.03, kernel_wait_s=0.0, kernels=74)
        each.probes.profile = Profile(2, 0.05, 0.002, gpu=gpu)
    cause = find_cause(attributed(result, own=sample.one_device_run("ddp", 0.014)), "wrapper_overhead")
    assert cause.cause.endswith("the host is the limit: the GPU waits for all that it does")
    assert "a step starts 74 kernels, and the GPU computes 1" in cause.evidence


def test_more_threads_than_cores():
    flagged, of_one_process = (contended(flags=["oversubscribed"]) for _ in range(2))
    limited = contended()
    of_one_process.ranks = of_one_process.ranks[:1]
    limited.machine = dataclasses.replace(limited.machine, cpu_quota=1.0)  # as a container's may be
    for result, evidence in (
        (contended(threads=4), "8 threads of 2 processes on 2 cores"), (contended(), None),
        (flagged, "2 threads of 2 processes on 2 cores, flagged oversubscribed"),
        (of_one_process, "2 devices on 2 cores, flagged oversubscribed"),
        (limited, "2 threads of 2 processes with the time of 1 CPUs on each node of 2 cores"),
    ):  # fmt: skip
        cause = find_cause(attributed(result), "oversubscription")
        assert (cause and cause.evidence) == evidence
    assert "quota" in cause.cause and "docker --cpus" in cause.remedy
    few = sample.two_device_run("strong", flags=["oversubscribed"])
    for one in few.ranks:
        one.probes.fixed_batch_s = sample.probe_series(sample.SELF_S - 0.0012)  # less than a device alone
    assert find_cause(attributed(few), "oversubscription") is None


def at_clock(mhz, **more):
    return {"monitor": MonitorRecord(sm_clock_mhz_mean=mhz, **more)}


def test_memory_clocks_and_cores_that_devices_share():
    own = with_parts(sample.one_device_run("ddp", sample.SELF_S), 0.009)
    cause = find_cause(attributed(with_parts(contended(), 0.0105), own=own), "shared_memory")
    assert cause.evidence == "forward and backward take 10.5 ms here, 9.00 ms on one device alone"
    flagged = with_parts(contended(flags=["oversubscribed"]), 0.0105)
    for result in (with_parts(contended(), 0.0092), flagged, contended()):
        assert find_cause(attributed(result, own=own), "shared_memory") is None
    own = sample.one_device_run("ddp", sample.SELF_S, **at_clock(1400.0))
    for result, evidence in (
        (contended(**at_clock(1300.0, throttle_reasons=["sw_power_cap"])),
         "1300 MHz here, 1400 MHz on one device; throttle reasons: sw_power_cap"),
        (contended(flags=["throttled"]), "flagged throttled"), (contended(), None),
        (contended(**at_clock(1390.0)), None),
    ):  # fmt: skip
        cause = find_cause(attributed(result, own=own), "lower_clocks")
        assert (cause and cause.evidence) == evidence
    used_on = (0.97, "cuda", True), (0.5, "cuda", False), (None, "cuda", False), (0.97, "cpu", False)
    for used, device, is_cause in used_on:
        result = contended(monitor=MonitorRecord(cpu_util_mean=used))
        result.scale.device = device
        cause = find_cause(attributed(result), "busy_host")
        assert (cause is not None) == is_cause and (cause is None or "97 % of the cores" in cause.evidence)


def loaded(feed, prefetch, loading_s=0.0015, dataset="materials", **monitor):
    """Of whose update `loading_s` more than a device's millisecond is loading."""
    result = sample.two_device_run("strong", monitor=MonitorRecord(**monitor))
    for one in result.ranks:
        one.probes.sync_on_s, one.probes.sync_off_s = (
            sample.probe_series(0.0135),
            sample.probe_series(0.0115 + loading_s),
        )
        one.probes.fixed_batch_s = sample.probe_series(0.0105)
    result.workload = dataclasses.replace(result.workload, feed=feed, prefetch=prefetch, dataset=dataset)
    return find_cause(attributed(result), "loading")


def test_loading():
    host = loaded("host", "none", 0.0004)
    assert "while its device waits" in host.cause and "nothing is prefetched" in host.evidence
    assert "dataset.prefetch=queue" in host.remedy and "1.00 ms on one device" in host.evidence
    slower = loaded("host", "queue", 0.002)
    assert "more slowly than one" in slower.cause and "prefetch" not in slower.remedy
    decoding = loaded("host", "queue", 0.0004, "imagenet_jpeg", disk_read_bytes_per_s=3.2e8)
    assert "decoded more slowly" in decoding.cause and "dataset.workers" in decoding.remedy
    assert "320 MB/s read from disk" in decoding.evidence
    assert loaded("host", "queue", 0.0004) is None and loaded("host", "none", 0.0) is None
