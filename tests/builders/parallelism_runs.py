"""Runs of DDP and of pipelines on a made-up machine whose figures are known."""

import dataclasses

from scalebench.core.probe_record import ProbeRecord
from scalebench.core.result import StageRecord, Sync
from scalebench.core.spec import ModelSpec
from tests.builders.runs import rank, record, simulated_config

MLP = ModelSpec("mlp", input_shape=[20], target_shape=[1], outputs=1, options={})
FLOPS, GRADIENT_BYTES = 6 * 9_230_300.0, 4_000_000
BYTES_PER_S, LATENCY_S = 1e8, 1e-4
SYNC_S = GRADIENT_BYTES / BYTES_PER_S + 2 * LATENCY_S  # on two devices, in one message
STEP_S = 0.01  # of `chain`


def make_parallel_run(strategy, batch, step_s, gpus=2, probes=None, model=MLP, **changes):
    """Make a run of strong scaling with that global batch; an unsupported one without `step_s`."""
    train = dataclasses.replace(simulated_config().train, batch_per_device=batch, global_batch=batch)
    seconds = [] if step_s is None else [2 * step_s * (1 + 0.001 * (-1) ** (n // 2)) for n in range(32)]
    samples = [2 * batch // gpus] * len(seconds)
    ranks = [rank(k, seconds, samples, probes=probes) for k in range(gpus if seconds else 0)]
    status = {} if seconds else {"status": "unsupported", "reason": "not here"}
    run = record(
        strategy, gpus, ranks=ranks, scaling="strong", train=train, model=model,
        run_id=f"{model.name}-{strategy}-{gpus}-{batch}", **{**status, **changes},
    )  # fmt: skip
    run.scale.batch_per_device, run.scale.global_batch = -(-batch // gpus), batch
    run.workload.flops_per_sample, run.workload.gradient_bytes = FLOPS, GRADIENT_BYTES
    return run


def ddp_run(batch, step_s, messages=1, **changes):
    """Make a DDP run whose isolated synchronization has the speed of the link."""
    taken_s = SYNC_S + 2 * (messages - 1) * LATENCY_S
    probes = ProbeRecord(isolated_sync_repeats=2, isolated_sync_s=[2 * taken_s] * 8)
    sizes = [GRADIENT_BYTES // messages] * messages
    return make_parallel_run("ddp_gloo", batch, step_s, probes=probes, sync=Sync(message_bytes=sizes), **changes)


def stage(index, seconds, stages=2, replica=0, micro_batches=4):
    sent = 4096 if index < stages - 1 else None
    return StageRecord(index, stages, replica, f"dense{index}", f"relu_{index}", 1000, micro_batches, sent, seconds)


def chain(*work, replica=0, micro_batches=4):
    """One process for each stage, whose blocks of two steps take 20 ms."""
    return [
        rank(
            replica * len(work) + index, [2 * STEP_S] * 32, state_bytes=[1000 * (index + 1)],
            stages=[stage(index, one, len(work), replica, micro_batches)],
        )
        for index, one in enumerate(work)
    ]  # fmt: skip


def staged_run(*chains, **changes):
    """Make a run of these replicas of a pipeline."""
    ranks = [one for members in chains for one in members]
    return record("pipeline_gpipe", gpus=len(ranks), ranks=ranks, **changes)
