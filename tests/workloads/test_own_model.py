"""A user's own network in the config: its name, and what its samples decide."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scalebench.plugins import PluginError
from scalebench.spec import InputError, ModelSpec
from scalebench.workloads import own_model
from scalebench.workloads.kinds import Samples

OWN = ModelSpec("custom", torch="mine:build", loss="auto", metric="auto")
CURVES, PICTURES = Samples((200, 3), (2,)), Samples((32, 32, 3), (), 10)


@pytest.fixture(autouse=True)
def mine(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def build(): ...\n")
    (tmp_path / "yours.py").write_text("def build(): ...  # another\n")


def test_it_goes_by_its_function_and_has_the_digests_of_its_files() -> None:
    one = own_model.named(OWN)
    both = own_model.named(dataclasses.replace(OWN, keras="yours:build"))
    keras = own_model.named(ModelSpec("custom", keras="yours:build"))
    assert (one.name, both.name, keras.name) == ("mine:build", "mine:build", "yours:build")
    assert one.code and keras.code and both.code == f"{one.code}-{keras.code}"
    assert own_model.named(one) == one  # a second time changes nothing
    assert own_model.named(dataclasses.replace(OWN, name="net")).name == "net"
    ours = ModelSpec("mlp")
    assert own_model.named(ours) == ours and not own_model.is_own(ours) and own_model.is_own(keras)


WRONG = {
    "no function": (ModelSpec("custom"), r"^model=custom is a network of your own: set model.torch=MODULE:FUNCTION, "),
    "beside ours": (
        ModelSpec("mlp", keras="mine:build"),
        r"^model=mlp is made already: model.keras goes with model=custom$",
    ),
    "no module": (ModelSpec("custom", keras="his:build"), r"^model.keras=his:build: no module 'his' in "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_the_users_mistake(case: str) -> None:
    model, message = WRONG[case]
    with pytest.raises(InputError, match=message) as caught:
        own_model.named(model)
    assert not isinstance(caught.value, PluginError)


def test_what_is_wrong_with_the_model_of_a_plugin_fails_its_runs_only() -> None:
    with pytest.raises(PluginError, match=r"^model=theirs: model.torch=his:build: no module 'his' in "):
        own_model.named(ModelSpec("theirs", torch="his:build"))


def told(model: ModelSpec) -> tuple[object, ...]:
    return model.input_shape, model.target_shape, model.outputs, model.loss, model.metric


def test_samples_decide_what_is_left_open() -> None:
    assert told(own_model.completed(OWN, CURVES, "materials")) == ([200, 3], [2], 2, "mse", "mse")
    assert told(own_model.completed(OWN, PICTURES, "cifar10")) == ([32, 32, 3], [], 10, "cross_entropy", "accuracy")
    grid = own_model.completed(OWN, Samples((4,), (3, 2)), "custom")
    assert (grid.target_shape, grid.outputs) == ([3, 2], 6)


def test_names_of_quantities_are_as_many_as_they_are() -> None:
    named = dataclasses.replace(OWN, targets=["G0", "a", "b"])
    with pytest.raises(InputError, match=r"^model.targets has 3 names for 2 quantities: name all or none$"):
        own_model.completed(named, CURVES, "materials")


def test_what_the_config_says_stays() -> None:
    sized = dataclasses.replace(OWN, input_shape=[64, 64, 3], outputs=11, metric="cross_entropy")
    assert told(own_model.completed(sized, PICTURES, "cifar10")) == (
        [64, 64, 3],
        [],
        11,
        "cross_entropy",
        "cross_entropy",
    )
    ours = ModelSpec("mlp", input_shape=[8000], target_shape=[1], outputs=1)
    assert own_model.completed(ours, CURVES, "materials") == ours  # that these do not fit is told elsewhere


def test_a_network_of_a_plugin_may_leave_its_shapes_open_too() -> None:
    model = own_model.completed(ModelSpec("theirs", loss="auto", metric="auto"), PICTURES, "cifar10")
    assert told(model) == ([32, 32, 3], [], 10, "cross_entropy", "accuracy")


@pytest.mark.parametrize(
    ("loss", "samples", "message"),
    [
        ("l1", CURVES, r"^model.loss=l1: no loss 'l1'; known: auto, cross_entropy, mse$"),
        (
            "cross_entropy",
            CURVES,
            r"^model.loss=cross_entropy does not go with the quantities of dataset=it: leave it at",
        ),
        ("mse", PICTURES, r"^model.loss=mse does not go with the 10 classes of dataset=it: leave it at auto$"),
    ],
)
def test_a_loss_that_the_targets_do_not_go_with(loss: str, samples: Samples, message: str) -> None:
    with pytest.raises(InputError, match=message):
        own_model.completed(dataclasses.replace(OWN, loss=loss), samples, "it")
