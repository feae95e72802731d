"""What every strategy trains: one module that gives the mean loss of a batch, its losses by name, and its metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.spec import ModelSpec
from scalebench.strategies.base import GroupSum
from scalebench.strategies.torch.batches import TorchBatch, to_tensors
from scalebench.strategies.torch.model import read_weights
from scalebench.workloads import metrics
from scalebench.workloads.source import Source

if TYPE_CHECKING:
    from scalebench.strategies.torch.user_optimizer import UserOptimizer


def _mean_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss of (samples, classes), or of (samples, classes, positions) with one row per position.

    Nothing is copied where classes are contiguous in memory, as in the output of a transformer.
    """
    return functional.cross_entropy(outputs.movedim(1, -1).flatten(0, -2), labels.long().flatten())


def _measure_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().double().reshape(len(outputs), -1).mean(0)


def _measure_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """A sample with several labels counts with their mean."""
    labels = targets.long()
    losses, correct = functional.cross_entropy(outputs, labels, reduction="none"), outputs.argmax(1) == labels
    return torch.stack([each.double().mean() for each in (losses, correct)])


class Loss(NamedTuple):
    """A loss of outputs and targets: its mean over the samples and the elements of a sample's target, and the means of
    the metrics over the samples."""

    mean: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[Tensor, Tensor], Tensor]


LOSSES = {
    "mse": Loss(functional.mse_loss, _measure_squares),
    "cross_entropy": Loss(_mean_cross_entropy, _measure_classes),
}


def select_loss(name: str) -> Loss:
    """Return the loss of that name; InputError suggests the nearest name."""
    if name not in LOSSES:
        raise InputError(unknown_name_message("loss", name, LOSSES))
    return LOSSES[name]


@dataclass
class Progress:
    """The steps that a run has trained so far, and the Trainer of a LightningModule, where the strategy has one."""

    steps: int = 0
    steps_per_epoch: int = 0  # 0: not known yet
    trainer: Any = None

    @property
    def epoch(self) -> int:
        """The number of complete epochs."""
        return self.steps // self.steps_per_epoch if self.steps_per_epoch else 0

    @property
    def is_epoch_over(self) -> bool:
        """Whether the last step was the last one of its epoch."""
        return self.steps > 0 and self.steps == self.epoch * self.steps_per_epoch

    def __deepcopy__(self, memo: dict[int, Any]) -> Progress:
        """Return a copy for a copy of the module, with the same Trainer."""
        return dataclasses.replace(self)


class StepModule(nn.Module):
    """A module that gives outputs, and their loss. It turns inputs and targets into the mean loss over the samples, and
    in evaluation mode into the means of the metrics."""

    user_optimizer: UserOptimizer | None = None  # made by the user's function, with its schedulers
    communicates = False  # whether the step of the check sent messages between the ranks
    flops_per_sample: float | None = None  # of training; None: not counted

    def __init__(self, module: nn.Module, loss: Loss | None) -> None:
        """Without a loss, code of the user's computes it."""
        super().__init__()
        self.module: Any = module
        self.loss: Any = loss
        self.progress = Progress()
        self.remarks: dict[str, str] = {}  # of the check of a user's module, by flag
        self.unused_parameters: list[str] = []  # those to which the check's backward pass gave no gradient

    def forward(self, inputs: Any, targets: Any) -> Tensor:
        return self.measure(self.compute_outputs(inputs), targets)

    def measure(self, outputs: Tensor, targets: Any) -> Tensor:
        """Return the mean loss of outputs, or in evaluation mode the means of the metrics."""
        measured: Tensor = (self.loss.mean if self.training else self.loss.metrics)(outputs.float(), targets)
        return measured

    def compute_outputs(self, inputs: Any) -> Tensor:
        """Return what the module gives for a batch."""
        outputs: Tensor = self.module(inputs)
        return outputs

    def count_parameters(self) -> int:
        """Count the trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    def arrays(self, statistics: bool = False) -> dict[str, NDArray[Any]]:
        """Copy the trained parameters, and with `statistics` the buffers, by name. Those that are split over processes
        are gathered, so that all processes have to call this."""
        return read_weights(self.module, statistics)


def compute_metrics(
    measure: Callable[[TorchBatch], Tensor | None],
    model: ModelSpec,
    source: Source,
    device: torch.device,
    sum_over_group: GroupSum,
    is_sharded: bool = False,
) -> dict[str, float]:
    """Compute the mean metrics over all samples of all replicas.

    `measure` returns the means of a batch, or None where it leaves its samples to another process. `sum_over_group`
    adds up numbers over the processes, all of which have to call this. Where the model `is_sharded`, all processes
    compute equally many batches.
    """
    samples = 0
    sums = torch.zeros(len(metrics.list_metrics(model)), dtype=torch.float64, device=device)
    with torch.no_grad():  # and no inference_mode, whose tensors a user's module may keep, and FSDP train on
        for batch in map(to_tensors, source.in_order(even=is_sharded)):
            means = measure(batch.to(device))
            if means is not None and batch.global_samples:
                sums += means * batch.samples
                samples += batch.samples
    return metrics.average_metrics(model, sums.tolist(), samples, sum_over_group)
