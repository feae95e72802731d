"""Verdicts on rows of the pooled frame: which rows may carry one, the ratio of two rows, and what is missing.

A verdict (best, slower, pays, saturating, resolved, faster) compares processes. Blocks of one process say nothing about
its next start, so one repeat carries none, and two do if their interval allows it. What other programs take of the
machine cancels where ratios are formed within rounds, and forbids a verdict where they are not; missing cores or GPUs
forbid it always. `show`, rankings, advice and `compare` have this one rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from scalebench.analysis.repeats import EstimateRatio, holds_over_repeats
from scalebench.core.config_files import read_yaml
from scalebench.core.spec import SWEEP_REPEATS
from scalebench.core.stats.estimates import CONFIDENCE, Estimate
from scalebench.core.stats.log_means import LogMean

Row = Mapping[str, Any]

MORE_REPEATS = f"measure.repeats={SWEEP_REPEATS} decides"
FLAGS_FILE = Path(__file__).with_name("flags.yaml")
# No verdict rests on rows with these flags: missing cores or GPUs, another precision or other threads are part of
# their figures.
NO_VERDICT_FLAGS = (
    *("oversubscribed", "quota_used_up", "shared_gpu", "superlinear_on_cpu", "precision_differs", "threads_changed"),
)
OTHER_PROGRAMS_FLAGS = ("busy_machine", "foreign_process")  # no verdict either, but on ratios within rounds


@cache
def read_flags() -> dict[str, dict[str, str]]:
    """Return the texts of each flag, as its file describes them."""
    return read_yaml(FLAGS_FILE)


def read_doubt(flag: str) -> str:
    """Return in a few words why a flag makes the figures of a row doubtful; empty if it does not."""
    return read_flags().get(flag, {}).get("doubt", "")


def explain_no_verdict(*rows: Row, in_rounds: bool | None = None) -> str:
    """Return why no verdict rests on these rows, with the setting that helps; empty if one may.

    `in_rounds`: whether the ratio of the rows is formed within rounds; by default it is for rows that took turns.
    """
    counts = [row.get("repeats") or 1 for row in rows if not holds_over_repeats(row)]
    texts = ["one repeat" if count == 1 else f"{count} repeats without an interval" for count in counts]
    reasons = dict.fromkeys(f"{text}, {MORE_REPEATS}" for text in texts)
    return "; ".join([*reasons, *filter(None, [explain_disturbance(*rows, in_rounds=in_rounds)])])


def explain_disturbance(*rows: Row, in_rounds: bool | None = None) -> str:
    """Return what forbids a verdict on these rows however many repeats they have; empty if nothing does."""
    reasons: dict[str, None] = {}
    for row in rows:
        cancels = row.get("in_turns") if in_rounds is None else in_rounds
        forbidding = NO_VERDICT_FLAGS if cancels else (*OTHER_PROGRAMS_FLAGS, *NO_VERDICT_FLAGS)
        flags = (row.get("flags") or "").split()
        reasons |= {read_doubt(flag): None for flag in forbidding if flag in flags}
    if len({"hooks_left_out" in (row.get("flags") or "").split() for row in rows}) > 1:  # not the same work
        reasons[f"not the same work: {read_doubt('hooks_left_out')} in one of them"] = None
    return "; ".join(reasons)


def has_other_programs(row: Row) -> bool:
    """Return whether other programs computed on the cores or devices of a row."""
    return not set(OTHER_PROGRAMS_FLAGS).isdisjoint((row.get("flags") or "").split())


def decide_ratio(row: Row, base: Row, estimate_ratio: EstimateRatio, confidence: float = CONFIDENCE) -> Estimate:
    """Return the throughput of a row over that of another, with limits if a verdict may rest on both."""
    ratio = estimate_ratio(row, base)
    has_verdict = not explain_no_verdict(row, base, in_rounds=ratio.in_rounds)
    return (ratio if has_verdict else LogMean(ratio.mean)).to_estimate(confidence)


def count_missing_repeats(*rows: Row) -> int:
    """Return how many repeats give these rows limits over repeats, or narrower ones: twice as many as there are."""
    most = max((row.get("repeats") or 1 for row in rows), default=1)
    return 2 * most if most >= SWEEP_REPEATS else SWEEP_REPEATS
