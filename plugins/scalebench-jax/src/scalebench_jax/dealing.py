"""The distribution of a batch's samples over devices, and over the accumulated parts of a step."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class BatchSplit(NamedTuple):
    """Rows of a batch by (device, part, position), with equal shapes on all devices, as XLA requires."""

    rows: NDArray[np.int64]
    counts: NDArray[np.float32] | None  # 1 for a sample, 0 for padding; None: there is no padding


@functools.lru_cache(maxsize=16)
def split_batch(samples: int, devices: int, pieces: int) -> BatchSplit:
    """Give each device, and each of its parts, contiguous samples; sizes differ by at most one. Padding is the batch's
    first row with a count of 0."""
    device_rows = np.array_split(np.arange(samples), devices)  # the first devices get the remainder
    width = -(-len(device_rows[0]) // pieces)
    rows = np.zeros((devices, pieces, width), np.int64)
    counts = np.zeros(rows.shape, np.float32)
    for device, local_rows in enumerate(device_rows):
        for piece, part_rows in enumerate(np.array_split(local_rows, pieces)):
            rows[device, piece, : len(part_rows)] = part_rows
            counts[device, piece, : len(part_rows)] = 1
    return BatchSplit(rows, None if counts.all() else counts)
