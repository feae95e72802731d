"""DatasetContract and ModelContract: our data sets and networks keep them, users' own as well, and each question fails
for one that does not. And PyTorch's weights for Keras, by order and kind."""

import sys

import numpy as np
import pytest

from scalebench.cli.commands.check import FAILS, HOLDS, SKIPPED, ContractCase, run_contracts
from scalebench.testing import DatasetContract, ModelContract
from scalebench.testing.strategy_worker import UnmappableWeights, map_torch_weights


def dataset_contract(dataset, *overrides):
    return type("Stated", (DatasetContract,), {"dataset": dataset, "overrides": overrides})


def model_contract(model, *overrides):
    made = type("Stated", (ModelContract,), {"model": model, "overrides": overrides})
    return pytest.mark.slow(pytest.mark.real(made))


TestMaterials = dataset_contract("materials")
TestCifar10Synthetic = dataset_contract("cifar10_synthetic")
TestTokensSynthetic = dataset_contract("tokens_synthetic", "model=gpt_small")
TestRandom = dataset_contract("random", "model=mlp")
TestMaterialsCnn = model_contract("materials_cnn")
# With batch normalisation, shortcuts and pictures in bytes; tokens that are looked up, and a target for each of them; a
# recurrence over the positions.
TestResnet20 = model_contract("resnet20_cifar10")
SHORT = "model.options.sequence_length=12"
TestGptSmall = model_contract("gpt_small", "model.options.layers=1", "model.options.width=32", SHORT)
FEW_WORDS = ("model.outputs=64", "dataset.classes=64", "model.params=null", "train.learning_rate=0.1")
TestLstmSmall = model_contract("lstm_small", "model.options.width=32", SHORT, *FEW_WORDS)


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Return answers(contract, code, **settings) -> the answer to each question about what a user wrote in mine.py."""

    def ask(contract, code, **settings):
        (tmp_path / "mine.py").write_text(code)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "contract").mkdir()
        return {one.test: one for one in run_contracts([ContractCase(contract, settings)], tmp_path / "contract")}

    return ask


DATA = """
import numpy as np

def data(size, seed):
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((size, 5)).astype(np.float32)
    labels = np.random.default_rng([seed, 1]).integers(0, 3, size)
"""
FAULTS = {
    "same seed same samples": "    inputs[0] = np.random.default_rng().random(5)",
    "other seed other samples": "    inputs = np.arange(5.0 * size).reshape(size, 5)",
    "numbers": "    inputs[:] = 1",
    "labels": "    labels[:] = 2",
}


def dataset_verdicts(answers, body):
    settings = {"dataset": "custom", "overrides": ("dataset.builder=mine:data",)}
    actual = answers("DatasetContract", f"{DATA}{body}\n    return inputs, labels\n", **settings)
    return {question: answer.verdict for question, answer in actual.items()}


@pytest.mark.slow
def test_user_samples_pass(answers):
    assert set(dataset_verdicts(answers, "").values()) == {HOLDS}
    assert "mine" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize("question", FAULTS)
def test_a_faulty_function_fails(question, answers):
    actual = dataset_verdicts(answers, FAULTS[question])
    assert (actual[question], actual["shapes"]) == (FAILS, HOLDS)


OWN = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Conv1d(3, 8, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))
"""
DRAWN_ANEW = """
    torch.seed()
    return nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(3, 2))
"""
IN_KERAS = """
import keras
from keras import layers

def build_keras(width=8, activation="relu", first=()):
    conv = layers.Conv1D(width, 5, activation=activation)
    return keras.Sequential([*first, conv, layers.GlobalAveragePooling1D(), layers.Dense(2)])

def smooth():
    return build_keras(activation="silu")

def wide():
    return build_keras(16)

def deep():
    return build_keras(first=[layers.Dense(3)])
"""
SAME, COUNT = "same network in both frameworks", "parameter count in both frameworks"


def network_answers(answers, *overrides, code=OWN):
    settings = {"model": "custom", "overrides": ("model.torch=mine:build", *overrides)}
    return dict(answers("ModelContract", code + IN_KERAS, **settings))


@pytest.mark.slow
@pytest.mark.real
def test_a_user_network_in_both_frameworks(answers):
    actual = network_answers(answers, "model.keras=mine:build_keras")
    assert {name for name, answer in actual.items() if answer.verdict != HOLDS} == {"flops"}
    assert actual["flops"].verdict == SKIPPED


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("function", "verdicts", "text"), [
    ("smooth", (HOLDS, FAILS), "differ from the first batch on"),  # another activation
    ("wide", (FAILS, SKIPPED), "number 1 is 0.weight"),
    ("deep", (FAILS, SKIPPED), "4 trained arrays"),
])  # fmt: skip
def test_other_networks_fail(function, verdicts, text, answers):
    actual = network_answers(answers, f"model.keras=mine:{function}")
    assert (actual[COUNT].verdict, actual[SAME].verdict) == verdicts
    assert text in actual[SAME].reason


@pytest.mark.slow
@pytest.mark.real
def test_unseeded_weights_fail_in_one_framework(answers):
    """What was never written in Keras is not asked about."""
    drawn = OWN.partition("    return")[0] + DRAWN_ANEW
    actual = network_answers(answers, code=drawn)
    assert actual["the same seed builds the same network[torch]"].verdict == FAILS
    assert actual["it trains[torch]"].verdict == HOLDS
    assert actual["it trains[keras]"].verdict == actual[SAME].verdict == SKIPPED
    assert "model.keras" in actual[SAME].reason


TORCH_ARRAYS = {
    "0.weight": np.arange(24.0).reshape(4, 2, 3),  # conv1d: out, in, width
    "0.bias": np.arange(4.0),
    "1.weight": np.arange(4.0) + 10,  # batch normalisation
    "1.running_mean": np.zeros(4),
    "1.num_batches_tracked": np.array(0),
    "2.weight": np.arange(16.0).reshape(4, 4),  # a dense layer, whose shape does not tell which way round it is
    "3.weight": np.arange(20.0).reshape(5, 4),  # an embedding
}
KERAS_SHAPES = [
    ("net/conv/kernel", (3, 2, 4)),
    ("net/conv/bias", (4,)),
    ("net/norm/gamma", (4,)),
    ("net/dense/kernel:0", (4, 4)),
    ("net/embedding/embeddings", (5, 4)),
]


def test_kernels_are_transposed_and_the_rest_is_copied():
    conv, bias, gamma, dense, embedding = map_torch_weights(TORCH_ARRAYS, KERAS_SHAPES)
    np.testing.assert_array_equal(conv, TORCH_ARRAYS["0.weight"].transpose(2, 1, 0))
    np.testing.assert_array_equal(dense, TORCH_ARRAYS["2.weight"].T)
    for copied, name in ((bias, "0.bias"), (gamma, "1.weight"), (embedding, "3.weight")):
        np.testing.assert_array_equal(copied, TORCH_ARRAYS[name])
    kernel = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)  # of pictures: out, in, height, width
    (actual,) = map_torch_weights({"weight": kernel}, [("conv/kernel", (4, 5, 3, 2))])
    assert actual[1, 2, 0, 1] == kernel[1, 0, 1, 2]


def test_weights_that_cannot_be_mapped_are_an_error():
    other_order = [KERAS_SHAPES[1], KERAS_SHAPES[0], *KERAS_SHAPES[2:]]
    first = r"number 1 is 0\.weight \(4, 2, 3\) in PyTorch, which would be \(4, 2, 3\) in Keras, where net/conv/bias"
    for wanted, message in (
        (KERAS_SHAPES[:-1], "PyTorch's network has 5 trained arrays and Keras' has 4"), (other_order, first)
    ):  # fmt: skip
        with pytest.raises(UnmappableWeights, match=message):
            map_torch_weights(TORCH_ARRAYS, wanted)
