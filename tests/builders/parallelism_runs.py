"""Runs of data and model parallelism on a made-up machine whose figures are known."""

import dataclasses

from scalebench.core.probe_record import ProbeRecord
from scalebench.core.result import StageRecord, Sync
from scalebench.core.spec import ModelSpec
from tests.builders.runs import rank, record, simulated_config

MLP = ModelSpec("mlp", input_shape=[20], target_shape=[1], outputs=1, options={})
FLOPS, GRADIENT_BYTES = 6 * 9_230_300.0, 4_000_000
FLOPS_PER_S, BYTES_PER_S, LATENCY_S = 1e10, 1e8, 1e-4
OPTIMIZER_S = 0.01
SYNC_S = GRADIENT_BYTES / BYTES_PER_S + 2 * LATENCY_S  # on two devices, in one message
STEP_S = 0.01  # of `chain`


def work_s(batch):
    """Return seconds of forward and backward on one device."""
    return batch * FLOPS / FLOPS_PER_S


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
    if strategy.startswith("pipeline"):
        run.spec["strategy"]["options"] = {"micro_batches": 2}
    run.scale.batch_per_device, run.scale.global_batch = -(-batch // gpus), batch
    run.workload.flops_per_sample, run.workload.gradient_bytes = FLOPS, GRADIENT_BYTES
    return run


def bare_run(batch, probed=True, pass_s=0.0, **changes):
    """Make a bare run that takes `pass_s` besides its samples."""
    worked_s = pass_s + work_s(batch)
    parts = ProbeRecord(part_steps=1, forward_s=[worked_s / 3] * 8, backward_s=[worked_s] * 8,
                   optimizer_s=[worked_s + OPTIMIZER_S] * 8)  # fmt: skip
    return make_parallel_run("bare_torch", batch, worked_s + OPTIMIZER_S, 1, parts if probed else None, **changes)


def ddp_run(batch, step_s, messages=1, **changes):
    """Make a DDP run whose isolated synchronization has the speed of the link."""
    taken_s = SYNC_S + 2 * (messages - 1) * LATENCY_S
    probes = ProbeRecord(isolated_sync_repeats=2, isolated_sync_s=[2 * taken_s] * 8)
    sizes = [GRADIENT_BYTES // messages] * messages
    return make_parallel_run("ddp_gloo", batch, step_s, probes=probes, sync=Sync(message_bytes=sizes), **changes)


def pipeline_run(strategy, batch, step_s, micro_batches=1, **changes):
    """Make a run split after the first layer, not where operations are balanced."""
    run = make_parallel_run(strategy, batch, step_s, **changes)
    first = StageRecord(0, 2, 0, "dense1", "dense1", 1_000_000, micro_batches, sent_bytes=16_000 * batch)
    last = StageRecord(1, 2, 0, "relu_2", "dense5", 3_000_000, micro_batches)
    run.ranks[0].stages, run.ranks[1].stages = [first], [last]
    return run


def split_run(step_s, batch=8, **changes):
    return make_parallel_run("model_parallel", batch, step_s, **changes)


def make_pairs():
    """Model parallelism is the faster one at 8 and at 64."""
    return [
        run
        for batch, data_s, model_s in ((64, 0.30, 0.25), (8, 0.10, 0.05))
        for run in (
            bare_run(batch), ddp_run(batch, data_s, messages=batch // 14 + 1), split_run(model_s, batch),
            make_parallel_run("pipeline_gpipe", batch, None),
        )
    ]  # fmt: skip


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
