"""Two samples tell whether a user's own module fits the data, draws in spite of train.dropout=false, starts alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scalebench.core.plugins import PluginError
from scalebench.strategies.torch import user_module
from scalebench.strategies.torch.user_module import OwnModule
from tests.strategies.torch import user_modules
from tests.strategies.torch.conftest import OWN_MODULES as HERE
from tests.strategies.torch.conftest import own

LABELS = {"model__loss": "cross_entropy", "model__target_shape": []}
MISFITS = {
    "three outputs": ("Series", {"model__options": {"outputs": 3}}, r"gives outputs of \(2, 3\) .* are \(2, 2\)"),
    "one axis": (
        "Plain",
        {"model__target_shape": [2, 1]},
        r"gives .*\(2, 2\) for 2 samples; the targets .* are \(2, 2, 1\)",
    ),
    "few classes": ("Series", {**LABELS, "dataset__classes": 3}, r"gives outputs of \(2, 2\) .*has 3 classes"),
    "no classes": ("Tensors", {**LABELS, "dataset__classes": 2}, r"gives outputs of \(2, 2, 3\) .*has 2 classes"),
    "wrong input": ("Series", {"model__input_shape": [200, 4]}, r"fails: RuntimeError: .*channels"),
    "a table": ("table", {}, r"fails: TypeError: it should give one tensor, and gives a dict"),
    "numbers": ("numbers", {}, r"gives outputs of int64"),
    "detached": ("detached", {}, r"gives outputs that do not hang on its parameters"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit(strategy: Any, name: str) -> None:
    module, changes, reason = MISFITS[name]
    with pytest.raises(PluginError, match=rf"^model\.torch={HERE}:{module} {reason}"):
        strategy("bare_torch", **own(module, **changes))


def test_more_outputs_than_classes(strategy: Any) -> None:
    strategy("bare_torch", **own("Series", **LABELS, dataset__classes=2, model__options={"outputs": 5}))


def test_dropout_off(strategy: Any) -> None:
    one = strategy("bare_torch", **own("Noisy"), train__dropout=False)
    batch = torch.rand(6, 200, 3)
    with torch.no_grad():
        assert one.model.training
        assert torch.equal(one.model(batch), one.model(batch))
    on = strategy("bare_torch", **own("Noisy"))
    with torch.no_grad():
        assert not torch.equal(on.model(batch), on.model(batch))


def test_the_trial_leaves_the_module_as_it_was(strategy: Any) -> None:
    one = strategy("bare_torch", **own("Series", model__options={"rate": 0.5}), train__dropout=False)
    assert one.model.training
    assert int(one.model.module.seen) == 0
    assert one.model.module.norm.running_mean.tolist() == [0.0] * 4
    assert int(one.model.module.norm.num_batches_tracked) == 0
    assert all(parameter.grad is None for parameter in one.model.parameters())


def test_dropout_that_cannot_be_turned_off(strategy: Any) -> None:
    strategy("bare_torch", **own("functional_dropout"))
    with pytest.raises(PluginError, match=r"draws numbers in training although train\.dropout=false.*an nn\.Dropout"):
        strategy("bare_torch", **own("functional_dropout"), train__dropout=False)


class OtherRank:
    """Stands for rank 1, to whom rank 0 sends the checksum of its module."""

    def __init__(self, module: OwnModule) -> None:
        self.module = module

    def broadcast(self, value: float) -> float:
        return float(user_module._checksum(self.module.state_dict().values()))

    def sum(self, values: list[float]) -> list[float]:
        return values


def test_all_ranks_start_alike() -> None:
    here, same = OwnModule(user_modules.seeded()), OwnModule(user_modules.seeded())
    assert not user_module._differ(here, OtherRank(same))
    with torch.no_grad():
        same.module.first.weight[3, 1] += 1e-6
    assert user_module._differ(here, OtherRank(same))


def test_other_weights_are_told(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy("ddp_gloo", **own("Plain")).close()
    monkeypatch.setattr(user_module, "_differ", lambda model, ranks: True)
    strategy("bare_torch", **own("Plain"))  # which has nobody to differ from
    with pytest.raises(PluginError, match="gives other weights on every rank: draw them from torch"):
        strategy("ddp_gloo", **own("Plain"))
