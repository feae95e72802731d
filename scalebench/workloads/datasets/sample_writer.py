"""A user's samples, as arrays or a Dataset, written as the two arrays of a cache folder."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.json_files import write_json
from scalebench.workloads import records
from scalebench.workloads.datasets import cache
from scalebench.workloads.datasets.images import LABEL_DTYPE

BLOCK_BYTES = 2**24
READING_FILE = "reading.json"  # beside the samples
MAX_ARRAYS = 4  # in one line


class UnusableSamples(Exception):
    """Samples that cannot be trained on. The message continues the name of where they come from and a verb."""


@dataclass(frozen=True)
class Reading:
    """How samples were read while they were written to the cache."""

    samples_per_s: float | None = None  # of a Dataset, in one process; None: arrays, or not measured
    available: int | None = None  # how many there are; None: unknown
    unusable_targets: str | None = None  # the first number among them that only a loss of the user may take


def write_samples(
    result: Any, folder: Path, size: int, guard: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Reading:
    """Write at most `size` samples as the two arrays of a cache folder, block by block, and beside them how they were
    read, which is returned. `guard()` surrounds all that runs a user's code.

    Inputs of floats (n, ...) become float32, and bytes stay uint8. Targets become float32 (n, ...), or (n, 1) for one
    quantity per sample, or int64 class numbers if they are integers. Everything else is kept as records. Raises
    UnusableSamples, within `guard`, and OSError where the files cannot be written.
    """
    with guard():
        is_arrays = isinstance(result, (Mapping, tuple, list, str)) or hasattr(result, "__array__")
        is_table = not is_arrays and hasattr(result, "__getitem__")
        samples = DatasetSamples(result, size) if is_table else ArraySamples(*check_arrays(result), size)
    inputs = Column("inputs", folder / cache.INPUTS, samples.first[0], samples)
    targets = Column("targets", folder / cache.TARGETS, samples.first[1], samples)
    sample_bytes = sum(array.nbytes for part in samples.first for array in records.list_fields(part))
    rows = max(1, BLOCK_BYTES // max(1, sample_bytes))
    with guard():
        for start in range(0, samples.count, rows):
            block = samples.block(start, min(start + rows, samples.count))
            inputs.write(start, block[0])
            targets.write(start, block[1])
    # Slices of arrays say nothing: a function has read them, or the writing reads what is mapped.
    rate = samples.count / samples.read_s if samples.read_s else None
    reading = Reading(rate, samples.available, targets.unusable)
    write_json(folder / READING_FILE, reading)
    return reading


class ArraySamples:
    """Samples of arrays, which may be memory maps."""

    as_is = False  # one array of floats or bytes is converted as the samples of a data set are
    read_s = 0.0

    def __init__(self, inputs: Any, targets: Any, size: int) -> None:
        self._parts = inputs, targets
        self.available: int | None = len(records.list_fields(inputs)[0])
        self.count = min(self.available, size)
        self.first = self.block(0, 1)

    def block(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return the inputs and targets of these samples."""
        inputs, targets = (records.map_fields(lambda array: array[start:stop], part) for part in self._parts)
        return inputs, targets


class DatasetSamples:
    """Samples of torch's Dataset, which are read one by one, or of its IterableDataset, each time in its own order:
    (input, target) pairs, or else inputs that have their targets among them."""

    as_is = True

    def __init__(self, dataset: Any, size: int) -> None:
        self.available = None
        with contextlib.suppress(TypeError, NotImplementedError, OverflowError):  # unknown, or more than Python counts
            self.available = len(dataset)
        self.count = size if self.available is None else min(self.available, size)
        is_stream = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)  # __getitem__ raises
        if is_stream:  # its length may be wrong, and is counted
            self.count = sum(1 for _ in itertools.islice(dataset, self.count))
        if not self.count:
            raise UnusableSamples("a Dataset without samples")
        self.read_s = 0.0
        self._items = iter(dataset) if is_stream else (dataset[row] for row in range(self.count))
        first = self._read(0, 1)
        self._items = itertools.chain(first, self._items)
        self._has_pairs = isinstance(first[0], (tuple, list)) and len(first[0]) == 2
        self.first = self._split(first, 0)

    def block(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return the inputs and targets of these samples, which follow those of the last call."""
        return self._split(self._read(start, stop), start)

    def _read(self, start: int, stop: int) -> list[Any]:
        begin_s = time.perf_counter()
        items = list(itertools.islice(self._items, stop - start))
        self.read_s += time.perf_counter() - begin_s
        if len(items) < stop - start:
            raise UnusableSamples(
                f"an IterableDataset that gives {self.count} samples, and {start + len(items)} the next time"
            )
        return items

    def _split(self, items: list[Any], start: int) -> tuple[Any, Any]:
        if not self._has_pairs:
            return _stack(items, start), None
        inputs, targets = zip(*items, strict=True)
        return _stack(inputs, start), _stack(targets, start)


def _stack(values: Any, start: int) -> Any:
    """Stack one value of each sample, arrays or several of them; they should all have the first one's shapes."""
    rows = [records.name_fields(value) for value in values]
    fields: dict[str, NDArray[Any]] = {}
    for name in rows[0]:
        shape, parts = np.asarray(rows[0][name]).shape, []
        for number, row in enumerate(rows, start):
            part = np.asarray(row[name]) if name in row else None
            if part is None or part.shape != shape:
                has = "no" if part is None else f"{part.shape} of"
                raise UnusableSamples(
                    f"a Dataset whose sample {number} has {has} '{name}', and sample {start} {shape}: pad or cut them "
                    "to one shape"
                )
            parts.append(part)
        fields[name] = _check_kind(np.stack(parts), "samples", name)
    if isinstance(values[0], Mapping):
        return fields
    return tuple(fields.values()) if isinstance(values[0], (tuple, list)) else fields["f0"]


def check_arrays(result: Any) -> tuple[Any, Any]:
    """Return inputs and targets, each an array or several (a dict or tuple); targets are None where a dict holds all.

    Raises UnusableSamples for other types and shapes than can be trained on.
    """
    if isinstance(result, Mapping):
        result = result, None
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        kind = f"{len(result)} values" if isinstance(result, (tuple, list)) else _describe_type(result)
        raise UnusableSamples(f"{kind}: it should return (inputs, targets), a dict of arrays or a Dataset")
    parts: list[Any] = []
    arrays: dict[str, NDArray[Any]] = {}  # by what messages call them
    for name, value in zip(("inputs", "targets"), result, strict=True):
        if value is None and name == "targets" and isinstance(result[0], Mapping):
            parts.append(None)
            continue
        fields = records.name_fields(value)
        for field, array in fields.items():
            if not hasattr(array, "__array__"):
                raise UnusableSamples(f"{_describe_type(array)} as {name}: it should be a numpy array")
            fields[field] = _check_kind(np.asanyarray(array), name, field)
        is_one = not isinstance(value, (Mapping, tuple, list))
        arrays |= {name: fields["f0"]} if is_one else {f"'{field}'": array for field, array in fields.items()}
        parts.append(fields if isinstance(value, Mapping) else fields["f0"] if is_one else tuple(fields.values()))
    inputs = parts[0]
    if isinstance(inputs, np.ndarray) and inputs.ndim < 2 and inputs.dtype.kind == "f":
        raise UnusableSamples(f"inputs of shape {inputs.shape}: they should be (n, ...), samples along the first axis")
    described = [f"{name} of shape {array.shape}" for name, array in arrays.items()]
    others = len(described) - MAX_ARRAYS
    shapes = " and ".join([*described[:MAX_ARRAYS], *([f"{others} others"] if others > 0 else [])])
    lengths = {array.shape[:1] for array in arrays.values()}
    if len(lengths) > 1 or () in lengths:
        raise UnusableSamples(
            f"{shapes}: they should have the same number of samples; samples of different sizes need a dataset.loader"
        )
    if any(0 in array.shape for array in arrays.values()):
        raise UnusableSamples(f"no samples: {shapes}")
    return inputs, parts[1]


def _check_kind(array: NDArray[Any], name: str, field: str) -> NDArray[Any]:
    if array.dtype.kind not in records.KINDS:
        which = f"{name} of {array.dtype}" if field == "f0" else f"'{field}' of {array.dtype} in {name}"
        raise UnusableSamples(f"{which}: cast it to float32, or to integers")
    return array


class Column:
    """The file of all inputs or of all targets, while it is written. `unusable` says which number, if any, a loss of
    scalebench cannot take; one of the user's may mask it, so only inputs are refused for it."""

    def __init__(self, name: str, path: Path, first: Any, samples: ArraySamples | DatasetSamples) -> None:
        """Create the file in the type that the first sample needs: bytes or float32 for one array of inputs that is no
        Dataset's, class numbers or float32 for one array of targets, else records."""
        is_float = isinstance(first, np.ndarray) and first.dtype.kind == "f"
        if first is None:
            dtype = records.NO_TARGETS
        elif isinstance(first, np.ndarray) and name == "targets":
            dtype = np.dtype("float32" if is_float else LABEL_DTYPE)
        elif isinstance(first, np.ndarray) and not samples.as_is and (is_float or first.dtype == np.uint8):
            dtype = np.dtype("float32" if is_float else "uint8")
        else:
            dtype = records.record_type(records.name_fields(first))
        self._name, self._dtype = name, dtype
        self.unusable: str | None = None
        shape = () if records.is_record(dtype) else first.shape[1:]
        if name == "targets" and dtype == np.float32 and shape == ():
            shape = (1,)  # one quantity is a vector of one
        self._out = cache.create_array(path, (samples.count, *shape), dtype)

    def write(self, start: int, block: Any) -> None:
        """Write the samples from `start` on. Raises UnusableSamples for inputs that cannot be trained on."""
        if self._dtype == records.NO_TARGETS:
            return
        is_record = records.is_record(self._dtype)
        for name, part in records.name_fields(block).items():
            rows = (self._out[name] if is_record else self._out)[start : start + len(part)]
            values = self._convert(part, rows.dtype, self._name if name == "f0" else f"'{name}'", start)
            rows[:] = values.reshape(rows.shape)

    def _convert(self, block: NDArray[Any], dtype: np.dtype[Any], name: str, start: int) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            values: NDArray[Any] = np.asarray(block).astype(dtype)
        has_classes = self._dtype == np.dtype(LABEL_DTYPE)
        if dtype.kind == "f":
            bad = np.argwhere(~np.isfinite(values))
        else:
            bad = np.argwhere(values < 0) if has_classes else np.empty((0, 1), int)
        if len(bad) and self.unusable is None:
            problem = f"the negative class {values[tuple(bad[0])]}" if has_classes else "NaN or an infinite value"
            self.unusable = f"{problem} in {name}, first at sample {start + int(bad[0, 0])}"
        if len(bad) and self._name == "inputs":
            raise UnusableSamples(f"{self.unusable}: correct or drop it")
        return values


def _describe_type(value: Any) -> str:
    if value is None:
        return "None"
    kind, package = type(value), type(value).__module__.partition(".")[0]
    return f"a {kind.__name__}" if package == "builtins" else f"a {package} {kind.__name__}"
