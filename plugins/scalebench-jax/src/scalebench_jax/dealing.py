"""Which sample of a batch goes to which device, and there to which piece of its update."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Deal(NamedTuple):
    """Rows of a batch by (device, piece, place), all devices' shapes alike, as XLA wants them."""

    rows: NDArray[np.int64]
    counts: NDArray[np.float32] | None  # 1 for a row, 0 where nothing was left to put there; None: all are rows


@functools.lru_cache(maxsize=16)
def deal(samples: int, devices: int, pieces: int) -> Deal:
    """Each device gets a contiguous part, and each of its pieces a contiguous part of that; parts differ by at most one
    sample. Places that stay empty have the batch's first row, which does not count."""
    of_devices = np.array_split(np.arange(samples), devices)  # the first ones take what does not divide
    width = -(-len(of_devices[0]) // pieces)
    rows = np.zeros((devices, pieces, width), np.int64)
    counts = np.zeros(rows.shape, np.float32)
    for device, of_device in enumerate(of_devices):
        for piece, of_piece in enumerate(np.array_split(of_device, pieces)):
            rows[device, piece, : len(of_piece)] = of_piece
            counts[device, piece, : len(of_piece)] = 1
    return Deal(rows, None if counts.all() else counts)
