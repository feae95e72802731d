"""The base of compressions: DistributedDataParallel with a hook that records the bytes that it sends."""

from __future__ import annotations

from abc import abstractmethod
from importlib.metadata import PackageNotFoundError, version

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scalebench.plugin_api import RunSpec, Unsupported
from scalebench.strategies.torch import Ddp

DISTRIBUTION = "scalebench-compression"
Buffers = tuple[Tensor, ...]


class MessageLog:
    """The bytes of the messages of one step, bucket by bucket, as they were sent."""

    def __init__(self) -> None:
        self.step_bytes: list[int] = []  # of the last complete step
        self._current: list[int] = []

    def record(self, sizes_bytes: list[int], is_last: bool) -> None:
        """Record the messages of a bucket, `is_last` for the last one of a step. A size of 0 is no message."""
        self._current += [size for size in sizes_bytes if size]
        if is_last:
            self.step_bytes, self._current = self._current, []


class CompressedDdp(Ddp):
    """The base of a compression, which defines how to send a bucket, and how to send without a bucket."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.message_log = MessageLog()
        self._buffers: dict[tuple[int, ...], list[Buffers]] = {}

    @abstractmethod
    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Compute the mean of a bucket's gradients over the ranks, as far as compression keeps it, in the bucket's own
        buffer; record in `message_log` the bytes that this rank sends."""

    @abstractmethod
    def empty_message(self, size_bytes: int) -> Buffers:
        """Return buffers of zeros for `replay` to send a message of that size, and to receive into."""

    @abstractmethod
    def replay(self, buffers: Buffers) -> dist.Work | None:
        """Start to send a message in the way of `send_bucket`; None: it is finished."""

    def register_hook(self, net: DistributedDataParallel) -> None:
        if not self.options.overlap:
            return super().register_hook(net)
        # Without annotations: torch compares them with its own classes, and here they are strings.
        net.register_comm_hook(None, lambda _, bucket: self.send_bucket(bucket))

    def message_sizes(self) -> list[int]:
        return list(self.message_log.step_bytes)

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """Send all messages concurrently, as far as the strategy itself does."""
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
        """Raise Unsupported for float16: what one step keeps back and a later one sends would have another scale then,
        and would be NaN or infinite after an overflow."""
        if self.spec.config.train.precision == "float16":
            raise Unsupported(
                "error feedback adds what a step kept back to a later one, and train.precision=float16 scales "
                "each loss differently: take bfloat16 or float32, or strategy.options.error_feedback=false"
            )
