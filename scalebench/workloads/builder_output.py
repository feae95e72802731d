"""What a function gave for samples: looked through, and copied block by block into the files of the cache. Layer 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.workloads import cache, images

BLOCK_BYTES = 2**24


class Unfit(Exception):
    """What is wrong with it, behind the name of the function: 'gives ...'."""


class NotWritten(Exception):
    """The files could not be written; the function has no part in it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number  # errno


def write(made: Any, folder: Path) -> None:
    """Inputs (n, ...) as float32 or uint8; targets as float32 (n, ...) where they are quantities, lone ones as (n, 1),
    and as class numbers (n,) where they are whole. Unfit for whatever cannot be trained on."""
    inputs, targets = arrays(made)
    kind = images.LABEL_DTYPE if _whole(targets) else "float32"
    if kind == "float32" and targets.ndim == 1:
        targets = targets[:, None]
    try:
        _copy(inputs, "inputs", folder / cache.INPUTS, "uint8" if inputs.dtype == np.uint8 else "float32")
        _copy(targets, "targets", folder / cache.TARGETS, kind)
    except OSError as error:
        raise NotWritten(error.errno or 5) from error


def arrays(made: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs and targets, of shapes and kinds that can be trained on. Unfit for others."""
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        told = f"{len(made)} things" if isinstance(made, (tuple, list)) else _a(made)
        raise Unfit(f"gives {told}: it should return (inputs, targets)")
    for name, array in zip(("inputs", "targets"), made, strict=True):
        if not isinstance(array, np.ndarray):
            raise Unfit(f"gives {_a(array)} as {name}: it should be a numpy array")
    inputs, targets = made
    if inputs.ndim < 2:
        raise Unfit(f"gives inputs of shape {inputs.shape}: they should be (n, ...), samples along the first axis")
    if targets.ndim < 1 or len(inputs) != len(targets):
        raise Unfit(
            f"gives inputs of shape {inputs.shape} and targets of shape {targets.shape}: they should be as many"
        )
    if 0 in (*inputs.shape, *targets.shape):
        raise Unfit(f"gives no samples: inputs of shape {inputs.shape}, targets of shape {targets.shape}")
    if inputs.dtype != np.uint8 and not np.issubdtype(inputs.dtype, np.floating):
        raise Unfit(f"gives inputs of {inputs.dtype}: cast them to float32, or to uint8 where they are pictures")
    if not _whole(targets) and not np.issubdtype(targets.dtype, np.floating):
        raise Unfit(f"gives targets of {targets.dtype}: cast them to float32, or to int64 where they are classes")
    if _whole(targets) and targets.ndim != 1:
        raise Unfit(
            f"gives whole numbers as targets, of shape {targets.shape}: class numbers should be ({len(targets)},), "
            "and quantities float32"
        )
    return inputs, targets


def _copy(array: NDArray[Any], name: str, path: Path, dtype: str) -> None:
    out = cache.create(path, array.shape, dtype)
    rows = max(1, BLOCK_BYTES // max(1, array.nbytes // len(array)))
    for start in range(0, len(array), rows):
        with np.errstate(over="ignore"):
            block = np.asarray(array[start : start + rows]).astype(dtype)
        bad = _bad(block)
        if len(bad):
            number = start + int(bad[0, 0])
            why = f"class {block[bad[0, 0]]}, below 0," if dtype == images.LABEL_DTYPE else "NaN or an infinite value"
            raise Unfit(f"gives {why} in {name}, first at sample {number}: mend or drop those")
        out[start : start + rows] = block


def _bad(block: NDArray[Any]) -> NDArray[Any]:
    """Where values are that nothing can be learnt from."""
    if block.dtype.kind == "f":
        return np.argwhere(~np.isfinite(block))
    return np.argwhere(block < 0)


def _whole(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iub"


def _a(thing: Any) -> str:
    if thing is None:
        return "None"
    kind, package = type(thing), type(thing).__module__.partition(".")[0]
    return f"a {kind.__name__}" if package == "builtins" else f"a {package} {kind.__name__}"
