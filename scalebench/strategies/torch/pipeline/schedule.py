"""One stage of a network as a module, and the micro-batch schedules of torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from scalebench.core.spec import Config
from scalebench.strategies.base import LossPart
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.model import NetworkModule
from scalebench.workloads.partition import BatchSize

SCHEDULES: dict[str, type[Any]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
Loss = Callable[[Tensor, Tensor], Tensor]


class StagePlace(NamedTuple):
    """A process's place among the stages of one replica, which form a group."""

    index: int
    stages: int
    device: torch.device
    group: dist.ProcessGroup

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.stages - 1


class ActivationLayout(NamedTuple):
    """The layout of activations between two stages, and of their gradients on the way back.

    They are sent contiguously in the order of the sender's memory, so that neither side copies them.
    """

    shape: tuple[int, ...]  # of one sample, as it is sent
    dtype: torch.dtype
    channels_last: bool  # (positions..., channels); else torch's order

    @classmethod
    def from_outputs(cls, outputs: Tensor) -> ActivationLayout:
        """Return the layout of outputs like these, whose axes are in torch's order."""
        channels_last = outputs.dim() > 2 and not outputs.is_contiguous() and outputs.movedim(1, -1).is_contiguous()
        packed = outputs.movedim(1, -1) if channels_last else outputs
        return cls(tuple(packed.shape[1:]), outputs.dtype, channels_last)

    def empty(self, samples: int, device: torch.device | str) -> Tensor:
        return torch.empty(samples, *self.shape, dtype=self.dtype, device=device)

    def pack(self, outputs: Tensor) -> Tensor:
        """Return a stage's outputs as they are sent."""
        return (outputs.movedim(1, -1) if self.channels_last else outputs).contiguous()

    def unpack(self, packed: Tensor) -> Tensor:
        """Return what was received as a view in the neutral order, which a NetworkModule takes."""
        return packed if self.channels_last or packed.dim() < 3 else packed.movedim(1, -1)


class StageModule(nn.Module):
    """One stage's part of the forward pass.

    An `input_layout` of None means the first stage, which takes samples as they are fed; an `output_layout` of None
    means the last one, which returns the model's outputs.
    """

    def __init__(
        self,
        model: NetworkModule,
        autocast: Callable[[], AbstractContextManager[None]],
        input_layout: ActivationLayout | None,
        output_layout: ActivationLayout | None,
    ) -> None:
        super().__init__()
        self.model, self.input_layout, self.output_layout = model, input_layout, output_layout
        self._autocast = autocast

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs if self.input_layout is None else self.input_layout.unpack(inputs)
        with self._autocast():
            outputs = self.model(x)
        return outputs if self.output_layout is None else self.output_layout.pack(outputs)


def example_inputs(config: Config, samples: int, device: torch.device) -> Tensor:
    """Return zeros with the shape and type of the complete model's inputs as they are fed."""
    dtype = getattr(torch, config.dataset.dtype)
    return torch.zeros(samples, *config.model.input_shape, dtype=dtype, device=device)


class MicroBatchSchedule:
    """Accumulates a batch's gradients in a stage's weights, micro-batch by micro-batch.

    torch's schedules have buffers for micro-batches of one size, so that there is one schedule for each batch size;
    all of them share the stage. Stages exchange messages, and wait for them, to make a schedule: `prepare` does so
    before a step is timed.
    """

    def __init__(
        self,
        name: str,
        micro_batches: int,
        module: StageModule,
        place: StagePlace,
        layouts: list[ActivationLayout],
        config: Config,
        loss: Loss,
    ) -> None:
        """`layouts` are those of all stages' outputs; `loss` is the mean of (outputs, targets)."""
        self.name, self.micro_batches = name, micro_batches
        self._module, self._place, self._layouts = module, place, layouts
        self._config, self._loss = config, loss
        self._schedules: dict[BatchSize, Any] = {}
        self._evaluations: dict[int, Any] = {}  # by the number of samples

    def prepare(self, size: BatchSize) -> Any:
        """Return the schedule for batches of this size. All stages have to make it at the same time."""
        if size not in self._schedules:
            stage = self._build_stage(size.samples // self.micro_batches)
            weighted = _weight_loss(self._loss, size.global_samples)
            schedule = SCHEDULES[self.name](stage, self.micro_batches, loss_fn=weighted, scale_grads=False)
            # As the first step would begin: the stages agree on what they send, and make buffers for it.
            stage.has_backward = True
            schedule._initialize_stage((), {})
            self._schedules[size] = schedule
        return self._schedules[size]

    def __call__(self, batch: TorchBatch) -> LossPart | None:
        """Run the passes of a batch; the last stage returns the loss."""
        schedule = self.prepare(BatchSize(batch.samples, batch.global_samples))
        inputs = (batch.inputs,) if self._place.is_first else ()
        if not self._place.is_last:
            schedule.step(*inputs)
            return None
        losses: list[Tensor] = []
        schedule.step(*inputs, target=batch.targets, losses=losses, return_outputs=False)
        return LossPart(sum(each.detach() for each in losses) * batch.global_samples, batch.samples)

    def evaluate(self, inputs: Tensor) -> Tensor | None:
        """Pass samples, the same on each stage, through all of them at once; the last one returns the outputs."""
        if len(inputs) not in self._evaluations:
            self._evaluations[len(inputs)] = ScheduleGPipe(self._build_stage(len(inputs)), 1)
        outputs: Tensor | None = self._evaluations[len(inputs)].eval(*(inputs,) * self._place.is_first)
        return outputs

    def build_local_passes(self, batch: TorchBatch) -> Callable[[], None]:
        """Return this stage's passes of one step without communication, micro-batch by micro-batch; received
        activations are random numbers, and the gradients of what it passes on are ones."""
        place, layout = self._place, self._module.input_layout
        size = batch.samples // self.micro_batches
        inputs, targets = (list(each.split(size)) for each in (batch.inputs, batch.targets))
        if layout is not None:
            inputs = [layout.empty(len(part), place.device).normal_().requires_grad_() for part in inputs]
        loss = _weight_loss(self._loss, batch.global_samples)

        def run_passes() -> None:
            self._module.zero_grad()
            for part, target in zip(inputs, targets, strict=True):
                part.grad = None
                outputs = self._module(part)
                outputs = loss(outputs, target) if place.is_last else outputs
                outputs.backward(torch.ones_like(outputs))

        return run_passes

    def _build_stage(self, samples: int) -> PipelineStage:
        place, meta = self._place, torch.device("meta")
        outputs = [layout.empty(samples, meta).requires_grad_() for layout in self._layouts]
        inputs = example_inputs(self._config, samples, meta) if place.is_first else outputs[place.index - 1]
        shapes = inputs, outputs[place.index]
        return PipelineStage(self._module, *place[:3], *shapes, group=place.group)


def _weight_loss(loss: Loss, global_samples: int) -> Loss:
    """Weight a micro-batch's loss so that the sum over micro-batches and replicas is the global batch's mean."""

    def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
        mean, weight = loss(outputs.float(), targets), len(targets) / global_samples
        return mean if weight == 1 else mean * weight

    return weighted
