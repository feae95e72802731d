"""Charts as figures of plotly, and their line styles and colours."""

import dataclasses
import itertools
import re

import plotly.graph_objects as go
import pytest

from scalebench.report.document import PARTS, Axis, Chart, Series
from scalebench.report.figures import COLOURS, PART_COLOURS
from scalebench.report.html.page import read_asset
from scalebench.report.html.plots import COLOUR_COUNT, ChartStyles, make_figure


def draw(*series, **changes):
    """The figure of one chart, which plotly's own checks have seen."""
    chart = Chart("c", "C", Axis("devices"), Axis("speedup"), series)
    chart = dataclasses.replace(chart, **changes)
    figure = make_figure(chart, ChartStyles([chart]).of(chart))
    go.Figure(figure)
    return figure


def select_traces(figure, name):
    return [trace for trace in figure["data"] if trace["meta"]["role"] == name]


def test_a_line_and_its_band():
    figure = draw(Series("a", [1, 2, 4], [1.0, 1.9, 3.5], [0.9, 1.8, 3.4], [1.1, 2.0, 3.6], {"strategy": "ddp"}))
    (line,), (band,) = select_traces(figure, "line"), select_traces(figure, "band")
    assert (line["x"], line["y"]) == ([1, 2, 4], [1.0, 1.9, 3.5])
    assert (band["x"], band["y"]) == ([1, 2, 4, 4, 2, 1], [0.9, 1.8, 3.4, 3.6, 2.0, 1.1])
    assert band["fill"] == "toself" and not band["showlegend"] and "error_y" not in line
    assert line["meta"]["tags"] == band["meta"]["tags"] == {"strategy": "ddp"}
    assert line["legendgroup"] == band["legendgroup"]
    assert line["customdata"][1] == "<br>95 %: 1.8 to 2"


def test_each_repeat_is_a_dot():
    figure = draw(Series("a", [1, 2], [1.0, 1.9], tags={"strategy": "ddp"}, repeats=[[0.9, 1.0, 1.1], [1.9]]))
    (line,), (dots,) = select_traces(figure, "line"), select_traces(figure, "repeat")
    assert (dots["x"], dots["y"]) == ([1, 1, 1, 2], [0.9, 1.0, 1.1, 1.9])
    assert dots["mode"] == "markers" and dots["marker"]["size"] < line["marker"]["size"] and not dots["showlegend"]
    assert dots["meta"]["slot"] == line["meta"]["slot"] and dots["legendgroup"] == line["legendgroup"]
    assert select_traces(draw(Series("a", [1, 2], [1.0, 1.9], repeats=[[], []])), "repeat") == []


def test_the_dots_of_bars_are_on_their_bars():
    """In plotly, points of one offsetgroup are beside each other as bars are."""
    repeated = Series("a", [1, 2], [1.0, 1.9], repeats=[[0.9, 1.0, 1.1], []])
    figure = draw(repeated, Series("b", [1, 2], [1.0, 1.9]), kind="bars")
    bars, (dots,) = select_traces(figure, "bar"), select_traces(figure, "repeat")
    assert (dots["x"], dots["y"]) == ([1, 1, 1], [0.9, 1.0, 1.1])
    assert [bar["offsetgroup"] for bar in bars] == ["0", "1"] and dots["offsetgroup"] == "0"
    assert figure["layout"]["scattermode"] == "group"
    stacked = draw(repeated, kind="stacked")
    assert select_traces(stacked, "repeat") == [] and "scattermode" not in stacked["layout"]


def test_a_fitted_line_is_dotted_and_goes_with_its_points():
    figure = draw(Series("a", [1, 2, 4], [1.0, 1.9, 3.5], tags={"strategy": "ddp"}, fit=[1.0, 1.8, 3.5]))
    (line,), (fit,) = select_traces(figure, "line"), select_traces(figure, "fit")
    assert (fit["x"], fit["y"], fit["line"]["dash"]) == ([1, 2, 4], [1.0, 1.8, 3.5], "dot")
    assert fit["legendgroup"] == line["legendgroup"] and fit["meta"]["slot"] == line["meta"]["slot"]


def test_few_bars_have_their_values_above_all_that_is_drawn_of_them():
    bars = Series(
        "a", ["x", "y", "z"], [1.655, 0.9, None], [1.5, None, None], [1.8, None, None], repeats=[[2.0], [], []]
    )
    (labels,) = select_traces(draw(bars, kind="bars"), "label")
    assert (labels["text"], labels["y"], labels["offsetgroup"]) == (["1.66", "0.9", ""], [2.0, 0.9, 0.0], "0")
    shares = select_traces(draw(bars, kind="bars", y=Axis("efficiency", percent=True)), "label")
    assert shares[0]["text"][1] == "90 %"
    many = Series("a", list(range(25)), [1.0] * 25)
    assert not select_traces(draw(many, kind="bars"), "label") and not select_traces(draw(bars), "label")


def test_dots_of_bars_have_the_tags_of_their_bar():
    tags = [{"strategy": "one"}, {"strategy": "two"}]
    figure = draw(Series("a", ["x", "y"], [1.0, 2.0], point_tags=tags, repeats=[[0.9, 1.1], [2.0]]), kind="bars")
    (dots,) = select_traces(figure, "repeat")
    assert dots["meta"]["points"] == [tags[0], tags[0], tags[1]]


def test_a_gap_parts_the_band_and_a_lone_point_gets_bars():
    low, high = [0.9, 1.8, None, 3.4, None, 7.0], [1.1, 2.0, None, 3.6, None, 7.2]
    figure = draw(Series("a", [1, 2, 3, 4, 5, 6], [1.0, 1.9, None, 3.5, 4.0, 7.1], low, high))
    (line,), (band,) = select_traces(figure, "line"), select_traces(figure, "band")
    assert band["x"] == [1, 2, 2, 1] and line["y"][2] is None
    assert line["error_y"]["array"] == [None, None, None, pytest.approx(0.1), None, pytest.approx(0.1)]


def test_two_stretches_are_two_shapes():
    low, high = [1.0, 2.0, None, 4.0, 5.0], [2.0, 3.0, None, 5.0, 6.0]
    (band,) = select_traces(draw(Series("a", [1, 2, 3, 4, 5], [1.5, 2.5, 3.5, 4.5, 5.5], low, high)), "band")
    assert band["x"] == [1, 2, 2, 1, None, 4, 5, 5, 4]


def test_a_limit_of_zero_has_no_place_on_a_logarithmic_axis():
    series = Series("a", [1, 2], [1.0, 1.0], [0.0, 0.5], [2.0, 2.0])
    assert len(select_traces(draw(series), "band")) == 1
    assert select_traces(draw(series, y=Axis("seconds", log=True)), "band") == []


def test_ideal_published_and_points():
    figure = draw(*(Series(style, [1, 2], [1, 2], style=style) for style in ("ideal", "published", "points")))
    (ideal,), (published,), (points,) = (select_traces(figure, name) for name in ("ideal", "published", "points"))
    assert ideal["line"]["dash"] == "dash" and ideal["meta"]["slot"] is None and ideal["mode"] == "lines"
    assert published["mode"] == points["mode"] == "markers"
    assert published["marker"]["symbol"].endswith("-open") and published["marker"]["size"] > points["marker"]["size"]


def test_bars_stand_beside_each_other():
    series = [Series("data", ["a", "b"], [0.1, -0.1], [0.0, -0.2], [0.2, 0.0]), Series("sync", ["b", "c"], [0.2, 0.3])]
    figure = draw(*series, kind="bars")
    assert figure["layout"]["barmode"] == "group" and figure["layout"]["xaxis"]["categoryarray"] == ["a", "b", "c"]
    assert figure["data"][0]["error_y"]["arrayminus"] == pytest.approx([0.1, 0.1])


def test_a_stack_lies_up_to_100_percent_with_a_marker_for_each_gain():
    parts = [Series("kept", ["a", "b"], [0.9, 0.6]), Series("data", ["a", "b"], [-0.1, 0.1], [-0.2, 0], [0, 0.2])]
    figure = draw(*parts, Series("sync", ["a", "b"], [0.2, 0.3]), kind="stacked", y=Axis("share", percent=True))
    bars = select_traces(figure, "bar")
    assert {bar["orientation"] for bar in bars} == {"h"} and figure["layout"]["barmode"] == "relative"
    assert figure["layout"]["yaxis"]["categoryarray"] == bars[0]["y"] == ["a", "b"], "the first bar is on top"
    assert [bar["x"] for bar in bars] == [[0.9, 0.6], [None, 0.1], [pytest.approx(0.1), 0.3]]
    assert bars[2]["customdata"] == ["20.0 %", "30.0 %"], "the value, not the length that is drawn"
    (gain,) = select_traces(figure, "gain")
    assert gain["x"] == [-0.1, None] and "error_x" not in bars[1]
    assert gain["customdata"][0] == "-10.0 %<br>95 %: -20.0 % to 0.0 %"


def test_parts_have_the_same_colour_in_every_report():
    parts = [Series(name, ["a"], [1], part=name) for name in ("rest", "sync", "data")]
    merged = Series("data + sync", ["b"], [1], part="data")
    charts = [Chart("c", "C", Axis("x"), Axis("y"), each, "stacked") for each in ([*parts, merged], parts[1:])]
    first, second = ([style.slot for style in ChartStyles(charts[k:]).of(charts[k])] for k in (0, 1))
    assert first[1:3] == second and len(set(first)) == 3 and min(first) >= COLOUR_COUNT
    assert ChartStyles(charts).of(charts[0])[3].pattern != "", "a pattern sets merged parts apart"


def test_axes_and_what_cannot_be_drawn():
    ticks = Axis("devices", log=True, ticks=[1, 2, 4, 8])
    layout = draw(Series("a", [1], [1]), x=ticks, y=Axis("share", percent=True))["layout"]
    assert layout["xaxis"]["type"] == "log" and layout["xaxis"]["ticktext"] == ["1", "2", "4", "8"]
    assert layout["yaxis"]["tickformat"] == ".0%" and layout["yaxis"]["rangemode"] == "tozero"
    numbers = draw(Series("a", [4, 1], [1, 1]), Series("b", [2], [1]), kind="bars")
    assert numbers["layout"]["xaxis"]["categoryarray"] == [1, 2, 4]
    (line,) = select_traces(draw(Series("a", [1, 2, 3], [float("nan"), float("inf"), 0.1234567891234])), "line")
    assert line["y"] == [None, None, 0.123456789]
    (line,) = select_traces(draw(Series("a", list(range(100)), list(range(100)))), "line")
    assert line["mode"] == "lines" and "marker" not in line, "so many points have no markers"


def test_names_notes_and_titles_are_text():
    series = Series("<b>x</b>", ["<i>"], [1.0], notes=["<a href='https://example.org'>go</a>"])
    figure = draw(series, kind="bars", x=Axis("<u>"))
    (bars,) = select_traces(figure, "bar")
    assert bars["name"] == "&lt;b&gt;x&lt;/b&gt;" and bars["x"] == ["&lt;i&gt;"]
    assert "<a" not in bars["customdata"][0] and figure["layout"]["xaxis"]["title"]["text"] == "&lt;u&gt;"


def chart(*names, tagged=True):
    series = [Series(name, [1], [1], tags={"strategy": name} if tagged else {}) for name in names]
    return Chart("c", "C", Axis("x"), Axis("y"), series)


def test_a_strategy_keeps_its_style_over_all_charts_and_its_lines_share_a_colour():
    first, second = chart("a", "b", "c"), chart("c", "a")
    styles = ChartStyles([first, second])
    a, b, c = styles.of(first)
    assert list(styles.of(second)) == [c, a]
    assert len({a.slot, b.slot, c.slot}) == len({a.dash, b.dash, c.dash}) == len({a.symbol, b.symbol, c.symbol}) == 3
    one, other, _ = ChartStyles([chart("a", "a", "b")]).of(chart("a", "a", "b"))
    assert one.slot == other.slot and one.dash != other.dash and one.symbol != other.symbol
    assert one.pattern != other.pattern


def test_more_strategies_than_colours_stay_distinguishable():
    many = chart(*map(str, range(24)))
    styles = ChartStyles([many]).of(many)
    assert {style.slot for style in styles} == set(range(COLOUR_COUNT))
    assert len({(style.slot, style.dash, style.symbol) for style in styles}) == 24
    assert len({(style.slot, style.pattern) for style in styles}) == 24


def test_parts_of_one_strategy_have_colours_of_their_own():
    parts = [Series(name, [1], [1], tags={"strategy": "a"}) for name in ("forward", "backward")]
    for kind in ("lines", "bars"):
        parts_chart = dataclasses.replace(chart(), series=parts, kind=kind)
        assert [style.slot for style in ChartStyles([chart("a", "b"), parts_chart]).of(parts_chart)] == [0, 1]
    other = Series("forward", [1], [1], tags={"strategy": "b"})
    stack = dataclasses.replace(chart(), series=[*parts, other], kind="stacked")
    assert [style.slot for style in ChartStyles([stack]).of(stack)] == [0, 1, 0]


def test_parts_have_colours_of_their_own_and_the_ideal_line_none():
    lines, parts = chart("a", "b"), chart("data", "transfer", tagged=False)
    ideal = Chart("i", "I", Axis("x"), Axis("y"), [Series("ideal", [1], [1], style="ideal"), *lines.series])
    styles = ChartStyles([ideal, parts])
    assert [line_style.slot for line_style in styles.of(ideal)] == [None, 0, 1]
    assert [line_style.slot for line_style in styles.of(parts)] == [0, 1]


TEXT = [
    *(("ink", ground) for ground in ("paper", "card", "accent-soft")),
    *(("muted", ground) for ground in ("paper", "card", "accent-soft")),
    *(("accent", ground) for ground in ("paper", "card", "accent-soft")),
    *(("good", "card"), ("bad", "card"), ("warn", "warn-soft")),
]
DARK = r':root\[data-theme="dark"\] {(.*?)}'
# What people without cones for green see: Machado, Oliveira, Fernandes 2009, deuteranomaly of severity 1.
WITHOUT_GREEN = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))


def linear(colour):
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour):
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(first, second):
    """WCAG 2.2, 1.4.3."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(params=["light", "dark"])
def theme(request):
    text = read_asset("page.css")
    match = re.search(r":root {(.*?)}" if request.param == "light" else DARK, text, flags=re.DOTALL)
    assert match
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", match[1]))


def test_text_can_be_read(theme):
    low = {pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in TEXT}
    assert {pair: round(value, 2) for pair, value in low.items() if value < 4.5} == {}


def test_every_colour_is_in_the_page_and_in_papers(theme):
    count = COLOUR_COUNT + len(PARTS)
    assert {f"c{number}" for number in range(count)} <= set(theme) and len([*COLOURS, *PART_COLOURS]) == count
    assert f"const SLOTS = {count};" in read_asset("charts.js")


def test_lines_can_be_seen(theme):
    contrasts = {f"c{number}": contrast(theme[f"c{number}"], theme["card"]) for number in range(COLOUR_COUNT)}
    assert {name: round(value, 2) for name, value in contrasts.items() if value < 3} == {}


def test_colours_stay_distinguishable_without_green_vision(theme):
    perceived = {}
    for number in range(COLOUR_COUNT):
        colour = linear(theme[f"c{number}"])
        mixed = [sum(a * b for a, b in zip(line, colour, strict=True)) for line in WITHOUT_GREEN]
        perceived[number] = [max(0.0, part) ** (1 / 2.2) for part in mixed]
    distances = {
        pair: sum((a - b) ** 2 for a, b in zip(perceived[pair[0]], perceived[pair[1]], strict=True)) ** 0.5
        for pair in itertools.combinations(range(COLOUR_COUNT), 2)
    }
    assert {pair: round(value, 2) for pair, value in distances.items() if value < 0.1} == {}
