"""Charts as figures of plotly and as figures for papers; their line styles and colours.

golden/charts.json holds what both draw of the charts below; after a wanted change `python -m tests.report.test_charts`
writes it anew.
"""

import itertools
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib.ticker import FixedLocator
from PIL import Image

from scalebench.core.errors import InputError
from scalebench.report import figures
from scalebench.report.document import PARTS, Axis, Chart, Series
from scalebench.report.figures import COLOURS, PART_COLOURS
from scalebench.report.html.page import read_asset
from scalebench.report.html.plots import COLOUR_COUNT, ChartStyles, make_figure
from tests.report.sample_sections import EVIL, line_chart, stacked_chart

GOLDEN = Path(__file__).parents[1] / "golden" / "charts.json"
DDP = {"strategy": "ddp"}
SHARE = Axis("share", percent=True)
GAPS = ([0.9, 1.8, None, 3.4, None, 7.0], [1.1, 2.0, None, 3.6, None, 7.2])


def make_chart(*series, kind="lines", x=None, y=None):
    return Chart("c", "C", x or Axis("devices"), y or Axis("speedup"), series, kind)


CHARTS = {
    "band": make_chart(Series("a", [1, 2, 4], [1.0, 1.9, 3.5], [0.9, 1.8, 3.4], [1.1, 2.0, 3.6], DDP)),
    "ideal": line_chart(),
    "points": make_chart(*(Series(style, [1, 2], [1, 2], style=style) for style in ("ideal", "points"))),
    # A gap parts the band; a lone point gets bars.
    "gap": make_chart(Series("a", [1, 2, 3, 4, 5, 6], [1.0, 1.9, None, 3.5, 4.0, 7.1], *GAPS)),
    "two stretches": make_chart(
        Series("a", [1, 2, 3, 4, 5], [1.5, 2.5, 3.5, 4.5, 5.5], [1.0, 2.0, None, 4.0, 5.0], [2.0, 3.0, None, 5.0, 6.0])
    ),
    "repeats": make_chart(Series("a", [1, 2], [1.0, 1.9], [0.9, 1.8], [1.1, 2.0], DDP, repeats=[[0.9, 1.1], [1.9]]),
                          Series("b", [1, 2], [1.0, 1.9], repeats=[[], []])),
    "fit": make_chart(Series("a", [1, 2, 4], [1.0, 1.9, 3.5], tags=DDP, fit=[1.0, 1.8, 3.5])),
    # Values stand above all that is drawn of a bar.
    "bars": make_chart(
        Series("a", ["x", "y", "z"], [1.655, 0.9, None], [1.5, None, None], [1.8, None, None], repeats=[[2.0], [], []]),
        Series("b", ["y", "x"], [1.0, -0.5], [0.9, -0.6], [1.2, -0.4]), kind="bars",
    ),
    "bars of shares": make_chart(Series("a", ["x", "y"], [0.9, 0.5]), kind="bars", y=SHARE),
    "many bars": make_chart(Series("a", list(range(25)), [1.0] * 25), kind="bars"),
    "bars over numbers": make_chart(Series("a", [4, 1], [1, 1]), Series("b", [2], [1]), kind="bars"),
    "bars with tags": make_chart(
        Series("a", ["x", "y"], [1.0, 2.0], point_tags=[{"strategy": "one"}, {"strategy": "two"}],
               repeats=[[0.9, 1.1], [2.0]]), kind="bars"
    ),
    # Up to 100 %, with a marker for each gain; the first bar is on top.
    "stack": make_chart(
        Series("kept", ["a", "b"], [0.9, 0.6]), Series("data", ["a", "b"], [-0.1, 0.1], [-0.2, 0], [0, 0.2]),
        Series("sync", ["a", "b"], [0.2, 0.3], repeats=[[0.2], [0.3]]), kind="stacked", y=SHARE,
    ),
    "small stack": stacked_chart(),
    "axes": make_chart(Series("a", [1, 8], [0.1, 1]), x=Axis("devices", log=True, ticks=[1, 2, 4, 8]), y=SHARE),
    "log": make_chart(Series("a", [1, 2], [1.0, 1000.0], [0.0, 0.5], [2.0, 2000.0]), y=Axis("seconds", log=True)),
    "log of nothing": make_chart(Series("a", [1.0, 2.0], [0.0, 1.0]), y=Axis("y", log=True)),
    "no figures": make_chart(Series("a", [1, 2, 3], [float("nan"), float("inf"), 0.1234567891234])),
    "many points": make_chart(Series("a", list(range(60)), list(range(60)))),
    # More than a legend within the axes holds.
    "many lines": make_chart(*(Series(f"s{k}", [1, 2, 8], [10.0 ** (k + 1)] * 3, tags={"strategy": f"s{k}"})
                               for k in range(6)), y=Axis("samples/s", log=True)),
    "text": make_chart(
        Series("<b>x</b>", ["<i>"], [1.0], notes=["<a href='https://example.org'>go</a>"]), kind="bars", x=Axis("<u>")
    ),
}  # fmt: skip


def draw_page(chart):
    """The figure of one chart, which plotly's own checks have seen."""
    figure = make_figure(chart, ChartStyles([chart]).of(chart))
    go.Figure(figure)
    return figure


def draw_axes(chart):
    with figures._paper_style():
        figure = figures._make_figure(chart, ChartStyles([chart]).of(chart))
    return figure.axes[0]


def describe_axes(axes):
    """Return what is drawn on axes of matplotlib, but for what it chooses itself."""
    lines = [
        [line.get_color(), line.get_linestyle(), line.get_marker(), line.get_markerfacecolor(),
         *(np.nan_to_num(np.asarray(values, float), nan=-99).tolist() for values in line.get_data())]
        for line in axes.lines
    ]  # fmt: skip
    labels = [[label.get_text() for label in axis.get_ticklabels()] for axis in (axes.xaxis, axes.yaxis)
              if isinstance(axis.get_major_locator(), FixedLocator)]  # fmt: skip
    legends = [legend for legend in (axes.get_legend(), *axes.figure.legends) if legend]
    return {
        "lines": lines, "labels": labels, "outside": len(axes.figure.legends),
        "from_zero": bool(axes.get_ylim()[0] == 0),
        "bars": [[bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()] for bar in axes.patches],
        "bands": [band.get_datalim(axes.transData).get_points().tolist() for band in axes.collections],
        "texts": [[text.get_text(), *map(float, text.xy)] for text in axes.texts],
        "scales": [axes.get_xscale(), axes.get_yscale(), bool(axes.yaxis_inverted())],
        "thousand": axes.yaxis.get_major_formatter()(1000.0) if axes.get_yscale() == "log" else "",
        "legend": [text.get_text() for legend in legends for text in legend.texts],
    }  # fmt: skip


def draw(name):
    """Return what is drawn of a chart, on a page and on paper, as plain values of six digits."""

    def simplify(part):
        if isinstance(part, dict):
            return {key: simplify(value) for key, value in part.items()}
        if isinstance(part, list | tuple):
            return [simplify(each) for each in part]
        part = part.item() if isinstance(part, np.generic) else part
        return float(f"{part:.6g}") if isinstance(part, float) else part

    return simplify({"page": draw_page(CHARTS[name]), "paper": describe_axes(draw_axes(CHARTS[name]))})


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_drawn_as_it_was(name):
    assert draw(name) == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


def test_every_chart_twice_and_the_same_each_time(tmp_path):
    first, again = (figures.save_charts([line_chart(), stacked_chart()], tmp_path / name) for name in ("a", "b"))
    names = [f"{name}.{kind}" for name in ("scaling-efficiency", "parts") for kind in ("png", "svg")]
    assert [path.name for path in first] == names
    assert all(file.read_bytes() == same.read_bytes() for file, same in zip(first, again, strict=True))
    with Image.open(first[0]) as image:
        assert (image.width, round(image.info["dpi"][0])) == (1050, 300)
    svg = first[1].read_text(encoding="utf-8")
    assert ET.fromstring(svg).tag.endswith("svg") and "horovod_gloo" in svg and "dc:date" not in svg
    assert matplotlib.rcParams["svg.hashsalt"] is None  # other figures are drawn as before
    nothing = Chart("c", "c", Axis("x"), Axis("y"), [Series("a", [1.0], [None])])
    assert figures.save_charts([nothing], tmp_path) == []


def test_hostile_names_are_drawn_as_they_are(tmp_path):
    named = [*EVIL, "_hidden", "$\\frac{$", "漢字", ""]
    chart = Chart("evil", named[0], Axis(named[1]), Axis("$"), [Series(name, [1.0, 2.0], [1, 2]) for name in named])
    _, svg = figures.save_charts([chart], tmp_path)
    assert not {"script", "image", "a"} & {node.tag.rpartition("}")[2] for node in ET.parse(svg).iter()}
    assert len(draw_axes(chart).figure.legends[0].texts) == len(named)


@pytest.mark.parametrize("title", ["Efficiency against one device: " + "a_model on data, " * 8, "a_very_long_word" * 9])
def test_a_long_title_stays_within_its_figure(title):
    chart = Chart("c", title, Axis("devices"), Axis("speedup"), [Series("a", [1, 2], [1.0, 1.9])])
    with figures._paper_style():
        figure = draw_axes(chart).figure
        figure.draw_without_rendering()
        extent = figure.axes[0].title.get_window_extent()
    assert extent.x0 >= 0 and extent.x1 <= figure.bbox.x1 and extent.y1 <= figure.bbox.y1 + 1


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'scalebench-train\[figures\]'"):
        figures.save_charts([line_chart()], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def name_chart(*names, tagged=True):
    return make_chart(*(Series(name, [1], [1], tags={"strategy": name} if tagged else {}) for name in names))


def list_slots(chart, *others):
    return [style.slot for style in ChartStyles([chart, *others]).of(chart)]


def test_parts_have_the_same_colour_in_every_report():
    parts = [Series(name, ["a"], [1], part=name) for name in ("rest", "sync", "data")]
    merged = Series("data + sync", ["b"], [1], part="data")
    one, other = (make_chart(*each, kind="stacked") for each in ([*parts, merged], parts[1:]))
    first, second = list_slots(one, other), list_slots(other)
    assert first[1:3] == second and len(set(first)) == 3 and min(first) >= COLOUR_COUNT
    assert ChartStyles([one, other]).of(one)[3].pattern != "", "a pattern sets merged parts apart"


def test_a_strategy_keeps_its_style_over_all_charts_and_its_lines_share_a_colour():
    first, second = name_chart("a", "b", "c"), name_chart("c", "a")
    styles = ChartStyles([first, second])
    a, b, c = styles.of(first)
    assert list(styles.of(second)) == [c, a]
    assert len({a.slot, b.slot, c.slot}) == len({a.dash, b.dash, c.dash}) == len({a.symbol, b.symbol, c.symbol}) == 3
    same = name_chart("a", "a", "b")
    one, other, _ = ChartStyles([same]).of(same)
    assert one.slot == other.slot and one.dash != other.dash and one.symbol != other.symbol
    assert one.pattern != other.pattern


def test_more_strategies_than_colours_stay_distinguishable():
    many = name_chart(*map(str, range(24)))
    styles = ChartStyles([many]).of(many)
    assert {style.slot for style in styles} == set(range(COLOUR_COUNT))
    assert len({(style.slot, style.dash, style.symbol) for style in styles}) == 24
    assert len({(style.slot, style.pattern) for style in styles}) == 24


def test_parts_of_one_strategy_have_colours_of_their_own_and_the_ideal_line_none():
    parts = [Series(name, [1], [1], tags={"strategy": "a"}) for name in ("forward", "backward")]
    for kind in ("lines", "bars"):
        assert list_slots(make_chart(*parts, kind=kind), name_chart("a", "b")) == [0, 1]
    other = Series("forward", [1], [1], tags={"strategy": "b"})
    assert list_slots(make_chart(*parts, other, kind="stacked")) == [0, 1, 0]
    untagged = name_chart("data", "communication", tagged=False)
    ideal = make_chart(Series("ideal", [1], [1], style="ideal"), *name_chart("a", "b").series)
    assert (list_slots(ideal, untagged), list_slots(untagged, ideal)) == ([None, 0, 1], [0, 1])


GROUNDS = ("paper", "card", "accent-soft")
TEXT = [*itertools.product(("ink", "muted", "accent"), GROUNDS)]
TEXT += [("good", "card"), ("bad", "card"), ("warn", "warn-soft")]
DARK = r':root\[data-theme="dark"\] {(.*?)}'


def linear(colour):
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(first, second):
    """WCAG 2.2, 1.4.3."""
    dark, light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in map(linear, (first, second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("pattern", [":root {(.*?)}", DARK], ids=["light", "dark"])
def test_colours_can_be_seen(pattern):
    match = re.search(pattern, read_asset("page.css"), flags=re.DOTALL)
    theme = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", match[1]))
    contrasts = {pair: (contrast(theme[pair[0]], theme[pair[1]]), 4.5) for pair in TEXT}
    contrasts |= {f"c{number}": (contrast(theme[f"c{number}"], theme["card"]), 3) for number in range(COLOUR_COUNT)}
    assert {name: round(value, 2) for name, (value, least) in contrasts.items() if value < least} == {}
    count = COLOUR_COUNT + len(PARTS)
    assert {f"c{number}" for number in range(count)} <= set(theme) and len([*COLOURS, *PART_COLOURS]) == count
    assert f"const SLOTS = {count};" in read_asset("charts.js")


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(draw(name), ensure_ascii=False)}" for name in CHARTS]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
