"""The history of a saved baseline shown: as text with a drawing, as JSON, and as a chart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalebench.analysis.comparison.drift import MIN_SESSIONS, Change, ConfigurationHistory, SessionLevel
from scalebench.analysis.rows import interval_cells
from scalebench.core.machine.machine import MachineClass
from scalebench.core.stats.estimates import Estimate, scale_estimate
from scalebench.core.units import format_count
from scalebench.core.untrusted import clean_line
from scalebench.report import document as doc
from scalebench.report.comparison.comparison_text import format_label, format_p, format_speed_ratio
from scalebench.report.tables import format_throughput

DRAWING_WIDTH = 40  # characters between the limits of all sessions
MIN_DRAWN_SPAN = 0.02  # of the throughput: less would draw noise from edge to edge
MARK = "<- first that differs"
MAX_DIFFERENCES = 10


@dataclass(frozen=True)
class MachineHistory:
    """The histories of one baseline on machines of one class."""

    kind: MachineClass
    configurations: Sequence[ConfigurationHistory]


def list_history_lines(name: str, histories: Sequence[MachineHistory]) -> Iterator[str]:
    """Yield the lines that a terminal shows: the sessions of each configuration, and what has changed."""
    for history in histories:
        yield clean_line(f"baseline '{name}' on {history.kind}")
        for configuration in history.configurations:
            yield ""
            yield clean_line(f"{format_label(configuration.label)}: {describe_change(configuration)}")
            yield from _list_session_lines(configuration)
            if configuration.change is not None:
                yield from _list_difference_lines(configuration.change)


def describe_change(configuration: ConfigurationHistory) -> str:
    """Return `slower since session 7 (2026-02-19 03:00): 0.92 [0.90, 0.94], p < 0.001 (Holm)`."""
    change = configuration.change
    if change is not None:
        when = _format_time(configuration.sessions[change.first])
        ratio = format_speed_ratio(change.ratio.ratio, change.ratio.interval)
        how = "slower" if change.is_slower else "faster"
        return f"{how} since session {change.first + 1} ({when}): {ratio}, p {format_p(change.p_holm)} (Holm)"
    count = sum(session.rate is not None for session in configuration.sessions)
    if not configuration.has_verdict:
        return f"no verdict from {format_count(count, 'session')}: {MIN_SESSIONS} are needed; compare --save adds one"
    return f"no change resolved in {count} sessions"


def _list_session_lines(configuration: ConfigurationHistory) -> Iterator[str]:
    drawings = _draw([session.rate for session in configuration.sessions])
    first = None if configuration.change is None else configuration.change.first
    for number, (session, drawing) in enumerate(zip(configuration.sessions, drawings, strict=True)):
        rate = clean_line(session.note) if session.rate is None else _format_rate(session.rate)
        mark = MARK if number == first else ""
        yield f"{number + 1:>4}  {_format_time(session)}  {rate:>26}  {drawing}  {mark}".rstrip()


def _format_rate(rate: Estimate) -> str:
    return format_throughput({**_make_rate_cells(rate), "interval_over": "repeats"}, " samples/s")


def _draw(rates: Sequence[Estimate | None]) -> list[str]:
    """Return a line for each rate: its mean as a dot between its limits, all to one scale."""
    present = [rate for rate in rates if rate is not None]
    if not present:
        return ["" for _ in rates]
    middle = present[0].value
    ends = [end for rate in present for end in (rate.low, rate.value, rate.high) if math.isfinite(end)]
    low = min(*ends, middle * (1 - MIN_DRAWN_SPAN / 2))
    high = max(*ends, middle * (1 + MIN_DRAWN_SPAN / 2))

    def place(value: float) -> int:
        value = min(max(value, low), high) if not math.isnan(value) else middle
        return round((value - low) / (high - low) * (DRAWING_WIDTH - 1))

    lines = []
    for rate in rates:
        cells = [" "] * DRAWING_WIDTH
        if rate is not None:
            if math.isfinite(rate.low) and math.isfinite(rate.high):
                cells[place(rate.low) : place(rate.high) + 1] = "-" * (place(rate.high) - place(rate.low) + 1)
            cells[place(rate.value)] = "o"
        lines.append(f"|{''.join(cells)}|")
    return lines


def _list_difference_lines(change: Change) -> Iterator[str]:
    for key, before, after, _ in change.differences[:MAX_DIFFERENCES]:
        yield f"      changed with it: {clean_line(f'{key}: {before} -> {after}')}"
    if (more := len(change.differences) - MAX_DIFFERENCES) > 0:
        yield f"      {more} more differences: --format json lists all"


def _format_time(session: SessionLevel) -> str:
    return f"{session.started:%Y-%m-%d %H:%M}"


def make_history_json(name: str, histories: Sequence[MachineHistory], status: str, exit_status: int) -> str:
    """Return the histories as JSON; what is unknown is null."""
    tree = {
        "baseline": name,
        "status": status,
        "exit_status": exit_status,
        "machines": [
            {"machine": str(history.kind), "configurations": [_make_tree(each) for each in history.configurations]}
            for history in histories
        ],
    }
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def _make_tree(configuration: ConfigurationHistory) -> dict[str, object]:
    change = configuration.change
    return {
        "label": configuration.label,
        "sessions": [
            {
                "started_at": session.started.isoformat(),
                **_make_rate_cells(session.rate),
                "repeats": len(session.repeats),
                "note": session.note or None,
            }
            for session in configuration.sessions
        ],
        "change": None
        if change is None
        else {
            "first_session": change.first + 1,
            **interval_cells("ratio", "ratio", change.ratio.ratio, change.ratio.interval),
            "p_holm": change.p_holm,
            "differences": [{"key": key, "before": a, "after": b} for key, a, b, _ in change.differences],
        },
    }


def _make_rate_cells(rate: Estimate | None) -> dict[str, float | None]:
    return interval_cells(doc.THROUGHPUT, "throughput", None if rate is None else rate.value, rate)


def make_history_charts(name: str, histories: Sequence[MachineHistory]) -> list[doc.Chart]:
    """Make a chart for each class of machine: throughput over sessions, relative to those before the change."""
    charts = []
    for number, history in enumerate(histories, 1):
        shown = history.configurations[: doc.MAX_CURVES]
        series = [line for configuration in shown for line in _make_series(configuration)]
        title = f"Sessions of baseline {name}" + (f" on {history.kind}" if len(histories) > 1 else "")
        caption = "Throughput over the mean of the sessions before the change, or of all; limits: 95 %, over repeats"
        y = doc.Axis("relative throughput", from_zero=False)
        count = max(len(configuration.sessions) for configuration in shown)
        x = doc.Axis("session", ticks=range(1, count + 1))
        charts.append(doc.Chart(f"history-{number}", title, x, y, series, "lines", caption))
    return charts


def _make_series(configuration: ConfigurationHistory) -> Iterator[doc.Series]:
    """Yield the line of a configuration, and the marker of the first session that differs."""
    sessions, change, name = configuration.sessions, configuration.change, format_label(configuration.label)
    values = [None if session.rate is None else session.rate.value for session in sessions]
    before = [value for value in values[: None if change is None else change.first] if value is not None]
    if not before:
        return
    mean = math.exp(math.fsum(map(math.log, before)) / len(before))
    places = [float(number + 1) for number in range(len(sessions))]
    limits = [
        (None, None) if session.rate is None else scale_estimate(session.rate, 1 / mean).limits for session in sessions
    ]
    repeats = [[rate / mean for rate in session.repeats] for session in sessions]
    notes = [_format_time(session) for session in sessions]
    shares = [None if value is None else value / mean for value in values]
    low, high = zip(*limits, strict=True)
    yield doc.Series(name, places, shares, low, high, notes=notes, repeats=repeats)
    if change is not None:
        text = f"{name}: first that is {'slower' if change.is_slower else 'faster'}"
        yield doc.Series(text, [places[change.first]], [shares[change.first]], style="published")
