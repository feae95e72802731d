"""pytorch_lightning.Trainer whose callback exchanges gradients through Horovod.

Not hvd.DistributedOptimizer: under Lightning's automatic optimization its hooks run on other terms than it believes,
and replicas drift apart without an error. Lightning's own Horovod strategy is no longer part of it (since 2.0).
"""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import pytorch_lightning as pl
from pytorch_lightning.strategies import SingleDeviceStrategy

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.horovod.torch import COMPRESSORS, InHorovodGroup
from scalebench.strategies.torch.lightning import Environment, WithTrainer


class LightningHorovod(WithTrainer, InHorovodGroup):
    """To Lightning each process trains alone on one device; between backward and update gradients are averaged."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.exchanging = True
        if self.options.op == "adasum":
            raise Unsupported("lightning_horovod averages gradients, and Adasum adds up updates; take horovod_mpi")

    def trainer_arguments(self) -> dict[str, Any]:
        devices = 1 if self.device.type == "cpu" else [self.device.index]
        return {"devices": devices, "strategy": SingleDeviceStrategy(device=self.device)}

    def plugins(self) -> list[Any]:
        return [*super().plugins(), Environment()]

    def callbacks(self) -> list[pl.Callback]:
        return [_Average(self)]

    def set_gradient_sync(self, on: bool) -> None:
        self.exchanging = on


class _Average(pl.Callback):
    """All gradients of an update at once, when the backward pass of its last part has ended."""

    def __init__(self, owner: LightningHorovod) -> None:
        self._owner = owner
        self._compressor = COMPRESSORS[owner.options.compression]

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not (self._owner.exchanging and pl_module.last):
            return
        parameters = [parameter for parameter in pl_module.parameters() if parameter.grad is not None]
        sent, contexts = zip(*(self._compressor.compress(parameter.grad) for parameter in parameters), strict=True)
        averages = hvd.grouped_allreduce_(list(sent), op=hvd.Average, name="gradients")
        for parameter, average, context in zip(parameters, averages, contexts, strict=True):
            parameter.grad = self._compressor.decompress(average, context)
