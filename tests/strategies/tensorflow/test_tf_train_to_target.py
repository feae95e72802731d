"""Training to a target with TensorFlow: learning rates between steps, and evaluation during training."""

import numpy as np
import pytest

from tests.strategies.builders import run_training
from tests.strategies.tensorflow.builders import BARE, BYTES, FIT, MIRRORED

WAYS = [
    (*BARE, FIT),
    MIRRORED,
    pytest.param((*MIRRORED, FIT), marks=pytest.mark.slow),
    pytest.param(("strategy=central_storage_device", "gpus=2"), marks=pytest.mark.slow),
    pytest.param(("strategy=multi_gpu_model", "gpus=2"), marks=pytest.mark.slow),
]
CIFAR = "dataset=cifar10_synthetic"
IMAGES = {"dropout": ("model=cifar10_cnn", CIFAR), "statistics": ("model=resnet20_cifar10", CIFAR)}
EVEN = {"first": 8, "global_batch": 31, "devices": 2}  # of 93 samples


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_every_step_has_its_learning_rate(strategy, source, precision):
    one = strategy(*BARE, f"train.precision={precision}")
    rates, moved = [0.0, 1e-4, 0.0, 1e-2, 1e-3], []
    batch = next(iter(one.feed(source())))
    for rate in rates:
        before = one.parameters()
        one.set_learning_rate(rate)
        one.step(batch)
        moved.append(max(float(np.abs(after - before[name]).max()) for name, after in one.parameters().items()))
    assert [distance > 0 for distance in moved] == [rate > 0 for rate in rates]
    assert moved[3] > 20 * moved[1]
    assert one.step_function().experimental_get_tracing_count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", WAYS)
def test_learning_rates_equal_those_of_the_plain_loop(strategy, source, words):
    """Update for update, also within Keras' loop; momentum tells the rate of an update from that of the one before."""
    rates, momentum = [0.02, 0.05, 0.08, 0.01, 0.04, 0.002, 0.05, 0.01], "train.optimizer=momentum"

    def losses(words, rates):
        return run_training(strategy(*words, momentum), source(**EVEN), 8, rates=rates).losses

    wanted = losses(BARE, rates)
    np.testing.assert_allclose(losses(words, rates), wanted, rtol=1e-5)
    others = losses(BARE, [*rates[:6], 0.01, 0.05])
    np.testing.assert_allclose(others[:7], wanted[:7], rtol=1e-5)
    assert others[7] != pytest.approx(wanted[7], rel=1e-3), "one rate that comes late is seen"


def test_the_scaling_rule_applies_to_the_initial_rate(strategy):
    one = strategy(*BARE, "train.learning_rate=0.1", "train.learning_rate_rule=sqrt", "train.base_batch=300")
    assert one.spec.global_batch == 75
    assert float(one.optimizer.learning_rate) == pytest.approx(0.05)


@pytest.mark.parametrize(("ways", "kind"), [
    ((BARE, (*BARE, FIT)), "dropout"),
    pytest.param((BARE,), "statistics", marks=pytest.mark.slow),
    pytest.param(((*BARE, "dataset.feed=device"),), "dropout", marks=pytest.mark.slow),
    pytest.param(((*BARE, "dataset.prefetch=queue"),), "dropout", marks=pytest.mark.slow),
    pytest.param((MIRRORED,), "dropout", marks=pytest.mark.slow),
    pytest.param(((*MIRRORED, FIT),), "statistics", marks=pytest.mark.slow),
])  # fmt: skip
def test_evaluation_during_training_changes_nothing(strategy, pictures, ways, kind):
    """Neither what is dropped next, nor weights and moving statistics; and it finds what it would find by itself."""
    blind = strategy(*ways[0], *IMAGES[kind], "train.learning_rate=0.01")
    losses = run_training(blind, pictures(13), 6).losses
    for words in ways:
        looked = strategy(*words, *IMAGES[kind], "train.learning_rate=0.01")
        seen = run_training(looked, pictures(13), 6, evaluate_after=(2, 4, 6), validation=pictures(32))
        np.testing.assert_allclose(seen.losses, losses, rtol=1e-5)
        for name, array in blind.parameters().items():
            np.testing.assert_allclose(looked.parameters()[name], array, atol=1e-5, err_msg=name)
        for ours, expected_value in zip(looked.model.moving_statistics, blind.model.moving_statistics, strict=True):
            np.testing.assert_allclose(ours.numpy(), expected_value.numpy(), rtol=1e-4)
        assert seen.metrics[6] == pytest.approx(blind.evaluate(pictures(32)), rel=1e-3)
        assert seen.metrics[2] != seen.metrics[6] and len(seen.metrics) == 3
        assert looked._forward.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("name", ["central_storage_cpu", "multi_gpu_model"])
def test_gradient_sums_are_seen_with_weight_decay(strategy, source, name):
    """TensorFlow joins sums of sums where it may, and what carries the gradients would not be found."""
    one = strategy(f"strategy={name}", "gpus=2", "train.weight_decay=0.01")
    one.step(next(iter(one.feed(source()))))
    assert (one.backend_used(), sum(one.message_sizes())) == ("copy", BYTES)
