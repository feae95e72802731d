"""DistributedDataParallel without its overlap: the same buckets, all of them exchanged once backward is over."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

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
