"""The process that calls a dataset function.

It is started as `python -m scalebench.workloads.datasets.user_function_worker PARENT FILE FOLDER`, with a FunctionCall
as JSON on its standard input. FOLDER receives the samples, FILE an Answer.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core import exit_with_parent, plugins
from scalebench.core.errors import InputError, PluginError, describe_exception
from scalebench.core.json_files import parse_record, write_json
from scalebench.workloads import records, user_code
from scalebench.workloads.datasets import cache
from scalebench.workloads.datasets.images import LABEL_DTYPE
from scalebench.workloads.datasets.user_function import READING_FILE, Answer, FunctionCall, Reading

BLOCK_BYTES = 2**24


class UnusableSamples(Exception):
    """The function's result cannot be trained on. The message continues its name: 'returns ...'."""


class WriteFailed(Exception):
    """The files could not be written, which is not the function's fault; the OSError is the cause."""


def main(parent: int, answer_file: Path, folder: Path) -> None:
    exit_with_parent.tie_to_parent(parent, signal.SIGKILL)
    try:
        answer = Answer(make_samples(parse_record(sys.stdin.buffer.read(), FunctionCall), folder))
    except PluginError as error:
        answer = Answer(problem=str(error), traceback=error.log)
    except InputError as error:
        answer = Answer(wrong_input=str(error))
    except OSError as error:
        answer = Answer(errno=error.errno)
    write_json(answer_file, answer)


def make_samples(call: FunctionCall, folder: Path) -> str | None:
    """Call the function and write its samples into the folder. Return a remark where it has more than were requested.

    Raises PluginError for whatever is wrong with the function, an InputError of the function itself, and OSError where
    the files cannot be written.
    """
    label = call.label
    try:
        if call.from_user:
            function = user_code.load_function(call.reference, label.partition("=")[0])
        else:
            function = plugins.load_object(call.reference, label)
        if not callable(function):
            raise PluginError(f"{label} is not a function")
        count, available = write_samples(function(call.size, call.seed, **call.options), folder, call.size)
    except (PluginError, InputError):
        raise
    except UnusableSamples as error:
        raise PluginError(f"{label} {error}") from error
    except WriteFailed as error:
        raise OSError(*error.args) from error
    except MemoryError as error:
        raise PluginError(f"{label} ran out of memory: lower dataset.size", traceback.format_exc()) from error
    except (Exception, SystemExit) as error:
        raise PluginError(f"{label} fails: {describe_exception(error)}", traceback.format_exc()) from error
    if available is None or available == count:
        return None
    return f"{label} has {available:,} samples, of which dataset.size={call.size} takes the first {count:,}"


def write_samples(result: Any, folder: Path, size: int) -> tuple[int, int | None]:
    """Write at most `size` of the function's samples as the two arrays of a cache folder, block by block, and beside
    them how fast they were read. Return how many were written, and how many there are, None where that is unknown.

    Inputs of floats (n, ...) become float32, and bytes stay uint8. Targets become float32 (n, ...), or (n, 1) for one
    quantity per sample, or int64 class numbers if they are integers. Everything else is kept as records. Raises
    UnusableSamples and WriteFailed.
    """
    samples: ArraySamples | TableSamples
    is_arrays = isinstance(result, (Mapping, tuple, list, str)) or hasattr(result, "__array__")
    if any(kind.__name__ == "IterableDataset" for kind in type(result).__mro__):  # torch's, whose __getitem__ raises
        samples = StreamSamples(result, size)
    elif not is_arrays and hasattr(result, "__getitem__"):
        samples = TableSamples(result, size)
    else:
        samples = ArraySamples(*check_arrays(result), size)
    first = samples.block(0, 1)
    with _report_failed_writes():
        columns = [
            Column("inputs", folder / cache.INPUTS, first[0], samples),
            Column("targets", folder / cache.TARGETS, first[1], samples),
        ]
    rows = max(1, BLOCK_BYTES // max(1, sum(array.nbytes for part in first for array in records.list_fields(part))))
    read_s = 0.0
    for start in range(0, samples.count, rows):
        begin_s = time.perf_counter()
        block = samples.block(start, min(start + rows, samples.count))  # whose errors are the function's own
        read_s += time.perf_counter() - begin_s
        with _report_failed_writes():
            for column, part in zip(columns, block, strict=True):
                column.write(start, part)
    # Slices of arrays say nothing: the function has read them, or the writing reads what is mapped.
    is_timed = isinstance(samples, TableSamples) and read_s > 0
    with _report_failed_writes():
        rate = samples.count / read_s if is_timed else None
        write_json(folder / READING_FILE, Reading(rate, samples.available, columns[1].unusable))
    return samples.count, samples.available


@contextlib.contextmanager
def _report_failed_writes() -> Iterator[None]:
    """Raise WriteFailed where a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise WriteFailed(error.errno or errno.EIO, error.strerror) from error


class ArraySamples:
    """Samples of arrays, which may be memory maps."""

    as_is = False  # one array of floats or bytes is converted as the samples of a data set are

    def __init__(self, inputs: Any, targets: Any, size: int) -> None:
        self._parts = inputs, targets
        self.available: int | None = len(records.list_fields(inputs)[0])
        self.count = min(self.available, size)

    def block(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return the inputs and targets of the samples from `start` on."""
        inputs, targets = (records.map_fields(lambda array: array[start:stop], part) for part in self._parts)
        return inputs, targets


class TableSamples:
    """Samples that are read one by one, as torch's Dataset gives them: (input, target) pairs, or else inputs that have
    their targets among them."""

    as_is = True

    def __init__(self, table: Any, size: int) -> None:
        self._table, self.available = table, None
        with contextlib.suppress(TypeError, NotImplementedError, OverflowError):  # unknown, or more than Python counts
            self.available = len(table)
        self.count = self._count_samples(size)
        if not self.count:
            raise UnusableSamples("returns a Dataset without samples")
        (first,) = self._read(0, 1)
        self._has_pairs = isinstance(first, (tuple, list)) and len(first) == 2

    def _count_samples(self, size: int) -> int:
        return size if self.available is None else min(self.available, size)

    def _read(self, start: int, stop: int) -> list[Any]:
        return [self._table[row] for row in range(start, stop)]

    def block(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return the inputs and targets of the samples from `start` on."""
        items = self._read(start, stop)
        if not self._has_pairs:
            return _stack(items, start), None
        inputs, targets = ([item[which] for item in items] for which in (0, 1))
        return _stack(inputs, start), _stack(targets, start)


class StreamSamples(TableSamples):
    """Samples in their order, as torch's IterableDataset gives them each time that it is iterated over."""

    def _count_samples(self, size: int) -> int:
        """Return how many there are up to `size`: a stream without a length is read once more to count them."""
        return sum(1 for _ in itertools.islice(self._table, super()._count_samples(size)))

    def _read(self, start: int, stop: int) -> list[Any]:
        if start == 0:
            self._items = iter(self._table)
        items = list(itertools.islice(self._items, stop - start))
        if len(items) < stop - start:
            raise UnusableSamples(
                f"returns an IterableDataset that gives {self.count} samples, and {start + len(items)} the next time"
            )
        return items


def _stack(values: list[Any], start: int) -> Any:
    """Stack one value of each sample, arrays or several of them; they should all have the first one's shapes."""
    rows = [records.name_fields(value) for value in values]
    fields: dict[str, NDArray[Any]] = {}
    for name in rows[0]:
        parts = [np.asarray(row[name]) if name in row else None for row in rows]
        for number, part in enumerate(parts):
            if part is None or part.shape != parts[0].shape:  # type: ignore[union-attr]
                has = "no" if part is None else f"{part.shape} of"
                raise UnusableSamples(
                    f"returns a Dataset whose sample {start + number} has {has} {_name(name)}, and sample {start} "
                    f"{parts[0].shape}: pad or cut them to one shape"  # type: ignore[union-attr]
                )
        fields[name] = _check_kind(np.stack(parts), "samples", name)  # type: ignore[arg-type]
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
        raise UnusableSamples(f"returns {kind}: it should return (inputs, targets), a dict of arrays or a Dataset")
    for name, value in zip(("inputs", "targets"), result, strict=True):
        if value is None and name == "targets" and isinstance(result[0], Mapping):
            continue
        for field, array in records.name_fields(value).items():
            if not hasattr(array, "__array__"):
                raise UnusableSamples(f"returns {_describe_type(array)} as {name}: it should be a numpy array")
            _check_kind(np.asanyarray(array), name, field)
    plain = [dict(v) if isinstance(v, Mapping) else tuple(v) if isinstance(v, list) else v for v in result]
    inputs, targets = (records.map_fields(np.asanyarray, value) for value in plain)
    _check_lengths(inputs, targets)
    return inputs, targets


def _check_kind(array: NDArray[Any], name: str, field: str) -> NDArray[Any]:
    if array.dtype.kind not in records.KINDS:
        which = f"{name} of {array.dtype}" if field == "f0" else f"{_name(field)} of {array.dtype} in {name}"
        raise UnusableSamples(f"returns {which}: cast it to float32, or to integers")
    return array


def _check_lengths(inputs: Any, targets: Any) -> None:
    """Raise UnusableSamples unless all arrays have samples along their first axis, as many as the others."""
    if isinstance(inputs, np.ndarray) and inputs.ndim < 2 and inputs.dtype.kind == "f":
        raise UnusableSamples(
            f"returns inputs of shape {inputs.shape}: they should be (n, ...), samples along the first axis"
        )
    arrays = {**_label_arrays("inputs", inputs), **_label_arrays("targets", targets)}
    shapes = " and ".join(f"{name} of shape {array.shape}" for name, array in arrays.items())
    lengths = {array.shape[:1] for array in arrays.values()}
    if len(lengths) > 1 or () in lengths:
        raise UnusableSamples(f"returns {shapes}: they should have the same number of samples")
    if any(0 in array.shape for array in arrays.values()):
        raise UnusableSamples(f"returns no samples: {shapes}")


def _label_arrays(name: str, value: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a value by what messages call them."""
    if isinstance(value, np.ndarray):
        return {name: value}
    return {} if value is None else {_name(field): array for field, array in records.name_fields(value).items()}


def _name(field: str) -> str:
    return f"'{field}'"


class Column:
    """The file of all inputs or of all targets, while it is written. `unusable` says which number, if any, a loss of
    scalebench cannot take; one of the user's may mask it, so only inputs are refused for it."""

    def __init__(self, name: str, path: Path, first: Any, samples: ArraySamples | TableSamples) -> None:
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
        self._scalar = name == "targets" and dtype == np.float32 and shape == ()  # one quantity is a vector of one
        self._out = cache.create_array(path, (samples.count, *((1,) if self._scalar else shape)), dtype)

    def write(self, start: int, block: Any) -> None:
        """Write the samples from `start` on. Raises UnusableSamples for inputs that cannot be trained on."""
        if self._dtype == records.NO_TARGETS:
            return
        if not records.is_record(self._dtype):
            values = self._checked(block, self._dtype, self._name, start)
            self._out[start : start + len(block)] = values[:, None] if self._scalar else values
            return
        for name, part in records.name_fields(block).items():
            label = self._name if name == "f0" else _name(name)
            values = self._checked(part, self._dtype[name].base, label, start)
            self._out[name][start : start + len(part)] = values

    def _checked(self, block: NDArray[Any], dtype: np.dtype[Any], name: str, start: int) -> NDArray[Any]:
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
            raise UnusableSamples(f"returns {self.unusable}: correct or drop it")
        return values


def _describe_type(value: Any) -> str:
    if value is None:
        return "None"
    kind, package = type(value), type(value).__module__.partition(".")[0]
    return f"a {kind.__name__}" if package == "builtins" else f"a {package} {kind.__name__}"


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
