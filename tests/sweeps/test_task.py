"""One call of the program: what is refused before a run, and how a sweep ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from scalebench.analysis import load as frame
from scalebench.analysis.read_runs import summarize_readable
from scalebench.config.compose import compose, to_config
from scalebench.config.resolve import resolve
from scalebench.core.config_files import conf_dir
from scalebench.core.machine import private_network
from scalebench.core.result import write_result
from scalebench.core.run_folder import LOCK_FILE
from scalebench.core.sweep_file import read_sweep
from scalebench.sweeps.plan import SweepRun
from scalebench.sweeps.task import CheckFolders, NothingStarted, RepeatsRequested, SweepSession, get_session
from tests.builders.runs import record, simulated_spec


def composed(*words: str) -> DictConfig:
    """A composed config with the part of Hydra that the callback reads."""
    plain = OmegaConf.to_container(compose(words))
    GlobalHydra.instance().clear()
    assert isinstance(plain, dict)
    return OmegaConf.create({**plain, "hydra": {"run": {"dir": "r"}}})


def test_the_callback_has_the_name_in_the_config() -> None:
    tree = OmegaConf.load(conf_dir() / "config.yaml")
    assert [entry["_target_"] for entry in tree.hydra.callbacks.values()] == ["scalebench.sweeps.task.CheckFolders"]
    session = SweepSession([])
    assert get_session(session.run_one) is session, "Hydra hands it on with its task function"


@pytest.mark.parametrize("resume", ["resume=true", "resume=false"])
def test_a_run_with_repeats_is_a_sweep(resume: str) -> None:
    with pytest.raises(RepeatsRequested):
        CheckFolders().on_run_start(composed("strategy=simulated", "gpus=1", "measure.repeats=2", resume))
    assert list(Path().iterdir()) == []
    callback, session = CheckFolders(), SweepSession([])
    callback.on_run_start(composed("strategy=simulated", "gpus=1", resume))
    assert sorted(os.listdir("r")) == [LOCK_FILE, "spec.json"], "locked and known as a run's before Hydra writes there"
    callback.on_job_start(composed(), task_function=session.run_one)
    session.release()
    assert os.listdir("r") == ["spec.json"]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("gpus=0", "gpus=0 should be at least 1"),
        ("model.name=???", "model.name has no value; choose model=NAME"),
        ("gpus=${nowhere}", "gpus: Interpolation key 'nowhere' not found"),
    ],
)
def test_bad_input_ends_the_program_with_2(word: str, line: str) -> None:
    with pytest.raises(NothingStarted) as caught:
        CheckFolders().on_run_start(composed(word))
    assert (caught.value.code, caught.value.line) == (2, line)


def test_a_run_that_would_serve_strangers_needs_consent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single run is refused, a sweep has a row that says why, and with consent it is said and flagged."""
    monkeypatch.setattr(private_network, "find_kernel_problem", lambda: "not here")
    words = ["strategy=multiworker_ring", "gpus=2", "hardware=cpu", "dataset.size=400"]
    with pytest.raises(NothingStarted) as caught:
        CheckFolders().on_run_start(composed(*words))
    line = caught.value.line
    assert "\n" not in line and "strategy.options.open_port=true" in line
    row = resolve(to_config(composed(*words)))
    assert row.unsupported == line and "open_port" not in row.flags
    CheckFolders().on_run_start(composed(*words, "strategy.options.open_port=true", "dry_run=true"))
    assert "multiworker_ring listens on all interfaces while it runs, and lets" in capsys.readouterr().out
    accepted = resolve(to_config(composed(*words, "strategy.options.open_port=true")))
    assert (accepted.unsupported, "open_port" in accepted.flags) == (None, True)
    assert accepted.fingerprint == row.fingerprint, "nothing of the training is different"
    monkeypatch.setattr(private_network, "find_kernel_problem", lambda: None)
    assert resolve(to_config(composed(*words))).flags == []


def test_folders_made_for_a_refused_sweep_are_removed_and_no_others() -> None:
    session = SweepSession([])
    Path("there").mkdir()
    for folder in (Path("there/new/s"), Path("there")):
        session.expect_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "multirun.yaml").touch()
        session.drop_unused_folder()
    assert [path.name for path in Path("there").iterdir()] == ["multirun.yaml"]


def session_with(status: str, report: bool = False) -> SweepSession:
    """A session that has done one run of a sweep in the folder `s`."""
    folder = Path("s/0")
    folder.mkdir(parents=True)
    result = record(status=status)
    write_result(result, folder)
    session = SweepSession([])
    session.done.append(result)
    job = SweepRun([], simulated_spec())
    sweep = session.begin_sweep([job], Path("s"), None, report)
    assert list(sweep.iterate([job], iter(())))
    session.release()
    return session


def test_the_end_of_a_sweep_is_its_table_and_its_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both come of one load: of ten thousand runs it takes seconds."""
    session, load, loads = session_with("ok", report=True), summarize_readable, []
    monkeypatch.setattr(frame, "summarize_readable", lambda *paths: loads.append(paths) or load(*paths))
    session.at_end.append(lambda: print("last line"))
    assert session.finish() == 0
    out = capsys.readouterr().out
    assert "ddp" in out and out.splitlines()[-2:] == ["report: s/report.html", "last line"]
    files = {"report.html", "results.csv", "results.parquet", "sweep.json"}
    assert {path.name for path in Path("s").iterdir()} == {"0", *files}
    sweep = read_sweep(Path("s"))
    assert sweep is not None and sweep.ended
    assert len(loads) == 1


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("unsupported", 1), ("failed", 1)])
def test_a_sweep_without_a_good_run_ends_with_1_after_its_table(
    status: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert session_with(status).finish() == code
    assert Path("s/results.csv").exists() and not Path("s/report.html").exists()
    assert "report" not in capsys.readouterr().out


@pytest.mark.parametrize("trouble", ["nothing", "cut short", "in the way", "of the page"])
def test_tables_that_cannot_be_made_end_with_1(capsys: pytest.CaptureFixture[str], trouble: str) -> None:
    session = session_with("ok", report=trouble == "of the page")
    if trouble == "of the page":
        Path("s/report.html").mkdir()
    elif trouble == "nothing":
        Path("s/0/result.json").unlink()
    elif trouble == "cut short":
        Path("s/0/result.json").write_text("{")
    else:
        Path("s/results.csv").mkdir()
    assert session.finish() == 1
    err = capsys.readouterr().err
    assert err.startswith("scalebench: s: no report: ") and err.count("\n") == 1
