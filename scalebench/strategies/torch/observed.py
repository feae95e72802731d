"""What profiled steps show, instead of trust in settings: the backend that synchronized gradients, and the precision,
the memory layout and the compiler that were really used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity

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
DRIVER_CALL = re.compile("cu(?:da)?[A-Z]")  # of the host: cudaLaunchKernel, cuLaunchKernelEx


def choose_activities(on_gpu: bool) -> list[ProfilerActivity]:
    """Return the activities to profile: those of the host, and of GPUs if there are any in use."""
    return [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]


class OperatorCall(NamedTuple):
    """One call of an operator with the type and layout of its first input, the layout of a convolution's kernel, and
    the kernels that a GPU ran for it."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    kernel_sizes: tuple[int, ...] = ()
    kernel_strides: tuple[int, ...] = ()
    gpu_kernels: tuple[str, ...] = ()


def list_operator_calls(roots: Iterable[Any]) -> list[OperatorCall]:
    """Return all calls of operators whose first input is a tensor, in trees of torch's events."""
    calls, pending = [], list(roots)
    while pending:
        event = pending.pop()
        pending += event.children
        first, second, *_ = [*(getattr(event.extra_fields, "inputs", None) or ()), None, None]
        if hasattr(first, "strides"):
            # Compiled convolutions have kernels in a format of the library.
            has_kernel = event.name == PLAIN_CONVOLUTION and hasattr(second, "strides")
            kernel = (tuple(second.sizes), tuple(second.strides)) if has_kernel else ((), ())
            ran = tuple(_list_gpu_kernels(event)) if event.name in CONVOLUTIONS + MATRIX_PRODUCTS else ()
            calls.append(OperatorCall(event.name, first.dtype, tuple(first.sizes), tuple(first.strides), *kernel, ran))
    return calls


def _list_gpu_kernels(event: Any) -> Iterator[str]:
    for child in event.children:
        if child.tag == _EventType.Kineto and not DRIVER_CALL.match(child.name):
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
