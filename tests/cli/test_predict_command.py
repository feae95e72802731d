"""`scalebench predict`: its tables and sentences, its CSV, and what it refuses."""

import csv
import dataclasses
import io
from pathlib import Path

import pytest

from scalebench.__main__ import main
from tests.builders import sweeps
from tests.builders.runs import MACHINE


@pytest.fixture(autouse=True)
def folder():
    """Two strategies on one, two and four devices."""
    sweeps.sweep(Path("a"), repeats=3)
    sweeps.sweep(Path("one"), ("bare_torch", "ddp_gloo"), (1,))
    sweeps.sweep(Path("bare"), ("bare_torch",), (1,))
    sweeps.write_results(Path("failed"), [sweeps.failed_run()])
    return Path("a")


PRINTED = {
    "--gpus 8,64": ["Predicted: materials_cnn", "ddp_gloo keeps 80 %", "64 devices: ", "times one (ddp_gloo)."],
    "--most 100_000 --strategy ddp_gloo --hardware alpha": [
        *("65,536", "100,000", "Beyond 4,320 devices no measurement backs this.", "links and memory of alpha"),
    ],
    "--check": ["Mean error", "2 of 2 in their interval"],
}


def test_tables_and_sentences(capsys):
    for words, parts in PRINTED.items():
        assert main(["predict", "a", *words.split()]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert [part for part in parts if part not in text] == []
        assert ("no measurement backs" in text) == ("--most" in words)
        assert ("horovod" in text) == ("--strategy" not in words)


def test_runs_of_several_machines_and_models_are_predicted_apart(capsys):
    other = dataclasses.replace(MACHINE, cpu_model="another")
    runs = [sweeps.run("ddp_gloo", count, machine=other, run_id=f"other-{count}") for count in (1, 2)]
    sweeps.write_results(Path("b"), runs)
    assert main(["predict", "a", "b", "--gpus", "8", "--strategy", "ddp_gloo"]) == 0
    out, err = capsys.readouterr()
    assert out.count("Predicted: ") == 2 and len(err.splitlines()) == 1
    assert "runs differ (machine (cpu " in err and "and are predicted apart: name the folders of one" in err
    run = sweeps.run("ddp_gloo", 1, run_id="other")
    run.workload.model, run.spec["model"] = "other", {**run.spec["model"], "name": "other"}
    sweeps.write_results(Path("c"), [run])
    assert main(["predict", "one", "c"]) == 2
    _, err = capsys.readouterr()
    assert "measure gpus=2" in err and "runs differ (model other, materials_cnn)" in err and len(err.splitlines()) == 1


def test_csv_has_a_row_for_each_strategy_and_number(capsys):
    assert main(["predict", "a", "--csv", "--gpus", "8,16", "--batch", "20"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    expected = [(name, count) for name in ("ddp_gloo", "horovod_gloo") for count in ("8", "16")]
    assert [(row["strategy"], row["devices"]) for row in rows] == expected
    assert all(float(row["throughput_low"]) < float(row["throughput_samples_per_s"]) for row in rows)
    assert {row["batch_per_device"] for row in rows} == {"20.0"}


def test_to_choose_a_strategy_changes_no_figure(capsys):
    lines = []
    for words in ([], ["--strategy", "ddp_gloo"]):
        assert main(["predict", "a", "--csv", *words]) == 0
        lines.append([line for line in capsys.readouterr().out.splitlines() if "horovod" not in line])
    assert lines[0] == lines[1] and len(lines[0]) > 1
