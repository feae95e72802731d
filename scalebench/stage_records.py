"""Which part of a model a device holds, where no device holds all of it. Layer 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StageRecord:
    """One stage of a model that is cut into several, one behind the other. Bytes and seconds are of one update."""

    index: int  # from the input on
    stages: int  # that the model is cut into
    replica: int  # which of the chains of stages this one is part of
    first: str  # name of its first operation
    last: str
    parameter_bytes: int
    micro_batches: int  # that a batch goes through the stages in
    sent_bytes: int | None = None  # activations that go on to the next stage; null: it is the last one
    work_s: float | None = None  # forward and backward of all micro-batches by itself; null: not measured
