"""The dataset `materials`: generated stress-strain curves of soils, and the two soil parameters behind each of them.

The soil model is the modified hyperbolic model, tau = G0 gamma / (1 + (gamma / gamma_ref)^a), with
tau and G0 in MPa (a form of Hardin and Drnevich 1972; the exponent as in Darendeli 2001). The curves
are scalebench's own: their shape and number match the thesis, whose data is not public.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from scalebench.core.spec import Config
from scalebench.workloads.datasets.cache import ChunkedDataset

Array32 = NDArray[np.float32]

CHUNK = 4096  # curves per random stream; part of the dataset's definition
VERSION = 1  # raise it when a seed gives other curves than before
POINTS = 200  # length of every curve after padding
INPUT_SHAPE = (POINTS, 3)
TARGET_SHAPE = (2,)

REFERENCE_STRAIN = 1e-3
G0_RANGE_MPA = (20.0, 200.0)
EXPONENT_RANGE = (0.6, 1.2)
LOG10_MAX_STRAIN_RANGE = (-2.5, -2.0)
MIN_POINTS = 100
NOISE_SHARE = 0.01
STRAIN_UNIT = 1e-2
STRESS_UNIT_MPA = 0.2


def define_materials(config: Config) -> ChunkedDataset:
    """Return the dataset of the first `dataset.size` curves of `dataset.seed`, 2,408 bytes each in the cache."""
    make = partial(make_curves, config.dataset.seed)
    return ChunkedDataset(config.dataset, VERSION, INPUT_SHAPE, TARGET_SHAPE, CHUNK, make)


def make_curves(seed: int, start: int, count: int) -> tuple[Array32, Array32]:
    """Make a chunk of the endless series that belongs to `seed`, or the beginning of one: curves (count, 200, 3) and
    labels (count, 2).

    The columns of a curve are strain / 1e-2, stress / 0.2 MPa, and a flag that is 1 on the curve's 100 to 200 points;
    the padding behind them is 0 in all columns. Labels are G0 and a, each mapped from its range to [0, 1]. The whole
    chunk is drawn, so that its random stream is the same for every count.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, start // CHUNK]))
    labels = rng.random((CHUNK, 2), np.float32)
    g0_mpa = _map_to_range(labels[:, :1], G0_RANGE_MPA)
    exponent = _map_to_range(labels[:, 1:], EXPONENT_RANGE)
    max_strain = 10.0 ** rng.uniform(*LOG10_MAX_STRAIN_RANGE, (CHUNK, 1))
    points = rng.integers(MIN_POINTS, POINTS, (CHUNK, 1), endpoint=True)
    noise = rng.standard_normal((CHUNK, POINTS), np.float32)
    step = (max_strain / (points - 1)).astype(np.float32)

    flag = (np.arange(POINTS) < points).astype(np.float32)
    strain = step * np.arange(POINTS, dtype=np.float32) * flag
    # (strain / reference)^a is computed as exp(a (log step + log index)): one exp per point, and no pow.
    log_index = np.log(np.arange(1, POINTS), dtype=np.float32)
    power = np.zeros((CHUNK, POINTS), np.float32)
    np.add(np.log(step / np.float32(REFERENCE_STRAIN)), log_index, out=power[:, 1:])
    power[:, 1:] *= exponent
    np.exp(power[:, 1:], out=power[:, 1:])

    curves = np.empty((CHUNK, *INPUT_SHAPE), np.float32)
    np.multiply(strain, np.float32(1 / STRAIN_UNIT), out=curves[:, :, 0])
    noise *= np.float32(NOISE_SHARE)
    noise += np.float32(1)
    power += np.float32(1)
    stress_mpa = g0_mpa * strain / power * noise
    np.multiply(stress_mpa, np.float32(1 / STRESS_UNIT_MPA), out=curves[:, :, 1])
    curves[:, :, 2] = flag
    return curves[:count], labels[:count]


def _map_to_range(share: Array32, limits: tuple[float, float]) -> Array32:
    """Map values in [0, 1] linearly to `limits`."""
    low, high = limits
    return np.float32(low) + share * np.float32(high - low)
