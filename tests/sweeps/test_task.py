"""One call of the program: what is refused before a run, and how a sweep ends."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scalebench.analysis import read_runs
from scalebench.config import compose
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.core.machine import private_network
from scalebench.core.result import write_result
from scalebench.core.sweep_file import read_sweep
from scalebench.sweeps.plan import SweepRun
from scalebench.sweeps.task import SweepSession
from tests.builders.runs import record, simulated_spec


def run_single(*words):
    """Run or plan a single run as the command line does, but for the processes of the run."""
    compose.register_with_hydra()
    loader = compose.make_loader()
    config = loader.load_command_line("config", list(words), is_sweep=False)
    SweepSession(words, config, loader).run_single(resolve(compose.to_config(config)))


def test_a_run_that_would_serve_strangers_needs_consent(capsys, monkeypatch):
    """A single run is refused, a sweep has a row that says why, and with consent it is said and flagged."""
    monkeypatch.setattr(private_network, "find_kernel_problem", lambda: "not here")
    words = ["strategy=multiworker_ring", "gpus=2", "hardware=cpu", "dataset.size=400"]
    with pytest.raises(InputError) as caught:
        run_single(*words)
    line = str(caught.value)
    assert "\n" not in line and "strategy.options.open_port=true" in line
    row = resolve(compose.compose_config(words))
    assert row.unsupported == line and "open_port" not in row.flags
    run_single(*words, "strategy.options.open_port=true", "dry_run=true")
    assert "multiworker_ring listens on all interfaces while it runs, and lets" in capsys.readouterr().out
    accepted = resolve(compose.compose_config([*words, "strategy.options.open_port=true"]))
    assert (accepted.unsupported, "open_port" in accepted.flags) == (None, True)
    assert accepted.fingerprint == row.fingerprint, "nothing of the training is different"
    monkeypatch.setattr(private_network, "find_kernel_problem", lambda: None)
    assert resolve(compose.compose_config(words)).flags == []


def session_with(status, report=False):
    """A session that has done one run of a sweep in the folder `s`."""
    folder = Path("s/0")
    folder.mkdir(parents=True)
    result = record(status=status)
    write_result(result, folder)
    settings = {"max_minutes": None, "report": report, "question": "gpus"}
    session = SweepSession([], OmegaConf.create({"sweep": settings}))
    session.done.append(result)
    job = SweepRun([], simulated_spec())
    sweep = session.begin_sweep([job], Path("s"))
    sweep.add([job])
    sweep.do([job], [job], iter(()), lambda unit: unit)
    session.release()
    return session


def test_the_end_of_a_sweep_is_its_table_and_its_report(capsys, monkeypatch):
    """Both come of one load: of ten thousand runs it takes seconds."""
    session, load, loads = session_with("ok", report=True), read_runs.summarize_files, []
    monkeypatch.setattr(read_runs, "summarize_files", lambda *paths: loads.append(paths) or load(*paths))
    session.at_end.append(lambda: print("last line"))
    assert session.finish() == 0
    out = capsys.readouterr().out
    assert "ddp" in out and out.splitlines()[-2:] == ["report: s/report.html", "last line"]
    files = {"report.html", "results.csv", "results.parquet", "sweep.json"}
    assert {path.name for path in Path("s").iterdir()} == {"0", *files}
    sweep = read_sweep(Path("s"))
    assert sweep.ended and sweep.question == "gpus"
    assert len(loads) == 1


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("unsupported", 1), ("failed", 1)])
def test_a_sweep_without_a_good_run_ends_with_1_after_its_table(status, code, capsys):
    assert session_with(status).finish() == code
    assert Path("s/results.csv").exists() and not Path("s/report.html").exists()
    assert "report" not in capsys.readouterr().out


@pytest.mark.parametrize("trouble", ["no time", "nothing", "cut short", "in the way", "of the page"])
def test_tables_that_cannot_be_made_end_with_1(capsys, trouble):
    session = session_with("ok", report=trouble == "of the page")
    if trouble == "of the page":
        Path("s/report.html").mkdir()
    elif trouble == "no time":
        session.sweep.record.runs[0].left_out, session.sweep.record.max_minutes = True, 1e-6
    elif trouble == "nothing":
        Path("s/0/result.json").unlink()
    elif trouble == "cut short":
        Path("s/0/result.json").write_text("{")
    else:
        Path("s/results.csv").mkdir()
    assert session.finish() == 1
    err = capsys.readouterr().err
    assert err.startswith("scalebench: s: no report: ") and err.count("\n") == 1
    assert ("not one run fits into sweep.max_minutes=1e-06" in err) == (trouble == "no time")
