"""The weights of a PyTorch network for the same network in Keras: by their order and kind. Layer 3.

Both frameworks keep weights in the order in which layers were made, a kernel before its bias. What Keras calls a kernel
has its axes the other way round; everything else goes over as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# A kernel's number of axes -> torch's axes in Keras' order.
AXES = {2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")


class CannotMap(Exception):
    """The weights do not go over one by one; the message says at which the two part."""


def mapped(given: Mapping[str, Any], wanted: Sequence[tuple[str, tuple[int, ...]]]) -> list[Any]:
    """Arrays for the trainable variables `wanted` (name, shape) of Keras, from PyTorch's by name, in order."""
    arrays = [(name, array) for name, array in given.items() if not name.endswith(STATISTICS)]
    if len(arrays) != len(wanted):
        raise CannotMap(f"PyTorch's network has {len(arrays)} trained arrays and Keras' has {len(wanted)}")
    found = []
    for number, ((theirs, array), (ours, shape)) in enumerate(zip(arrays, wanted, strict=True), start=1):
        turned = array.transpose(AXES[array.ndim]) if _is_kernel(ours) and array.ndim in AXES else array
        if turned.shape != shape:
            raise CannotMap(
                f"weights go over by their order, and number {number} is {theirs} {array.shape} in PyTorch, which "
                f"would be {turned.shape} in Keras, where {ours} is {shape}; make the layers in the same order"
            )
        found.append(np.ascontiguousarray(turned))
    return found


def _is_kernel(name: str) -> bool:
    return name.rpartition("/")[2].partition(":")[0].endswith("kernel")
