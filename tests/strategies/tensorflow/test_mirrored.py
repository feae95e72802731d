"""MirroredStrategy over two CPU devices: sums, statistics per replica, short batches, and cross-device operations."""

from itertools import islice, repeat
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.tensorflow import profiling
from scalebench.strategies.tensorflow.mirrored import ReductionInTurns, create_cross_device_ops
from scalebench.workloads import datasets
from scalebench.workloads.source import Batch
from tests.strategies.builders import run_training
from tests.strategies.tensorflow.builders import BYTES, FIT, MIRRORED, apart, replica_weights
from tests.strategies.tensorflow.conftest import DEVICES


@pytest.mark.parametrize("words", [MIRRORED, (*MIRRORED, FIT)])
def test_an_overflow_on_one_replica_skips_the_step_of_all(strategy, samples, words):
    """Replica 1's gradients are infinite, and those of replica 0 are not."""
    one = strategy(*words, "train.precision=float16")
    local, inputs, targets = one.strategy.experimental_local_results, samples[0][:20], samples[1][:20]

    def train(targets):
        """Train a step, and return the scale of each replica before and after it."""
        scales = local(one.optimizer.dynamic_scale.value)
        before = [copy.numpy() for copy in scales]
        run_training(one, repeat(Batch(inputs, targets, 20)), 1)
        return [float(number) for number in (*before, *(copy.numpy() for copy in scales))]

    weights = replica_weights(one)
    assert train(np.concatenate([targets[:10], targets[10:] + 1e4])) == [32768, 32768, 16384, 16384]
    assert all(np.array_equal(now, then) for now, then in zip(replica_weights(one), weights, strict=True))
    assert train(targets) == [16384] * 4
    assert all(np.abs(now - then).max() > 0 for now, then in zip(replica_weights(one), weights, strict=True))
    assert apart(one) == 0


def test_replicas_are_on_their_devices(strategy):
    """Isolated synchronization is made once for the same sizes; with one replica there is none."""
    one = strategy(*MIRRORED)
    for variable in (*one.model.variables, *one.optimizer.variables):
        copies = one.strategy.experimental_local_results(variable.value)
        assert [copy.device.rpartition("/device:")[2] for copy in copies] in (["CPU:0", "CPU:1"], ["CPU:0"])
    assert len(one.strategy.experimental_local_results(one.model.trained[0].value)) == 2
    one = strategy(*MIRRORED)
    one.run_isolated_sync([400])
    made = one._exchange
    one.run_isolated_sync([400])
    assert one._exchange is made
    one.run_isolated_sync([800])
    assert one._exchange is not made
    single = strategy("strategy=mirrored", "gpus=1")
    with profiling.record_lines() as lines:
        single.run_isolated_sync([400])
    ran = {event.name.rpartition(":")[2] for line in lines for event in line.events}
    assert not ran & {"AddN", "CollectiveReduceV2"}


def test_a_last_batch_of_fewer_samples_than_devices(strategy, tmp_path):
    """It joins the one before: a device without a sample would have a convolution over nothing."""
    words = ("dataset.size=42", "dataset.validation_share=0.02", "scaling=strong", "train.global_batch=20")
    one = strategy(*MIRRORED, *words, f"dataset.cache={tmp_path}")
    source, _ = datasets.open_sources(one.spec, *one.shard())
    batches = list(islice(one.feed(source), 3))
    assert [batch.samples for batch in batches] == [20, 21, 20]
    assert all(np.isfinite(float(one.step(batch).loss_sum)) for batch in batches)


def test_cross_device_ops():
    for name, kind in {
        "auto": type(None),
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        "reduce_to_cpu": tf.distribute.ReductionToOneDevice,
        "reduce_to_device": tf.distribute.ReductionToOneDevice,
        "reduce_spread": ReductionInTurns,
    }.items():
        made = create_cross_device_ops(SimpleNamespace(cross_device_ops=name, num_packs=1), DEVICES[::-1])
        assert type(made) is kind
        if kind is tf.distribute.ReductionToOneDevice:
            assert made.reduce_to_device.endswith("CPU:0" if name == "reduce_to_cpu" else "CPU:1")


def test_messages_are_packed_and_summed_in_turns(strategy):
    function = strategy("strategy=mirrored_reduce_spread", "gpus=2").step_function().get_concrete_function()
    sums = [operation.device.rpartition("device:")[2] for operation in profiling.reduction_operations(function)]
    assert len(sums) > 4 and sums == ["CPU:0", "CPU:1"] * (len(sums) // 2) + ["CPU:0"] * (len(sums) % 2)
    one = strategy("strategy=mirrored_hierarchical", "gpus=2", "strategy.options.num_packs=3")
    sizes = one.message_sizes()
    assert len(sizes) == 3 and sum(sizes) == BYTES
