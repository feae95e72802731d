"""Which colour, dash and marker a line has: a strategy the same in every chart of a report. Layer 3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalebench.report.blocks import Chart, Series

COLOURS = 8  # --c0 to --c7 in page.css, one set for each theme
DASHES = "solid dash dot dashdot longdash longdashdot".split()
SYMBOLS = "circle square diamond triangle-up triangle-down star hexagon cross".split()
PATTERNS = ["", "/", "\\", ".", "x", "-"]  # of bars


@dataclass(frozen=True)
class Look:
    """`slot` is the number of a colour; None is grey."""

    slot: int | None
    dash: str
    symbol: str
    pattern: str


IDEAL = Look(None, "dash", "circle", "")


class Looks:
    """Made once from all charts. Where colours end, dashes, markers and patterns still tell strategies apart."""

    def __init__(self, charts: Iterable[Chart]) -> None:
        self._places: dict[tuple[str, str], int] = {}
        counts = {"strategy": 0, "name": 0}
        for key in (key for chart in charts for key in _keys(chart) if key is not None):
            if key not in self._places:
                self._places[key] = counts[key[0]]
                counts[key[0]] += 1

    def of(self, chart: Chart) -> Sequence[Look]:
        """One for each series. The second line of a strategy in one chart has its colour, another dash and marker."""
        seen: dict[tuple[str, str], int] = {}
        found = []
        for key in _keys(chart):
            if key is None:
                found.append(IDEAL)
                continue
            found.append(_look(self._places[key], seen.get(key, 0)))
            seen[key] = seen.get(key, 0) + 1
        return found


def _keys(chart: Chart) -> list[tuple[str, str] | None]:
    """What each series has its look for: its strategy, or its name where that tells more; None for ideal lines.

    Parts that are stacked have names, and so have the clocks or parts of one strategy: all would be of its colour.
    """
    drawn = [series for series in chart.series if series.style != "ideal"]
    strategies, names = {_strategy(series) for series in drawn}, {series.name for series in drawn}
    named = chart.kind == "stacked" or len(strategies) == 1 < len(names)
    return [
        None
        if series.style == "ideal"
        else ("name", series.name)
        if named or not _strategy(series)
        else ("strategy", _strategy(series))
        for series in chart.series
    ]


def _strategy(series: Series) -> str:
    return series.tags.get("strategy", "")


def _look(place: int, variant: int) -> Look:
    number = place + variant + place // COLOURS  # the ninth strategy has the first one's colour, and another dash
    symbol = SYMBOLS[number % len(SYMBOLS)] + ("-open" if variant % 2 else "")
    return Look(place % COLOURS, DASHES[number % len(DASHES)], symbol, PATTERNS[(variant + place // COLOURS) % 6])
