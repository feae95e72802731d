"""Forward and backward of an update in micro-batches through the stages, by torch.distributed.pipelining.

The processes that hold the stages of one model, one behind the other, and what goes between them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from scalebench.core.spec import Config
from scalebench.strategies.base import LossPart
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.pipeline.stage import StageModule, Wire, Work, example


class Chain:
    """Where this process stands: rank = replica * stages + index.

    `group` has the stages of its replica, `alike` the same stage of all replicas; None: there is only one of them.
    """

    def __init__(self, rank: int, stages: int, replicas: int, device: torch.device, timeout_s: float) -> None:
        """All processes have to make theirs at the same time: groups are formed."""
        self.stages, self.replicas, self.device = stages, replicas, device
        self.replica, self.index = divmod(rank, stages)
        self.first, self.last = self.index == 0, self.index == stages - 1
        self._begin = self.replica * stages  # rank of its first stage
        self.group: Any = None
        self.alike: Any = None
        if replicas > 1:
            limit = timedelta(seconds=timeout_s)
            for replica in range(replicas):
                made = dist.new_group(list(range(replica * stages, (replica + 1) * stages)), timeout=limit)
                self.group = made if replica == self.replica else self.group
            for index in range(stages):
                made = dist.new_group(list(range(index, stages * replicas, stages)), timeout=limit)
                self.alike = made if index == self.index else self.alike

    def told(self, value: Any, stage: int) -> Any:
        """What that stage's process says, on all of the chain."""
        said = [value]
        dist.broadcast_object_list(said, src=self._begin + stage, group=self.group, device=self._objects_on())
        return said[0]

    def gathered(self, value: Any) -> list[Any]:
        """What each stage's process says, on all of the chain."""
        found: list[Any] = [None] * self.stages
        dist.all_gather_object(found, value, group=self.group)
        return found

    def send(self, tensor: Tensor, on: bool) -> Any:
        """Begin to send to the next stage, or with `on` false to the one before."""
        return dist.isend(tensor, self._begin + self.index + (1 if on else -1), group=self.group)

    def receive(self, into: Tensor, on: bool) -> None:
        """What is sent `on` by the stage before, or back by the next one."""
        dist.recv(into, self._begin + self.index + (-1 if on else 1), group=self.group)

    def add_up(self, gradients: list[Tensor]) -> None:
        """Over the replicas, in place, all of this stage at once."""
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self.alike)
        for gradient, total in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(total.view(gradient.shape))

    def _objects_on(self) -> torch.device | None:
        return self.device if dist.get_backend(self.group) == "nccl" else None


class Relay(nn.Module):
    """A forward pass through the whole chain, for each of whose stages it is called with the same samples: what the
    model says on the last one, None on the others."""

    def __init__(self, module: StageModule, chain: Chain) -> None:
        super().__init__()
        self.module, self._chain = module, chain
        self._sending: tuple[Any, Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor | None:
        reads = self.module.reads
        if reads is not None:
            taken = reads.empty(len(inputs), self._chain.device)
            self._chain.receive(taken, on=True)
            inputs = taken
        outputs = self.module(inputs)
        if self._chain.last:
            return outputs
        if self._sending is not None:  # the next stage may still be at the samples before
            self._sending[0].wait()
        self._sending = self._chain.send(outputs, on=True), outputs
        return None


class Transfers:
    """All that goes between the stages of an update, without the work: activations micro-batch by micro-batch to the
    end, their gradients back, and the sums of gradients over the replicas."""

    def __init__(
        self, chain: Chain, wires: list[Wire], samples: int, micro_batches: int, parameters: list[nn.Parameter]
    ) -> None:
        """`samples` of a micro-batch; `parameters` of this stage."""
        self._chain, self._micro_batches = chain, micro_batches
        self._before = [] if chain.first else [wires[chain.index - 1].empty(samples, chain.device)]
        self._behind = [] if chain.last else [wires[chain.index].empty(samples, chain.device)]
        self._gradients = [torch.zeros_like(one) for one in parameters] if chain.replicas > 1 else []

    def __call__(self) -> None:
        self._through(self._before, self._behind, on=True)
        self._through(self._behind, self._before, on=False)
        if self._gradients:
            self._chain.add_up(self._gradients)

    def _through(self, sources: list[Tensor], targets: list[Tensor], on: bool) -> None:
        sending = []
        for _ in range(self._micro_batches):
            for source in sources:
                self._chain.receive(source, on)
            sending += [self._chain.send(target, on) for target in targets]
        for work in sending:
            work.wait()


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
