"""How a model is trained: the keys under `train`. Layer 0."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

RULES = ("none", "linear", "sqrt")
SCHEDULES = ("constant", "linear", "cosine", "step")
OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "rmsprop")


@dataclass
class StopSpec:
    """When the training ends: at what comes first. All null: when its throughput is known, as `measure` says."""

    epochs: float | None = None
    steps: int | None = None  # updates
    seconds: float | None = None  # of training; evaluation is not counted
    target: float | None = None  # of the validation metric of the model, reached from its worse side


@dataclass
class TrainSpec:
    """How one update is made, how its learning rate goes on, and when there is enough of it."""

    batch_per_device: int = 1
    global_batch: int | None = None  # only with scaling=strong
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    precision: str = "float32"  # float32 | tf32 | bfloat16 | float16; weights stay float32
    data_format: str = "default"  # nhwc | nchw: how images lie in memory; default: what the adapter takes
    compile: bool = False  # torch.compile, XLA
    dropout: bool = True  # false: dropout layers let everything through, so that losses can be compared
    momentum: float = 0.9  # of optimizer=momentum
    weight_decay: float = 0.0  # adamw: taken off the weights; the others: added to the gradients (L2)
    accumulate: int = 1  # parts that a device computes its samples of an update in, one after the other
    learning_rate_rule: str = "none"  # none | linear | sqrt: in the global batch over base_batch
    base_batch: int | None = None  # global batch that learning_rate is for
    schedule: str = "constant"  # constant | linear | cosine | step
    warmup_epochs: float = 0.0  # in which the learning rate grows linearly from nearly nothing
    decay_epochs: list[float] = field(default_factory=list)  # of schedule=step: after which the rate falls
    decay: float = 0.1  # of schedule=step: what it is multiplied by then
    evaluate_epochs: float | None = 1.0  # epochs between two points of the curve, where the training goes to a stop
    evaluate_s: float | None = None  # seconds of training between two points
    evaluate_samples: int | None = None  # that each point looks at, of validation and of training; null: all
    stop: StopSpec = field(default_factory=StopSpec)


def peak_rate(train: TrainSpec, global_batch: int) -> float:
    """The learning rate for this batch: with k = global_batch / base_batch that of base_batch times k (Goyal et al.
    2017, arXiv:1706.02677, section 2.1) or times the square root of k (Krizhevsky 2014, arXiv:1404.5997, section 5).
    """
    k = global_batch / (train.base_batch or global_batch)
    return train.learning_rate * {"none": 1.0, "linear": k, "sqrt": math.sqrt(k)}[train.learning_rate_rule]


def goes_to_stop(stop: StopSpec) -> bool:
    """Whether a run trains to a stop of its own, rather than until its throughput is known."""
    return any(value is not None for value in (stop.epochs, stop.steps, stop.seconds, stop.target))


def asked(train: dict[str, Any]) -> dict[str, Any]:
    """`train` of a composed config without what is as it was before it had a key; what is evaluated when is of no
    matter to a training that has no points."""
    usual = dataclasses.asdict(TrainSpec())
    late = list(usual)[list(usual).index("dropout") + 1 :]
    kept = {key: value for key, value in train.items() if key not in late or value != usual[key]}
    if not any(value is not None for value in (kept.get("stop") or {}).values()):
        kept = {key: value for key, value in kept.items() if not key.startswith("evaluate_")}
    return kept
