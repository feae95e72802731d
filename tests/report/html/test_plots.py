"""Charts as figures of plotly: the frame's figures, bands, gaps, axes."""

from __future__ import annotations

import dataclasses
from typing import Any

import plotly.graph_objects as go
import pytest

from scalebench.report.document import Axis, Chart, Series
from scalebench.report.html.plots import ChartStyles, make_figure


def drawn(*series: Series, **changes: Any) -> dict[str, Any]:
    """The figure of one chart, which plotly's own checks have seen."""
    chart = Chart("c", "C", Axis("devices"), Axis("speedup"), series)
    chart = dataclasses.replace(chart, **changes)
    made = make_figure(chart, ChartStyles([chart]).of(chart))
    go.Figure(made)
    return made


def role(made: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [trace for trace in made["data"] if trace["meta"]["role"] == name]


def test_a_line_and_its_band() -> None:
    made = drawn(Series("a", [1, 2, 4], [1.0, 1.9, 3.5], [0.9, 1.8, 3.4], [1.1, 2.0, 3.6], {"strategy": "ddp"}))
    (line,), (band,) = role(made, "line"), role(made, "band")
    assert (line["x"], line["y"]) == ([1, 2, 4], [1.0, 1.9, 3.5])
    assert (band["x"], band["y"]) == ([1, 2, 4, 4, 2, 1], [0.9, 1.8, 3.4, 3.6, 2.0, 1.1])
    assert band["fill"] == "toself" and not band["showlegend"] and "error_y" not in line
    assert line["meta"]["tags"] == band["meta"]["tags"] == {"strategy": "ddp"}
    assert line["legendgroup"] == band["legendgroup"]
    assert line["customdata"][1] == "<br>95 %: 1.8 to 2"


def test_a_gap_parts_the_band_and_a_lone_point_gets_bars() -> None:
    low, high = [0.9, 1.8, None, 3.4, None, 7.0], [1.1, 2.0, None, 3.6, None, 7.2]
    made = drawn(Series("a", [1, 2, 3, 4, 5, 6], [1.0, 1.9, None, 3.5, 4.0, 7.1], low, high))
    (line,), (band,) = role(made, "line"), role(made, "band")
    assert band["x"] == [1, 2, 2, 1] and line["y"][2] is None
    assert line["error_y"]["array"] == [None, None, None, pytest.approx(0.1), None, pytest.approx(0.1)]


def test_two_stretches_are_two_shapes() -> None:
    low, high = [1.0, 2.0, None, 4.0, 5.0], [2.0, 3.0, None, 5.0, 6.0]
    (band,) = role(drawn(Series("a", [1, 2, 3, 4, 5], [1.5, 2.5, 3.5, 4.5, 5.5], low, high)), "band")
    assert band["x"] == [1, 2, 2, 1, None, 4, 5, 5, 4]


def test_a_limit_of_zero_has_no_place_on_a_logarithmic_axis() -> None:
    series = Series("a", [1, 2], [1.0, 1.0], [0.0, 0.5], [2.0, 2.0])
    assert len(role(drawn(series), "band")) == 1
    assert role(drawn(series, y=Axis("seconds", log=True)), "band") == []


def test_ideal_published_and_points() -> None:
    made = drawn(*(Series(style, [1, 2], [1, 2], style=style) for style in ("ideal", "published", "points")))
    (ideal,), (published,), (points,) = (role(made, name) for name in ("ideal", "published", "points"))
    assert ideal["line"]["dash"] == "dash" and ideal["meta"]["slot"] is None and ideal["mode"] == "lines"
    assert published["mode"] == points["mode"] == "markers"
    assert published["marker"]["symbol"].endswith("-open") and published["marker"]["size"] > points["marker"]["size"]


def test_bars_beside_and_upon_each_other() -> None:
    series = [Series("data", ["a", "b"], [0.1, -0.1], [0.0, -0.2], [0.2, 0.0]), Series("sync", ["b", "c"], [0.2, 0.3])]
    beside, upon = drawn(*series, kind="bars"), drawn(*series, kind="stacked")
    assert (beside["layout"]["barmode"], upon["layout"]["barmode"]) == ("group", "relative")
    assert beside["layout"]["xaxis"]["categoryarray"] == ["a", "b", "c"]
    assert beside["data"][0]["error_y"]["arrayminus"] == pytest.approx([0.1, 0.1])
    assert "error_y" not in upon["data"][0] and upon["data"][0]["y"] == [0.1, -0.1]


def test_bars_may_have_tags_of_their_own() -> None:
    tags = [{"strategy": "ddp"}, {"strategy": "mirrored"}]
    both, one = (
        Series("kept", ["ddp x 2", "mirrored x 2"], [0.9, 0.8], point_tags=tags),
        Series("lost", ["ddp x 2"], [1]),
    )
    first, second = drawn(both, one, kind="stacked")["data"]
    assert first["meta"]["points"] == tags and "points" not in second["meta"]


def test_numbers_as_categories_rise() -> None:
    made = drawn(Series("a", [4, 1], [1, 1]), Series("b", [2], [1]), kind="bars")
    assert made["layout"]["xaxis"]["categoryarray"] == [1, 2, 4]


def test_axes() -> None:
    ticks = Axis("devices", log=True, ticks=[1, 2, 4, 8])
    layout = drawn(Series("a", [1], [1]), x=ticks, y=Axis("share", percent=True))["layout"]
    assert layout["xaxis"]["type"] == "log" and layout["xaxis"]["ticktext"] == ["1", "2", "4", "8"]
    assert layout["yaxis"]["tickformat"] == ".0%" and layout["yaxis"]["rangemode"] == "tozero"


def test_long_series_have_no_markers() -> None:
    (line,) = role(drawn(Series("a", list(range(100)), list(range(100)))), "line")
    assert line["mode"] == "lines" and "marker" not in line


def test_names_notes_and_titles_are_text() -> None:
    series = Series("<b>x</b>", ["<i>"], [1.0], notes=["<a href='https://example.org'>go</a>"])
    made = drawn(series, kind="bars", x=Axis("<u>"))
    (bars,) = made["data"]
    assert bars["name"] == "&lt;b&gt;x&lt;/b&gt;" and bars["x"] == ["&lt;i&gt;"]
    assert "<a" not in bars["customdata"][0] and made["layout"]["xaxis"]["title"]["text"] == "&lt;u&gt;"


def test_infinity_and_nan_are_not_drawn() -> None:
    (line,) = role(drawn(Series("a", [1, 2, 3], [float("nan"), float("inf"), 0.1234567891234])), "line")
    assert line["y"] == [None, None, 0.123456789]
