"""Faults of a user's code outside of the forward pass, and what some strategies cannot do: one line for each."""

import pytest
import torch

from scalebench.core.errors import PluginError
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.user_checks import copy_without_values
from tests.strategies.builders import run_training
from tests.strategies.torch import user_faults
from tests.strategies.torch.conftest import user_model

FAULTS = "tests.strategies.torch.user_faults"


def fault(name, **changes):
    return user_model(name, **changes) | {"model__torch": f"{FAULTS}:{name}"}


OUTSIDE = {
    "Backward": "fails in its backward pass: ValueError: no gradient",
    "hook": "fails in its backward pass: ValueError: no gradient",
    "scheduler": "fails in LambdaLR.step: IndexError: list index out of range",
    "step": "fails in Rated.step: ValueError: no second step",
}


@pytest.mark.parametrize(("name", "function", "reason"), [
    *((name, *fault) for name in ("bare_torch", "ddp_gloo") for fault in OUTSIDE.items()),
    *(pytest.param("lightning_ddp_gloo", *fault, marks=pytest.mark.slow) for fault in list(OUTSIDE.items())[:3]),
])  # fmt: skip
def test_an_error_outside_of_the_forward_pass_names_the_function_and_the_part(strategy, source, name, function, reason):
    with pytest.raises(PluginError, match=f"^model.torch={FAULTS}:{function} {reason}$"):
        run_training(strategy(name, **fault(function)), source(), 3)


def test_a_view_of_the_users_own_that_is_overwritten_is_an_error_of_the_module(strategy):
    """Under tensor parallelism alone the view may be the strategy's."""
    with pytest.raises(PluginError, match=r":Unbinding fails: RuntimeError: Output 0 of Unbind\w* is a view"):
        strategy("bare_torch", **fault("Unbinding"))


CLOSURE = "with_optimizer", {"model__options": {"kind": "LBFGS"}}, "gives LBFGS .* needs a closure"
TENSORS = r"gives Listed as its optimizer, which keeps tensors outside of its state \(moments\)"
LISTED = "with_optimizer", {"model__options": {"kind": "Listed"}}, TENSORS
REFUSED = [
    *((name, CLOSURE) for name in ("bare_torch", "ddp_gloo", "fsdp_gloo", "zero1", "lightning_ddp_gloo")),
    *((name, LISTED) for name in ("fsdp_gloo", "zero1", "tensor_parallel")),
    ("fsdp_gloo", ("Scalar", {}, r"has the scalar parameter 'scale', .*\(1,\)")),
]


@pytest.mark.parametrize(("name", "case"), REFUSED)
def test_what_a_strategy_cannot_take_is_refused_when_it_is_read(strategy, name, case):
    function, changes, reason = case
    with pytest.raises(
        PluginError if case is CLOSURE else Unsupported, match=f"^model.torch={FAULTS}:{function} {reason}"
    ):
        strategy(name, **fault(function, **changes))


@pytest.mark.parametrize("name", ["ddp_gloo", "fsdp_gloo", "zero1"])
def test_an_optimizer_with_required_arguments_and_without_lr_steps_as_in_a_plain_loop(strategy, source, name):
    """A schedule of scalebench needs a rate."""
    bare, trained = (strategy(each, **fault("with_optimizer")) for each in ("bare_torch", name))
    assert trained.learning_rate() is None
    assert run_training(trained, source(), 3).sums == pytest.approx(run_training(bare, source(), 3).sums)
    bare.set_learning_rate(bare.spec.learning_rate)
    with pytest.raises(PluginError, match=f"^model.torch={FAULTS}:with_optimizer .* have no 'lr' to change"):
        bare.set_learning_rate(bare.spec.learning_rate / 2)


@pytest.mark.parametrize(("name", "function", "changes", "reason"), [
    ("lightning_ddp_gloo", "Module", {"model__loss": "module"}, "has an optimizer whose step does not call"),
    ("fsdp_gloo", "Sparse", {"train__optimizer": "sgd"}, "has sparse gradients, which this strategy"),
    ("tensor_parallel", "Overwriting", {}, r"overwrites in place .*: write x = x \+ y for x \+= y"),
])  # fmt: skip
def test_what_a_step_cannot_do_names_the_way_out(strategy, source, name, function, changes, reason):
    with pytest.raises(Unsupported, match=f"^model.torch={FAULTS}:{function} {reason}"):
        run_training(strategy(name, **fault(function, **changes)), source(), 3)


def test_constants_that_cannot_be_sharded_are_left_out(strategy, source):
    """DistributedDataParallel has to send some of them."""
    bare, other = (strategy(each, **fault("Constants")) for each in ("bare_torch", "fsdp_gloo"))
    assert run_training(other, source(), 3).sums == pytest.approx(run_training(bare, source(), 3).sums)
    other.close()
    with pytest.raises(Unsupported, match=r":Constants makes a module that strategy=ddp_gloo cannot take, though"):
        strategy("ddp_gloo", **fault("Constants"))


def test_a_scripted_module_trains_like_the_module(strategy, source):
    """A copy of it cannot be trained, so it is made again for the check."""
    plain, scripted = (run_training(strategy("bare_torch", **fault(each)), source(), 3) for each in ("Net", "scripted"))
    assert scripted.losses == pytest.approx(plain.losses)


def test_what_a_strategy_cannot_wrap_is_unsupported_and_names_the_function(strategy, monkeypatch):
    """A copy without values, of a module that DeepSpeed has sharded, shares what cannot be copied."""

    def refuse(*arguments, **keywords):
        raise TypeError("cannot pickle '_thread.lock' object")

    monkeypatch.setattr("scalebench.strategies.torch.ddp.DistributedDataParallel.__init__", refuse)
    reason = "makes a module that strategy=ddp_gloo cannot take, though others may: TypeError: cannot pickle"
    with pytest.raises(Unsupported, match=f"^model.torch={FAULTS}:Locked {reason}"):
        strategy("ddp_gloo", **fault("Locked"))
    module = user_faults.Locked()
    module(torch.ones(2, 3, 200))
    copied = copy_without_values(module, torch.device("meta"))
    assert copied.lock is module.lock and copied.last is not module.last
    assert {each.device.type for each in copied.parameters()} == {"meta"}


def test_code_that_communicates_needs_even_parts(strategy, source):
    """Parts of other code may differ."""
    for function in ("Net", "Gathering"):
        adapter = strategy("ddp_gloo", **fault(function))
        run_training(adapter, source(), 2)
        adapter.replicas = 3
        if function == "Net":
            run_training(adapter, source(), 2)
            adapter.close()
    reason = r"communicates between ranks, whose parts of .* differ \(6 and 7 samples\): change dataset.size"
    with pytest.raises(PluginError, match=f"^model.torch={FAULTS}:Gathering {reason}$"):
        run_training(adapter, source(), 2)


def test_the_control_without_communication_refuses_code_that_communicates(strategy):
    strategy("independent_torch", **fault("Net")).close()
    with pytest.raises(Unsupported, match=f"^model.torch={FAULTS}:Gathering communicates between ranks within a step"):
        strategy("independent_torch", **fault("Gathering"))
