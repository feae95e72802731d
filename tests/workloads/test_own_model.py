"""A user's own network in the config: its name, and what its samples decide."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scalebench.plugins import PluginError
from scalebench.spec import InputError, ModelSpec
from scalebench.workloads import user_code
from scalebench.workloads.source import SampleShape

OWN = ModelSpec("custom", torch="mine:build", loss="auto", metric="auto")
CURVES, PICTURES = SampleShape((200, 3), (2,)), SampleShape((32, 32, 3), (), 10)


@pytest.fixture(autouse=True)
def mine(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def build(): ...\n")
    (tmp_path / "yours.py").write_text("def build(): ...  # another\n")


def test_it_goes_by_its_function_and_has_the_digests_of_its_files() -> None:
    one = user_code.identify_model(OWN)
    both = user_code.identify_model(dataclasses.replace(OWN, keras="yours:build"))
    keras = user_code.identify_model(ModelSpec("custom", keras="yours:build"))
    assert (one.name, both.name, keras.name) == ("mine:build", "mine:build", "yours:build")
    assert one.code and keras.code and both.code == f"{one.code}-{keras.code}"
    assert user_code.identify_model(one) == one  # a second time changes nothing
    assert user_code.identify_model(dataclasses.replace(OWN, name="net")).name == "net"
    ours = ModelSpec("mlp")
    assert (
        user_code.identify_model(ours) == ours and not user_code.is_user_model(ours) and user_code.is_user_model(keras)
    )


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
        user_code.identify_model(model)
    assert not isinstance(caught.value, PluginError)


def test_what_is_wrong_with_the_model_of_a_plugin_fails_its_runs_only() -> None:
    with pytest.raises(PluginError, match=r"^model=theirs: model.torch=his:build: no module 'his' in "):
        user_code.identify_model(ModelSpec("theirs", torch="his:build"))


def told(model: ModelSpec) -> tuple[object, ...]:
    return model.input_shape, model.target_shape, model.outputs, model.loss, model.metric


def test_samples_decide_what_is_left_open() -> None:
    assert told(user_code.complete_model(OWN, CURVES, "materials")) == ([200, 3], [2], 2, "mse", "mse")
    assert told(user_code.complete_model(OWN, PICTURES, "cifar10")) == (
        [32, 32, 3],
        [],
        10,
        "cross_entropy",
        "accuracy",
    )
    grid = user_code.complete_model(OWN, SampleShape((4,), (3, 2)), "custom")
    assert (grid.target_shape, grid.outputs) == ([3, 2], 6)


def test_names_of_quantities_are_as_many_as_they_are() -> None:
    named = dataclasses.replace(OWN, targets=["G0", "a", "b"])
    with pytest.raises(InputError, match=r"^model.targets has 3 names for 2 quantities: name all or none$"):
        user_code.complete_model(named, CURVES, "materials")


def test_what_the_config_says_stays() -> None:
    sized = dataclasses.replace(OWN, input_shape=[64, 64, 3], outputs=11, metric="cross_entropy")
    assert told(user_code.complete_model(sized, PICTURES, "cifar10")) == (
        [64, 64, 3],
        [],
        11,
        "cross_entropy",
        "cross_entropy",
    )
    ours = ModelSpec("mlp", input_shape=[8000], target_shape=[1], outputs=1)
    assert user_code.complete_model(ours, CURVES, "materials") == ours  # that these do not fit is told elsewhere


def test_a_network_of_a_plugin_may_leave_its_shapes_open_too() -> None:
    model = user_code.complete_model(ModelSpec("theirs", loss="auto", metric="auto"), PICTURES, "cifar10")
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
def test_a_loss_that_the_targets_do_not_go_with(loss: str, samples: SampleShape, message: str) -> None:
    with pytest.raises(InputError, match=message):
        user_code.complete_model(dataclasses.replace(OWN, loss=loss), samples, "it")
