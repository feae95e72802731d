"""Launches as rows, rows without some keys, the closest row."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalebench.analysis.comparison.pairing import apart, closest, launches, merged, rows, told, without_shared
from scalebench.core.errors import InputError
from scalebench.core.result import Result
from tests.builders.comparisons import failed, folder, made, results, train
from tests.builders.sweeps import write


def with_version(side: str, block_s: list[float], version: str, **changes: Any) -> list[Result]:
    plain = results(side, block_s, **changes)
    return [dataclasses.replace(one, scale=dataclasses.replace(one.scale, framework_version=version)) for one in plain]


def test_launches_of_one_configuration_are_a_row() -> None:
    found = rows(
        [*made("a", [0.1, 0.4]), *made("a", [0.1], gpus=2), failed("a"), *made("a", [0.1], **train(precision="tf32"))]
    )
    assert [len(row.measured) for row in found] == [2, 1, 1] and [len(row.others) for row in found] == [1, 0, 0]
    assert found[0].rates == pytest.approx([200.0, 50.0], rel=0.01)
    assert found[0].rate == pytest.approx(100.0, rel=0.01), "the geometric mean"


def test_a_copy_of_a_run_is_one_launch() -> None:
    folder("a", [0.1, 0.1])
    write(Path("copies"), results("a", [0.1]))
    assert [one.run_id for one in launches(["a", "copies"])] == ["a-ddp-1-0", "a-ddp-1-1"]
    assert all(one.record.ranks == [] and one.record.spec == {} for one in launches(["a"]))


def test_figures_of_the_latest_version_only() -> None:
    write(Path("a"), with_version("a", [0.1, 0.2], "2.8"))
    write(Path("a"), with_version("b", [0.4], "2.9"))
    (row,) = rows(launches(["a"]))
    assert [one.run_id for one in row.measured] == ["b-ddp-1-0"]
    assert row.notes == ["launches of 2.8 are left out beside those of 2.9"]


def test_rows_become_one_without_the_seed_only() -> None:
    seeds = [*made("a", [0.1]), *made("a", [0.2], seed=1, run_id="other")]
    (row,) = merged(rows(seeds), ["seed"])[0].values()
    assert len(row.measured) == 2
    steps = [
        *made("a", [0.1], "simulated", options={"step_s": 1.0}),
        *made("a", [0.2], "simulated", run_id="other", options={"step_s": 2.0}),
    ]
    whole, refused = merged(rows(steps), ["strategy.options.step_s"])
    assert (
        whole == {}
        and [reason for _, reason in refused] == ["without strategy.options.step_s several rows are one: 1, 2"] * 2
    )


def test_the_closest_row_and_in_what_it_differs() -> None:
    (mine,) = rows(made("a", [0.1]))
    others = rows(
        [*made("b", [0.1], gpus=4, **train(precision="tf32")), *made("b", [0.1], **train(batch_per_device=20))]
    )
    row, keys = closest(mine.identity, others, [])
    assert keys == ["train.batch_per_device"]
    assert apart(mine.identity, row.identity, keys) == "train.batch_per_device: 10 and 20"
    assert closest(mine.identity, others[:1], ["train"])[1] == ["gpus"]
    assert closest(mine.identity, [], []) is None


def test_of_another_strategy_its_name_says_enough() -> None:
    (mine,), others = rows(made("a", [0.1])), rows(made("b", [0.1], "horovod_gloo"))
    assert closest(mine.identity, others, [])[1] == ["strategy.name"]


def test_many_differences_are_counted() -> None:
    one, other = ({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, {"a": 2, "b": 2, "c": 2, "d": 2})
    assert apart(one, other, [*"abcde"]) == "a: 1 and 2; b: 1 and 2; c: 1 and 2; and 2 more"


@pytest.mark.parametrize(("value", "words"), [(None, "none"), (True, "true"), (1, "1"), (0.5, "0.5"), ("x", "x")])
def test_values_in_words(value: Any, words: str) -> None:
    assert told(value) == words


@pytest.mark.parametrize(
    ("mine", "theirs", "left"),
    [("12", "34", ("12", "34")), ("12", "12", None), ("123", "12", ("3", "12")), ("12", "123", ("12", "3")),
     ("12", "23", ("1", "23"))],
)  # fmt: skip
def test_runs_that_both_hold(mine: str, theirs: str, left: tuple[str, str] | None) -> None:
    (one,), (other,) = (rows([one for k in ids for one in made("a", [0.1], run_id=k)]) for ids in (mine, theirs))
    found = without_shared(one, other)
    kept = None if found is None else tuple("".join(one.run_id for one in row.measured) for row in found)
    assert kept == left
    if found is not None:
        shared = set(mine) & set(theirs)
        assert any("both sides" in note for row in found for note in row.notes) == bool(shared)


def test_files_that_cannot_be_read() -> None:
    folder("a", [0.1])
    with pytest.raises(InputError, match=r"^no result.json at or below nowhere; "):
        launches(["nowhere"])
    text = Path("a/0/result.json").read_text()
    Path("a/0/result.json").write_text(text[: len(text) // 2])
    with pytest.raises(InputError, match=r"^a/0/result.json is no whole JSON file"):
        launches(["a"])
    Path("a/0/result.json").write_text(text.replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(InputError, match=r"^a/0/result.json has schema version 2"):
        launches(["a"])
