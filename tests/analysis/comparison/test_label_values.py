"""The values of a key in a set of runs: their names and their order."""

from __future__ import annotations

import dataclasses

import pytest

from scalebench.analysis.comparison.labels import values_of
from scalebench.analysis.comparison.pairing import Launch
from scalebench.core.errors import InputError
from scalebench.core.spec import HardwareSpec
from tests.builders.comparisons import machine, made, train


def names(found: list[Launch], key: str, base: str | None = None) -> list[str]:
    return [value.name for value in values_of(found, key, base)]


STRATEGIES = [
    *made("a", [0.1, 0.1], "horovod_gloo"),
    *made("a", [0.1]),
    *made("b", [0.1], options={"bucket_cap_mb": 1.0}),
]


def test_strategies_of_one_name_are_told_apart_by_their_options() -> None:
    found = values_of(STRATEGIES, "strategy", None)
    assert [value.name for value in found] == ["ddp bucket_cap_mb=1", "ddp bucket_cap_mb=25", "horovod_gloo"]
    assert found[2].run_ids == {"a-horovod_gloo-1-0", "a-horovod_gloo-1-1"}


@pytest.mark.parametrize("base", ["horovod_gloo", "ddp bucket_cap_mb=25", "ddp bucket_cap_mb=1"])
def test_the_base_goes_first(base: str) -> None:
    assert names(STRATEGIES, "strategy", base)[0] == base
    assert sorted(names(STRATEGIES, "strategy", base)) == names(STRATEGIES, "strategy")


def test_a_base_that_is_none_of_them() -> None:
    with pytest.raises(
        InputError, match=r"^--base: no value of strategy 'horovod_glo'; did you mean 'horovod_gloo'\?$"
    ):
        values_of(STRATEGIES, "strategy", "horovod_glo")


def test_numbers_in_their_order() -> None:
    found = [one for gpus in (10, 2, 1) for one in made("a", [0.1], gpus=gpus)]
    assert names(found, "gpus") == ["1", "2", "10"] and names(found, "gpus", "10") == ["10", "1", "2"]


def test_the_first_folder_goes_first() -> None:
    later = [dataclasses.replace(one, side=1) for one in made("b", [0.1], **train(precision="bfloat16"))]
    assert names([*later, *made("a", [0.1])], "train.precision") == ["float32", "bfloat16"]


def test_machines_of_one_name() -> None:
    one, other = made("a", [0.1]), made("b", [0.1], **machine(cpu_model="another"))
    assert names([*one, *other], "hardware") == ["cpu cpu_model=a processor", "cpu cpu_model=another"]
    renamed = made("b", [0.1], hardware=HardwareSpec("big", devices="cpu", gpus_per_node=2))
    assert names([*one, *renamed], "hardware") == ["big", "cpu"]


@pytest.mark.parametrize(
    ("key", "values"), [("versions.torch", ["2.8", "2.9"]), ("versions", ["none torch=2.8", "none torch=2.9"]),
                        ("machine.cpus", ["2"]), ("strategy.options.bucket_cap_mb", ["25"])],
)  # fmt: skip
def test_what_may_differ_can_be_compared_too(key: str, values: list[str]) -> None:
    found = [
        *made("a", [0.1], **machine(versions={"torch": "2.8"})),
        *made("b", [0.1], **machine(versions={"torch": "2.9"})),
    ]
    assert names(found, key) == values


def test_without_the_key_a_run_has_none() -> None:
    found = [*made("a", [0.1]), *made("b", [0.1], "bare_torch")]
    assert names(found, "strategy.options.bucket_cap_mb") == ["25", "none"]
