"""The facts that rows must share, and those that may differ."""

import dataclasses

import pytest

from scalebench.analysis.comparison.run_facts import (
    canonical_value,
    collect_facts,
    explain_unknown_key,
    flatten,
    keys_bound_to,
    main_key,
)
from scalebench.analysis.identity import HIDDEN_FACTS, IGNORED_FACTS, is_under
from scalebench.core.machine.gpus import Gpu
from scalebench.core.spec import HardwareSpec, MeasureSpec
from tests.builders.comparisons import machine_settings, make_runs, train_settings
from tests.builders.runs import MODEL, record, simulated_config

CONFIG = simulated_config()
GPU = Gpu(0, "Tesla K80", None, 2**33, 875, 2505, 149.0, 0, None)

MUST_AGREE = {
    "model.name": {"model": dataclasses.replace(MODEL, name="mlp")},
    "model.options.depth": {"model": dataclasses.replace(MODEL, options={"depth": 2})},
    "dataset.feed": {"dataset": dataclasses.replace(CONFIG.dataset, feed="device")},
    "train.batch_per_device": train_settings(batch_per_device=20),
    "train.precision": train_settings(precision="bfloat16"),
    "seed": {"seed": 1},
    "hardware.name": {"hardware": HardwareSpec("gpu2", devices="cpu", gpus_per_node=2)},
    "hardware.environment.NCCL_P2P_DISABLE": {
        "hardware": dataclasses.replace(CONFIG.hardware, environment={"NCCL_P2P_DISABLE": "1"})
    },
    "hardware.bind": {"hardware": dataclasses.replace(CONFIG.hardware, bind="none")},
    "machine.cpu_model": machine_settings(cpu_model="another"),
    "machine.gpus": machine_settings(gpus=[GPU]),
}
MAY_DIFFER = {
    "machine.hostname": machine_settings(hostname="node2"),
    "machine.driver_version": machine_settings(driver_version="550"),
    "machine.git_commit": machine_settings(git_commit="abc"),
    "machine.memory_bytes": machine_settings(memory_bytes=2**33 - 1),
    "versions.torch": machine_settings(versions={"torch": "2.9"}),
    "environment.OMP_NUM_THREADS": machine_settings(environment={"OMP_NUM_THREADS": "4"}),
    "hardware.memory_bytes": {"hardware": dataclasses.replace(CONFIG.hardware, memory_bytes=2**33)},
    "measure.min_s": {"measure": MeasureSpec(min_s=1.0)},
}


def facts(**changes):
    return collect_facts(record(**changes))


@pytest.mark.parametrize(("key", "changes"), MUST_AGREE.items(), ids=list(MUST_AGREE))
def test_facts_of_the_identity_must_agree(key, changes):
    before, after = facts().identity, facts(**changes).identity
    assert before.get(key) != after.get(key)


@pytest.mark.parametrize(("key", "changes"), MAY_DIFFER.items(), ids=list(MAY_DIFFER))
def test_other_facts_may_differ(key, changes):
    before, after = facts(), facts(**changes)
    assert before.identity == after.identity
    assert before.other.get(key) != after.other.get(key)


def test_descriptions_and_repeats_are_no_facts():
    other = dataclasses.replace(MODEL, description="told better", sources=["a paper"])
    before, after = facts(), facts(model=other, repeat=3, run_id="x", resume=True)
    assert (before.identity, before.other) == (after.identity, after.other)


def test_the_processor_of_a_gpu_machine_may_differ():
    plain = record(**machine_settings(cpu_model="another"))
    scale = dataclasses.replace(plain.scale, device="cuda")
    actual = collect_facts(dataclasses.replace(plain, scale=scale))
    assert "machine.cpu_model" not in actual.identity and actual.other["machine.cpu_model"] == "another"


def test_settings_of_the_gpus_are_other_facts():
    two = [GPU, dataclasses.replace(GPU, power_limit_w=100.0)]
    assert facts(**machine_settings(gpus=two)).other["machine.gpu.power_limit_w"] == "[149.0, 100.0]"
    assert facts(**machine_settings(gpus=[GPU, GPU])).other["machine.gpu.power_limit_w"] == 149


def test_older_records_have_the_values_that_were_fixed_then():
    complete = record("ddp")
    older = dataclasses.replace(complete, spec={**complete.spec, "train": dict(complete.spec["train"]), "strategy": {}})
    del older.spec["train"]["dropout"]
    older.spec["strategy"] = {key: value for key, value in complete.spec["strategy"].items() if key != "options"}
    assert collect_facts(older).identity == collect_facts(complete).identity
    assert collect_facts(older).identity["train.dropout"] is True
    assert collect_facts(complete).identity["strategy.options.bucket_cap_mb"] == 25


def test_an_option_with_its_default_value_changes_nothing():
    (as_it_comes,), (chosen,) = make_runs("a", [0.1]), make_runs("a", [0.1], options={"bucket_cap_mb": 25.0})
    (other,) = make_runs("a", [0.1], options={"bucket_cap_mb": 1.0})
    assert chosen.facts.identity == as_it_comes.facts.identity != other.facts.identity


def test_a_global_batch_is_the_same_however_it_was_configured():
    by_total = facts(gpus=2, scaling="strong", **train_settings(global_batch=20, batch_per_device=10)).identity
    by_device = facts(gpus=2, scaling="strong", **train_settings(batch_per_device=10)).identity
    assert by_total == by_device and by_total["train.global_batch"] == 20


@pytest.mark.parametrize(("value", "same"), [(1.0, 1), (True, True), ([1, 2], "[1, 2]"), ([], None), (0.5, 0.5),
                                             (1e300, 1e300), ("1", "1"), (None, None)])  # fmt: skip
def test_equal_meanings_have_one_value(value, same):
    assert canonical_value(value) == same and type(canonical_value(value)) is type(same)


def test_keys():
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": [1]}) == {"a.b.c": 1, "e": "[1]"}
    assert (
        is_under("train.precision", ["train"]) and is_under("train", ["train"]) and not is_under("trainer", ["train"])
    )
    assert keys_bound_to("hardware")[0] == "hardware" and "machine.gpus" in keys_bound_to("hardware")
    assert keys_bound_to("seed") == ("seed",)
    assert (main_key("model"), main_key("gpus")) == ("model.name", "gpus")


@pytest.mark.parametrize(("key", "reason"), [
    ("train", None), ("train.precision", None), ("gpus", None),
    ("train.precison", "no key 'train.precison'; did you mean 'train.precision'?"),
    ("precision", "no key 'precision'; did you mean 'train.precision'?"),
    ("x", "no key 'x'; known: gpus, train, train.precision"),
])  # fmt: skip
def test_unknown_keys(key, reason):
    assert explain_unknown_key(key, ["train.precision", "gpus"]) == reason
    assert explain_unknown_key("op", ["strategy.options.op"]) == "no key 'op'; did you mean 'strategy.options.op'?"


def test_an_empty_spec_has_facts():
    actual = collect_facts(dataclasses.replace(record(), spec={}))
    assert actual.identity["gpus"] == 1 and "model.name" not in actual.identity


def test_checks_of_options_never_keep_two_runs_from_being_a_pair():
    keys = ("at_least.bucket_cap_mb", "choices.op", "tolerance", "approximate", "exact_with.bits", "max_gpus")
    assert all(is_under(f"strategy.{key}", IGNORED_FACTS) and is_under(f"strategy.{key}", HIDDEN_FACTS) for key in keys)
