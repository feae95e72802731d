"""A strategy looks the same in every chart, and two lines of one chart never look the same."""

from __future__ import annotations

import dataclasses

from scalebench.report.document import Axis, Chart, Series
from scalebench.report.html.plots import COLOUR_COUNT, ChartStyles


def chart(*names: str, tagged: bool = True) -> Chart:
    series = [Series(name, [1], [1], tags={"strategy": name} if tagged else {}) for name in names]
    return Chart("c", "C", Axis("x"), Axis("y"), series)


def test_a_strategy_keeps_its_look_over_all_charts() -> None:
    first, second = chart("a", "b", "c"), chart("c", "a")
    looks = ChartStyles([first, second])
    a, b, c = looks.of(first)
    assert list(looks.of(second)) == [c, a]
    assert len({a.slot, b.slot, c.slot}) == len({a.dash, b.dash, c.dash}) == len({a.symbol, b.symbol, c.symbol}) == 3


def test_lines_of_one_strategy_share_a_colour_and_nothing_else() -> None:
    twice = chart("a", "a", "b")
    one, two, _ = ChartStyles([twice]).of(twice)
    assert one.slot == two.slot and one.dash != two.dash and one.symbol != two.symbol and one.pattern != two.pattern


def test_more_strategies_than_colours_can_be_told_apart() -> None:
    many = chart(*map(str, range(24)))
    looks = ChartStyles([many]).of(many)
    assert {look.slot for look in looks} == set(range(COLOUR_COUNT))
    assert len({(look.slot, look.dash, look.symbol) for look in looks}) == 24
    assert len({(look.slot, look.pattern) for look in looks}) == 24


def test_parts_of_one_strategy_have_colours_of_their_own() -> None:
    parts = [Series(name, [1], [1], tags={"strategy": "a"}) for name in ("forward", "backward")]
    for kind in ("lines", "bars"):
        one = dataclasses.replace(chart(), series=parts, kind=kind)
        assert [look.slot for look in ChartStyles([chart("a", "b"), one]).of(one)] == [0, 1]
    other = Series("forward", [1], [1], tags={"strategy": "b"})
    stack = dataclasses.replace(chart(), series=[*parts, other], kind="stacked")
    assert [look.slot for look in ChartStyles([stack]).of(stack)] == [0, 1, 0]


def test_parts_have_colours_of_their_own_and_the_ideal_line_none() -> None:
    lines, parts = chart("a", "b"), chart("data", "transfer", tagged=False)
    ideal = Chart("i", "I", Axis("x"), Axis("y"), [Series("ideal", [1], [1], style="ideal"), *lines.series])
    looks = ChartStyles([ideal, parts])
    assert [look.slot for look in looks.of(ideal)] == [None, 0, 1]
    assert [look.slot for look in looks.of(parts)] == [0, 1]
