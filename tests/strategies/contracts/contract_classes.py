"""Contracts from one line each: a strategy, its number of devices, and what differs from the default.

Each is one test, which asks all questions of one launch; a question that fails or is skipped is a subtest.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest

from scalebench.core.machine import private_network
from scalebench.testing import StrategyContract
from tests.builders.listeners import is_open, watch_listeners

# Activations travel between stages, not the gradients of all parameters.
ONLY_ACTIVATIONS = {"bytes_sent": 0.0}


@dataclass(frozen=True)
class Contract:
    """One contract; `name` distinguishes those of one strategy on as many devices, `slow` is for `make test-all`.

    Slow are contracts whose adapter class has a faster one: other names of the class, other options, other numbers of
    devices, and strategies that need GPUs.
    """

    strategy: str
    overrides: tuple[str, ...]
    gpus: int
    name: str
    slow: bool
    attributes: dict[str, Any]  # further class attributes of the contract


QUESTIONS = [name for name in dir(StrategyContract) if name.startswith("test_")]


def ask_all(self, request, subtests):
    with watch_listeners() as listeners:
        group = request.getfixturevalue("group")  # where it fails or is skipped, so is the test
    with subtests.test("nothing_listens_beyond_the_loopback_of_the_run"):
        check_listeners(group.spec, set(listeners.values()))
    for name in QUESTIONS:
        question = getattr(StrategyContract, name)
        _, *fixtures = inspect.signature(question).parameters
        with subtests.test(name.removeprefix("test_")):
            question(self, *map(request.getfixturevalue, fixtures))


def check_listeners(spec, listeners):
    """Several ranks of a framework have met, those that would serve strangers in a network of their own; independent
    replicas need not."""
    is_private = private_network.is_wanted(spec.config) and private_network.find_kernel_problem() is None
    assert not [each for each in listeners if is_open(each)] or private_network.opens_ports(spec.config)
    strategy = spec.config.strategy
    if spec.processes > 1 and strategy.framework != "none" and not strategy.independent:
        assert listeners and any(each.is_private for each in listeners) == is_private


def contract(strategy, *overrides, gpus=2, name="", slow=False, **attributes):
    return Contract(strategy, overrides, gpus, name, slow, attributes)


def slow(*strategies, **attributes):
    return [contract(strategy, slow=True, **attributes) for strategy in strategies]


def contract_classes(contracts, base=StrategyContract, suffix=""):
    """Return test classes by their name, which ends with `suffix`, for the globals of a test module."""
    classes = {}
    for one in contracts:
        words = "".join(word.capitalize() for word in [*one.strategy.split("_"), *one.name.split()])
        name = f"Test{words}{'' if one.gpus == 2 else one.gpus}{suffix}"
        assert name not in classes, name
        own = {"strategy": one.strategy, "gpus": one.gpus, "overrides": (*base.overrides, *one.overrides)}
        made = type(name, (base,), {**one.attributes, **own, **dict.fromkeys(QUESTIONS), "test_contract": ask_all})
        made = pytest.mark.contract(made)
        made = made if one.strategy == "simulated" else pytest.mark.real(made)
        for package in {"accelerate", "deepspeed"} & {one.strategy.partition("_")[0]}:
            made = pytest.mark.extra(package)(made)
        classes[name] = pytest.mark.slow(made) if one.slow else made
    return classes


class OnPictures(StrategyContract):
    # 221 samples leave none to validate with the data set's own share.
    overrides = ("model=cifar10_cnn", "train.dropout=false", "dataset.validation_share=0.25")
