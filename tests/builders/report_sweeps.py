"""Sweeps made by hand for the golden reports, and with each the sections that it is made for."""

import dataclasses
import itertools
import json
import platform

import msgspec

from scalebench.core.machine.gpus import Gpu
from scalebench.core.probe_record import CollectiveRecord, ProbeRecord, TransferRecord
from scalebench.core.result import TimelineRecord, write_result
from scalebench.core.spec import HardwareSpec, TrainSpec, write_spec
from scalebench.core.sweep_file import SWEEP_FILE, PlannedRun, new_sweep_record, write_sweep
from tests.builders import sweeps
from tests.builders.attribution_runs import strong_scaling_runs, weak_scaling_runs
from tests.builders.batch_runs import STEP_S, aimed, batched, make_saturating_runs
from tests.builders.parallelism_runs import chain, staged_run
from tests.builders.runs import MACHINE, rank, record, simulated_config, simulated_spec

SCRIPT = "<script>alert(1)</script>"


def strategies():
    """Two strategies on one to four devices three times, and one of each kind of trouble."""
    runs = [("bare_torch", 1), *((name, gpus) for name in ("ddp_gloo", "horovod_gloo") for gpus in (1, 2, 4))]
    return [
        *(sweeps.run(*each, repeat, minute=n) for repeat in range(3) for n, each in enumerate(runs)),
        sweeps.run("lightning_ddp_gloo", 2, flags=["throttled", "swapping"]),
        sweeps.failed_run(reason="out of luck", log=None),
        sweeps.failed_run("horovod_nccl", status="unsupported", reason="needs GPUs"),
    ]


def make_seeds(strategy, gpus, lasts, epoch_s, **changes):
    for seed, last in enumerate(lasts):
        values = [0.4, 0.2 + 0.01 * seed, last]
        yield sweeps.training_run(strategy, gpus, seed, values, epoch_s=epoch_s * (1 + 0.05 * seed), **changes)


def trainings():
    return [*make_seeds("bare_torch", 1, [0.1, 0.11, 0.14], 4.0), *make_seeds("ddp_gloo", 2, [0.12, 0.1, 0.3], 2.5)]


def batches():
    return [*make_saturating_runs(100), *make_saturating_runs(1000, gpus=2)]


def more_devices():
    runs = [batched(*each, batch) for batch in (10, 20, 40) for each in STEP_S]
    aims = [(1, 20, 6.0), (2, 10, 3.0)]
    return [*runs, *(aimed(*each, seed, s + seed) for *each, s in aims for seed in range(3))]


def memory():
    return [
        sweeps.run_with_memory("bare_torch", 1, sweeps.FULL_STATE_BYTES, peak=30_000),
        sweeps.run_with_memory("ddp_gloo", 2, sweeps.FULL_STATE_BYTES, peak=31_000),
        sweeps.run_with_memory("fsdp_gloo", 2, sweeps.FULL_STATE_BYTES // 2),
        sweeps.run_with_memory("horovod_gloo", 2, None),
        sweeps.out_of_memory("ddp_gloo", 4),
        *(
            sweeps.run_with_batch_search(name, 2, n, 1_500_000_000, None)
            for name, n in (("ddp_gloo", 400), ("zero1", 1500))
        ),
    ]


def stages():
    return [staged_run(chain(0.006, 0.003)), staged_run(chain(0.006, None), run_id="unmeasured")]


def groups():
    """Weak and strong scaling, and other hardware, on two nodes."""
    runs = [sweeps.run("ddp_gloo", n) for n in (1, 2)]
    runs += [sweeps.run("ddp_gloo", n, run_id=f"strong-{n}", **sweeps.strong_scaling(40, n)) for n in (1, 2)]
    other = [sweeps.run(name, n, run_id=f"{name}-{n}-other", hardware=HardwareSpec("other"))
             for name, n in (("bare_torch", 1), ("ddp_gloo", 1), ("ddp_gloo", 2), ("ddp_gloo", 4))]  # fmt: skip
    other[-1].scale.nodes = 2
    for run in (*runs[2:], *other):  # over which synchronization is drawn
        run.workload.steps_per_epoch = 100 // run.scale.gpus
    return [*runs, *other]


def named_baseline():
    """A baseline of two devices is half of what it might be."""
    return [sweeps.run(*each) for each in (("bare_torch", 1), *(("ddp_gloo", gpus) for gpus in (1, 2, 4)))]


def of_study(model, strategies, gpus=(1, 2, 4), **changes):
    spec = dataclasses.replace(simulated_config().model, name=model)
    pairs = [("bare_torch", 1), *itertools.product(strategies, gpus)]
    return [sweeps.run(*pair, model=spec, **changes) for pair in pairs]


def published_strong():
    """32 samples over all devices, as the study had."""
    train = dataclasses.replace(simulated_config().train, global_batch=32)
    runs = of_study("resnet50", ["kuza55_ps_cpu", "avolkov1_ps_gpu"], scaling="strong", train=train)
    for run in runs:
        run.scale.batch_per_device, run.scale.global_batch = 32 // run.scale.gpus, 32
    return runs


def published_slopes():
    return of_study("materials_cnn", ["horovod_nccl", "horovod_mpi"])


def failures():
    return [sweeps.failed_run(gpus=n, reason=reason, status=status, log=log) for n, (reason, status, log) in enumerate([
        (SCRIPT, "failed", "rank0.log"), ("out of memory", "oom", "rank0.log"), ("it hung", "timeout", None),
        (SCRIPT, "failed", "rank0.log"),
    ], 1)]  # fmt: skip


def flags():
    flags = {1: ["throttled", "of_tomorrow"], 2: ["throttled"], 4: ["oversubscribed"]}
    return [sweeps.run("ddp_gloo", gpus, flags=names) for gpus, names in flags.items()]


def lone_run():
    return [sweeps.run("ddp_gloo", 4)]


def attributed():
    """Weak and strong scaling with all parts, and a strong-scaling run without one of its own on one device."""
    merged, full, bare, _ = strong_scaling_runs(dataset=dataclasses.replace(simulated_config().dataset, size=65))
    alone = [dataclasses.replace(run, run_id=f"merged-{run.run_id}") for run in (merged, full, bare)]
    for run in alone:
        run.spec["dataset"]["size"] = 65
    return [*weak_scaling_runs(flags=["unequal_clocks"]), *strong_scaling_runs(), *alone]


def other_trainings():
    """Of an accuracy, of seeds of which one ends earlier, of seeds that the clock evaluates, and on other hardware."""
    clock = [sweeps.training_run("fsdp_gloo", 2, seed, [0.5, 0.4, 0.3, 0.2], None) for seed in range(3)]
    for seed, run in enumerate(clock):
        for point in run.quality.curve[:-1]:
            point.step += seed
    return [
        *(sweeps.training_run("horovod_gloo", 2, s, [0.02, 0.6, 0.9], 0.8, metric="accuracy") for s in range(3)),
        *(sweeps.training_run(seed=s, values=each) for s, each in enumerate([(0.4, 0.3, 0.2, 0.1), (0.3, 0.1)])),
        *clock,
        sweeps.training_run(hardware=HardwareSpec("elsewhere", devices="cpu", gpus_per_node=2), run_id="there"),
    ]


def operations_of_strategies():
    """Times by size, of which one strategy was started three times, and bandwidths."""
    times = {"all_reduce": {2**10: 1e-3, 2**12: 1.024e-3}, "reduce": {2**10: 1e-3, 2**12: 2e-3}}
    other = {"all_reduce": {2**10: 2e-5, 2**14: 2.0}, "reduce": {2**10: 3e-3, 2**12: 2e-5}}
    runs = []
    for name, by_operation, factor in (("horovod_mpi", other, 1.0), *(("ddp_gloo", times, f) for f in (1.0, 1.1, 1.2))):
        measured = [
            CollectiveRecord(operation, size, 1, [0.99 * factor * s, 1.01 * factor * s, factor * s])
            for operation, by_size in by_operation.items() for size, s in by_size.items()
        ]  # fmt: skip
        ranks = [rank(k, probes=ProbeRecord(collectives=measured)) for k in range(2)]
        runs.append(record(name, 2, ranks=ranks, run_id=f"{name}-{factor}", repeat=len(runs)))
    ways = [("send_both_ways", 0, 1, [1.0, 1.0]), ("send_one_way", 1, 0, [0.5, 0.5]), ("memcpy", 1, 1, [1.0, 1.0]),
            ("memcpy_all", None, None, [0.1, 1.0]), ("send_latency", 1, 0, [2e-4, 2e-4])]  # fmt: skip
    for member in runs[0].ranks:
        member.probes.bandwidth = [TransferRecord(*way[:3], 10**9, 1, way[3]) for way in ways]
    return runs


A100S = [Gpu(number, "A100", f"GPU-{number}", 40 * 2**30, 1410, 1215, 400.0, 0, None) for number in range(2)]
WITH_GPUS = dataclasses.replace(
    MACHINE, gpus=A100S, topology=[["X", "PIX"], ["PIX", "X"]], peer_access={"read": [["X", "CNS"], ["CNS", "X"]]},
    driver_version="550.54", cuda_driver_version="12.4", versions={"torch": "2.9"}, git_commit="abc",
    environment={"NCCL_DEBUG": SCRIPT}, container="docker",
)  # fmt: skip


def machines():
    """One whose software changed, one that was rebuilt, one of another name, and other hardware."""
    newer = dataclasses.replace(WITH_GPUS, versions={"torch": "2.10"})
    rebuilt = dataclasses.replace(WITH_GPUS, gpus=[dataclasses.replace(gpu, power_limit_w=250.0) for gpu in A100S])
    other = dataclasses.replace(WITH_GPUS, hostname="other", driver_version="535.1", environment={})
    runs = [sweeps.run("ddp_gloo", gpus, machine=each)
            for gpus, each in enumerate((WITH_GPUS, newer, rebuilt, other, WITH_GPUS, MACHINE), 1)]  # fmt: skip
    runs[-2].scale.hardware = "alpha"
    for number, run in enumerate(runs):
        run.ranks[0].versions = {"torch": "2.9", "nccl": f"2.2{number % 2}"}
    return [*runs, sweeps.failed_run(machine=other)]


def on_dataset(dataset, step_s, repeat=0, gpus=2, read_rate=None):
    """Make a run on that data set, whose steps take so long."""
    made = sweeps.run("ddp_gloo", gpus, repeat)
    made.run_id, made.fingerprint = f"{dataset}-{gpus}-{repeat}", f"{dataset}-{gpus}"
    made.workload.dataset = made.spec["dataset"]["name"] = dataset
    made.workload.read_samples_per_s = read_rate
    for each in made.ranks:
        each.block_s = [step_s * seconds * len(each.block_s) / sum(each.block_s) for seconds in each.block_s]
    return made


def real_input():
    """Real samples that cost something, and once what may be noise, and data sets that were read slowly."""
    runs = [on_dataset(*each, repeat) for repeat in range(3)
            for each in (("imagenet_jpeg", 0.125), ("imagenet_synthetic", 0.1), ("cifar10", 0.125))]  # fmt: skip
    runs += [on_dataset(name, step_s, 0, 4) for name, step_s in (("imagenet_jpeg", 0.125), ("imagenet_synthetic", 0.1))]
    runs += [on_dataset("mine:slow", 0.1, read_rate=30.0), on_dataset("mine:slow", 0.05, 0, 4, 30.0)]
    return [*runs, on_dataset("mine:quick", 0.1, read_rate=1e9), on_dataset("mine:arrays", 0.1)]


def without_probes():
    """What is not measured of a step has its reason."""
    reasons = {"exposed": f"it cannot be switched off {SCRIPT}"}
    runs = {name: sweeps.run(name, 2) for name in ("ddp_gloo", "horovod_gloo", "lightning_ddp_gloo")}
    missing = [{"sync_off_s": [], "fixed_batch_s": [], "reasons": reasons}, {"isolated_sync_s": [], "sync_off_s": []}]
    for run, changes in zip(runs.values(), [*missing, None], strict=True):
        for each in run.ranks:
            each.probes = changes and msgspec.structs.replace(each.probes, **{"reasons": {}, **changes})
    return [*runs.values(), sweeps.run("ddp_gloo", 1)]


def phases_of_sync():
    """One run has the timeline of its framework."""
    timed = sweeps.run("horovod_gloo", 2)
    timed.sync.timeline = TimelineRecord("timeline.json", None, 5, 0.001, None, 0.0, 0.002)
    return [timed, sweeps.run("ddp_gloo", 2)]


def unfinished():
    """Nothing but the sweeps of `write_sweeps`, and a run."""
    return lone_run()


def write_sweeps(folder):
    """Sweeps of three rows: complete ones, and those that go on or may, were cut short, or left runs out."""
    argument, demo = ["--multirun", "strategy=a b", "resume=true"], ["sweep=demo", "sweep.max_minutes=2.5"]
    short = {"ended": True, "max_minutes": 2.5, "arguments": demo}
    for name, runs, left_out, changes in (
        ("complete", 3, 0, {}), ("ended", 4, 0, {"ended": True}), ("goes_on", 4, 0, {}), ("short", 38, 35, short),
        ("elsewhere", 4, 0, {"hostname": "elsewhere"}), ("cut_short", 4, 0, {"pid": 2**22 + 1}),
    ):  # fmt: skip
        sweeps.sweep(folder / name, gpus=(1,))
        planned = [PlannedRun(n, f"run {n}", "", 0, left_out=n >= runs - left_out) for n in range(runs)]
        made = dataclasses.replace(new_sweep_record(argument, "", platform.node(), None), runs=planned, **changes)
        write_sweep(made, folder / name)
    sweeps.sweep(folder / "single_runs", gpus=(1,))
    (folder / "broken").mkdir()
    (folder / "broken" / SWEEP_FILE).write_text("{")


def monitored():
    """Two runs without a series, beside those of `write_series`."""
    return [sweeps.run(name, 2) for name in ("horovod_gloo", "lightning_ddp_gloo")]


def write_series(folder):
    """Series of runs with and without flags, one of two nodes, of which another node's GPUs are left out, and one that
    is gone."""
    sweeps.write_monitored_run(folder / "one", 1)
    sweeps.write_monitored_run(folder / "busy", 2, flags=["busy_machine"])
    sweeps.write_monitored_run(folder / "hot", 3, flags=["throttled", "hot_at_start"])
    nodes = sweeps.write_monitored_run(folder / "nodes", 4, flags=["swapping"])
    for number, device in enumerate(nodes.monitor.devices):
        device.node = number // 2
    nodes.scale.nodes = 2
    write_result(nodes, folder / "nodes")
    sweeps.write_monitored_run(folder / "other", 2, "zero1")
    sweeps.write_monitored_run(folder / "broken", 2, "mirrored")
    (folder / "broken" / "monitor.parquet").unlink()


def more_than_fits():
    """In each section more than LIMITS let it show."""
    topologies = ([["X"], ["PIX", "X", "SYS"]], [["X", "PIX"], []], None)  # which are not matrices
    hosts = [dataclasses.replace(MACHINE, hostname=f"n{n}", topology=each) for n, each in enumerate(topologies)]
    pairs = [("bare_torch", 1), *itertools.product(("ddp_gloo", "horovod_gloo", "zero1"), (1, 2, 4))]
    runs = [sweeps.run(*pair, repeat, machine=hosts[n % 3], flags=["swapping"] if pair[1] > 1 else [])
            for repeat in range(2) for n, pair in enumerate(pairs)]  # fmt: skip
    for probes in (run.ranks[0].probes for run in runs if run.scale.gpus > 1):
        first, *others = probes.profile.operations
        operations = [msgspec.structs.replace(first, name=SCRIPT + "x" * 100), *others]
        probes.profile = msgspec.structs.replace(probes.profile, kernel_s=None, operations=operations)
    for batch in (20, 40, 80):
        runs.append(sweeps.run("bare_torch", 1, run_id=f"{batch}", train=TrainSpec(batch)))
        runs[-1].scale.batch_per_device = batch
    failed = [sweeps.failed_run(gpus=n, reason=reason, log="rank0.log") for n, reason in enumerate("aabb", 1)]
    return [*failed, *runs, sweeps.training_run(), sweeps.training_run("mirrored")]


def write_unfinished_runs(folder):
    (folder / "broken").mkdir()
    (folder / "broken" / "result.json").write_text("[]")
    for name in "wxyz":
        (folder / name).mkdir()
        write_spec(simulated_spec(2), folder / name)
        progress = {"rank": 0, "pid": 1, "phase": "measure", "at_s": 1_800_000_000.0}
        (folder / name / "progress0.json").write_text(json.dumps(progress))


# Each with the sections that it is made for.
SWEEPS = {
    strategies: ("answer", "evidence", "scaling", "strategies", "attribution", "step", "usage", "training", "problems"),
    trainings: ("training",),
    batches: ("batch-size",),
    more_devices: ("batch-size",),
    memory: ("usage",),
    stages: ("stages",),
    groups: ("answer", "evidence", "scaling", "step", "training"),
    named_baseline: ("scaling", "strategies"),
    published_strong: ("published",),
    published_slopes: ("published",),
    failures: ("answer", "problems"),
    flags: ("problems",),
    lone_run: ("answer", "evidence", "strategies"),
    attributed: ("attribution",),
    other_trainings: ("training",),
    operations_of_strategies: ("machines",),
    machines: ("machines",),
    real_input: ("step",),
    without_probes: ("step",),
    phases_of_sync: ("step",),
    unfinished: ("unfinished",),
    monitored: ("usage",),
    more_than_fits: ("answer", "evidence", "strategies", "attribution", "step", "training", "machines", "problems"),
}

OPTIONS = {
    named_baseline: {"baseline": "ddp_gloo-2-0"},
    published_strong: {"references": ["keras_multi_gpu"]},
    published_slopes: {"references": ["thesis"]},
}
LOG = "".join(f"line {n}\n" for n in range(100)) + SCRIPT
FILES = {failures: {"0/rank0.log": LOG, "3/rank0.log": "\n \n"},
         more_than_fits: {f"{number}/rank0.log": f"log {number}" for number in range(4)}}  # fmt: skip
WRITERS = {unfinished: write_sweeps, monitored: write_series, more_than_fits: write_unfinished_runs}
LIMITS = {
    monitored: {f"sections.usage.{name}": n for name, n in
                {"MAX_MONITORED_RUNS": 3, "MAX_MONITOR_POINTS": 20}.items()},
    more_than_fits: {
        "document.MAX_CURVES": 1, "document.MAX_ROWS": 3, "report_data.MAX_DETAILED_RUNS": 16,
        "sections.answer.MAX_CONTRASTED": 1, "sections.attribution.MAX_BARS": 2,
        "sections.operations.MAX_OPERATIONS": 1, "sections.operations.MAX_PROFILED_RUNS": 3,
        "sections.problems.MAX_LOGS": 2,
    },
}  # fmt: skip
