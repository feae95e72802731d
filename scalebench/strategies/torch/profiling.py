"""The session of torch.profiler, and what its steps show instead of trust in settings: self time of operations, the
backend that synchronized gradients, the precision, the memory layout and the compiler that were used, and a Chrome
trace. What a step sends, and floating point operations, too.

Operations are a GPU's kernels and copies; on the CPU every operator of every thread, autograd's and compiled ones
included, and each operation that carries data between processes, for as long as it was in flight. Annotations
(ProfilerStep, Optimizer.step, DistributedDataParallel.forward) are left out: their self time is Python's, between
operators.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from scalebench.core.json_files import read_json
from scalebench.core.probe_record import GpuTime, Profile, ProfiledOperation
from scalebench.core.stats.gpu_time import COMMUNICATION, COMPUTE, COPY, GpuActivity, mean_gpu_time, sum_up_gpu_time
from scalebench.strategies.base import BatchReplay, Loop
from scalebench.strategies.recording import OperationKind, average_operations, build_profile
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group import Message

# Names of events that carry gradients or activations begin like this, by backend. NCCL's kernels appear where the
# profiler sees the GPU (ncclSymk: over registered memory, from NCCL 2.28 on), its calls also where it does not. A mere
# broadcast does not count: Lightning sends a flag for SIGTERM in each step.
BACKEND_EVENTS = {
    "gloo": re.compile("gloo:(?:all_reduce|send|recv|all_gather|reduce_scatter)"),
    "nccl": re.compile(
        "nccl:(?:all_reduce|send|recv|_all_gather_base|_reduce_scatter_base)"
        "|nccl(?:Dev|Symk?Dev)?Kernel_(?:AllReduce|Reduce|AllGather|SendRecv)"
    ),
}
# The events among these that average gradients, where other collectives run in each step, too: buffers of the model, or
# Lightning's broadcast. NCCL's kernel is called AllReduce.
ALL_REDUCE = re.compile(r"all_?reduce", re.IGNORECASE)
# In the names of GPU kernels: cuDNN's have tf32 in them, those of cuBLAS the instruction (m16n8k8 of TF32 is s1688).
TF32_KERNEL = re.compile(r"tf32|^(?!.*(?:f16|fp16|bf16)).*s1688")
DEVICE_COPY_EVENTS = ("Memcpy PtoP", "Memcpy DtoD")  # between the memories of GPUs; DtoD also within one GPU
# Operators that multiply, compiled or not, whose first input is an activation.
CONVOLUTIONS = ("aten::convolution", "mkldnn::_convolution_pointwise")
MATRIX_PRODUCTS = ("aten::addmm", "aten::mm", "mkldnn::_linear_pointwise")
PRECISIONS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
COMPILED_REGION = "Torch-Compiled Region"  # appears where compiled code ran, not where it was only compiled
DRIVER_CALL = re.compile("cu(?:da)?[A-Z]")  # of the host: cudaLaunchKernel, cuLaunchKernelEx
OBSERVED_STEPS = 2  # where only backend and settings are of interest
STEP_EVENT = "ProfilerStep"  # the beginning of the name of the event around a profiled step
# Steps before the profiled ones. The profiler starts in the first, at a different moment on each rank, so that its
# synchronization waits for the last rank; DDP rebuilds its buckets in the second, under Lightning in each training.
WARMUP_STEPS = 2
GLOO_THREADS_S = 0.1  # after a step: by then Gloo's threads have left the operations that the step waited for
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
    "c10d::send": ("send", 0),
    "c10d::recv_": ("receive", 0),
}
# PyTorch's names of types in these files.
FLOATS = {
    "float": torch.float32, "double": torch.float64, "c10::Half": torch.float16, "c10::BFloat16": torch.bfloat16,
}  # fmt: skip


def choose_activities(on_gpu: bool) -> list[ProfilerActivity]:
    """Return the activities to profile: those of the host, and of GPUs if there are any in use."""
    return [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]


class OperatorCall(NamedTuple):
    """One call of an operator with the type and layout of its first input, and the kernels that a GPU ran for it."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    gpu_kernels: tuple[str, ...] = ()


def list_operator_calls(roots: Iterable[Any]) -> list[OperatorCall]:
    """Return all calls of operators whose first input is a tensor, in trees of torch's events."""
    calls, pending = [], list(roots)
    while pending:
        event = pending.pop()
        pending += event.children
        first = next(iter(getattr(event.extra_fields, "inputs", None) or ()), None)
        if hasattr(first, "strides"):
            ran = tuple(_list_gpu_kernels(event)) if event.name in CONVOLUTIONS + MATRIX_PRODUCTS else ()
            calls.append(OperatorCall(event.name, first.dtype, tuple(first.sizes), tuple(first.strides), ran))
    return calls


def _list_gpu_kernels(event: Any) -> Iterator[str]:
    for child in event.children:
        if child.tag.name == "Kineto" and not DRIVER_CALL.match(child.name):
            yield child.name
        yield from _list_gpu_kernels(child)


def identify_backend(names: Iterable[str], only: re.Pattern[str] | None = None) -> str | None:
    """Return the backend whose collective operations, sends or receives are among the names of events, of those that
    match `only`."""
    names = list(names if only is None else filter(only.search, names))
    return "+".join(backend for backend, events in BACKEND_EVENTS.items() if any(map(events.match, names))) or None


def identify_settings(
    names: Iterable[str], operations: Iterable[OperatorCall], sees_kernels: bool = True
) -> dict[str, str]:
    """Return precision, data_format and compiler of profiled steps; settings that they do not show are left out.

    Without `sees_kernels` the profiler saw none of a GPU that ran them: it may have computed float32 in TF32.
    """
    names, operations = set(names), list(operations)
    settings = {"compiler": "inductor" if any(name.startswith(COMPILED_REGION) for name in names) else "none"}
    products = [call for call in operations if call.name in CONVOLUTIONS + MATRIX_PRODUCTS]
    precisions = {PRECISIONS[call.dtype] for call in products if call.dtype in PRECISIONS}
    if "float32" in precisions and any(map(TF32_KERNEL.search, names)):
        ran = [call.gpu_kernels for call in products if call.dtype == torch.float32 and call.gpu_kernels]
        in_float32 = any(not any(map(TF32_KERNEL.search, kernels)) for kernels in ran)
        precisions = precisions - ({"float32"} if not in_float32 else set()) | {"tf32"}
    if precisions and (sees_kernels or "float32" not in precisions):
        settings["precision"] = "+".join(sorted(precisions))
    layouts = {identify_layout(call.sizes, call.strides) for call in operations if call.name in CONVOLUTIONS} - {None}
    if layouts:
        settings["data_format"] = "+".join(sorted(filter(None, layouts)))
    return settings


def identify_layout(sizes: tuple[int, ...], strides: tuple[int, ...]) -> str | None:
    """Return the memory layout of images; None for other tensors, or where both layouts are the same."""
    if len(sizes) != 4:
        return None
    _, channels, height, width = sizes
    if channels == 1 or height * width == 1:
        return None
    return "nhwc" if strides[1] == 1 else "nchw"


@dataclass(frozen=True)
class ProfiledSteps:
    """What one session of the profiler has seen."""

    profile: Profile
    names: Counter[str]  # of all events
    calls: list[OperatorCall]
    sees_kernels: bool  # False: the steps ran on a GPU, and the profiler saw none of its kernels


def profile_steps(
    train: Callable[[Loop], None],
    synchronize: Callable[[], None],
    batch: Any,
    steps: int,
    cuda: bool,
    trace: Path | None = None,
    begin_replays: Callable[[], None] | None = None,
) -> ProfiledSteps:
    """Train on a batch for WARMUP_STEPS + `steps` steps and profile the last ones. Spoils the weights.

    Where a graph replays steps, which it does once `begin_replays` was called, the profiler sees OBSERVED_STEPS more
    before these that the host starts kernel by kernel, for what a replay does not show.

    A second session in the same process can come out without any kernel: what CUPTI tears down after the first falls
    into it (pytorch/kineto pull request 1554).
    """
    observed_steps = 0 if begin_replays is None else OBSERVED_STEPS
    warm, last = WARMUP_STEPS + observed_steps, WARMUP_STEPS + observed_steps + steps
    times_s: list[float] = []
    profiler = profile(
        activities=choose_activities(cuda),
        schedule=schedule(wait=0, warmup=WARMUP_STEPS, active=observed_steps + steps, repeat=1),
        record_shapes=True,
        acc_events=True,  # otherwise PyTorch warns that it keeps the events of one cycle only; there is just one
    )

    def after_step(number: int) -> None:
        if number == 0:
            profiler.start()
            return
        if number in (WARMUP_STEPS, warm, last):
            synchronize()  # so that no step's device work is on both sides of the border
        if number == last:
            times_s.append(time.perf_counter())
        profiler.step()
        if number == last:
            profiler.stop()
        if number == warm:
            if begin_replays is not None:
                begin_replays()
            times_s.append(time.perf_counter())

    train(BatchReplay(batch, last, after_step))
    if trace is not None:
        write_trace(profiler, trace)
    events = list(profiler.events())
    names = Counter(event.name for event in events)
    calls = list_operator_calls(profiler.profiler.kineto_results.experimental_event_tree())
    sees_kernels = not cuda or any(
        event.device_type == DeviceType.CUDA and not event.is_user_annotation for event in events
    )
    if observed_steps:  # the host has waited for the device before the first replay
        on_host = (each for each in events if each.name.startswith(STEP_EVENT) and each.device_type == DeviceType.CPU)
        begin = sorted(each.time_range.start for each in on_host)[observed_steps]
        events = [event for event in events if event.time_range.start >= begin]
    summary = build_profile(summarize_operations(events, steps, cuda), steps, (times_s[1] - times_s[0]) / steps)
    summary.gpu = sum_up_gpus(events, steps) if cuda else None
    return ProfiledSteps(summary, names, calls, sees_kernels)


def observe_messages(train: Callable[[Loop], None], batch: TorchBatch) -> list[Message]:
    """Train a few more steps on a batch, and return what the last one sent, in order, by PyTorch's observer: it is no
    session of the profiler, and leaves no hooks behind that later steps on a GPU would feel. Spoils the weights.

    Flags, bit maps and single numbers, such as the norm of all gradients, are not messages.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "operators.json")
        observer = ExecutionTraceObserver().register_callback(str(path))
        try:
            actions = {WARMUP_STEPS: observer.start, WARMUP_STEPS + 1: observer.stop}
            train(BatchReplay(batch, WARMUP_STEPS + 1, lambda number: actions.get(number, lambda: None)()))
        finally:
            # A step ends before Gloo's threads have told the observer that their operations did. What they would tell
            # it is then in memory that is free, and the process would crash.
            time.sleep(GLOO_THREADS_S)
            observer.unregister_callback()
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
            root = values[2] if kind in ("broadcast", "reduce", "send", "receive") else 0
            caller = nodes.get(node["ctrl_deps"], {"name": ""})["name"]
            size_bytes = elements * dtype.itemsize
            sent.append(Message(kind, size_bytes, dtype, root, is_activation=caller.startswith("_c10d_functional::")))
    return sent


def summarize_operations(events: Iterable[Any], steps: int, cuda: bool) -> list[ProfiledOperation]:
    """Average torch's FunctionEvents into the operations of one step, largest first; with `cuda` those of the GPU.

    The seconds of an event are without those of the events that it called; torch counts no such time for events that
    another thread may end, such as gloo:all_reduce. On GPUs the profiler does not see communication by host threads
    (Gloo, MPI), which begins with waiting for the GPU.
    """

    def list_calls() -> Iterator[tuple[OperationKind, float]]:
        for event in events:
            collective = event.name.startswith(COMMUNICATION_PREFIXES)
            on_gpu = event.device_type == DeviceType.CUDA
            if on_gpu == cuda and not (event.is_user_annotation and (on_gpu or not collective)):
                self_us = event.time_range.elapsed_us() if event.is_async or on_gpu else event.self_cpu_time_total
                yield OperationKind(event.name, collective), float(self_us) / 1e6

    return average_operations(list_calls(), steps, "cuda" if cuda else "cpu")


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


# PyTorch 2.13 has no count for attention and recurrent layers on CPUs.
EXTRA_FLOP_COUNTS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *_, **more: int(
        sdpa_flop_count(query, key, value)
    ),
    torch.ops.aten.mkldnn_rnn_layer: lambda inputs, kernel, recurrent, *_, **more: (
        2 * math.prod(inputs[:2]) * (kernel.numel() + recurrent.numel())
    ),
}


def count_flops(action: Callable[[], None]) -> int:
    """Count the FLOPs of convolutions, matrix products, attention and LSTMs in `action`, 2 per multiply-add.

    By torch.utils.flop_counter, as a check of the counts that a network's description gives.
    """
    with FlopCounterMode(display=False, custom_mapping=EXTRA_FLOP_COUNTS) as counter:
        action()
    return int(counter.get_total_flops())
