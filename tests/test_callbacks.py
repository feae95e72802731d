"""Before a run: bad input is refused. After a sweep: its tables, and SystemExit where something went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from scalebench import cli, frame, task
from scalebench.callbacks import Aggregate, Check
from scalebench.compose import compose
from scalebench.jobs import Job
from scalebench.report.console import Console
from scalebench.results import write_result
from scalebench.sweep_record import read_sweep
from scalebench.sweeping import Sweep
from tests.helpers import null_spec, record


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch: pytest.MonkeyPatch) -> task.State:
    monkeypatch.setattr(task, "state", task.State(Console()))
    return task.state


def loose(**changes: object) -> DictConfig:
    return OmegaConf.create({"hydra": {"sweep": {"dir": "s"}}, "dry_run": False, **changes})


def test_both_are_callbacks_under_the_names_in_the_config() -> None:
    tree = OmegaConf.load(cli.conf_dir() / "config.yaml")
    targets = {entry["_target_"] for entry in tree.hydra.callbacks.values()}
    assert targets == {f"scalebench.callbacks.{kind.__name__}" for kind in (Check, Aggregate)}
    assert issubclass(Check, Callback) and issubclass(Aggregate, Callback)


def unstructured(*words: str) -> DictConfig:
    """A composed config with the part of Hydra that callbacks look at."""
    plain = OmegaConf.to_container(compose(words))
    GlobalHydra.instance().clear()
    assert isinstance(plain, dict)
    return OmegaConf.create({**plain, "hydra": {"run": {"dir": "r"}, "sweep": {"dir": "s"}}})


def test_a_sound_run_passes_and_leaves_nothing() -> None:
    Check().on_run_start(unstructured("strategy=null", "gpus=1"))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("resume", ["resume=true", "resume=false"])
def test_a_run_with_repeats_is_a_sweep(resume: str) -> None:
    with pytest.raises(task.AsSweep):
        Check().on_run_start(unstructured("strategy=null", "gpus=1", "measure.repeats=2", resume))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("gpus=0", "gpus=0 should be at least 1"),
        ("model.name=???", "model.name has no value; choose model=NAME"),
        ("gpus=${nowhere}", "Interpolation key 'nowhere' not found"),
    ],
)
def test_bad_input_ends_the_program_with_2(capsys: pytest.CaptureFixture[str], word: str, line: str) -> None:
    with pytest.raises(SystemExit) as caught:
        Check().on_run_start(unstructured(word))
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"scalebench: {line}\n"


def test_a_new_sweep_folder_is_remembered_and_one_that_was_there_is_not() -> None:
    Check().on_multirun_start(loose())
    assert task.state.sweep_dir == Path("s")
    Path("s").mkdir()
    Check().on_multirun_start(loose())
    assert task.state.sweep_dir is None


def leave(status: str, report: bool = False) -> None:
    """A sweep's folder with one run, and the program's memory of it."""
    folder = Path("s/0")
    folder.mkdir(parents=True)
    result = record(status=status)
    write_result(result, folder)
    task.state.done.append(result)
    task.state.sweep = Sweep(Path("s"), [], None, report)
    assert [job for _, job in task.state.sweep.runs([Job([], null_spec())], 0)]


def test_the_end_of_a_sweep_is_its_table_and_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    leave("ok", report=True)
    Aggregate().on_multirun_end(loose())
    out = capsys.readouterr().out
    assert "ddp" in out and out.splitlines()[-1] == "report: s/report.html"
    files = {"report.html", "results.csv", "results.parquet", "sweep.json"}
    assert {path.name for path in Path("s").iterdir()} == {"0", *files}
    record = read_sweep(Path("s"))
    assert record is not None and record.ended


def test_a_sweep_without_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    leave("ok")
    Aggregate().on_multirun_end(loose())
    assert "report" not in capsys.readouterr().out and not Path("s/report.html").exists()


@pytest.mark.parametrize(("status", "code"), [("unsupported", None), ("failed", 1), ("oom", 1), ("timeout", 1)])
def test_a_failed_run_makes_the_sweep_end_with_1_after_its_table(status: str, code: int | None) -> None:
    leave(status)
    if code is None:
        Aggregate().on_multirun_end(loose())
    else:
        with pytest.raises(SystemExit) as caught:
            Aggregate().on_multirun_end(loose())
        assert caught.value.code == code
    assert Path("s/results.csv").exists()


def test_nothing_is_aggregated_after_a_dry_run() -> None:
    Aggregate().on_multirun_end(loose(dry_run=True))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("trouble", ["nothing", "cut short", "in the way", "of the page"])
def test_tables_that_cannot_be_made_end_with_1(capsys: pytest.CaptureFixture[str], trouble: str) -> None:
    """Hydra would turn any other exception into a warning, and the status into 0."""
    leave("ok", report=trouble == "of the page")
    if trouble == "of the page":
        Path("s/report.html").mkdir()
    elif trouble == "nothing":
        Path("s/0/result.json").unlink()
    elif trouble == "cut short":
        Path("s/0/result.json").write_text("{")
    else:
        Path("s/results.csv").mkdir()
    with pytest.raises(SystemExit) as caught:
        Aggregate().on_multirun_end(loose())
    assert caught.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith("scalebench: s: no report: ") and err.count("\n") == 1


def test_the_end_of_a_sweep_makes_its_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the table, the files and the report: of ten thousand runs they take seconds."""
    leave("ok", report=True)
    rows, made = frame.readable, []
    monkeypatch.setattr(frame, "readable", lambda *given: made.append(given) or rows(*given))
    Aggregate().on_multirun_end(loose())
    assert len(made) == 1 and Path("s/report.html").exists()
