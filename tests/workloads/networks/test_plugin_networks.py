"""Networks of plugins: built like built-in ones, and every fault is one line with its place."""

from __future__ import annotations

from typing import Any

import pytest

from scalebench.core.errors import InputError, PluginError
from scalebench.core.spec import ModelSpec
from scalebench.workloads import networks
from tests.builders.plugins import Distributions
from tests.builders.plugins import dists as dists

CODE = """\
from scalebench.core.errors import InputError


def tiny(network, outputs, width=4, {more}):
    {body}
    x = network.flatten(network.input)
    x = network.relu(network.dense(x, "hidden", width))
    {end}
"""
END = 'network.dense(x, "out", outputs)'


def add(
    dists: Distributions, body: str = "pass", end: str = END, more: str = "deep=False", target: str = "tiny_net:tiny"
) -> None:
    code = CODE.format(body=body, end=end, more=more)
    dists.add("tiny-net", {"tiny_net.py": code}, {"models": {"tiny": target}})


def test_a_network_of_a_plugin_is_built_like_a_built_in_one(dists: Distributions) -> None:
    add(dists)
    network = networks.build_by_name("tiny", (3, 2), 5, {"width": 7})
    assert network.parameters == 6 * 7 + 7 + 7 * 5 + 5
    assert network.forward_flops == 2 * (6 * 7 + 7 * 5)
    assert networks.is_known("tiny") and not networks.is_known("tinier")
    assert networks.option_defaults("tiny") == {"width": 4, "deep": False}
    assert networks.resolve_input_shape(ModelSpec("tiny", input_shape=[9, 9])) == [9, 9]
    assert networks.build_by_name("tiny", (4, 4, 3), 2).output.shape == (2,)  # any axes


def test_unknown_names_look_at_plugins_too(dists: Distributions) -> None:
    add(dists)
    with pytest.raises(InputError, match=r"^no model 'tinny'; did you mean 'tiny'\?$"):
        networks.build_by_name("tinny", (3,), 1)


WRONG_OPTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown": ("deep=False", {"widht": 3}, r"^no option of model 'tiny' 'widht'; did you mean 'width'\?$"),
    "type": ("deep=False", {"width": "wide"}, r"^model.options.width='wide' should be int, as its default 4$"),
    "missing": ("*, depth", {}, r"^model=tiny needs an option 'depth': set \+model.options.depth$"),
}


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_wrong_options_are_the_users_mistake(dists: Distributions, case: str) -> None:
    more, options, message = WRONG_OPTIONS[case]
    add(dists, more=more)
    with pytest.raises(InputError, match=message) as caught:
        networks.build_by_name("tiny", (3, 2), 5, options)
    assert not isinstance(caught.value, PluginError)


@pytest.mark.parametrize(
    ("more", "options"), [("depth=None", {"depth": 3}), ("*, depth", {"depth": 3}), ("**more", {"a": 1})]
)
def test_options_without_a_known_type_are_accepted(dists: Distributions, more: str, options: dict[str, int]) -> None:
    add(dists, more=more)
    assert networks.build_by_name("tiny", (3, 2), 5, options).output.shape == (5,)


def test_an_input_error_of_its_own_passes(dists: Distributions) -> None:
    add(dists, "raise InputError('width should be even')")
    with pytest.raises(InputError, match=r"^width should be even$") as caught:
        networks.build_by_name("tiny", (3, 2), 5)
    assert not isinstance(caught.value, PluginError)


FAULTS = {
    "raises": ({"body": "raise KeyError('gone')"}, r"^model 'tiny' of tiny-net fails: KeyError: 'gone'$"),
    "exits": ({"body": "raise SystemExit(3)"}, r"^model 'tiny' of tiny-net fails: SystemExit: 3$"),
    "a programmer's mistake": (
        {"end": "network.dense(x, 'hidden', outputs)"},
        r"fails: ValueError: tiny has two nodes named hidden",
    ),
    "no flatten": (
        {"end": "network.dense(network.input, 'out', outputs)"},
        r"^model 'tiny' of tiny-net ends in 'out' of shape \(3, 5\), and model.outputs=5 needs \(5,\)$",
    ),
    "other outputs": (
        {"end": "network.dense(x, 'out', outputs + 1)"},
        r"^model 'tiny' of tiny-net ends in 'out' of shape \(6,\), and model.outputs=5 needs \(5,\)$",
    ),
    "nothing trained": ({"body": "network._add(None, 'relu', [], (outputs,)); return"}, "has nothing to train"),
    "no such module": ({"target": "no_such_net:tiny"}, r"^model 'tiny' of tiny-net .*no_such_net"),
    "no such function": ({"target": "tiny_net:teeny"}, r"^model 'tiny' of tiny-net .*teeny"),
    "no function": ({"target": "tiny_net:__name__"}, r"tiny_net:__name__ is no function$"),
    "other arguments": ({"target": "tiny_net:InputError.with_traceback"}, r"^model 'tiny' of tiny-net"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_of_a_plugin_is_one_line(dists: Distributions, case: str) -> None:
    wrong, message = FAULTS[case]
    add(dists, **wrong)
    with pytest.raises(PluginError, match=message) as caught:
        networks.build_by_name("tiny", (3, 2), 5)
    assert "\n" not in str(caught.value)
    if case in ("raises", "a programmer's mistake"):
        assert 'tiny_net.py", line' in caught.value.log


def test_its_output_is_not_printed(dists: Distributions, capsys: pytest.CaptureFixture[str]) -> None:
    add(dists, "print('hello')")
    networks.build_by_name("tiny", (3, 2), 5)
    assert capsys.readouterr().out == ""
