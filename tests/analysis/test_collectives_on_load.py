"""Collective operations on load: known times come back, and known crossings are found where they are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scalebench
from scalebench.analysis.collectives import (
    COLLECTIVE_COLUMNS,
    OperationComparison,
    bus_factor,
    compare_operations,
    interpolate_crossover_bytes,
    make_collective_table,
)
from scalebench.core.errors import InputError
from scalebench.core.result import COLLECTIVES, CollectiveRecord, ProbeRecord, Result, write_result
from scalebench.core.units import format_binary_bytes
from scalebench.measure.collectives import MESSAGE_SIZES
from tests.builders.runs import rank, record

NOISE = [0.99, 1.01, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99]  # its mean is 1
WITHIN = "4 B to 256 MiB"


def series(
    latency_s: float, bytes_per_s: float, noise: float = 1.0, name: str = "all_reduce"
) -> list[CollectiveRecord]:
    """An operation that takes latency + size / rate, in 8 blocks of 10."""
    blocks = [1 + noise * (factor - 1) for factor in NOISE]
    return [
        CollectiveRecord(name, size, 10, [10 * (latency_s + size / bytes_per_s) * factor for factor in blocks])
        for size in MESSAGE_SIZES
    ]


def run(strategy: str, measured: list[CollectiveRecord], gpus: int = 2, **changes: Any) -> Result:
    """A run whose rank 1 is the slower one by nothing but rounding: it measured the same."""
    ranks = [rank(k, probes=ProbeRecord(collectives=measured)) for k in range(gpus)]
    return record(strategy, gpus, ranks=ranks, **changes)


def compared(*results: Result) -> OperationComparison:
    (found,) = compare_operations(make_collective_table(results))
    return found


def test_a_known_operation() -> None:
    frame = make_collective_table([run("ddp_gloo", series(1e-4, 1e9), gpus=4)])
    assert list(frame.columns) == COLLECTIVE_COLUMNS and len(frame) == len(MESSAGE_SIZES)
    row = frame[frame["size_bytes"] == 2**20].iloc[0]
    truth_s = 1e-4 + 2**20 / 1e9
    assert row["time_s"] == pytest.approx(truth_s)
    # Student's t with 7 degrees of freedom times the standard error of 8 blocks, by hand.
    half = 2.3646 * truth_s * math.sqrt(sum((f - 1) ** 2 for f in NOISE) / 7 / 8)
    assert (row["time_low"], row["time_high"]) == pytest.approx((truth_s - half, truth_s + half), rel=1e-4)
    assert row["algbw_bytes_per_s"] == pytest.approx(2**20 / truth_s)
    assert row["busbw_bytes_per_s"] == pytest.approx(1.5 * 2**20 / truth_s)
    assert (row["strategy"], row["gpus"], row["backend_used"]) == ("ddp_gloo", 4, "gloo")


def test_the_slowest_rank_of_each_block_counts() -> None:
    zero, one = [CollectiveRecord("reduce", 64, 2, [2.0, 4.0])], [CollectiveRecord("reduce", 64, 2, [6.0, 2.0])]
    ranks = [rank(k, probes=ProbeRecord(collectives=c)) for k, c in enumerate((zero, one))]
    (row,) = make_collective_table([record(gpus=2, ranks=ranks)]).to_dict("records")
    assert row["time_s"] == (6.0 / 2 + 4.0 / 2) / 2
    assert row["time_low"] == 0.0  # and not less, wide as the interval of two blocks is


def test_factors_are_those_of_nccl_tests() -> None:
    found = {name: bus_factor(name, 4) for name in COLLECTIVES}
    assert found == {
        "all_reduce": 1.5, "reduce": 1.0, "broadcast": 1.0, "all_gather": 0.75, "reduce_scatter": 0.75,
        "gather": 0.75, "scatter": 0.75, "all_to_all": 0.75,
    }  # fmt: skip


def test_runs_without_collectives_leave_no_row() -> None:
    frame = make_collective_table([record(gpus=2), run("ddp", []), record(status="failed", block_s=None)])
    assert len(frame) == 0 and list(frame.columns) == COLLECTIVE_COLUMNS
    assert compare_operations(frame) == []


def test_a_known_crossing() -> None:
    """1e-4 + s / 1e9 = 1e-3 + s / 4e9 at s = 1.2 MB, which lies between two measured sizes."""
    found = compared(run("horovod_mpi", series(1e-4, 1e9)), run("ddp_gloo", series(1e-3, 4e9)))
    assert found.strategies == ("ddp_gloo", "horovod_mpi") and found.fastest == ["horovod_mpi", "ddp_gloo"]
    (crossing,) = found.crossovers
    assert (crossing.low_bytes, crossing.high_bytes) == (2**20, 2**22)
    assert crossing.size_bytes == pytest.approx(1.2e6, rel=0.15)  # the curve is no line between 1 and 4 MiB
    assert found.resolved == len(MESSAGE_SIZES)
    words = format_binary_bytes(crossing.size_bytes)
    assert found.sentence() == f"all_reduce on 2 devices: horovod_mpi is faster below {words}, ddp_gloo above"


def test_a_crossing_at_a_measured_size_is_found_there() -> None:
    """Equal at 64 KiB: that size decides nothing, and its neighbours do."""
    equal_s = 2**16 / 1e9
    found = compared(run("a", series(0.0, 1e9)), run("b", series(equal_s / 2, 2e9)))
    (crossing,) = found.crossovers
    assert (crossing.low_bytes, crossing.high_bytes) == (2**14, 2**18)
    assert 2**15 < crossing.size_bytes < 2**17
    assert found.fastest == ["a", "b"] and found.resolved == len(MESSAGE_SIZES) - 1
    at = format_binary_bytes(crossing.size_bytes)
    assert found.sentence().endswith(f": a is faster below {at} (16 KiB to 256 KiB), b above")


def test_no_crossing_where_the_difference_is_not_resolved() -> None:
    noisy = series(1e-4, 1e9, noise=20.0)
    found = compared(run("a", noisy), run("b", series(1.1e-4, 1.1e9, noise=20.0)))
    assert (found.fastest, found.crossovers, found.resolved) == ([], [], 0)
    assert found.sentence() == f"all_reduce on 2 devices: no difference between a and b is resolved from {WITHIN}"


def test_never() -> None:
    found = compared(run("a", series(1e-4, 2e9)), run("b", series(2e-4, 1e9)))
    assert found.sentence() == (
        f"all_reduce on 2 devices: a is faster than b at all 14 sizes; never overtaken within {WITHIN}"
    )


def test_never_but_not_everywhere_resolved() -> None:
    slower = [CollectiveRecord("all_reduce", c.size_bytes, 10, [s * (1.0001 if i < 4 else 2) for s in c.block_s])
              for i, c in enumerate(series(1e-4, 1e9))]  # fmt: skip
    found = compared(run("a", series(1e-4, 1e9)), run("b", slower))
    assert found.sentence() == (
        "all_reduce on 2 devices: a is faster than b at 10 of 14 sizes, the others unresolved; "
        f"nowhere seen overtaken within {WITHIN}"
    )


def test_several_crossings() -> None:
    plain = series(1e-4, 1e9)
    factors = [0.5] * 4 + [2.0] * 4 + [0.5] * 6  # crosses at 512 B and at 128 KiB
    other = [CollectiveRecord("all_reduce", c.size_bytes, 10, [f * s for s in c.block_s])
             for c, f in zip(plain, factors, strict=True)]  # fmt: skip
    found = compared(run("x", plain), run("y", other))
    assert found.fastest == ["y", "x", "y"]
    assert [c.size_bytes for c in found.crossovers] == pytest.approx([2**9, 2**17])
    assert found.sentence() == "all_reduce on 2 devices: y is faster below 512 B, x from there to 128 KiB, y above"


def test_only_what_is_comparable_is_compared() -> None:
    results = [
        run("a", series(1e-4, 1e9)),
        run("b", series(1e-4, 1e9), gpus=4),
        run("c", series(1e-4, 1e9, name="reduce")),
        run("d", []),
    ]
    other = run("e", series(1e-4, 1e9))
    other.scale.framework = "tensorflow"
    assert compare_operations(make_collective_table([*results, other])) == []
    results.append(run("f", series(1e-4, 1e9) + series(1e-4, 1e9, name="reduce")))
    assert [(c.name, c.strategies) for c in compare_operations(make_collective_table(results))] == [
        ("all_reduce", ("a", "f")),
        ("reduce", ("c", "f")),
    ]


def test_runs_of_one_strategy_are_pooled() -> None:
    """Two launches that differ by 40 %, with a strategy between them: nothing is resolved."""
    launches = [run("a", series(8e-5, 1e12), repeat=0), run("a", series(1.2e-4, 1e12), repeat=1)]
    found = compared(*launches, run("b", series(1.1e-4, 1e12)))
    assert found.resolved == 0
    assert compared(launches[0], run("b", series(1.1e-4, 1e12))).resolved == len(MESSAGE_SIZES)


@given(
    latencies=st.tuples(*[st.floats(1e-6, 1e-2)] * 2), rates=st.tuples(*[st.floats(1e7, 1e11)] * 2)
)  # fmt: skip
def test_the_crossing_lies_between_the_sizes_that_tell(
    latencies: tuple[float, float], rates: tuple[float, float]
) -> None:
    found = compared(*(run(n, series(a, r)) for n, a, r in zip("ab", latencies, rates, strict=True)))
    swapped = compared(*(run(n, series(a, r)) for n, a, r in zip("ba", latencies, rates, strict=True)))
    assert [{"a": "b", "b": "a"}[name] for name in found.fastest] == swapped.fastest
    assert [c.size_bytes for c in found.crossovers] == pytest.approx([c.size_bytes for c in swapped.crossings])
    assert len(found.crossovers) <= 1
    for crossing in found.crossovers:
        by_slope = 1 / rates[0] - 1 / rates[1]
        truth = (latencies[1] - latencies[0]) / by_slope
        assert crossing.low_bytes < truth < crossing.high_bytes
        assert crossing.low_bytes <= crossing.size_bytes <= crossing.high_bytes
        first = found.fastest[0]
        assert (first == "a") == (latencies[0] < latencies[1])


def test_interpolation_is_linear_in_the_logarithms() -> None:
    assert interpolate_crossover_bytes([2**10, 2**12], [0.5, 2.0]) == pytest.approx(2**11)
    assert interpolate_crossover_bytes([2**10, 2**16], [2.0, 0.25]) == pytest.approx(2**12)
    assert np.isclose(interpolate_crossover_bytes([4, 16, 64], [0.5, 1.0, 2.0]), 16)


@pytest.mark.parametrize(
    ("size", "words"),
    [(4, "4 B"), (1000, "1000 B"), (1024, "1 KiB"), (65536, "64 KiB"), (1.2e6, "1.14 MiB"), (2**28, "256 MiB"),
     (2**30, "1 GiB"), (1023.96, "1 KiB"), (1.5 * 2**40, "1.54e+03 GiB")],
)  # fmt: skip
def test_sizes_in_words(size: float, words: str) -> None:
    assert format_binary_bytes(size) == words


def test_from_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_result(run(name, series(1e-4, 1e9)), tmp_path / name)
    frame = scalebench.collectives(tmp_path)
    assert len(frame) == 2 * len(MESSAGE_SIZES) and set(frame["strategy"]) == {"a", "b"}
    assert len(scalebench.collectives([tmp_path / "a"])) == len(MESSAGE_SIZES)
    with pytest.raises(InputError, match=r"no result\.json"):
        scalebench.collectives(tmp_path / "nowhere")
