"""Files of a run as text: JSON records, written under a temporary name and renamed, read back with the type of every
field checked; ends of logs."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from scalebench.core.untrusted import MAX_FILE_BYTES, read_plain_file

T = TypeVar("T")
# msgspec 0.22 crashes where two threads decode into a dataclass for the first time. Reentrant for signal handlers.
decoding = threading.RLock()


def write_json(path: Path, content: Any) -> None:
    """Write plain content or a dataclass to a temporary name and rename it, so that no reader sees half a file.

    Raises ValueError for NaN and infinities, which are not JSON, and OSError when the folder is full or not writable;
    no temporary file is left then.
    """
    write_text(path, format_json(content))


def format_json(content: Any, escape_all: bool = True, indent: int | None = 1) -> str:
    """Return the text that `write_json` writes, with or without escapes for all but ASCII; ValueError for NaN and
    infinities. With `indent` None it is one line."""
    # The standard library's encoder: msgspec's writes null for NaN and refuses numpy's floats.
    text = json.dumps(content, allow_nan=False, ensure_ascii=escape_all, default=_list_fields)
    if indent is not None:
        # A lone surrogate, which is a byte of a file name that is not Unicode, stays in one line.
        with contextlib.suppress(msgspec.DecodeError, UnicodeEncodeError):
            text = msgspec.json.format(text, indent=indent)
    return f"{text}\n"


def _list_fields(record: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(record) if isinstance(record, msgspec.Struct) else vars(record)


def write_output(path: Path, text: str) -> None:
    """Write a file that the user has named; a device or a pipe, such as /dev/stdout, is written to and not replaced."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a file as `write_json` does, in the place of whatever is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_tail(path: Path, limit_bytes: int) -> str:
    """Read the end of a text file that may be larger than memory, such as a log; OSError where it cannot be read."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - limit_bytes))
        return file.read(limit_bytes).decode("utf-8", "replace")


def read_json(path: Path, max_bytes: int = MAX_FILE_BYTES) -> Any:
    """Read a JSON file; ValueError when it is not a plain file, too large, cut short or not JSON."""
    return parse_json(read_plain_file(path, max_bytes=max_bytes))


def parse_json(content: bytes) -> Any:
    """Parse the content of a JSON file; ValueError when it is none, or nested deeper than any record."""
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"too deeply nested, or too large ({type(error).__name__})") from error


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def read_record(path: Path, record_type: type[T]) -> T:
    """Read a dataclass from a JSON file; ValueError as those of `read_json` and `build_record`."""
    return parse_record(read_plain_file(path), record_type)


def parse_record(content: bytes, record_type: type[T]) -> T:
    """Parse a dataclass from the content of a JSON file; raises as `read_record`."""
    try:
        with decoding:
            return msgspec.json.decode(content, type=record_type)
    except (msgspec.DecodeError, RecursionError, MemoryError):
        # Parsed again: for the reason, and since the standard library also takes lone surrogates.
        return build_record(record_type, parse_json(content))


def build_record(record_type: type[T], tree: Any) -> T:
    """Build a dataclass from plain JSON content. Unknown keys are ignored: another version may have written them.

    Raises ValueError that names the field for a missing key or a value of a wrong type.
    """
    try:
        with decoding:
            return msgspec.convert(tree, record_type)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        raise ValueError(f"{path.strip('`').removeprefix('$.') or record_type.__name__}: {reason}") from None
