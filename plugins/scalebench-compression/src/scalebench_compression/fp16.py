"""Gradients sent as float16: half the bytes, rounded to 11 bits."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.futures import Future

from scalebench_compression.compressed import Buffers, CompressedDdp


class DdpFp16(CompressedDdp):
    """DistributedDataParallel with torch's fp16 hook: each rank rounds a bucket and divides it by the number of ranks,
    and the all-reduce sums in float16.

    Gradients above 65504 become infinite, and those below 6e-8 become 0, on each rank.
    """

    def send_bucket(self, bucket: dist.GradBucket) -> Future[Tensor]:
        self.messages.record([bucket.buffer().numel() * torch.float16.itemsize], bucket.is_last())
        return fp16_compress_hook(dist.group.WORLD, bucket)

    def empty_message(self, size_bytes: int) -> Buffers:
        return (self.zeros(size_bytes, torch.float16),)

    def replay(self, buffers: Buffers) -> dist.Work | None:
        return dist.all_reduce(*buffers, async_op=True)
