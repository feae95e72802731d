"""DistributedDataParallel in a plain loop.

DistributedDataParallel without its overlap: the same buckets, all of them exchanged once backward is over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scalebench.strategies.torch import collectives
from scalebench.strategies.torch.base import TorchStrategy
from scalebench.strategies.torch.batches import TorchBatch

Send = Callable[[dist.GradBucket], "Future[Tensor]"]


def averaged(bucket: dist.GradBucket) -> Future[Tensor]:
    """What DistributedDataParallel does by itself: the mean of a bucket over the ranks, in place, begun at once."""
    return allreduce_hook(dist.group.WORLD, bucket)


class AfterBackward:
    """A communication hook that keeps buckets until the last of an update is full, which is when backward has made its
    last gradient, and then sends them all at once, in their order.

    On a GPU, where all this is only queued, the exchange waits for the kernels that fill the last bucket.
    """

    def __init__(self, send: Send) -> None:
        """`send` begins the exchange of a bucket; its result is the bucket's own buffer."""
        self._send = send
        self._kept: list[dist.GradBucket] = []

    def __call__(self, bucket: dist.GradBucket) -> Future[Tensor]:
        if bucket.index() == 0:
            self._kept.clear()  # of a backward pass that failed half way
        self._kept.append(bucket)
        if bucket.is_last():
            kept, self._kept = self._kept, []
            for pending in [self._send(one) for one in kept]:
                pending.wait()
        return _done(bucket.buffer())


def _done(buffer: Tensor) -> Future[Tensor]:
    """Others read a bucket's buffer only when the last one's future is there too."""
    future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
    future.set_result(buffer)
    return future


@dataclass
class DdpOptions:
    """Passed on to DistributedDataParallel, but for `overlap`."""

    bucket_cap_mb: float = 25.0  # gradients are exchanged in buckets of this size
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    # DistributedDataParallel's own default is true: moving statistics of rank 0 to all, before each forward pass.
    # Here each replica keeps its own, as under MirroredStrategy, and message_sizes tells all that is sent.
    broadcast_buffers: bool = False
    overlap: bool = True  # false: buckets are exchanged when backward is over, all of them at once


class Ddp(TorchStrategy):
    """One process per device; gradients are averaged bucket by bucket while backward still runs, or with overlap=false
    after it."""

    Options = DdpOptions

    def group_backend(self) -> str:
        requested = self.spec.config.strategy.backend
        if requested in (None, "auto"):
            return "nccl" if self.spec.device == "cuda" else "gloo"
        return requested

    def ddp_arguments(self) -> dict[str, Any]:
        """Keyword arguments of DistributedDataParallel, but for the device."""
        arguments = {key: value for key, value in asdict(self.options).items() if key != "overlap"}
        known = inspect.signature(DistributedDataParallel).parameters
        if "forward_sync_buffers" in known:  # as newer PyTorch calls it, which warns of the old name
            arguments["forward_sync_buffers"] = arguments.pop("broadcast_buffers")
        return arguments

    def wrap(self, model: nn.Module) -> nn.Module:
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        net = DistributedDataParallel(model, device_ids=device_ids, **self.ddp_arguments())
        self.hook(net)
        return net

    def hook(self, net: DistributedDataParallel) -> None:
        """Give it a communication hook where buckets are not sent as it sends them by itself."""
        if not self.options.overlap:
            later = AfterBackward(self.send)
            net.register_comm_hook(
                None, lambda _, bucket: later(bucket)
            )  # torch looks at annotations, if there are any

    def send(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Begin the exchange of a bucket, where a communication hook does it; gives the bucket's own buffer."""
        return averaged(bucket)

    def set_gradient_sync(self, on: bool) -> None:
        self.net.require_backward_grad_sync = on

    def unsent(self) -> AbstractContextManager[Any]:
        return no_sync(self.net)

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        """Without the exchange also where it is on: a forward pass would make the reducer wait for its backward."""
        self.net.require_forward_param_sync = False  # moving statistics, which the first pass would broadcast still
        with self.net.no_sync():
            super().partial_step(batch, until)

    def message_sizes(self) -> list[int]:
        return bucket_bytes(self.net)

    def run_isolated_sync(self, sizes: list[int]) -> None:
        assert self.group is not None, "setup comes first"
        self.group.all_reduce_buffers(sizes)

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        assert self.group is not None, "setup comes first"
        return collectives.collective(self.group, name, size_bytes)

    def backend_used(self) -> str | None:
        """Two more updates under the profiler, so it comes last: it spoils the weights."""
        return self.seen_carrier()

    def close(self) -> None:
        """The wrapper goes first: were it the last to know the group, it would wait for the group's threads, and they
        for the interpreter."""
        self.__dict__.pop("net", None)
        super().close()


def no_sync(net: DistributedDataParallel) -> AbstractContextManager[Any]:
    """Without an exchange, but for the first pass with static_graph: torch learns the graph from it, and fails where it
    does without one. Averages that other parts are added to are the same on all replicas, and stay so."""
    if net.static_graph and not net._static_graph_delay_allreduce_enqueued:
        return nullcontext()
    return net.no_sync()


def bucket_bytes(net: DistributedDataParallel) -> list[int]:
    """Sizes of the buckets as they are exchanged.

    They are rebuilt after the first update in the order in which gradients got ready; with
    find_unused_parameters they stay as they were.
    """
    known = net._get_ddp_logging_data()
    text = known.get("rebuilt_bucket_sizes") or known.get("bucket_sizes") or ""
    return [int(size) for size in text.split(",") if size.strip()]
