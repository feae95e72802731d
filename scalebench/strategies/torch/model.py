"""A network of `workloads.network` as a torch module.

Operations of `workloads.network` as torch modules. They take (samples, channels, positions) or (samples,
channels, height, width): torch's order, however the numbers lie in memory; those of CHANNELS_LAST take the channels
behind the positions, and those of EITHER_ORDER do not ask.

Operations of transformers as torch modules. They take and give (samples, positions, channels).

Weights of a NetworkModule by the neutral names of `workloads.network`, in neutral layout; a user's as they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from scalebench.strategies.torch.user_module import OwnModule
from scalebench.workloads.datasets.images import PIXEL_SCALE
from scalebench.workloads.network import Network, Node, Pads


class Positions(nn.Module):
    """Adds what is learnt of each position."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class CausalAttention(nn.Module):
    """By PyTorch's own kernels, over as many heads as the width that comes in has: of a part of it, a part of them."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = (x.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for x in (query, key, value))
        return functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


SEQUENCE_LAYERS_MAKERS: dict[str, Callable[[Node], nn.Module]] = {
    "embedding": lambda node: skip_init(nn.Embedding, *node.arrays[0].shape),
    "positions": lambda node: Positions(node.shape),
    "layer_norm": lambda node: nn.LayerNorm(node.shape[-1], node.settings["epsilon"]),
    "gelu": lambda node: nn.GELU(approximate="tanh"),
    "attention": lambda node: CausalAttention(node.settings["head_width"]),
}

FUNCTIONS = {1: functional.conv1d, 2: functional.conv2d}
MAX_POOL = {1: nn.MaxPool1d, 2: nn.MaxPool2d}
AVG_POOL = {1: functional.avg_pool1d, 2: functional.avg_pool2d}


class BatchNorm(nn.Module):
    """Normalises with the statistics of this replica's batch, and keeps moving ones for evaluation.

    Without `scale` gamma is a constant one. A channel with a single value has no variance to learn from:
    there the moving statistics are left alone.
    """

    def __init__(self, channels: int, epsilon: float, kept: float, scale: bool) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, 1 - kept  # torch's is what the new batch adds
        if scale:
            self.weight = nn.Parameter(torch.empty(channels))
        else:
            self.register_buffer("weight", torch.ones(channels), persistent=False)
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.empty(channels))
        self.register_buffer("running_var", torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        tell = not self.training or x.numel() > x.shape[1]
        moving = (self.running_mean, self.running_var) if tell else (None, None)
        # Not functional.batch_norm, which refuses single values.
        return torch.batch_norm(
            x, self.weight, self.bias, *moving, self.training, self.momentum, self.epsilon,
            torch.backends.cudnn.enabled,
        )  # fmt: skip


class Pad(nn.Module):
    """A constant around the last axes, by (before, after) of each."""

    def __init__(self, pads: Pads, value: float = 0.0) -> None:
        super().__init__()
        self.flat, self.value = [width for axis in reversed(pads) for width in axis], value

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x, self.flat, value=self.value)


class AvgPool(nn.Module):
    """The mean of each window over what is data and not padding."""

    def __init__(self, node: Node, spatial: tuple[int, ...]) -> None:
        super().__init__()
        self.window, self.strides = node.settings["window"], node.settings["strides"]
        pads, self.pool = node.settings["pads"], AVG_POOL[len(spatial)]
        self.inside = _inside(pads, self.window)
        self.pad = None if self.inside is not None else Pad(pads)
        self.register_buffer("share", None, persistent=False)
        if self.pad is not None:  # torch would count zeros of an uneven padding
            data = self.pad(torch.ones(1, 1, *spatial))
            self.share = self.pool(data, self.window, self.strides)

    def forward(self, x: Tensor) -> Tensor:
        if self.pad is None:
            return self.pool(x, self.window, self.strides, self.inside, count_include_pad=False)
        return self.pool(self.pad(x), self.window, self.strides) / self.share.to(x.dtype)


class LocalResponseNorm(nn.Module):
    """Sums over channels as a convolution with ones on a band; torch's own takes five times as long."""

    def __init__(self, node: Node, spatial: tuple[int, ...]) -> None:
        super().__init__()
        self.bias, self.alpha, self.beta = (node.settings[key] for key in ("bias", "alpha", "beta"))
        channels, radius = node.shape[-1], node.settings["radius"]
        band = torch.ones(channels, channels).triu(-radius).tril(radius)
        self.register_buffer("band", band.view(channels, channels, *[1] * len(spatial)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.bias + self.alpha * FUNCTIONS[x.dim() - 2](x.square(), self.band)).pow(-self.beta)


class GlobalAvgPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(tuple(range(2, x.dim())))


class Flatten(nn.Module):
    """Channels vary fastest, as in the neutral layout; no copy where they do so in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1).flatten(1)


class Add(nn.Module):
    """The sum; of all but one, added to that one in place, where `overwrites` says which."""

    def __init__(self, overwrites: int | None) -> None:
        super().__init__()
        self.overwrites = overwrites

    def forward(self, *xs: Tensor) -> Tensor:
        if self.overwrites is None:
            return sum(xs[1:], xs[0])
        total = xs[self.overwrites]
        for i, x in enumerate(xs):
            if i != self.overwrites:
                total.add_(x)
        return total


class Moved(nn.Module):
    """A view in the other order of axes: channels to the last place, or from there to where torch has them."""

    def __init__(self, to_last: bool) -> None:
        super().__init__()
        self.axes = (1, -1) if to_last else (-1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(*self.axes)


class Concat(nn.Module):
    def forward(self, *xs: Tensor) -> Tensor:
        return torch.cat(xs, 1)


def modules_of(node: Node, spatial: tuple[int, ...]) -> list[nn.Module]:
    """What computes a node, one after the other; `spatial` is the shape of its first input without channels."""
    if node.op in SEQUENCE_LAYERS_MAKERS:
        return [SEQUENCE_LAYERS_MAKERS[node.op](node)]
    made = MAKERS[node.op](node, spatial)
    return made if isinstance(made, list) else [made]


def _conv(node: Node, spatial: tuple[int, ...]) -> list[nn.Module]:
    *window, inputs, outputs = node.arrays[0].shape
    pads, strides = node.settings["pads"], node.settings["strides"]
    even = all(before == after for before, after in pads)
    inside = tuple(before for before, _ in pads) if even else 0
    kind = CONV[len(window)]
    conv = skip_init(kind, inputs, outputs, tuple(window), strides, inside, bias=len(node.arrays) > 1)
    return [conv] if even else [Pad(pads), conv]


def _dense(node: Node, spatial: tuple[int, ...]) -> nn.Module:
    return skip_init(nn.Linear, *node.arrays[0].shape, bias=len(node.arrays) > 1)


def _batch_norm(node: Node, spatial: tuple[int, ...]) -> nn.Module:
    return BatchNorm(node.shape[-1], node.settings["epsilon"], node.settings["momentum"], node.settings["scale"])


def _max_pool(node: Node, spatial: tuple[int, ...]) -> list[nn.Module]:
    window, strides, pads = (node.settings[key] for key in ("window", "strides", "pads"))
    inside = _inside(pads, window)
    pool = MAX_POOL[len(window)](window, strides, 0 if inside is None else inside)
    return [pool] if inside is not None else [Pad(pads, -math.inf), pool]


def _inside(pads: Pads, window: tuple[int, ...]) -> tuple[int, ...] | None:
    """The padding that a pooling of torch can do by itself: the same on both sides, at most half a window."""
    fits = all(before == after <= width // 2 for (before, after), width in zip(pads, window, strict=True))
    return tuple(before for before, _ in pads) if fits else None


CHANNELS_LAST = ("dense", "embedding", "positions", "layer_norm", "attention")
EITHER_ORDER = ("relu", "gelu", "dropout", "add")
CONV = {1: nn.Conv1d, 2: nn.Conv2d}

# `input` has no module: NetworkModule itself takes the batch in.
MAKERS: dict[str, Callable[[Node, tuple[int, ...]], nn.Module | list[nn.Module]]] = {
    "conv": _conv,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "relu": lambda node, spatial: nn.ReLU(inplace="overwrites" in node.settings),
    "dropout": lambda node, spatial: nn.Dropout(node.settings["rate"]),
    "lrn": LocalResponseNorm,
    "max_pool": _max_pool,
    "avg_pool": AvgPool,
    "zero_pad": lambda node, spatial: Pad(node.settings["pads"]),
    "pad_channels": lambda node, spatial: Pad((node.settings["pads"], *[(0, 0)] * len(spatial))),
    "global_avg_pool": lambda node, spatial: GlobalAvgPool(),
    "flatten": lambda node, spatial: Flatten(),
    "add": lambda node, spatial: Add(node.settings.get("overwrites")),
    "concat": lambda node, spatial: Concat(),
}

# No backward pass of these reads their output, so that it may be overwritten.
OVERWRITABLE = ("conv", "dense", "batch_norm", "add", "concat")


@dataclass(frozen=True)
class Step:
    """One module of the forward pass: what it reads, what its output is called, what nobody reads after it."""

    module: str
    inputs: tuple[str, ...]
    output: str
    spent: tuple[str, ...] = ()


class NetworkModule(nn.Module):
    """(samples, *input_shape) -> (samples, outputs); arrays are parameters and buffers of their node's module.

    Outputs for each position come as (samples, outputs, positions), as torch's losses take them. Inputs are float32,
    uint8 that becomes -1 .. 1 (see datasets.images), or whole numbers to look up. Images lie in memory channels last,
    as they come, or with `data_format` nchw channels first. Without `dropout` such nodes let everything through.
    Weights are uninitialised: see weights.load_weights.
    """

    def __init__(self, network: Network, data_format: str = "nhwc", dropout: bool = True) -> None:
        super().__init__()
        self.network = network
        self.images = len(network.input.shape) == 3
        self.channels_first = self.images and data_format == "nchw"
        self._shapes = {node.name: node.shape for node in network.nodes}
        self._last: set[str] = set()  # values whose channels stand behind the positions
        steps: list[Step] = []
        for node in _overwriting(_padding_inside(network.nodes)):
            if node.op == "dropout" and not dropout:
                node = dataclasses.replace(node, settings={"rate": 0.0})
            if node.op != "input":
                steps += self._add(node)
        steps += self._moved([network.output.name], to_last=False)[1]
        self.plan = _with_spent(steps)
        if self.images and not self.channels_first:
            self.to(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.movedim(-1, 1) if inputs.dim() > 2 else inputs
        if self.channels_first:
            x = x.contiguous()
        values = {self.network.input.name: x.div(PIXEL_SCALE).sub(1) if x.dtype == torch.uint8 else x}
        for step in self.plan:
            values[step.output] = getattr(self, step.module)(*[values[name] for name in step.inputs])
            for name in step.spent:
                del values[name]
        return values[self.plan[-1].output]

    def keep_outputs(self, modules: Collection[str]) -> None:
        """From now on nobody overwrites what these give: for outputs that are views, which autograd either does not let
        be overwritten, or forgets the hooks of."""
        for step in self.plan:
            if not set(modules).isdisjoint(step.inputs):
                reader = getattr(self, step.module)
                for setting, off in (("inplace", False), ("overwrites", None)):
                    if hasattr(reader, setting):
                        setattr(reader, setting, off)

    def _add(self, node: Node) -> list[Step]:
        """Registers the modules of a node; the last one, which holds its arrays, bears its name."""
        to_last = node.inputs[0] in self._last if node.op in EITHER_ORDER else node.op in CHANNELS_LAST
        read, steps = self._moved(node.inputs, to_last)
        if to_last and len(node.shape) > 1:
            self._last.add(node.name)
        modules = modules_of(node, self._shapes[node.inputs[0]][:-1])
        names = [f"{node.name}/{i}" for i in range(len(modules) - 1)] + [node.name]
        for name, module in zip(names, modules, strict=True):
            self.add_module(name, module)
        inputs = [tuple(read)] + [(name,) for name in names[:-1]]
        return steps + [Step(name, read, name) for name, read in zip(names, inputs, strict=True)]

    def _moved(self, names: Sequence[str], to_last: bool) -> tuple[list[str], list[Step]]:
        """What these values are called where their channels stand last, or not, and the steps that bring them there."""
        called, steps = [], []
        for name in names:
            moved = name
            if len(self._shapes[name]) > 1 and (name in self._last) != to_last:
                moved = f"{name}/{'last' if to_last else 'first'}"
                if moved not in self._modules:
                    self.add_module(moved, Moved(to_last))
                    steps.append(Step(moved, (name,), moved))
            called.append(moved)
        return called, steps


def _padding_inside(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with each zero_pad that a convolution alone reads drawn into it: no padded copy is made."""
    readers = Counter(name for node in nodes for name in node.inputs)
    by_name = {node.name: node for node in nodes}
    made, gone = [], set()
    for node in nodes:
        before = by_name[node.inputs[0]] if node.op == "conv" else None
        if before is not None and before.op == "zero_pad" and readers[before.name] == 1:
            both = zip(node.settings["pads"], before.settings["pads"], strict=True)
            pads = tuple((a[0] + b[0], a[1] + b[1]) for a, b in both)
            node = dataclasses.replace(node, inputs=before.inputs, settings={**node.settings, "pads": pads})
            gone.add(before.name)
        made.append(node)
    return [node for node in made if node.name not in gone]


def _overwriting(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with each relu and sum told which input it may overwrite: what it is the only reader of."""
    readers = Counter(name for node in nodes for name in node.inputs)
    free = {node.name for node in nodes if node.op in OVERWRITABLE and readers[node.name] == 1}
    made = []
    for node in nodes:
        place = next((i for i, name in enumerate(node.inputs) if name in free), None)
        if node.op in ("relu", "add") and place is not None:
            node = dataclasses.replace(node, settings={**node.settings, "overwrites": place})
        made.append(node)
    return made


def _with_spent(steps: Sequence[Step]) -> list[Step]:
    """The steps, each with the values that it is the last to read."""
    seen = {steps[-1].output}
    made = []
    for step in reversed(steps):
        spent = tuple(dict.fromkeys(name for name in step.inputs if name not in seen))
        seen.update(step.inputs)
        made.append(dataclasses.replace(step, spent=spent))
    return made[::-1]


# Last part of a neutral name -> torch's.
_TORCH = {
    "kernel": "weight",
    "embeddings": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}

# Kernels by their number of axes: torch's axes in terms of the neutral ones, which end in (in, out).
_KERNEL_AXES = {
    2: (1, 0),  # dense (in, out) -> (out, in)
    3: (2, 1, 0),  # conv1d (width, in, out) -> (out, in, width)
    4: (3, 2, 0, 1),  # conv2d (height, width, in, out) -> (out, in, height, width)
}


def load_weights(model: NetworkModule, arrays: dict[str, NDArray[np.float32]]) -> None:
    """Set every parameter and moving statistic from the array of its neutral name.

    ValueError if an array has no place in the model, a place no array, or the two differ in shape.
    """
    places = _places(model, statistics=True)
    if places.keys() != arrays.keys():
        odd = sorted(places.keys() ^ arrays.keys())
        raise ValueError(f"model and arrays disagree about {', '.join(odd)}")
    for name, place in places.items():
        array = np.ascontiguousarray(arrays[name].transpose(_axes(name, arrays[name].ndim)))
        if array.shape != tuple(place.shape):
            raise ValueError(f"{name} is {array.shape} as torch has it, the model's is {tuple(place.shape)}")
        with torch.no_grad():
            place.copy_(torch.from_numpy(array))


def read_weights(model: NetworkModule | OwnModule, statistics: bool = False) -> dict[str, NDArray[np.float32]]:
    """Copies of what is trained, and with `statistics` of the moving ones, by neutral name; a user's own as
    OwnModule.arrays has them. What is split over processes is put together, so that all of them have to call this."""
    if isinstance(model, OwnModule):
        return model.arrays(statistics)
    arrays = {}
    for name, place in _places(model, statistics).items():
        place = place.full_tensor() if hasattr(place, "full_tensor") else place
        array = place.detach().cpu().clone().numpy()  # numpy fixes the memory that it looks at, which FSDP frees
        arrays[name] = array.transpose(np.argsort(_axes(name, array.ndim))).copy(order="C")
    return arrays


def _places(model: NetworkModule, statistics: bool) -> dict[str, Tensor]:
    places = {}
    for array in model.network.arrays:
        if array.trainable or statistics:
            layer, _, last = array.name.rpartition("/")
            places[array.name] = getattr(getattr(model, layer), _TORCH[last])
    return places


def _axes(name: str, ndim: int) -> tuple[int, ...]:
    return _KERNEL_AXES[ndim] if name.endswith("/kernel") else tuple(range(ndim))
