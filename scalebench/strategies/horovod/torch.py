"""Horovod with PyTorch: a plain loop around hvd.DistributedOptimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import horovod
import horovod.torch as hvd
import numpy as np
import torch
from horovod.torch import mpi_ops
from horovod.torch import optimizer as distributed
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import record_function

from scalebench.core.result import Profile
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import (
    FORWARD,
    BatchReplay,
    GroupSum,
    LossPart,
    NotMeasured,
    create_on_all_ranks,
)
from scalebench.strategies.horovod.group import HorovodGroup, check_operation
from scalebench.strategies.horovod.timeline import SyncObserver
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.profiling import HOROVOD_WAIT
from scalebench.strategies.torch.user_step import copy_attributes

ROOT = 0
FLOAT_BYTES = 4
SENT_TYPES = {
    torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip
NEVER_SYNC_PASSES = 1 << 40  # backward passes per synchronization while it is switched off
COMPRESSORS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class HorovodTorchCollective:
    """One collective operation, done once per call. All-reduce and broadcast work in place; for the others Horovod
    allocates a new result in each call, which is part of their time."""

    def __init__(self, name: str, size_bytes: int, device: torch.device) -> None:
        self.name, self._key = name, f"scalebench.{name}.{size_bytes}"
        self._result: Tensor | None = None
        parts = hvd.size() if name == "all_gather" else 1
        # Filled, so that it has memory of its own: all pages that were never written map to one zero page.
        self._sent = torch.empty(size_bytes // FLOAT_BYTES // parts, device=device).fill_(0.0)
        # Unbound: a bound method would be a reference cycle, which frees the buffers late.
        self._run: Callable[[HorovodTorchCollective], Tensor] = getattr(HorovodTorchCollective, f"_{name}")

    def __call__(self) -> None:
        self._result = self._run(self)

    def put(self, values: Callable[[int], np.ndarray]) -> None:
        """Fill what this rank sends with `values` of its rank, for a check of the results."""
        self._sent.copy_(torch.from_numpy(values(hvd.rank())))

    def results(self) -> dict[int, np.ndarray]:
        """Return the operation's result by this rank."""
        return {} if self._result is None else {hvd.rank(): self._result.cpu().numpy().copy()}

    def _all_reduce(self) -> Tensor:
        return hvd.allreduce_(self._sent, op=hvd.Sum, name=self._key)

    def _broadcast(self) -> Tensor:
        return hvd.broadcast_(self._sent, ROOT, name=self._key)

    def _all_gather(self) -> Tensor:
        return hvd.allgather(self._sent, name=self._key)

    def _reduce_scatter(self) -> Tensor:
        return hvd.reducescatter(self._sent, op=hvd.Sum, name=self._key)

    def _all_to_all(self) -> Tensor:
        return hvd.alltoall(self._sent, name=self._key)


def build_collective(
    sum_over_group: GroupSum, device: torch.device, name: str, size_bytes: int
) -> HorovodTorchCollective:
    """Build a collective operation.

    Raises NotMeasured on all ranks if Horovod lacks the operation or any rank lacks memory on its GPU.
    """
    check_operation(hvd, name)
    return create_on_all_ranks(
        lambda: HorovodTorchCollective(name, size_bytes, device),
        sum_over_group,
        (torch.cuda.OutOfMemoryError,),
        f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
    )


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


class HorovodTorchGroup:
    """The counterpart of TorchGroup for Horovod: it sends numbers and buffers."""

    def __init__(self, spec: RunSpec, rank: int, options: Any, device: torch.device) -> None:
        self._group = HorovodGroup(hvd, spec, rank, options)
        self.observer = SyncObserver(self._group, spec, rank, self.broadcast)
        self._device = device
        self._buffers: dict[int, Tensor] = {}

    def broadcast(self, value: float) -> float:
        """Return rank 0's value on every rank."""
        return float(hvd.broadcast(torch.tensor(value, dtype=torch.float64), root_rank=0, name="scalebench.number"))

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums of the values over all ranks."""
        numbers = torch.tensor(values, dtype=torch.float64)
        return hvd.allreduce(numbers, op=hvd.Sum, name=f"scalebench.sum.{len(values)}").tolist()

    def all_reduce_buffers(self, sizes_bytes: list[int]) -> None:
        """All-reduce one float32 buffer of each size, one after the other: together they would be fused again."""
        for size in sizes_bytes:
            if size not in self._buffers:
                self._buffers[size] = torch.zeros(max(1, size // 4), device=self._device)
            hvd.allreduce_(self._buffers[size], op=hvd.Sum, name=f"scalebench.buffer.{size}")

    def leave(self) -> None:
        """Leave the group. May be called twice."""
        self._buffers.clear()
        self._group.leave()


class HorovodStrategy(TorchStrategy):
    """A rank of Horovod's group; subclasses add the synchronization of gradients."""

    def join(self) -> HorovodTorchGroup:
        return HorovodTorchGroup(self.spec, self.place.rank, self.options, self.device)

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

    def message_sizes(self) -> list[int]:
        """Observe the messages of a few more steps under the timeline, which spoil the weights."""
        return self.group.observer.observe(self._train_more).message_bytes

    def run_isolated_sync(self, sizes: list[int]) -> None:
        assert self.group is not None, "setup comes first"
        self.group.all_reduce_buffers(sizes)

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        return build_collective(self.group.sum, self.device, name, size_bytes)

    def backend_used(self) -> str | None:
        return self.group.observer.observe(self._train_more).backend

    def sync_phases(self) -> tuple[int, dict[str, float]]:
        return self.group.observer.sync_phases(self._train_more)

    def record_timeline(self, path: Path, steps: int) -> dict[str, float]:
        return self.group.observer.record_timeline(self._train_more, steps, path)

    def profile(self, steps: int, trace: Path | None) -> Profile:
        with profile_waits():
            return super().profile(steps, trace)

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "horovod": horovod.__version__}

    def _train_more(self, steps: int) -> None:
        """Train more steps on the last batch."""
        if self.last_batch is None:
            raise RuntimeError("synchronization is observed on the training's last batch, and there was no training")
        self.train(BatchReplay(self.last_batch, steps))


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
            compression=COMPRESSORS[self.options.compression],
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
