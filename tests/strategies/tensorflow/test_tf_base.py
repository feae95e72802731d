"""One bare replica: steps, uneven shards, metrics, state, and errors of the set-up."""

import math
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf

from scalebench.workloads.source import Source
from tests.strategies.tensorflow.builders import BARE, MIRRORED, SMALL_IMAGES


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_loss_decreases(strategy, source, optimizer):
    rate = 1e-3 if optimizer == "adam" else 0.02
    bare = strategy(*BARE, f"train.optimizer={optimizer}", f"train.learning_rate={rate}")
    losses = [part.loss_sum / part.samples for part in map(bare.step, islice(bare.feed(source()), 60))]
    assert np.mean([float(loss) for loss in losses[-12:]]) < 0.5 * float(losses[0])


def test_loss_is_reported_as_a_lazy_sum(strategy, source):
    bare = strategy(*BARE)
    batch = next(iter(bare.feed(source())))
    ((inputs, targets),) = batch.parts
    expected = np.square(bare.model(inputs).numpy() - targets.numpy()).mean(1).sum()
    part = bare.step(batch)
    assert isinstance(part.loss_sum, tf.Tensor)
    assert (part.samples, float(part.loss_sum)) == (20, pytest.approx(float(expected), rel=1e-6))
    assert bare.last_batch is batch


@pytest.mark.parametrize("words", [BARE, ("strategy=central_storage_cpu", "gpus=2")])
def test_the_smaller_last_batch_of_an_epoch_is_not_kept(strategy, source, words):
    one = strategy(*words)
    sizes = [one.step(batch).samples for batch in islice(one.feed(source(global_batch=45)), 3)]
    assert sizes == [45, 45, 11] and one.last_batch.samples == 45


def test_batches_of_all_sizes_share_one_trace(strategy, source):
    bare = strategy(*BARE)
    sizes = {bare.step(batch).samples for batch in islice(bare.feed(source()), 7)}
    assert sizes == {20, 1}
    assert bare.step_function().experimental_get_tracing_count() == 1
    bare.evaluate(source(global_batch=30))
    assert bare._forward.experimental_get_tracing_count() == 1


@pytest.mark.slow
def test_dropout_is_seeded(strategy, source):
    """Each rank has its own masks, and the same ones in the next run."""
    words = (*BARE, "model=cifar10_cnn", "dataset=cifar10_synthetic", "train.learning_rate=1e-30")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 32, 32, 3)).astype(np.uint8), rng.integers(0, 10, 20)

    def losses(*others):
        bare = strategy(*words, *others)
        batch = next(iter(bare.feed(Source(images, labels, global_batch=20, seed=0, replica=0, replicas=1))))
        return [float(bare.step(batch).loss_sum) for _ in range(2)]

    first = losses("train.dropout=true")
    assert first[0] != first[1] and first == losses("train.dropout=true")
    plain = losses("train.dropout=false")
    assert plain[0] == pytest.approx(plain[1], rel=1e-6)


def test_evaluation_is_the_mean_over_all_samples(strategy, source, samples):
    bare = strategy(*BARE)
    errors = np.square(bare.model(samples[0]).numpy() - samples[1], dtype=np.float64)
    wanted = {"mse": errors.mean(), "mse_G0": errors[:, 0].mean(), "mse_a": errors[:, 1].mean()}
    assert bare.evaluate(source()) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.usefixtures("small_network")
def test_metrics_of_a_classifier(strategy, pictures):
    bare = strategy(*BARE, *SMALL_IMAGES)
    images, labels = pictures().arrays()
    outputs = bare.model(tf.constant(images)).numpy().astype(np.float64)
    entropies = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(65), labels]
    found = bare.evaluate(pictures(30))
    assert found == pytest.approx(
        {"cross_entropy": entropies.mean(), "accuracy": (outputs.argmax(1) == labels).mean()}, rel=1e-4
    )


@pytest.mark.parametrize(("optimizer", "times"), [("adam", 3), ("momentum", 2), ("sgd", 1)])
def test_state_bytes_are_weights_and_optimizer_state(strategy, optimizer, times):
    """And two single numbers of the optimizer's: how many updates there were (8 bytes), and the learning rate (4)."""
    full = times * 4 * 153441 + 12
    assert strategy(*BARE, f"train.optimizer={optimizer}").state_bytes() == [full]


def test_state_bytes_are_counted_on_their_device(strategy):
    """Each replica's own; of one copy, on the device that has it."""
    full, momentum = 2 * 4 * 153441 + 12, "train.optimizer=momentum"
    assert strategy(*MIRRORED, momentum).state_bytes() == [full, full]
    for name in ("central_storage_cpu", "multi_gpu_model"):
        assert strategy(f"strategy={name}", "gpus=2", momentum).state_bytes() == [full, 0]
    assert sum(strategy("strategy=model_parallel_tensorflow", "gpus=2", momentum).state_bytes()) == full + 12


@pytest.mark.usefixtures("small_network")
def test_moving_statistics_count_as_state(strategy):
    one = strategy(*BARE, *SMALL_IMAGES, "train.optimizer=sgd")
    moving = sum(variable.numpy().size for variable in one.model.moving_statistics)
    assert moving > 0 and one.state_bytes() == [4 * (one.num_params() + moving) + 12]


def test_wrong_parameter_count(made):
    one = made(*BARE)
    one.spec.config.model.params = 7
    with pytest.raises(RuntimeError, match="153441 parameters here and 7 in the config"):
        one.setup()


def test_each_variable_is_on_the_device_with_the_fewest_bytes_before_it(strategy):
    one = strategy("strategy=central_storage_spread", "gpus=2", "train.optimizer=momentum")
    loads = [0, 0]
    for variable in one.model.trained:
        least = loads.index(min(loads))
        assert variable.value.device.endswith(f"CPU:{least}"), variable.name
        loads[least] += 4 * math.prod(variable.shape)
    # Slots are beside their weights; the optimizer's two single numbers are on either device.
    single_numbers = [size - 2 * load for size, load in zip(one.state_bytes(), loads, strict=True)]
    assert min(single_numbers) >= 0 and sum(single_numbers) == 12
