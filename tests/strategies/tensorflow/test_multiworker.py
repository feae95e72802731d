"""Clusters of several processes: addresses, ports, validation with moving statistics, and independent replicas."""

import socket

import numpy as np
import pytest
import tensorflow as tf

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.runner.launchers import local
from scalebench.runner.launchers.rank_environment import find_free_ports
from scalebench.runner.parent import run_spec
from scalebench.strategies.tensorflow import multiworker
from scalebench.strategies.tensorflow.bare import IndependentTensorFlow
from scalebench.strategies.tensorflow.multiworker import WorkerGroup
from scalebench.workloads.source import Batch
from tests.builders.runs import simulated_spec
from tests.strategies.builders import make_features


@pytest.fixture
def three(monkeypatch):
    addresses = ["10.0.0.1:5000", "10.0.0.1:5001", "10.0.0.2:5000"]
    monkeypatch.setenv("SCALEBENCH_ADDRESSES", ",".join(addresses))
    return addresses


def test_addresses_come_from_the_launcher(three, monkeypatch):
    assert multiworker.rank_addresses() == three
    monkeypatch.delenv("SCALEBENCH_ADDRESSES")
    with pytest.raises(RuntimeError, match="SCALEBENCH_ADDRESSES is not set"):
        multiworker.rank_addresses()
    resolver = multiworker.cluster_resolver({"ps": three[:1], "worker": three[1:]}, "worker", 1, ["/GPU:0"])
    assert resolver.cluster_spec().as_dict() == {"ps": three[:1], "worker": three[1:]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert resolver.num_accelerators() == {"GPU": 1}
    assert multiworker.cluster_resolver({"worker": three}, "worker", 0, ["/CPU:0"]).num_accelerators() == {"GPU": 0}


def test_a_port_in_use_is_named(three):
    words = r"10\.0\.0\.1:5001 was taken by another program; run it again"
    with pytest.raises(RuntimeError, match=words), multiworker.explain_port_conflict(1):
        raise tf.errors.UnknownError(None, None, "Could not start gRPC server")
    with pytest.raises(tf.errors.UnknownError), multiworker.explain_port_conflict(1):
        raise tf.errors.UnknownError(None, None, "something else")
    with pytest.raises(InputError, match=r"no strategy\.backend 'rign'; did you mean 'ring'"):
        WorkerGroup(simulated_spec(), 0, ["/CPU:0"], "rign")


SHORT = ("measure=quick", "measure.min_s=0", "measure.max_s=1", "measure.hang_s=30", "measure.probes=false")


def spec_of(*words):
    return resolve(compose_config(["strategy=multiworker_ring", "gpus=2", *SHORT, *words]))


@pytest.mark.slow
@pytest.mark.real
def test_validation_with_moving_statistics_and_uneven_parts(tmp_path):
    """55 samples in batches of 18: the last one is of rank 0 alone, which must not wait for the other.

    And the gradients travel in messages of the size that was asked for.
    """
    words = ["model=resnet20_cifar10", "dataset.size=221", "dataset.validation_share=0.25"]
    spec = spec_of(*words, "train.batch_per_device=9", "strategy.options.bytes_per_pack=300000")
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
    result = run_spec(spec_of(*words, "train.precision=float16"), tmp_path / "run")
    assert (result.status, result.reason) == ("ok", None)
    first, second = (rank.metrics for rank in result.ranks)
    assert first == second and np.isfinite(first["mse"])


@pytest.mark.real
@pytest.mark.slow
def test_a_port_in_use_fails_the_run_with_its_reason(tmp_path, monkeypatch):
    free = find_free_ports
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(local, "find_free_ports", lambda count: [*free(count - 1), port])
        open_port = "strategy.options.open_port=true"  # in a network of its own the port would be free
        result = run_spec(spec_of("dataset.size=400", open_port), tmp_path / "run")
    words = f"rank 1: RuntimeError: 127.0.0.1:{port} was taken by another program; run it again"
    assert (result.status, result.reason) == ("failed", words)
    assert result.phases.wall_s is not None and result.phases.wall_s < 30


def test_an_independent_replica_trains_on_its_own_mean_loss(strategy, monkeypatch):
    """The same update as the baseline's on the same samples, however large the global batch is."""
    monkeypatch.setattr(IndependentTensorFlow, "join", lambda self: None)
    samples = np.random.default_rng(0).normal(size=(6, 200, 3)).astype(np.float32), np.ones((6, 2), np.float32)
    weights = []
    for name, global_samples in (("bare_tensorflow", 6), ("independent_tensorflow", 600)):
        one = strategy(f"strategy={name}", "gpus=1", "train.optimizer=sgd", "train.learning_rate=0.1")
        (batch,) = one.feed(iter([Batch(*samples, global_samples)]))
        one.step(batch)
        weights.append(one.parameters())
        assert one.backend_used() is None
    for name, array in weights[0].items():
        np.testing.assert_allclose(weights[1][name], array, atol=1e-6, err_msg=name)
