"""Samples of several arrays as one array of numpy records, which every cache, shard and feed handles like any other.

A dict of arrays has a field for each name; a tuple has the fields f0, f1, ..., which is how numpy itself names unnamed
fields; a single array that must not be converted, such as token numbers, has the field f0 alone. One file holds all
fields, so that a sample is one piece of the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

RECORD = "record"  # a value of dataset.dtype
TOKEN_KEY = "input_ids"  # the usual name of token numbers, such as in libraries of Hugging Face
NO_TARGETS = np.dtype([("no_targets", "u1")])  # the type of the targets where a sample has none apart from its inputs
KINDS = "fiub"  # of numpy: floats, integers and booleans

Array = NDArray[Any]
T = TypeVar("T")
Fields: TypeAlias = T | dict[str, T] | tuple[T, ...] | None


def name_fields(value: Any) -> dict[str, Any]:
    """Return the parts of a sample or of a batch by their names as fields."""
    if isinstance(value, Mapping):
        return dict(value)
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return {f"f{number}": part for number, part in enumerate(parts)}


def record_type(fields: Mapping[str, Array]) -> np.dtype[Any]:
    """Return the type of the record of a sample, whose fields are arrays with the samples along their first axis.

    Fields keep their type, apart from float64, which becomes float32 like all that is trained.
    """
    return np.dtype(
        [(name, float32_or_same(array.dtype), array.shape[1:]) for name, array in fields.items()], align=True
    )


def float32_or_same(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return float32 for wider floats, any other type in this machine's byte order."""
    is_wide = dtype.kind == "f" and dtype.itemsize > np.dtype(np.float32).itemsize
    return np.dtype(np.float32) if is_wide else dtype.newbyteorder("=")


def is_record(dtype: np.dtype[Any]) -> bool:
    """Return whether samples of this type are records."""
    return dtype.names is not None


def has_names(dtype: np.dtype[Any]) -> bool:
    """Return whether the fields of a record were a dict, and not a tuple or a single array."""
    names = dtype.names or ()
    return names != tuple(f"f{number}" for number in range(len(names)))


def split_fields(array: Array, convert: Callable[[Array], T]) -> Fields[T]:
    """Return a batch's fields in the form that the user gave them, each `convert`ed from an array of its own.

    An array that holds no records is converted as it is; of NO_TARGETS nothing is left.
    """
    names = array.dtype.names
    if names is None:
        return convert(array)
    if array.dtype == NO_TARGETS:
        return None
    parts = {name: convert(np.ascontiguousarray(array[name])) for name in names}
    if has_names(array.dtype):
        return parts
    return tuple(parts.values()) if len(parts) > 1 else parts["f0"]


def map_fields(function: Callable[[Any], T], value: Any) -> Fields[T]:
    """Return the value of split_fields with `function` applied to each part."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {name: function(part) for name, part in value.items()}
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)


def list_fields(value: Any) -> list[Any]:
    """Return the parts of a value of split_fields."""
    return [] if value is None else list(name_fields(value).values())


def count_tokens(dtype: np.dtype[Any]) -> int | None:
    """Return the tokens of a sample of this type; None where it has no field of their usual name."""
    shape = dtype[TOKEN_KEY].shape if TOKEN_KEY in (dtype.names or ()) else ()
    return shape[0] if len(shape) == 1 else None


def describe_fields(dtype: np.dtype[Any]) -> str:
    """Return the fields of a record for a message: 'input_ids int64 (64,), labels int64 (64,)'."""
    return ", ".join(f"{name} {dtype[name].base} {dtype[name].shape}" for name in dtype.names or ())
