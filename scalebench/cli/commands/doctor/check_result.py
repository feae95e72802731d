"""One line of `scalebench doctor hardware=NAME`: what the YAML has beside what this host or SLURM has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

OK, DIFFERS, UNCHECKED = "ok", "differs", "not checked"
SIZE_TOLERANCE = 0.1  # "64 GB" may be 64 * 10^9 or 64 * 2^30 bytes, less what the firmware keeps


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's table."""

    key: str
    expected: str  # what the YAML has
    actual: str
    verdict: str


def check_value(key: str, expected: object, actual: str | None, same: bool) -> CheckResult:
    """Judge one value; not checked where the YAML has none, or the host's is unknown."""
    verdict = UNCHECKED if expected is None or actual is None else OK if same else DIFFERS
    return CheckResult(key, "null" if expected is None else str(expected), actual or "unknown", verdict)


def unchecked(results: list[CheckResult], because: str) -> list[CheckResult]:
    """The same lines without a verdict: this host is not one that the YAML describes."""
    return [replace(line, actual=f"{line.actual} ({because})", verdict=UNCHECKED) for line in results]


def is_near(expected: int | None, actual: int | None) -> bool:
    return expected is not None and actual is not None and abs(expected - actual) <= SIZE_TOLERANCE * expected


def format_size(size_bytes: int | None) -> str | None:
    if size_bytes is None:
        return None
    return f"{size_bytes / 1e9:,.0f} GB" if size_bytes >= 1e10 else f"{size_bytes / 1e9:.1f} GB"


def count_equal(texts: list[str]) -> str:
    """Join texts, equal ones counted: ['a', 'b', 'a'] -> '2 x a, b'."""
    return ", ".join(text if count == 1 else f"{count} x {text}" for text, count in Counter(texts).items())
