"""Top-k compression: the largest gradients of each bucket are sent with their indices, the others kept for later."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from scalebench.plugin_api import InputError, RunSpec
from scalebench_compression import sparse
from scalebench_compression.compressed import Buffers, CompressedDdp

# As newer PyTorch calls it, which warns of the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
GATHERS = ("all_gather", "_all_gather_base", "AllGather")  # as profilers call it
BACKENDS = {"gloo:": "gloo", "nccl:": "nccl", "ncclDevKernel": "nccl", "ncclKernel": "nccl"}


class DdpTopK(CompressedDdp):
    """DistributedDataParallel with a hook in which each rank sends its largest entries and their indices to all, by one
    all-gather per bucket."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        if not 0 < self.options.share <= 1:
            raise InputError(
                f"strategy.options.share={self.options.share:g} should be above 0 and at most 1: "
                f"it is the part of the gradients that travels"
            )

    def setup(self) -> None:
        if self.options.error_feedback:
            self.refuse_scaled_loss()
        self.residual = sparse.Residual()
        super().setup()

    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        if self.options.error_feedback:
            residual = self.residual.of(bucket.index(), bucket.parameters(), buffer)
            residual.add_(buffer)
        else:
            residual = buffer
        count, ranks = sparse.sent_count(len(buffer), self.options.share), dist.get_world_size()
        places = sparse.select_largest(residual, count)
        message = sparse.pack(residual, places)
        residual[places] = 0
        self.message_log.record([len(message)], bucket.is_last())
        gathered = message.new_empty(ranks * len(message))

        def add_up(done: Future[list[Tensor]]) -> Tensor:
            done.value()  # raises the errors of the all-gather
            if gathered.is_cuda:  # on a separate stream, which the allocator does not know of
                gathered.record_stream(torch.cuda.current_stream(gathered.device))
            return sparse.average_messages(gathered.chunk(ranks), count, ranks, out=buffer)

        return _all_gather(gathered, message, async_op=True).get_future().then(add_up)

    def empty_message(self, size_bytes: int) -> Buffers:
        return tuple(self.zeros(size_bytes * copies, torch.uint8) for copies in (dist.get_world_size(), 1))

    def replay(self, buffers: Buffers) -> dist.Work | None:
        return _all_gather(*buffers, async_op=True)

    def backend_used(self) -> str | None:
        """Return the backend of the all-gather in profiled steps."""
        return all_gather_backend(self.observe_steps().names)


def all_gather_backend(names: Iterable[str]) -> str | None:
    """Return the backend whose all-gather is among these event names."""
    gathers = [name for name in names if any(word in name for word in GATHERS)]
    backends = {backend for name in gathers for prefix, backend in BACKENDS.items() if name.startswith(prefix)}
    return "+".join(sorted(backends)) or None
