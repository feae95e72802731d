"""The table of networks: transformers as GPT-2; and the synthetic network, whose
parameters, FLOPs and bytes of a sample are set each on its own. Networks of plugins are built like built-in ones, and
every fault is one line with its place."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.errors import InputError, PluginError
from scalebench.core.spec import ModelSpec
from scalebench.workloads import networks
from tests.builders.plugins import dists as dists


def test_sizes_of_pictures_and_of_options_that_fit():
    for name, least in (("alexnet", 63), ("vgg16", 32), ("cifar10_cnn", 10)):
        networks.build_by_name(name, (least, least, 3), 10)
    for name, shape, options, message in (
        ("materials_cnn", (), {}, r"model=materials_cnn takes inputs .*, not .*=\[\]"),
        ("gpt_small", (32,), {}, r"model.options.sequence_length=64 means model.input_shape=\[64\], not \[32\]"),
        ("synthetic", (9, 1), {"sample_bytes": 4000}, r".*=4000 means model.input_shape=\[1000, 1\], not \[9, 1\]"),
    ):
        with pytest.raises(InputError, match=rf"^{message}$"):
            networks.build_by_name(name, shape, 2, options)


def test_input_shape_follows_from_the_model():
    assert networks.resolve_input_shape(ModelSpec(name="resnet50", input_shape=[64, 64, 3])) == [64, 64, 3]
    model = ModelSpec(name="synthetic", input_shape=[1, 1], options={"sample_bytes": 4000, "flops": 1e9})
    assert networks.resolve_input_shape(model) == [1000, 1]
    assert build_synthetic(1e6, 1e9, 4000).nodes[1].shape == (1000, 1)
    assert networks.resolve_input_shape(ModelSpec(name="synthetic")) == [37632, 1]
    with pytest.raises(InputError, match="did you mean 'sample_bytes'"):
        networks.resolve_input_shape(ModelSpec(name="synthetic", options={"sample_byte": 4000}))
    with pytest.raises(InputError, match="no model 'alexnett'"):
        networks.resolve_input_shape(ModelSpec(name="alexnett"))


def build_gpt(outputs=16, **options):
    return networks.build_by_name("gpt_small", (options.get("sequence_length", 64),), outputs, options)


def test_counts_and_shapes_of_gpt_2():
    """124,439,808 parameters: sum of the sizes in openai-community/gpt2, without masks (124M in openai/gpt-2's README).
    There the last layer is tied to the table, and keys have biases. FLOPs of a token in training are 6 N + 12 layers
    heads head_width tokens (PaLM, arXiv:2204.02311, appendix B), where N are the kernels: 12 layers width^2 (Kaplan et
    al. 2020, arXiv:2001.08361, table 1) and those of the last layer."""
    net = build_gpt(50_257, layers=12, width=768, heads=12, sequence_length=1024)
    assert net.parameters == 124_439_808 + 50_257 * 768 - 12 * 768
    layers, width, length, vocabulary = 12, 768, 1024, 50_257
    net = build_gpt(vocabulary, layers=layers, width=width, heads=12, sequence_length=length)
    kernels = 12 * layers * width**2 + width * vocabulary
    assert net.training_flops == length * (6 * kernels + 12 * layers * width * length)
    net = build_gpt(16, layers=2, width=8, heads=2, sequence_length=5)
    assert (net.input.shape, net.output.shape, net.count("attention")) == ((5,), (5, 16), 2)
    assert networks.resolve_input_shape(ModelSpec("gpt_small", options={"sequence_length": 5})) == [5]
    assert networks.resolve_target_shape(ModelSpec("gpt_small", options={"sequence_length": 5})) == [5]


def build_synthetic(parameters, flops, sample_bytes, outputs=1):
    options = {"parameters": parameters, "flops": flops, "sample_bytes": sample_bytes}
    return networks.build_by_name("synthetic", (sample_bytes // 4, 1), outputs, options)


@given(
    st.floats(5e4, 1e9),
    st.floats(0, 3.5) | st.sampled_from([math.log10(1 + x) for x in (0.001, 0.004, 0.005, 0.006, 0.01)]),
    st.integers(6400, 10**7),
    st.integers(1, 10),
)
def test_all_three_are_met_within_one_percent(parameters, tens, numbers, outputs):
    """From 2 to 6,300 FLOPs for a parameter."""
    flops = 2 * parameters * 10**tens
    net = build_synthetic(parameters, flops, 4 * numbers, outputs)
    assert net.parameters == pytest.approx(parameters, rel=0.01)
    assert net.forward_flops == pytest.approx(flops, rel=0.01)
    assert math.prod(net.input.shape) == numbers and net.output.shape == (outputs,)


CODE = """\
from scalebench.core.errors import InputError


def tiny(network, outputs, width=4, {more}):
    {body}
    x = network.flatten(network.input)
    x = network.relu(network.dense(x, "hidden", width))
    {end}
"""
END = 'network.dense(x, "out", outputs)'


def add(dists, body="pass", end=END, more="deep=False", target="tiny_net:tiny"):
    code = CODE.format(body=body, end=end, more=more)
    dists.add("tiny-net", {"tiny_net.py": code}, {"models": {"tiny": target}})


def test_a_network_of_a_plugin_is_built_like_a_built_in_one(dists):
    add(dists)
    network = networks.build_by_name("tiny", (3, 2), 5, {"width": 7})
    assert network.parameters == 6 * 7 + 7 + 7 * 5 + 5
    assert network.forward_flops == 2 * (6 * 7 + 7 * 5)
    assert networks.is_known("tiny") and not networks.is_known("tinier")
    assert networks.option_defaults("tiny") == {"width": 4, "deep": False}
    assert networks.resolve_input_shape(ModelSpec("tiny", input_shape=[9, 9])) == [9, 9]
    assert networks.build_by_name("tiny", (4, 4, 3), 2).output.shape == (2,)  # any axes


def test_unknown_names_look_at_plugins_too(dists, capsys):
    """What they print is not seen."""
    add(dists, "print('hello')")
    networks.build_by_name("tiny", (3, 2), 5)
    assert capsys.readouterr().out == ""
    with pytest.raises(InputError, match=r"^no model 'tinny'; did you mean 'tiny'\?$"):
        networks.build_by_name("tinny", (3,), 1)


@pytest.mark.parametrize(("code", "options", "message"), [
    ({}, {"widht": 3}, r"^no option of model 'tiny' 'widht'; did you mean 'width'\?$"),
    ({}, {"width": "wide"}, r"^model.options.width='wide' should be int, as its default 4$"),
    ({"more": "*, depth"}, {}, r"^model=tiny needs an option 'depth': set \+model.options.depth$"),
    ({"body": "raise InputError('width should be even')"}, {}, r"^width should be even$"),
])  # fmt: skip
def test_wrong_options_are_the_users_mistake(dists, code, options, message):
    add(dists, **code)
    with pytest.raises(InputError, match=message) as caught:
        networks.build_by_name("tiny", (3, 2), 5, options)
    assert not isinstance(caught.value, PluginError)


@pytest.mark.parametrize(
    ("more", "options"), [("depth=None", {"depth": 3}), ("*, depth", {"depth": 3}), ("**more", {"a": 1})]
)
def test_options_without_a_known_type_are_accepted(dists, more, options):
    add(dists, more=more)
    assert networks.build_by_name("tiny", (3, 2), 5, options).output.shape == (5,)


FAULTS = {
    "raises": ({"body": "raise KeyError('gone')"}, r"^model 'tiny' of tiny-net fails: KeyError: 'gone'$"),
    "exits": ({"body": "raise SystemExit(3)"}, r"^model 'tiny' of tiny-net fails: SystemExit: 3$"),
    "a programmer's mistake": ({"end": "network.dense(x, 'hidden', outputs)"},
     r"fails: ValueError: tiny has two nodes named hidden"),
    "no flatten": ({"end": "network.dense(network.input, 'out', outputs)"},
     r"^model 'tiny' of tiny-net ends in 'out' of shape \(3, 5\), and model.outputs=5 needs \(5,\)$"),
    "other outputs": ({"end": "network.dense(x, 'out', outputs + 1)"},
     r"^model 'tiny' of tiny-net ends in 'out' of shape \(6,\), and model.outputs=5 needs \(5,\)$"),
    "nothing trained": ({"body": "network._add(None, 'relu', [], (outputs,)); return"}, "has nothing to train"),
    "no such module": ({"target": "no_such_net:tiny"}, r"^model 'tiny' of tiny-net .*no_such_net"),
    "no such function": ({"target": "tiny_net:teeny"}, r"^model 'tiny' of tiny-net .*teeny"),
    "no function": ({"target": "tiny_net:__name__"}, r"^model 'tiny' of tiny-net should be a function"),
    "other arguments": ({"target": "tiny_net:InputError.with_traceback"}, r"^model 'tiny' of tiny-net"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_of_a_plugin_is_one_line(dists, case):
    wrong, message = FAULTS[case]
    add(dists, **wrong)
    with pytest.raises(PluginError, match=message) as caught:
        networks.build_by_name("tiny", (3, 2), 5)
    assert "\n" not in str(caught.value)
    if case in ("raises", "a programmer's mistake"):
        assert 'tiny_net.py", line' in caught.value.log
