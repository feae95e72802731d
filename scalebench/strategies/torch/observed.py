"""What updates really did, read off the profiler and not off the settings: who carried the gradients, in which
precision and layout convolutions ran, who compiled them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.strategies.base import Loop, LossPart

UPDATES = 2  # the first may still set something up
# Names of events -> backend. NCCL's kernels show where the profiler sees the GPU, its call also where it does not.
SIGNS = {
    "gloo:all_reduce": "gloo",
    "gloo:send": "gloo",
    "gloo:recv": "gloo",
    "gloo:all_gather": "gloo",
    "gloo:reduce_scatter": "gloo",
    "nccl:all_reduce": "nccl",
    "nccl:send": "nccl",
    "nccl:recv": "nccl",
    "nccl:_all_gather_base": "nccl",
    "nccl:_reduce_scatter_base": "nccl",
    "ncclDevKernel": "nccl",
    "ncclKernel": "nccl",
}
COPIES = ("Memcpy PtoP", "Memcpy DtoD")  # from one GPU's memory to another's; the latter also within one
# Operations that do the multiplying, compiled or not, whose first input is an activation.
CONVOLUTIONS = ("aten::convolution", "mkldnn::_convolution_pointwise")
PRODUCTS = ("aten::addmm", "aten::mm", "mkldnn::_linear_pointwise")
PRECISIONS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
COMPILED = "Torch-Compiled Region"  # that ran, not only was compiled


class Operation(NamedTuple):
    """One call of an operator: of its first input."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Replay:
    """A Loop that hands out one batch so many times, and keeps what the updates gave."""

    def __init__(self, batch: Any, updates: int) -> None:
        self.parts: list[LossPart | None] = []
        self._batch, self._updates = batch, updates

    def __iter__(self) -> Iterator[Any]:
        while len(self.parts) < self._updates:
            yield self._batch

    def done(self, part: LossPart | None) -> bool:
        self.parts.append(part)
        return len(self.parts) >= self._updates


class ProfiledReplay(Replay):
    """Profiles from its first batch to its last update, and nothing that a trainer does before or after."""

    def __init__(self, batch: Any, updates: int, shapes: bool = False) -> None:
        super().__init__(batch, updates)
        self._cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        seen = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._cuda else [])
        self._profiler = profile(activities=seen, record_shapes=shapes)

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

    def names(self) -> set[str]:
        """Of all events seen."""
        return {event.name for event in self._profiler.events()}

    def operations(self) -> list[Operation]:
        """Those seen with a tensor before their other inputs."""
        found, left = [], list(self._profiler.profiler.kineto_results.experimental_event_tree())
        while left:
            event = left.pop()
            left += event.children
            first = next(iter(getattr(event.extra_fields, "inputs", None) or ()), None)
            if hasattr(first, "strides"):
                found.append(Operation(event.name, first.dtype, tuple(first.sizes), tuple(first.strides)))
        return found


def backend_of(names: Iterable[str]) -> str | None:
    """The backend whose collective operations, or sending and receiving, are among these names of events."""
    found = {backend for name in names for sign, backend in SIGNS.items() if name.startswith(sign)}
    return "+".join(sorted(found)) or None


def settings_of(names: Iterable[str], operations: Iterable[Operation]) -> dict[str, str]:
    """precision, data_format and compiler of profiled updates; what they do not show is left out."""
    names, operations = set(names), list(operations)
    found = {"compiler": "inductor" if any(name.startswith(COMPILED) for name in names) else "none"}
    products = [one for one in operations if one.name in CONVOLUTIONS + PRODUCTS]
    precisions = {PRECISIONS[one.dtype] for one in products if one.dtype in PRECISIONS}
    if "float32" in precisions and any("tf32" in name for name in names):  # names of the GPU's kernels
        precisions = precisions - {"float32"} | {"tf32"}
    if precisions:
        found["precision"] = "+".join(sorted(precisions))
    layouts = {layout for one in operations if one.name in CONVOLUTIONS and (layout := layout_of(one))}
    if layouts:
        found["data_format"] = "+".join(sorted(layouts))
    return found


def layout_of(one: Operation) -> str | None:
    """How a batch of images lies in memory; None where it is none, or where both ways are the same."""
    if len(one.sizes) != 4:
        return None
    _, channels, height, width = one.sizes
    if channels == 1 or height * width == 1:
        return None
    return "nhwc" if one.strides[1] == 1 else "nchw"


def observed_backend(train: Callable[[Loop], None], batch: Any) -> str | None:
    """Train on a batch for two updates under the profiler. Spoils the weights."""
    replay = ProfiledReplay(batch, UPDATES)
    train(replay)
    return backend_of(replay.names())


def observed_settings(train: Callable[[Loop], None], batch: Any) -> dict[str, str]:
    """As above, for one update."""
    replay = ProfiledReplay(batch, 1, shapes=True)
    train(replay)
    return settings_of(replay.names(), replay.operations())
