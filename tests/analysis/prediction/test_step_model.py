"""The step model against an event simulation, at its limits, along its inputs, and drawn through points."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.prediction import step_model
from scalebench.analysis.prediction.step_model import Links, MeasuredStep, StepModel, extrapolate, predict_parts

MODEL = StepModel(1e-3, Links(4, 1e9, 5e8), "all_reduce", 1e7, messages=4)
COUNTS = np.array([1.0, 2, 4, 8, 64, 4096])
seconds = st.floats(1e-4, 10.0)


def step_s(model, devices, batch=32.0):
    return float(predict_parts(model, devices, batch).step_s)


def simulate_exposed_s(sync_s, messages, hidden_s):
    """Send each message when its gradients are there and the one before is done; return what is left afterwards."""
    done_s = 0.0
    for number in range(1, messages + 1):
        arrived_s = hidden_s * number / messages
        done_s = max(done_s, arrived_s) + sync_s / messages
    return done_s - hidden_s


@given(seconds, st.integers(1, 50), seconds, st.floats(0.0, 1.0))
def test_what_stays_exposed_equals_a_simulation_of_equal_messages(sync_s, messages, compute_s, overlap):
    model = replace(MODEL, sample_s=compute_s, sync_bytes=sync_s * 1e9, messages=messages, overlap=overlap)
    expected = simulate_exposed_s(sync_s, messages, overlap * 0.5 * compute_s)
    actual = predict_parts(replace(model, backward_share=0.5), 2, 1.0).sync_s  # a ring of two sends its bytes once
    assert float(actual) == pytest.approx(expected, rel=1e-9)


def test_one_device_has_no_synchronization_and_no_growth():
    for kind in step_model.SYNC_KINDS:
        assert step_s(replace(MODEL, sync=kind, optimizer_s=0.004), 1) == pytest.approx(0.036)
    # Each of eight devices updates its share of the state.
    for kind, share in (("all_reduce", 1), ("zero1", 1 / 8), ("sharded", 1 / 8)):
        actual = predict_parts(replace(MODEL, sync=kind, optimizer_s=0.8), 8, 32.0).optimizer_s
        assert float(actual) == pytest.approx(0.8 * share), kind


def test_arrays_equal_single_counts():
    together = predict_parts(MODEL, COUNTS, 32.0).step_s
    assert together == pytest.approx([step_s(MODEL, count) for count in COUNTS])
    assert (np.diff(together) > 0).all()
    # The host limits and is not added.
    model = replace(MODEL, host_sample_s=0.01)
    assert step_s(model, 4) == pytest.approx(4 * 32 * 0.01)
    assert step_s(replace(model, host_sample_s=1e-6), 4) == step_s(MODEL, 4)


def test_between_nodes_the_slower_link_counts():
    model = replace(MODEL, links=Links(4, 1e9, 1e8), sync_bytes=1e9, overlap=0.0)
    assert predict_parts(model, [1, 2, 4, 8], 1.0).sync_s == pytest.approx([0.0, 1.0, 1.5, 17.5])
    unknown = replace(model.links, network_bytes_per_s=None)
    assert predict_parts(replace(model, links=unknown), 8, 1.0).sync_s == pytest.approx(1.75)


def test_devices_that_are_processors_wait_for_the_network():
    model = replace(MODEL, host_sample_s=0.01)
    nodes = [1.0, model.links.devices_per_node, 2 * model.links.devices_per_node]
    alone, waiting = (predict_parts(each, nodes, 8) for each in (model, replace(model, computes_on_host=True)))
    assert (waiting.host_s - alone.host_s).tolist() == pytest.approx([0, 0, alone.sync_s[2]])
    unknown = replace(MODEL, computes_on_host=True)
    assert predict_parts(unknown, nodes, 8).host_s.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("n", "expected"), [(1, 0.0), (2, 0.564), (10, 1.539), (100, 2.508), (1000, 3.241)])
def test_the_expected_maximum_is_that_of_normal_variables(n, expected):
    """Against the tables of Harter 1961."""
    assert float(step_model.expected_maximum(np.array(float(n)))) == pytest.approx(expected, abs=0.03)


def test_a_model_that_is_cut_follows_its_points():
    points = [MeasuredStep(count, 32, 0.1 * count**0.5) for count in (1, 2, 4)]
    cut = extrapolate(replace(MODEL, sync="pipeline", growth=0.0), points)
    assert cut.step_s([1, 2, 16], 32) == pytest.approx([0.1, 0.1 * 2**0.5, 0.4], rel=1e-6)


def test_points_of_the_model_itself_change_nothing():
    steps = predict_parts(MODEL, [1, 2, 4], 32).step_s
    drawn = extrapolate(MODEL, [MeasuredStep(n, 32, float(s)) for n, s in zip((1, 2, 4), steps, strict=True)])
    assert drawn.model.overhead_factor == pytest.approx(1, rel=1e-3)
    # Between nodes half of it, on a logarithmic scale, is the power law.
    assert drawn.slope and float(replace(drawn, slope=None).step_s(8, 32)) == pytest.approx(step_s(MODEL, 8), rel=1e-3)
    # Overheads that are larger than modelled stay so.
    cheap = extrapolate(MODEL, [MeasuredStep(1, 32, 0.1), MeasuredStep(2, 32, 0.102)])
    dear = extrapolate(MODEL, [MeasuredStep(1, 32, 0.1), MeasuredStep(2, 32, 0.14)])
    assert dear.model.overhead_factor > cheap.model.overhead_factor
    assert (dear.step_s([4, 64], 32) > cheap.step_s([4, 64], 32)).all()


def test_the_error_grows_with_the_distance_and_where_the_network_is_unknown():
    drawn = extrapolate(MODEL, [MeasuredStep(1, 32, 0.1)])
    assert (np.diff(drawn.error_scale([1, 2, 4, 8, 64], 32)) > 0).all()
    assert float(drawn.error_scale(8, 32)) == pytest.approx(1.5 * float(drawn.error_scale(8, 32, knows_network=True)))
    for counts, measured in (([1], "one_point"), ([1, 4], "one_node"), ([4, 8], "several_nodes"), ([8], "one_point")):
        drawn = extrapolate(MODEL, [MeasuredStep(count, 32, 0.1 + 0.01 * count) for count in counts])
        assert drawn.measured == measured and measured in step_model.load_limits()
    with pytest.raises(ValueError, match="no points"):
        extrapolate(MODEL, [])


def test_links_whose_rate_is_unknown_cost_nothing():
    links = step_model.make_links(8, "nvlink")
    assert links.bytes_per_s is None and math.isinf(float(links.rate(np.array([1.0]))[0]))
