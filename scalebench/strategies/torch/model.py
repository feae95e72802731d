"""Networks of `workloads.network` as torch modules, and their weights under neutral names.

Operations take (samples, channels, positions) or (samples, channels, height, width), which is torch's order of axes
in any memory layout. The operations of CHANNELS_LAST, among them all those of transformers, take and return the
channels after the positions, and those of EITHER_ORDER take both.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from scalebench.core.spec import Config
from scalebench.strategies.torch.checkpointing import is_recomputing, run_checkpointed, split_steps
from scalebench.strategies.torch.precision import choose_data_format
from scalebench.workloads.datasets.images import PIXEL_SCALE
from scalebench.workloads.network import Network, Node, Pads
from scalebench.workloads.weights import initial_weights


class PositionEmbedding(nn.Module):
    """Adds a learned value to each position."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class CausalAttention(nn.Module):
    """PyTorch's scaled dot-product attention. The number of heads follows from the input's width, so that a slice of
    the width, as in tensor parallelism, holds some of the heads."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = (x.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for x in (query, key, value))
        return functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


CUDNN_LSTM = 2  # of cudnnRNNMode_t


class Lstm(nn.Module):
    """PyTorch's LSTM kernel over (samples, positions, channels), from a state of zeros.

    nn.LSTM has two biases per gate, of which the kernel gets zeros for the second here. It also keeps a list of its
    weights, which would still hold the old tensors after FSDP has replaced the parameters. As nn.LSTM does, it lays its
    weights out in one chunk of a GPU's memory: of separate ones cuDNN would make that chunk anew in each call.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4 * units, inputs))
        self.recurrent_weight = nn.Parameter(torch.empty(4 * units, units))
        self.bias = nn.Parameter(torch.empty(4 * units))
        self.register_buffer("second_bias", torch.zeros(4 * units), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Lstm:
        super()._apply(fn, recurse)  # .to() and .cuda() end here
        if torch.backends.cudnn.is_acceptable(self.weight):
            inputs, units = self.weight.shape[1], self.recurrent_weight.shape[1]
            with torch.no_grad():
                torch._cudnn_rnn_flatten_weight(self._weights(), 4, inputs, CUDNN_LSTM, units, 0, 1, True, False)
        return self

    def _weights(self) -> list[Tensor]:
        return [self.weight, self.recurrent_weight, self.bias, self.second_bias]

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(1, x.shape[0], self.recurrent_weight.shape[1])
        return torch.lstm(x, (state, state), self._weights(), True, 1, 0.0, self.training, False, True)[0]


CONV_FUNCTIONS = {1: functional.conv1d, 2: functional.conv2d}
MAX_POOL = {1: nn.MaxPool1d, 2: nn.MaxPool2d}
AVG_POOL = {1: functional.avg_pool1d, 2: functional.avg_pool2d}


class BatchNorm(nn.Module):
    """Normalizes with the statistics of this replica's batch, and keeps moving ones for evaluation.

    Without `scale`, gamma is constantly 1. A channel with a single value has no variance: it leaves the moving
    statistics as they are.
    """

    def __init__(self, channels: int, epsilon: float, decay: float, scale: bool) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, 1 - decay  # torch's momentum is the weight of the new batch
        if scale:
            self.weight = nn.Parameter(torch.empty(channels))
        else:
            self.register_buffer("weight", torch.ones(channels), persistent=False)
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.empty(channels))
        self.register_buffer("running_var", torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        uses_moving = not self.training or x.numel() > x.shape[1]
        moving = (self.running_mean, self.running_var) if uses_moving else (None, None)
        if uses_moving and is_recomputing():  # the same operation, on statistics that are thrown away
            moving = (self.running_mean.clone(), self.running_var.clone())
        # functional.batch_norm would refuse single values.
        return torch.batch_norm(
            x, self.weight, self.bias, *moving, self.training, self.momentum, self.epsilon,
            torch.backends.cudnn.enabled,
        )  # fmt: skip


class Pad(nn.Module):
    """Pads the last axes with a constant, by (before, after) for each axis."""

    def __init__(self, pads: Pads, value: float = 0.0) -> None:
        super().__init__()
        self.flat, self.value = [width for axis in reversed(pads) for width in axis], value

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x, self.flat, value=self.value)


class AvgPool(nn.Module):
    """Averages each window over its data without the padding."""

    def __init__(self, node: Node, spatial: tuple[int, ...]) -> None:
        super().__init__()
        self.window, self.strides = node.settings["window"], node.settings["strides"]
        pads, self.pool = node.settings["pads"], AVG_POOL[len(spatial)]
        self.padding = _symmetric_padding(pads, self.window)
        self.pad = None if self.padding is not None else Pad(pads)
        self.register_buffer("share", None, persistent=False)
        if self.pad is not None:  # torch would count the zeros of an asymmetric padding
            data = self.pad(torch.ones(1, 1, *spatial))
            self.share = self.pool(data, self.window, self.strides)

    def forward(self, x: Tensor) -> Tensor:
        if self.pad is None:
            return self.pool(x, self.window, self.strides, self.padding, count_include_pad=False)
        return self.pool(self.pad(x), self.window, self.strides) / self.share.to(x.dtype)


class LocalResponseNorm(nn.Module):
    """Local response normalization whose sums over channels are a convolution with a band matrix of ones; torch's own
    module takes five times as long."""

    def __init__(self, node: Node, spatial: tuple[int, ...]) -> None:
        super().__init__()
        self.bias, self.alpha, self.beta = (node.settings[key] for key in ("bias", "alpha", "beta"))
        channels, radius = node.shape[-1], node.settings["radius"]
        band = torch.ones(channels, channels).triu(-radius).tril(radius)
        self.register_buffer("band", band.view(channels, channels, *[1] * len(spatial)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.bias + self.alpha * CONV_FUNCTIONS[x.dim() - 2](x.square(), self.band)).pow(-self.beta)


class GlobalAvgPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(tuple(range(2, x.dim())))


class Flatten(nn.Module):
    """Flattens with channels varying fastest, as in the neutral layout; copies only where memory differs from that."""

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1).flatten(1)


class Add(nn.Module):
    """Adds its inputs, in place to the input with the index `overwrites` unless that is None."""

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


class MoveChannels(nn.Module):
    """Returns a view with the channels moved to the last axis, or from there to torch's place."""

    def __init__(self, to_last: bool) -> None:
        super().__init__()
        self.axes = (1, -1) if to_last else (-1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(*self.axes)


class Concat(nn.Module):
    def forward(self, *xs: Tensor) -> Tensor:
        return torch.cat(xs, 1)


def _conv(node: Node, spatial: tuple[int, ...]) -> list[nn.Module]:
    *window, inputs, outputs = node.arrays[0].shape
    pads, strides = node.settings["pads"], node.settings["strides"]
    symmetric = all(before == after for before, after in pads)
    padding = tuple(before for before, _ in pads) if symmetric else 0
    kind = CONV_MODULES[len(window)]
    conv = skip_init(kind, inputs, outputs, tuple(window), strides, padding, bias=len(node.arrays) > 1)
    return [conv] if symmetric else [Pad(pads), conv]


def _max_pool(node: Node, spatial: tuple[int, ...]) -> list[nn.Module]:
    window, strides, pads = (node.settings[key] for key in ("window", "strides", "pads"))
    padding = _symmetric_padding(pads, window)
    pool = MAX_POOL[len(window)](window, strides, 0 if padding is None else padding)
    return [pool] if padding is not None else [Pad(pads, -math.inf), pool]


def _symmetric_padding(pads: Pads, window: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the padding if torch's pooling supports it: equal on both sides and at most half a window; else None."""
    supported = all(before == after <= width // 2 for (before, after), width in zip(pads, window, strict=True))
    return tuple(before for before, _ in pads) if supported else None


CHANNELS_LAST = ("dense", "embedding", "positions", "layer_norm", "attention", "lstm")
EITHER_ORDER = ("relu", "gelu", "dropout", "add")
CONV_MODULES = {1: nn.Conv1d, 2: nn.Conv2d}

# `input` has no module: NetworkModule itself converts the batch.
MODULE_BUILDERS: dict[str, Callable[[Node, tuple[int, ...]], nn.Module | list[nn.Module]]] = {
    "conv": _conv,
    "dense": lambda node, spatial: skip_init(nn.Linear, *node.arrays[0].shape, bias=len(node.arrays) > 1),
    "batch_norm": lambda node, spatial: BatchNorm(
        node.shape[-1], node.settings["epsilon"], node.settings["momentum"], node.settings["scale"]
    ),
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
    "embedding": lambda node, spatial: skip_init(nn.Embedding, *node.arrays[0].shape),
    "positions": lambda node, spatial: PositionEmbedding(node.shape),
    "layer_norm": lambda node, spatial: nn.LayerNorm(node.shape[-1], node.settings["epsilon"]),
    "gelu": lambda node, spatial: nn.GELU(approximate="tanh"),
    "attention": lambda node, spatial: CausalAttention(node.settings["head_width"]),
    "lstm": lambda node, spatial: Lstm(node.arrays[0].shape[0], node.shape[-1]),
}

# Operations whose output may be overwritten, since their backward pass does not read it.
OVERWRITABLE = ("conv", "dense", "batch_norm", "add", "concat")


@dataclass(frozen=True)
class ForwardStep:
    """One module of the forward pass with the names of the values that it reads and writes."""

    module: str
    inputs: tuple[str, ...]
    output: str
    last_reads: tuple[str, ...] = ()  # inputs that no later step reads


class NetworkModule(nn.Module):
    """A network as a module: (samples, *input_shape) -> (samples, outputs).

    Arrays of a node are parameters and buffers of its module. Outputs for each position are (samples, outputs,
    positions), as torch's losses take them. Inputs are float32, uint8 that becomes -1 .. 1 (see datasets.images), or
    integers to look up. Images are channels last in memory, as they are fed, or with `data_format` nchw channels
    first. Without `dropout`, dropout nodes pass everything. Weights are uninitialized until load_weights.
    """

    def __init__(self, network: Network, data_format: str = "nhwc", dropout: bool = True) -> None:
        super().__init__()
        self.network = network
        self.images = len(network.input.shape) == 3
        self.channels_first = self.images and data_format == "nchw"
        self._shapes = {node.name: node.shape for node in network.nodes}
        self._channels_last: set[str] = set()  # values whose channels come after the positions
        steps: list[ForwardStep] = []
        for node in _mark_overwrites(_merge_padding(network.nodes)):
            if node.op == "dropout" and not dropout:
                node = dataclasses.replace(node, settings={"rate": 0.0})
            if node.op != "input":
                steps += self._add_node(node)
        steps += self._order_channels([network.output.name], to_last=False)[1]
        self.plan = _mark_last_reads(steps)
        self._checkpoint_ends = [len(self.plan)]  # of the parts between which activations are kept
        self._draws_numbers = dropout and network.count("dropout") > 0
        if self.images and not self.channels_first:
            self.to(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.movedim(-1, 1) if inputs.dim() > 2 else inputs
        if self.channels_first:
            x = x.contiguous()
        last = [x.div(PIXEL_SCALE).sub(1) if x.dtype == torch.uint8 else x]  # taken out, so that it can be freed
        first = 0
        # The last part is not checkpointed: its backward pass comes at once.
        for end in self._checkpoint_ends[:-1] if torch.is_grad_enabled() else ():
            last.append(run_checkpointed(partial(self._run_steps, first, end), last.pop(), self._draws_numbers))
            first = end
        return self._run_steps(first, len(self.plan), last.pop())

    def _run_steps(self, first: int, end: int, x: Tensor) -> Tensor:
        """Run these steps of the plan on the only value that they read from before."""
        values = {self.plan[first].inputs[0]: x}
        del x
        for step in self.plan[first:end]:
            values[step.output] = getattr(self, step.module)(*[values[name] for name in step.inputs])
            for name in step.last_reads:
                del values[name]
        return values[self.plan[end - 1].output]

    def checkpoint_activations(self) -> None:
        """Keep for the backward pass only the values between parts of the network, each of which is one tensor."""
        sizes = [math.prod(self._shapes.get(step.output, ())) for step in self.plan]
        self._checkpoint_ends = split_steps(self.plan, sizes)
        kept = {self.plan[end - 1].output for end in self._checkpoint_ends[:-1]}
        for step in self.plan:  # a view of a kept value is in the same memory
            if isinstance(getattr(self, step.module), (MoveChannels, Flatten)) and not kept.isdisjoint(step.inputs):
                kept.add(step.output)
        self.protect_outputs(kept)

    def protect_outputs(self, modules: Collection[str]) -> None:
        """Let no later module overwrite the outputs of these modules.

        This is needed for outputs that are views, which autograd either protects from being overwritten, or whose hooks
        it loses.
        """
        for step in self.plan:
            if not set(modules).isdisjoint(step.inputs):
                reader = getattr(self, step.module)
                for setting, off in (("inplace", False), ("overwrites", None)):
                    if hasattr(reader, setting):
                        setattr(reader, setting, off)

    def _add_node(self, node: Node) -> list[ForwardStep]:
        """Register the modules of a node; the last one, which holds its arrays, has the node's name."""
        to_last = node.inputs[0] in self._channels_last if node.op in EITHER_ORDER else node.op in CHANNELS_LAST
        read, steps = self._order_channels(node.inputs, to_last)
        if to_last and len(node.shape) > 1:
            self._channels_last.add(node.name)
        built = MODULE_BUILDERS[node.op](node, self._shapes[node.inputs[0]][:-1])
        modules = built if isinstance(built, list) else [built]
        names = [f"{node.name}/{i}" for i in range(len(modules) - 1)] + [node.name]
        for name, module in zip(names, modules, strict=True):
            self.add_module(name, module)
        inputs = [tuple(read)] + [(name,) for name in names[:-1]]
        return steps + [ForwardStep(name, read, name) for name, read in zip(names, inputs, strict=True)]

    def _order_channels(self, names: Sequence[str], to_last: bool) -> tuple[list[str], list[ForwardStep]]:
        """Return the names of these values with channels last, or first, and the steps that move the channels."""
        ordered, steps = [], []
        for name in names:
            moved = name
            if len(self._shapes[name]) > 1 and (name in self._channels_last) != to_last:
                moved = f"{name}/{'last' if to_last else 'first'}"
                if moved not in self._modules:
                    self.add_module(moved, MoveChannels(to_last))
                    steps.append(ForwardStep(moved, (name,), moved))
            ordered.append(moved)
        return ordered, steps


def _merge_padding(nodes: Sequence[Node]) -> list[Node]:
    """Merge each zero_pad that only one convolution reads into that convolution, which avoids a padded copy."""
    readers = Counter(name for node in nodes for name in node.inputs)
    by_name = {node.name: node for node in nodes}
    merged, removed = [], set()
    for node in nodes:
        before = by_name[node.inputs[0]] if node.op == "conv" else None
        if before is not None and before.op == "zero_pad" and readers[before.name] == 1:
            both = zip(node.settings["pads"], before.settings["pads"], strict=True)
            pads = tuple((a[0] + b[0], a[1] + b[1]) for a, b in both)
            node = dataclasses.replace(node, inputs=before.inputs, settings={**node.settings, "pads": pads})
            removed.add(before.name)
        merged.append(node)
    return [node for node in merged if node.name not in removed]


def _mark_overwrites(nodes: Sequence[Node]) -> list[Node]:
    """Mark for each relu and add an input that it may overwrite, because it is that input's only reader."""
    readers = Counter(name for node in nodes for name in node.inputs)
    overwritable = {node.name for node in nodes if node.op in OVERWRITABLE and readers[node.name] == 1}
    marked = []
    for node in nodes:
        index = next((i for i, name in enumerate(node.inputs) if name in overwritable), None)
        if node.op in ("relu", "add") and index is not None:
            node = dataclasses.replace(node, settings={**node.settings, "overwrites": index})
        marked.append(node)
    return marked


def _mark_last_reads(steps: Sequence[ForwardStep]) -> list[ForwardStep]:
    """Mark in each step the values that it is the last to read, which are freed after it."""
    read_later = {steps[-1].output}
    marked = []
    for step in reversed(steps):
        last_reads = tuple(dict.fromkeys(name for name in step.inputs if name not in read_later))
        read_later.update(step.inputs)
        marked.append(dataclasses.replace(step, last_reads=last_reads))
    return marked[::-1]


# Last part of a neutral name -> torch's name.
_TORCH_NAMES = {
    "kernel": "weight",
    "recurrent_kernel": "recurrent_weight",
    "embeddings": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}

# Number of a kernel's axes -> torch's axes in terms of the neutral ones, which end in (in, out).
_KERNEL_AXES = {
    2: (1, 0),  # dense (in, out) -> (out, in)
    3: (2, 1, 0),  # conv1d (width, in, out) -> (out, in, width)
    4: (3, 2, 0, 1),  # conv2d (height, width, in, out) -> (out, in, height, width)
}


def build_network_module(network: Network, config: Config, device: torch.device) -> NetworkModule:
    """Build the module of a network, or of a stage of one, for a device, on the CPU, with the seed's weights."""
    model = NetworkModule(network, choose_data_format(config.train, device), config.train.dropout)
    arrays = ((array.name, array.shape, array.init) for array in network.arrays)
    load_weights(model, initial_weights(arrays, config.seed))
    if config.train.activation_checkpointing:
        model.checkpoint_activations()
    return model


def load_weights(model: NetworkModule, arrays: Mapping[str, NDArray[np.float32]]) -> None:
    """Set every parameter and moving statistic from the array with its neutral name.

    Raises ValueError if the names of tensors and arrays differ, or the shapes of two that belong together.
    """
    tensors = _named_tensors(model, statistics=True)
    if tensors.keys() != arrays.keys():
        unmatched = sorted(tensors.keys() ^ arrays.keys())
        raise ValueError(f"model and arrays disagree about {', '.join(unmatched)}")
    for name, tensor in tensors.items():
        array = arrays[name]
        array = np.ascontiguousarray(array.transpose(_torch_axes(name, array.ndim)))
        if array.shape != tuple(tensor.shape):
            raise ValueError(f"{name} is {array.shape} as torch has it, the model's is {tuple(tensor.shape)}")
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(array))


def read_weights(model: Any, statistics: bool = False) -> dict[str, NDArray[np.float32]]:
    """Copy the trained arrays of a NetworkModule, and with `statistics` the moving ones, by neutral name."""
    arrays = {}
    for name, tensor in _named_tensors(model, statistics).items():
        array = copy_to_array(tensor)
        arrays[name] = array.transpose(np.argsort(_torch_axes(name, array.ndim))).copy(order="C")
    return arrays


def copy_to_array(tensor: Any) -> NDArray[Any]:
    """Copy a tensor to host memory; all processes gather one that is split over them."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    array: NDArray[Any] = full.detach().cpu().clone().numpy()  # cloned: a view pins its memory, which FSDP frees
    return array


def _named_tensors(model: NetworkModule, statistics: bool) -> dict[str, Tensor]:
    tensors = {}
    for array in model.network.arrays:
        if array.trainable or statistics:
            layer, _, last = array.name.rpartition("/")
            tensors[array.name] = getattr(getattr(model, layer), _TORCH_NAMES[last])
    return tensors


def _torch_axes(name: str, ndim: int) -> tuple[int, ...]:
    return _KERNEL_AXES[ndim] if name.endswith("kernel") else tuple(range(ndim))
