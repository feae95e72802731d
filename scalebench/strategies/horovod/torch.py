"""Horovod with PyTorch: a plain loop around hvd.DistributedOptimizer.

Horovod's collective operations, one at a time, on buffers of a given size; with PyTorch.
"""

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
from torch.profiler import record_function

from scalebench.core.result import Profile
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import FORWARD, LossPart, NotMeasured, Unsupported
from scalebench.strategies.collective_check import Sum, made_by_all
from scalebench.strategies.horovod.group import HorovodOptions, Membership, check
from scalebench.strategies.horovod.timeline import Exchange, Observer
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.observed import Replay
from scalebench.strategies.torch.profiling import HOROVOD_WAIT

ROOT = 0
FLOAT_BYTES = 4


class Collective:
    """Does the operation once when called. All-reduce and broadcast work in place; for the others Horovod makes a new
    result in each call, which is part of what they take."""

    def __init__(self, name: str, size_bytes: int, device: torch.device) -> None:
        self.name, self._key = name, f"scalebench.{name}.{size_bytes}"
        self._result: Tensor | None = None
        parts = hvd.size() if name == "all_gather" else 1
        # Written to, so that it has memory of its own: pages that nobody wrote to are all the same one.
        self._sent = torch.empty(size_bytes // FLOAT_BYTES // parts, device=device).fill_(0.0)
        self._do: Callable[[Collective], Tensor] = getattr(Collective, f"_{name}")  # bound, it would outlive its use

    def __call__(self) -> None:
        self._result = self._do(self)

    def put(self, values: Callable[[int], np.ndarray]) -> None:
        """What this rank sends, by its number; to see what comes of it."""
        self._sent.copy_(torch.from_numpy(values(hvd.rank())))

    def results(self) -> dict[int, np.ndarray]:
        """What this rank has after the operation, by its number."""
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


def collective(add_up: Sum, device: torch.device, name: str, size_bytes: int) -> Collective:
    """The action. Unsupported, on all ranks alike, where Horovod lacks the operation or a rank the memory on its GPU;
    `add_up` gives sums over the ranks."""
    check(hvd, name)
    return made_by_all(
        lambda: Collective(name, size_bytes, device),
        add_up,
        (torch.cuda.OutOfMemoryError,),
        f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
    )


NEVER = 1 << 40  # backward passes before gradients are exchanged, while the exchange is off
COMPRESSORS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


@contextmanager
def wait_seen() -> Iterator[None]:
    """Within this torch's profiler sees the main thread wait for exchanges. Horovod's own threads, which do them, are
    seen by nothing but its timeline; what they did meanwhile is not in it."""
    plain = mpi_ops.synchronize

    def synchronize(handle: int) -> Any:
        with record_function(HOROVOD_WAIT):
            return plain(handle)

    mpi_ops.synchronize = distributed.synchronize = synchronize
    try:
        yield
    finally:
        mpi_ops.synchronize = distributed.synchronize = plain


class HorovodGroup:
    """Numbers and buffers sent through Horovod: what Group is for torch.distributed."""

    def __init__(self, spec: RunSpec, rank: int, options: HorovodOptions, device: torch.device) -> None:
        self._membership = Membership(hvd, spec, rank, options)
        self.observer = Observer(self._membership, rank, self.broadcast, options)
        self._device = device
        self._buffers: dict[int, Tensor] = {}

    def broadcast(self, value: float) -> float:
        """Rank 0's value on every rank."""
        return float(hvd.broadcast(torch.tensor(value, dtype=torch.float64), root_rank=0, name="scalebench.number"))

    def sum(self, values: list[float]) -> list[float]:
        """Sums over the ranks."""
        numbers = torch.tensor(values, dtype=torch.float64)
        return hvd.allreduce(numbers, op=hvd.Sum, name=f"scalebench.sum.{len(values)}").tolist()

    def all_reduce_buffers(self, sizes_bytes: list[int]) -> None:
        """All-reduce one float32 buffer of each size, one after the other: together they would be fused anew."""
        for size in sizes_bytes:
            if size not in self._buffers:
                self._buffers[size] = torch.zeros(max(1, size // 4), device=self._device)
            hvd.allreduce_(self._buffers[size], op=hvd.Sum, name=f"scalebench.buffer.{size}")

    def leave(self) -> None:
        """May be called twice."""
        self._buffers.clear()
        self._membership.leave()


class InHorovodGroup(TorchStrategy):
    """A rank of Horovod's group, that exchanges no gradients by itself."""

    Options = HorovodOptions
    _exchange: Exchange | None = None

    def join(self) -> HorovodGroup:
        return HorovodGroup(self.spec, self.place.rank, self.options, self.device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Rank 0's weights for all. The optimizer has no state yet that could differ, and broadcasting it would make
        Horovod take a step with it."""
        state = {name: one for name, one in self.model.state_dict().items() if isinstance(one, Tensor)}
        hvd.broadcast_parameters(state, root_rank=0)
        return model

    def message_sizes(self) -> list[int]:
        """From a few more updates under the timeline, which spoil the weights."""
        return self._observed().message_bytes

    def run_isolated_sync(self, sizes: list[int]) -> None:
        assert self.group is not None, "setup comes first"
        self.group.all_reduce_buffers(sizes)

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        return collective(self.group.sum, self.device, name, size_bytes)

    def backend_used(self) -> str | None:
        return self._observed().backend

    def record_timeline(self, path: Path, updates: int) -> dict[str, float]:
        return self.group.observer.keep(self._again, updates, path)

    def profile(self, updates: int, trace: Path | None) -> Profile:
        with wait_seen():
            return super().profile(updates, trace)

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "horovod": horovod.__version__}

    def _observed(self) -> Exchange:
        return self.group.observer.seen(self._again)

    def _again(self, updates: int) -> None:
        """Train on the last batch so many times more."""
        if self.last_batch is None:
            raise RuntimeError("the exchange is observed on the last batch of the training, and there was no training")
        self.train(Replay(self.last_batch, updates))


class HorovodTorch(InHorovodGroup):
    """Each gradient is handed to Horovod as soon as backward has it; the update waits for all of them."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._exchanging = True
        self._adasum = self.options.op == "adasum"
        if self._adasum and self.accumulate > 1:
            raise Unsupported(
                "Adasum adds up what the optimizer did with whole gradients; take op=average with train.accumulate"
            )

    def wrap(self, model: nn.Module) -> nn.Module:
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=self.model.named_parameters(),
            compression=COMPRESSORS[self.options.compression],
            backward_passes_per_step=self.accumulate,  # added up over these, averaged over ranks alone
            op=hvd.Adasum if self._adasum else hvd.Average,
        )
        return super().wrap(model)

    def step(self, batch: TorchBatch) -> LossPart | None:
        if self._adasum:  # its optimizer works during backward, and waits in its step
            return super().step(batch)
        self.model.zero_grad()  # after updates without the exchange Horovod's own believes that one is under way
        part = self.accumulated(batch)
        if self._exchanging:
            # Before a scaler looks for gradients that overflowed. After fewer passes than usual it exchanges here.
            self.optimizer.synchronize()
        with self.optimizer.skip_synchronize():
            self.precision.update(self.optimizer)
        return part

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        if self._adasum:
            if until != FORWARD:
                raise NotMeasured("Adasum's optimizer updates and exchanges within backward: neither can be told apart")
            return super().partial_step(batch, until)
        assert not self._exchanging or self.spec.processes == 1, "backward would start an exchange"
        with self.optimizer.skip_synchronize():
            super().partial_step(batch, until)

    def set_gradient_sync(self, on: bool) -> None:
        if self._adasum:
            raise NotMeasured("Adasum adds up what the optimizer did, and cannot do without")
        self._exchanging = on
        self.optimizer.set_backward_passes_per_step(self.accumulate if on else NEVER)

    def loss_weight(self, batch: TorchBatch) -> float:
        """Adasum is given each replica's own mean, and finds weights of its own."""
        return 1.0 if self._adasum else super().loss_weight(batch)
