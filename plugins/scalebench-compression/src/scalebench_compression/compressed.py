"""DistributedDataParallel whose buckets go through a communication hook, which keeps account of what it sends."""

from __future__ import annotations

from abc import abstractmethod
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scalebench.plugin_api import RunSpec, Unsupported
from scalebench.strategies.torch import Ddp, DdpOptions

DISTRIBUTION = "scalebench-compression"
Buffers = tuple[Tensor, ...]


class Account:
    """Bytes of the messages of one update, bucket by bucket, as they were sent."""

    def __init__(self) -> None:
        self.of_update: list[int] = []  # of the last whole one
        self._so_far: list[int] = []

    def note(self, sizes_bytes: list[int], last: bool) -> None:
        """Of a bucket; `last`: the last one of an update. Nothing is no message."""
        self._so_far += [size for size in sizes_bytes if size]
        if last:
            self.of_update, self._so_far = self._so_far, []


class CompressedDdp(Ddp):
    """What the three ways of compressing share; each says what becomes of a bucket, and how to send without one."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.account = Account()
        self._buffers: dict[tuple[int, ...], list[Buffers]] = {}

    @abstractmethod
    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """The mean of a bucket's gradients over the ranks, or what compression leaves of it, in the bucket's own
        buffer; notes in `account` what this rank hands over."""

    @abstractmethod
    def empty_message(self, size_bytes: int) -> Buffers:
        """What `replay` sends of that size, and receives into: zeros."""

    @abstractmethod
    def replay(self, buffers: Buffers) -> dist.Work | None:
        """Begin to send a message as `send` does; None: it is over."""

    def register_hook(self, net: DistributedDataParallel) -> None:
        if not self.options.overlap:
            return super().register_hook(net)
        # Without annotations: torch compares them with its own classes, and here they are text.
        net.register_comm_hook(None, lambda _, bucket: self.send_bucket(bucket))

    def ddp_arguments(self) -> dict[str, Any]:
        """Without the options that are not DistributedDataParallel's."""
        own = vars(self.options).keys() - vars(DdpOptions()).keys()
        return {key: value for key, value in super().ddp_arguments().items() if key not in own}

    def message_sizes(self) -> list[int]:
        return list(self.account.of_update)

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """All messages under way at once, as far as the strategy itself has them so."""
        key = tuple(sizes)
        if key not in self._buffers:
            self._buffers[key] = [self.empty_message(size) for size in sizes]
        for work in [self.replay(buffers) for buffers in self._buffers[key]]:
            if work is not None:
                work.wait()

    def zeros(self, size_bytes: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(max(1, size_bytes // dtype.itemsize), dtype=dtype, device=self.device)

    def versions(self) -> dict[str, str]:
        try:
            return {**super().versions(), DISTRIBUTION: version(DISTRIBUTION)}
        except PackageNotFoundError:  # imported from its folder
            return super().versions()

    def close(self) -> None:
        self._buffers.clear()
        super().close()

    def refuse_scaled_loss(self) -> None:
        """What is kept back of one update and sent with a later one would be of another scale by then, and no number
        at all after gradients that overflowed."""
        if self.spec.config.train.precision == "float16":
            raise Unsupported(
                "error feedback adds what an update kept back to a later one, and train.precision=float16 scales "
                "each loss differently: take bfloat16 or float32, or strategy.options.error_feedback=false"
            )
