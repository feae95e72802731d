"""Noise of known shape: factors that durations are multiplied by, update after update."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter

from scalebench.stats import FloatArray

Shape = tuple[int, ...]  # the last axis is time
Noise = Callable[[np.random.Generator, Shape], FloatArray]
SPIKE, SPIKES = 5.0, 0.01  # how much longer, and how often


def white(width: float = 0.05) -> Noise:
    """Independent and normal; `width` is the standard deviation, here and below."""
    return lambda rng, shape: 1 + width * rng.standard_normal(shape)


def lognormal(width: float = 0.15) -> Noise:
    """Skewed, as times are; of median less than 1 and mean 1."""
    return lambda rng, shape: np.exp(width * rng.standard_normal(shape) - width**2 / 2)


def spikes(width: float = 0.01) -> Noise:
    """The machine interrupts one update in a hundred, which then takes five times as long."""

    def noise(rng: np.random.Generator, shape: Shape) -> FloatArray:
        hit = np.where(rng.random(shape) < SPIKES, SPIKE, 1.0)
        found: FloatArray = hit * (1 + width * rng.standard_normal(shape))
        return found

    return noise


def autoregressive(correlation: float, width: float = 0.05) -> Noise:
    """AR(1): neighbours resemble each other by so much, from the first on."""

    def noise(rng: np.random.Generator, shape: Shape) -> FloatArray:
        steps = rng.standard_normal(shape)
        steps[..., 1:] *= np.sqrt(1 - correlation**2)
        found: FloatArray = 1 + width * lfilter([1.0], [1.0, -correlation], steps, axis=-1)
        return found

    return noise
