"""Labels of rows, the differences between them, and the values of a key with their names and order."""

import dataclasses
from pathlib import Path

import pytest

from scalebench.analysis.comparison.labels import Labels, find_differences, find_key_values
from scalebench.analysis.comparison.pairing import make_compared_run, make_comparison_rows
from scalebench.core.errors import InputError
from scalebench.core.result import MonitorRecord
from scalebench.core.spec import HardwareSpec
from tests.builders.comparisons import machine_settings, make_results, make_runs, train_settings
from tests.builders.runs import MODEL, simulated_config

OTHER = {"model": dataclasses.replace(MODEL, name="mlp", input_shape=[3, 3], outputs=7)}


def labels(*actual, without=()):
    reported = Labels(actual, without)
    return [reported.of(row) for row in actual]


def test_labels_have_the_fewest_keys_that_distinguish_rows():
    """What goes with the model, its shape and outputs, is not told beside its name."""
    actual = make_comparison_rows(
        [
            *make_runs("a", [0.1]),
            *make_runs("a", [0.1], **OTHER),
            *make_runs("a", [0.1], **train_settings(precision="tf32")),
        ]
    )
    assert labels(*actual) == [
        {"model": "materials_cnn", "strategy": "ddp", "gpus": "1", "precision": "float32"},
        {"model": "mlp", "strategy": "ddp", "gpus": "1", "precision": "float32"},
        {"model": "materials_cnn", "strategy": "ddp", "gpus": "1", "precision": "tf32"},
    ]


def test_labels_have_options_that_differ():
    actual = make_comparison_rows(
        [
            *make_runs("a", [0.1], options={"bucket_cap_mb": 1.0}),
            *make_runs("a", [0.1]),
            *make_runs("a", [0.1], "bare_torch"),
        ]
    )
    assert [one.get("bucket_cap_mb") for one in labels(*actual)] == ["1", "25", "none"]
    assert "bucket_cap_mb" not in labels(*actual[1:])[0]


def test_the_compared_key_is_part_of_no_label():
    actual = make_comparison_rows([*make_runs("a", [0.1]), *make_runs("a", [0.1], gpus=2)])
    assert labels(*actual, without=("gpus",)) == [{"strategy": "ddp"}] * 2


def row(side, **changes):
    (actual,) = make_comparison_rows(make_runs(side, [0.1], **changes))
    return actual


def test_differences_are_counted_over_the_pairs():
    new = machine_settings(driver_version="2")
    pairs = [(row("a"), row("b", **new)), (row("a", gpus=2), row("b", gpus=2, **new)), (row("a"), row("b"))]
    assert find_differences(pairs, None) == [("machine.driver_version", "none", "2", 2)]


def test_differing_repeats_of_one_side_are_all_shown():
    (both,) = make_comparison_rows(
        [*make_runs("a", [0.1]), *make_runs("b", [0.1], **machine_settings(git_commit="abc"))]
    )
    assert find_differences([(both, row("c", **machine_settings(git_commit="def")))], None) == [
        ("machine.git_commit", "none or abc", "def", 1)
    ]


def test_the_compared_key_and_options_of_another_strategy_are_no_differences():
    ddp, bare = row("a"), row("b", strategy="bare_torch")
    assert find_differences([(ddp, bare)], "strategy") == []
    assert find_differences([(ddp, bare)], None) == [("strategy.name", "ddp", "bare_torch", 1)]
    bare.identity["strategy.launcher"] = "mpi"
    assert find_differences([(ddp, bare)], None) == [("strategy.name", "ddp", "bare_torch", 1)], "it follows from that"
    one = row("b", options={"bucket_cap_mb": 1.0})
    assert find_differences([(ddp, one)], "strategy") == [("strategy.options.bucket_cap_mb", "25", "1", 1)]
    newer = row("b", options={"of_a_later_version": 1})
    assert find_differences([(ddp, newer)], None) == [("strategy.options.of_a_later_version", "none", "1", 1)]


@pytest.mark.parametrize(
    ("clock", "reported"), [(1405.0, []), (1300.0, [("sm_clock_mhz_mean", "1400", "1300", 1)]), (None, [])]
)
def test_clocks_differ_from_one_per_cent_on(clock, reported):
    a, b = (
        row("a", monitor=MonitorRecord(sm_clock_mhz_mean=1400.0)),
        row("b", monitor=MonitorRecord(sm_clock_mhz_mean=clock)),
    )
    assert find_differences([(a, b)], None) == reported


def names(actual, key, base=None):
    return [value.name for value in find_key_values(actual, key, base)]


STRATEGIES = [
    *make_runs("a", [0.1, 0.1], "horovod_gloo"),
    *make_runs("a", [0.1]),
    *make_runs("b", [0.1], options={"bucket_cap_mb": 1.0}),
]


def test_strategies_of_one_name_differ_by_their_options():
    actual = find_key_values(STRATEGIES, "strategy", None)
    assert [value.name for value in actual] == ["ddp bucket_cap_mb=1", "ddp bucket_cap_mb=25", "horovod_gloo"]
    assert actual[2].run_ids == {"a-horovod_gloo-1-0", "a-horovod_gloo-1-1"}


@pytest.mark.parametrize("base", ["horovod_gloo", "ddp bucket_cap_mb=25", "ddp bucket_cap_mb=1"])
def test_the_base_goes_first(base):
    assert names(STRATEGIES, "strategy", base)[0] == base
    assert sorted(names(STRATEGIES, "strategy", base)) == names(STRATEGIES, "strategy")


def test_an_unknown_base_is_an_error():
    with pytest.raises(
        InputError, match=r"^--base: no value of strategy 'horovod_glo'; did you mean 'horovod_gloo'\?$"
    ):
        find_key_values(STRATEGIES, "strategy", "horovod_glo")


def test_numbers_are_in_natural_order():
    actual = [one for gpus in (10, 2, 1) for one in make_runs("a", [0.1], gpus=gpus)]
    assert names(actual, "gpus") == ["1", "2", "10"] and names(actual, "gpus", "10") == ["10", "1", "2"]


def test_the_first_folder_goes_first():
    later = [dataclasses.replace(one, side=1) for one in make_runs("b", [0.1], **train_settings(precision="bfloat16"))]
    assert names([*later, *make_runs("a", [0.1])], "train.precision") == ["float32", "bfloat16"]


def test_machines_of_one_name_differ_by_their_processor():
    results = [*make_results("a", [0.1]), *make_results("b", [0.1], **machine_settings(cpu_model="another"))]
    for result in results:
        result.scale.device = "cpu"
    one, other = ([make_compared_run(result, Path(result.run_id))] for result in results)
    assert names([*one, *other], "hardware") == ["cpu cpu_model=a processor", "cpu cpu_model=another"]
    renamed = make_runs("b", [0.1], hardware=HardwareSpec("big", devices="cpu", gpus_per_node=2))
    assert names([*one, *renamed], "hardware") == ["big", "cpu"]


@pytest.mark.parametrize(
    ("key", "values"), [("versions.torch", ["2.8", "2.9"]), ("versions", ["none torch=2.8", "none torch=2.9"]),
                        ("machine.cpus", ["2"]), ("strategy.options.bucket_cap_mb", ["25"])],
)  # fmt: skip
def test_other_facts_can_be_compared_too(key, values):
    actual = [
        *make_runs("a", [0.1], **machine_settings(versions={"torch": "2.8"})),
        *make_runs("b", [0.1], **machine_settings(versions={"torch": "2.9"})),
    ]
    assert names(actual, key) == values


def test_a_run_without_the_key_has_the_value_none():
    actual = [*make_runs("a", [0.1]), *make_runs("b", [0.1], "bare_torch")]
    assert names(actual, "strategy.options.bucket_cap_mb") == ["25", "none"]


def test_chosen_devices_are_named_with_their_connection():
    machine = machine_settings(topology=[["X", "PIX", "PHB"], ["PIX", "X", "PHB"], ["PHB", "PHB", "X"]])
    runs = []
    for side, ids in (("a", [0, 1]), ("b", [0, 2])):
        hardware = dataclasses.replace(simulated_config().hardware, device_ids=ids)
        runs += make_runs(side, [0.1], gpus=2, hardware=hardware, **machine)
    assert names(runs, "hardware.device_ids", "[0, 2]") == ["[0, 2] PHB", "[0, 1] PIX"]
