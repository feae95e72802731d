"""A comparison as text for people, JSON, JUnit XML for CI servers, Markdown for a pull request, and charts."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable

from rich.text import Text

from scalebench.analysis import comparison as analysis
from scalebench.analysis.columns import interval_cells
from scalebench.analysis.comparison import Comparison, Contrast, Pair
from scalebench.analysis.comparison.rows import ComparisonRow
from scalebench.core.stats.estimates import Estimate
from scalebench.core.units import format_count, format_number
from scalebench.core.untrusted import clean_line, clean_text
from scalebench.report import document as doc
from scalebench.report import markdown, terminal_table

VERSION = 2
SUITE = "scalebench.compare"
EXIT_STATUS = {analysis.OK: 0, analysis.REGRESSION: 3, analysis.NOT_COMPARABLE: 4, analysis.FAILED_RUN: 5,
               analysis.TOO_LITTLE_DATA: 6}  # fmt: skip
MAX_LINES = 20  # The most rows without a partner, and the most differences, that are listed.
ALL = "--format json has all"
WIDTH = 200  # Characters of a line in a file or a pipe.
MAX_PLACES = 40  # Names of more places on a chart are not readable.


def format_blocks(blocks: Iterable[doc.Table | str], width: int = WIDTH) -> str:
    """Return tables and sentences as a terminal shows them, without colours; no sentence is broken."""
    import rich.console

    out = io.StringIO()
    console = rich.console.Console(file=out, width=width, highlight=False, color_system=None)
    for part in terminal_table.render(blocks):
        console.print(part, crop=False, soft_wrap=isinstance(part, Text))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def format_comparison(comparison: Comparison, width: int = WIDTH) -> str:
    """Return a table for each contrast, and the sentences below them."""
    return format_blocks([*map(_make_table, comparison.contrasts), *map(clean_line, list_sentences(comparison))], width)


def make_markdown(comparison: Comparison) -> str:
    """Return the verdict, the tables and the other sentences for GitHub and GitLab; nothing in a cell is markup."""
    *sentences, verdict = map(markdown.escape_paragraph, list_sentences(comparison))
    parts = [f"**{verdict}**"]
    for table in map(_make_table, comparison.contrasts):
        parts += [f"### {markdown.escape(table.title)}", markdown.render_table(table)]
    parts += ["\n".join(f"- {sentence}" for sentence in sentences)] if sentences else []
    return "\n\n".join(parts) + "\n"


def _make_table(contrast: Contrast) -> doc.Table:
    """Make the table of the pairs of a contrast."""
    numeric = (f"{contrast.a} samples/s", f"{contrast.b} samples/s", f"{contrast.b} / {contrast.a} (95 %)", "p (Holm)")
    rows = []
    for pair in contrast.pairs:
        rates, ratio = [format_number(side.rate) for side in (pair.a, pair.b)], format_times(pair.ratio, pair.interval)
        verdict = "REGRESSION" if pair.regression else pair.verdict
        texts = [*pair.label.values(), *rates, ratio, format_p(pair.p_holm), pair.test, verdict]
        rows.append(doc.Row(list(map(doc.Cell, texts))))
    keys = ("devices" if key == "gpus" else key for key in contrast.pairs[0].label)
    heads = [*keys, *numeric, "test", "verdict"]
    return doc.Table("comparison", f"{contrast.b} over {contrast.a}", heads, rows, frozenset(numeric))


def list_sentences(comparison: Comparison) -> list[str]:
    """List the lines below the tables, the verdict last."""
    lines = [summarize(contrast) for contrast in comparison.contrasts]
    for contrast in comparison.contrasts:
        of = f"of {len(contrast.pairs)} pairs"
        differences = [f"also differs, {contrast.b} over {contrast.a}: {key}: {a}, {b} ({pairs} {of})"
                       for key, a, b, pairs in contrast.differences]  # fmt: skip
        lines += doc.limit_texts(differences, MAX_LINES, f"and {{}} more differences ({ALL})")
    verdict = describe_verdict(comparison)
    notes = dict.fromkeys(note for pair in comparison.pairs for note in pair.notes if note not in verdict)
    lines += [f"note: {note}" for note in (*notes, *comparison.notes)]
    if comparison.ignored:
        lines.append(f"note: left out of the pairing: {', '.join(comparison.ignored)}")
    unmatched = [f"{row.side} {format_label(row.label)}: {row.reason}" for row in comparison.unmatched]
    return [*lines, *doc.limit_texts(unmatched, MAX_LINES, f"and {{}} more rows ({ALL})"), verdict]


def summarize(contrast: Contrast) -> str:
    """Return `gpu2 over gpu1: median of 6 pairs 4.40 [4.10, 4.60], from 4.02 to 4.71`."""
    ratios, title = [pair.ratio for pair in contrast.pairs], f"{contrast.b} over {contrast.a}"
    if len(ratios) == 1:
        return f"{title}: {format_times(ratios[0], contrast.pairs[0].interval)}, one pair"
    middle = format_times(contrast.median, contrast.median_interval)
    of = "" if contrast.median_interval is None else " (95 % of the median of such pairs, sign test)"
    span = f"from {format_times(min(ratios))} to {format_times(max(ratios))}"
    return f"{title}: median of {len(ratios)} pairs {middle}{of}, {span}"


def describe_verdict(comparison: Comparison) -> str:
    """Return the last line, which says the same as the exit status."""
    pairs, status = comparison.pairs, comparison.status
    if status == analysis.NOT_COMPARABLE:
        return f"not comparable: {comparison.refusal}"
    if status == analysis.FAILED_RUN:
        failed = [row for row in comparison.unmatched if row.failed]
        example = f"{format_label(failed[0].label)}: {failed[0].reason}"
        return f"failed run: {format_count(len(failed), 'run')} failed, such as {example}"
    if status == analysis.REGRESSION:
        slower = [pair for pair in pairs if pair.regression]
        worst = format_label(min(slower, key=lambda pair: pair.ratio).label)
        beyond = f"slower by more than {100 * (comparison.threshold or 0):g} %"
        return f"regression: {len(slower)} of {len(pairs)} pairs {beyond}, most {worst}"
    lacking = [pair for pair in pairs if pair.verdict == analysis.NO_VERDICT]
    if status == analysis.TOO_LITTLE_DATA:
        example = f"{format_label(lacking[0].label)}: {lacking[0].notes[-1].removeprefix('no verdict: ')}"
        return f"too little data: no verdict on {len(lacking)} of {len(pairs)} pairs, such as {example}"
    if len(lacking) == len(pairs):
        return f"undecided: {lacking[0].notes[-1]}"
    if all(pair.verdict == analysis.SAME for pair in pairs):
        return f"no difference: {format_count(len(pairs), 'pair')}, both sides the same runs"
    words = Counter(pair.verdict for pair in pairs)
    by = f", at 5 % after Holm over {format_count(sum(pair.p is not None for pair in pairs), 'pair')}"
    gate = "" if comparison.threshold is None else f"no regression beyond {100 * comparison.threshold:g} %: "
    counts = ", ".join(f"{count} {word}" for word, count in words.items())
    return f"{gate}{counts}{by if {analysis.UNRESOLVED, analysis.FASTER, analysis.SLOWER} & words.keys() else ''}"


def format_label(label: dict[str, str]) -> str:
    """Return `ddp_gloo gpus=2 precision=tf32`."""
    return " ".join(value if key in ("model", "strategy") else f"{key}={value}" for key, value in label.items())


def format_times(value: float, interval: Estimate | None = None) -> str:
    """Return `0.952 [0.941, 0.963]`: three decimals, and three digits from 10 on; a missing limit is `inf`."""
    text = f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
    return text if interval is None else f"{text} [{format_times(interval.low)}, {format_times(interval.high)}]"


def format_p(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def make_json(comparison: Comparison, exit_code: int) -> str:
    """Return the comparison as JSON. Its keys are in docs/reference/results.md; only new keys keep `version`."""

    def pick(source: object, names: str) -> dict[str, object]:
        return {name: getattr(source, name) for name in names.split()}

    def list_side(row: ComparisonRow) -> dict[str, object]:
        return {"run_ids": row.run_ids, "sessions": len(row.sessions), "throughput_samples_per_s": row.rate}

    contrasts = [
        {
            **pick(contrast, "a b"),
            **interval_cells("median", contrast.median_interval or Estimate(contrast.median)),
            "least": min(pair.ratio for pair in contrast.pairs),
            "most": max(pair.ratio for pair in contrast.pairs),
            "differences": [{"key": key, "a": a, "b": b, "pairs": n} for key, a, b, n in contrast.differences],
            "pairs": [
                {
                    "row": pair.label,
                    "a": list_side(pair.a),
                    "b": list_side(pair.b),
                    **interval_cells("ratio", pair.interval or Estimate(pair.ratio)),
                    **pick(pair, "p p_holm test verdict regression notes"),
                }
                for pair in contrast.pairs
            ],
        }
        for contrast in comparison.contrasts
    ]
    unpaired = [
        {"side": row.side, "row": row.label, **pick(row, "reason failed"), "run_id": row.run_id or None}
        for row in comparison.unmatched
    ]
    head = {"version": VERSION, "status": comparison.status, "exit_code": exit_code}
    tree = {**head, **pick(comparison, "by ignored threshold refusal"), "contrasts": contrasts, "unpaired": unpaired}
    return json.dumps({**tree, "notes": comparison.notes}, indent=1, allow_nan=False) + "\n"


def make_junit(comparison: Comparison, exit_code: int) -> str:
    """Return JUnit XML with a test case for each pair.

    A failure is a regression, an error a failed run or, at a gate, a pair without a verdict; a row without a partner is
    skipped.
    """
    cases: list[tuple[str, str, str, str]] = []  # Name, tag, message, and type of a failure or an error.
    for contrast in comparison.contrasts:
        for pair in contrast.pairs:
            name = f"{format_label(pair.label)}: {contrast.b} over {contrast.a}"
            text = f"{pair.verdict}: {format_times(pair.ratio, pair.interval)}, {pair.test}"
            if pair.regression:
                cases.append((name, "failure", text, "regression"))
            elif pair.verdict == analysis.NO_VERDICT:
                tag = "error" if exit_code == EXIT_STATUS[analysis.TOO_LITTLE_DATA] else "skipped"
                cases.append((name, tag, pair.notes[-1], analysis.TOO_LITTLE_DATA))
            else:
                cases.append((name, "system-out", text, ""))
    for row in comparison.unmatched:
        tag = "error" if row.failed and comparison.threshold is not None else "skipped"
        name = f"{format_label(row.label)}: {row.side} {row.run_id}".rstrip()
        cases.append((name, tag, row.reason, "failed run"))
    if comparison.status == analysis.NOT_COMPARABLE:
        tag = "error" if exit_code else "skipped"
        cases.append(("pairing", tag, comparison.refusal or "", analysis.NOT_COMPARABLE))

    tags = Counter(tag for _, tag, *_ in cases)
    counts = {"failures": tags["failure"], "errors": tags["error"], "skipped": tags["skipped"], "tests": len(cases)}
    suites = ET.Element("testsuites")
    suite = ET.SubElement(suites, "testsuite", {"name": SUITE, **{name: str(n) for name, n in counts.items()}})
    for name, tag, message, kind in cases:
        case = ET.SubElement(suite, "testcase", classname=SUITE, name=clean_text(name))
        if tag == "system-out":
            ET.SubElement(case, tag).text = clean_text(message)
        else:
            ET.SubElement(case, tag, {"message": clean_text(message), **({} if tag == "skipped" else {"type": kind})})
    ET.SubElement(suite, "system-out").text = clean_text("\n".join(list_sentences(comparison)))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def make_comparison_charts(comparison: Comparison) -> list[doc.Chart]:
    """Make a chart of the ratios of all values to the base for each number of devices.

    Rows without a partner are in none, as in the tables; without a pair there is no chart.
    """
    counts: dict[int, dict[str, dict[str, Pair]]] = {}  # By number of devices (0 where these are compared) and value.
    for contrast in comparison.contrasts:
        for pair in contrast.pairs:
            count = int(gpus) if (gpus := pair.label.get("gpus", "")).isdecimal() else 0
            counts.setdefault(count, {}).setdefault(contrast.b, {})[_name_place(pair)] = pair
    charts = []
    for count, values in sorted(counts.items()):
        names = list(dict.fromkeys(name for pairs in values.values() for name in pairs))
        base, key = comparison.contrasts[0].a, comparison.by or "side"
        on = f" on {format_count(count, 'device')}" if count else ""
        on += f", the first {MAX_PLACES} of {len(names)} configurations" if len(names) > MAX_PLACES else ""
        series = []
        for value, pairs in values.items():
            shown = {name: pairs[name] for name in names[:MAX_PLACES] if name in pairs}
            ratios = [pair.interval or Estimate(pair.ratio) for pair in shown.values()]
            low, high = zip(*(ratio.limits for ratio in ratios), strict=True)
            tags = [{name: pair.label[name] for name in doc.TAG_COLUMNS if name in pair.label}
                    for pair in shown.values()]  # fmt: skip
            y = [ratio.value for ratio in ratios]
            series.append(doc.Series(value, [*shown], y, low, high, point_tags=tags))
        label = next(iter(next(iter(values.values())).values())).label
        x, title = doc.Axis(" ".join(name for name in label if name != "gpus")), f"Ratio to {base} by {key}{on}"
        about = f"Throughput over that of {base}. Intervals: 95 %, of each pair alone."
        chart_id = doc.make_id("compare", "ratio", key, str(count or ""))
        charts.append(doc.Chart(chart_id, title, x, doc.Axis(f"ratio to {base}"), series, "bars", about))
    return charts


def _name_place(pair: Pair) -> str:
    return " ".join(text for key, text in pair.label.items() if key != "gpus") or "all"
