"""ZeRO, stage 1: DistributedDataParallel with the optimizer's state divided among the processes."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from scalebench.strategies import refusals
from scalebench.strategies.base import BACKWARD, FORWARD, NotMeasured
from scalebench.strategies.torch import optimizer
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.ddp import Ddp, read_bucket_bytes
from scalebench.strategies.torch.group import FLOAT_BYTES

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's import here warns about its own other optimizers
    from torch.distributed.optim import ZeroRedundancyOptimizer


class Zero1(Ddp):
    """Gradients are averaged as under DistributedDataParallel; each process then steps the tensors that it owns, about
    the same number of elements on each, and broadcasts them."""

    optimizer: ZeroRedundancyOptimizer

    def wrap(self, model: nn.Module) -> nn.Module:
        self.check_optimizer_divisible()
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        train, views = self.spec.config.train, self.options.parameters_as_bucket_view
        refusals.refuse(refusals.few_tensors_rule(self.spec, len(parameters)))
        for parameter in parameters if views else ():
            parameter.data = parameter.data.contiguous()  # the layout in its bucket, which its gradient needs as well
        net = super().wrap(model)

        user = self.user_optimizer()

        def build_local(groups: list[dict[str, Any]], lr: float) -> Optimizer:
            if user is not None:
                return user.copy_for(groups)
            return optimizer.build_optimizer(train, [each for group in groups for each in group["params"]], lr)

        groups: list[Any] = parameters if user is None else user.optimizer.param_groups
        self.optimizer = ZeroRedundancyOptimizer(
            groups,
            build_local,  # type: ignore[arg-type]  # called like a class
            parameters_as_bucket_view=views,
            lr=self.spec.learning_rate,
        )
        self._buffers: dict[tuple[int, ...], list[Tensor]] = {}
        return net

    def set_gradient_sync(self, on: bool) -> None:
        if not on:
            raise NotMeasured("zero1 steps only some weights on each process, and needs those of the others")

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        """Train up to one part of a step; the optimizer steps only this process's weights, which the next full step
        sends."""
        super().partial_step(batch, BACKWARD if until not in (FORWARD, BACKWARD) else until)
        if until not in (FORWARD, BACKWARD):
            self.precision.step_optimizer(self.optimizer.optim)

    def optimizer_state(self) -> dict[Any, Any]:
        return self.optimizer.optim.state

    def message_sizes(self) -> list[int]:
        """Return the buckets of gradients, then the broadcasts of weights, in the order of sending."""
        return [*read_bucket_bytes(self.net), *(size for _, size in self._broadcasts())]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """All-reduce the buckets, all in flight at once, and then broadcast, as in a step."""
        assert self.group is not None, "setup comes first"
        buckets = read_bucket_bytes(self.net)
        if sizes != self.message_sizes():
            return self.group.all_reduce_buffers(sizes)
        self.group.all_reduce_buffers(buckets)
        key = tuple(sizes)
        if key not in self._buffers:
            self._buffers[key] = [
                torch.zeros(size // FLOAT_BYTES, device=self.device) for _, size in self._broadcasts()
            ]
        owners = (owner for owner, _ in self._broadcasts())
        pending = [
            dist.broadcast(buffer, owner, async_op=True)
            for buffer, owner in zip(self._buffers[key], owners, strict=True)
        ]
        for work in pending:
            work.wait()

    def close(self) -> None:
        self._buffers = {}
        super().close()

    def _broadcasts(self) -> list[tuple[int, int]]:
        """Return (owner, bytes) of each message of weights, as ZeroRedundancyOptimizer assigns tensors to owners."""
        owned = [
            (owner, [each.numel() * each.element_size() for group in groups for each in group["params"]])
            for owner, groups in enumerate(self.optimizer._partition_parameters())
        ]
        if self.options.parameters_as_bucket_view:
            return [(owner, sum(sizes)) for owner, sizes in owned]
        return [(owner, size) for owner, sizes in owned for size in sizes]
