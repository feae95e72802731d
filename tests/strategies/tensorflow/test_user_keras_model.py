"""A user's Keras model under strategies of one process: steps, statistics, random numbers, and names of weights; and
the result of a user's function, its weights, and the error line of each possible mistake."""

import dataclasses
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from scalebench.core.errors import PluginError
from scalebench.strategies.base import Unsupported
from scalebench.strategies.tensorflow.profiling import count_flops
from scalebench.strategies.tensorflow.user_model import UserModel, order_inputs
from scalebench.workloads import datasets
from scalebench.workloads.source import Source
from tests.strategies import builders
from tests.strategies.builders import run_training
from tests.strategies.tensorflow.builders import BARE

HERE = "tests.strategies.tensorflow.user_models"
CURVES = ("model=custom", "model.input_shape=[200,3]", "model.target_shape=[2]", "model.outputs=2", "model.loss=mse")
WAYS = [
    "bare_tensorflow strategy.options.loop=fit",
    "mirrored train.accumulate=3",
    "central_storage_device",
    "multi_gpu_model",
    pytest.param("mirrored strategy.options.loop=fit", marks=pytest.mark.slow),
]
PICTURES = (
    *("model=custom", "dataset=cifar10_synthetic", "model.input_shape=[32,32,3]", "model.target_shape=[]"),
    *("model.loss=cross_entropy", "model.metric=accuracy", f"model.keras={HERE}:pictures"),
)
LINES = {
    "own_step": r"overrides train_step, .*: a step here is .* model.loss=mse .*; leave train_step out$",
    "own_loss": r"overrides compute_loss, .*; leave compute_loss out$",
    "half": r"computes in float16 in '.*', .*: set train.precision=float16 and no policy$",
    "half_layer": r"computes in bfloat16 in '.*dense.*', .* where train.precision=float32 computes in float32: ",
    "raises": r"fails: KeyError: 'width'$",
    "exits": r"fails: SystemExit: no data$",
    "nothing": r"gives None, not a keras.Model$",
    "a_class": r"gives the class Model, not a keras.Model$",
    "a_layer": r"gives a Dense, not a keras.Model$",
    "no_weights": r"has no weights to train$",
    "float64": r"has '.*kernel' in float64: what is trained is float32",
    "regularised": r"adds a loss of its own",
    "activity": r"adds a loss of its own",
    "costly": r"adds a loss of its own",
    "three": r"gives outputs of \(2, 3\) for 2 samples; the targets of dataset=materials are \(2, 2\)$",
    "another_shape": r"takes samples of \(100, 3\); those of dataset=materials are \(200, 3\)$",
    "integers": r"takes uint8, and is given floats",
    "batched": r"takes batches of 32 only",
    "too_deep": r"fails: ValueError: Input 0 .* is incompatible with the layer",
    "two_inputs": r"takes 2 inputs, and a sample is one array$",
    "two_outputs": r"should give one tensor, and gives a list$",
}


@pytest.fixture(autouse=True)
def policy_kept():
    before = keras.config.dtype_policy()
    yield
    assert keras.config.dtype_policy() is before


def own(name, *words):
    return (*CURVES, "model.metric=mse", f"model.keras={HERE}:{name}", *words)


INPUT = keras.Input((200, 3))
POSITIONS = keras.layers.Dense(4)(INPUT)  # 200 x 3 x 4 multiply-adds


@pytest.mark.parametrize(("layer", "multiply_adds"), [
    (keras.layers.Conv1D(6, 5, strides=5), 40 * 5 * 4 * 6),
    (keras.layers.SeparableConv1D(6, 3), 198 * (3 * 4 + 4 * 6)),
    (keras.layers.Dense(7, use_bias=False), 200 * 4 * 7),
    (keras.layers.LSTM(3), None),
    (keras.layers.Conv1DTranspose(2, 3), None),
    (lambda x: keras.layers.MultiHeadAttention(2, 3)(x, x), 200 * 4 * 6 * 4 + 2 * 2 * 200 * 200 * 3),
    (keras.layers.BatchNormalization(), 0),
])  # fmt: skip
def test_flops_are_counted(layer, multiply_adds):
    model = keras.Model(INPUT, layer(POSITIONS))
    traced = tf.function(lambda x: model(x, training=False), autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec((2, 200, 3))).graph
    expected = None if multiply_adds is None else 2 * 2 * (200 * 3 * 4 + multiply_adds)
    assert count_flops(graph) == expected


def test_flops_of_training(strategy):
    assert strategy(*own("plain", "model.options.width=7"), *BARE).flops_per_sample() == 6 * (600 * 7 + 7 * 2)
    assert strategy("model=materials_cnn", "dataset=materials", *BARE).flops_per_sample() is None


@pytest.fixture(scope="module")
def trained_bare():
    """What to compare with: the losses and weights of bare_tensorflow, once it was trained."""
    return []


@pytest.mark.parametrize("way", WAYS)
def test_steps_equal_those_of_bare(strategy, source, trained_bare, way):
    """With a table whose rows come up several times in a batch, and with weights that the loss does not hang on."""
    devices = 1 if way.startswith("bare") else 2
    words = (*own("Tabled", "train.dropout=false"), "train.learning_rate=0.1")
    if not trained_bare:
        bare = strategy(*words, *BARE)
        trained_bare.extend((run_training(bare, source(global_batch=27), 6).losses, bare.parameters()))
    one = strategy(*words, *f"strategy={way}".split(), f"gpus={devices}")
    losses, (wanted, weights) = run_training(one, source(global_batch=27), 6).losses, trained_bare
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert losses[0] > 1.05 * losses[5]
    for (name, array), other in zip(one.parameters().items(), weights.values(), strict=True):
        np.testing.assert_allclose(array, other, atol=1e-6, err_msg=name)
    assert one.num_params() == sum(array.size for array in one.parameters().values()) == 108
    if devices == 2:
        assert sum(one.message_sizes()) == 4 * 108
    one.partial_step(one.last_batch, "forward")
    one.local_step(one.last_batch) if devices == 2 else None


def test_a_sample_of_several_tensors(strategy, tmp_path):
    """Its devices are timed, too, and agree with one device about the loss."""
    words = ("model=custom", f"model.keras={HERE}:two_inputs", "model.loss=mse", "dataset=custom", "dataset.size=400")
    words += (f"dataset.builder={builders.__name__}:pairs_of_curves", f"dataset.cache={tmp_path}")
    one, bare = strategy(*words, "strategy=mirrored", "gpus=2"), strategy(*words, *BARE)
    source = Source(*datasets.open_dataset(one.spec), replica=0, replicas=1, global_batch=20, seed=3)
    np.testing.assert_allclose(run_training(one, source, 3).losses, run_training(bare, source, 3).losses, rtol=1e-5)
    assert all(seconds > 0 for seconds in one.local_step(one.last_batch))


def test_arrays_reach_a_list_of_inputs_by_their_names():
    """In an order other than that of the alphabet."""
    longer, shorter = keras.Input((3,), name="longer"), keras.Input((1,), name="last")
    model = keras.Model([longer, shorter], keras.layers.Concatenate()([longer, longer, shorter]))
    samples = {"last": np.ones((2, 1)), "longer": np.full((2, 3), 5.0)}
    assert np.array(model(order_inputs(model, samples))).tolist() == [[5.0] * 6 + [1.0]] * 2
    symbols = {name: keras.KerasTensor((None, *array.shape[1:])) for name, array in samples.items()}
    assert model(order_inputs(model, symbols)).shape == (None, 7)

    class Difference(keras.Model):
        def call(self, inputs):
            return inputs["longer"] - inputs["last"]

    subclassed = Difference()
    subclassed(symbols)
    assert order_inputs(subclassed, samples) is samples


def test_replicas_and_ranks_draw_different_numbers(strategy, made, source):
    one = strategy(*own("normalised"), "strategy=mirrored", "gpus=2")
    run_training(one, source(), 3)
    ((first, draws), (second, others)) = (own.numpy() for own in one.model.random_states[0].value.values)
    assert (second - first, draws, others) == (1, 3, 3)
    states = []
    for rank in (0, 1):
        one = made(*own("normalised"), *BARE)
        one.place = dataclasses.replace(one.place, rank=rank)
        one.setup()
        states.append(one.model.random_states[0].numpy())
    assert (states[1] - states[0]).tolist() == [1, 0]


def test_towers_continue_the_random_states_and_leave_frozen_layers(strategy, source):
    """What each draws is another number, and is not drawn again by the next update."""
    one = strategy(*own("normalised", "model.options.frozen=true"), "strategy=multi_gpu_model", "gpus=2")
    states, first = one.model.random_states[0].numpy(), one.model.inner.get_layer("first")
    before = first.get_weights()
    run_training(one, source(), 3)
    assert (one.model.random_states[0].numpy() - states).tolist() == [0, 6]
    assert not any(variable.path.startswith("first") for variable in [*one.model.trained, *one.model.moving_statistics])
    assert all(np.array_equal(a, b) for a, b in zip(before, first.get_weights(), strict=True))


def test_random_numbers_and_dropout(strategy, source):
    one = strategy(*own("droppers", "train.dropout=false"), *BARE)
    inputs = next(iter(source())).inputs
    np.testing.assert_allclose(one.model(inputs, training=True), one.model(inputs, training=False), atol=1e-6)
    assert one.model.random_states == []
    assert len(strategy(*own("droppers"), *BARE).model.random_states) >= 6
    assert len(strategy(*own("noisy"), *BARE).model.random_states) == 1


def test_bytes_are_scaled_and_layers_have_equal_names():
    identity = keras.Sequential([keras.layers.Lambda(lambda x: x)])
    found = UserModel(identity)(tf.constant([[0, 51, 255]], tf.uint8))
    np.testing.assert_allclose(found, [[-1.0, -0.6, 1.0]], atol=1e-6)
    taken = keras.Input((4,))
    apart = [keras.Sequential([keras.layers.Dense(4)]) for _ in range(2)]
    both = keras.Model(taken, apart[1](apart[0](taken)))
    for variable in both.variables:
        variable._path = f"same/{variable.name}"
    assert list(UserModel(both).variables_by_name) == ["same/kernel", "same/bias", "same/kernel:2", "same/bias:2"]


def test_pictures_and_classes(strategy, pictures):
    """uint8, labels, bfloat16 and channels last."""
    one = strategy(*PICTURES, "train.data_format=nhwc", *BARE, "train.precision=bfloat16")
    losses = run_training(one, pictures(), 60).losses
    assert np.mean(losses[-6:]) < losses[0]
    assert one.settings_used() == {"precision": "bfloat16", "data_format": "nhwc", "compiler": "none"}
    assert set(one.evaluate(pictures())) == {"cross_entropy", "accuracy"}
    assert all(variable.dtype == "float32" for variable in one.model.trained)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LINES)
def test_an_error_is_one_line_and_a_traceback(made, kind):
    with pytest.raises(PluginError, match=rf"^model.keras={HERE}:fault {LINES[kind]}") as caught:
        made(*own("fault", f"model.options.kind={kind}"), *BARE).setup()
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value) and len(str(caught.value)) < 500
    assert "Traceback" in caught.value.log


MISTAKES = [
    (own("not_a_function"), r"user_models:not_a_function is a int: name a function that makes the network$"),
    (own("plain", "model.options.widht=3"), r"cannot be called with model.options=\{'widht': 3\}"),
    (own("plain", "model.options.width=wide"), "fails: ValueError"),
    (own("noisy", "train.dropout=false"), "draws numbers in training although train.dropout=false"),
    (
        (*PICTURES, "model.options.outputs=9"),
        r"gives outputs of \(2, 9\) for 2 samples; dataset=cifar10_synthetic has 10 classes",
    ),
    ((*PICTURES, "model.options.softmax=true"), "ends in a softmax, and cross_entropy takes what goes into one"),
    ((*PICTURES, f"model.keras={HERE}:softmax_op"), "ends in a softmax"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_mistakes_are_named(made, words, message):
    with pytest.raises(PluginError, match=message):
        made(*words, *BARE).setup()


def test_models_that_cannot_be_taken(made):
    with pytest.raises(Unsupported, match=r"train.data_format=nchw .*leave it out"):
        made(*PICTURES, "train.data_format=nchw", *BARE).setup()
    one = made(*own("plain"), *BARE)
    one.spec.config.model.keras, one.spec.config.model.torch = None, "mynet:build"
    with pytest.raises(Unsupported, match=r"has no model.keras=MODULE:FUNCTION, which bare_tensorflow needs"):
        one.setup()


@pytest.mark.parametrize("name", ["Tabled", "numpys"])
def test_weights_come_from_the_seed(strategy, name):
    first, again, other = (strategy(*own(name), *BARE, f"seed={seed}").parameters() for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first.values(), again.values(), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.values(), other.values(), strict=True))


def test_a_model_created_at_import(strategy, source, tmp_path, monkeypatch):
    """Under the strategy's scope too, as its variables would be nobody's else."""
    text = (
        f"from {HERE} import plain, CURVE\nMADE = plain()\nMADE.build((None, *CURVE))\ndef build():\n    return MADE\n"
    )
    (tmp_path / "at_import.py").write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = [word for word in own("plain") if "keras" not in word]
    one = strategy(*words, "model.keras=at_import:build", "strategy=mirrored", "gpus=2")
    sys.modules.pop("at_import")
    run_training(one, source(), 2)
