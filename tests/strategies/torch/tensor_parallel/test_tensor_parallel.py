"""Split layers train like complete ones: each case on several ranks and on a single device."""

import pytest

from scalebench.core.spec import write_spec
from scalebench.strategies.base import FORWARD, NotMeasured, Unsupported
from tests.strategies.torch.conftest import run_ranks, spec_of

PAIRED = {"strategy__options__layers": "paired"}
SMALL_MLP = {"model": "mlp", "model__input_shape": [41], "model__params": None}
SMALL = {"parameters": 1e5, "flops": 1e6, "sample_bytes": 1600}
CASES = {
    "rows": {},
    "a pair": {**PAIRED, "train__optimizer": "adamw", "train__weight_decay": 0.02},
    "parts of a batch": {"train__accumulate": 3, "train__optimizer": "sgd"},
    "a chain": {**SMALL_MLP, "train__optimizer": "momentum", "model__learning_rate": 1e-3},
    "dropout between": {"model": "cifar10_cnn", **PAIRED, "train__optimizer": "rmsprop"},
    "columns": {"model": "synthetic", "model__options": SMALL, "model__input_shape": [400, 1]},
    "batch norm": {"model": "resnet20_cifar10", "train__learning_rate": 1e-3},
    "attention": {"model": "gpt_small"},
    "bfloat16": {"model": "gpt_small", "train__precision": "bfloat16"},
}
ALIKE = ("unsplit", "weights", "generator")
HALF = "bfloat16"  # sums over devices are rounded to 8 bits


def observe_ranks(processes, folder):
    """Run all cases on that many ranks and return the observations of each rank by case."""
    spec = spec_of("tensor_parallel", processes, measure__hang_s=240.0)
    for number, case in enumerate(CASES.values()):
        (folder / f"case{number}").mkdir()
        write_spec(spec_of("tensor_parallel", processes, **case), folder / f"case{number}")
    ranks = run_ranks(spec, folder, "tensor_parallel.tensor_parallel_rank")
    return dict(zip(CASES, map(list, zip(*ranks, strict=True)), strict=True))


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    return observe_ranks(request.param, tmp_path_factory.mktemp("tensor"))


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("case", CASES)
def test_split_layers_train_like_complete_ones(ranks, case):
    """This includes widths that do not divide, partial sums of gradients before split layers, and dropout. Weights that
    are not split are equal on all ranks to the last bit without averaged gradients; so are the generators that dropout
    draws from."""
    first, *others = ranks[case]
    assert first["losses"] == pytest.approx(first["bare_losses"], rel=1e-2 if case == HALF else 1e-6)
    assert first["apart"] < (1e-2 if case == HALF else 1e-4)
    assert first["unsplit"] or case == "a chain"
    for other in others:
        assert set(other["losses"]) == {None}
        assert [other[key] for key in ALIKE] == [first[key] for key in ALIKE]
    for rank in ranks[case]:
        assert sorted(rank["messages"]) == rank["sent"] != []
        assert rank["backend"] == "gloo"
        assert rank["settings"]["precision"] == ("bfloat16" if case == HALF else "float32")


@pytest.mark.slow
@pytest.mark.real
def test_a_device_keeps_only_its_shards(ranks):
    """In the mlp all kernels are split."""
    complete = 4 * (41 * 4000 + 4000 * 2000 + 2000 * 500 + 500 * 300 + 300 + 4000 + 2000 + 500 + 300 + 1)
    chain = ranks["a chain"]
    for rank in chain:
        assert rank["kept_bytes"] == pytest.approx(complete / len(chain), rel=0.01)


def test_what_a_strategy_cannot_do(strategy):
    """It refuses what its plan does, and models without layers to split."""
    with pytest.raises(Unsupported, match="use bfloat16"):
        strategy("tensor_parallel", train__precision="float16")
    with pytest.raises(Unsupported, match="resnet20_cifar10 has no dense layer that 1 devices could share"):
        strategy("tensor_parallel", model="resnet20_cifar10", **PAIRED)
    adapter = strategy("tensor_parallel")
    with pytest.raises(NotMeasured, match="without communication"):
        adapter.set_gradient_sync(False)
    with pytest.raises(NotMeasured, match="no part of a step"):
        adapter.partial_step(None, FORWARD)
    assert adapter.message_sizes() == []
