"""Parameters, FLOPs and bytes of a sample, each on its own."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.errors import InputError
from scalebench.workloads import networks
from scalebench.workloads.network import Network


def build(parameters: float, flops: float, sample_bytes: int, outputs: int = 1) -> Network:
    options: dict[str, Any] = {"parameters": parameters, "flops": flops, "sample_bytes": sample_bytes}
    return networks.build_by_name("synthetic", (sample_bytes // 4, 1), outputs, options)


@given(
    st.floats(5e4, 1e9),
    st.floats(0, 3.5) | st.sampled_from([math.log10(1 + x) for x in (0.001, 0.004, 0.005, 0.006, 0.01)]),
    st.integers(6400, 10**7),
    st.integers(1, 10),
)
def test_all_three_are_met_within_one_percent(parameters: float, tens: float, numbers: int, outputs: int) -> None:
    """From 2 to 6,300 FLOPs for a parameter."""
    flops = 2 * parameters * 10**tens
    net = build(parameters, flops, 4 * numbers, outputs)
    assert net.parameters == pytest.approx(parameters, rel=0.01)
    assert net.forward_flops == pytest.approx(flops, rel=0.01)
    assert math.prod(net.input.shape) == numbers and net.output.shape == (outputs,)


def test_one_number_changes_alone() -> None:
    inception = build(23.8e6, 11.43e9, 1_072_812)
    for changed in (build(2.4e6, 11.43e9, 1_072_812), build(23.8e6, 1.1e9, 1_072_812), build(23.8e6, 11.43e9, 12_288)):
        same = [
            changed.parameters == pytest.approx(inception.parameters, rel=0.02),
            changed.forward_flops == pytest.approx(inception.forward_flops, rel=0.02),
            changed.input.shape == inception.input.shape,
        ]
        assert sum(same) == 2


def test_all_of_a_sample_but_less_than_one_window_is_read() -> None:
    for numbers in (1000, 37_632, 37_633, 99_991):
        net = build(1e6, 1e8, 4 * numbers)
        pool = net.nodes[1]
        (window,) = pool.settings["window"]
        assert pool.op == "avg_pool" and pool.settings["strides"] == window
        assert 0 <= numbers - window * pool.shape[0] < window


def test_convolutions_hold_half_of_the_parameters_or_fewer() -> None:
    net = build(25e6, 8e9, 150_528)
    shared = sum(math.prod(a.shape) for a in net.arrays if a.name.startswith("conv"))
    assert 0.2 < shared / net.parameters < 0.51
    assert net.count("conv") == 8 and net.count("dense") == 3


@pytest.mark.parametrize(
    ("parameters", "flops", "sample_bytes", "message"),
    [
        (1e6, 1e6, 4000, r"^model.options.flops=1e\+06 is below 2 for each of 1e\+06 parameters; raise it to 2e\+06"),
        (
            1e6,
            1e9,
            3996,
            r"^model.options.sample_bytes=3996 is too small for that many FLOPs .*; raise it to 4000 or more$",
        ),
        (1e6, 1e9, 4001, r"^model.options.sample_bytes=4001 should be a multiple of 4"),
        (0, 1e9, 4000, r"^model.options.parameters=0 should be a finite number above 0$"),
        (1e6, math.inf, 4000, r"^model.options.flops=inf should be a finite number above 0$"),
        (math.nan, 1e9, 4000, r"^model.options.parameters=nan should be a finite number above 0$"),
        (
            50,
            200,
            4000,
            r"^model=synthetic cannot come closer to parameters=50 and flops=200 than .*; raise model.options",
        ),
    ],
)
def test_impossible_sizes(parameters: float, flops: float, sample_bytes: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(parameters, flops, sample_bytes)


def test_the_shape_is_that_of_the_bytes() -> None:
    with pytest.raises(
        InputError, match=r"^model.options.sample_bytes=4000 means model.input_shape=\[1000, 1\], not \[9, 1\]$"
    ):
        networks.build_by_name("synthetic", (9, 1), 1, {"sample_bytes": 4000})


def test_the_sample_size_that_the_message_names_is_enough() -> None:
    assert build(1e6, 1e9, 4000).nodes[1].shape == (1000, 1)
