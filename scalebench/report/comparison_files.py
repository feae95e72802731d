"""A comparison for programs: JSON, JUnit XML for CI servers, Markdown for comments of a pull request. Layer 3."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

from scalebench.analysis.comparison import NOT_COMPARABLE, Comparison, Contrast, Pair
from scalebench.analysis.comparison.pairing import ComparisonRow
from scalebench.analysis.comparison.unmatched import UnmatchedRow
from scalebench.core.stats.estimates import Estimate
from scalebench.report.comparison_text import cells, columns, label, printable, ratio, sentences, title, verdict

VERSION = 1
SUITE = "scalebench.compare"
# What XML 1.0 cannot hold, escaped or not; lone surrogates stand for bytes that were no text.
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MARKUP = re.compile(r"([\\`*_\[\]#|~>$@]|:(?=//|\w+:)|^[-+])")


def as_json(found: Comparison, exit_code: int) -> str:
    """The schema is in docs/comparing.md; `version` rises when it changes otherwise than by new keys."""
    tree = {
        "version": VERSION,
        "status": found.status,
        "exit_code": exit_code,
        "by": found.by,
        "ignored": list(found.ignored),
        "threshold": found.threshold,
        "refusal": found.refusal,
        "contrasts": [_contrast(contrast) for contrast in found.contrasts],
        "unpaired": [_unpaired(one) for one in found.unpaired],
        "notes": found.notes,
    }
    return json.dumps(tree, indent=1, allow_nan=False) + "\n"


def _unpaired(one: UnmatchedRow) -> dict[str, Any]:
    return {
        "side": one.side,
        "row": one.label,
        "reason": one.reason,
        "failed": one.failed,
        "run_id": one.run_id or None,
    }


def _contrast(contrast: Contrast) -> dict[str, Any]:
    known = [pair.ratio for pair in contrast.pairs]
    return {
        "a": contrast.a,
        "b": contrast.b,
        "median": contrast.median,
        **_limits("median", contrast.median_interval),
        "least": min(known),
        "most": max(known),
        "differences": [{"key": key, "a": a, "b": b, "pairs": n} for key, a, b, n in contrast.differences],
        "pairs": [_pair(pair) for pair in contrast.pairs],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "row": pair.label,
        "a": _row(pair.a),
        "b": _row(pair.b),
        "ratio": pair.ratio,
        **_limits("ratio", pair.interval),
        "p": pair.p,
        "p_holm": pair.p_holm,
        "test": pair.test,
        "verdict": pair.verdict,
        "regression": pair.regression,
        "notes": list(pair.notes),
    }


def _row(row: ComparisonRow) -> dict[str, Any]:
    return {"run_ids": [launch.run_id for launch in row.measured], "throughput_samples_per_s": row.rate}


def _limits(name: str, interval: Estimate | None) -> dict[str, float | None]:
    """Null where there is no limit, for JSON has no infinity."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": None if high is None or math.isinf(high) else high}


def as_junit(found: Comparison, exit_code: int) -> str:
    """A test case for each pair: failure is a regression, error a failed run, skipped a row without a partner."""
    suite = ET.Element("testsuite", name=SUITE)
    for contrast in found.contrasts:
        for pair in contrast.pairs:
            case = _case(suite, f"{label(pair.label)}: {title(contrast)}")
            said = f"{pair.verdict}: {ratio(pair.ratio, pair.interval)}, {pair.test}"
            if pair.regression:
                _child(case, "failure", said, "regression")
            else:
                ET.SubElement(case, "system-out").text = _clean(said)
    for one in found.unpaired:
        case = _case(suite, f"{label(one.label)}: {one.side} {one.run_id}".rstrip())
        failed = one.failed and found.threshold is not None
        _child(case, "error" if failed else "skipped", one.reason, "failed run" if failed else None)
    if found.status == NOT_COMPARABLE:
        _child(_case(suite, "pairing"), "error" if exit_code else "skipped", found.refusal or "", NOT_COMPARABLE)
    tags = [child.tag for case in suite for child in case]
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(tags.count(tag)))
    suite.set("tests", str(len(suite)))
    ET.SubElement(suite, "system-out").text = _clean("\n".join(sentences(found)))
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ET.Element, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=SUITE, name=_clean(name))


def _child(case: ET.Element, tag: str, message: str, kind: str | None) -> None:
    child = ET.SubElement(case, tag, message=_clean(message))
    if kind is not None and tag != "skipped":
        child.set("type", kind)


def _clean(text: str) -> str:
    return NO_XML.sub("?", text)


def as_markdown(found: Comparison) -> str:
    """Tables as GitHub and GitLab show them; nothing in a cell is markup."""
    lines = [f"**{escaped(verdict(found))}**", ""]
    for contrast in found.contrasts:
        lines += [f"### {escaped(title(contrast))}", "", _line(columns(contrast))]
        lines += [_line(["---"] * len(columns(contrast)), raw=True)]
        lines += [_line(cells(pair)) for pair in contrast.pairs]
        lines.append("")
    lines += [f"- {escaped(line)}" for line in sentences(found)[:-1]]
    return "\n".join(lines).rstrip() + "\n"


def _line(words: Sequence[str], raw: bool = False) -> str:
    return f"| {' | '.join(words if raw else map(escaped, words))} |"


def escaped(text: str) -> str:
    """Plain text for Markdown: one line, no tag, no link, no emphasis, no mention."""
    one_line = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return MARKUP.sub(r"\\\1", one_line)
