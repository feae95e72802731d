"""A network as data: its nodes with their shapes, the arrays that they hold, and the cost of one sample.

There is no framework here: the adapters build the same network from this data in PyTorch and in Keras. Shapes are those
of one sample, channels last: (positions, channels) or (height, width, channels); kernels end in (in, out).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scalebench.core.errors import InputError

FLOAT_BYTES = 4  # of float32
TRAINING_PASSES = 3  # the forward pass, and a backward pass that costs twice as much
Shape = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]  # zeros (before, after) along each spatial axis


@dataclass(frozen=True)
class Array:
    """One array of a network, in neutral layout. Moving statistics are the arrays that are not trained."""

    name: str  # such as "conv1/kernel"
    shape: Shape
    init: str  # initializer; for its values see weights.initial_weights
    trainable: bool = True


@dataclass(frozen=True)
class Node:
    """One operation on the outputs of other nodes."""

    name: str
    op: str
    inputs: tuple[str, ...]
    shape: Shape  # of its output
    settings: dict[str, Any] = field(default_factory=dict)
    arrays: tuple[Array, ...] = ()
    macs: int = 0  # multiply-adds of one forward pass over one sample


class Network:
    """A network that is built node by node; each method appends one node and returns it. The last node is the output.

    `padding` is "same" (as in TensorFlow: an odd zero goes behind), "valid", or a number of zeros on every side. The
    methods raise InputError where the image is too small for a window, and ValueError for a programmer's mistake.
    """

    def __init__(self, name: str, input_shape: Sequence[int]) -> None:
        self.name = name
        self.nodes: list[Node] = []
        self._names: set[str] = set()
        self.input = self._add("input", "input", [], tuple(input_shape))

    @property
    def output(self) -> Node:
        return self.nodes[-1]

    @property
    def arrays(self) -> list[Array]:
        """All arrays, in forward order."""
        return [array for node in self.nodes for array in node.arrays]

    def count(self, op: str) -> int:
        """Return the number of nodes of this operation so far, by which layers are numbered."""
        return sum(node.op == op for node in self.nodes)

    @property
    def parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(math.prod(array.shape) for array in self.arrays if array.trainable)

    @property
    def forward_flops(self) -> int:
        """Floating-point operations of one forward pass over one sample, 2 per multiply-add.

        Only convolutions, dense and recurrent layers and the products of attention count: no biases, normalization,
        activations, pooling, look-ups or loss. The padding of a convolution counts as if it were data, as in
        torchvision and most published counts.
        """
        return 2 * sum(node.macs for node in self.nodes)

    @property
    def training_flops(self) -> int:
        """Floating-point operations of training on one sample: 3 times those of the forward pass.

        Backward counts twice, since it computes the gradients of inputs and of weights; this is the convention of "AI
        and Compute" (Amodei and Hernandez, OpenAI 2018, appendix) and of Kaplan et al. 2020 (section 2.1).
        """
        return TRAINING_PASSES * self.forward_flops

    def conv(
        self,
        x: Node,
        name: str,
        filters: int,
        kernel: int | Sequence[int],
        strides: int = 1,
        padding: str | int = "same",
        bias: bool = True,
        init: str = "glorot_uniform",
    ) -> Node:
        """Append a convolution over one or two spatial axes; `kernel` is one width for all axes or one per axis."""
        window, pads, spatial = self._place_windows(x, name, kernel, strides, padding)
        shape = (*window, x.shape[-1], filters)
        arrays = [Array(f"{name}/kernel", shape, init)]
        arrays += [Array(f"{name}/bias", (filters,), "zeros")] if bias else []
        settings = {"strides": strides, "pads": pads}
        return self._add(
            name, "conv", [x], (*spatial, filters), settings, arrays, math.prod(spatial) * math.prod(shape)
        )

    def dense(self, x: Node, name: str, units: int, init: str = "glorot_uniform", bias: bool = True) -> Node:
        """Append a fully connected layer; on (positions, channels) the same layer is applied at each position."""
        if len(x.shape) > 2:
            raise ValueError(f"{name}: flatten {x.name} of shape {x.shape} first")
        shape = (x.shape[-1], units)
        arrays = [Array(f"{name}/kernel", shape, init)]
        arrays += [Array(f"{name}/bias", (units,), "zeros")] if bias else []
        return self._add(name, "dense", [x], (*x.shape[:-1], units), {}, arrays, math.prod(x.shape) * units)

    def batch_norm(self, x: Node, name: str, epsilon: float = 1e-3, momentum: float = 0.99, scale: bool = True) -> Node:
        """Append a batch normalization with an offset; `momentum` is the share of the moving statistics kept per step.

        The moving variance is the unbiased one, as in PyTorch and in TensorFlow's fused kernel.
        """
        shape = x.shape[-1:]
        arrays = [Array(f"{name}/gamma", shape, "ones")] if scale else []
        arrays += [
            Array(f"{name}/beta", shape, "zeros"),
            Array(f"{name}/moving_mean", shape, "zeros", trainable=False),
            Array(f"{name}/moving_variance", shape, "ones", trainable=False),
        ]
        settings = {"epsilon": epsilon, "momentum": momentum, "scale": scale}
        return self._add(name, "batch_norm", [x], x.shape, settings, arrays)

    def embedding(self, x: Node, name: str, vocabulary: int, width: int, init: str = "normal:0.02") -> Node:
        """Append a table look-up: (positions,) of numbers 0 .. vocabulary - 1 becomes (positions, width)."""
        if x is not self.input or len(x.shape) != 1:
            raise ValueError(f"{name}: {x.name} of shape {x.shape} is not an input of numbers to look up")
        table = Array(f"{name}/embeddings", (vocabulary, width), init)
        return self._add(name, "embedding", [x], (*x.shape, width), {}, [table])

    def positions(self, x: Node, name: str, init: str = "normal:0.02") -> Node:
        """Append the sum with a trained array of the shape of `x`: a learned position embedding."""
        return self._add(name, "positions", [x], x.shape, {}, [Array(f"{name}/embeddings", x.shape, init)])

    def layer_norm(self, x: Node, name: str, epsilon: float = 1e-5) -> Node:
        """Append a layer normalization over each position's channels, with scale and offset; the variance is the biased
        one (arXiv:1607.06450)."""
        arrays = [Array(f"{name}/gamma", x.shape[-1:], "ones"), Array(f"{name}/beta", x.shape[-1:], "zeros")]
        return self._add(name, "layer_norm", [x], x.shape, {"epsilon": epsilon}, arrays)

    def gelu(self, x: Node) -> Node:
        """Append a GELU in its tanh approximation (arXiv:1606.08415, section 2)."""
        return self._add(None, "gelu", [x], x.shape)

    def attention(self, query: Node, key: Node, value: Node, name: str, heads: int) -> Node:
        """Append causal scaled dot-product attention over (positions, width), without its projections
        (arXiv:1706.03762, section 3.2). Channels are ordered by head, so that heads can be split over devices.

        The products of all pairs of positions count, also of masked ones, as in figures for model FLOPs utilization
        (PaLM, arXiv:2204.02311, appendix B); a kernel that skips masked pairs does about half of them.
        """
        if len({x.shape for x in (query, key, value)}) != 1 or len(query.shape) != 2 or query.shape[1] % heads:
            raise ValueError(f"{name}: {heads} heads over {query.shape}, {key.shape} and {value.shape}")
        macs = 2 * query.shape[0] * math.prod(query.shape)
        settings = {"heads": heads, "head_width": query.shape[1] // heads}
        return self._add(name, "attention", [query, key, value], query.shape, settings, macs=macs)

    def lstm(self, x: Node, name: str, units: int, init: str = "glorot_uniform") -> Node:
        """Append a long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates) over (positions,
        channels), which returns its hidden state at each position and starts with zeros.

        The gates are ordered input, forget, candidate, output, as in Keras and in PyTorch; there is one bias, as in
        Keras.
        """
        if len(x.shape) != 2:
            raise ValueError(f"{name}: {x.name} of shape {x.shape} is not a sequence of vectors")
        shapes = {"kernel": (x.shape[-1], 4 * units), "recurrent_kernel": (units, 4 * units)}
        arrays = [Array(f"{name}/{last}", shape, init) for last, shape in shapes.items()]
        macs = x.shape[0] * sum(map(math.prod, shapes.values()))
        arrays.append(Array(f"{name}/bias", (4 * units,), "zeros"))
        return self._add(name, "lstm", [x], (x.shape[0], units), {}, arrays, macs)

    def relu(self, x: Node) -> Node:
        """Append max(x, 0)."""
        return self._add(None, "relu", [x], x.shape)

    def dropout(self, x: Node, rate: float) -> Node:
        """Append a dropout, which in training sets a share of `rate` to zero and scales the rest up."""
        return self._add(None, "dropout", [x], x.shape, {"rate": rate})

    def lrn(self, x: Node, radius: int, bias: float, alpha: float, beta: float) -> Node:
        """Append a local response normalization:
        x / (bias + alpha * sum of squares over 2 radius + 1 channels) ** beta."""
        return self._add(None, "lrn", [x], x.shape, {"radius": radius, "bias": bias, "alpha": alpha, "beta": beta})

    def max_pool(self, x: Node, window: int, strides: int, padding: str | int = "valid") -> Node:
        """Append the maximum of each window; padding is never the maximum."""
        return self._pool("max_pool", x, window, strides, padding)

    def avg_pool(self, x: Node, window: int, strides: int, padding: str | int = "valid") -> Node:
        """Append the mean of each window; padding does not count."""
        return self._pool("avg_pool", x, window, strides, padding)

    def zero_pad(self, x: Node, width: int) -> Node:
        """Append a padding with `width` zeros on every side of the spatial axes."""
        pads = tuple((width, width) for _ in x.shape[:-1])
        spatial = tuple(size + 2 * width for size in x.shape[:-1])
        return self._add(None, "zero_pad", [x], (*spatial, x.shape[-1]), {"pads": pads})

    def pad_channels(self, x: Node, width: int) -> Node:
        """Append a padding with `width` channels of zeros before the channels and as many behind them."""
        return self._add(None, "pad_channels", [x], (*x.shape[:-1], x.shape[-1] + 2 * width), {"pads": (width, width)})

    def global_avg_pool(self, x: Node) -> Node:
        """Append the mean over all spatial axes: (..., channels) becomes (channels,)."""
        return self._add(None, "global_avg_pool", [x], x.shape[-1:])

    def flatten(self, x: Node) -> Node:
        """Append a reshape to one axis, on which the channels vary fastest."""
        return self._add(None, "flatten", [x], (math.prod(x.shape),))

    def add(self, *xs: Node) -> Node:
        """Append the elementwise sum of nodes of one shape."""
        if len({x.shape for x in xs}) != 1:
            raise ValueError(f"add of {', '.join(f'{x.name} {x.shape}' for x in xs)}")
        return self._add(None, "add", xs, xs[0].shape)

    def concat(self, *xs: Node) -> Node:
        """Append the concatenation of nodes along their channels."""
        if len({x.shape[:-1] for x in xs}) != 1:
            raise ValueError(f"concat of {', '.join(f'{x.name} {x.shape}' for x in xs)}")
        return self._add(None, "concat", xs, (*xs[0].shape[:-1], sum(x.shape[-1] for x in xs)))

    def _pool(self, op: str, x: Node, window: int, strides: int, padding: str | int) -> Node:
        windows, pads, spatial = self._place_windows(x, op, window, strides, padding)
        settings = {"window": windows, "strides": strides, "pads": pads}
        return self._add(None, op, [x], (*spatial, x.shape[-1]), settings)

    def _place_windows(
        self, x: Node, name: str, window: int | Sequence[int], strides: int, padding: str | int
    ) -> tuple[Shape, Pads, Shape]:
        """Return (window, zeros before and after, positions) along each of one or two spatial axes.

        Raises InputError for a window that is wider than the padded axis, ValueError for one with other axes.
        """
        spatial = x.shape[:-1]
        windows = (window,) * len(spatial) if isinstance(window, int) else tuple(window)
        if len(spatial) not in (1, 2) or len(windows) != len(spatial):
            raise ValueError(f"window {windows} over spatial axes {spatial}")
        pads, positions = [], []
        for size, width in zip(spatial, windows, strict=True):
            if padding == "same":
                total = max((-(-size // strides) - 1) * strides + width - size, 0)
                before, after = total // 2, total - total // 2
            elif isinstance(padding, int) or padding == "valid":
                before = after = 0 if padding == "valid" else int(padding)
            else:
                raise ValueError(f"padding {padding}: same, valid or a number")
            if size + before + after < width:
                smallest = "x".join(map(str, self.input.shape[:-1]))
                raise InputError(
                    f"inputs of {smallest} are too small for {self.name}: {name} slides a window of {width} over "
                    f"{size}; raise dataset.image_size or leave it out"
                )
            pads.append((before, after))
            positions.append((size + before + after - width) // strides + 1)
        return windows, tuple(pads), tuple(positions)

    def _add(
        self,
        name: str | None,
        op: str,
        inputs: Sequence[Node],
        shape: Shape,
        settings: dict[str, Any] | None = None,
        arrays: Sequence[Array] = (),
        macs: int = 0,
    ) -> Node:
        name = name or f"{op}_{len(self.nodes)}"
        if name in self._names:
            raise ValueError(f"{self.name} has two nodes named {name}")
        self._names.add(name)
        node = Node(name, op, tuple(x.name for x in inputs), shape, settings or {}, tuple(arrays), macs)
        self.nodes.append(node)
        return node
