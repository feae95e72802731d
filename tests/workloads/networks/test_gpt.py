"""Transformers as GPT-2: its size, its FLOPs, how its weights start, and options that make no sense."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scalebench.core.errors import InputError
from scalebench.core.spec import ModelSpec
from scalebench.workloads import networks
from scalebench.workloads.network import Network
from scalebench.workloads.weights import initial_weights


def build(outputs: int = 16, **options: Any) -> Network:
    return networks.build_by_name("gpt_small", (options.get("sequence_length", 64),), outputs, options)


def test_parameter_count_of_gpt_2() -> None:
    """124,439,808: sum of the sizes in openai-community/gpt2, without masks (124M in openai/gpt-2's README). There the
    last layer is tied to the table, and keys have biases."""
    net = build(50_257, layers=12, width=768, heads=12, sequence_length=1024)
    assert net.parameters == 124_439_808 + 50_257 * 768 - 12 * 768


def test_flops_of_gpt_2() -> None:
    """Of a token in training 6 N + 12 layers heads head_width tokens (PaLM, arXiv:2204.02311, appendix B), where N are
    the kernels: 12 layers width^2 (Kaplan et al. 2020, arXiv:2001.08361, table 1) and those of the last layer."""
    layers, width, length, vocabulary = 12, 768, 1024, 50_257
    net = build(vocabulary, layers=layers, width=width, heads=12, sequence_length=length)
    kernels = 12 * layers * width**2 + width * vocabulary
    assert net.training_flops == length * (6 * kernels + 12 * layers * width * length)


def test_shapes() -> None:
    net = build(16, layers=2, width=8, heads=2, sequence_length=5)
    assert (net.input.shape, net.output.shape, net.count("attention")) == ((5,), (5, 16), 2)
    assert networks.resolve_input_shape(ModelSpec("gpt_small", options={"sequence_length": 5})) == [5]
    assert networks.resolve_target_shape(ModelSpec("gpt_small", options={"sequence_length": 5})) == [5]


def test_blocks_can_be_cut_apart() -> None:
    """What a block ends with is all that anything behind it reads."""
    net = build(16, layers=3, width=8, heads=2, sequence_length=5)
    places = {node.name: number for number, node in enumerate(net.nodes)}
    last = {name: places[node.name] for node in net.nodes for name in node.inputs}
    live = [sum(places[name] <= here < until for name, until in last.items()) for here in range(len(net.nodes) - 1)]
    assert sum(live[places[node.name]] == 1 for node in net.nodes if node.op == "add") == 2 * 3


def test_weights_start_as_those_of_gpt_2() -> None:
    net = build(512, layers=2, width=128, heads=2)
    weights = initial_weights(((a.name, a.shape, a.init) for a in net.arrays), 0)
    for name, array in weights.items():
        ends = name.endswith(("_project/kernel", "_contract/kernel"))
        if name.endswith(("kernel", "embeddings")):
            assert array.std() == pytest.approx(0.02 / (math.sqrt(2 * 2) if ends else 1), rel=0.05), name
        else:
            assert set(array.tolist()) == {1.0 if name.endswith("gamma") else 0.0}, name
    assert not any(name.endswith("_key/bias") for name in weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "^model.options.heads=3 does not divide model.options.width=256: use one that does$"),
        ({"layers": 0}, "^model.options.layers=0 should be at least 1$"),
        ({"width": -4}, "^model.options.width=-4 should be at least 1$"),
        ({"heads": 0}, "^model.options.heads=0 should be at least 1$"),
        ({"layer": 2}, "^no option of model 'gpt_small' 'layer'; did you mean 'layers'"),
        ({"width": "wide"}, "^model.options.width='wide' should be int"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(**options)


def test_inputs_of_another_length() -> None:
    with pytest.raises(InputError, match=r"sequence_length=64 means model.input_shape=\[64\], not \[32\]$"):
        networks.build_by_name("gpt_small", (32,), 16)
    with pytest.raises(InputError, match=r"^model=gpt_small takes inputs of shape \(tokens\), not"):
        networks.build_by_name("gpt_small", (32, 3), 16)
