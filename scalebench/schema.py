"""The record's JSON Schema, generated from its dataclasses. Layer 0.

`python -m scalebench.schema` rewrites the file.
"""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

from scalebench.results import SCHEMA_PATH, SCHEMA_VERSION, STATUSES, RankRecord, Result

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


def generate() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of result.json."""
    definitions: dict[str, Any] = {}
    root = _object(Result, definitions)
    for kind in (root, definitions[RankRecord.__name__]):
        kind["properties"]["status"] = {"enum": list(STATUSES)}
    root["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "scalebench result",
        **root,
        "$defs": definitions,
    }


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    properties = {f.name: _schema(hints[f.name], definitions) for f in fields}
    return {"type": "object", "properties": properties, "required": required}


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin = get_origin(hint)
    if hint is Any:
        return {}
    if origin in (Union, types.UnionType):
        (inner,) = [a for a in get_args(hint) if a is not type(None)]
        return {"anyOf": [_schema(inner, definitions), {"type": "null"}]}
    if dataclasses.is_dataclass(hint):
        name = hint.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object(hint, definitions)  # type: ignore[arg-type]
        return {"$ref": f"#/$defs/{name}"}
    if origin is list:
        return {"type": "array", "items": _schema(get_args(hint)[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(get_args(hint)[1], definitions)}
    return {"type": PLAIN[hint]}


if __name__ == "__main__":
    SCHEMA_PATH.write_text(json.dumps(generate(), indent=1) + "\n", encoding="utf-8")
    print(SCHEMA_PATH)
