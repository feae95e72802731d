"""A comparison as text for people, as JSON, as JUnit XML for CI servers, and as Markdown for a pull request."""

from __future__ import annotations

import io
import json
import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scalebench.analysis.comparison import (
    FAILED_RUN,
    FASTER,
    NO_VERDICT,
    NOT_COMPARABLE,
    OK,
    REGRESSION,
    SAME,
    SLOWER,
    TOO_LITTLE_DATA,
    UNRESOLVED,
    Comparison,
    Contrast,
    Pair,
)
from scalebench.analysis.comparison.pairing import ComparisonRow
from scalebench.analysis.comparison.unmatched import UnmatchedRow
from scalebench.core.stats.estimates import Estimate
from scalebench.core.units import format_count, format_number
from scalebench.core.untrusted import clean_line, clean_text

VERSION = 2
SUITE = "scalebench.compare"
MARKUP = re.compile(r"([\\`*_\[\]#|~>$@]|:(?=//|\w+:)|^[-+])")
EXIT_STATUS = {OK: 0, REGRESSION: 3, NOT_COMPARABLE: 4, FAILED_RUN: 5, TOO_LITTLE_DATA: 6}
MAX_LINES = 20  # of rows without a partner, and of differences
WIDTH = 200  # of a file or a pipe


def format_comparison(comparison: Comparison, width: int = WIDTH) -> str:
    """Return the tables and sentences as a terminal shows them, without colours."""
    import rich.console

    out = io.StringIO()
    console = rich.console.Console(file=out, width=width, highlight=False, color_system=None)
    for contrast in comparison.contrasts:
        console.print(_make_table(contrast))
    for line in list_sentences(comparison):
        console.print(clean_line(line), markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def list_columns(contrast: Contrast) -> list[str]:
    a, b = (f"{name} samples/s" for name in (contrast.a, contrast.b))
    return [*contrast.pairs[0].label, a, b, f"{contrast.b} / {contrast.a} (95 %)", "p (Holm)", "test", "verdict"]


def format_pair(pair: Pair) -> list[str]:
    """Return the cells of a pair, in the order of the columns."""
    verdict = "REGRESSION" if pair.regression else pair.verdict
    rates = [format_number(pair.a.rate), format_number(pair.b.rate)]
    ratio = format_speed_ratio(pair.ratio, pair.interval)
    return [*pair.label.values(), *rates, ratio, format_p(pair.p_holm), pair.test, verdict]


def format_title(contrast: Contrast) -> str:
    return f"{contrast.b} over {contrast.a}"


def _make_table(contrast: Contrast) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(clean_line(format_title(contrast))), title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True
    )
    names = list_columns(contrast)
    words = {*contrast.pairs[0].label, "test", "verdict"}
    for name in names:
        table.add_column(Text(clean_line(name)), justify="left" if name in words else "right")
    for pair in contrast.pairs:
        table.add_row(*map(Text, map(clean_line, format_pair(pair))))  # Text: rich would take brackets for markup
    return table


def list_sentences(comparison: Comparison) -> list[str]:
    """List the lines below the tables, the verdict last."""
    lines = [summarize(contrast) for contrast in comparison.contrasts]
    lines += [line for contrast in comparison.contrasts for line in list_differences(contrast)]
    verdict = describe_verdict(comparison)
    notes = dict.fromkeys(note for pair in comparison.pairs for note in pair.notes if note not in verdict)
    lines += [f"note: {note}" for note in notes]
    lines += [f"note: {note}" for note in comparison.notes]
    if comparison.ignored:
        lines.append(f"note: left out of the pairing: {', '.join(comparison.ignored)}")
    unmatched = [f"{row.side} {format_label(row.label)}: {row.reason}" for row in comparison.unmatched]
    lines += _limit_lines(unmatched, "rows")
    return [*lines, verdict]


def summarize(contrast: Contrast) -> str:
    """Return `gpu2 over gpu1: median of 6 pairs 4.40 [4.10, 4.60], from 4.02 to 4.71`."""
    ratios = [pair.ratio for pair in contrast.pairs]
    if len(ratios) == 1:
        return f"{format_title(contrast)}: {format_speed_ratio(ratios[0], contrast.pairs[0].interval)}, one pair"
    middle = format_speed_ratio(contrast.median, contrast.median_interval)
    of = "" if contrast.median_interval is None else " (95 % of the median of such pairs, sign test)"
    span = f"from {format_times(min(ratios))} to {format_times(max(ratios))}"
    return f"{format_title(contrast)}: median of {len(ratios)} pairs {middle}{of}, {span}"


def list_differences(contrast: Contrast) -> list[str]:
    """Return `also differs, gpu2 over gpu1: versions.torch: 2.8, 2.9 (6 of 6 pairs)` for each difference."""
    count = len(contrast.pairs)
    return _limit_lines(
        [f"also differs, {format_title(contrast)}: {key}: {a}, {b} ({pairs} of {count} pairs)"
         for key, a, b, pairs in contrast.differences],
        "differences",
    )  # fmt: skip


def describe_verdict(comparison: Comparison) -> str:
    """Return the last line, which says the same as the exit status."""
    if comparison.status == NOT_COMPARABLE:
        return f"not comparable: {comparison.refusal}"
    if comparison.status == FAILED_RUN:
        failed = [row for row in comparison.unmatched if row.failed]
        example = f"{format_label(failed[0].label)}: {failed[0].reason}"
        return f"failed run: {format_count(len(failed), 'run')} failed, such as {example}"
    if comparison.status == REGRESSION:
        worst = min((pair for pair in comparison.pairs if pair.regression), key=lambda pair: pair.ratio)
        slower = [pair for pair in comparison.pairs if pair.regression]
        beyond = f"slower by more than {100 * (comparison.threshold or 0):g} %"
        return f"regression: {len(slower)} of {len(comparison.pairs)} pairs {beyond}, most {format_label(worst.label)}"
    pairs = comparison.pairs
    lacking = [pair for pair in pairs if pair.verdict == NO_VERDICT]
    if comparison.status == TOO_LITTLE_DATA:
        example = f"{format_label(lacking[0].label)}: {lacking[0].notes[-1]}"
        return f"too little data: {len(lacking)} of {len(pairs)} pairs without a verdict, such as {example}"
    if len(lacking) == len(pairs):
        return f"undecided: {lacking[0].notes[-1]}"
    if all(pair.verdict == SAME for pair in pairs):
        return f"no difference: {format_count(len(pairs), 'pair')}, both sides the same runs"
    words = Counter(pair.verdict for pair in pairs)
    by = f", at 5 % after Holm over {format_count(sum(pair.p is not None for pair in pairs), 'pair')}"
    gate = "" if comparison.threshold is None else f"no regression beyond {100 * comparison.threshold:g} %: "
    counts = ", ".join(f"{count} {word}" for word, count in words.items())
    return f"{gate}{counts}{by if {UNRESOLVED, FASTER, SLOWER} & words.keys() else ''}"


def _limit_lines(lines: list[str], what: str) -> list[str]:
    more = len(lines) - MAX_LINES
    return lines if more <= 0 else [*lines[:MAX_LINES], f"and {more} more {what} (--format json has all)"]


def format_label(label: dict[str, str]) -> str:
    """Return `ddp_gloo gpus=2 precision=tf32`."""
    return " ".join(value if key in ("model", "strategy") else f"{key}={value}" for key, value in label.items())


def format_speed_ratio(value: float, interval: Estimate | None) -> str:
    """Return `0.952 [0.941, 0.963]`: three decimals, and three digits from 10 on; a missing limit is `inf`."""
    if interval is None:
        return format_times(value)
    return f"{format_times(value)} [{format_times(interval.low)}, {format_times(interval.high)}]"


def format_times(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def format_p(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def make_json(comparison: Comparison, exit_code: int) -> str:
    """Return the comparison as JSON. Its schema is in docs/guides/compare.md; only new keys keep `version`."""
    tree = {
        "version": VERSION,
        "status": comparison.status,
        "exit_code": exit_code,
        "by": comparison.by,
        "ignored": list(comparison.ignored),
        "threshold": comparison.threshold,
        "refusal": comparison.refusal,
        "contrasts": [_contrast_tree(contrast) for contrast in comparison.contrasts],
        "unpaired": [_unmatched_tree(row) for row in comparison.unmatched],
        "notes": comparison.notes,
    }
    return json.dumps(tree, indent=1, allow_nan=False) + "\n"


def _unmatched_tree(row: UnmatchedRow) -> dict[str, Any]:
    fields = {"side": row.side, "row": row.label, "reason": row.reason, "failed": row.failed}
    return {**fields, "run_id": row.run_id or None}


def _contrast_tree(contrast: Contrast) -> dict[str, Any]:
    ratios = [pair.ratio for pair in contrast.pairs]
    return {
        "a": contrast.a,
        "b": contrast.b,
        "median": contrast.median,
        **_limit_fields("median", contrast.median_interval),
        "least": min(ratios),
        "most": max(ratios),
        "differences": [{"key": key, "a": a, "b": b, "pairs": n} for key, a, b, n in contrast.differences],
        "pairs": [_pair_tree(pair) for pair in contrast.pairs],
    }


def _pair_tree(pair: Pair) -> dict[str, Any]:
    return {
        "row": pair.label,
        "a": _row_tree(pair.a),
        "b": _row_tree(pair.b),
        "ratio": pair.ratio,
        **_limit_fields("ratio", pair.interval),
        "p": pair.p,
        "p_holm": pair.p_holm,
        "test": pair.test,
        "verdict": pair.verdict,
        "regression": pair.regression,
        "notes": list(pair.notes),
    }


def _row_tree(row: ComparisonRow) -> dict[str, Any]:
    run_ids = [run.run_id for run in row.measured]
    return {"run_ids": run_ids, "sessions": len(row.sessions), "throughput_samples_per_s": row.rate}


def _limit_fields(name: str, interval: Estimate | None) -> dict[str, float | None]:
    """Return the limits, null for a missing one, since JSON has no infinity."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": None if high is None or math.isinf(high) else high}


def make_junit(comparison: Comparison, exit_code: int) -> str:
    """Return JUnit XML with a test case for each pair.

    A failure is a regression, an error a failed run or, at a gate, a pair without a verdict; a row without a partner is
    skipped.
    """
    suite = ET.Element("testsuite", name=SUITE)
    for contrast in comparison.contrasts:
        for pair in contrast.pairs:
            case = _add_case(suite, f"{format_label(pair.label)}: {format_title(contrast)}")
            text = f"{pair.verdict}: {format_speed_ratio(pair.ratio, pair.interval)}, {pair.test}"
            if pair.regression:
                _add_child(case, "failure", text, "regression")
            elif pair.verdict == NO_VERDICT:
                is_error = exit_code == EXIT_STATUS[TOO_LITTLE_DATA]
                _add_child(case, "error" if is_error else "skipped", pair.notes[-1], TOO_LITTLE_DATA)
            else:
                ET.SubElement(case, "system-out").text = clean_text(text)
    for row in comparison.unmatched:
        case = _add_case(suite, f"{format_label(row.label)}: {row.side} {row.run_id}".rstrip())
        failed = row.failed and comparison.threshold is not None
        _add_child(case, "error" if failed else "skipped", row.reason, "failed run" if failed else None)
    if comparison.status == NOT_COMPARABLE:
        _add_child(
            _add_case(suite, "pairing"), "error" if exit_code else "skipped", comparison.refusal or "", NOT_COMPARABLE
        )
    tags = [child.tag for case in suite for child in case]
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(tags.count(tag)))
    suite.set("tests", str(len(suite)))
    ET.SubElement(suite, "system-out").text = clean_text("\n".join(list_sentences(comparison)))
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _add_case(suite: ET.Element, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=SUITE, name=clean_text(name))


def _add_child(case: ET.Element, tag: str, message: str, kind: str | None) -> None:
    child = ET.SubElement(case, tag, message=clean_text(message))
    if kind is not None and tag != "skipped":
        child.set("type", kind)


def make_markdown(comparison: Comparison) -> str:
    """Return tables for GitHub and GitLab; nothing in a cell is markup."""
    lines = [f"**{escape_markup(describe_verdict(comparison))}**", ""]
    for contrast in comparison.contrasts:
        lines += [f"### {escape_markup(format_title(contrast))}", "", _make_line(list_columns(contrast))]
        lines += [_make_line(["---"] * len(list_columns(contrast)), raw=True)]
        lines += [_make_line(format_pair(pair)) for pair in contrast.pairs]
        lines.append("")
    lines += [f"- {escape_markup(line)}" for line in list_sentences(comparison)[:-1]]
    return "\n".join(lines).rstrip() + "\n"


def _make_line(cells: Sequence[str], raw: bool = False) -> str:
    return f"| {' | '.join(cells if raw else map(escape_markup, cells))} |"


def escape_markup(text: str) -> str:
    """Return plain text for Markdown: one line without tags, links, emphasis and mentions."""
    one_line = clean_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return MARKUP.sub(r"\\\1", one_line)
