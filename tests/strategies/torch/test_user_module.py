"""A user's own module under bare_torch and its kin: how samples reach it, what it starts from, whom a fault names."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from scalebench.core.errors import InputError, PluginError
from scalebench.core.spec import ModelSpec
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.bare import BareTorch
from scalebench.strategies.torch.user_module import UserModule, attribute_errors_to_user
from scalebench.workloads.source import Source
from tests.strategies.torch import user_modules
from tests.strategies.torch.builders import features, pictures
from tests.strategies.torch.conftest import OWN_MODULES as HERE
from tests.strategies.torch.conftest import own, spec_of

LIGHTNING = pytest.param("lightning_ddp_gloo", marks=pytest.mark.slow)
NAMES = ["bare_torch", "ddp_gloo", "independent_torch", LIGHTNING]


class Seen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x = x
        return x


@pytest.mark.parametrize("shape", [(5,), (7, 3), (4, 6, 3), (2, 4, 6, 3)])
def test_channels_come_first(shape: tuple[int, ...]) -> None:
    inputs, seen = torch.rand(2, *shape), Seen()
    UserModule(seen)(inputs)
    assert torch.equal(seen.x, inputs.movedim(-1, 1) if len(shape) > 1 else inputs)
    assert seen.x.is_contiguous()


def test_bytes_become_numbers_around_0() -> None:
    seen = Seen()
    UserModule(seen)(torch.tensor([[0, 51, 255]], dtype=torch.uint8))
    torch.testing.assert_close(seen.x, torch.tensor([[-1.0, -0.6, 1.0]]))


def test_channels_last_in_memory_where_asked_for() -> None:
    seen = Seen()
    seen.flat, seen.deep = nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)
    model = UserModule(seen, "nhwc")
    model(torch.rand(2, 4, 6, 3))
    assert seen.x.shape == (2, 3, 4, 6) and seen.x.is_contiguous(memory_format=torch.channels_last)
    assert seen.flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert seen.deep.weight.is_contiguous()
    model(torch.rand(2, 6, 3))
    assert seen.x.is_contiguous()


LABELS = {"model__loss": "cross_entropy", "model__target_shape": [], "model__input_shape": [32, 32, 3]}
BYTES = {"dataset__classes": 10, "dataset__dtype": "uint8"}


@pytest.mark.parametrize(
    ("asked", "used", "precision"),
    [("default", "nchw", "float32"), ("nchw", "nchw", "bfloat16"), ("nhwc", "nhwc", "float32")],
)
def test_pictures_and_labels(strategy: Any, asked: str, used: str, precision: str) -> None:
    options = {"train__data_format": asked, "train__precision": precision, "model__options": {"view": asked != "nhwc"}}
    one = strategy("bare_torch", **own("Pictures", **LABELS, **BYTES), **options)
    source = Source(*pictures(101), global_batch=20, seed=3, replica=0, replicas=1)
    losses = [float(part.loss_sum) / part.samples for part in map(one.step, islice(one.feed(source), 60))]
    assert losses[0] == pytest.approx(np.log(10), rel=0.2) and losses[-1] < 1.6
    assert one.evaluate(source)["accuracy"] > 0.5
    assert one.settings_used() == {"data_format": used, "precision": precision, "compiler": "none"}


def test_views_want_channels_first(strategy: Any) -> None:
    with pytest.raises(PluginError, match=rf"torch={HERE}:Pictures fails: RuntimeError: view size is .*reshape"):
        strategy("bare_torch", **own("Pictures", **LABELS, **BYTES), train__data_format="nhwc")


@pytest.mark.parametrize("name", NAMES)
def test_updates_are_those_of_a_plain_loop(strategy: Any, source: Callable[..., Source], name: str) -> None:
    """By momentum: Adam makes whole steps of the rounding in a bias that batch statistics take away again."""
    rule = {"train__optimizer": "momentum", "train__learning_rate": 0.01}
    one = strategy(name, **own("Series", model__options={"width": 6}), **rule, seed=4)
    torch.manual_seed(4)
    plain = user_modules.Series(width=6)
    optimizer = torch.optim.SGD((p for p in plain.parameters() if p.requires_grad), lr=0.01, momentum=0.9)
    for batch in islice(one.feed(source()), 6):
        loss = (plain(batch.inputs.movedim(-1, 1).contiguous()) - batch.targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert float(one.step(batch).loss_sum) / batch.samples == pytest.approx(float(loss.detach()), rel=1e-5)
    found, state = one.parameters(), plain.state_dict()
    assert list(found) == [n for n, p in plain.named_parameters() if p.requires_grad]
    assert "again.weight" not in found  # tied: it is square.weight
    for key, array in found.items():
        np.testing.assert_allclose(array, state[key].numpy(), atol=1e-5)
    assert one.num_params() == sum(array.size for array in found.values())
    np.testing.assert_allclose(one.model.arrays(True)["norm.running_mean"], state["norm.running_mean"], atol=1e-5)
    assert one.model.arrays(True)["seen"] == 6


def test_arrays_are_copies(strategy: Any, source: Callable[..., Source]) -> None:
    one = strategy("bare_torch", **own("Plain"))
    before = one.parameters()
    kept = {name: array.copy() for name, array in before.items()}
    one.step(next(iter(one.feed(source()))))
    assert all(np.array_equal(before[name], kept[name]) for name in kept)
    assert all(not np.array_equal(array, kept[name]) for name, array in one.parameters().items())


@pytest.mark.parametrize("name", ["Plain", "drawn_elsewhere", "seeded"])
def test_weights_are_the_seeds(strategy: Any, name: str) -> None:
    first, again, other = (strategy("bare_torch", **own(name), seed=seed).parameters() for seed in (2, 2, 5))
    assert all(np.array_equal(array, again[key]) for key, array in first.items())
    differ = any(not np.array_equal(array, other[key]) for key, array in first.items())
    assert differ == (name != "seeded")  # who seeds for himself has his own way


def test_what_is_drawn_in_training_is_the_ranks_own(strategy: Any) -> None:
    strategy("bare_torch", **own("seeded"), seed=2)
    drawn = torch.rand(3)
    torch.manual_seed(2)
    assert torch.equal(drawn, torch.rand(3))


def test_weights_from_a_file(strategy: Any, source: Callable[..., Source], tmp_path: Path) -> None:
    state = user_modules.seeded().state_dict()
    torch.save(state, tmp_path / "weights.pt")
    one = strategy("bare_torch", **own("from_file", model__options={"path": str(tmp_path / "weights.pt")}))
    assert all(np.array_equal(array, state[name].numpy()) for name, array in one.parameters().items())
    assert all(module.training for module in one.model.modules())


def test_targets_of_two_axes(strategy: Any) -> None:
    one = strategy("bare_torch", **own("Tensors", model__target_shape=[2, 3], model__outputs=6))
    inputs, targets = features(40)[0], np.random.default_rng(1).normal(size=(40, 2, 3)).astype(np.float32)
    source = Source(inputs, targets, global_batch=20, seed=3, replica=0, replicas=1)
    with torch.no_grad():
        wanted = (one.model(torch.from_numpy(inputs)) - torch.from_numpy(targets)).square().mean()
    assert one.evaluate(source) == {"mse": pytest.approx(float(wanted), rel=1e-5)}
    assert one.step(next(iter(one.feed(source)))).samples == 20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{"train__accumulate": 3}, {"train__precision": "float16"}])
def test_one_rank(strategy: Any, source: Callable[..., Source], name: str, options: dict[str, Any]) -> None:
    one = strategy(name, **own("Series"), **options)
    batch = next(iter(one.feed(source())))
    assert one.step(batch).samples == 20
    one.set_gradient_sync(False)
    for part in ("forward", "backward", "optimizer"):
        one.partial_step(batch, part)
    one.set_gradient_sync(True)
    assert one.evaluate(source()).keys() == {"mse"}
    exchanges = "ddp" in name
    assert one.message_sizes() == ([4 * one.num_params()] if exchanges else [])
    assert one.backend_used() == ("gloo" if exchanges else None)
    assert one.settings_used()["precision"] == options.get("train__precision", "float32")
    assert one.profile(1, None).updates == 1


FAULTS = {
    "fails": r"fails: KeyError: 'weights of last year'",
    "leaves": r"fails: SystemExit: nothing to do",
    "loader": r"gives a DataLoader, and no torch\.nn\.Module",
    "the_class": r"gives the class Plain, and no torch\.nn\.Module",
    "instance": r"is a Plain: name a function",
    "NUMBER": r"is a int: name a function",
    "wrapped": r"gives a DataParallel: leave wrapping to the strategy",
    "lazy": r"has a lazy layer, and '1\.weight' no shape yet",
    "double": r"has 'first\.weight' in float64: what is trained is float32",
    "frozen": r"has no parameter to train",
    "on_meta": r"fails: NotImplementedError: Cannot copy out of meta tensor",
    "nothing": r"cannot be loaded from .*nothing",
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_the_function(strategy: Any, name: str) -> None:
    with pytest.raises(PluginError, match=rf"^model\.torch={HERE}:{name} {FAULTS[name]}") as caught:
        strategy("bare_torch", **own(name))
    assert "\n" not in str(caught.value)
    if name in ("fails", "leaves"):
        assert "user_modules.py" in caught.value.log


def test_options_that_the_function_does_not_take(strategy: Any) -> None:
    with pytest.raises(PluginError, match=r"called with model\.options=\{'widht': 3\}: got an unexpected .*'widht'"):
        strategy("bare_torch", **own("Series", model__options={"widht": 3}))
    with pytest.raises(PluginError, match="missing a required argument: 'path'"):
        strategy("bare_torch", **own("from_file"))


def test_memory_that_is_not_enough_is_no_fault(strategy: Any) -> None:
    with pytest.raises(MemoryError):
        strategy("bare_torch", **own("too_large"))


def test_parameters_as_stated(strategy: Any) -> None:
    strategy("bare_torch", **own("Plain", model__params=601 * 16 + 17 * 2))
    with pytest.raises(RuntimeError, match="9650 parameters here and 7 in its YAML"):
        strategy("bare_torch", **own("Plain", model__params=7))


def test_another_frameworks_model() -> None:
    of_keras = own("Plain", model__torch=None, model__keras="a:b")
    with pytest.raises(Unsupported, match=r"has no model\.torch=MODULE:FUNCTION, which bare_torch needs"):
        BareTorch(spec_of("bare_torch", **of_keras), 0).setup()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp_gloo", "lightning_ddp_gloo"])
def test_parameters_without_gradients(strategy: Any, source: Callable[..., Source], name: str) -> None:
    one = strategy(name, **own("Idle"))
    with pytest.raises(
        PluginError, match=r"no gradient \(idle\.weight, idle\.bias\), .*set strategy\.options\.find_unused"
    ) as caught:
        one.train(Twice(one.feed(source())))
    assert "_rebuild_buckets" in caught.value.log
    one.close()
    found = strategy(name, **own("Idle"), strategy__options__find_unused_parameters=True)
    found.train(Twice(found.feed(source())))


class Twice:
    """A Loop of three updates."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.parts = batches, []

    def __iter__(self) -> Any:
        yield from islice(self.batches, 3)

    def done(self, part: Any) -> bool:
        self.parts.append(part)
        return len(self.parts) == 3


@pytest.mark.parametrize("name", ["bare_torch", "lightning_ddp_gloo"])
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("two_outputs_in_training", r"TypeError: it should give one tensor, and gives a tuple"),
        ("only_two_samples", r"RuntimeError: The size of tensor a \(20\)"),
    ],
)
def test_faults_in_training(strategy: Any, source: Callable[..., Source], name: str, module: str, reason: str) -> None:
    one = strategy(name, **own(module))
    with pytest.raises(PluginError, match=rf"^model\.torch={HERE}:{module} fails: {reason}"):
        one.train(Twice(one.feed(source())))


def test_faults_of_others_are_their_own() -> None:
    with pytest.raises(RuntimeError, match=r"^connection closed$"), attribute_errors_to_user(ModelSpec(torch="a:b")):
        raise RuntimeError("connection closed")
    with (
        pytest.raises(InputError, match=r"^a mistake$"),
        attribute_errors_to_user(ModelSpec(torch="a:b"), anywhere=True),
    ):
        raise InputError("a mistake")
    with pytest.raises(PluginError, match="a:b"), attribute_errors_to_user(ModelSpec(torch="a:b"), anywhere=True):
        raise RuntimeError("connection closed")
