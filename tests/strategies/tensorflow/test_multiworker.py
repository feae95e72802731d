"""Clusters of several processes: addresses, ports, validation with moving statistics, and independent replicas; and the
parameter server: failures of its processes, rows, and what workers do for the chief."""

import contextlib
import dataclasses
from itertools import islice

import numpy as np
import psutil
import pytest
import tensorflow as tf

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.runner.parent import run_spec
from scalebench.strategies.tensorflow import cluster
from scalebench.strategies.tensorflow.cluster import WorkerGroup
from scalebench.strategies.tensorflow.parameter_server import ParameterServer, RowReader
from scalebench.testing.launch import UNEVEN_WORKLOAD
from tests.builders.runs import find_running, simulated_spec
from tests.strategies.builders import make_features


@pytest.fixture
def three(monkeypatch):
    addresses = ["10.0.0.1:5000", "10.0.0.1:5001", "10.0.0.2:5000"]
    monkeypatch.setenv("SCALEBENCH_ADDRESSES", ",".join(addresses))
    return addresses


def test_addresses_come_from_the_launcher(three, monkeypatch):
    assert cluster.rank_addresses() == three
    spec = simulated_spec(gpus=3)
    for place, role in zip(spec.places, ("chief", "worker", "worker"), strict=True):
        place.role = role
    assert cluster.addresses_by_job(spec) == {"chief": three[:1], "worker": three[1:]}
    monkeypatch.delenv("SCALEBENCH_ADDRESSES")
    with pytest.raises(RuntimeError, match="SCALEBENCH_ADDRESSES is not set"):
        cluster.rank_addresses()
    resolver = cluster.cluster_resolver({"ps": three[:1], "worker": three[1:]}, "worker", 1, ["/GPU:0"])
    assert resolver.cluster_spec().as_dict() == {"ps": three[:1], "worker": three[1:]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert resolver.num_accelerators() == {"GPU": 1}
    assert cluster.cluster_resolver({"worker": three}, "worker", 0, ["/CPU:0"]).num_accelerators() == {"GPU": 0}


def test_a_port_in_use_is_named(three):
    words = r"10\.0\.0\.1:5001 was taken by another program; run it again"
    with pytest.raises(RuntimeError, match=words), cluster.explain_port_conflict(1):
        raise tf.errors.UnknownError(None, None, "Could not start gRPC server")
    with pytest.raises(tf.errors.UnknownError), cluster.explain_port_conflict(1):
        raise tf.errors.UnknownError(None, None, "something else")
    with pytest.raises(InputError, match=r"no strategy\.backend 'rign'; did you mean 'ring'"):
        WorkerGroup(simulated_spec(), 0, ["/CPU:0"], "rign")


SHORT = ("measure=quick", "measure.min_s=0", "measure.max_s=1", "measure.hang_s=30", "measure.probes=false")


def ring_spec(*words):
    return resolve(compose_config(["strategy=multiworker_ring", "gpus=2", *SHORT, *words]))


@pytest.mark.slow
@pytest.mark.real
def test_validation_with_moving_statistics_and_uneven_parts(tmp_path):
    """55 samples in batches of 18: the last one is of rank 0 alone, which must not wait for the other.

    And the gradients travel in messages of the size that was asked for.
    """
    words = ["model=resnet20_cifar10", "dataset.size=221", "dataset.validation_share=0.25"]
    spec = ring_spec(*words, "train.batch_per_device=9", "strategy.options.bytes_per_pack=300000")
    result = run_spec(spec, tmp_path / "run")
    assert (result.status, result.reason) == ("ok", None)
    first, second = (rank.metrics for rank in result.ranks)
    assert first == second and 0 <= first["accuracy"] <= 1
    assert result.scale.backend_used == "ring" and len(result.sync.message_bytes) > 2
    assert sum(result.sync.message_bytes) == result.workload.gradient_bytes


@pytest.mark.slow
@pytest.mark.real
def test_an_overflow_on_one_rank_skips_the_step_of_all(tmp_path):
    """Only the rank that has this sample sees it, and the other must not wait for it."""
    inputs, targets = make_features(80)
    targets[0] = 1e4
    np.savez(tmp_path / "samples.npz", inputs=inputs, targets=targets)
    words = (f"dataset.path={tmp_path}/samples.npz", f"dataset.cache={tmp_path}/cache", "train.batch_per_device=10")
    result = run_spec(ring_spec(*words, "train.precision=float16"), tmp_path / "run")
    assert (result.status, result.reason) == ("ok", None)
    first, second = (rank.metrics for rank in result.ranks)
    assert first == second and np.isfinite(first["mse"])


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


def feed_spec(feed):
    spec = simulated_spec(size=64)
    spec.config.dataset = dataclasses.replace(spec.config.dataset, feed=feed)
    return spec


def test_a_fixed_batch_is_read_once(source):
    rows, wanted = RowReader(feed_spec("fixed")), np.array([5, 3])
    assert rows(wanted)[0] is rows(wanted.copy())[0]
    host = RowReader(feed_spec("host"))
    assert host(wanted)[0] is not host(wanted)[0]
    first, *others = dealt(source(feed="fixed"), 8)
    assert all(parts == first for parts in others)
