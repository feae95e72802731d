"""Dataclasses as JSON files: written whole or not at all, read back with their types checked.

Layer 0, below spec and results, which both keep their files through it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
PLAIN = {str, int, float, bool, type(None)}
Decode = Callable[[Any], Any]  # plain JSON content -> checked value; raises _Wrong


def write_json(path: Path, content: Any) -> None:
    """Write to a temporary name and rename, so that a reader never sees half a file.

    NaN and infinities are refused (ValueError): they are not JSON, and no figure here may be one.
    Raises OSError when the folder is full or not writable, and leaves no temporary file then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """The content of a JSON file; ValueError when it is cut short or no JSON."""
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


class _Wrong(Exception):
    """What is wrong with a value, and the way to it, innermost name first: most values are right, and need none."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.way: list[str] = []


def from_dict(kind: type[T], tree: Any, where: str = "", ignore_unknown: bool = False) -> T:
    """Build dataclass `kind` from plain JSON content.

    Raises ValueError that names the field for a missing or unknown key or a value of a wrong type.
    """
    try:
        made: T = _decoder(cast(Any, kind), ignore_unknown)(tree)
    except _Wrong as wrong:
        way = where + "".join(reversed(wrong.way))
        raise ValueError(f"{way if where else way.removeprefix('.') or kind.__name__} {wrong}") from None
    return made


@functools.cache
def _decoder(hint: Any, loose: bool) -> Decode:
    """Checks and builds values of this type. Made once for each: a report reads thousands of records."""
    origin = get_origin(hint)
    if hint is Any:
        return lambda value: value
    if origin in (Union, types.UnionType):
        (some,) = [_decoder(a, loose) for a in get_args(hint) if a is not type(None)]
        return lambda value: None if value is None else some(value)
    if dataclasses.is_dataclass(hint):
        return _object_of(hint, loose)  # type: ignore[arg-type]
    if origin is list:
        return _list_of(get_args(hint)[0], loose)
    if origin is dict:
        return _table_of(get_args(hint)[1], loose)
    return _float if hint is float else _exactly(hint)


def _object_of(kind: type, loose: bool) -> Decode:
    hints = get_type_hints(kind)
    fields = {f.name: (_decoder(hints[f.name], loose), _is_required(f)) for f in dataclasses.fields(kind)}

    def decode(tree: Any) -> Any:
        if not isinstance(tree, dict):
            raise _Wrong(f"should be an object, not {type(tree).__name__}")
        if not loose and (unknown := tree.keys() - fields.keys()):
            raise _Wrong(f"has an unknown field '{min(unknown)}'")
        values = {}
        name = ""
        try:
            for name, (value_of, required) in fields.items():
                if name in tree:
                    values[name] = value_of(tree[name])
                elif required:
                    break
            else:
                return kind(**values)
        except _Wrong as wrong:
            wrong.way.append(f".{name}")
            raise
        raise _Wrong(f"lacks the field '{name}'")

    return decode


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _list_of(hint: Any, loose: bool) -> Decode:
    value_of = _decoder(hint, loose)
    right = set(get_args(hint) if get_origin(hint) is types.UnionType else [hint]) & PLAIN

    def decode(values: Any) -> Any:
        if not isinstance(values, list):
            raise _Wrong(f"should be a list, not {type(values).__name__}")
        if right.issuperset(map(type, values)):  # plain values, all of the right type: the long series
            return values.copy()
        made: list[Any] = []
        try:
            for value in values:
                made.append(value_of(value))  # noqa: PERF401  # its length says which one is wrong
        except _Wrong as wrong:
            wrong.way.append(f"[{len(made)}]")
            raise
        return made

    return decode


def _table_of(hint: Any, loose: bool) -> Decode:
    value_of = _decoder(hint, loose)

    def decode(table: Any) -> Any:
        if not isinstance(table, dict):
            raise _Wrong(f"should be an object, not {type(table).__name__}")
        made = {}
        name = ""
        try:
            for name, value in table.items():
                made[name] = value_of(value)
        except _Wrong as wrong:
            wrong.way.append(f".{name}")
            raise
        return made

    return decode


def _float(value: Any) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _Wrong("is too large a number") from None
    if type(value) is not float:
        raise _Wrong(f"should be float, not {type(value).__name__}")
    return value


def _exactly(kind: type) -> Decode:
    def decode(value: Any) -> Any:
        if type(value) is not kind:
            raise _Wrong(f"should be {kind.__name__}, not {type(value).__name__}")
        return value

    return decode
