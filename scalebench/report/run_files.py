"""Files in a run's folder that a report reads or points at. Layer 3.

A record may be anybody's: what it names is read only as a plain file of its own folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from scalebench.report.evidence import Evidence

TAIL_LINES = 30
TAIL_BYTES = 64 * 1024  # a log may be larger than memory
LONGEST_LINE = 500
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # colours and movements of a terminal
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


def inside(folder: Path, name: str) -> Path | None:
    """The plain file `name` of `folder`; None where it is none, or lies elsewhere, also by a link."""
    given = Path(name)
    if "\0" in name or given.is_absolute() or ".." in given.parts:
        return None
    try:
        path = (folder / given).resolve()
        return path if path.is_file() and path.is_relative_to(folder.resolve()) else None
    except OSError:  # a name that is too long
        return None


def home(evidence: Evidence) -> Path:
    """The folder that links are relative to."""
    first = evidence.paths[0]
    return first.parent if first.is_file() else first


def link(evidence: Evidence, path: Path) -> str:
    """To `path` from the report's home."""
    return Path(os.path.relpath(path.resolve(), home(evidence).resolve())).as_posix()


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log as plain text, whatever its bytes are; OSError where it cannot be read.

    A progress bar that overwrites itself is as many lines as it was drawn.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        content = file.read(TAIL_BYTES)
    found = ESCAPES.sub("", content.decode("utf-8", "replace")).splitlines()
    kept = [CONTROL.sub("\N{REPLACEMENT CHARACTER}", line)[:LONGEST_LINE] for line in found[-lines:]]
    return "\n".join(kept)
