"""The values of a key in a set of runs: their names and their order."""

from __future__ import annotations

import dataclasses

import pytest

from scalebench.analysis.comparison.labels import find_key_values
from scalebench.analysis.comparison.pairing import ComparedRun
from scalebench.core.errors import InputError
from scalebench.core.spec import HardwareSpec
from tests.builders.comparisons import machine_settings, make_runs, train_settings


def names(actual: list[ComparedRun], key: str, base: str | None = None) -> list[str]:
    return [value.name for value in find_key_values(actual, key, base)]


STRATEGIES = [
    *make_runs("a", [0.1, 0.1], "horovod_gloo"),
    *make_runs("a", [0.1]),
    *make_runs("b", [0.1], options={"bucket_cap_mb": 1.0}),
]


def test_strategies_of_one_name_differ_by_their_options() -> None:
    actual = find_key_values(STRATEGIES, "strategy", None)
    assert [value.name for value in actual] == ["ddp bucket_cap_mb=1", "ddp bucket_cap_mb=25", "horovod_gloo"]
    assert actual[2].run_ids == {"a-horovod_gloo-1-0", "a-horovod_gloo-1-1"}


@pytest.mark.parametrize("base", ["horovod_gloo", "ddp bucket_cap_mb=25", "ddp bucket_cap_mb=1"])
def test_the_base_goes_first(base: str) -> None:
    assert names(STRATEGIES, "strategy", base)[0] == base
    assert sorted(names(STRATEGIES, "strategy", base)) == names(STRATEGIES, "strategy")


def test_an_unknown_base_is_an_error() -> None:
    with pytest.raises(
        InputError, match=r"^--base: no value of strategy 'horovod_glo'; did you mean 'horovod_gloo'\?$"
    ):
        find_key_values(STRATEGIES, "strategy", "horovod_glo")


def test_numbers_are_in_natural_order() -> None:
    actual = [one for gpus in (10, 2, 1) for one in make_runs("a", [0.1], gpus=gpus)]
    assert names(actual, "gpus") == ["1", "2", "10"] and names(actual, "gpus", "10") == ["10", "1", "2"]


def test_the_first_folder_goes_first() -> None:
    later = [dataclasses.replace(one, side=1) for one in make_runs("b", [0.1], **train_settings(precision="bfloat16"))]
    assert names([*later, *make_runs("a", [0.1])], "train.precision") == ["float32", "bfloat16"]


def test_machines_of_one_name_differ_by_their_processor() -> None:
    one, other = make_runs("a", [0.1]), make_runs("b", [0.1], **machine_settings(cpu_model="another"))
    assert names([*one, *other], "hardware") == ["cpu cpu_model=a processor", "cpu cpu_model=another"]
    renamed = make_runs("b", [0.1], hardware=HardwareSpec("big", devices="cpu", gpus_per_node=2))
    assert names([*one, *renamed], "hardware") == ["big", "cpu"]


@pytest.mark.parametrize(
    ("key", "values"), [("versions.torch", ["2.8", "2.9"]), ("versions", ["none torch=2.8", "none torch=2.9"]),
                        ("machine.cpus", ["2"]), ("strategy.options.bucket_cap_mb", ["25"])],
)  # fmt: skip
def test_other_facts_can_be_compared_too(key: str, values: list[str]) -> None:
    actual = [
        *make_runs("a", [0.1], **machine_settings(versions={"torch": "2.8"})),
        *make_runs("b", [0.1], **machine_settings(versions={"torch": "2.9"})),
    ]
    assert names(actual, key) == values


def test_a_run_without_the_key_has_the_value_none() -> None:
    actual = [*make_runs("a", [0.1]), *make_runs("b", [0.1], "bare_torch")]
    assert names(actual, "strategy.options.bucket_cap_mb") == ["25", "none"]
