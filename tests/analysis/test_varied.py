"""What a sweep varied besides devices and strategies, and the rows that differ in nothing else."""

import pytest

from scalebench.analysis.comparison import compare_by
from scalebench.analysis.comparison.rows import load_compared_runs
from scalebench.analysis.load import survey
from scalebench.analysis.scaling_curves import make_curves
from scalebench.analysis.varied import find_contrasts
from scalebench.core.spec import TrainSpec
from scalebench.core.sweep_file import PlannedRun, SweepRecord, write_sweep
from tests.builders import sweeps


def contrasts_of(folder, settings, strategies=("ddp_gloo",)):
    """Return {key: (strategy, devices, values)} of a sweep of these (batch, precision, argument)."""
    runs = []
    for batch, precision, argument in settings:
        for strategy in strategies:
            for gpus in (1, 2):
                run = sweeps.run(strategy, gpus, run_id=f"r{len(runs):03}", train=TrainSpec(batch, precision=precision))
                run.fingerprint = run.run_id
                run.scale.batch_per_device, run.workload.precision = batch, precision
                if argument is not None:
                    run.spec["script"] = {"path": "train.py", "args": {"batch_size": argument}}
                runs.append(run)
    sweeps.write_results(folder, runs)
    found = find_contrasts(make_curves(survey(folder).pooled))
    return {each.key: (each.strategy, each.gpus, [value for value, _ in each.rows]) for each in found}


@pytest.mark.parametrize(("settings", "expected"), [
    ([(16, "float32", None)], {}),
    ([(16, "float32", None), (32, "float32", None)], {"batch": ["16 per device", "32 per device"]}),
    # No two rows differ in one of them only.
    ([(16, "float32", None), (32, "bfloat16", None)], {}),
    ([(16, "float32", None), (32, "float32", None), (16, "bfloat16", None)],
     {"batch": ["16 per device", "32 per device"], "precision": ["float32", "bfloat16"]}),
    # A script's own argument, which its batch follows from.
    ([(8, "float32", 8), (64, "float32", 64)], {"batch_size": ["8", "64"]}),
])  # fmt: skip
def test_rows_that_differ_in_one_key_are_a_contrast(settings, expected, tmp_path):
    strategy = "script" if any(argument for _, _, argument in settings) else "ddp_gloo"
    found = contrasts_of(tmp_path, settings, [strategy])
    assert {key: values for key, (_, _, values) in found.items()} == expected
    name = "materials_cnn" if strategy == "script" else strategy  # a program's model is called as its file
    assert all(part[:2] == (name, 2) for part in found.values())


@pytest.mark.parametrize(("question", "keys"), [
    (None, ["batch", "precision"]), ("train.precision", ["precision"]), ("train.batch_per_device", ["batch"]),
    ("gpus", []),
])  # fmt: skip
def test_a_sweep_may_name_its_question(question, keys, tmp_path):
    write_sweep(SweepRecord("", [], "", 0, 0.0, question=question), tmp_path)
    settings = [(16, "float32", None), (32, "float32", None), (16, "bfloat16", None)]
    assert [*contrasts_of(tmp_path, settings)] == keys


def test_a_question_may_be_a_key_of_many_words(tmp_path):
    """sweep=transport varies variables of the environment."""
    write_sweep(SweepRecord("", [], "", 0, 0.0, question="strategy.options"), tmp_path)
    assert [*contrasts_of(tmp_path, [(8, "float32", 8), (64, "float32", 64)])] == ["batch_size"]


def test_controls_answer_nothing(tmp_path):
    assert contrasts_of(tmp_path, [(16, "float32", None), (32, "float32", None)], ["independent_torch"]) == {}


def test_the_first_value_is_that_of_the_sweep_however_its_folders_are_sorted(tmp_path):
    """32 was given before 16; its runs were shuffled into folders 10 to 13, which stand before 2 as text."""
    contrasts_of(tmp_path, [(16, "float32", None)] + [(32 * 2**k, "float32", None) for k in (1, 2, 3, 4, 5, 0)])
    record = SweepRecord("", [], "", 0, 0.0)
    record.runs = [PlannedRun(number, "", "", 0, place=number // 2 + 1) for number in range(12)]
    record.runs += [PlannedRun(number, "", "", 0, place=0) for number in (12, 13)]
    write_sweep(record, tmp_path)
    (contrast,) = find_contrasts(make_curves(survey(tmp_path).pooled))
    assert [value for value, _ in contrast.rows][:2] == ["32 per device", "16 per device"]
    by = compare_by(load_compared_runs([tmp_path]), "train.batch_per_device")
    assert {each.a for each in by.contrasts} == {"32"}


@pytest.mark.parametrize(("key", "values", "words"), [
    ("hardware.cpus_per_device", (1, 2), ["cpus_per_device=1", "cpus_per_device=2"]),
    ("hardware.nodes_share_cores", (True, False), ["nodes_share_cores=true", "nodes_share_cores=false"]),
    ("dataset.size", (600, 1200), ["size=600", "size=1200"]),
    ("measure.block_s", (0.05, 0.1), ["block_s=0.05", "block_s=0.1"]),
])  # fmt: skip
def test_no_two_rows_are_called_the_same(key, values, words, tmp_path):
    """Keys without a column of their own are named where rows differ in nothing else, and compared."""
    group, _, name = key.partition(".")
    runs = [sweeps.run("ddp_gloo", 2, run_id=f"r{value}") for value in values]
    for run, value in zip(runs, values, strict=True):
        run.fingerprint = run.run_id
        run.spec[group] = {**run.spec[group], name: value}
    sweeps.write_results(tmp_path, runs)
    pooled = survey(tmp_path).pooled
    assert pooled["other_settings"].tolist() == words
    (contrast,) = find_contrasts(make_curves(pooled))
    assert contrast.key == name and [value for value, _ in contrast.rows] == [text.partition("=")[2] for text in words]
