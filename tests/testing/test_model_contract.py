"""ModelContract: networks of ours keep it in both frameworks, a user's own as well, and it fails where two differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.cli.commands.check import FAILS, HOLDS, SKIPPED, ContractCase, ContractResult, run_contracts
from scalebench.testing import ModelContract


@pytest.mark.slow
@pytest.mark.real
class TestMaterialsCnn(ModelContract):
    model = "materials_cnn"


@pytest.mark.slow
@pytest.mark.real
class TestResnet20(ModelContract):
    """With batch normalisation, shortcuts and pictures in bytes."""

    model = "resnet20_cifar10"


@pytest.mark.slow
@pytest.mark.real
class TestGptSmall(ModelContract):
    """With tokens that are looked up, and a target for each of them."""

    model = "gpt_small"
    overrides = ("model.options.layers=1", "model.options.width=32", "model.options.sequence_length=12")


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


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, code: str = OWN) -> dict[str, ContractResult]:
    (folder / "mine.py").write_text(code + IN_KERAS)
    monkeypatch.chdir(folder)
    (folder / "asked").mkdir()
    case = ContractCase("ModelContract", {"model": "custom", "overrides": ("model.torch=mine:build", *overrides)})
    return {answer.question: answer for answer in run_contracts([case], folder / "asked")}


@pytest.mark.slow
@pytest.mark.real
def test_a_user_network_in_both_frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actual = asked(tmp_path, monkeypatch, "model.keras=mine:build_keras")
    assert {name for name, answer in actual.items() if answer.verdict != HOLDS} == {"flops"}
    assert actual["flops"].verdict == SKIPPED


@pytest.mark.slow
@pytest.mark.real
def test_another_activation_is_another_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actual = asked(tmp_path, monkeypatch, "model.keras=mine:smooth")
    assert (actual[COUNT].verdict, actual[SAME].verdict) == (HOLDS, FAILS)
    assert "differ from the first batch on" in actual[SAME].reason


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("function", "text"), [("wide", "number 1 is 0.weight"), ("deep", "4 trained arrays")])
def test_networks_with_other_layers_fail(
    function: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = asked(tmp_path, monkeypatch, f"model.keras=mine:{function}")
    assert (actual[COUNT].verdict, actual[SAME].verdict) == (FAILS, SKIPPED)
    assert text in actual[SAME].reason


@pytest.mark.slow
@pytest.mark.real
def test_unseeded_weights_fail_in_one_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was never written in Keras is not asked about."""
    drawn = OWN.partition("    return")[0] + DRAWN_ANEW
    actual = asked(tmp_path, monkeypatch, code=drawn)
    assert actual["the same seed builds the same network[torch]"].verdict == FAILS
    assert actual["it trains[torch]"].verdict == HOLDS
    assert actual["it trains[keras]"].verdict == actual[SAME].verdict == SKIPPED
    assert "model.keras" in actual[SAME].reason
