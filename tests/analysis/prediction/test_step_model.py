"""The step model against an event simulation, at its limits, and along its inputs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.prediction import step_model
from scalebench.analysis.prediction.step_model import Links, StepModel, predict_parts

LINKS = Links(4, 1e9, 5e8)
MODEL = StepModel(1e-3, LINKS, "all_reduce", 1e7, messages=4)
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
    model = replace(MODEL, messages=messages, overlap=overlap, backward_share=0.5)
    actual = step_model.hide_sync(np.array(sync_s), model, np.array(compute_s))
    assert float(actual) == pytest.approx(simulate_exposed_s(sync_s, messages, overlap * 0.5 * compute_s), rel=1e-9)


def test_one_device_has_no_synchronization_and_no_growth():
    for kind in step_model.SYNC_KINDS:
        assert step_s(replace(MODEL, sync=kind, optimizer_s=0.004), 1) == pytest.approx(0.036)
    # Each of eight devices updates its share of the state.
    for kind, share in (("all_reduce", 1), ("zero1", 1 / 8), ("sharded", 1 / 8), ("hsdp", 1 / 4)):
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


def test_between_nodes_the_slower_link_counts_and_a_tree_saves_hops():
    links = Links(4, 1e9, 1e8, latency_s=0.0, launch_s=0.0, network_latency_s=1e-3)
    inside, outside = step_model.all_reduce_s(links, np.array([4.0, 4096]), 0.0, messages=1)
    assert (inside, outside) == pytest.approx((0.0, 2e-3 * 10))  # log2 of 1,024 nodes there and back
    shared = replace(links, oversubscription=4.0)
    ratio = step_model.all_reduce_s(shared, np.array([8.0]), 1e9) / step_model.all_reduce_s(links, np.array([8.0]), 1e9)
    assert ratio == pytest.approx(4, rel=0.01)
    unknown = replace(links, network_bytes_per_s=None)
    assert unknown.rate(np.array([1.0, 2.0])) == pytest.approx([1e9, 1e9])
    # Within a node a ring of two sends its bytes once each way.
    links = Links(8, 1e9, None, latency_s=0.0, launch_s=0.0)
    assert step_model.all_reduce_s(links, np.array([1.0, 2, 4]), 1e9) == pytest.approx([0.0, 1.0, 1.5])


def test_a_model_that_is_cut_has_a_power_law():
    """Its layers work one after the other: a step has as many samples more as there are devices."""
    model = replace(MODEL, sync="stages", growth=0.0, slope=1.0)
    assert [step_s(model, count) for count in (1, 2, 4)] == pytest.approx([0.032, 0.064, 0.128])


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
