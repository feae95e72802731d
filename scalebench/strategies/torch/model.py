"""Networks of `workloads.network` as torch modules, and their weights under neutral names.

A network is a torch.fx graph, whose code frees each value after its last reader. Operations take (samples, channels,
positions) or (samples, channels, height, width), which is torch's order of axes in any memory layout. The operations of
CHANNELS_LAST, among them all those of transformers, take and return the channels after the positions, and those of
EITHER_ORDER take both.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from scalebench.core.spec import Config
from scalebench.strategies.torch.checkpointing import choose_ends, is_recomputing, run_checkpointed
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


CUDNN_LSTM = 2  # of cudnnRNNMode_t


class Lstm(nn.Module):
    """PyTorch's LSTM kernel over (samples, positions, channels), from a state of zeros.

    nn.LSTM has two biases per gate, of which the kernel gets zeros for the second here. It also keeps a list of its
    weights, which would still hold the old tensors after FSDP has replaced the parameters. As nn.LSTM does, it lays its
    weights out in one chunk of a GPU's memory: of separate ones cuDNN would allocate that chunk again in each call.
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
MAX_POOL = {1: torch.max_pool1d, 2: torch.max_pool2d}
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


class AvgPool(nn.Module):
    """Averages each window over its data without the padding."""

    def __init__(self, node: Node, spatial: tuple[int, ...]) -> None:
        super().__init__()
        self.window, self.strides = node.settings["window"], node.settings["strides"]
        pads, self.pool = node.settings["pads"], AVG_POOL[len(spatial)]
        self.padding = _symmetric_padding(pads, self.window)
        self.pads = pads
        self.register_buffer("share", None, persistent=False)
        if self.padding is None:  # torch would count the zeros of an asymmetric padding
            self.share = self.pool(pad(torch.ones(1, 1, *spatial), pads), self.window, self.strides)

    def forward(self, x: Tensor) -> Tensor:
        if self.padding is not None:
            return self.pool(x, self.window, self.strides, self.padding, count_include_pad=False)
        return self.pool(pad(x, self.pads), self.window, self.strides) / self.share.to(x.dtype)


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


def pad(x: Any, pads: Pads, value: float = 0.0) -> Any:
    """Pad the last axes with a constant, by (before, after) for each axis."""
    return functional.pad(x, [width for axis in reversed(pads) for width in axis], value=value)


def _symmetric_padding(pads: Pads, window: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the padding if torch's pooling supports it: equal on both sides and at most half a window; else None."""
    supported = all(before == after <= width // 2 for (before, after), width in zip(pads, window, strict=True))
    return tuple(before for before, _ in pads) if supported else None


def _conv(node: Node, spatial: tuple[int, ...]) -> nn.Module:
    *window, inputs, outputs = node.arrays[0].shape
    padding = tuple(before for before, _ in node.settings["pads"]) if _is_symmetric(node.settings["pads"]) else 0
    kind, strides = CONV_MODULES[len(window)], node.settings["strides"]
    return skip_init(kind, inputs, outputs, tuple(window), strides, padding, bias=len(node.arrays) > 1)


def _is_symmetric(pads: Pads) -> bool:
    return all(before == after for before, after in pads)


def _max_pool(node: Node, spatial: tuple[int, ...], x: Any) -> Any:
    window, strides, pads = (node.settings[key] for key in ("window", "strides", "pads"))
    padding = _symmetric_padding(pads, window)
    x = pad(x, pads, -math.inf) if padding is None else x
    return MAX_POOL[len(window)](x, window, strides, padding or 0)


def attend(head_width: int, query: Any, key: Any, value: Any) -> Any:
    """PyTorch's causal scaled dot-product attention. The number of heads follows from the input's width, so that a
    slice of the width, as in tensor parallelism, holds some of the heads."""
    heads = (x.unflatten(-1, (-1, head_width)).transpose(1, 2) for x in (query, key, value))
    return functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


CHANNELS_LAST = ("dense", "embedding", "positions", "layer_norm", "attention", "lstm")
EITHER_ORDER = ("relu", "gelu", "dropout", "add")
CONV_MODULES = {1: nn.Conv1d, 2: nn.Conv2d}

# Operations with arrays, buffers or a mode, as modules; and all others as functions of their inputs.
MODULES: dict[str, Callable[[Node, tuple[int, ...]], nn.Module]] = {
    "conv": _conv,
    "dense": lambda node, spatial: skip_init(nn.Linear, *node.arrays[0].shape, bias=len(node.arrays) > 1),
    "batch_norm": lambda node, spatial: BatchNorm(
        node.shape[-1], node.settings["epsilon"], node.settings["momentum"], node.settings["scale"]
    ),
    "dropout": lambda node, spatial: nn.Dropout(node.settings["rate"]),
    "lrn": LocalResponseNorm,
    "avg_pool": AvgPool,
    "embedding": lambda node, spatial: skip_init(nn.Embedding, *node.arrays[0].shape),
    "positions": lambda node, spatial: PositionEmbedding(node.shape),
    "layer_norm": lambda node, spatial: nn.LayerNorm(node.shape[-1], node.settings["epsilon"]),
    "lstm": lambda node, spatial: Lstm(node.arrays[0].shape[0], node.shape[-1]),
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda node, spatial, x: functional.relu(x),
    "gelu": lambda node, spatial, x: functional.gelu(x, approximate="tanh"),
    "add": lambda node, spatial, *xs: functools.reduce(operator.add, xs),
    "concat": lambda node, spatial, *xs: torch.cat(xs, 1),
    "max_pool": _max_pool,
    "zero_pad": lambda node, spatial, x: pad(x, node.settings["pads"]),
    "pad_channels": lambda node, spatial, x: pad(x, (node.settings["pads"], *[(0, 0)] * len(spatial))),
    "global_avg_pool": lambda node, spatial, x: x.mean(tuple(range(2, 2 + len(spatial)))),
    # With channels varying fastest, as in the neutral layout; this copies only where memory differs from that.
    "flatten": lambda node, spatial, x: x.movedim(1, -1).flatten(1),
    "attention": lambda node, spatial, *xs: attend(node.settings["head_width"], *xs),
}


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
        self._draws_numbers = dropout and network.count("dropout") > 0
        self.graph = self._build_graph(dropout)
        self._generate_code()
        if self.images and not self.channels_first:
            self.to(memory_format=torch.channels_last)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.movedim(-1, 1) if inputs.dim() > 2 else inputs
        if self.channels_first:
            x = x.contiguous()
        last = [x.div(PIXEL_SCALE).sub(1) if x.dtype == torch.uint8 else x]  # taken out, so that it can be freed
        del x
        for run in self._parts[:-1]:  # the last part is not checkpointed: its backward pass comes at once
            part = functools.partial(run, self)
            checkpoints = torch.is_grad_enabled()
            last.append(run_checkpointed(part, last.pop(), self._draws_numbers) if checkpoints else part(last.pop()))
        return self._parts[-1](self, last.pop())

    def checkpoint_activations(self) -> None:
        """Keep for the backward pass only the values between parts of the network, each of which is one tensor."""
        nodes = list(self.graph.nodes)
        numbers = {node: number for number, node in enumerate(nodes)}
        last_reads = [max((numbers[reader] for reader in node.users), default=len(nodes)) for node in nodes]
        read_before = accumulate(last_reads, max)  # the last reader of any value up to here
        cuts = [number for number, last in enumerate(read_before, 1) if last <= number < len(nodes) - 1]
        self._generate_code(choose_ends(cuts, [node.meta.get("elements", 1) for node in nodes]))

    def _build_graph(self, dropout: bool) -> fx.Graph:
        """Register the modules of the nodes under their names, and return the operations in order."""
        graph, shapes = fx.Graph(), {node.name: node.shape for node in self.network.nodes}
        tracer = fx.proxy.GraphAppendingTracer(graph)
        values: dict[tuple[str, bool], fx.Proxy] = {}  # by node, and whether channels come after the positions
        channels_last: set[str] = set()  # the nodes whose operation gives them so

        def read(name: str, to_last: bool) -> fx.Proxy:
            if (name, to_last) not in values:
                value = values[name, not to_last]
                values[name, to_last] = (
                    value if len(shapes[name]) == 1 else value.movedim(-1 if to_last else 1, 1 if to_last else -1)
                )
            return values[name, to_last]

        for node in self.network.nodes:
            if node.op == "input":
                values[node.name, False] = fx.Proxy(graph.placeholder("inputs"), tracer)
                continue
            to_last = node.inputs[0] in channels_last if node.op in EITHER_ORDER else node.op in CHANNELS_LAST
            if to_last and len(node.shape) > 1:
                channels_last.add(node.name)
            inputs, spatial = [read(name, to_last) for name in node.inputs], shapes[node.inputs[0]][:-1]
            if node.op in MODULES:
                if node.op == "dropout" and not dropout:
                    node = dataclasses.replace(node, settings={"rate": 0.0})
                if node.op == "conv" and not _is_symmetric(node.settings["pads"]):
                    inputs = [pad(inputs[0], node.settings["pads"])]
                self.add_module(node.name, MODULES[node.op](node, spatial))
                output = fx.Proxy(graph.call_module(node.name, tuple(each.node for each in inputs)), tracer)
            else:
                output = FUNCTIONS[node.op](node, spatial, *inputs)
            output.node.meta["elements"] = math.prod(node.shape)
            values[node.name, to_last] = output
        read(self.network.output.name, to_last=False)
        return graph

    def _generate_code(self, ends: Collection[int] = ()) -> None:
        """Generate the functions (self, x) of the parts, which end at `ends` and at the output."""
        nodes = list(self.graph.nodes)
        self._parts: list[Callable[[nn.Module, Tensor], Tensor]] = []
        for first, end in pairwise([0, *ends, len(nodes) - 1]):
            part = fx.Graph()
            values = {nodes[first]: part.placeholder("x")}
            for node in nodes[first + 1 : end + 1]:
                values[node] = part.node_copy(node, values.__getitem__)
            part.output(values[nodes[end]])
            self._parts.append(type(fx.GraphModule(self, part)).forward)


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
