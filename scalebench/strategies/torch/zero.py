"""ZeRO, stage 1: DistributedDataParallel whose optimizer's state is shared out over the processes."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from scalebench.strategies.base import BACKWARD, FORWARD, NotMeasured, Unsupported
from scalebench.strategies.torch import optimizer as training
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.ddp import Ddp, DdpOptions, bucket_bytes

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # what PyTorch thinks of its own optimizers beside this one
    from torch.distributed.optim import ZeroRedundancyOptimizer

FLOAT_BYTES = 4


@dataclass
class Zero1Options(DdpOptions):
    """Those of DistributedDataParallel, and what of ZeroRedundancyOptimizer matters. Its overlap_with_ddp is left out:
    it takes no part in the first updates."""

    parameters_as_bucket_view: bool = False  # true: each process sends its weights as one message, not one each


class Zero1(Ddp):
    """Gradients are averaged as under DistributedDataParallel; each process then updates the weights that are its own,
    whole tensors of about as many numbers in all, and broadcasts them."""

    Options = Zero1Options
    optimizer: ZeroRedundancyOptimizer

    def ddp_arguments(self) -> dict[str, Any]:
        own = asdict(self.options).keys() - asdict(DdpOptions()).keys()
        return {key: value for key, value in super().ddp_arguments().items() if key not in own}

    def wrap(self, model: nn.Module) -> nn.Module:
        parameters = [one for one in self.model.parameters() if one.requires_grad]
        train, views = self.spec.config.train, self.options.parameters_as_bucket_view
        if len(parameters) < self.spec.processes:
            raise Unsupported(
                f"zero1 gives whole tensors to each process, and {self.spec.config.model.name} has "
                f"{len(parameters)} for {self.spec.processes} processes"
            )
        for one in parameters if views else ():
            one.data = one.data.contiguous()  # as it will lie in its bucket, and its gradient beside it
        net = super().wrap(model)

        def local(groups: list[dict[str, Any]], lr: float) -> Optimizer:
            return training.optimizer(train, [one for group in groups for one in group["params"]], lr)

        self.optimizer = ZeroRedundancyOptimizer(
            parameters,
            local,  # type: ignore[arg-type]  # called as a class would be
            parameters_as_bucket_view=views,
            lr=self.spec.learning_rate,
        )
        self._buffers: dict[tuple[int, ...], list[Tensor]] = {}
        return net

    def set_gradient_sync(self, on: bool) -> None:
        if not on:
            raise NotMeasured("zero1 updates only some weights on each process, and needs those of the others")

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        """With the optimizer's step of this process' own weights alone; the next whole update sends them."""
        super().partial_step(batch, BACKWARD if until not in (FORWARD, BACKWARD) else until)
        if until not in (FORWARD, BACKWARD):
            self.precision.update(self.optimizer.optim)

    def optimizer_state(self) -> dict[Any, Any]:
        return self.optimizer.optim.state

    def message_sizes(self) -> list[int]:
        """The buckets of gradients, then the broadcasts of weights, in the order in which they are sent."""
        return [*bucket_bytes(self.net), *(size for _, size in self._broadcasts())]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """Buckets first, all under way at once, then the broadcasts, as in an update."""
        assert self.group is not None, "setup comes first"
        buckets = bucket_bytes(self.net)
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
        """(whose they are, bytes) of the messages that weights are sent in, as ZeroRedundancyOptimizer deals them."""
        owned = [
            (owner, [one.numel() * one.element_size() for group in groups for one in group["params"]])
            for owner, groups in enumerate(self.optimizer._partition_parameters())
        ]
        if self.options.parameters_as_bucket_view:
            return [(owner, sum(sizes)) for owner, sizes in owned]
        return [(owner, size) for owner, sizes in owned for size in sizes]
