"""The parameter server: failures of its processes, unsupported settings, rows, and what workers do for the chief."""

import contextlib
import dataclasses
from itertools import islice

import numpy as np
import psutil
import pytest
import tensorflow as tf

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.runner.parent import run_spec
from scalebench.strategies.base import NotMeasured
from scalebench.strategies.tensorflow import parameter_server
from scalebench.strategies.tensorflow.parameter_server import EventRecorder, ParameterServer, RowReader
from scalebench.testing.launch import UNEVEN_WORKLOAD
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache
from tests.builders.runs import find_running, simulated_spec


def spec_of(*words):
    return resolve(compose_config(["strategy=parameter_server", "gpus=2", *UNEVEN_WORKLOAD, *words]))


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.cold  # looks for its ranks by their commands
def test_services_end_with_the_chief_and_leave_no_record(tmp_path):
    spec, pids = spec_of("measure=quick", "measure.max_s=1", "measure.min_s=0", "strategy.processes.roles.ps=2"), []

    def look(progress):
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                pids.extend([child.pid] if "scalebench.runner.worker" in child.cmdline() else [])

    result = run_spec(spec, tmp_path / "run", look)
    assert (result.status, result.reason) == ("ok", None)
    assert [rank.rank for rank in result.ranks] == [0] and (result.scale.processes, result.scale.gpus) == (5, 2)
    assert (result.scale.backend_used, result.ranks[0].peak_memory_bytes) == ("grpc", [])
    assert len(set(pids)) == 5 and not find_running(pids)
    assert not list((tmp_path / "run").glob("rank[1-9].json")) and (tmp_path / "run" / "rank4.log").exists()


def dealt(source, updates, *words):
    """Rows of each part of so many global batches."""
    batches = list(islice(ParameterServer(spec_of(*words), 0).feed(source), updates))
    assert all(batch.samples == sum(len(part) for part in batch.parts) for batch in batches)
    return [[part.numpy().tolist() for part in batch.parts] for batch in batches]


def test_every_row_of_a_batch_goes_to_one_worker(source):
    one = source()
    batches = dealt(one, 2 * one.steps_per_epoch)
    for update, parts in enumerate(batches):
        rows = one.batch_indices(*divmod(update, one.steps_per_epoch)).tolist()
        assert [row for part in parts for row in part] == rows
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [len(parts) for parts in batches[-2:]] == [2, 1], "the last batch has one sample, and no part is empty"


def test_the_chief_has_no_probes():
    chief = ParameterServer(spec_of(), 0)
    for name, arguments in (
        ("partial_step", (None, "forward")), ("local_step", (None,)), ("copy_batch", (None,)), ("profile", (1, None)),
    ):  # fmt: skip
        with pytest.raises(NotMeasured, match="the chief of parameter_server computes nothing"):
            getattr(chief, name)(*arguments)


SPEC = (tf.TensorSpec((None, 200, 3), tf.float32), tf.TensorSpec((None, 2), tf.float32))


def feed_spec(feed):
    spec = simulated_spec(size=64)
    spec.config.dataset = dataclasses.replace(spec.config.dataset, feed=feed)
    return spec


@pytest.mark.parametrize("feed", ["host", "fixed", "disk"])
def test_rows_are_read_in_their_order(feed):
    spec = feed_spec(feed)
    inputs, targets = cache.open_arrays(datasets.prepare(spec.config))
    rows = RowReader(spec)
    for wanted in (np.array([5, 3, 60]), np.array([7]), np.array([5, 3, 60])):
        found = rows(wanted)
        np.testing.assert_array_equal(found[0], inputs[wanted])
        np.testing.assert_array_equal(found[1], targets[wanted])


def test_a_fixed_batch_is_read_once(source):
    rows, wanted = RowReader(feed_spec("fixed")), np.array([5, 3])
    assert rows(wanted)[0] is rows(wanted.copy())[0]
    host = RowReader(feed_spec("host"))
    assert host(wanted)[0] is not host(wanted)[0]
    first, *others = dealt(source(feed="fixed"), 8)
    assert all(parts == first for parts in others)


def test_rows_of_a_graph_and_events_of_a_worker(monkeypatch):
    monkeypatch.setattr(parameter_server, "_python_functions", {})
    rows = RowReader(feed_spec("host"))
    parameter_server._register_python_function(parameter_server.READ_TOKEN, rows)
    read = tf.function(
        lambda wanted: parameter_server.read_rows(wanted, SPEC), input_signature=[tf.TensorSpec((None,), tf.int64)]
    )
    assert [part.shape.as_list() for part in read.get_concrete_function().outputs] == [[None, 200, 3], [None, 2]]
    for part, wanted in zip(read(tf.constant([9, 1], tf.int64)), rows(np.array([9, 1])), strict=True):
        np.testing.assert_array_equal(part.numpy(), wanted)
    recorder = EventRecorder()
    for _ in range(2):
        assert len(recorder(np.array(True))) == 0
        tf.function(lambda x: tf.linalg.matmul(x, x))(tf.ones((3, 3)))
        events = {name.decode() for name in recorder(np.array(False))}
        assert any(event.startswith("MatMul:") for event in events)


def test_addresses_by_role(monkeypatch):
    spec = simulated_spec(gpus=4)
    for place, role in zip(spec.places, ("chief", "ps", "worker", "worker"), strict=True):
        place.role = role
    monkeypatch.setenv("SCALEBENCH_ADDRESSES", "a:1,b:2,c:3,d:4")
    assert parameter_server.addresses_by_job(spec) == {"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4"]}
