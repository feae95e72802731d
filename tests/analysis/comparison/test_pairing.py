"""Repeats as rows, rows without some keys, the closest row."""

import dataclasses
from pathlib import Path

import pytest

from scalebench.analysis.comparison.pairing import (
    describe_differences,
    drop_shared_runs,
    find_closest_row,
    load_compared_runs,
    make_comparison_rows,
    merge_rows,
)
from tests.builders.comparisons import make_failed_run, make_results, make_runs, train_settings, write_folder
from tests.builders.sweeps import write_results


def with_version(side, block_s, version, **changes):
    plain = make_results(side, block_s, **changes)
    return [dataclasses.replace(one, scale=dataclasses.replace(one.scale, framework_version=version)) for one in plain]


def test_repeats_of_one_configuration_are_a_row():
    actual = make_comparison_rows(
        [
            *make_runs("a", [0.1, 0.4]),
            *make_runs("a", [0.1], gpus=2),
            make_failed_run("a"),
            *make_runs("a", [0.1], **train_settings(precision="tf32")),
        ]
    )
    assert [len(row.measured) for row in actual] == [2, 1, 1] and [len(row.unmeasured) for row in actual] == [1, 0, 0]
    assert actual[0].rates == pytest.approx([200.0, 50.0], rel=0.01)
    assert actual[0].rate == pytest.approx(100.0, rel=0.01), "the geometric mean"


def test_a_copy_of_a_run_counts_once():
    write_folder("a", [0.1, 0.1])
    write_results(Path("copies"), make_results("a", [0.1]))
    assert [one.run_id for one in load_compared_runs(["a", "copies"])] == ["a-ddp-1-0", "a-ddp-1-1"]
    assert all(one.record.ranks == [] and one.record.spec == {} for one in load_compared_runs(["a"]))


def test_a_row_has_only_its_latest_framework_version():
    write_results(Path("a"), with_version("a", [0.1, 0.2], "2.8"))
    write_results(Path("a"), with_version("b", [0.4], "2.9"))
    (row,) = make_comparison_rows(load_compared_runs(["a"]))
    assert [one.run_id for one in row.measured] == ["b-ddp-1-0"]
    assert row.notes == ["repeats of 2.8 are left out beside those of 2.9"]


def test_rows_are_merged_only_without_the_seed():
    seeds = [*make_runs("a", [0.1]), *make_runs("a", [0.2], seed=1, run_id="other")]
    (row,) = merge_rows(make_comparison_rows(seeds), ["seed"])[0].values()
    assert len(row.measured) == 2
    steps = [
        *make_runs("a", [0.1], "simulated", options={"step_s": 1.0}),
        *make_runs("a", [0.2], "simulated", run_id="other", options={"step_s": 2.0}),
    ]
    complete, refused = merge_rows(make_comparison_rows(steps), ["strategy.options.step_s"])
    assert (
        complete == {}
        and [reason for _, reason in refused] == ["without strategy.options.step_s several rows are one: 1, 2"] * 2
    )


def test_the_closest_row_has_the_fewest_differing_keys():
    (this_row,) = make_comparison_rows(make_runs("a", [0.1]))
    others = make_comparison_rows(
        [
            *make_runs("b", [0.1], gpus=4, **train_settings(precision="tf32")),
            *make_runs("b", [0.1], **train_settings(batch_per_device=20)),
        ]
    )
    row, keys = find_closest_row(this_row.identity, others, [])
    assert keys == ["train.batch_per_device"]
    assert describe_differences(this_row.identity, row.identity, keys) == "train.batch_per_device: 10 and 20"
    assert find_closest_row(this_row.identity, others[:1], ["train"])[1] == ["gpus"]
    assert find_closest_row(this_row.identity, [], []) is None


def test_only_the_name_of_another_strategy_is_shown():
    (this_row,), others = (
        make_comparison_rows(make_runs("a", [0.1])),
        make_comparison_rows(make_runs("b", [0.1], "horovod_gloo")),
    )
    assert find_closest_row(this_row.identity, others, [])[1] == ["strategy.name"]


def test_many_differences_are_counted():
    one, other = ({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, {"a": 2, "b": 2, "c": 2, "d": 2})
    assert describe_differences(one, other, [*"abcde"]) == "a: 1 and 2; b: 1 and 2; c: 1 and 2; and 2 more"


@pytest.mark.parametrize(
    ("a", "b", "left"),
    [("12", "34", ("12", "34")), ("12", "12", None), ("123", "12", ("3", "12")), ("12", "123", ("12", "3")),
     ("12", "23", ("1", "23"))],
)  # fmt: skip
def test_shared_runs_are_dropped_from_the_row_with_others(a, b, left):
    (one,), (other,) = (
        make_comparison_rows([one for k in ids for one in make_runs("a", [0.1], run_id=k)]) for ids in (a, b)
    )
    actual = drop_shared_runs(one, other)
    kept = None if actual is None else tuple("".join(one.run_id for one in row.measured) for row in actual)
    assert kept == left
    if actual is not None:
        shared = set(a) & set(b)
        assert any("both sides" in note for row in actual for note in row.notes) == bool(shared)
