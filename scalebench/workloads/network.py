"""A network as data: its nodes with their shapes, the arrays they hold, and what one sample costs. Layer 1.

No framework here: the adapters build the same network from it, in PyTorch and in Keras. Shapes are of one
sample, channels last: (positions, channels) or (height, width, channels); kernels end in (in, out).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scalebench.spec import InputError
from scalebench.workloads.windows import Pads as Pads
from scalebench.workloads.windows import Shape, TooSmall, slide


@dataclass(frozen=True)
class Array:
    """One array of a network, in neutral layout. Moving statistics are the ones that are not trained."""

    name: str  # 'conv1/kernel'
    shape: Shape
    init: str
    trainable: bool = True


@dataclass(frozen=True)
class Node:
    """One operation, on the outputs of other nodes."""

    name: str
    op: str
    inputs: tuple[str, ...]
    shape: Shape  # of its output
    settings: dict[str, Any] = field(default_factory=dict)
    arrays: tuple[Array, ...] = ()
    macs: int = 0  # multiply-adds of one forward pass over one sample


class Network:
    """Built node by node; each method adds one after the given ones and returns it. The last one is the output.

    `padding` is "same" (as TensorFlow pads: an odd one goes behind), "valid", or a number of zeros on every
    side. Raises InputError where the image is too small for a window, ValueError for a programmer's mistake.
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
        """How many nodes of this operation there are so far; names are numbered with it."""
        return sum(node.op == op for node in self.nodes)

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return sum(math.prod(array.shape) for array in self.arrays if array.trainable)

    @property
    def forward_flops(self) -> int:
        """Floating point operations of one forward pass over one sample, 2 per multiply-add.

        Only convolutions, dense layers and the products of attention count: no biases, normalisation, activations,
        pooling, look-ups or loss.
        Padding of a convolution counts as if it were data, as torchvision and most published counts have it.
        """
        return 2 * sum(node.macs for node in self.nodes)

    @property
    def training_flops(self) -> int:
        """Of training on one sample: 3 x forward.

        Backward counts twice forward, since it forms the gradients of inputs and of weights; the convention of
        "AI and Compute" (Amodei and Hernandez, OpenAI 2018, appendix) and of Kaplan et al. 2020 (section 2.1).
        """
        return 3 * self.forward_flops

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
        """A convolution over one or two spatial axes; `kernel` is one width for all axes, or one for each."""
        window, pads, spatial = self._slide(x, name, kernel, strides, padding)
        shape = (*window, x.shape[-1], filters)
        arrays = [Array(f"{name}/kernel", shape, init)]
        arrays += [Array(f"{name}/bias", (filters,), "zeros")] if bias else []
        settings = {"strides": strides, "pads": pads}
        return self._add(
            name, "conv", [x], (*spatial, filters), settings, arrays, math.prod(spatial) * math.prod(shape)
        )

    def dense(self, x: Node, name: str, units: int, init: str = "glorot_uniform", bias: bool = True) -> Node:
        """A fully connected layer; over (positions, channels) the same one at each position."""
        if len(x.shape) > 2:
            raise ValueError(f"{name}: flatten {x.name} of shape {x.shape} first")
        shape = (x.shape[-1], units)
        arrays = [Array(f"{name}/kernel", shape, init)]
        arrays += [Array(f"{name}/bias", (units,), "zeros")] if bias else []
        return self._add(name, "dense", [x], (*x.shape[:-1], units), {}, arrays, math.prod(x.shape) * units)

    def batch_norm(self, x: Node, name: str, epsilon: float = 1e-3, momentum: float = 0.99, scale: bool = True) -> Node:
        """Batch normalisation with an offset; `momentum` is what the moving statistics keep at each update.

        The moving variance is the unbiased one, as PyTorch and TensorFlow's fused kernel have it.
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
        """(positions,) of numbers 0 .. vocabulary - 1 -> (positions, width): the row of a table for each of them."""
        if x is not self.input or len(x.shape) != 1:
            raise ValueError(f"{name}: {x.name} of shape {x.shape} is no input of numbers to look up")
        table = Array(f"{name}/embeddings", (vocabulary, width), init)
        return self._add(name, "embedding", [x], (*x.shape, width), {}, [table])

    def positions(self, x: Node, name: str, init: str = "normal:0.02") -> Node:
        """Adds an array of the shape of `x`, which is learnt: what each position is."""
        return self._add(name, "positions", [x], x.shape, {}, [Array(f"{name}/embeddings", x.shape, init)])

    def layer_norm(self, x: Node, name: str, epsilon: float = 1e-5) -> Node:
        """Each position's channels to mean 0 and variance 1 (biased), then scaled and offset: arXiv:1607.06450."""
        arrays = [Array(f"{name}/gamma", x.shape[-1:], "ones"), Array(f"{name}/beta", x.shape[-1:], "zeros")]
        return self._add(name, "layer_norm", [x], x.shape, {"epsilon": epsilon}, arrays)

    def gelu(self, x: Node) -> Node:
        """x times the share of a normal distribution below x, in the tanh form of arXiv:1606.08415 (section 2)."""
        return self._add(None, "gelu", [x], x.shape)

    def attention(self, query: Node, key: Node, value: Node, name: str, heads: int) -> Node:
        """Causal scaled dot-product attention over (positions, width): arXiv:1706.03762, section 3.2, the projections
        aside. Channels are head by head, so that a plan may deal the heads out to devices.

        Counts the products of all pairs of positions, also of those that are masked, as the figures for model FLOPs
        utilisation do (PaLM, arXiv:2204.02311, appendix B); a kernel that leaves them out does about half.
        """
        if len({x.shape for x in (query, key, value)}) != 1 or len(query.shape) != 2 or query.shape[1] % heads:
            raise ValueError(f"{name}: {heads} heads over {query.shape}, {key.shape} and {value.shape}")
        macs = 2 * query.shape[0] * math.prod(query.shape)
        settings = {"heads": heads, "head_width": query.shape[1] // heads}
        return self._add(name, "attention", [query, key, value], query.shape, settings, macs=macs)

    def relu(self, x: Node) -> Node:
        return self._add(None, "relu", [x], x.shape)

    def dropout(self, x: Node, rate: float) -> Node:
        """Sets a share of `rate` to zero in training, and scales the rest up."""
        return self._add(None, "dropout", [x], x.shape, {"rate": rate})

    def lrn(self, x: Node, radius: int, bias: float, alpha: float, beta: float) -> Node:
        """Local response normalisation: x / (bias + alpha * sum of squares over 2 radius + 1 channels) ** beta."""
        return self._add(None, "lrn", [x], x.shape, {"radius": radius, "bias": bias, "alpha": alpha, "beta": beta})

    def max_pool(self, x: Node, window: int, strides: int, padding: str | int = "valid") -> Node:
        """The largest value of each window; padding never wins."""
        return self._pool("max_pool", x, window, strides, padding)

    def avg_pool(self, x: Node, window: int, strides: int, padding: str | int = "valid") -> Node:
        """The mean of each window; padding does not count."""
        return self._pool("avg_pool", x, window, strides, padding)

    def zero_pad(self, x: Node, width: int) -> Node:
        """`width` zeros on every side."""
        pads = tuple((width, width) for _ in x.shape[:-1])
        spatial = tuple(size + 2 * width for size in x.shape[:-1])
        return self._add(None, "zero_pad", [x], (*spatial, x.shape[-1]), {"pads": pads})

    def pad_channels(self, x: Node, width: int) -> Node:
        """`width` channels of zeros before the channels, and as many behind them."""
        return self._add(None, "pad_channels", [x], (*x.shape[:-1], x.shape[-1] + 2 * width), {"pads": (width, width)})

    def global_avg_pool(self, x: Node) -> Node:
        """(..., channels) -> (channels,)."""
        return self._add(None, "global_avg_pool", [x], x.shape[-1:])

    def flatten(self, x: Node) -> Node:
        """All axes into one, the channels varying fastest."""
        return self._add(None, "flatten", [x], (math.prod(x.shape),))

    def add(self, *xs: Node) -> Node:
        if len({x.shape for x in xs}) != 1:
            raise ValueError(f"add of {', '.join(f'{x.name} {x.shape}' for x in xs)}")
        return self._add(None, "add", xs, xs[0].shape)

    def concat(self, *xs: Node) -> Node:
        """Along the channels."""
        if len({x.shape[:-1] for x in xs}) != 1:
            raise ValueError(f"concat of {', '.join(f'{x.name} {x.shape}' for x in xs)}")
        return self._add(None, "concat", xs, (*xs[0].shape[:-1], sum(x.shape[-1] for x in xs)))

    def _pool(self, op: str, x: Node, window: int, strides: int, padding: str | int) -> Node:
        windows, pads, spatial = self._slide(x, op, window, strides, padding)
        settings = {"window": windows, "strides": strides, "pads": pads}
        return self._add(None, op, [x], (*spatial, x.shape[-1]), settings)

    def _slide(
        self, x: Node, name: str, window: int | Sequence[int], strides: int, padding: str | int
    ) -> tuple[Shape, Pads, Shape]:
        """(window, zeros before and after, positions) along each spatial axis."""
        try:
            return slide(x.shape[:-1], window, strides, padding)
        except TooSmall as why:
            smallest = "x".join(map(str, self.input.shape[:-1]))
            raise InputError(
                f"inputs of {smallest} are too small for {self.name}: {name} slides a window of {why.width} over "
                f"{why.size}; raise dataset.image_size or leave it out"
            ) from None

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
