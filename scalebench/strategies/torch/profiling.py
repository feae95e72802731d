"""The session of torch.profiler: self time of operations, the names and operators of its steps, and a Chrome trace.
Floating point operations, too.

Operations are a GPU's kernels and copies; on the CPU every operator of every thread, autograd's and compiled ones
included, and each operation that carries data between processes, for as long as it was in flight. Annotations
(ProfilerStep, Optimizer.step, DistributedDataParallel.forward) are left out: their self time is Python's, between
operators.
"""

from __future__ import annotations

import gzip
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ExecutionTraceObserver, profile, schedule
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from scalebench.core.json_files import read_json
from scalebench.core.result import GpuTime, Profile, ProfiledOperation
from scalebench.core.stats.gpu_time import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    GpuActivity,
    mean_gpu_time,
    sum_up_gpu_time,
)
from scalebench.strategies.base import BatchReplay, Loop, LossPart
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.observed import DRIVER_CALL, OperatorCall, choose_activities, list_operator_calls

MAX_OPERATIONS = 20  # operations in the record
OBSERVED_STEPS = 2  # where only backend and settings are of interest
# Steps before the profiled ones. The profiler starts in the first, at a different moment on each rank, so that its
# synchronization waits for the last rank; DDP rebuilds its buckets in the second, under Lightning in each training.
WARMUP_STEPS = 2
# Prefixes of event names. c10d:: operators are not among them: they hand the tensors over to a thread of the backend,
# whose own event (gloo:all_reduce) lasts as long as the communication.
COMMUNICATION_PREFIXES = ("gloo:", "mpi:", "horovod:", "ncclDevKernel", "ncclKernel", "ncclSym")
HOROVOD_WAIT = "horovod:synchronize"
# Operators of torch.distributed, whatever the backend: the operation, and which of the arguments has its full tensor.
SENDING_OPERATORS = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::reduce_": ("reduce", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
}
# PyTorch's names of types in these files.
FLOATS = {
    "float": torch.float32, "double": torch.float64, "c10::Half": torch.float16, "c10::BFloat16": torch.bfloat16,
}  # fmt: skip


@dataclass(frozen=True)
class ProfiledSteps:
    """What one session of the profiler has seen."""

    profile: Profile
    names: Counter[str]  # of all events
    calls: list[OperatorCall]
    sees_kernels: bool  # False: the steps ran on a GPU, and the profiler saw none of its kernels


class StepProfiler(BatchReplay):
    """A replay of WARMUP_STEPS and of a number of profiled steps after them."""

    def __init__(self, batch: TorchBatch, steps: int, synchronize: Callable[[], None]) -> None:
        """`synchronize` waits for the device."""
        super().__init__(batch, WARMUP_STEPS + steps)
        self.step_s, self.cuda = 0.0, is_on_gpu(batch)
        self._profiled_steps, self._synchronize, self._started_s = steps, synchronize, 0.0
        self.profiler = profile(
            activities=choose_activities(self.cuda),
            schedule=schedule(wait=0, warmup=WARMUP_STEPS, active=steps, repeat=1),
            record_shapes=True,
            acc_events=True,  # otherwise PyTorch warns that it keeps the events of one cycle only; there is just one
        )

    def __iter__(self) -> Iterator[Any]:
        self.profiler.start()
        yield from super().__iter__()

    def done(self, part: LossPart | None) -> bool:
        is_over, is_warm = super().done(part), len(self.parts) == WARMUP_STEPS
        if is_over or is_warm:
            self._synchronize()  # so that no step's device work is on both sides of the border
        if is_over:
            self.step_s = (time.perf_counter() - self._started_s) / self._profiled_steps
        self.profiler.step()
        if is_over:
            self.profiler.stop()
        if is_warm:
            self._started_s = time.perf_counter()
        return is_over

    def read(self) -> ProfiledSteps:
        """Return what the profiler saw, once the replay is over."""
        events = list(self.profiler.events())
        operations = summarize_operations(events, self._profiled_steps, self.cuda)
        profile = build_profile(operations, self._profiled_steps, self.step_s)
        profile.gpu = sum_up_gpus(events, self._profiled_steps) if self.cuda else None
        calls = list_operator_calls(self.profiler.profiler.kineto_results.experimental_event_tree())
        names = Counter(event.name for event in events)
        return ProfiledSteps(profile, names, calls, bool(operations) or not self.cuda)


def is_on_gpu(batch: TorchBatch) -> bool:
    return batch.tensors()[0].is_cuda


def profile_steps(
    train: Callable[[Loop], None],
    synchronize: Callable[[], None],
    batch: TorchBatch,
    steps: int,
    trace: Path | None = None,
) -> ProfiledSteps:
    """Train on a batch for WARMUP_STEPS + `steps` steps and profile the last ones. Spoils the weights.

    A second session in the same process can come out without any kernel: what CUPTI tears down after the first falls
    into it (pytorch/kineto pull request 1554).
    """
    replay = StepProfiler(batch, steps, synchronize)
    train(replay)
    if trace is not None:
        write_trace(replay.profiler, trace)
    return replay.read()


class SentTensor(NamedTuple):
    """What one operator of torch.distributed sent: the complete tensor of a collective operation."""

    kind: str
    size_bytes: int
    dtype: torch.dtype
    root: int
    is_activation: bool  # of DTensor's functional collectives


class MessageObserver(BatchReplay):
    """A replay of WARMUP_STEPS and of one more, whose operators PyTorch writes to a file, with their arguments.

    This is no session of the profiler, and leaves no hooks behind that later steps on a GPU would feel.
    """

    def __init__(self, batch: TorchBatch, path: Path) -> None:
        super().__init__(batch, WARMUP_STEPS + 1)
        self._observer = ExecutionTraceObserver().register_callback(str(path))

    def done(self, part: LossPart | None) -> bool:
        is_over = super().done(part)
        if is_over:
            self._observer.stop()
            self._observer.unregister_callback()
        elif len(self.parts) == WARMUP_STEPS:
            self._observer.start()
        return is_over


def observe_messages(train: Callable[[Loop], None], batch: TorchBatch) -> list[SentTensor]:
    """Train a few more steps on a batch, and return what the last one sent, in order. Spoils the weights.

    Flags, bit maps and single numbers, such as the norm of all gradients, are no messages.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "operators.json")
        train(MessageObserver(batch, path))
        nodes = {node["id"]: node for node in read_json(path)["nodes"]}
    sent = []
    for node in (nodes[number] for number in sorted(nodes)):
        if node["name"] not in SENDING_OPERATORS:
            continue
        kind, position = SENDING_OPERATORS[node["name"]]
        values, types = node["inputs"]["values"], node["inputs"]["types"]
        dtype = next((each for name, each in FLOATS.items() if f"Tensor({name})" in types[position]), None)
        # Of each tensor: numbers of itself and its memory, offset, elements, bytes of one, device.
        tensors = values[position] if types[position].startswith("GenericList") else [values[position]]
        elements = sum(tensor[3] for tensor in tensors)
        if dtype is not None and elements > 1:
            root = values[2] if kind in ("broadcast", "reduce") else 0
            caller = nodes.get(node["ctrl_deps"], {"name": ""})["name"]
            size_bytes = elements * dtype.itemsize
            sent.append(SentTensor(kind, size_bytes, dtype, root, caller.startswith("_c10d_functional::")))
    return sent


def summarize_operations(events: Iterable[Any], steps: int, cuda: bool) -> list[ProfiledOperation]:
    """Average torch's FunctionEvents into the operations of one step, largest first; with `cuda` those of the GPU."""
    operations: dict[str, ProfiledOperation] = {}
    for event in events:
        collective = event.name.startswith(COMMUNICATION_PREFIXES)
        on_gpu = event.device_type == DeviceType.CUDA
        if on_gpu != cuda or (event.is_user_annotation and (on_gpu or not collective)):
            continue
        operation = operations.setdefault(
            event.name, ProfiledOperation(event.name, 0.0, 0.0, collective, "cuda" if on_gpu else "cpu")
        )
        operation.calls += 1
        operation.self_s += self_seconds(event)
    for operation in operations.values():
        operation.calls, operation.self_s = operation.calls / steps, operation.self_s / steps
    return sorted(operations.values(), key=lambda operation: -operation.self_s)


def sum_up_gpus(events: Iterable[Any], steps: int) -> GpuTime | None:
    """Return what the GPUs of this process did in one step, their mean, from torch's FunctionEvents."""
    events = list(events)
    on_cpu = [event for event in events if event.device_type == DeviceType.CPU and DRIVER_CALL.match(event.name)]
    returned_us = {event.id: event.time_range.end for event in on_cpu}  # of a call and what it started
    by_gpu: dict[int, list[GpuActivity]] = {}
    for event in events:
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            is_copy = event.name.startswith(("Memcpy", "Memset"))
            kind = COPY if is_copy else COMMUNICATION if event.name.startswith(COMMUNICATION_PREFIXES) else COMPUTE
            returned = returned_us.get(event.id)
            seconds = event.time_range.start / 1e6, event.time_range.end / 1e6
            activity = GpuActivity(kind, *seconds, None if returned is None else returned / 1e6)
            by_gpu.setdefault(event.device_index, []).append(activity)
    times = [sum_up_gpu_time(activities, steps) for activities in by_gpu.values()]
    return mean_gpu_time([each for each in times if each is not None])


def self_seconds(event: Any) -> float:
    """Return the seconds of an event without those of the events that it called.

    torch counts no self time for events that another thread may end, such as gloo:all_reduce.
    """
    has_no_self_time = event.is_async or event.device_type == DeviceType.CUDA
    return float(event.time_range.elapsed_us() if has_no_self_time else event.self_cpu_time_total) / 1e6


def build_profile(operations: list[ProfiledOperation], steps: int, step_s: float) -> Profile:
    """Build the profile from all operations of one step.

    Without a collective operation their time is None: replicas that do not synchronize look like those whose
    communication the profiler does not see. On GPUs it does not see communication by host threads (Gloo, MPI), which
    begins with waiting for the GPU.
    """
    collective_s = [operation.self_s for operation in operations if operation.collective]
    return Profile(
        steps,
        step_s,
        kernel_s=sum(operation.self_s for operation in operations) if operations else None,
        collective_s=sum(collective_s) if collective_s else None,
        operations=operations[:MAX_OPERATIONS],
    )


def write_trace(profiler: profile, path: Path) -> None:
    """Write torch's Chrome trace to `path`, gzipped.

    Its `ts` are microseconds since its baseTimeNanoseconds, which are since the epoch: in their sum a float would lose
    the decimals that keep neighbouring events apart.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".trace") as scratch:
        plain, packed = Path(scratch, "trace.json"), Path(scratch, "trace.json.gz")
        profiler.export_chrome_trace(str(plain))
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        os.replace(packed, path)


def _attention_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _lstm_flops(inputs: torch.Size, kernel: torch.Size, recurrent: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * math.prod(inputs[:2]) * (kernel.numel() + recurrent.numel())


# PyTorch 2.13 has no count for attention and recurrent layers on CPUs.
EXTRA_FLOP_COUNTS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten.mkldnn_rnn_layer: _lstm_flops,
}


def count_flops(action: Callable[[], None]) -> int:
    """Count the FLOPs of convolutions, matrix products, attention and LSTMs in `action`, 2 per multiply-add.

    By torch.utils.flop_counter, as a check of the counts that a network's description gives.
    """
    with FlopCounterMode(display=False, custom_mapping=EXTRA_FLOP_COUNTS) as counter:
        action()
    return int(counter.get_total_flops())
