"""FSDP as people run it: a unit for each repeated block of a module, gathered in the precision of training."""

from collections import Counter

import pytest
import torch
from torch import nn

from scalebench.core.errors import PluginError
from scalebench.core.json_files import write_json
from scalebench.strategies.base import BatchReplay
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.sharded.fsdp import find_blocks
from scalebench.strategies.torch.user_checks import build_user_module, check_user_module, choose_trial_device
from tests.strategies.torch.conftest import run_ranks, spec_of, user_model
from tests.strategies.torch.user_modules import Block, Blocks

BATCH = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
BATCH_OF_PICTURES = TorchBatch(torch.randn(4, 32, 32, 3), torch.randint(10, (4,)), 4)
EACH_BLOCK = {"strategy__options__unit_mb": 0.0}


def count_bytes(module):
    return sum(4 * parameter.numel() for parameter in module.parameters())


def share_weight(module):
    module.head.weight = module.blocks[0].norm.weight
    return module


def name_blocks(module, *names):
    module._no_split_modules = list(names)
    return module


@pytest.mark.parametrize(("make", "count"), [
    (lambda: Blocks(3), 3),
    (lambda: nn.Sequential(*(Block(8) for _ in range(2))), 2),
    (lambda: nn.Sequential(Block(8)), 0),  # nothing is repeated
    (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), 0),  # single layers
    (lambda: nn.Sequential(Block(8), Blocks(1)), 0),  # members of two classes
    (lambda: nn.ModuleList([Blocks(2), Blocks(2)]), 2),  # the outermost ones
    (lambda: share_weight(Blocks(3)), 0),  # a weight inside and outside of a block
    (lambda: name_blocks(Blocks(3), "MultiheadAttention"), 3),  # as Hugging Face's models say it
    (lambda: name_blocks(nn.Sequential(Block(8), Blocks(1)), "Block", "Unknown"), 2),
])  # fmt: skip
def test_blocks_of_a_module(make, count):
    assert len(find_blocks(make())) == count


@pytest.mark.real
def test_each_block_is_gathered_for_itself_in_the_precision_of_training(tmp_path):
    """What lies outside of the blocks stays gathered between both passes; gradients are reduced in float32."""
    write_json(tmp_path / "task.json", "shard")
    changes = {**user_model("Blocks"), **EACH_BLOCK, "train__precision": "bfloat16"}
    ranks = run_ranks(spec_of("fsdp_gloo", 2, **changes), tmp_path, "task_rank")
    block_bytes, all_bytes = count_bytes(Block(8)), count_bytes(Blocks(3))
    rest_bytes = all_bytes - 3 * block_bytes
    sent = Counter({block_bytes // 2: 6, block_bytes: 3}) + Counter([rest_bytes // 2, rest_bytes])
    for observed in ranks:
        assert Counter(observed["messages"]) == Counter(observed["messages_again"]) == sent
        assert observed["metrics"] == ranks[0]["metrics"] and observed["weights"] == ranks[0]["weights"]
        assert sum(each["start_bytes"][0] for each in ranks) == all_bytes  # in float32


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_losses_are_those_of_bare(strategy, precision, tolerance):
    changes = {**user_model("Blocks"), "train__precision": precision, "train__learning_rate": 0.01}
    fsdp, bare = strategy("fsdp_gloo", **EACH_BLOCK, **changes), strategy("bare_torch", **changes)
    for _ in range(3):
        expected = pytest.approx(float(bare.step(BATCH).loss_sum), rel=tolerance)
        assert float(fsdp.step(BATCH).loss_sum) == expected


@pytest.mark.parametrize("name", ["Blocks", "Series"])
def test_a_module_for_gpus_is_checked_without_values(strategy, capsys, name):
    """It has no memory for the copy, and shapes, types and what gets a gradient are found alike."""
    meta = choose_trial_device(torch.device("cuda", 1), True)
    assert meta.type == "meta" and choose_trial_device(torch.device("cpu"), True).type == "cpu"
    fsdp = strategy("fsdp_gloo", **user_model(name))
    config, model = fsdp.spec.config, build_user_module(fsdp.spec.config, torch.device("cpu"))
    batch = TorchBatch(torch.randn(4, 200, 3, device="meta"), torch.randn(4, 2, device="meta"), 4)
    check = (model, config, fsdp.precision.autocast("meta"), None, batch, True)
    check_user_module(*check)
    assert model.flops_per_sample == pytest.approx(fsdp.model.flops_per_sample) and not model.remarks
    with pytest.raises(PluginError, match=r"gives outputs of \(4, 2\) for 4 samples"):
        check_user_module(*check[:4], batch._replace(targets=torch.randn(4, 3, device="meta")), True)
    model.module.forward = lambda x: x.sum().item()
    check_user_module(*check)
    assert "the module was not checked, since a copy without values fails" in capsys.readouterr().out


def test_a_block_that_is_not_called_names_the_way_out(strategy):
    uncalled = user_model("UncalledBlocks")
    with pytest.raises(PluginError, match=r"call it, or .*, such as ddp; .* strategy\.options\.units=whole helps too$"):
        strategy("fsdp_gloo", **uncalled, **EACH_BLOCK).train(BatchReplay(BATCH, 1))


def test_layers_whose_kernels_take_float32_alone_are_gathered_so(strategy):
    fsdp = strategy("fsdp_gloo", model="resnet20_cifar10", train__precision="bfloat16", **EACH_BLOCK)
    policies = {fsdp._choose_precision(unit).param_dtype for unit in fsdp._units()}
    assert policies == {torch.bfloat16, None}
    assert fsdp._choose_precision([nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))]).param_dtype is None
    assert float(fsdp.step(BATCH_OF_PICTURES).loss_sum) > 0


@pytest.mark.parametrize(("name", "units", "said"), [("Series", "layers", True), ("Blocks", "layers", False),
                                                     ("Series", "whole", False)])  # fmt: skip
def test_a_module_without_blocks_is_one_unit_and_says_so(strategy, name, units, said):
    adapter = strategy("fsdp_gloo", **user_model(name), **EACH_BLOCK, strategy__options__units=units)
    assert ("one_unit" in adapter.model_remarks()) == said
