"""Data or model parallelism: what each exchanges in an update, how long it should take, and which should win. Layer 1.

Pure arithmetic. An update over B samples takes fixed_s + B * per_sample_s: parameters make the first, activations and
work the second, so that two kinds of parallelism are two lines and the batch where they cross is where advice changes.

Bytes a second and latency of the link between devices, from all-reduces of known sizes. Layer 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TWICE = 2  # activations go forward, their gradients come back


@dataclass(frozen=True)
class Stage:
    """Part of a model that one device holds."""

    share: float  # of the operations that training on a sample takes
    parameter_bytes: float
    sent_bytes: float  # activations of one sample that go on to the next stage; of the last one 0


@dataclass(frozen=True)
class Work:
    """What an update of a model takes: operations of training on one sample, bytes and messages of its gradients, the
    seconds that one device's optimizer needs for all parameters, and those that a pass forward and back takes however
    few its samples are."""

    flops_per_sample: float
    gradient_bytes: float
    messages: int
    optimizer_s: float
    pass_s: float = 0.0


@dataclass(frozen=True)
class Rates:
    """What the machine gives: operations a second of one device, and a link between neighbours by the model of Hockney:
    a message of so many bytes takes latency_s + bytes / bytes_per_s.

    Source: Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2".
    """

    flops_per_s: float
    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class Update:
    """An update of one kind of parallelism, over the samples of its global batch. Bytes are what one device sends, the
    mean over the devices."""

    devices: int
    fixed_s: float
    per_sample_s: float
    fixed_bytes: float
    bytes_per_sample: float

    def step_s(self, global_batch: float) -> float:
        return self.fixed_s + global_batch * self.per_sample_s

    def sent_bytes(self, global_batch: float) -> float:
        return self.fixed_bytes + global_batch * self.bytes_per_sample

    def flops_per_byte(self, work: Work, global_batch: float) -> float:
        """Operations of all devices over bytes that all devices send; infinite where nothing is sent.

        The studies' "computation per parameter" of data parallelism, which grows with the batch, and "computation per
        neuron output" of model parallelism, which does not (thesis: P. Orlob, "Parallelization of GPUs based on
        Horovod", interim presentation of 2022, "Data vs. Model Parallelism").
        """
        sent = self.devices * self.sent_bytes(global_batch)
        return global_batch * work.flops_per_sample / sent if sent else math.inf


def data_parallel(work: Work, devices: int, rates: Rates) -> Update:
    """Each device has all parameters and its part of the samples; gradients are summed in a ring.

    A device sends 2 (n - 1) / n times the bytes of the gradients in 2 (n - 1) rounds a message, and then updates every
    parameter itself. Nothing of the exchange is hidden behind the backward pass here.

    Source of the ring's bytes and rounds: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations". ValueError for no devices.
    """
    _check(devices)
    sent = ring_bytes(work.gradient_bytes, devices)
    exchange_s = work.messages * ring_rounds(devices) * rates.latency_s + sent / rates.bytes_per_s
    per_sample_s = work.flops_per_sample / rates.flops_per_s / devices
    return Update(devices, work.pass_s + work.optimizer_s + exchange_s, per_sample_s, sent, 0.0)


def model_parallel(work: Work, stages: Sequence[Stage], rates: Rates, micro_batches: int = 1) -> Update:
    """Each device has one stage and sees all samples, in so many micro-batches one behind the other.

    The first micro-batch goes through all stages, each other one comes as late as the slowest stage and the slowest
    transfer take: sum(t) + (m - 1) max(t), where a stage's t is of the m-th part of its work and of its share of a
    pass. Of equal stages that is work / p * (m + p - 1) / m, of which staged.bubble_share_expected is idle. With one
    micro-batch the stages work one after the other. Transfers are not hidden behind work, and where the slowest stage
    is not the one that sends most this is an upper limit. Each stage updates its own parameters; the largest counts.

    Source: Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", section
    2.3, for equal stages; the 1F1B schedule with a flush has the same bubble (Narayanan et al. 2021, "Efficient
    Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2). ValueError for no stages, no
    micro-batches, or shares that are not those of a whole.
    """
    _check(len(stages))
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
    return Update(
        len(stages),
        work.pass_s * passes + work.optimizer_s * largest + TWICE * messages * rates.latency_s,
        work.flops_per_sample / rates.flops_per_s * passes / micro_batches + TWICE * moved / rates.bytes_per_s,
        0.0,
        TWICE * sum(cuts) / len(stages),
    )


def ring_bytes(size: float, devices: int) -> float:
    """That each device sends in a ring all-reduce of `size` bytes (Patarasuk and Yuan 2009)."""
    return 2 * (devices - 1) / devices * size


def ring_rounds(devices: int) -> int:
    """Messages that each device sends one after the other in it."""
    return 2 * (devices - 1)


def imbalance(stages: Sequence[Stage]) -> float:
    """Work of the dearest stage over that of the mean one: 1 where all are alike."""
    return max(stage.share for stage in stages) * len(stages)


def wins_from(one: Update, other: Update) -> float | None:
    """The global batch from which on `one` is the faster; 0: at every batch, None: from none on."""
    gained_s = other.per_sample_s - one.per_sample_s
    if gained_s <= 0:
        return 0.0 if gained_s == 0 and one.fixed_s < other.fixed_s else None
    return max(0.0, (one.fixed_s - other.fixed_s) / gained_s)


def _check(devices: int) -> None:
    if devices < 1:
        raise ValueError(f"{devices} devices")


ALIKE = 1e-9  # sizes and messages that are each other's multiples say one thing only


@dataclass(frozen=True)
class Exchange:
    """One measured exchange of gradients: `messages` all-reduces of `size_bytes` in all."""

    devices: int
    messages: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True)
class LinkRate:
    """`latency_s`: of one message; None where exchanges of one size do not tell it from the bytes' time."""

    bytes_per_s: float
    latency_s: float | None
    exchanges: int


def link_rate(exchanges: Sequence[Exchange]) -> LinkRate | None:
    """The line of least squares of the relative deviations, seconds = rounds * latency_s + sent / bytes_per_s, with
    bytes and rounds of a ring; None where nothing was exchanged, or the bytes make no difference.

    A latency below 0 is none, and is taken as 0. It is an effective rate: what summing up takes is in it.
    Source: Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2".
    """
    rows = [_row(one) for one in exchanges if one.devices > 1 and one.size_bytes > 0 and one.seconds > 0]
    if not rows:
        return None
    s11, s12, s22 = (math.fsum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    t1, t2 = (math.fsum(row[i] for row in rows) for i in (0, 1))
    determinant = s11 * s22 - s12 * s12
    if determinant <= ALIKE * s11 * s22:
        return LinkRate(s22 / t2, None, len(rows))
    latency_s, byte_s = (s22 * t1 - s12 * t2) / determinant, (s11 * t2 - s12 * t1) / determinant
    if byte_s <= 0:
        return None
    return LinkRate(1 / byte_s, latency_s, len(rows)) if latency_s > 0 else LinkRate(s22 / t2, 0.0, len(rows))


def _row(one: Exchange) -> tuple[float, float]:
    """Rounds and bytes over the seconds: 1 = latency_s * rounds / t + bytes / t / bytes_per_s."""
    rounds = one.messages * ring_rounds(one.devices)
    return rounds / one.seconds, ring_bytes(one.size_bytes, one.devices) / one.seconds
