"""Forward and backward of an update in micro-batches through the stages, by torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from scalebench.adapters.torch.chain import Chain
from scalebench.adapters.torch.feeding import TorchBatch
from scalebench.adapters.torch.stage_module import StageModule, Wire, example
from scalebench.adapters.torch.stage_work import Work
from scalebench.spec import Config
from scalebench.strategy import LossPart

SCHEDULES: dict[str, type[Any]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
Loss = Callable[[Tensor, Tensor], Tensor]


class MicroSchedule:
    """Adds the gradients of a batch up in a stage's weights.

    torch's schedules have buffers for micro-batches of one size: there is one for each size of batch that comes, and
    all of them share the stage.
    """

    def __init__(self, name: str, micro_batches: int, module: StageModule, chain: Chain, wires: list[Wire]) -> None:
        """`wires` of all stages: what each gives."""
        self.name, self.micro_batches = name, micro_batches
        self._module, self._chain, self._wires = module, chain, wires
        self._made: dict[tuple[int, int], Any] = {}

    def __call__(self, batch: TorchBatch, config: Config, loss: Loss) -> LossPart | None:
        """`loss`: the mean over the samples of (outputs, targets). What is reported, on the last stage."""
        key = batch.samples, batch.global_samples
        if key not in self._made:
            self._made[key] = self._make(batch, config, loss)
        taken = (batch.inputs,) if self._chain.first else ()
        if not self._chain.last:
            self._made[key].step(*taken)
            return None
        losses: list[Tensor] = []
        self._made[key].step(*taken, target=batch.targets, losses=losses, return_outputs=False)
        return LossPart(sum(one.detach() for one in losses) * batch.global_samples, batch.samples)

    def work(self, batch: TorchBatch, loss: Loss) -> Work:
        """This stage's part of an update on a batch by itself; activations are made up."""
        count, chain = self.micro_batches, self._chain
        inputs = list(batch.inputs.split(batch.samples // count))
        if self._module.reads is not None:
            made = [self._module.reads.empty(len(part), chain.device).normal_() for part in inputs]
            inputs = [one.requires_grad_() for one in made]
        ahead = count if self.name == "gpipe" else min(count, chain.stages - chain.index)
        if not chain.last:
            return Work(self._module, inputs, ahead)
        targets, shared = batch.targets.split(batch.samples // count), _shared(loss, batch.global_samples)
        return Work(self._module, inputs, ahead, lambda number, outputs: shared(outputs, targets[number]))

    def _make(self, batch: TorchBatch, config: Config, loss: Loss) -> Any:
        samples, chain, meta = batch.samples // self.micro_batches, self._chain, torch.device("meta")
        gives = [wire.empty(samples, meta).requires_grad_() for wire in self._wires]
        reads = example(config, samples, meta) if chain.first else gives[chain.index - 1]
        stage = PipelineStage(
            self._module, chain.index, chain.stages, chain.device, reads, gives[chain.index], group=chain.group
        )
        shared = _shared(loss, batch.global_samples)
        return SCHEDULES[self.name](stage, self.micro_batches, loss_fn=shared, scale_grads=False)


def _shared(loss: Loss, global_samples: int) -> Loss:
    """Of a micro-batch, so that the sum over them, and over the replicas, is the mean over the global batch."""

    def share(outputs: Tensor, targets: Tensor) -> Tensor:
        mean, weight = loss(outputs.float(), targets), len(targets) / global_samples
        return mean if weight == 1 else mean * weight

    return share
