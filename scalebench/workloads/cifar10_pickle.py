"""A batch file of CIFAR-10's Python archive, read without running what is in it. Layer 1.

The files are pickles, and a pickle is a program that may call whatever it can name. This reader knows the three
names that the files hold, and puts inert stand-ins in their place; any other name ends it.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _DType:
    """What stands for numpy.dtype: its arguments are noted, its state is passed over."""

    def __init__(self, *arguments: object) -> None:
        self.code = arguments[0] if arguments else None

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """What stands for an array of numpy: it notes the state that it is given."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
}


class _Reader(pickle._Unpickler):  # in Python: the one in C sets aside as much memory as a garbled index says
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise ValueError(f"it would call {module}.{name}")
        return STAND_INS[module, name]


def parse(content: bytes, records: int, pixels: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (records, pixels) and labels (records,), both as bytes, of one batch file.

    Raises ValueError for content of another layout, and whatever pickle raises for what is no pickle.
    """
    batch = _Reader(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise ValueError("a batch without data and labels")
    return _pixels(batch[b"data"], (records, pixels)), _labels(batch[b"labels"], records)


def _pixels(array: object, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """The bytes that an array was pickled with: state (version, shape, dtype, in Fortran order, bytes)."""
    state = array.state if isinstance(array, _Array) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise ValueError("data that are no array")
    _, told, dtype, fortran, values = state
    if told != shape or not isinstance(dtype, _DType) or dtype.code not in (b"u1", "u1"):
        raise ValueError(f"data of shape {told}, expected bytes of {shape}")
    if not isinstance(values, bytes) or len(values) != shape[0] * shape[1]:
        raise ValueError("data that are cut short")
    return np.frombuffer(values, np.uint8).reshape(shape, order="F" if fortran else "C")


def _labels(labels: object, records: int) -> NDArray[np.uint8]:
    if not isinstance(labels, list) or len(labels) != records:
        raise ValueError(f"labels that are no list of {records}")
    if not all(type(label) is int and 0 <= label <= 255 for label in labels):
        raise ValueError("labels that are no class numbers")
    return np.array(labels, np.uint8)
