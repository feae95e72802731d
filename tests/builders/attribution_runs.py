"""Runs whose steps consist of known parts, for attribution, its causes and their report."""

import dataclasses

from scalebench.core.probe_record import ProbeRecord
from tests.builders.runs import rank, record, simulated_config

STEPS = 2  # in each block
BLOCK_NOISE = 0.002  # relative, of the blocks of throughput
SELF_S, DATA_S, CONTENTION_S = 0.0105, 0.001, 0.0004
LOADING_S, IMBALANCE_S, TRANSFER_S, DRIFT_S = 0.0003, 0.0006, 0.0012, 0.0002  # added on two devices
BARE_S, FULL_BARE_S = 0.010, 0.018  # of 10 samples; of 20, as two devices together have
BATCH = 10


def make_blocks(step_s, wobble=BLOCK_NOISE):
    return [STEPS * step_s * (1 + wobble * (-1) ** (n // 2)) for n in range(32)]


def probe_series(step_s, wobble=0.0):
    """Return blocks of a probe."""
    return [STEPS * step_s * (1 + wobble * (-1) ** n) for n in range(8)]


def one_device_run(strategy, step_s, batch=BATCH, data_s=DATA_S, scaling="weak", **changes):
    """Make a run on one device with `data_s` of loading; None: not measured."""
    fixed = [] if data_s is None else probe_series(step_s - data_s)
    probes = ProbeRecord(steps=STEPS, sync_on_s=probe_series(step_s), fixed_batch_s=fixed)
    ranks = [rank(0, make_blocks(step_s), [STEPS * batch] * 32, probes=probes, threads=1)]
    return make_run(strategy, 1, ranks, batch, scaling, **changes)


def two_device_run(scaling="weak", strategy="ddp", **changes):
    """Make a run on two devices with all parts. `probes` changes those of both ranks; None: no probes."""
    fixed_s = SELF_S - DATA_S + CONTENTION_S
    sync_off_s = fixed_s + DATA_S + LOADING_S
    sync_on_s = sync_off_s + IMBALANCE_S + TRANSFER_S
    measured = {
        "steps": STEPS, "sync_on_s": probe_series(sync_on_s, 0.003), "sync_off_s": probe_series(sync_off_s, 0.002),
        "fixed_batch_s": probe_series(fixed_s, 0.001),
        "isolated_sync_repeats": STEPS, "isolated_sync_s": probe_series(0.001, 0.001),
    }  # fmt: skip
    changed = changes.pop("probes", {})
    ranks = []
    for number in range(2):
        # The median of two is their mean: the slower one takes two waits longer.
        local_s = [0.01 + 0.00001 * (n % 3) + 2 * IMBALANCE_S * number for n in range(30)]
        probes = None if changed is None else ProbeRecord(**{**measured, "local_step_s": [local_s], **changed})
        ranks.append(rank(number, make_blocks(sync_on_s + DRIFT_S), [STEPS * BATCH] * 32, probes=probes, threads=1))
    return make_run(strategy, 2, ranks, BATCH, scaling, **changes)


def make_run(strategy, gpus, ranks, batch, scaling, **changes):
    """Make a run with the batch set as `scaling` requires: strong scaling has the same settings on all devices."""
    train = simulated_config().train
    batches = {"global_batch": gpus * batch} if scaling == "strong" else {"batch_per_device": batch}
    train = dataclasses.replace(train, **batches)
    made = record(strategy, gpus, ranks=ranks, scaling=scaling, train=train, **changes)
    scale = dataclasses.replace(made.scale, batch_per_device=batch, global_batch=gpus * batch)
    run_id = changes.get("run_id") or f"{strategy}-{gpus}-{batch}-{scaling}-{made.scale.repeat}"
    return dataclasses.replace(made, scale=scale, run_id=run_id)


def weak_scaling_runs(**changes):
    """Return a run, the bare one and the same strategy on one device."""
    return two_device_run(**changes), one_device_run("bare_torch", BARE_S), one_device_run("ddp", SELF_S)


def strong_scaling_runs(**changes):
    """Return a run, bare at the full batch, bare and the same strategy at the local batch."""
    full = one_device_run("bare_torch", FULL_BARE_S, 2 * BATCH, 2 * DATA_S, "strong")
    return (
        two_device_run("strong", **changes),
        full,
        one_device_run("bare_torch", BARE_S),
        one_device_run("ddp", SELF_S),
    )
