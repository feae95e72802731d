"""Charts of a comparison: the bars are its figures, one chart for each number of devices."""

import pytest

from scalebench.analysis import comparison
from scalebench.report.comparison.comparison_charts import MAX_PLACES, make_comparison_charts
from tests.builders.comparisons import make_runs, train_settings

STEADY = [0.1, 0.1005, 0.0995]


def compare_formats(*strategies, gpus=(1, 2), repeats=3):
    """nchw is faster than nhwc by a quarter; the two of one configuration take turns."""
    runs = []
    for side, name, factor in (("a", "nchw", 0.8), ("b", "nhwc", 1.0)):
        for strategy in strategies:
            for count in gpus:
                block_s = [each * factor for each in STEADY[:repeats]]
                runs += make_runs(side, block_s, strategy, count, **train_settings(data_format=name))
    return comparison.compare_by(runs, "train.data_format", "nhwc")


def test_bars_are_the_figures_of_the_pairs():
    compared = compare_formats("ddp", "fsdp")
    charts = make_comparison_charts(compared)
    assert [chart.title for chart in charts] == [
        f"{figure} by train.data_format on {devices}"
        for devices in ("1 device", "2 devices")
        for figure in ("Throughput", "Ratio to nhwc")
    ]
    assert len({chart.id for chart in charts}) == 4 and {chart.kind for chart in charts} == {"bars"}
    for count, (rates, ratios) in ((1, charts[:2]), (2, charts[2:])):
        pairs = [pair for pair in compared.pairs if pair.label["gpus"] == str(count)]
        nhwc, nchw = rates.series
        assert (nhwc.name, nchw.name, nhwc.x) == ("nhwc", "nchw", ["ddp", "fsdp"])
        assert nhwc.y == pytest.approx([pair.a.rate for pair in pairs])
        assert nchw.y == pytest.approx([pair.b.rate for pair in pairs])
        assert nchw.repeats == [pair.b.rates for pair in pairs] and all(
            low < y for low, y in zip(nchw.low, nchw.y, strict=True)
        )
        (ratio,) = ratios.series
        assert ratio.y == [pair.ratio for pair in pairs] == pytest.approx([1.25, 1.25])
        assert ratio.limits == [(pair.interval.low, pair.interval.high) for pair in pairs]


def test_one_repeat_has_no_interval_and_nothing_compared_no_chart():
    for chart in make_comparison_charts(compare_formats("ddp", gpus=(1,), repeats=1)):
        assert all(limits == [(None, None)] for limits in (series.limits for series in chart.series))
    only = comparison.compare_by(make_runs("a", STEADY), "train.data_format")
    assert make_comparison_charts(only) == []


def test_a_chart_has_as_many_places_as_can_be_read():
    strategies = [f"s{number}" for number in range(MAX_PLACES + 1)]
    chart = make_comparison_charts(compare_formats(*strategies, gpus=(1,), repeats=1))[0]
    assert len(chart.series[0].x) == MAX_PLACES and f"the first {MAX_PLACES} of {MAX_PLACES + 1}" in chart.title


def test_two_sides_and_numbers_of_devices():
    sides = comparison.compare(make_runs("a", STEADY), make_runs("b", STEADY))
    assert [series.name for series in make_comparison_charts(sides)[0].series] == ["A", "B"]
    runs = [run for count in (1, 2, 4) for run in make_runs("a", STEADY, gpus=count)]
    rates, ratios = make_comparison_charts(comparison.compare_by(runs, "gpus"))
    assert [series.name for series in rates.series] == ["1", "2", "4"] and rates.series[0].x == ["ddp"]
    (strategies, _) = make_comparison_charts(
        comparison.compare_by([*make_runs("a", STEADY), *make_runs("b", STEADY, "fsdp")], "strategy")
    )
    assert [series.x for series in strategies.series] == [["all"], ["all"]]
    assert [series.name for series in ratios.series] == ["2", "4"] and ratios.title == "Ratio to 1 by gpus"
