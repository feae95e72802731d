"""Horovod with PyTorch: a plain loop around hvd.DistributedOptimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from horovod.torch import mpi_ops
from horovod.torch import optimizer as distributed
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import record_function

from scalebench.core.probe_record import Profile
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import FORWARD, LossPart, NotMeasured
from scalebench.strategies.horovod.group import HorovodGroup
from scalebench.strategies.horovod.probes import HorovodProbes
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.profiling import HOROVOD_WAIT
from scalebench.strategies.torch.user_optimizer import copy_attributes

SENT_TYPES = {
    torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip
NEVER_SYNC_PASSES = 1 << 40  # backward passes per synchronization while it is switched off


@contextmanager
def profile_waits() -> Iterator[None]:
    """Make the main thread's waits for Horovod visible to torch's profiler.

    Horovod's own threads, which communicate, appear in its timeline only; their work during backward is not in a wait.
    """
    original = mpi_ops.synchronize

    def synchronize(handle: int) -> Any:
        with record_function(HOROVOD_WAIT):
            return original(handle)

    mpi_ops.synchronize = distributed.synchronize = synchronize
    try:
        yield
    finally:
        mpi_ops.synchronize = distributed.synchronize = original


def is_sendable(value: Any) -> bool:
    """Return whether Horovod has a broadcast for an entry of a state_dict."""
    return isinstance(value, Tensor) and value.layout == torch.strided and value.dtype in SENT_TYPES


def keep_attributes(optimizer: Optimizer) -> Optimizer:
    """Have the optimizer that Horovod derives from this one take its attributes, where it would call its constructor
    with the parameters alone: other arguments would be lost, or are required."""
    kind = type(optimizer)

    def take_attributes(derived: Optimizer, params: Any) -> None:
        copy_attributes(optimizer, derived)

    adopting: Any = type(kind.__name__, (kind,), {"__init__": take_attributes})
    optimizer.__class__ = adopting
    return optimizer


class HorovodStrategy(HorovodProbes, TorchStrategy):
    """A rank of Horovod's group; subclasses add the synchronization of gradients."""

    library = hvd
    out_of_memory = torch.cuda.OutOfMemoryError

    def join(self) -> HorovodGroup:
        return HorovodGroup(hvd, self.spec, self.place.rank, self.options, partial(torch.tensor, dtype=torch.float64))

    def to_tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Broadcast rank 0's weights.

        The optimizer has no state yet that could differ, and to broadcast its state Horovod would take a step with it.
        """
        for parameter in self.model.parameters():
            parameter.data = parameter.data.contiguous()  # Horovod refuses others, and gradients are laid out like it
        # All ranks have built the same, so that what Horovod cannot send may be left out.
        state = {name: value for name, value in self.model.state_dict().items() if is_sendable(value)}
        hvd.broadcast_parameters(state, root_rank=0)
        return model

    def profile(self, steps: int, trace: Path | None) -> Profile:
        with profile_waits():
            return super().profile(steps, trace)


class HorovodTorch(HorovodStrategy):
    """Each gradient is passed to Horovod as soon as the backward pass has computed it; the optimizer waits for all."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._sync_on = True
        self._adasum = self.options.op == "adasum"

    def wrap(self, model: nn.Module) -> nn.Module:
        net = super().wrap(model)
        self.optimizer = hvd.DistributedOptimizer(
            keep_attributes(self.optimizer),
            named_parameters=self.model.named_parameters(),
            compression=self.compressor,
            backward_passes_per_step=self.accumulate,  # gradients are summed over passes and averaged over ranks only
            op=hvd.Adasum if self._adasum else hvd.Average,
        )
        if self._adasum:  # its optimizer steps with gradients that the scaler has unscaled
            vars(self.optimizer).pop("_step_supports_amp_scaling", None)
        return net

    def step(self, batch: TorchBatch) -> LossPart | None:
        if self._adasum:  # its optimizer works during the backward pass, and waits in its step
            return super().step(batch)
        # Not the optimizer's: after steps without synchronization Horovod's zero_grad assumes that one is pending.
        self.model.zero_grad()
        loss_part = self.accumulate_gradients(batch)
        if self._sync_on:
            # Before a scaler checks gradients for overflow. After fewer passes than usual they are synchronized here.
            self.optimizer.synchronize()
        with self.optimizer.skip_synchronize():
            self.precision.step_optimizer(self.optimizer)
        self.advance_schedulers()
        return loss_part

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        if self._adasum:
            if until != FORWARD:
                raise NotMeasured("Adasum's optimizer steps and synchronizes within backward: they cannot be separated")
            return super().partial_step(batch, until)
        assert not self._sync_on or self.spec.processes == 1, "backward would start synchronization"
        with self.optimizer.skip_synchronize():
            super().partial_step(batch, until)

    def set_gradient_sync(self, on: bool) -> None:
        if self._adasum:
            raise NotMeasured("Adasum adds up what the optimizer did, and cannot do without")
        self._sync_on = on
        self.optimizer.set_backward_passes_per_step(self.accumulate if on else NEVER_SYNC_PASSES)

    def loss_weight(self, batch: TorchBatch) -> float:
        """Return 1 under Adasum, which weights the replicas' own means itself."""
        return 1.0 if self._adasum else super().loss_weight(batch)
