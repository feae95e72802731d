"""Where the time of an update goes, by torch.profiler: own time of operations, and a Chrome trace.

What counts as an operation: on a GPU its kernels and copies; on the CPU every operator of every thread, autograd's and
compiled ones included, and each operation that carries data between processes, for as long as it was under way.
Annotations are left out (ProfilerStep, Optimizer.step, DistributedDataParallel.forward): their own time is Python's,
between operators.

Floating point operations as PyTorch itself counts them, beside what the description of a network says.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from scalebench.core.result import Operation, Profile
from scalebench.strategies.base import Loop, LossPart
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.observed import Replay

KEPT = 20  # operations in the record
# Updates before those that are profiled. The profiler starts in the first, not at the same moment on all ranks, and its
# exchange waits for the last of them; DDP makes its buckets anew in the second, under Lightning in each training.
WARM_UP = 2
# Beginnings of names. c10d:: operators are none of these: they hand the tensors over to a thread of the backend, whose
# own event (gloo:all_reduce) lasts as long as the exchange.
CARRIERS = ("gloo:", "mpi:", "horovod:", "ncclDevKernel", "ncclKernel")
HOROVOD_WAIT = "horovod:synchronize"


class Profiled(Replay):
    """Hands out one batch for WARM_UP updates and for so many more, which it profiles."""

    def __init__(self, batch: TorchBatch, updates: int, synchronize: Callable[[], None]) -> None:
        """`synchronize` waits for the device."""
        super().__init__(batch, WARM_UP + updates)
        self.step_s, self.cuda = 0.0, batch.inputs.is_cuda
        self._count, self._synchronize, self._began_s = updates, synchronize, 0.0
        self.profiler = profile(
            activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.cuda else []),
            schedule=schedule(wait=0, warmup=WARM_UP, active=updates, repeat=1),
            acc_events=True,  # without it PyTorch warns that it keeps those of one cycle only, and there is one
        )

    def __iter__(self) -> Iterator[Any]:
        self.profiler.start()
        yield from super().__iter__()

    def done(self, part: LossPart | None) -> bool:
        over, begins = super().done(part), len(self.parts) == WARM_UP
        if over or begins:
            self._synchronize()  # so that the device works on no update on both sides of the border
        if over:
            self.step_s = (time.perf_counter() - self._began_s) / self._count
        self.profiler.step()
        if over:
            self.profiler.stop()
        if begins:
            self._began_s = time.perf_counter()
        return over


def profiled(
    train: Callable[[Loop], None], synchronize: Callable[[], None], batch: TorchBatch, updates: int, trace: Path | None
) -> Profile:
    """Train on a batch for WARM_UP + `updates` updates, and say where the time of the last ones went. Spoils the
    weights."""
    replay = Profiled(batch, updates, synchronize)
    train(replay)
    if trace is not None:
        keep_trace(replay.profiler, trace)
    return profile_of(operations(replay.profiler.events(), updates, replay.cuda), updates, replay.step_s)


def operations(events: Iterable[Any], updates: int, cuda: bool) -> list[Operation]:
    """Those of one update, largest first, from torch's FunctionEvents of so many; with `cuda` of the GPU alone."""
    found: dict[str, Operation] = {}
    for event in events:
        collective = event.name.startswith(CARRIERS)
        on_gpu = event.device_type == DeviceType.CUDA
        if on_gpu != cuda or (event.is_user_annotation and (on_gpu or not collective)):
            continue
        one = found.setdefault(event.name, Operation(event.name, 0.0, 0.0, collective, "cuda" if on_gpu else "cpu"))
        one.calls += 1
        one.self_s += own_s(event)
    for one in found.values():
        one.calls, one.self_s = one.calls / updates, one.self_s / updates
    return sorted(found.values(), key=lambda one: -one.self_s)


def own_s(event: Any) -> float:
    """Seconds without what it called. To torch an event that another thread may end, as gloo:all_reduce, has none."""
    whole = event.is_async or event.device_type == DeviceType.CUDA
    return float(event.time_range.elapsed_us() if whole else event.self_cpu_time_total) / 1e6


def profile_of(found: list[Operation], updates: int, step_s: float) -> Profile:
    """`found` are all operations of one update. Without any that carries data their time is None: replicas that
    exchange nothing look as those whose exchange the profiler does not see. On GPUs an exchange by threads of the host
    (Gloo, MPI) is not seen, since it begins with waiting for the GPU."""
    carried = [one.self_s for one in found if one.collective]
    return Profile(
        updates,
        step_s,
        kernel_s=sum(one.self_s for one in found) if found else None,
        collective_s=sum(carried) if carried else None,
        operations=found[:KEPT],
    )


def keep_trace(profiler: profile, path: Path) -> None:
    """torch's Chrome trace at `path`, gzipped, its `ts` in microseconds since its baseTimeNanoseconds, which are since
    the epoch: added to them, a float would lose the decimals that keep neighbours apart."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".trace") as scratch:
        plain, packed = Path(scratch, "trace.json"), Path(scratch, "trace.json.gz")
        profiler.export_chrome_trace(str(plain))
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        os.replace(packed, path)


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


# What PyTorch 2.13 has no count for: attention on CPUs.
LACKING = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}


def counted(action: Callable[[], None]) -> int:
    """Of the convolutions, matrix products and attention in `action`, 2 per multiply-add (torch.utils.flop_counter)."""
    with FlopCounterMode(display=False, custom_mapping=LACKING) as counter:
        action()
    return int(counter.get_total_flops())
