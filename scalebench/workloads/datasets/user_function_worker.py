"""The process that calls a dataset function.

It is started as `python -m scalebench.workloads.datasets.user_function_worker FOLDER PIPE`. FOLDER contains the
request and receives the response. When the other end of PIPE closes, the parent has ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core import plugins
from scalebench.core.errors import InputError
from scalebench.core.plugins import PluginError
from scalebench.workloads import user_code
from scalebench.workloads.datasets import cache
from scalebench.workloads.datasets.images import LABEL_DTYPE
from scalebench.workloads.datasets.user_function import REQUEST_FILE, RESPONSE_FILE

BLOCK_BYTES = 2**24


class UnusableSamples(Exception):
    """The function's result cannot be trained on. The message continues its name: 'returns ...'."""


class WriteFailed(Exception):
    """The files could not be written, which is not the function's fault."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number  # errno


def main(folder: Path, pipe: int) -> None:
    threading.Thread(target=_exit_with_parent, args=(pipe,), daemon=True).start()
    request = json.loads((folder / REQUEST_FILE).read_text())
    (folder / RESPONSE_FILE).write_text(json.dumps(handle_request(request)))


def handle_request(request: dict[str, Any]) -> dict[str, Any]:
    """Call the function and write its samples into the request's folder. Returns the problem, or {} for success."""
    label = request["label"]
    try:
        function = _load(request)
        if not callable(function):
            return {"problem": f"{label} is no function"}
        write_samples(function(request["size"], request["seed"], **request["options"]), Path(request["folder"]))
    except PluginError as error:
        return {"problem": str(error), "log": error.log}
    except InputError as error:
        return {"input": str(error)}
    except UnusableSamples as error:
        return {"problem": f"{label} {error}"}
    except WriteFailed as error:
        return {"errno": error.number}
    except MemoryError:
        return {"problem": f"{label} ran out of memory: lower dataset.size", "log": traceback.format_exc()}
    except (Exception, SystemExit) as error:
        return {"problem": f"{label} fails: {plugins.said(error)}", "log": traceback.format_exc()}
    return {}


def _load(request: dict[str, Any]) -> Callable[..., Any]:
    if request["from_user"]:
        key, _, reference = request["label"].partition("=")
        return user_code.load_function(reference, key)
    function: Callable[..., Any] = plugins.load(request["reference"], request["label"])
    return function


def _exit_with_parent(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(1)


def write_samples(result: Any, folder: Path) -> None:
    """Write the function's (inputs, targets) as the two arrays of a cache folder, block by block.

    Inputs (n, ...) become float32, or stay uint8. Targets become float32 (n, ...), or (n, 1) for one quantity per
    sample, or int64 class numbers (n,) if they are integers. Raises UnusableSamples and WriteFailed.
    """
    inputs, targets = check_arrays(result)
    target_dtype = LABEL_DTYPE if _is_integer(targets) else "float32"
    if target_dtype == "float32" and targets.ndim == 1:
        targets = targets[:, None]
    try:
        _write(inputs, "inputs", folder / cache.INPUTS, "uint8" if inputs.dtype == np.uint8 else "float32")
        _write(targets, "targets", folder / cache.TARGETS, target_dtype)
    except OSError as error:
        raise WriteFailed(error.errno or 5) from error


def check_arrays(result: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs and targets. Raises UnusableSamples for other types, shapes and dtypes than can be trained on."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        kind = f"{len(result)} values" if isinstance(result, (tuple, list)) else _describe_type(result)
        raise UnusableSamples(f"returns {kind}: it should return (inputs, targets)")
    for name, array in zip(("inputs", "targets"), result, strict=True):
        if not isinstance(array, np.ndarray):
            raise UnusableSamples(f"returns {_describe_type(array)} as {name}: it should be a numpy array")
    inputs, targets = result
    shapes = f"inputs of shape {inputs.shape} and targets of shape {targets.shape}"
    if inputs.ndim < 2:
        raise UnusableSamples(
            f"returns inputs of shape {inputs.shape}: they should be (n, ...), samples along the first axis"
        )
    if targets.ndim < 1 or len(inputs) != len(targets):
        raise UnusableSamples(f"returns {shapes}: they should have one target per sample")
    if 0 in (*inputs.shape, *targets.shape):
        raise UnusableSamples(f"returns no samples: {shapes}")
    if inputs.dtype != np.uint8 and not np.issubdtype(inputs.dtype, np.floating):
        raise UnusableSamples(
            f"returns inputs of {inputs.dtype}: cast them to float32, or to uint8 if they are pictures"
        )
    if not _is_integer(targets) and not np.issubdtype(targets.dtype, np.floating):
        raise UnusableSamples(
            f"returns targets of {targets.dtype}: cast them to float32, or to int64 if they are classes"
        )
    if _is_integer(targets) and targets.ndim != 1:
        raise UnusableSamples(
            f"returns integer targets of shape {targets.shape}: class numbers should be ({len(targets)},), "
            "and quantities float32"
        )
    return inputs, targets


def _write(array: NDArray[Any], name: str, path: Path, dtype: str) -> None:
    out = cache.create_array(path, array.shape, dtype)
    rows = max(1, BLOCK_BYTES // max(1, array.nbytes // len(array)))
    for start in range(0, len(array), rows):
        with np.errstate(over="ignore"):
            block = np.asarray(array[start : start + rows]).astype(dtype)
        bad = np.argwhere(~np.isfinite(block) if block.dtype.kind == "f" else block < 0)
        if len(bad):
            position = int(bad[0, 0])
            problem = f"the negative class {block[position]}" if dtype == LABEL_DTYPE else "NaN or an infinite value"
            raise UnusableSamples(
                f"returns {problem} in {name}, first at sample {start + position}: correct or drop it"
            )
        out[start : start + rows] = block


def _is_integer(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iub"


def _describe_type(value: Any) -> str:
    if value is None:
        return "None"
    kind, package = type(value), type(value).__module__.partition(".")[0]
    return f"a {kind.__name__}" if package == "builtins" else f"a {package} {kind.__name__}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
