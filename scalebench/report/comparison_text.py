"""A comparison for people: tables in the terminal, and the words around them. Layer 3."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from scalebench.analysis.comparison import (
    FAILED_RUN,
    NO_INTERVAL,
    NOT_COMPARABLE,
    OK,
    REGRESSION,
    SAME,
    UNRESOLVED,
    Comparison,
    Contrast,
    Pair,
)
from scalebench.core.stats.estimates import Estimate
from scalebench.core.units import format_number

EXIT = {OK: 0, REGRESSION: 3, NOT_COMPARABLE: 4, FAILED_RUN: 5}
MOST_TOLD = 20  # rows without a partner, and differences
WIDTH = 200  # of a file or a pipe
BLOCKS = "over blocks of one launch: the interval misses what differs between launches (measure.repeats=3 shows it)"


def text(found: Comparison, width: int = WIDTH) -> str:
    """Tables and sentences as a terminal shows them, without colours."""
    import rich.console

    out = io.StringIO()
    console = rich.console.Console(file=out, width=width, highlight=False, color_system=None)
    for contrast in found.contrasts:
        console.print(_table(contrast))
    for line in sentences(found):
        console.print(printable(line), markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def printable(text: str) -> str:
    """One line without what would move a terminal's cursor, or could not be written at all."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def columns(contrast: Contrast) -> list[str]:
    a, b = (f"{name} samples/s" for name in (contrast.a, contrast.b))
    return [*contrast.pairs[0].label, a, b, f"{contrast.b} / {contrast.a} (95 %)", "p (Holm)", "test", "verdict"]


def cells(pair: Pair) -> list[str]:
    """One pair as the columns have it."""
    verdict = "REGRESSION" if pair.regression else pair.verdict
    rates = [format_number(pair.a.rate), format_number(pair.b.rate)]
    return [*pair.label.values(), *rates, ratio(pair.ratio, pair.interval), p_value(pair.p_holm), pair.test, verdict]


def title(found: Contrast) -> str:
    return f"{found.b} over {found.a}"


def _table(contrast: Contrast) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(printable(title(contrast))), title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True
    )
    names = columns(contrast)
    words = {*contrast.pairs[0].label, "test", "verdict"}
    for name in names:
        table.add_column(Text(printable(name)), justify="left" if name in words else "right")
    for pair in contrast.pairs:
        table.add_row(*map(Text, map(printable, cells(pair))))  # Text: rich would take brackets for markup
    return table


def sentences(found: Comparison) -> list[str]:
    """What is to be said below the tables, the verdict last."""
    lines = [summary(contrast) for contrast in found.contrasts]
    lines += [line for contrast in found.contrasts for line in told_differences(contrast)]
    lines += list(dict.fromkeys(f"note: {note}" for pair in found.pairs for note in pair.notes))
    lines += [f"note: {note}" for note in found.notes]
    if found.ignored:
        lines.append(f"note: left out of the pairing: {', '.join(found.ignored)}")
    if any(pair.test.startswith("blocks") for pair in found.pairs):
        lines.append(f"note: {BLOCKS}")
    if any(pair.verdict == NO_INTERVAL for pair in found.pairs):
        lines.append("note: no interval, no verdict: three launches on one side give one (measure.repeats=3)")
    lines += _limited([f"{one.side} {label(one.label)}: {one.reason}" for one in found.unpaired], "rows")
    return [*lines, verdict(found)]


def summary(contrast: Contrast) -> str:
    """`gpu2 over gpu1: median of 6 pairs 4.40 [4.10, 4.60], from 4.02 to 4.71`"""
    known = [pair.ratio for pair in contrast.pairs]
    if len(known) == 1:
        return f"{title(contrast)}: {ratio(known[0], contrast.pairs[0].interval)}, one pair"
    middle = ratio(contrast.median, contrast.median_interval)
    of = "" if contrast.median_interval is None else " (95 % of the median of such pairs, sign test)"
    span = f"from {times(min(known))} to {times(max(known))}"
    return f"{title(contrast)}: median of {len(known)} pairs {middle}{of}, {span}"


def told_differences(contrast: Contrast) -> list[str]:
    """`also differs in versions.torch: 2.8, 2.9 (6 of 6 pairs)`"""
    count = len(contrast.pairs)
    return _limited(
        [f"also differs, {title(contrast)}: {key}: {a}, {b} ({pairs} of {count} pairs)"
         for key, a, b, pairs in contrast.differences],
        "differences",
    )  # fmt: skip


def verdict(found: Comparison) -> str:
    """The last line: what the exit code says too."""
    if found.status == NOT_COMPARABLE:
        return f"not comparable: {found.refusal}"
    if found.status == FAILED_RUN:
        failed = [one for one in found.unpaired if one.failed]
        return f"failed run: {_count(failed, 'run')} failed, such as {label(failed[0].label)}: {failed[0].reason}"
    if found.status == REGRESSION:
        worst = min((pair for pair in found.pairs if pair.regression), key=lambda pair: pair.ratio)
        slower = [pair for pair in found.pairs if pair.regression]
        beyond = f"slower by more than {100 * (found.threshold or 0):g} %"
        return f"regression: {len(slower)} of {len(found.pairs)} pairs {beyond}, most {label(worst.label)}"
    told = found.pairs
    if all(pair.verdict == SAME for pair in told):
        return f"no difference: {_count(told, 'pair')}, both sides the same runs"
    words = [(word, sum(pair.verdict == word for pair in told)) for word in dict.fromkeys(p.verdict for p in told)]
    by = f", at 5 % after Holm over {_count([p for p in told if p.p is not None], 'pair')}"
    gate = "" if found.threshold is None else f"no regression beyond {100 * found.threshold:g} %: "
    said = ", ".join(f"{count} {word}" for word, count in words)
    return f"{gate}{said}{by if {UNRESOLVED, 'faster', 'slower'} & dict(words).keys() else ''}"


def _limited(lines: list[str], what: str) -> list[str]:
    left = len(lines) - MOST_TOLD
    return lines if left <= 0 else [*lines[:MOST_TOLD], f"and {left} more {what} (--format json has all)"]


def _count(things: Iterable[object], name: str) -> str:
    count = len(list(things))
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def label(told: dict[str, str]) -> str:
    """`ddp_gloo gpus=2 precision=tf32`"""
    return " ".join(value if key in ("model", "strategy") else f"{key}={value}" for key, value in told.items())


def ratio(value: float, interval: Estimate | None) -> str:
    """`0.952 [0.941, 0.963]`, three decimals, and three digits from 10 on; a limit that there is not is `inf`."""
    if interval is None:
        return times(value)
    return f"{times(value)} [{times(interval.low)}, {times(interval.high)}]"


def times(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def p_value(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
