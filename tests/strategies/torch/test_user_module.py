"""A user's module under bare_torch and other strategies: its inputs, its check, its initial weights, and its errors;
and networks of other libraries: stand-ins show what is asked of each, and transformers itself where it is installed."""

import re
import sys
from itertools import islice
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from scalebench.core.errors import InputError, PluginError
from scalebench.core.spec import ModelSpec
from scalebench.strategies.base import Unsupported, refuse_other_weights
from scalebench.strategies.torch import libraries
from scalebench.strategies.torch.group import TorchGroup
from scalebench.strategies.torch.user_errors import UserProblem, attribute_errors_to_user, function_label
from scalebench.strategies.torch.user_module import UserModule
from scalebench.workloads.source import Source
from tests.strategies.builders import make_features, make_images, run_training
from tests.strategies.torch import user_modules
from tests.strategies.torch.conftest import USER_MODULES, spec_of, user_model

LIGHTNING = pytest.param("lightning_ddp_gloo", marks=pytest.mark.slow)
NAMES = ["bare_torch", "ddp_gloo", "independent_torch", LIGHTNING]


class RecordedInput(nn.Module):
    def forward(self, x):
        self.x = x
        return x


def user_step(module, **changes):
    return UserModule(module, spec_of("bare_torch", **changes).config)


def test_inputs_have_channels_first_and_bytes_are_around_0():
    observed = RecordedInput()
    for shape in ((5,), (7, 3), (4, 6, 3), (2, 4, 6, 3)):
        inputs = torch.rand(2, *shape)
        user_step(observed).compute_outputs(inputs)
        assert torch.equal(observed.x, inputs.movedim(-1, 1) if len(shape) > 1 else inputs)
        assert observed.x.is_contiguous()
    user_step(observed).compute_outputs(torch.tensor([[0, 51, 255]], dtype=torch.uint8))
    torch.testing.assert_close(observed.x, torch.tensor([[-1.0, -0.6, 1.0]]))


def test_an_error_in_evaluation_names_the_users_function(strategy):
    adapter, (inputs, targets) = strategy("bare_torch", **user_model("Plain")), make_features(20)
    source = Source(inputs[:, :9], targets, global_batch=10, seed=0, replica=0, replicas=1)
    with pytest.raises(PluginError, match=r"user_modules:Plain fails: RuntimeError: "):
        adapter.evaluate(source)


def test_channels_last_in_memory_with_nhwc():
    observed = RecordedInput()
    observed.flat, observed.deep = nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)
    model = user_step(observed, train__data_format="nhwc")
    model.compute_outputs(torch.rand(2, 4, 6, 3))
    assert observed.x.shape == (2, 3, 4, 6) and observed.x.is_contiguous(memory_format=torch.channels_last)
    assert observed.flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert observed.deep.weight.is_contiguous()
    model.compute_outputs(torch.rand(2, 6, 3))
    assert observed.x.is_contiguous()


CLASSIFIER = {"model__loss": "cross_entropy", "model__target_shape": []}
IMAGES = {**CLASSIFIER, "model__input_shape": [32, 32, 3], "dataset__classes": 10, "dataset__dtype": "uint8"}


@pytest.mark.parametrize(
    ("requested", "used", "precision"),
    [("default", "nchw", "float32"), ("nchw", "nchw", "bfloat16"), ("nhwc", "nhwc", "float32")],
)
def test_images_and_labels(strategy, requested, used, precision):
    layout = {"train__data_format": requested, "model__options": {"view": requested != "nhwc"}}
    options = {**layout, "train__precision": precision}
    adapter = strategy("bare_torch", **user_model("Images", **IMAGES), **options)
    source = Source(*make_images(101), global_batch=20, seed=3, replica=0, replicas=1)
    losses = [float(part.loss_sum) / part.samples for part in map(adapter.step, islice(adapter.feed(source), 60))]
    assert losses[0] == pytest.approx(np.log(10), rel=0.2) and losses[-1] < 1.6
    assert adapter.evaluate(source)["accuracy"] > 0.5
    assert adapter.settings_used() == {"data_format": used, "precision": precision, "compiler": "none"}


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_a_plain_loop(strategy, source, name):
    """With momentum: Adam would make full steps of the rounding errors in a bias that batch statistics cancel."""
    rule = {"train__optimizer": "momentum", "train__learning_rate": 0.01}
    adapter = strategy(name, **user_model("Series", model__options={"width": 6}), **rule, seed=4)
    torch.manual_seed(4)
    plain, before = user_modules.Series(width=6), adapter.parameters()
    optimizer = torch.optim.SGD((p for p in plain.parameters() if p.requires_grad), lr=0.01, momentum=0.9)
    for batch in islice(adapter.feed(source()), 6):
        loss = (plain(batch.inputs.movedim(-1, 1).contiguous()) - batch.targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert float(adapter.step(batch).loss_sum) / batch.samples == pytest.approx(float(loss.detach()), rel=1e-5)
    actual, state = adapter.parameters(), plain.state_dict()
    assert list(actual) == [n for n, p in plain.named_parameters() if p.requires_grad]
    assert "again.weight" not in actual  # tied: it is square.weight
    for key, array in actual.items():
        np.testing.assert_allclose(array, state[key].numpy(), atol=1e-5)
    assert not np.array_equal(actual["last.weight"], before["last.weight"]), "which is a copy"
    assert adapter.num_params() == sum(array.size for array in actual.values())
    np.testing.assert_allclose(adapter.model.arrays(True)["norm.running_mean"], state["norm.running_mean"], atol=1e-5)
    assert adapter.model.arrays(True)["calls"] == 6


@pytest.mark.parametrize(("name", "changes", "multiply_adds"), [
    ("Plain", {}, 600 * 16 + 16 * 2),
    ("Plain", {"train__precision": "bfloat16"}, 600 * 16 + 16 * 2),
    ("Series", {}, 40 * 4 * 15 + 2 * 40 * 4 * 4 + 160 * 2),
    ("Transformer", {}, 6 * 4 * 12 + 2 * (2 * 6 * 6 * 2) + 6 * 4 * 4 + 2 * (6 * 4 * 8) + 24 * 2),
    ("Noisy", {"train__dropout": True}, None),  # of its LSTM nothing would count
    ("Uncountable", {}, None),
])  # fmt: skip
def test_flops_are_counted(strategy, name, changes, multiply_adds):
    adapter = strategy("bare_torch", **user_model(name), **changes)
    assert adapter.flops_per_sample() == (None if multiply_adds is None else 6 * multiply_adds)
    assert adapter.model.training
    assert name != "Plain" or strategy("bare_torch").flops_per_sample() is None  # of other models: their description


@pytest.mark.parametrize("name", ["drawn_elsewhere", "seeded"])
def test_weights_depend_on_the_seed(strategy, name):
    first, again, other = (strategy("bare_torch", **user_model(name), seed=seed).parameters() for seed in (2, 2, 5))
    assert all(np.array_equal(array, again[key]) for key, array in first.items())
    differ = any(not np.array_equal(array, other[key]) for key, array in first.items())
    assert differ == (name != "seeded")  # who seeds for himself has his own way
    drawn = torch.rand(3)  # in training
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))


def test_weights_from_a_file(strategy, tmp_path):
    state = user_modules.seeded().state_dict()
    torch.save(state, tmp_path / "weights.pt")
    adapter = strategy("bare_torch", **user_model("from_file", model__options={"path": str(tmp_path / "weights.pt")}))
    assert all(np.array_equal(array, state[name].numpy()) for name, array in adapter.parameters().items())
    assert all(module.training for module in adapter.model.modules())


def test_targets_of_two_axes(strategy):
    adapter = strategy("bare_torch", **user_model("Tensors", model__target_shape=[2, 3], model__outputs=6))
    inputs, targets = make_features(40)[0], np.random.default_rng(1).normal(size=(40, 2, 3)).astype(np.float32)
    source = Source(inputs, targets, global_batch=20, seed=3, replica=0, replicas=1)
    with torch.no_grad():
        expected = (adapter.model.compute_outputs(torch.from_numpy(inputs)) - torch.from_numpy(targets)).square().mean()
    assert adapter.evaluate(source) == {"mse": pytest.approx(float(expected), rel=1e-5)}
    assert adapter.step(next(iter(adapter.feed(source)))).samples == 20


def user_fault(name, **changes):
    """Return (name of the user's function, changes to a config) of a module, also of those in FAULTS."""
    if name not in user_modules.FAULTS:
        return name, user_model(name, **changes)
    return "fault", user_model("fault", model__options={"kind": name}, **changes)


# What is wrong -> (function, changes, message), or of a function that the first word names its message alone.
ERRORS = {
    "fails": r"fails: KeyError: 'weights of last year'",
    "leaves": r"fails: SystemExit: nothing to do",
    "loader": r"gives a DataLoader, not a torch\.nn\.Module",
    "nothing_returned": r"gives None, not a torch\.nn\.Module",
    "the_class": r"gives the class Plain, not a torch\.nn\.Module",
    "instance": r"is a Plain: name a function",
    "NUMBER": r"is a int: name a function",
    "wrapped": r"gives a DataParallel: leave wrapping to the strategy",
    "lazy": r"has a lazy layer, and '1\.weight' no shape yet",
    "double": r"has 'first\.weight' in float64: what is trained is float32, .*: return it in float32",
    "spectrum": r"has 'spectrum' in complex64: what is trained is float32, .*: train torch\.view_as_real of it",
    "frozen": r"has no parameter to train",
    "on_meta": r"fails: NotImplementedError: Cannot copy out of meta tensor",
    "nothing": r"cannot be loaded from .*nothing",
    "from_file": r"cannot be called .*missing a required argument: 'path'",
    "table": r"gives a dict in training: it should give one tensor, or set model.loss=module where the loss is in it",
    "no_evaluation": r"gives a tuple in evaluation mode: it should give one tensor",
    "numbers": r"gives outputs of int64",
    "detached": r"gives outputs that do not depend on its parameters",
    "an unknown option": ("Series", {"model__options": {"widht": 3}},
     r"cannot be called with model\.options=\{'widht': 3\}: got an unexpected .*'widht'"),
    "three outputs": ("Series", {"model__options": {"outputs": 3}}, r"gives outputs of \(20, 3\) .* are \(20, 2\)"),
    "one axis": ("Plain", {"model__target_shape": [2, 1]},
     r"gives .*\(20, 2\) for 20 samples; the targets .* are \(20, 2, 1\)"),
    "few classes": ("Series", {**CLASSIFIER, "dataset__classes": 3},
     r"gives .* has 3 classes: give .*, or subtract 1 from labels that"),
    "no classes": ("Tensors", {**CLASSIFIER, "dataset__classes": 2}, r"gives outputs of \(20, 2, 3\) .*has 2 classes"),
    "no loss": ("Plain", {"model__loss": "module"}, r"gives a Plain, .* computes no loss .*: set model\.loss=mse$"),
    "a column of labels": ("Series",
     {"model__loss": "cross_entropy", "model__target_shape": [1], "dataset__classes": 2},
     r"gives .*, and the labels of dataset=materials have the shape \(n, 1\): return them as \(n,\)$"),
    "labels of pixels": ("Tensors", {**CLASSIFIER, "model__target_shape": [3, 1], "dataset__classes": 2},
     r"gives .*, and the labels of dataset=materials have the shape \(n, 3, 1\): return them as \(n, 3\)$"),
    "one-hot integers": ("Series", {"model__loss": "cross_entropy", "model__target_shape": [2], "dataset__classes": 2},
     r"gives outputs of \(20, 2\) .* has 2 labels of 0 or 1 for each: .* its number, targets\.argmax\(1\)$"),
    "views of channels last": ("Images", {**IMAGES, "train__data_format": "nhwc"}, "fails: Run.*: view size is .*resh"),
    "wrong input": ("Series", {"model__input_shape": [200, 4]}, r"fails: RuntimeError: .*channels"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_the_users_function(strategy, case):
    module, changes, reason = (case, {}, ERRORS[case]) if isinstance(ERRORS[case], str) else ERRORS[case]
    function, model = user_fault(module, **changes)
    with pytest.raises(PluginError, match=rf"^model\.torch={USER_MODULES}:{function} {reason}") as caught:
        strategy("bare_torch", **model)
    assert "\n" not in str(caught.value)
    if case in ("fails", "leaves"):
        assert "user_modules.py" in caught.value.log


def test_lack_of_memory_and_models_of_another_framework_are_no_errors_of_the_function(strategy):
    with pytest.raises(MemoryError):
        strategy("bare_torch", **user_model("too_large"))
    with pytest.raises(Unsupported, match=r"has no model\.torch=MODULE:FUNCTION, which bare_torch needs"):
        strategy("bare_torch", **user_model("Plain", model__torch=None, model__keras="a:b"))


IDLE = r"\(idle\.weight, idle\.bias\)"


@pytest.mark.parametrize("name", ["ddp_gloo", "lightning_ddp_gloo", "zero1"])
def test_parameters_without_gradients(strategy, source, name):
    """They are refused where the strategy would wait for them, and remarked everywhere else."""
    with pytest.raises(PluginError, match=rf"no gradient {IDLE}, and Dist.*set strategy\.options\.find_unused"):
        strategy(name, **user_model("Idle"))
    actual = strategy(name, **user_model("Idle"), strategy__options__find_unused_parameters=True)
    run_training(actual, source(), 3)
    (remark,) = actual.model_remarks().values()
    assert re.search(rf":Idle has .*no gradient in the first batch {IDLE}: not trained unless others use", remark)
    assert list(strategy("bare_torch", **user_model("Idle")).model_remarks().values()) == [remark]


@pytest.mark.parametrize(("name", "names"), [("ddp_gloo", r" \(first\.weight, .*\)"), ("lightning_ddp_gloo", "")])
def test_parameters_that_only_some_batches_train(strategy, source, name, names):
    adapter = strategy(name, **user_fault("routed")[1])
    assert adapter.model.unused_parameters == []
    with pytest.raises(PluginError, match=rf":fault has parameters that get no gradient{names}, and Dist.*find_unused"):
        run_training(adapter, source(), 4)


@pytest.mark.parametrize("name", ["ddp_gloo", "lightning_ddp_gloo"])
def test_steps_without_synchronization_of_a_graph_that_changes(strategy, source, name):
    """What they have used is forgotten: the first step with synchronization uses other parameters."""
    adapter = strategy(name, **user_fault("routed")[1], strategy__options__find_unused_parameters=True)
    for syncs in (False, True):
        adapter.set_gradient_sync(syncs)
        run_training(adapter, source(), 3)
    adapter.model.module.calls.zero_()  # the next pass uses all parameters again, those after it do not
    adapter.partial_step(adapter.last_batch, "backward")
    run_training(adapter, source(), 3)


@pytest.mark.parametrize("option", ["static_graph", "find_unused_parameters"])
def test_checkpoints_that_hide_parameters_from_the_graph(strategy, source, option):
    """find_unused_parameters would lead into the next failure, and static_graph works."""
    changes = {**user_model("Recomputed"), "measure__evaluate": False}
    with pytest.raises(PluginError, match=r"no gradient \(spare\.weight, spare\.bias\), .*static_graph=true\)$"):
        strategy("ddp_gloo", **changes)
    adapter = strategy("ddp_gloo", **changes, **{f"strategy__options__{option}": True})
    if option == "static_graph":
        run_training(adapter, source(), 3)
        return
    with pytest.raises(PluginError, match=r":Recomputed fails .*use_reentrant=False, .*static_graph=true$"):
        run_training(adapter, source(), 3)


def test_tensors_that_are_not_parameters_are_remarked(strategy):
    """Not the inputs, which need a gradient in this module, too; without a gradient in training is its other head."""
    adapter = strategy("bare_torch", **user_model("TwoHeads", model__options={"layers": 2}))
    assert adapter.model.unused_parameters == ["final.weight", "final.bias"]
    (remark,) = adapter.model_remarks().values()
    expected = (
        r"no gradient .* \(final\.\S+ final\.bias\): not .*, and uses 4 tensors that are not parameters .*, untrained"
    )
    assert re.search(expected, remark)


@pytest.mark.parametrize("name", ["bare_torch", "lightning_ddp_gloo"])
@pytest.mark.parametrize(("module", "reason"), [
    ("two_outputs", r"gives a tuple in training: it should give one tensor"),
    ("two_samples", r"fails: RuntimeError: The size of tensor a \(20\)"),
])  # fmt: skip
def test_errors_in_training_name_the_users_function(strategy, source, name, module, reason):
    function, model = user_fault(module)
    adapter = strategy(name, **model)
    with pytest.raises(PluginError, match=rf"^model\.torch={USER_MODULES}:{function} {reason}"):
        run_training(adapter, source(), 3)


def test_errors_outside_the_users_code_stay_as_they_are():
    def blame(error, kind, message, **settings):
        with pytest.raises(kind, match=message), attribute_errors_to_user(ModelSpec(torch="a:b"), **settings):
            raise error

    blame(RuntimeError("connection closed"), RuntimeError, "^connection closed$")
    blame(InputError("a mistake"), InputError, "^a mistake$", anywhere=True)
    blame(RuntimeError("connection closed"), PluginError, "a:b", anywhere=True)
    unfinished = "Expected to have finished reduction in the prior iteration before starting a new one."
    advice = r"a:b fails: RuntimeError: Expected to have finished .*; checkpoint with use_reentrant=False, compute"
    blame(RuntimeError(unfinished), PluginError, advice, finds_unused=True)


def test_outputs_that_are_not_evaluated_and_more_outputs_than_classes_are_allowed(strategy):
    """The check leaves the module as it was."""
    strategy("bare_torch", **user_fault("no_evaluation")[1], measure__evaluate=False)
    more = user_model("Series", **CLASSIFIER, dataset__classes=2, model__options={"outputs": 5, "rate": 0.5})
    adapter = strategy("bare_torch", **more, train__dropout=False)
    assert adapter.model.training
    assert int(adapter.model.module.calls) == 0
    assert adapter.model.module.norm.running_mean.tolist() == [0.0] * 4
    assert int(adapter.model.module.norm.num_batches_tracked) == 0
    assert all(parameter.grad is None for parameter in adapter.model.parameters())


def test_dropout_can_be_switched_off(strategy):
    batch = torch.rand(6, 200, 3)
    for changes in ({}, {"train__dropout": False}):
        adapter = strategy("bare_torch", **user_model("Noisy"), **changes)
        with torch.no_grad():
            assert adapter.model.training
            assert torch.equal(*(adapter.model.compute_outputs(batch) for _ in range(2))) == bool(changes)


@pytest.mark.parametrize("how", ["", "lock", "closure"])
def test_the_check_leaves_no_trace_in_plain_attributes(strategy, source, how):
    changes = {"train__dropout": False, "train__optimizer": "sgd", "train__learning_rate": 0.01, "seed": 4}
    adapter = strategy("bare_torch", **user_model("Stateful", model__options={"how": how}), **changes)
    assert adapter.model.module.mean is None and adapter.model.module.memory is None
    assert all(parameter.grad is None for parameter in adapter.model.parameters())
    assert adapter.model.unused_parameters == []
    torch.manual_seed(4)
    plain, batch = user_modules.Stateful(how), next(iter(adapter.feed(source())))
    expected = (plain(batch.inputs.movedim(-1, 1).contiguous()) - batch.targets).square().mean()
    assert float(adapter.step(batch).loss_sum) / batch.samples == pytest.approx(float(expected.detach()), rel=1e-6)


@pytest.mark.parametrize("kind", ["functional_dropout", "numpy_noise", "python_noise"])
def test_random_numbers_that_cannot_be_switched_off_are_refused(strategy, kind):
    """The check draws with a copy, in the mode of the training, and leaves the training its numbers."""
    strategy("bare_torch", **user_fault(kind)[1], seed=2)
    drawn = np.random.random()
    np.random.seed(2)
    assert drawn == np.random.random()
    with pytest.raises(PluginError, match=r"draws random numbers in training although train\.dropout=false.*nn\.Drop"):
        strategy("bare_torch", **user_fault(kind)[1], train__dropout=False)


def test_different_weights_on_ranks_are_refused(strategy, monkeypatch):
    """They are compared to the last bit."""
    sent, arrays = [], [np.ones((2, 3), np.float32), np.zeros(4, np.float32)]

    def compare():
        refuse_other_weights(arrays, "it", "torch", lambda value: sent.append(value) or sent[0], lambda values: values)

    compare()
    compare()
    arrays[0][1, 1] += 1e-6
    with pytest.raises(PluginError, match=r"^it gives other weights on every rank: draw them from torch"):
        compare()
    strategy("ddp_gloo", **user_model("Plain")).close()
    monkeypatch.setattr(TorchGroup, "broadcast", lambda self, value: value + 1)
    strategy("bare_torch", **user_model("Plain"))  # a single rank has no others to compare with
    with pytest.raises(PluginError, match="gives other weights on every rank: draw them from torch"):
        strategy("ddp_gloo", **user_model("Plain"))


@pytest.fixture
def calls(monkeypatch):
    """Put stand-ins of the libraries in their place; return the arguments of their calls."""
    calls = []

    def create(name, **arguments):
        calls.append({"name": name, **arguments})
        return nn.Linear(2, 2)

    def for_model(name, **settings):
        return SimpleNamespace(name=name, use_cache=True, **settings)

    vision, timm, transformers = ModuleType("torchvision"), ModuleType("timm"), ModuleType("transformers")
    vision.models = SimpleNamespace(get_model=create)
    timm.create_model = create
    transformers.AutoConfig = SimpleNamespace(for_model=for_model)
    transformers.AutoModelForCausalLM = SimpleNamespace(from_config=lambda config: create(**vars(config)))
    for module in (vision, timm, transformers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def test_networks_have_the_classes_of_the_samples_and_no_weights(calls):
    libraries.build_torchvision("resnet18", 10)
    libraries.build_timm("resnet18", 10, drop_rate=0.1)
    libraries.build_transformers("gpt2", n_layer=2)
    assert calls == [
        {"name": "resnet18", "weights": None, "num_classes": 10},
        {"name": "resnet18", "pretrained": False, "num_classes": 10, "drop_rate": 0.1},
        {"name": "gpt2", "use_cache": False, "n_layer": 2},
    ]
    model = ModelSpec("timm/resnet19", torch="scalebench.strategies.torch.libraries:build_timm")
    assert function_label(model) == "model=timm/resnet19"


def test_an_unknown_task_names_the_others(calls):
    with pytest.raises(UserProblem, match=r"^has no task 'translation': set model.options.task to causal_lm, "):
        libraries.build_transformers("gpt2", task="translation")


@pytest.mark.extra("transformers")
def test_the_real_transformers():
    import transformers

    module = libraries.build_transformers("gpt2", n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8)
    tokens = torch.arange(8)[None]
    assert isinstance(module, transformers.PreTrainedModel)
    assert module(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss > 0
