"""DatasetContract: our data sets keep it, and each question fails for one that does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scalebench.cli.commands.check import FAILS, HOLDS, ContractCase, run_contracts
from scalebench.testing import DatasetContract


class TestMaterials(DatasetContract):
    dataset = "materials"
    has_stable_prefix = True


class TestCifar10Synthetic(DatasetContract):
    dataset = "cifar10_synthetic"
    has_stable_prefix = True


class TestTokensSynthetic(DatasetContract):
    dataset = "tokens_synthetic"
    overrides = ("model=gpt_small",)
    has_stable_prefix = True


class TestRandom(DatasetContract):
    dataset = "random"
    overrides = ("model=mlp",)
    has_stable_prefix = True


HEAD = """
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
    "prefix is stable": "    inputs += size",
}


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> dict[str, str]:
    """Verdict of each question about a user's own samples."""
    (folder / "mine.py").write_text(f"{HEAD}{body}\n    return inputs, labels\n")
    monkeypatch.chdir(folder)
    (folder / "asked").mkdir()
    settings = {"dataset": "custom", "overrides": ("dataset.builder=mine:data",), "has_stable_prefix": True}
    return {
        answer.question: answer.verdict
        for answer in run_contracts([ContractCase("DatasetContract", settings)], folder / "asked")
    }


@pytest.mark.slow
def test_user_samples_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(asked(tmp_path, monkeypatch, "").values()) == {HOLDS}
    assert "mine" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize("question", FAULTS)
def test_a_faulty_function_fails(question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actual = asked(tmp_path, monkeypatch, FAULTS[question])
    assert actual[question] == FAILS
    assert actual["shapes"] == HOLDS
