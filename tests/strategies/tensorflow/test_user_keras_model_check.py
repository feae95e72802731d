"""model.keras: the result of a user's function, its weights, and the error line of each possible mistake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

from scalebench.core.errors import PluginError
from scalebench.strategies.base import Unsupported
from scalebench.strategies.tensorflow import user_model
from scalebench.workloads.source import Source
from tests.strategies.tensorflow.test_user_keras_model import HERE, own, train

BARE = ("strategy=bare_tensorflow", "gpus=1")
PICTURES = (
    *("model=custom", "dataset=cifar10_synthetic", "model.input_shape=[32,32,3]", "model.target_shape=[]"),
    *("model.loss=cross_entropy", "model.metric=accuracy", f"model.keras={HERE}:pictures"),
)
LINES = {
    "raises": r"fails: KeyError: 'width'$",
    "exits": r"fails: SystemExit: no data$",
    "nothing": r"gives a NoneType, and no keras.Model$",
    "a_class": r"gives the class Model, and no keras.Model$",
    "a_layer": r"gives a Dense, and no keras.Model$",
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
def policy_kept() -> Iterator[None]:
    before = keras.config.dtype_policy()
    yield
    assert keras.config.dtype_policy() is before


def faulty(kind: str) -> tuple[str, ...]:
    return own("fault", f"model.options.kind={kind}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", LINES)
def test_an_error_is_one_line_and_a_traceback(made: Any, kind: str) -> None:
    with pytest.raises(PluginError, match=rf"^model.keras={HERE}:fault {LINES[kind]}") as caught:
        made(*faulty(kind), *BARE).setup()
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value) and len(str(caught.value)) < 500
    assert "Traceback" in caught.value.log


def test_targets_that_are_not_functions(made: Any) -> None:
    with pytest.raises(
        PluginError, match=r"user_models:not_a_function is a int: name a function that makes the network$"
    ):
        made(*own("not_a_function"), *BARE).setup()


@pytest.mark.parametrize("words", ["model.options.widht=3", "model.options.width=wide"])
def test_wrong_options(made: Any, words: str) -> None:
    wanted = r"cannot be called with model.options=\{'widht': 3\}" if "widht" in words else "fails: ValueError"
    with pytest.raises(PluginError, match=wanted):
        made(*own("plain", words), *BARE).setup()


def test_options_reach_the_function(strategy: Any) -> None:
    assert strategy(*own("plain", "model.options.width=7"), *BARE).model.trained[0].shape == (600, 7)


def test_random_numbers_without_dropout(made: Any, strategy: Any) -> None:
    with pytest.raises(PluginError, match=r"draws numbers in training although train.dropout=false"):
        made(*faulty("noisy"), "train.dropout=false", *BARE).setup()
    assert len(strategy(*faulty("noisy"), *BARE).model.random_states) == 1


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        (
            "model.options.outputs=9",
            r"gives outputs of \(2, 9\) for 2 samples; dataset=cifar10_synthetic has 10 classes",
        ),
        ("model.options.softmax=true", "ends in a softmax, and cross_entropy takes what goes into one"),
    ],
)
def test_outputs_that_are_not_logits(made: Any, word: str, wanted: str) -> None:
    with pytest.raises(PluginError, match=wanted):
        made(*PICTURES, word, *BARE).setup()


def test_channels_first_is_refused(made: Any) -> None:
    with pytest.raises(Unsupported, match=r"train.data_format=nchw .*leave it out"):
        made(*PICTURES, "train.data_format=nchw", *BARE).setup()


def test_a_missing_function(made: Any) -> None:
    one = made(*own("plain"), *BARE)
    one.spec.config.model.keras, one.spec.config.model.torch = None, "mynet:build"
    with pytest.raises(Unsupported, match=r"has no model.keras=MODULE:FUNCTION, which bare_tensorflow needs"):
        one.setup()


@pytest.mark.parametrize("name", ["Tabled", "normalised", "numpys"])
def test_weights_come_from_the_seed(strategy: Any, name: str) -> None:
    first, again, other = (strategy(*own(name), *BARE, f"seed={seed}").parameters() for seed in (5, 5, 6))
    same = [np.array_equal(a, b) for a, b in zip(first.values(), again.values(), strict=True)]
    assert all(same)
    assert not all(np.array_equal(a, b) for a, b in zip(first.values(), other.values(), strict=True))


def test_weights_that_differ_between_ranks(strategy: Any) -> None:
    """Rank 0 has others than this one."""
    one = strategy(*own("unlike"), *BARE)
    with pytest.raises(PluginError, match="gives other weights on every rank: draw them from Keras"):
        user_model.check_equal_weights(one.model, one.spec.config, lambda checksum: checksum + 1, lambda values: values)
    user_model.check_equal_weights(one.model, one.spec.config, lambda checksum: checksum, lambda values: values)


def test_a_model_created_at_import(
    strategy: Any, source: Callable[..., Source], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the strategy's scope too, as its variables would be nobody's else."""
    text = (
        f"from {HERE} import plain, CURVE\nMADE = plain()\nMADE.build((None, *CURVE))\ndef build():\n    return MADE\n"
    )
    (tmp_path / "at_import.py").write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = [word for word in own("plain") if "keras" not in word]
    one = strategy(*words, "model.keras=at_import:build", "strategy=mirrored", "gpus=2")
    sys.modules.pop("at_import")
    train(one, source(), 2)
