"""Operations of `workloads.network` as torch modules. They take (samples, channels, positions) or (samples,
channels, height, width): torch's order, however the numbers lie in memory; those of CHANNELS_LAST take the channels
behind the positions, and those of EITHER_ORDER do not ask."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from scalebench.adapters.torch import sequence_layers
from scalebench.workloads.network import Node, Pads

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
    if node.op in sequence_layers.MAKERS:
        return [sequence_layers.MAKERS[node.op](node)]
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
