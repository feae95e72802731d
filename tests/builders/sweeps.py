"""Runs whose devices keep known bytes of a model of 1000 parameters.

A run with a series of the monitor whose figures are known.

A run of two ranks whose probes left known figures.

Folders of sweeps made by hand, with known figures: for reports, comparisons and everything else above the frame.

Trainings made by hand, with known curves: for what is made of seeds, targets and gaps.
"""

import dataclasses
import math
import random
from pathlib import Path

from scalebench.analysis.repeats import Configurations
from scalebench.analysis.rows import summarize_run
from scalebench.core.probe_record import ProbeRecord, Profile, ProfiledOperation
from scalebench.core.result import (
    BatchTrial,
    CurvePoint,
    DeviceMonitorRecord,
    MaxBatch,
    MonitorRecord,
    Quality,
    Sync,
    first_point_at_target,
    write_result,
)
from scalebench.core.spec import StopSpec
from scalebench.core.stats.estimates import CONFIDENCE, student_t
from scalebench.core.stats.log_means import LogMean
from scalebench.measure.monitor.time_series import SampleRows
from tests.builders.runs import rank, record, simulated_config

STEP_S = 0.01  # of which 1 ms is data, 2 forward, 3 backward, 0.5 optimizer, 2.5 exposed sync; 1 is unexplained
OPERATIONS = [
    ProfiledOperation("gloo:all_reduce", 1.0, 0.004, collective=True),
    ProfiledOperation("aten::mm", 40.0, 0.003),
    ProfiledOperation("a kernel [bold]whose name is much too long for a column[/bold] " * 2, 2.5, 0.0000005),
]


def block_times(step_s, steps, wobble_s=0.0):
    """Return eight blocks of `steps` steps, which take alternately `wobble_s` more and less."""
    return [steps * (step_s + wobble_s * (-1) ** block) for block in range(8)]


def make_probes(**changes):
    found = {
        "steps": 4, "sync_on_s": block_times(0.0095, 4), "sync_off_s": block_times(0.007, 4, 0.0001),
        "fixed_batch_s": block_times(0.006, 4), "local_step_s": [[0.006, 0.0061, 0.006, 0.0061]],
        "isolated_sync_repeats": 10, "isolated_sync_s": block_times(0.002, 10, 0.00002),
        "part_steps": 5, "forward_s": block_times(0.002, 5), "backward_s": block_times(0.005, 5, 0.00005),
        "optimizer_s": block_times(0.0055, 5, 0.00005), "copy_repeats": 100, "copy_s": block_times(0.00000123, 100),
        "profile": Profile(3, 0.02, 0.01, 0.004, OPERATIONS),
    }  # fmt: skip
    return ProbeRecord(**{**found, **changes})


def make_probed_run(first, second, **changes):
    """Make a run of blocks of two steps, after a warm-up of single steps of which the first three were slow."""
    blocks = [2 * STEP_S * (1 + 0.01 * (-1) ** (block // 2)) for block in range(32)]
    warmup = {"steady_after_steps": 3, "warmup_block_steps": 1, "warmup_block_s": [0.5, 0.2, 0.1] + [0.01] * 20}
    memory = {"rss_peak_bytes": 512_000_000, "rss_anon_peak_bytes": 256_000_000, "peak_memory_bytes": [None]}
    ranks = [rank(number, blocks, probes=one, **warmup, **memory) for number, one in enumerate((first, second))]
    return record("ddp_gloo", gpus=2, ranks=ranks, **{"sync": Sync(message_bytes=[400_000, 213_764]), **changes})


BATCH = 10  # samples per device
BARE_S = 0.01  # step of the bare baseline
EFFICIENCY = {"ddp_gloo": 0.9, "horovod_gloo": 0.8, "lightning_ddp_gloo": 0.7}  # at each doubling of devices
BASELINES = {"mirrored": "bare_tensorflow", "simulated": "simulated"}


def step_s(strategy, gpus):
    """Return the seconds of a step: the bare one's plus the loss at one device (5 %) and at each doubling."""
    if strategy.startswith("bare_"):
        return BARE_S
    doublings = gpus.bit_length() - 1
    return BARE_S / 0.95 / EFFICIENCY.get(strategy, 0.85) ** doublings


def run(strategy, gpus, repeat=0, noise=0.01, blocks=32, minute=0, **changes):
    """Make an ok run with reproducible noise on its blocks of two steps; `changes` as for `record`."""
    chance = random.Random(f"{strategy} {gpus} {repeat} {sorted(map(str, changes))}")
    mean_s = 2 * step_s(strategy, gpus)
    seconds = [mean_s * (1 + noise * chance.uniform(-1, 1)) for _ in range(blocks)]
    losses = [1.0 / (1 + number) for number in range(blocks)]
    memory = {"rss_peak_bytes": 512_000_000, "peak_memory_bytes": [None]}
    ranks = [
        rank(k, seconds, block_losses=losses, probes=_probes(strategy, gpus), steady_after_steps=4,
             warmup_block_steps=1, warmup_block_s=[0.1] * 4 + [0.01] * 12, **memory)
        for k in range(gpus)
    ]  # fmt: skip
    one_device = gpus == 1 or strategy.startswith("bare_")
    fields = {
        "sync": Sync() if one_device else Sync(message_bytes=[400_000, 213_764]),
        "monitor": MonitorRecord(gpu_util_mean=0.5 + 0.05 * gpus, gpu_power_w_mean=100.0 * gpus, energy_j=300.0 * gpus,
                           energy_from="counter", sm_clock_mhz_min=1400.0, cpu_util_mean=0.9),
        "quality": Quality(final_loss=losses[-1], metric_name="mse", metric=0.01, learning_rate=1e-3),
        "started_at": f"2026-01-01T{repeat:02d}:{minute:02d}:00.000+00:00",
        "run_id": f"{strategy}-{gpus}-{repeat}",
    }  # fmt: skip
    baseline = strategy if strategy.startswith("bare_") else BASELINES.get(strategy, "bare_torch")
    return record(strategy, gpus, ranks=ranks, baseline=baseline, repeat=repeat, **{**fields, **changes})


def sweep(folder, strategies=("bare_torch", "ddp_gloo", "horovod_gloo"), gpus=(1, 2, 4), repeats=1, **changes):
    """Write numbered folders of runs, bare strategies on one device only, and return the results."""
    runs = [
        (strategy, count, repeat)
        for repeat in range(repeats)
        for strategy in strategies
        for count in (gpus if not strategy.startswith("bare_") else gpus[:1])
    ]
    results = [run(*each, minute=number % 60, **changes) for number, each in enumerate(runs)]
    write_results(folder, results)
    return results


def pool(results):
    """Return the configurations of runs that lie in folders `0`, `1`, ..."""
    return Configurations([summarize_run(each, Path(str(k))) for k, each in enumerate(results)])


def ratio_of_rows(row, base):
    """The ratio of independent rows, with the standard errors of their limits and 15 degrees of freedom."""
    means = []
    for each in (row, base):
        rate, low, high = (each[name] for name in ("throughput_samples_per_s", "throughput_low", "throughput_high"))
        error = None if low is None else math.log(high / low) / 2 / student_t(15, CONFIDENCE)
        means.append(LogMean(math.log(rate)) if error is None else LogMean(math.log(rate), error**2, 15))
    return means[0].minus(means[1])


def write_results(folder, results):
    """Write each to <folder>/<n>/result.json, numbered after the existing ones."""
    first = len(list(folder.glob("*/result.json")))
    for number, result in enumerate(results, first):
        (folder / str(number)).mkdir(parents=True)
        write_result(result, folder / str(number))
        (folder / str(number) / ".hydra").mkdir()
        typed = f"- strategy={result.scale.strategy}\n- gpus={result.scale.gpus}\n"
        (folder / str(number) / ".hydra" / "overrides.yaml").write_text(typed)


def failed_run(strategy="ddp_gloo", gpus=8, status="failed", **changes):
    """Make a failed run; its log is rank0.log, which the caller writes."""
    return record(strategy, gpus, None, status=status, run_id=f"{strategy}-{gpus}-{status}", **changes)


def strong_scaling(batch, gpus):
    """Return fields of Config for strong scaling with this global batch."""
    config = simulated_config()
    return {"scaling": "strong", "train": dataclasses.replace(config.train, global_batch=batch,
                                                              batch_per_device=batch // gpus)}  # fmt: skip


def _probes(strategy, gpus):
    """Make probes in which half of the loss over devices is exposed sync, and a tenth of the bare step is data."""
    if gpus == 1 or strategy.startswith("bare_"):
        reasons, one_s = {"exposed": "one device has no other to synchronize with"}, step_s(strategy, 1)
        return ProbeRecord(reasons, steps=2, sync_on_s=[2 * one_s] * 8, fixed_batch_s=[1.8 * one_s] * 8)
    sync_on_s, one_s = step_s(strategy, gpus), step_s(strategy, 1)
    sync_off_s = sync_on_s - (sync_on_s - one_s) / 2
    wobble = [1 + 0.001 * (-1) ** number for number in range(8)]
    return make_probes(
        steps=2,
        sync_on_s=[2 * sync_on_s * w for w in wobble],
        sync_off_s=[2 * sync_off_s for _ in wobble],
        fixed_batch_s=[2 * (sync_off_s - BARE_S / 10) for _ in wobble],
        profile=Profile(3, 0.02, 0.01, 0.004, OPERATIONS[:2]),
    )


PARAMETERS = 1000
FULL_STATE_BYTES = 16 * PARAMETERS  # float32 with Adam


def run_with_memory(strategy, gpus, state, peak=None, **changes):
    """Make an ok run whose last device keeps `state` bytes with a peak of `peak`, the others half of that."""
    result = run(strategy, gpus, monitor=MonitorRecord(rss_anon_bytes_max=10**6 * gpus), **changes)
    result.workload.model_params = PARAMETERS
    for member in result.ranks:
        share = 2 if member.rank < gpus - 1 else 1
        member.state_bytes = [None if state is None else state // share]
        member.peak_memory_bytes = [None if peak is None else peak // share]
    return result


def out_of_memory(strategy, gpus):
    made = failed_run(strategy, gpus, status="oom")
    made.workload.model_params = None
    return made


def run_with_batch_search(strategy, gpus, batch, limit, state):
    """Make a run of a search for the largest batch."""
    search = MaxBatch(batch, limit, "memory", [BatchTrial(batch, "ok", None, None, None, None)])
    made = run_with_memory(strategy, gpus, state, quality=Quality(max_batch=search))
    made.run_id = made.fingerprint = f"{strategy}-{gpus}-searched"
    made.scale.batch_per_device, made.scale.global_batch = batch, batch * gpus
    return made


BEGIN_S = 1_800_000_000.0  # of the measured phase; it lasts 10 s, and warm-up 5 s before it
DIP_S = 3.35  # when the clock of GPU 1 dips, for one sample


def write_monitored_run(folder, gpus=2, strategy="ddp_gloo", **changes):
    """Write a run with its monitor series into `folder`, and return it."""
    monitor = MonitorRecord("monitor.parquet", devices=[DeviceMonitorRecord(index) for index in range(gpus)])
    made = run(strategy, gpus, **{"monitor": monitor, **changes})
    for member in made.ranks:
        member.marks_s = {"setup": BEGIN_S - 8, "warmup": BEGIN_S - 5, "measure": BEGIN_S, "probes": BEGIN_S + 10}
    folder.mkdir(parents=True)
    write_result(made, folder)
    rows = SampleRows()
    rows.add(BEGIN_S - 8, "cpu", "cores", 4)
    for number in range(-80, 130):
        since_s = number / 10 + 0.05
        for gpu in range(gpus):
            dips = gpu == 1 and abs(since_s - DIP_S) < 0.01
            rows.add(BEGIN_S + since_s, f"gpu{gpu}", "sm_clock_mhz", 210.0 if dips else 1400.0 + number % 3)
            rows.add(BEGIN_S + since_s, f"gpu{gpu}", "util_share", 0.5)
        if number % 5 == 0:
            rows.add(BEGIN_S + since_s, "cpu", "busy_s", 100 + 3 * since_s)
            rows.add(BEGIN_S + since_s, "ours", "cpu_s", 50 + 2 * since_s)
            for rank in range(gpus):
                rows.add(BEGIN_S + since_s, f"process:{rank}", "rss_bytes", 2e9 + rank)
    rows.write(folder / "monitor.parquet")
    return made


STEPS_PER_EPOCH = 50
EPOCH_SAMPLES = 1000


def make_curve(values, epoch_s=2.0, metric="mse", seen=0.5):
    """Return a point per epoch; on training samples the metric is `seen` times as large."""
    return [
        CurvePoint(
            STEPS_PER_EPOCH * epoch, float(epoch), EPOCH_SAMPLES * epoch, epoch_s * epoch, 1e-3, value + 0.1,
            EPOCH_SAMPLES, {metric: value}, {metric: seen * value}, 0.25, 1000.0 + epoch,
        )
        for epoch, value in enumerate(values, 1)
    ]  # fmt: skip


def training_run(
    strategy="ddp_gloo",
    gpus=2,
    seed=0,
    values=(0.4, 0.2, 0.1),
    target=0.15,
    epoch_s=2.0,
    repeat=0,
    settings=None,
    status="ok",
    metric="mse",
    **changes,
):
    """Make a training that ends with the last of `values`, at the target or not; `settings` are keys of `train`."""
    stop = StopSpec(epochs=20.0, target=target)
    train = dataclasses.replace(simulated_config().train, stop=stop, **(settings or {}))
    made = {
        "run_id": f"{strategy}-{gpus}-s{seed}-r{repeat}-{train.learning_rate_rule}", "seed": seed, "train": train,
        "started_at": f"2026-01-01T{repeat:02}:{seed:02}:{gpus:02}.000+00:00", "repeat": repeat,
    }  # fmt: skip
    if status != "ok":
        return record(strategy, gpus, None, status=status, **{**made, "reason": "the loss is nan", **changes})
    points = make_curve(values, epoch_s, metric)
    found = None if target is None else first_point_at_target(points, metric, target)
    quality = Quality(
        values[-1], metric, values[-1], {metric: values[-1]}, None if found is None else found.train_s, points,
        "epochs" if found is None else "target", 0.7, train.learning_rate,
    )  # fmt: skip
    return run(strategy, gpus, noise=0.01, quality=quality, **{**made, **changes})


def falling_metrics(epochs, rate=0.7):
    return [math.exp(-rate * epoch) for epoch in range(1, epochs + 1)]
