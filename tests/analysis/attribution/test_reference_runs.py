"""One-device runs at the local batch of a strong-scaling run: equal in everything but the batch."""

import dataclasses

import pytest

from scalebench.analysis.attribution.reference_runs import LocalBaselines
from tests.builders.attribution_runs import one_device_run, strong_scaling_runs, two_device_run


def find(result, *others):
    local = LocalBaselines([result, *others])
    return local.find_bare(result), local.find_self(result)


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_runs_of_either_scaling_are_baselines(scaling):
    bare, own = (one_device_run(name, 0.01, 10, scaling=scaling) for name in ("bare_torch", "ddp"))
    result, full, *_ = strong_scaling_runs()
    actual = find(result, full, bare, own)
    assert actual[0] is bare and actual[1] is own


def changed_train(**settings):
    bare = one_device_run("bare_torch", 0.01)
    return dataclasses.replace(bare, spec={**bare.spec, "train": {**bare.spec["train"], **settings}})


@pytest.mark.parametrize(
    "other",
    [
        one_device_run("bare_torch", 0.01, 5),
        one_device_run("ddp", 0.01, 20),
        one_device_run("bare_torch", 0.01, seed=1),
        dataclasses.replace(one_device_run("ddp", 0.01), status="failed"),
        changed_train(precision="bfloat16"),
    ],
    ids=["smaller batch", "larger batch", "seed", "failed", "precision"],
)
def test_runs_that_differ_in_more_are_no_baselines(other):
    assert find(two_device_run("strong"), other) == (None, None)


def test_a_batch_that_is_no_integer_has_no_baseline():
    result = two_device_run("strong")
    result = dataclasses.replace(result, scale=dataclasses.replace(result.scale, global_batch=21))
    assert find(result, one_device_run("bare_torch", 0.01), one_device_run("ddp", 0.01)) == (None, None)


def test_the_baseline_of_the_same_repeat_is_nearest():
    first, second = (one_device_run("bare_torch", 0.01, repeat=repeat) for repeat in (0, 1))
    assert find(two_device_run("strong", repeat=1), first, second)[0] is second
