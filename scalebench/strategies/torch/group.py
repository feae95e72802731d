"""The group of processes that talk to each other through torch.distributed."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from scalebench.strategies.base import Unsupported

PORT_TAKEN = ("EADDRINUSE", "address already in use")


class Group:
    """This process's membership in the default process group, which meets at MASTER_ADDR:MASTER_PORT."""

    def __init__(self, backend: str, device: torch.device, rank: int, size: int, timeout_s: float) -> None:
        """Join; every process of the run has to. `device` is where gradients live."""
        if not dist.is_backend_available(backend):
            raise Unsupported(f"this PyTorch {torch.__version__} was built without {backend.upper()}")
        self.backend, self.device = backend, device
        # NCCL carries tensors of the GPU only; over Gloo a number need not leave the CPU.
        self._numbers_on = device if backend == "nccl" else torch.device("cpu")
        self._buffers: dict[tuple[int, ...], list[Tensor]] = {}
        try:
            dist.init_process_group(
                backend,
                init_method="env://",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_s),
                device_id=device if backend == "nccl" else None,  # one communicator, made here and not in step 1
            )
        except RuntimeError as error:
            if any(words in str(error) for words in PORT_TAKEN):
                port = os.environ.get("MASTER_PORT")
                raise RuntimeError(
                    f"port {port} of the rendezvous was taken by another program; run it again"
                ) from None
            raise

    def broadcast(self, value: float) -> float:
        """Rank 0's value on every rank, when all have called this. A sum: the root of a broadcast waits for nobody."""
        return self.sum([value if dist.get_rank() == 0 else 0.0])[0]

    def sum(self, values: list[float]) -> list[float]:
        """Sums over the ranks."""
        numbers = torch.tensor(values, dtype=torch.float64, device=self._numbers_on)
        dist.all_reduce(numbers)
        return [float(number) for number in numbers.cpu()]

    def all_reduce_buffers(self, sizes_bytes: list[int]) -> None:
        """All-reduce one float32 buffer of each size, all of them under way at once, as DDP does with buckets."""
        key = tuple(sizes_bytes)
        if key not in self._buffers:
            self._buffers[key] = [torch.zeros(max(1, size // 4), device=self.device) for size in sizes_bytes]
        pending = [dist.all_reduce(buffer, async_op=True) for buffer in self._buffers[key]]
        for work in pending:
            work.wait()

    def leave(self) -> None:
        """Leave the group. May be called twice."""
        self._buffers.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
