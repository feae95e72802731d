"""What a strategy loses on one device: its arithmetic, and its columns in records made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import throughput
from scalebench.analysis.columns import COLUMNS
from scalebench.analysis.load import frame
from scalebench.core.result import Result
from scalebench.core.stats.estimates import ratio_interval
from tests.builders.runs import rank, record

NAMES = ("overhead_share_low", "overhead_share", "overhead_share_high")
SECONDS = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40)
WILD = [0.01] * 31 + [50.0]  # nothing bounds such a throughput from above


def of(*results: Result) -> list[tuple[Any, ...]]:
    """(low, value, high) of each row, null as None."""
    table = frame(results, [Path("x")] * len(results))
    return [tuple(None if pd.isna(row[name]) else row[name] for name in NAMES) for row in table.to_dict("records")]


def test_it_is_what_is_missing_to_the_bare_throughput() -> None:
    own, bare = record(block_s=0.1), record("bare_torch", block_s=0.083)
    value, interval = throughput.overhead(own, bare)
    mine, theirs = throughput.throughput(own)[1], throughput.throughput(bare)[1]
    assert mine is not None and theirs is not None and interval is not None
    ratio = ratio_interval(mine, theirs)
    assert value == pytest.approx(0.17)
    assert (interval.low, interval.value, interval.high) == (1 - ratio.high, 1 - ratio.value, 1 - ratio.low)
    assert 0.15 < interval.low < 0.17 < interval.high < 0.19


@given(own_s=SECONDS, bare_s=SECONDS)
def test_it_lies_in_its_interval_and_is_the_rest_of_the_speedup(own_s: list[float], bare_s: list[float]) -> None:
    own, bare = record(ranks=[rank(0, own_s)]), record("bare_torch", ranks=[rank(0, bare_s)])
    value, interval = throughput.overhead(own, bare)
    speedup, limits = throughput.speedup(own, bare)
    assert value is not None and speedup is not None
    assert value == 1 - speedup and value < 1
    assert (interval is None) == (limits is None) == (min(len(own_s), len(bare_s)) < 16)
    if interval is not None:
        rounding = 1e-12 * (1 + abs(value))  # numpy adds up in another order
        assert interval.low - rounding <= value <= interval.high + rounding and interval.high <= 1


@given(seconds=SECONDS)
def test_equal_throughputs_are_no_overhead(seconds: list[float]) -> None:
    value, interval = throughput.overhead(*(record(name, ranks=[rank(0, seconds)]) for name in ("ddp", "bare_torch")))
    assert value == 0
    assert interval is None or (interval.low <= 1e-12 and interval.high >= -1e-12)


def test_there_is_none_without_two_figures_of_two_runs() -> None:
    own, bare = record(), record("bare_torch")
    unmeasured = record(block_s=None, run_id="unmeasured")
    pairs = [(own, None), (None, bare), (None, None), (bare, bare), (unmeasured, bare), (own, unmeasured)]
    assert {throughput.overhead(*pair) for pair in pairs} == {(None, None)}


def test_the_columns_hold_shares() -> None:
    at = COLUMNS.index("overhead_share")
    assert COLUMNS[at : at + 3] == ["overhead_share", "overhead_share_low", "overhead_share_high"]
    table = frame([record(), record("bare_torch")], [Path("x")] * 2)
    assert {str(table[name].dtype) for name in NAMES} == {"Float64"}


def test_rows_with_the_same_baselines_have_the_same_overhead() -> None:
    """That of the one device, also where more of them failed."""
    failed = record(gpus=8, status="failed", block_s=None)
    rows = [record(block_s=0.1), record(gpus=2, block_s=0.13), record(gpus=4, block_s=0.2), failed]
    bare, other = record("bare_torch", block_s=0.083), record("horovod_gloo", gpus=2)
    one, two, four, eight, alone, without = of(*rows, bare, other)
    assert one == two == four == eight and one[1] == pytest.approx(0.17)
    assert alone == without == (None, None, None)
    first = frame([*rows, bare], [Path("x")] * 5).to_dict("records")[0]
    assert one == tuple(1 - first[f"speedup_bare{end}"] for end in ("_high", "", "_low"))


def test_a_faster_strategy_has_a_negative_one() -> None:
    (low, value, high), _ = of(record(block_s=0.08), record("bare_torch", block_s=0.1))
    assert value == pytest.approx(-0.25) and low < value < high < 0


@pytest.mark.parametrize("given", [[record(), record(gpus=2)], [record(gpus=2), record("bare_torch")]])
def test_a_missing_baseline_leaves_it_empty(given: list[Result]) -> None:
    assert set(of(*given)) == {(None, None, None)}


def test_a_bare_strategy_has_one_only_with_other_options() -> None:
    plain, again, fit = (record("bare_tensorflow", baseline="bare_tensorflow", run_id=name) for name in "abc")
    plain.spec["strategy"]["options"] = again.spec["strategy"]["options"] = {"loop": "custom"}
    fit.spec["strategy"]["options"] = {"loop": "fit"}
    slow = record("bare_tensorflow", baseline="bare_tensorflow", block_s=0.125, run_id="d")
    slow.spec["strategy"]["options"] = {"loop": "fit"}
    assert [row[1] for row in of(plain, again, slow)] == [None, None, pytest.approx(0.2)]
    assert of(fit) == [(None, None, None)]  # nothing to compare it with
    sleeper = record("simulated", baseline="simulated")
    assert of(sleeper, record("simulated", gpus=2, baseline="simulated")) == [(None, None, None)] * 2


def test_few_blocks_give_it_without_an_interval() -> None:
    own, bare = record(ranks=[rank(0, [0.1, 0.1])]), record("bare_torch", block_s=0.08)
    assert of(own, bare)[0] == (None, pytest.approx(0.2), None)


def test_a_limit_that_the_blocks_do_not_give() -> None:
    wild, tame = record(ranks=[rank(0, WILD)]), record("bare_torch")
    low, value, high = of(wild, tame)[0]
    assert low is None and value <= high < 1
    low, value, high = of(record(), record("bare_torch", ranks=[rank(0, WILD)]))[0]
    assert low <= value < high == 1  # more than all cannot be lost


def test_baselines_of_the_same_repeat_are_taken() -> None:
    bares = [record("bare_torch", block_s=block_s, repeat=k) for k, block_s in enumerate((0.08, 0.09))]
    owns = [record(block_s=0.1, repeat=k) for k in range(3)]
    later = record(gpus=2, repeat=1)
    shares = [row[1] for row in of(*owns, later, *bares)]
    assert shares == [pytest.approx(0.2), pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.1), None, None]
