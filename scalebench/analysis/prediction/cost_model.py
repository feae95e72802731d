"""Cost model of data and model parallelism: predicted step time and bytes, and the rate of the link between devices.

Pure arithmetic. A step over B samples takes fixed_s + B * per_sample_s: parameters make the first, activations and
work the second, so that two kinds of parallelism are two lines, and advice changes at the batch where they cross.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.core.stats.estimate_arithmetic import fit_least_squares

PASSES_OVER_CUT = 2  # activations go forward, their gradients come back


@dataclass(frozen=True)
class ModelStage:
    """A part of a model that one device holds."""

    share: float  # of the operations that training on a sample takes
    parameter_bytes: float
    sent_bytes: float  # activations of one sample that are sent to the next stage; 0 for the last one


@dataclass(frozen=True)
class StepWork:
    """The work of one step of a model: operations for one sample, bytes and messages of its gradients, seconds of one
    device's optimizer for all parameters, and seconds of a forward and backward pass that do not depend on its samples.
    """

    flops_per_sample: float
    gradient_bytes: float
    messages: int
    optimizer_s: float
    pass_s: float = 0.0


@dataclass(frozen=True)
class MachineRates:
    """The rates of a machine: operations per second of one device, and the link between neighbours by Hockney's model,
    in which a message takes latency_s + bytes / bytes_per_s.

    Source: Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2".
    """

    flops_per_s: float
    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class StepCost:
    """The cost of a step of one kind of parallelism. Bytes are those that one device sends, the mean over devices."""

    devices: int
    fixed_s: float
    per_sample_s: float
    fixed_bytes: float
    bytes_per_sample: float

    def step_s(self, global_batch: float) -> float:
        return self.fixed_s + global_batch * self.per_sample_s

    def sent_bytes(self, global_batch: float) -> float:
        return self.fixed_bytes + global_batch * self.bytes_per_sample

    def flops_per_byte(self, work: StepWork, global_batch: float) -> float:
        """Return operations of all devices over bytes that all devices send; infinite if nothing is sent.

        The studies' "computation per parameter" of data parallelism, which grows with the batch, and "computation per
        neuron output" of model parallelism, which does not (thesis: P. Orlob, "Parallelization of GPUs based on
        Horovod", interim presentation of 2022, "Data vs. Model Parallelism").
        """
        sent = self.devices * self.sent_bytes(global_batch)
        return global_batch * work.flops_per_sample / sent if sent else math.inf


def predict_data_parallel(work: StepWork, devices: int, rates: MachineRates) -> StepCost:
    """Predict the cost if each device has all parameters and its part of the samples; gradients are summed in a ring.

    A device sends 2 (n - 1) / n times the bytes of the gradients in 2 (n - 1) rounds per message, and then updates
    every parameter itself. No overlap of synchronization with the backward pass is assumed.

    Source of the ring's bytes and rounds: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations". ValueError for no devices.
    """
    _check_devices(devices)
    sent = ring_bytes(work.gradient_bytes, devices)
    sync_s = work.messages * ring_rounds(devices) * rates.latency_s + sent / rates.bytes_per_s
    per_sample_s = work.flops_per_sample / rates.flops_per_s / devices
    return StepCost(devices, work.pass_s + work.optimizer_s + sync_s, per_sample_s, sent, 0.0)


def predict_model_parallel(
    work: StepWork, stages: Sequence[ModelStage], rates: MachineRates, micro_batches: int = 1
) -> StepCost:
    """Predict the cost if each device has one stage and sees all samples, in micro-batches one after the other.

    The first micro-batch goes through all stages; each other one follows after the time of the slowest stage and the
    slowest transfer: sum(t) + (m - 1) max(t), where a stage's t is of the m-th part of its work and of its share of a
    pass. For equal stages that is work / p * (m + p - 1) / m, of which pipeline_stages.bubble_share_expected is idle.
    With one micro-batch the stages work one after the other. Transfers do not overlap with work, and if the slowest
    stage is not the one that sends most this is an upper limit. Each stage updates its own parameters; the largest
    counts.

    Source: Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", section
    2.3, for equal stages; the 1F1B schedule with a flush has the same bubble (Narayanan et al. 2021, "Efficient
    Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2). ValueError for no stages, no
    micro-batches, or shares that do not add up to 1.
    """
    _check_devices(len(stages))
    if micro_batches < 1:
        raise ValueError(f"{micro_batches} micro-batches")
    if not math.isclose(math.fsum(stage.share for stage in stages), 1.0, abs_tol=1e-6):
        raise ValueError("the stages' shares of the operations should add up to 1")
    cuts = [stage.sent_bytes for stage in stages[:-1]]
    waits = micro_batches - 1
    passes = 1 + waits * max(stage.share for stage in stages)
    moved = (sum(cuts) + waits * max(cuts, default=0.0)) / micro_batches
    messages = len(cuts) + (waits if cuts else 0)
    parameters = sum(stage.parameter_bytes for stage in stages)
    largest = max(stage.parameter_bytes for stage in stages) / parameters if parameters else 1.0
    return StepCost(
        len(stages),
        work.pass_s * passes + work.optimizer_s * largest + PASSES_OVER_CUT * messages * rates.latency_s,
        work.flops_per_sample / rates.flops_per_s * passes / micro_batches
        + PASSES_OVER_CUT * moved / rates.bytes_per_s,
        0.0,
        PASSES_OVER_CUT * sum(cuts) / len(stages),
    )


def ring_bytes(size: float, devices: int) -> float:
    """Return the bytes that each device sends in a ring all-reduce of `size` bytes (Patarasuk and Yuan 2009)."""
    return 2 * (devices - 1) / devices * size


def ring_rounds(devices: int) -> int:
    """Return the messages that each device sends one after the other in a ring all-reduce."""
    return 2 * (devices - 1)


def crossover_batch(first: StepCost, second: StepCost) -> float | None:
    """Return the global batch from which `first` is faster; 0: at every batch, None: at no batch."""
    gained_s = second.per_sample_s - first.per_sample_s
    if gained_s <= 0:
        return 0.0 if gained_s == 0 and first.fixed_s < second.fixed_s else None
    return max(0.0, (first.fixed_s - second.fixed_s) / gained_s)


def _check_devices(devices: int) -> None:
    if devices < 1:
        raise ValueError(f"{devices} devices")


MIN_SIZE_INDEPENDENCE = 1e-9  # below it sizes and messages are proportional and cannot separate latency from bandwidth


@dataclass(frozen=True)
class MeasuredSync:
    """One measured gradient synchronization: `messages` all-reduces of `size_bytes` in total."""

    devices: int
    messages: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True)
class LinkRate:
    """The rate of a link; `latency_s` of one message is None if one size cannot separate it from the bytes' time."""

    bytes_per_s: float
    latency_s: float | None


def fit_link_rate(syncs: Sequence[MeasuredSync]) -> LinkRate | None:
    """Fit seconds = rounds * latency_s + sent / bytes_per_s with the least squares of relative deviations.

    Bytes and rounds are those of a ring. None if there are no measurements, or bytes make no difference. A negative
    latency counts as 0. The rate is an effective one: it includes the summation.
    Source: Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2".
    """
    rows = [_regression_row(sync) for sync in syncs if sync.devices > 1 and sync.size_bytes > 0 and sync.seconds > 0]
    if not rows:
        return None
    by_bytes_alone = math.fsum(sent * sent for _, sent in rows) / math.fsum(sent for _, sent in rows)
    fit = fit_least_squares(rows, [1.0] * len(rows), MIN_SIZE_INDEPENDENCE)
    if fit is None:
        return LinkRate(by_bytes_alone, None)
    latency_s, byte_s = map(float, fit.coefficients)
    if byte_s <= 0:
        return None
    return LinkRate(1 / byte_s, latency_s) if latency_s > 0 else LinkRate(by_bytes_alone, 0.0)


def _regression_row(sync: MeasuredSync) -> tuple[float, float]:
    """Return rounds and bytes over the seconds: 1 = latency_s * rounds / t + bytes / t / bytes_per_s."""
    rounds = sync.messages * ring_rounds(sync.devices)
    return rounds / sync.seconds, ring_bytes(sync.size_bytes, sync.devices) / sync.seconds
