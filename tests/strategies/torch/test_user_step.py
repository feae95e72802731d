"""A step of the user's own in this process: dicts and tuples of tensors, losses, optimizers, and their faults."""

import numpy as np
import pytest
import torch
from PIL import Image

from scalebench.core.errors import PluginError
from scalebench.core.spec import TrainSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch import user_checks
from scalebench.strategies.torch.user_optimizer import UserOptimizer
from scalebench.workloads import datasets, records
from scalebench.workloads.source import Source
from tests.strategies.builders import run_training
from tests.strategies.torch import user_steps
from tests.strategies.torch.conftest import USER_MODULES, spec_of
from tests.strategies.torch.user_steps import LENGTH, TOKENS

STEPS = "tests.strategies.torch.user_steps"
SAMPLES, BATCH = 48, 12
SLOW = ("fsdp_gloo", "zero1", "lightning_ddp_gloo", "lightning_fsdp_gloo")
NAMES = ["bare_torch", "ddp_gloo", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(TOKENS, size=(SAMPLES, LENGTH))
MASK = RANDOM.random((SAMPLES, LENGTH)) > 0.2
LABELS = (IDS * 3 + 1) % TOKENS
NUMBERS = RANDOM.normal(size=(SAMPLES, 5)).astype(np.float32)
FLOATS = NUMBERS, NUMBERS[:, :2] + 1


def pack(*fields, **named):
    arrays = named or records.name_fields(fields)
    packed = np.empty(SAMPLES, records.record_type(arrays))
    for name, array in arrays.items():
        packed[name] = array
    return packed


LABELLED = pack(ids=IDS, mask=MASK, labels=LABELS), np.zeros(SAMPLES, records.NO_TARGETS)
KINDS = {
    "TokenSums": ("TokenSums", f"{STEPS}:token_loss", (pack(ids=IDS, mask=MASK), LABELS)),
    "OneDict": ("OneDict", f"{STEPS}:token_loss", (pack(ids=IDS, mask=MASK), LABELS)),
    "TwoTensors": ("TwoTensors", f"{STEPS}:token_loss", (pack(IDS, MASK), pack(LABELS))),
    "LossAmongOutputs": ("LossAmongOutputs", "module", LABELLED),
    "ScoresAndLoss": ("ScoresAndLoss", "module", LABELLED),
    "with_optimizer": ("with_optimizer", f"{STEPS}:token_loss", (pack(ids=IDS, mask=MASK), LABELS)),
    "Regression": ("Regression", "module", FLOATS),
}


@pytest.fixture
def own_step(strategy, monkeypatch):
    """Return own_step(strategy, kind, **changes) -> (the strategy set up, the source of its samples)."""

    def make(name, kind, **changes):
        function, loss, (inputs, targets) = KINDS[kind]
        monkeypatch.setattr(datasets, "open_dataset", lambda spec: (inputs, targets))
        settings = {
            "model": "custom",
            "model__torch": f"{STEPS}:{function}",
            "model__loss": loss,
            "model__metric": "loss",
            "model__input_shape": list(inputs.shape[1:]),
            "dataset__dtype": records.RECORD if records.is_record(inputs.dtype) else "float32",
            "train__optimizer": "sgd",
            "train__learning_rate": 0.1,
        }
        source = Source(inputs, targets, global_batch=BATCH, seed=0, replica=0, replicas=1)
        return strategy(name, **settings | changes), source

    return make


def train_by_hand(kind, steps):
    """Return the losses of the same steps in a loop of PyTorch alone."""
    torch.manual_seed(0)
    function, _, (inputs, targets) = KINDS[kind]
    made = getattr(user_steps, function)()
    module, optimizer = made if isinstance(made, tuple) else (made, None)
    if kind == "Regression":
        (optimizer,), _ = module.configure_optimizers()
        module.log = lambda *_: None  # it warns without a Trainer
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.1)
    source, losses = Source(inputs, targets, global_batch=BATCH, seed=0, replica=0, replicas=1), []
    for number in range(steps):
        rows = source.batch_indices(number // source.steps_per_epoch, number % source.steps_per_epoch)
        ids, mask, labels = (torch.from_numpy(array[rows]) for array in (IDS, MASK, LABELS))
        optimizer.zero_grad()
        if kind == "Regression":
            loss = module.training_step([torch.from_numpy(array[rows]) for array in FLOATS], 0)
        else:
            loss = user_steps.token_loss(user_steps.TokenSums.forward(module, ids, mask), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_a_loop_by_hand(own_step, name, kind):
    adapter, source = own_step(name, kind)
    losses = run_training(adapter, source, 6).losses
    np.testing.assert_allclose(losses, train_by_hand(kind, 6), rtol=1e-5)
    assert losses[-1] < losses[0] and adapter.flops_per_sample() > 0
    metrics = adapter.evaluate(source)
    assert metrics.keys() == {"loss"} and 0 < metrics["loss"] < losses[0]
    # This takes another step, for which Lightning's loop is set up anew.
    assert adapter.settings_used()["precision"] == "float32"


@pytest.mark.parametrize("feed", ["host", "fixed", "device"])
def test_every_feed_gives_the_fields(own_step, feed):
    adapter, source = own_step("bare_torch", "LossAmongOutputs", dataset__feed=feed)
    batch = next(iter(adapter.feed(source)))
    assert batch.targets is None and batch.samples == BATCH
    types = {"ids": torch.int64, "mask": torch.bool, "labels": torch.int64}
    assert {name: part.dtype for name, part in batch.inputs.items()} == types
    assert torch.equal(batch.inputs["ids"], torch.from_numpy(IDS[source.batch_indices(0, 0)]))
    assert all(part.is_contiguous() for part in batch.tensors())


def test_pictures_are_decoded_for_the_check_and_in_training(strategy, tmp_path):
    for number in range(2 * BATCH):
        path = tmp_path / "pictures" / f"n{number % 2}" / f"{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (9 * number, 0, 255 * (number % 2))).save(path)
    adapter = strategy(
        "bare_torch",
        model="custom",
        model__torch=f"{USER_MODULES}:Images",
        model__loss="torch.nn.functional:cross_entropy",
        model__metric="loss",
        model__input_shape=[32, 32, 3],
        model__outputs=10,
        dataset={"name": "imagenet_jpeg", "path": str(tmp_path / "pictures"), "classes": 10, "dtype": "uint8"},
        dataset__cache=str(tmp_path / "cache"),
        dataset__validation_share=0.0,
        dataset__workers=0,
        train__learning_rate=0.01,
    )
    losses = run_training(adapter, datasets.open_sources(adapter.spec, 0, 1)[0], 4).losses
    assert losses[-1] < losses[0] and adapter.flops_per_sample() > 0


@pytest.mark.parametrize("kind", ["TokenSums", "LossAmongOutputs"])
def test_parts_of_a_step_add_up_to_it(own_step, kind):
    adapter, source = own_step("bare_torch", kind, train__accumulate=5)  # parts of 2 and of 3
    np.testing.assert_allclose(run_training(adapter, source, 4).losses, train_by_hand(kind, 4), rtol=1e-5)


@pytest.mark.parametrize(("steps", "options", "factor"), [
    (3, {"frequency": 1}, 2**3),
    (3, {"frequency": 2}, 2),
    (6, {"frequency": 1, "schedule_ends": "once"}, 1000),  # where a schedule with a number of steps ended
    (6, {"frequency": 1, "schedule_ends": "second"}, 1000),
])  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
def test_schedulers_go_on_with_the_steps(own_step, name, steps, options, factor):
    adapter, source = own_step(name, "Regression", model__options=options)
    run_training(adapter, source, steps)
    assert adapter.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / factor)


@pytest.mark.parametrize("name", ["lightning_ddp_gloo", pytest.param("lightning_fsdp_gloo", marks=pytest.mark.slow)])
def test_hooks_of_a_lightning_module_get_its_own_batches(own_step, name):
    """Those on batches run without a Trainer, too."""
    adapter, source = own_step(name, "Regression", model__torch=f"{STEPS}:Hooked")
    adapter.model.module.sums.clear()  # those of the check
    losses = run_training(adapter, source, 3).losses
    expected = [float(2 * (FLOATS[1][source.batch_indices(0, step)] + 1).sum()) for step in range(3)]
    assert adapter.model.module.sums == pytest.approx(np.repeat(expected, 3), rel=1e-5)
    bare = run_training(*own_step("bare_torch", "Regression", model__torch=f"{STEPS}:Hooked"), 3)
    np.testing.assert_allclose(losses, bare.losses, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_has_what_a_trainer_knows(own_step, name):
    adapter, source = own_step(name, "Regression", model__torch=f"{STEPS}:WithTrainer")
    run_training(adapter, source, 6)  # of epochs of 4 steps
    module = adapter.model.module
    assert module.counts[-6:] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    assert module.calls == ["setup fit", "start"]
    assert adapter.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 2)
    assert adapter.left_out() == [*(["on_train_batch_start"] if "lightning" not in name else []), "train_dataloader"]


GATHERS = {"model__torch": f"{STEPS}:WithTrainer", "model__options": {"gathers": True}}


@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo"])
def test_a_module_that_needs_a_trainer_is_unsupported_where_there_is_none(own_step, name):
    with pytest.raises(Unsupported, match=r"WithTrainer needs a Trainer .*: take lightning_ddp or lightning_fsdp$"):
        own_step(name, "Regression", **GATHERS)


@pytest.mark.parametrize("name", ["lightning_ddp_gloo", pytest.param("lightning_fsdp_gloo", marks=pytest.mark.slow)])
def test_a_module_reaches_the_trainer_that_there_is(own_step, name):
    adapter, source = own_step(name, "Regression", **GATHERS)
    losses = run_training(adapter, source, 3).losses
    assert losses[-1] < losses[0] and adapter.evaluate(source)["loss"] > 0


def test_a_module_that_plans_with_the_number_of_steps_is_refused(own_step, monkeypatch):
    """Lightning would say -1, with which a linear schedule raises the rate."""
    monkeypatch.setattr(
        user_steps.Regression, "configure_optimizers", lambda module: int(module.trainer.estimated_stepping_batches)
    )
    with pytest.raises(PluginError, match=r"Regression takes self\.trainer\.estimated_stepping_batches, .*script=FILE"):
        own_step("lightning_ddp_gloo", "Regression")


def test_threads_and_rates_are_those_of_the_run(own_step):
    """Whatever the file sets; a schedule of scalebench scales the user's rates."""
    adapter, _ = own_step("bare_torch", "TokenSums", model__torch=f"{STEPS}:takes_threads")
    assert adapter.threads_used() == adapter.place.threads
    adapter, _ = own_step("bare_torch", "with_optimizer", train__learning_rate=0.01)
    adapter.set_learning_rate(0.005)
    assert [group["lr"] for group in adapter.optimizer.param_groups] == pytest.approx([0.1, 0.05])


@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "lightning_ddp_gloo"])
def test_training_step_gets_the_numbers_of_its_batches(own_step, name):
    adapter, source = own_step(name, "Regression")
    run_training(adapter, source, 3)
    adapter.evaluate(source)
    run_training(adapter, source, 2)
    assert adapter.model.module.seen == [0, 1, 2, *range(SAMPLES // BATCH), 3, 4]


def of_regression(fault, **changes):
    return "Regression", {"model__options": {"fault": fault, **changes}}


FAULTS = {
    r"fails: .*; this run has no GPU, so leave moving the module and its samples to scalebench$": (
        "TokenSums", {"model__torch": f"{STEPS}:needs_gpu"}),
    r"gives a loss of nan for the first 20 samples: correct": ("TokenSums", {"model__loss": f"{STEPS}:nan_loss"}),
    r"has model.loss=\S+:no_loss, which gives a str, and should .*: return it, also as 'loss' of a dict$": (
        "TokenSums", {"model__loss": f"{STEPS}:no_loss"}),
    r"has model.loss=\S+:number, which is not a function$": ("TokenSums", {"model__loss": f"{STEPS}:number"}),
    r"fails: TypeError: .*": ("OneDict", {"model__loss": "module"}),
    r"has no 'labels' among the arguments of its forward, .*: return them as targets": (
        "LossAmongOutputs", {"model__torch": f"{STEPS}:TokenSums", "model__loss": f"{STEPS}:token_loss"}),
    r"gives None, and should give the mean loss of a batch": of_regression("none"),
    r"gives a tuple, and should .*: return it, also as 'loss' of a dict, or set model.loss=MODULE:FUNCTION": (
        "ScoresAndLoss", {"model__options": {"losses": 2}}),
    r"gives a dict of loss_scores, and should give the mean loss": (
        "LossAmongOutputs", {"model__torch": f"{STEPS}:Losses"}),
    r"gives float32 of shape \(3,\), and should give the mean loss of a batch": of_regression("vector"),
    r"steps its optimizers by itself": of_regression("manual"),
    r"gives 2 optimizers, and a step is one of": of_regression("two"),
    r"lacks first.weight, first.bias: give it these parameters too, or set requires_grad=": of_regression("misses"),
    r"has an optimizer of 1 parameters that are not": of_regression("foreign"),
    r"ReduceLROnPlateau with the interval 'step', and no metric is computed in a step: leave it out, or": of_regression(
        "plateau", frequency=1),
    r"has the scheduler ExponentialLR, and train.schedule and train.warmup_epochs set the same learning rate:": (
        "Regression",
        {"model__options": {"frequency": 1}, "train__schedule": "linear", "train__stop": {"epochs": 2.0}}),
    r"has a training_step, which computes its own loss: set model.loss=mo": ("Regression", {"model__loss": "mse"}),
}  # fmt: skip


@pytest.mark.parametrize("message", FAULTS)
def test_faults_are_one_line_that_names_the_function(own_step, message):
    kind, changes = FAULTS[message]
    with pytest.raises(PluginError, match=message) as caught:
        own_step("bare_torch", kind, **changes)
    assert str(caught.value).startswith(f"model.torch={STEPS}:") and "\n" not in str(caught.value)


def test_a_module_without_a_loss_in_evaluation_mode(own_step):
    adapter, source = own_step("bare_torch", "Regression", model__options={"fault": "silent"}, measure__evaluate=False)
    assert np.isfinite(run_training(adapter, source, 1).losses).all()
    with pytest.raises(PluginError, match=r":Regression gives no loss in evaluation mode, only .*: set measure.evalu"):
        own_step("bare_torch", "Regression", model__options={"fault": "silent"})


def test_a_lightning_module_knows_its_device_and_an_optimizer_its_rate():
    """The rate before any scheduler lowers it; unknown where groups of parameters have different ones."""
    spec = spec_of("bare_torch", model="custom", model__torch=f"{STEPS}:Regression", model__loss="module")
    module = user_checks.build_user_module(spec.config, torch.device("meta")).module
    assert module.device.type == "meta" and module.last.weight.is_meta
    module = torch.nn.Linear(2, 1)
    adam = torch.optim.Adam(module.parameters(), lr=0.03)
    warmup = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 0.1)
    assert adam.param_groups[0]["lr"] == pytest.approx(0.003)
    assert UserOptimizer(([adam], [warmup]), module, TrainSpec()).peak_rate == 0.03
    groups = [{"params": [module.weight], "lr": 0.1}, {"params": [module.bias], "lr": 0.2}]
    assert UserOptimizer(torch.optim.SGD(groups), module, TrainSpec()).peak_rate is None
