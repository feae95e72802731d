"""Lightning's DDP strategy."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import Loop
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.ddp import Ddp, skip_sync, switch_sync
from scalebench.strategies.torch.lightning.trainer import GroupTrainerStrategy
from scalebench.strategies.torch.user_errors import attribute_errors_to_wrapping


class LightningDdp(GroupTrainerStrategy, Ddp):
    """Lightning's DDP strategy, which wraps the model in a new DistributedDataParallel in each fit."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._wrapper: DistributedDataParallel | None = None  # exists during a fit

    def wrap(self, model: nn.Module) -> nn.Module:
        return model

    def lightning_strategy(self) -> DDPStrategy:
        return _AccumulatingDdp(self, **self.group_arguments(), **self.ddp_arguments())

    def train(self, loop: Loop) -> None:
        super().train(loop)
        self._wrapper = None
        gc.collect()  # reference cycles would keep the wrapper alive, and its hooks on the parameters

    def set_gradient_sync(self, on: bool) -> None:
        self._sync_on = on
        if self._wrapper is not None:
            switch_sync(self._wrapper, on)

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        """Train up to one part of a step without Lightning, whose wrapper exists during a fit only."""
        TorchStrategy.partial_step(self, batch, until)

    def on_fit_start(self, trainer: pl.Trainer) -> None:
        super().on_fit_start(trainer)
        self._wrapper = trainer.strategy.model
        self._wrapper.require_backward_grad_sync = self._sync_on
        self.register_hook(self._wrapper)


class _AccumulatingDdp(DDPStrategy):
    """Lightning's DDP, which synchronizes in the last part of a step only."""

    def __init__(self, adapter: LightningDdp, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._adapter = adapter

    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        with attribute_errors_to_wrapping(self._adapter.spec.config):
            return super()._setup_model(model)

    def block_backward_sync(self) -> AbstractContextManager[Any]:
        return skip_sync(self.model)
