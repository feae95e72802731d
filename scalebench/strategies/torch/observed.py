"""Observation of steps with the profiler instead of trust in settings: the backend that synchronized gradients, and
the precision, the memory layout and the compiler that were really used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.strategies.base import BatchReplay, Loop, LossPart

OBSERVED_STEPS = 2  # the first one may still set something up
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
PLAIN_CONVOLUTION = "aten::convolution"
CONVOLUTIONS = (PLAIN_CONVOLUTION, "mkldnn::_convolution_pointwise")
MATRIX_PRODUCTS = ("aten::addmm", "aten::mm", "mkldnn::_linear_pointwise")
PRECISIONS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
COMPILED_REGION = "Torch-Compiled Region"  # appears where compiled code ran, not where it was only compiled


def choose_activities(on_gpu: bool) -> list[ProfilerActivity]:
    """Return the activities to profile: those of the host, and of GPUs if there are any in use."""
    return [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]


class OperatorCall(NamedTuple):
    """One call of an operator with the type and layout of its first input, and the layout of a convolution's kernel."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    kernel_sizes: tuple[int, ...] = ()
    kernel_strides: tuple[int, ...] = ()


class ProfiledReplay(BatchReplay):
    """A replay that is profiled from its first batch to its last step, without a trainer's work before and after."""

    def __init__(self, batch: Any, steps: int, shapes: bool = False) -> None:
        super().__init__(batch, steps)
        self._cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._profiler = profile(activities=choose_activities(self._cuda), record_shapes=shapes)

    def __iter__(self) -> Iterator[Any]:
        self._profiler.start()
        yield from super().__iter__()

    def done(self, part: LossPart | None) -> bool:
        over = super().done(part)
        if over:
            if self._cuda:
                torch.cuda.synchronize()
            self._profiler.stop()
        return over

    def event_names(self) -> set[str]:
        """Return the names of all profiled events."""
        return {event.name for event in self._profiler.events()}

    def operator_calls(self) -> list[OperatorCall]:
        """Return all profiled calls of operators whose first input is a tensor."""
        calls, pending = [], list(self._profiler.profiler.kineto_results.experimental_event_tree())
        while pending:
            event = pending.pop()
            pending += event.children
            first, second, *_ = [*(getattr(event.extra_fields, "inputs", None) or ()), None, None]
            if hasattr(first, "strides"):
                # Compiled convolutions have kernels in a format of the library.
                has_kernel = event.name == PLAIN_CONVOLUTION and hasattr(second, "strides")
                kernel = (tuple(second.sizes), tuple(second.strides)) if has_kernel else ()
                calls.append(OperatorCall(event.name, first.dtype, tuple(first.sizes), tuple(first.strides), *kernel))
        return calls


def identify_backend(names: Iterable[str], only: re.Pattern[str] | None = None) -> str | None:
    """Return the backend whose collective operations, sends or receives are among the names of events, of those that
    match `only`."""
    names = list(names if only is None else filter(only.search, names))
    return "+".join(backend for backend, events in BACKEND_EVENTS.items() if any(map(events.match, names))) or None


def identify_settings(names: Iterable[str], operations: Iterable[OperatorCall]) -> dict[str, str]:
    """Return precision, data_format and compiler of profiled steps; settings that they do not show are left out."""
    names, operations = set(names), list(operations)
    settings = {"compiler": "inductor" if any(name.startswith(COMPILED_REGION) for name in names) else "none"}
    products = [call for call in operations if call.name in CONVOLUTIONS + MATRIX_PRODUCTS]
    precisions = {PRECISIONS[call.dtype] for call in products if call.dtype in PRECISIONS}
    if "float32" in precisions and any(map(TF32_KERNEL.search, names)):
        precisions = precisions - {"float32"} | {"tf32"}
    if precisions:
        settings["precision"] = "+".join(sorted(precisions))
    layouts = {layout for call in operations if call.name in CONVOLUTIONS and (layout := describe_layout(call))}
    if layouts:
        settings["data_format"] = "+".join(sorted(layouts))
    return settings


def describe_layout(call: OperatorCall) -> str | None:
    """Return the memory layout of a convolution's images, with that of its kernel if it is another one, as with FSDP
    and ZeRO: cuDNN then rearranges the kernel in each call."""
    images, kernel = (
        identify_layout(*each) for each in ((call.sizes, call.strides), (call.kernel_sizes, call.kernel_strides))
    )
    return images if images is None or kernel in (None, images) else f"{images} ({kernel} kernels)"


def identify_layout(sizes: tuple[int, ...], strides: tuple[int, ...]) -> str | None:
    """Return the memory layout of images or a kernel; None for other tensors, or where both layouts are the same."""
    if len(sizes) != 4:
        return None
    _, channels, height, width = sizes
    if channels == 1 or height * width == 1:
        return None
    return "nhwc" if strides[1] == 1 else "nchw"


def observe_backend(train: Callable[[Loop], None], batch: Any, only: re.Pattern[str] | None = None) -> str | None:
    """Train on a batch for OBSERVED_STEPS under the profiler and return the backend of its events, of those that match
    `only`. Spoils the weights."""
    replay = ProfiledReplay(batch, OBSERVED_STEPS)
    train(replay)
    return identify_backend(replay.event_names(), only)


def observe_settings(train: Callable[[Loop], None], batch: Any) -> dict[str, str]:
    """Train on a batch for one step under the profiler and return its settings. Spoils the weights."""
    replay = ProfiledReplay(batch, 1, shapes=True)
    train(replay)
    return identify_settings(replay.event_names(), replay.operator_calls())
