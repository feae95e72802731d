"""Dataclasses as JSON files: written whole or not at all, read back with their types checked.

Layer 0, below spec and results, which both keep their files through it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


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


def from_dict(kind: type[T], tree: Any, where: str = "", ignore_unknown: bool = False) -> T:
    """Build dataclass `kind` from plain JSON content.

    Raises ValueError that names the field for a missing or unknown key or a value of a wrong type.
    """
    if not isinstance(tree, dict):
        raise ValueError(f"{where or kind.__name__} should be an object, not {type(tree).__name__}")
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(tree) - set(fields))
    if unknown and not ignore_unknown:
        raise ValueError(f"{where or kind.__name__} has an unknown field '{unknown[0]}'")
    values = {}
    for name, f in fields.items():
        if name in tree:
            values[name] = _value(hints[name], tree[name], f"{where}.{name}" if where else name, ignore_unknown)
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where or kind.__name__} lacks the field '{name}'")
    return kind(**values)


def _value(hint: Any, value: Any, where: str, loose: bool) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [a for a in get_args(hint) if a is not type(None)]
        return _value(inner, value, where, loose)
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where, loose)  # type: ignore[arg-type]
    if origin is list:
        if not isinstance(value, list):
            raise ValueError(f"{where} should be a list, not {type(value).__name__}")
        (inner,) = get_args(hint)
        return [_value(inner, v, f"{where}[{i}]", loose) for i, v in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} should be an object, not {type(value).__name__}")
        inner = get_args(hint)[1]
        return {k: _value(inner, v, f"{where}.{k}", loose) for k, v in value.items()}
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"{where} should be {hint.__name__}, not {type(value).__name__}")
    return value
