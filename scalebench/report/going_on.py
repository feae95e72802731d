"""Runs without a row: what they were, and when they last gave a sign. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalebench.measure.progress import Progress, read_progress
from scalebench.records import read_json
from scalebench.run_folder import RESULT_FILE, SPEC_FILE

MOST_RANKS = 64  # of whose files the last sign is looked for


@dataclass(frozen=True)
class Unfinished:
    """A run that goes on, or whose program was ended before it could write a row. "" is what is not known."""

    folder: Path
    tags: dict[str, str]  # model, strategy, hardware, as far as they are known
    gpus: str
    phase: str
    last_sign: str  # time of day, UTC


def unfinished(paths: Sequence[Path]) -> Iterator[Unfinished]:
    """Those at or below `paths` with a spec and no result, in the order of their folders."""
    folders = {spec.parent for path in paths if path.is_dir() for spec in path.rglob(SPEC_FILE)}
    for folder in sorted(folders):
        if not (folder / RESULT_FILE).exists():
            last = _last(folder)
            phase, sign = ("", "") if last is None else (str(last.phase), _time(last.at_s))
            yield Unfinished(folder, *_what(folder), phase, sign)


def _what(folder: Path) -> tuple[dict[str, str], str]:
    """Tags and devices by the spec, which may be half written, or anything."""
    try:
        tree = read_json(folder / SPEC_FILE)
    except (OSError, ValueError):
        return {}, ""
    found = {name: _at(tree, "config", name, "name") for name in ("model", "strategy", "hardware")}
    return {name: str(value) for name, value in found.items() if value is not None}, str(_at(tree, "gpus") or "")


def _at(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _last(folder: Path) -> Progress | None:
    """The latest word of any rank."""
    found = [progress for rank in range(MOST_RANKS) if (progress := read_progress(folder, rank)) is not None]
    known = [progress for progress in found if isinstance(progress.at_s, (int, float))]
    return max(known, key=lambda progress: progress.at_s, default=None)


def _time(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return ""
