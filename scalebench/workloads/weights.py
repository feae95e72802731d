"""Initial weights, drawn in numpy, so that every framework starts from the same values.

The neutral layout is that of Keras: dense kernels (in, out), one-dimensional convolutions (width, in, out),
two-dimensional ones (height, width, in, out). Adapters of other frameworks transpose.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

Layer = tuple[str, tuple[int, ...], str]  # name, shape, initializer


class DrawnArrays(Mapping[str, NDArray[np.float32]]):
    """Arrays by name, each of which is drawn where it is read: all of them would be a second copy of the model."""

    def __init__(self, layers: list[Layer], seed: int) -> None:
        self._layers, self._seed = {layer[0]: layer for layer in layers}, seed
        if len(self._layers) < len(layers):
            raise ValueError("two layers have the same name")

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return _draw(*self._layers[name], self._seed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def initial_weights(layers: Iterable[Layer], seed: int) -> DrawnArrays:
    """Return float32 arrays by name; each depends on `seed` and its own name, not on its position in `layers`.

    The initializer is one of zeros, ones, normal:STANDARD_DEVIATION (mean 0), uniform:LIMIT (between -LIMIT and LIMIT),
    he_uniform (He et al. 2015, limit sqrt(6 / fan_in)) and glorot_uniform (Glorot and Bengio 2010, limit
    sqrt(6 / (fan_in + fan_out))). It raises ValueError for any other initializer, for a name that occurs twice, and for
    one of the uniform initializers with fewer than two axes, which have no fan-in.
    """
    return DrawnArrays(list(layers), seed)


def _draw(name: str, shape: tuple[int, ...], init: str, seed: int) -> NDArray[np.float32]:
    if init in ("zeros", "ones"):
        return np.full(shape, float(init == "ones"), np.float32)
    kind, _, parameter = init.partition(":")
    # By crc32, since Python's hash of a string differs from process to process.
    generator = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))
    if kind == "normal":
        normal = generator.standard_normal(shape, dtype=np.float32)
        normal *= np.float32(parameter)
        return normal
    if len(shape) < 2:
        raise ValueError(f"{name} of shape {shape} has no fan-in: use zeros or ones, not {init}")
    area = math.prod(shape[:-2])  # axes before the last two are the convolution window
    fan_in, fan_out = area * shape[-2], area * shape[-1]
    if kind == "uniform":
        limit = float(parameter)
    elif init == "he_uniform":
        limit = math.sqrt(6 / fan_in)
    elif init == "glorot_uniform":
        limit = math.sqrt(6 / (fan_in + fan_out))
    else:
        raise ValueError(
            f"{name} has unknown init {init}: zeros, ones, normal:0.02, uniform:0.1, he_uniform or glorot_uniform"
        )
    # In float32 and in place, since the largest kernel of VGG16 takes 411 MB.
    array = generator.random(shape, dtype=np.float32)
    array -= np.float32(0.5)
    array *= np.float32(2 * limit)
    return array
