"""ZeRO, stage 1: DistributedDataParallel with the optimizer's state divided among the processes."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn
from torch.optim import Optimizer

from scalebench.strategies import refusals
from scalebench.strategies.base import BACKWARD, FORWARD, never_measured
from scalebench.strategies.torch import optimizer
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.ddp import Ddp

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

        user = self.model.user_optimizer

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
        return net

    set_gradient_sync = never_measured("steps only some weights on each process, and needs those of the others")

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        """Train up to one part of a step; the optimizer steps only this process's weights, which the next full step
        sends."""
        super().partial_step(batch, BACKWARD if until not in (FORWARD, BACKWARD) else until)
        if until not in (FORWARD, BACKWARD):
            self.precision.step_optimizer(self.optimizer.optim)

    def optimizer_state(self) -> dict[Any, Any]:
        return self.optimizer.optim.state
