"""Facts of runs, the rows that repeats make, their labels and differences, and the values of a key."""

import dataclasses
from pathlib import Path

import pytest

from scalebench.analysis.comparison import compare_by
from scalebench.analysis.comparison import rows as rows_of
from scalebench.analysis.comparison.facts import canonical_value, collect_facts, flatten
from scalebench.core.errors import InputError
from scalebench.core.machine.gpus import Gpu
from scalebench.core.result import MonitorRecord
from scalebench.core.spec import MeasureSpec
from scalebench.core.sweep_file import PlannedRun, SweepRecord, write_sweep
from tests.builders.comparisons import (
    machine_settings,
    make_failed_run,
    make_results,
    make_runs,
    train_settings,
    write_folder,
)
from tests.builders.runs import MODEL, record, simulated_config
from tests.builders.sweeps import write_results

CONFIG = simulated_config()
GPU = Gpu(0, "Tesla K80", None, 2**33, 875, 2505, 149.0, 0, None)


def hardware(**changes):
    return {"hardware": dataclasses.replace(CONFIG.hardware, **changes)}


def model(**changes):
    return {"model": dataclasses.replace(MODEL, **changes)}


def rows(*runs, without=()):
    return list(rows_of.make_side("A", [run for several in runs for run in several], without).rows.values())


def row(side, **changes):
    (actual,) = rows(make_runs(side, [0.1], **changes))
    return actual


def facts(**changes):
    return collect_facts(record(**changes))


@pytest.mark.parametrize(("key", "changes"), [
    ("model.name", model(name="mlp")), ("model.options.depth", model(options={"depth": 2})),
    ("dataset.feed", {"dataset": dataclasses.replace(CONFIG.dataset, feed="device")}), ("seed", {"seed": 1}),
    ("train.batch_per_device", train_settings(batch_per_device=20)),
    ("hardware.name", hardware(name="gpu2")), ("hardware.bind", hardware(bind="none")),
    ("hardware.environment.NCCL_P2P_DISABLE", hardware(environment={"NCCL_P2P_DISABLE": "1"})),
    ("machine.cpu_model", machine_settings(cpu_model="another")), ("machine.gpus", machine_settings(gpus=[GPU])),
])  # fmt: skip
def test_facts_of_the_identity_must_agree(key, changes):
    assert facts().identity.get(key) != facts(**changes).identity.get(key)


@pytest.mark.parametrize(("key", "changes"), [
    ("machine.hostname", machine_settings(hostname="node2")), ("machine.git_commit", machine_settings(git_commit="ab")),
    ("versions.torch", machine_settings(versions={"torch": "2.9"})),
    ("environment.OMP_NUM_THREADS", machine_settings(environment={"OMP_NUM_THREADS": "4"})),
    ("hardware.memory_bytes", hardware(memory_bytes=2**33)), ("measure.min_s", {"measure": MeasureSpec(min_s=1.0)}),
    (None, {**model(description="told better", sources=["a paper"]), "repeat": 3, "run_id": "x", "resume": True}),
])  # fmt: skip
def test_other_facts_may_differ_and_descriptions_and_repeats_are_none(key, changes):
    before, after = facts(), facts(**changes)
    assert before.identity == after.identity
    assert (before.other == after.other) if key is None else (before.other.get(key) != after.other.get(key))


def test_facts_of_gpus():
    result = record(**machine_settings(cpu_model="another"))
    result.scale.device = "cuda"
    assert "machine.cpu_model" not in collect_facts(result).identity, "it may differ beside GPUs"
    for gpus, limit in (([GPU, dataclasses.replace(GPU, power_limit_w=100.0)], "[149.0, 100.0]"), ([GPU, GPU], "149")):
        assert facts(**machine_settings(gpus=gpus)).other["machine.gpu.power_limit_w"] == limit


def test_what_means_the_same_is_the_same():
    as_it_comes, chosen, other = (row("a", options=options).identity for options in
                                  (None, {"bucket_cap_mb": 25.0}, {"bucket_cap_mb": 1.0}))  # fmt: skip
    assert chosen == as_it_comes != other
    by_total, by_device = (facts(gpus=2, scaling="strong", **train_settings(batch_per_device=10, **more)).identity
                           for more in ({"global_batch": 20}, {}))  # fmt: skip
    assert by_total == by_device and by_total["train.global_batch"] == "20"
    for value, same in ((1.0, 1), (True, True), ([1, 2], "[1, 2]"), ([], None), (0.5, 0.5), (1e300, 1e300)):
        assert canonical_value(value) == same and type(canonical_value(value)) is type(same)
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": [1]}) == {"a.b.c": 1, "e": "[1]"}


def test_repeats_of_one_configuration_are_a_row_and_a_copy_of_a_run_counts_once():
    tf32 = make_runs("a", [0.1], **train_settings(precision="tf32"))
    actual = rows(make_runs("a", [0.1, 0.4]), make_runs("a", [0.1], gpus=2), [make_failed_run("a")], tf32)
    assert [len(row.measured) for row in actual] == [2, 1, 1] and [len(row.unmeasured) for row in actual] == [1, 0, 0]
    assert actual[0].rates == pytest.approx([200.0, 50.0], rel=0.01)
    assert actual[0].rate == pytest.approx(100.0, rel=0.01), "the geometric mean"
    write_folder("a", [0.1, 0.1])
    write_results(Path("copies"), make_results("a", [0.1]))
    assert [one.run_id for one in rows_of.load_compared_runs(["a", "copies"])] == ["a-ddp-1-0", "a-ddp-1-1"]
    assert all(one.record.ranks == [] and one.record.spec == {} for one in rows_of.load_compared_runs(["a"]))


def test_a_row_has_only_its_latest_framework_version():
    for side, block_s, version in (("a", [0.1, 0.2], "2.8"), ("b", [0.4], "2.9")):
        results = make_results(side, block_s)
        for result in results:
            result.scale.framework_version = version
        write_results(Path("a"), results)
    (row,) = rows(rows_of.load_compared_runs(["a"]))
    assert (row.run_ids, row.notes) == (["b-ddp-1-0"], ["repeats of 2.8 are left out beside those of 2.9"])


def test_rows_are_merged_only_without_the_seed():
    (row,) = rows(make_runs("a", [0.1]), make_runs("a", [0.2], seed=1, run_id="other"), without=["seed"])
    assert len(row.measured) == 2
    key = "strategy.options.step_s"
    steps = [one for s in (1, 2) for one in make_runs("a", [s], "simulated", run_id=str(s), options={"step_s": s})]
    side = rows_of.make_side("A", steps, [key])
    assert side.rows == {}
    assert [reason for _, reason in side.refused] == [f"without {key} several rows are one: 1, 2"] * 2


@pytest.mark.parametrize(
    ("a", "b", "left"),
    [("12", "34", ("12", "34")), ("12", "12", None), ("123", "12", ("3", "12")), ("12", "123", ("12", "3")),
     ("12", "23", ("1", "23"))],
)  # fmt: skip
def test_shared_runs_are_dropped_from_the_row_with_others(a, b, left):
    (one,), (other,) = (rows(*(make_runs("a", [0.1], run_id=name) for name in names)) for names in (a, b))
    actual = rows_of.drop_shared_runs(one, other)
    assert left == (actual and tuple("".join(row.run_ids) for row in actual))
    notes = [note for row in actual or () for note in row.notes]
    assert any("both sides" in note for note in notes) == (left is not None and bool(set(a) & set(b)))


def test_differences_are_counted_over_the_pairs():
    new = machine_settings(driver_version="2")
    pairs = [(row("a"), row("b", **new)), (row("a", gpus=2), row("b", gpus=2, **new)), (row("a"), row("b"))]
    assert rows_of.find_differences(pairs, None) == [("machine.driver_version", "none", "2", 2)]
    (both,) = rows(make_runs("a", [0.1]), make_runs("b", [0.1], **machine_settings(git_commit="abc")))
    other = row("c", **machine_settings(git_commit="def"))
    assert rows_of.find_differences([(both, other)], None) == [("machine.git_commit", "none or abc", "def", 1)]
    for clock, reported in ((1405.0, []), (1300.0, [("sm_clock_mhz_mean", "1400", "1300", 1)]), (None, [])):
        a, b = (row("a", monitor=MonitorRecord(sm_clock_mhz_mean=mhz)) for mhz in (1400.0, clock))
        assert rows_of.find_differences([(a, b)], None) == reported, "from one per cent on"


def names(runs, key, base=None):
    return list(rows_of.group_by_value(runs, key, base))


def test_strategies_of_one_name_differ_by_their_options_and_the_base_goes_first():
    runs = [
        *make_runs("a", [0.1, 0.1], "horovod_gloo"), *make_runs("a", [0.1]),
        *make_runs("b", [0.1], options={"bucket_cap_mb": 1.0}),
    ]  # fmt: skip
    values = rows_of.group_by_value(runs, "strategy", None)
    assert list(values) == ["ddp bucket_cap_mb=1", "ddp bucket_cap_mb=25", "horovod_gloo"]
    assert [one.run_id for one in values["horovod_gloo"]] == ["a-horovod_gloo-1-0", "a-horovod_gloo-1-1"]
    for base in values:
        assert names(runs, "strategy", base) == [base, *(name for name in values if name != base)]
    message = r"^--base: no value of strategy 'horovod_glo'; did you mean 'horovod_gloo'\?$"
    with pytest.raises(InputError, match=message):
        names(runs, "strategy", "horovod_glo")


def test_the_base_is_the_first_value_that_the_sweep_was_given():
    """gpus=10,2 was swept, in random order, and gpus=1 was added as their baseline."""
    places = {1: None, 2: 1, 10: 0}
    sweep = SweepRecord("", [], "", 0, 0.0)
    for number, (gpus, place) in enumerate(places.items()):
        write_folder("sweep", [0.1 / gpus], gpus=gpus, side="a")
        sweep.runs.append(PlannedRun(number, "", "", 0, place=place))
    assert names(rows_of.load_compared_runs(["sweep"]), "gpus") == ["1", "2", "10"], (
        "the natural order, without a record"
    )
    write_sweep(sweep, Path("sweep"))
    runs = rows_of.load_compared_runs(["sweep"])
    assert names(runs, "gpus") == ["10", "2", "1"] and names(runs, "gpus", "2") == ["2", "10", "1"]
    assert [(each.a, each.b) for each in compare_by(runs, "gpus").contrasts] == [("10", "2"), ("10", "1")]


@pytest.mark.parametrize(
    ("key", "values"), [("versions.torch", ["2.8", "2.9"]), ("versions", ["none torch=2.8", "none torch=2.9"]),
                        ("machine.cpus", ["2"]), ("strategy.options.bucket_cap_mb", ["25", "none"])],
)  # fmt: skip
def test_other_facts_can_be_compared_too(key, values):
    runs = [run for strategy, version in (("ddp", "2.8"), ("bare_torch", "2.9"))
            for run in make_runs("a", [0.1], strategy, **machine_settings(versions={"torch": version}))]  # fmt: skip
    assert names(runs, key) == values


def test_chosen_devices_are_named_with_their_connection():
    machine = machine_settings(topology=[["X", "PIX", "PHB"], ["PIX", "X", "PHB"], ["PHB", "PHB", "X"]])
    runs = [run for ids in ([0, 1], [0, 2])
            for run in make_runs("a", [0.1], gpus=2, **hardware(device_ids=ids), **machine)]  # fmt: skip
    assert names(runs, "hardware.device_ids", "[0, 2]") == ["[0, 2] PHB", "[0, 1] PIX"]
