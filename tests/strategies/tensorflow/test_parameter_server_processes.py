"""What the processes of a parameter server do for the chief, without its network."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from scalebench.core.spec import RunSpec
from scalebench.strategies.tensorflow import multiworker, parameter_server
from scalebench.strategies.tensorflow.parameter_server import Recorder, Rows
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache
from tests.builders.runs import simulated_spec

SPEC = (tf.TensorSpec((None, 200, 3), tf.float32), tf.TensorSpec((None, 2), tf.float32))


def spec_of(feed: str) -> RunSpec:
    spec = simulated_spec(size=64)
    spec.config.dataset = dataclasses.replace(spec.config.dataset, feed=feed)
    return spec


@pytest.mark.parametrize("feed", ["host", "fixed", "disk"])
def test_rows_are_read_as_they_were_dealt(feed: str) -> None:
    spec = spec_of(feed)
    inputs, targets = cache.open_arrays(datasets.prepare(spec.config))
    rows = Rows(spec)
    for wanted in (np.array([5, 3, 60]), np.array([7]), np.array([5, 3, 60])):
        found = rows(wanted)
        np.testing.assert_array_equal(found[0], inputs[wanted])
        np.testing.assert_array_equal(found[1], targets[wanted])


def test_a_fixed_batch_is_read_once() -> None:
    rows, wanted = Rows(spec_of("fixed")), np.array([5, 3])
    assert rows(wanted)[0] is rows(wanted.copy())[0]
    host = Rows(spec_of("host"))
    assert host(wanted)[0] is not host(wanted)[0]


def test_a_graph_reads_rows_in_the_process_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_server, "_kept", {})
    rows = Rows(spec_of("host"))
    parameter_server._keep(parameter_server.READ, rows)
    read = tf.function(
        lambda wanted: parameter_server.read(wanted, SPEC), input_signature=[tf.TensorSpec((None,), tf.int64)]
    )
    assert [part.shape.as_list() for part in read.get_concrete_function().outputs] == [[None, 200, 3], [None, 2]]
    for part, wanted in zip(read(tf.constant([9, 1], tf.int64)), rows(np.array([9, 1])), strict=True):
        np.testing.assert_array_equal(part.numpy(), wanted)


def test_what_ran_between_the_two_calls_is_recorded() -> None:
    recorder = Recorder()
    for _ in range(2):
        assert len(recorder(np.array(True))) == 0
        tf.function(lambda x: tf.linalg.matmul(x, x))(tf.ones((3, 3)))
        events = {name.decode() for name in recorder(np.array(False))}
        assert any(event.startswith("MatMul:") for event in events)


def test_addresses_by_role(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = simulated_spec(gpus=4)
    for place, role in zip(spec.places, ("chief", "ps", "worker", "worker"), strict=True):
        place.role = role
    monkeypatch.setenv(multiworker.ADDRESSES, "a:1,b:2,c:3,d:4")
    assert parameter_server.jobs(spec) == {"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4"]}
