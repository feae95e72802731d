"""One bare replica: steps, uneven shards, metrics, state, and errors of the set-up."""

import math
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.base import Unsupported
from scalebench.workloads.source import Source
from tests.strategies.tensorflow.builders import BARE, FIT, MIRRORED, SMALL_IMAGES

USERS = "tests.strategies.tensorflow.user_models"


@pytest.mark.parametrize("words", [BARE, ("strategy=central_storage_cpu", "gpus=2")])
def test_batches_of_all_sizes_share_one_trace(strategy, source, words):
    """Losses are lazy; the smaller last batch of an epoch is not kept."""
    one = strategy(*words)
    parts = [one.step(batch) for batch in islice(one.feed(source(global_batch=45)), 3)]
    assert [part.samples for part in parts] == [45, 45, 11] and one.last_batch.samples == 45
    assert all(isinstance(part.loss_sum, tf.Tensor) for part in parts)
    one.evaluate(source(global_batch=30))
    for function in (one.step_function(), one._forward):
        assert function.experimental_get_tracing_count() == 1


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


@pytest.mark.usefixtures("small_network")
def test_state_bytes_are_weights_statistics_and_optimizer_state(strategy):
    """And two single numbers of the optimizer's: how many updates there were (8 bytes), and the learning rate (4)."""
    for optimizer, times in (("adam", 3), ("momentum", 2), ("sgd", 1)):
        one = strategy(*BARE, *SMALL_IMAGES, f"train.optimizer={optimizer}")
        moving = sum(variable.numpy().size for variable in one.model.moving_statistics)
        assert moving > 0 and one.state_bytes() == [4 * (times * one.num_params() + moving) + 12]


def test_state_bytes_are_counted_on_their_device(strategy):
    """Each replica's own; of one copy, on the device that has it."""
    full, momentum = 2 * 4 * 153441 + 12, "train.optimizer=momentum"
    assert strategy(*MIRRORED, momentum).state_bytes() == [full, full]
    for name in ("central_storage_cpu", "multi_gpu_model"):
        assert strategy(f"strategy={name}", "gpus=2", momentum).state_bytes() == [full, 0]
    assert sum(strategy("strategy=model_parallel_tensorflow", "gpus=2", momentum).state_bytes()) == full + 12


REFUSED = [
    (f"mirrored {FIT} train.accumulate=2", "loop=fit computes the samples of a step at once"),
    ("multi_gpu_model train.compile=true", "multi_gpu_model .*train.compile=true"),
    ("central_storage_device train.compile=true", "central_storage_device .*train.compile=true"),
    ("parameter_server train.compile=true", "XLA cannot read the weights"),
    ("model_parallel_tensorflow train.accumulate=2", "train.accumulate.*leave it out"),
    (  # which its plan does not know
        f"central_storage_device train.accumulate=2 model=custom model.keras={USERS}:normalised",
        "without batch normalisation, or dropout",
    ),
]


@pytest.mark.parametrize(("words", "reason"), REFUSED)
def test_a_strategy_refuses_what_its_plan_does(made, words, reason):
    one = made(*f"strategy={words}".split(), "gpus=2")
    with pytest.raises(Unsupported, match=reason):
        (one.join if words.startswith("parameter_server") else one.setup)()


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
