"""Figures for papers: files that are the same each time, and what they show."""

import sys
import xml.etree.ElementTree as ET

import pytest

from scalebench.core.errors import InputError
from scalebench.report import figures
from scalebench.report.document import Axis, Chart, Series
from scalebench.report.figures import GREY
from scalebench.report.html.plots import ChartStyles
from tests.report.sample_sections import EVIL, line_chart, stacked_chart

COLUMN_PX, PAGE_PX = 1050, 2160


def draw_axes(chart):
    with figures._paper_style():
        figure = figures._make_figure(chart, ChartStyles([chart]).of(chart), figures._import_figure())
    return figure.axes[0]


def make_log_chart():
    series = [Series(f"s{k}", [1.0, 2.0, 8.0], [10.0 ** (k + 1)] * 3, tags={"strategy": f"s{k}"}) for k in range(6)]
    return Chart("many", "Many", Axis("devices", ticks=[1, 2, 8]), Axis("samples/s", log=True), series)


def test_every_chart_twice_and_the_same_each_time(tmp_path):
    first, again = (figures.save_charts([line_chart(), stacked_chart()], tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == [
        f"{name}.{kind}" for name in ("scaling-efficiency", "parts") for kind in ("png", "svg")
    ]
    assert all(file.read_bytes() == same.read_bytes() for file, same in zip(first, again, strict=True))
    from PIL import Image

    with Image.open(first[0]) as image:
        assert (image.width, round(image.info["dpi"][0])) == (COLUMN_PX, 300)
    svg = first[1].read_text(encoding="utf-8")
    assert ET.fromstring(svg).tag.endswith("svg") and "horovod_gloo" in svg and "dc:date" not in svg
    import matplotlib

    assert matplotlib.rcParams["svg.hashsalt"] is None  # other figures are drawn as before


def test_lines_bands_and_the_ideal():
    axes = draw_axes(line_chart())
    ideal, ddp, horovod, published = axes.lines[:4]
    assert (ideal.get_color(), ideal.get_linestyle(), ideal.get_marker()) == (GREY, "--", "None")
    assert ddp.get_color() != horovod.get_color() and ddp.get_marker() != horovod.get_marker()
    assert list(horovod.get_ydata()) == [0.9, 0.701] and str(ddp.get_ydata()[2]) == "nan"
    assert published.get_linestyle() == "None" and published.get_markerfacecolor() == "white"
    (band,) = axes.collections
    assert [band.get_datalim(axes.transData).y0, band.get_datalim(axes.transData).y1] == pytest.approx([0.88, 0.96])
    assert axes.get_ylim()[0] == 0
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]
    assert axes.yaxis.get_major_formatter()(0.5).endswith("%")


def test_each_repeat_is_a_dot():
    line = Series("a", [1.0, 2.0], [1.0, 1.9], [0.9, 1.8], [1.1, 2.0], repeats=[[0.9, 1.0, 1.1], [1.9]])
    line_of_means, dots = draw_axes(Chart("c", "C", Axis("devices"), Axis("speedup"), [line])).lines
    assert [list(values) for values in dots.get_data()] == [[1, 1, 1, 2], [0.9, 1.0, 1.1, 1.9]]
    assert dots.get_color() == line_of_means.get_color() and dots.get_linestyle() == "None"


def test_the_dots_of_bars_are_on_their_bars():
    bars = [Series(name, [1.0, 2.0], [1.0, 1.9], repeats=[[0.9, 1.1], []]) for name in "ab"]
    axes = draw_axes(Chart("c", "C", Axis("devices"), Axis("s"), bars, "bars"))
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert [list(dots.get_data()[0]) for dots in axes.lines] == [pytest.approx([middles[k]] * 2) for k in (0, 2)]
    assert [list(dots.get_data()[1]) for dots in axes.lines] == [[0.9, 1.1]] * 2


def test_values_stand_above_bars_and_fitted_lines_are_broken():
    bars = Series("a", ["x", "y"], [1.655, None], [1.5, None], [1.8, None])
    values = draw_axes(Chart("c", "C", Axis("x"), Axis("speedup"), [bars], "bars")).texts
    assert [(text.get_text(), text.xy[1]) for text in values] == [("1.66", 1.8), ("", 0.0)]
    line = Series("a", [1.0, 2.0, 4.0], [1.0, 1.9, 3.5], fit=[1.0, 1.8, 3.5])
    points, fit = draw_axes(Chart("c", "C", Axis("devices"), Axis("speedup"), [line])).lines
    assert (points.get_linestyle(), fit.get_linestyle()) == ("-", "--")  # "--" is any pattern of dashes and dots
    assert list(fit.get_ydata()) == [1.0, 1.8, 3.5] and fit.get_color() == points.get_color()


def test_stacked_bars_lie_with_a_marker_for_each_gain():
    axes = draw_axes(stacked_chart())
    bars = [(round(bar.get_x(), 9), round(bar.get_width(), 9)) for bar in axes.patches]
    assert bars == [(0, 0.1), (0, 0.3), (0.1, 0.0), (0.3, 0.01)]
    (gain,) = axes.lines
    assert gain.get_xydata().tolist() == [[-0.02, 0]]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1", "2"] and axes.yaxis_inverted()


def test_bars_stand_beside_each_other_with_their_limits():
    chart = Chart("b", "b", Axis("x"), Axis("s"), [
        Series("a", ["1", "2"], [1.0, None], [0.8, None], [1.4, None]), Series("b", ["2", "1"], [3.0, 2.0])
    ], "bars")  # fmt: skip
    axes = draw_axes(chart)
    centres = [round(bar.get_x() + bar.get_width() / 2, 6) for bar in axes.patches]
    assert centres == [-0.2, 0.8, 1.2, 0.2]
    (whisker,) = axes.lines
    assert list(whisker.get_ydata()) == [0.8, 1.4]


def test_a_logarithm_and_a_legend_outside():
    axes = draw_axes(make_log_chart())
    assert axes.get_yscale() == "log" and axes.get_xscale() == "linear"
    assert axes.yaxis.get_major_formatter()(1000.0) == "1,000"
    assert axes.get_legend() is None and len(axes.figure.legends) == 1
    assert len({line.get_color() for line in axes.lines}) == 6
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.texts] == [f"s{k}" for k in range(6)]


def test_a_logarithm_of_nothing_is_left():
    chart = Chart("c", "c", Axis("x"), Axis("y", log=True), [Series("a", [1.0, 2.0], [0.0, 1.0])])
    assert draw_axes(chart).get_yscale() == "linear"


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


def test_a_chart_without_a_figure_is_no_file(tmp_path):
    assert figures.save_charts([Chart("c", "c", Axis("x"), Axis("y"), [Series("a", [1.0], [None])])], tmp_path) == []


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'scalebench-train\[figures\]'"):
        figures.save_charts([line_chart()], tmp_path / "new")
    assert not (tmp_path / "new").exists()
