"""A comparison as charts: bars of throughput and of its ratios, side by side for the values of the compared key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from scalebench.analysis.comparison import Comparison, Pair
from scalebench.analysis.comparison.pairing import ComparisonRow
from scalebench.analysis.comparison.ratio_tests import MIN_UNITS_FOR_TEST
from scalebench.core.stats.estimates import Estimate
from scalebench.core.stats.log_means import mean_of_repeats
from scalebench.core.units import format_count
from scalebench.report import document as doc

MAX_PLACES = 40  # of a chart; names of more are not readable
DEVICES_KEY = "gpus"  # of labels
TAG_KEYS = ("model", "strategy", "hardware")
INTERVALS = f"Intervals: 95 %, over repeats where a side has {MIN_UNITS_FOR_TEST} or more; dots: single repeats"


@dataclass
class _Place:
    """The rows of one label: the bars that stand side by side, by value of the compared key."""

    label: dict[str, str]
    rows: dict[str, ComparisonRow] = field(default_factory=dict)
    pairs: dict[str, Pair] = field(default_factory=dict)


def make_comparison_charts(comparison: Comparison) -> list[doc.Chart]:
    """Make two charts for each number of devices: samples/s of all values, and their ratios to the base.

    Rows without a partner are in neither, as in the tables; without a pair there is no chart.
    """
    if not comparison.contrasts:
        return []
    base, key = comparison.contrasts[0].a, comparison.by or "side"
    values = list(dict.fromkeys([base, *(contrast.b for contrast in comparison.contrasts)]))
    by_devices = sorted(_list_places(comparison), key=_count_devices)
    charts: list[doc.Chart] = []
    for _, group in groupby(by_devices, key=_count_devices):
        charts += _make_charts_of_count(list(group), values, key)
    return charts


def _list_places(comparison: Comparison) -> list[_Place]:
    places: dict[tuple[str, ...], _Place] = {}
    for contrast in comparison.contrasts:
        for pair in contrast.pairs:
            place = places.setdefault(tuple(pair.label.values()), _Place(pair.label))
            place.rows.setdefault(contrast.a, pair.a)
            place.rows[contrast.b] = pair.b
            place.pairs[contrast.b] = pair
    return list(places.values())


def _count_devices(place: _Place) -> int:
    """Return the number of devices; 0 where they are what is compared."""
    text = place.label.get(DEVICES_KEY, "")
    return int(text) if text.isdecimal() else 0


def _make_charts_of_count(places: Sequence[_Place], values: Sequence[str], key: str) -> Iterator[doc.Chart]:
    count = _count_devices(places[0])
    shown = places[:MAX_PLACES]
    on = f" on {format_count(count, 'device')}" if count else ""
    left_out = "" if len(shown) == len(places) else f", the first {MAX_PLACES} of {len(places)} configurations"
    axis = doc.Axis(" ".join(name for name in shown[0].label if name != DEVICES_KEY))
    names = _name_places(shown)
    rates = [_make_series(shown, names, value, False) for value in values]
    title, about = f"Throughput by {key}{on}{left_out}", "samples/s in steady state, more is better"
    yield doc.Chart(_make_id("throughput", key, count), title, axis, doc.Axis("samples/s"), rates, "bars",
                doc.join_sentences(about, INTERVALS))  # fmt: skip
    ratios = [_make_series(shown, names, value, True) for value in values[1:]]
    title, about = f"Ratio to {values[0]} by {key}{on}{left_out}", f"throughput over that of {values[0]}"
    yield doc.Chart(_make_id("ratio", key, count), title, axis, doc.Axis(f"ratio to {values[0]}"), ratios, "bars",
                doc.join_sentences(about, "intervals: 95 %, of each pair alone"))  # fmt: skip


def _name_places(places: Sequence[_Place]) -> list[str]:
    """Name each place by what differs between the places, by all of its label but the devices if nothing does."""
    varying = [name for name in places[0].label if len({place.label[name] for place in places}) > 1]
    names = varying or [name for name in places[0].label if name != DEVICES_KEY]
    return [" ".join(place.label[name] for name in names) or "all" for place in places]


def _make_series(places: Sequence[_Place], names: Sequence[str], value: str, is_ratio: bool) -> doc.Series:
    """Make the bars of one value of the key: its throughputs with their repeats, or the ratios of its pairs."""
    x: list[str] = []
    estimates: list[Estimate] = []
    repeats: list[list[float]] = []
    tags: list[doc.Tags] = []
    for place, name in zip(places, names, strict=True):
        if value not in (place.pairs if is_ratio else place.rows):
            continue
        pair = place.pairs.get(value)
        if is_ratio and pair is not None:
            estimates.append(pair.interval or Estimate(pair.ratio))
        else:
            estimates.append(_estimate_rate(place.rows[value]))
        x.append(name)
        repeats.append([] if is_ratio else place.rows[value].rates)
        tags.append({key: place.label[key] for key in TAG_KEYS if key in place.label})
    low, high = ([each.limits[end] for each in estimates] for end in (0, 1))
    return doc.Series(value, x, [each.value for each in estimates], low, high, point_tags=tags, repeats=repeats)


def _estimate_rate(row: ComparisonRow) -> Estimate:
    """Return the throughput of a row, with limits if it has repeats enough to show how they vary."""
    return mean_of_repeats(row.rates).to_estimate() if len(row.rates) >= MIN_UNITS_FOR_TEST else Estimate(row.rate)


def _make_id(figure: str, key: str, count: int) -> str:
    text = re.sub(r"[^a-z0-9]+", "-", f"compare {figure} {key} {count or ''}".lower())
    return text.strip("-")[: doc.MAX_ID_LENGTH].strip("-")
