"""The system's own files, below /proc and /sys: their text, '' where there is none or it may not be read. Layer 0."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/")  # tests put a folder of their own here


def read(*path: str | Path) -> str:
    """A system file's text, '' where there is none or it may not be read."""
    try:
        return ROOT.joinpath(*path).read_text(errors="replace")
    except OSError:
        return ""


def find(pattern: str, *path: str | Path) -> str | None:
    """What the group of `pattern` matches in a system file, whose lines ^ and $ mean."""
    found = re.search(pattern, read(*path), re.MULTILINE)
    return found[1].strip() if found else None


def number(*path: str | Path) -> int | None:
    """A file that holds one whole number; None for any other."""
    text = read(*path).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def cpu_list(text: str) -> list[int]:
    """The kernel's lists of processors: '0-2,8' -> [0, 1, 2, 8]."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return found
