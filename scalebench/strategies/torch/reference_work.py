"""Work of known length or size on a device, timed by the device's own clock: `scalebench check --gpu` compares it with
what scalebench measures.

On a GPU the clock are CUDA events, which the GPU stamps itself as it reaches them in its queue. It is independent of
the host's clock, of how far the GPU is behind its host, and of scalebench's timed blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from scalebench.strategies.torch.base import TorchStrategy

Action = Callable[[], object]
CALIBRATION_CYCLES = 20_000_000  # some 10 ms at the clock of today's GPUs
WARMUP_CALLS, TIMED_CALLS = 5, 20  # as in nccl-tests
MAX_CHUNKS = 64  # of memory; each is an eighth of what is free, so that the memory is full long before
MIN_CHUNK_BYTES = 2**26
PATTERN = 251  # bytes; prime, so that a copy that is shifted or repeats a block differs


@dataclass(frozen=True)
class DeviceFacts:
    """The GPUs as PyTorch reports them."""

    name: str
    count: int
    capability: str  # 8.0
    torch: str
    cuda: str | None


class ReferenceWork:
    """Work of known length or size on the device of one rank, after the strategy's setup. On a CPU worker the same
    calls sleep and copy there, so that they can be tried without a GPU."""

    def __init__(self, strategy: TorchStrategy) -> None:
        self.device = strategy.device

    @property
    def _is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def describe(self) -> DeviceFacts | None:
        """Return what PyTorch reports of the GPUs; None on a CPU."""
        if not self._is_cuda:
            return None
        capability = ".".join(map(str, torch.cuda.get_device_capability(self.device)))
        name, count = torch.cuda.get_device_name(self.device), torch.cuda.device_count()
        return DeviceFacts(name, count, capability, str(torch.__version__), torch.version.cuda)

    def time_s(self, action: Action, calls: int) -> float:
        """Return the seconds of that many calls in a row, by the device's clock."""
        if not self._is_cuda:
            start_s = time.monotonic()
            for _ in range(calls):
                action()
            return time.monotonic() - start_s
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(calls):
            action()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3  # milliseconds

    def make_sleep(self, seconds: float) -> Action:
        """Return an action that keeps the device busy for about so long: a kernel that counts the cycles of its
        multiprocessor's clock. That clock changes, so `time_s` has to tell how long a call takes."""
        if not self._is_cuda:
            return partial(time.sleep, seconds)
        calibrate = partial(torch.cuda._sleep, CALIBRATION_CYCLES)
        calibrate()  # the first call loads the kernel
        cycles_per_s = CALIBRATION_CYCLES / self.time_s(calibrate, 1)
        return partial(torch.cuda._sleep, int(seconds * cycles_per_s))

    def time_copy_s(self, size_bytes: int) -> tuple[float, bool]:
        """Return the seconds of one copy from (pinned) host memory to the device, and whether all bytes arrived."""
        pattern = torch.arange(PATTERN, dtype=torch.uint8).repeat(size_bytes // PATTERN + 1)[:size_bytes]
        source = pattern.pin_memory() if self._is_cuda else pattern
        target = torch.zeros(size_bytes, dtype=torch.uint8, device=self.device)
        seconds = self._time_warm_s(partial(target.copy_, source, non_blocking=True))
        return seconds, bool(torch.equal(target.cpu(), pattern))

    def time_all_reduce_s(self, sizes: Sequence[int]) -> dict[int, float]:
        """Return the seconds of one all-reduce of each size in bytes, as a plain loop measures it. Every rank has to
        call this."""
        seconds = {}
        for size_bytes in sizes:
            buffer = torch.zeros(size_bytes // 4, device=self.device)
            dist.barrier(device_ids=[self.device.index] if dist.get_backend() == "nccl" else None)
            seconds[size_bytes] = self._time_warm_s(partial(dist.all_reduce, buffer))
        return seconds

    def free_bytes(self) -> int | None:
        """Return the free memory of the GPU, without what PyTorch keeps for later; None on a CPU."""
        if not self._is_cuda:
            return None
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def exhaust_memory(self) -> Exception | None:
        """Allocate until the device has no memory left, and free it again. Return the error; None: it never came.

        A CPU worker asks once for more than any machine has, since a full host would take other programs with it.
        """
        free_bytes = self.free_bytes()
        chunk_bytes = 2**62 if free_bytes is None else max(free_bytes // 8, MIN_CHUNK_BYTES)
        try:
            chunks = [torch.empty(chunk_bytes, dtype=torch.uint8, device=self.device) for _ in range(MAX_CHUNKS)]
            del chunks
        except RuntimeError as error:  # torch.cuda.OutOfMemoryError is one
            return error.with_traceback(None)  # its frames would keep the chunks alive
        return None

    def _time_warm_s(self, action: Action) -> float:
        """Return the seconds of one call, after a few that do not count."""
        self.time_s(action, WARMUP_CALLS)
        return self.time_s(action, TIMED_CALLS) / TIMED_CALLS
