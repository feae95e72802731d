"""train.accumulate: a step in parts equals the full step, and parts are computed one at a time."""

import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.tensorflow import optimizer
from scalebench.strategies.tensorflow.bare import IndependentTensorFlow
from tests.strategies.builders import run_training
from tests.strategies.tensorflow.builders import BARE, BYTES, IMAGES, MIRRORED

# Losses of a whole update: 13 samples on each of two devices, or 26 on one; the last of an epoch has 23.
UNEVEN = {"global_batch": 26, "devices": 2}


@pytest.mark.parametrize(("samples", "sizes"), [(7, [3, 2, 2]), (6, [2, 2, 2]), (2, [1, 1]), (1, [1])])
def test_parts_differ_by_at_most_one_sample(samples, sizes):
    """Every sample is in one part, with its target, and no part is empty; one function does all."""
    found = []

    def of_part(inputs, targets):
        tf.py_function(lambda x, y: found.append([x.numpy().tolist(), y.numpy().tolist()]), [inputs, targets], [])
        return [tf.reduce_sum(inputs), inputs[0] * tf.reduce_sum(targets)]

    run = tf.function(lambda x, y: optimizer.accumulate_parts(of_part, x, y, 3, [(), ()]), autograph=False)
    inputs = np.arange(samples, dtype=np.float32)
    total, products = run(tf.constant(inputs), tf.constant(10 * inputs))
    assert [len(x) for x, _ in found] == sizes
    assert [value for x, _ in found for value in x] == inputs.tolist()
    assert [value for _, y in found for value in y] == (10 * inputs).tolist()
    assert float(total) == inputs.sum()
    assert float(products) == pytest.approx(sum(x[0] * sum(y) for x, y in found))


@pytest.mark.parametrize("words", [
    BARE,
    MIRRORED,
    ("strategy=central_storage_device", "gpus=2"),
    pytest.param(("strategy=mirrored_hierarchical", "gpus=2"), marks=pytest.mark.slow),
    pytest.param(("strategy=central_storage_cpu", "gpus=2"), marks=pytest.mark.slow),
    pytest.param((*BARE, "train.compile=true"), marks=pytest.mark.slow),
    pytest.param((*MIRRORED, "train.compile=true"), marks=pytest.mark.slow),
])  # fmt: skip
def test_accumulated_steps_equal_full_steps(strategy, source, words):
    """Over the smaller last batch of an epoch, whose parts are of other sizes; traced once, exchanged once."""
    one = strategy(*words, "train.accumulate=3")
    found, wanted = (run_training(each, source(**UNEVEN), 8).losses for each in (one, strategy(*BARE)))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert one.step_function().experimental_get_tracing_count() == 1
    assert sum(one.message_sizes()) == (0 if words[0] == BARE[0] else BYTES)
    assert one.settings_used()["compiler"] == ("xla" if "train.compile=true" in words else "none")


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_independent_replica_averages_over_all_of_its_parts(strategy, source, monkeypatch, accumulate):
    """Not over those of each, nor over the global batch."""
    monkeypatch.setattr(IndependentTensorFlow, "join", lambda self: None)
    one = strategy("strategy=independent_tensorflow", "gpus=1", f"train.accumulate={accumulate}")
    bare, batch = strategy(*BARE), next(iter(one.feed(source(0, 2))))
    (part,) = batch.parts
    found = one.compute(*part, batch.global_samples, backward=True)[1:]
    wanted = bare.compute(*part, tf.constant(float(batch.samples)), backward=True)[1:]
    assert batch.samples < float(batch.global_samples)
    for ours, expected_value in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, expected_value, rtol=0, atol=1e-6 * np.abs(expected_value).max())


@pytest.mark.slow
@pytest.mark.parametrize("words", [BARE, MIRRORED])
def test_every_part_updates_moving_statistics(strategy, pictures, words):
    one = strategy(*words, *IMAGES, "train.accumulate=2")
    batch = next(iter(one.feed(pictures())))
    wanted = []
    for images, _ in batch.parts:
        alone, half = one._build_model("float32"), len(images) // 2
        for part in (images[:half], images[half:]):
            alone(part, training=True)
        wanted.append([variable.numpy() for variable in alone.moving_statistics])
    one.step(batch)
    for variable, *each in zip(one.model.moving_statistics, *wanted, strict=True):
        np.testing.assert_allclose(variable.numpy(), np.mean(each, 0), rtol=1e-4, atol=1e-5)


def test_evaluation_runs_in_slices(strategy, source):
    sizes = []
    one = strategy(*BARE, "train.accumulate=4", "train.batch_per_device=20")
    forward = one._forward
    one._forward = lambda inputs: sizes.append(len(inputs)) or forward(inputs)
    assert one.evaluate(source()) == pytest.approx(strategy(*BARE).evaluate(source()), rel=1e-6)
    assert sizes == [5] * 20 + [1]
