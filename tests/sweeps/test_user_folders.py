"""The files of a user: no run or sweep removes, overwrites or copies what scalebench did not make."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scalebench import __main__ as program
from scalebench.core.json_files import read_json
from scalebench.core.result import read_result
from scalebench.core.run_folder import LOCK_FILE
from scalebench.core.spec import write_spec
from scalebench.core.sweep_file import MULTIRUN_FILE, new_sweep_record, write_sweep
from tests.builders.configs import SHORT_WORDS
from tests.builders.runs import simulated_spec, wait_until

SHORT = ["hardware=cpu", "gpus=1", *SHORT_WORDS, "sweep.report=false", "baseline=none"]
SWEEP = [*SHORT, "--multirun", "measure.repeats=1", "measure.order=given"]


@pytest.fixture
def call(capsys):
    """Call the program: status, errors."""

    def called(*arguments):
        return program.main(list(arguments)), capsys.readouterr().err

    return called


def write_files(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"content of {name}")
    return files()


def files():
    """The content of each file, but for the config of a sweep."""
    paths = (path for path in Path().rglob("*") if path.is_file() and path.name != MULTIRUN_FILE)
    return {str(path): path.read_bytes() for path in paths}


@pytest.mark.parametrize("words", [
    [*SHORT, "hydra.run.dir=."],
    [*SHORT, "hydra.run.dir=.", "resume=true"],
    [*SHORT, "hydra.run.dir=.", "hydra.output_subdir=conf"],
    [*SHORT, "hydra.run.dir=.", "measure.repeats=2"],
    [*SWEEP, "hydra.sweep.dir=."],
    [*SWEEP, "hydra.sweep.dir=.", "resume=true"],
], ids=lambda words: " ".join(words[len(SHORT) :]))  # fmt: skip
def test_a_folder_with_files_of_a_user_is_refused_and_nothing_is_touched(call, words):
    before = write_files("monitor.py", "try_3/thesis.tex", "results.csv", "rank_list.json", "conf/config.yaml")
    status, err = call(*words)
    assert status == 2 and err.count("\n") == 1
    assert err.startswith("scalebench: . is not empty and holds no ") and files() == before


def test_a_run_in_its_own_unfinished_folder_replaces_files_of_runs_and_refuses_others(call):
    Path("r").mkdir()
    assert call(*SHORT, "hydra.run.dir=r")[0] == 0
    Path("r/result.json").unlink()
    before = write_files("r/rank9.json", "r/rank_list.json")
    line = (
        "scalebench: r/rank_list.json is not a plain file of a run of scalebench; move it, or choose another folder\n"
    )
    assert call(*SHORT, "hydra.run.dir=r") == (2, line) and files() == before
    Path("r/rank_list.json").unlink()
    assert call(*SHORT, "hydra.run.dir=r")[0] == 0
    assert set(os.listdir("r")) == {".hydra", "rank0.json", "rank0.log", "result.json", "spec.json"}


@pytest.mark.parametrize("resume", ["resume=true", "resume=false"])
def test_a_sweep_touches_nothing_but_its_own_runs(call, resume):
    """A user has made a folder `0` in the folder of a sweep that was cut short."""
    Path("home/s/1").mkdir(parents=True)
    write_sweep(new_sweep_record([], "", "here", None), Path("home/s"))
    write_spec(simulated_spec(), Path("home/s/1"))
    before = write_files("home/s/0/thesis.tex", "home/earlier")
    status, err = call(*SWEEP, "hydra.sweep.dir=home/s", resume)
    line = "home/s/0 is not empty and holds no run of scalebench; choose an empty or a new folder"
    assert status == 2 and err.count("\n") == 1 and err.startswith("scalebench: ") and line in err and files() == before


def test_resume_repeats_a_failed_run_unless_a_user_has_put_files_beside_it(call):
    assert call(*SWEEP, "hydra.sweep.dir=s", "strategy.options.fault=raise")[0] == 1
    first = read_result(Path("s/0/result.json"))
    Path("s/0/notes.txt").write_text("mine")
    status, err = call(*SWEEP, "hydra.sweep.dir=s", "strategy.options.fault=raise", "resume=true")
    assert status == 2 and "s/0/notes.txt is not a plain file of a run" in err
    Path("s/0/notes.txt").rename("notes.txt")
    assert call(*SWEEP, "hydra.sweep.dir=s", "strategy.options.fault=raise", "resume=true")[0] == 1
    assert read_result(Path("s/0/result.json")).run_id != first.run_id


def test_resume_copies_no_links_and_nothing_of_other_users(call, monkeypatch):
    assert call(*SWEEP, "hydra.sweep.dir=w/one")[0] == 0
    run_id = read_result(Path("w/one/0/result.json")).run_id
    Path("id_rsa").write_text("key")
    Path("w/one/0/extra").symlink_to(Path().absolute())
    Path("w/one/0/rank9.log").symlink_to(Path("id_rsa").absolute())
    assert call(*SWEEP, "hydra.sweep.dir=w/two", "resume=true")[0] == 0
    assert read_result(Path("w/two/0/result.json")).run_id == run_id
    assert set(os.listdir("w/two/0")) == {".hydra", "rank0.json", "rank0.log", "result.json", "spec.json"}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert call(*SWEEP, "hydra.sweep.dir=w/three", "resume=true")[0] == 0
    assert read_result(Path("w/three/0/result.json")).run_id != run_id


def test_a_second_run_into_a_folder_in_use_is_refused_and_the_first_keeps_its_figures(call):
    """The second has another configuration and other files of Hydra; neither reaches the record of the first."""
    words = [*SHORT, "hydra.run.dir=r", "measure.max_s=60", "measure.min_s=60", "strategy.options.step_s=0.02"]
    first = subprocess.Popen([sys.executable, "-m", "scalebench", *words], stdout=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: Path("r/progress0.json").exists(), 120)
        status, err = call(*SHORT, "hydra.run.dir=r", "strategy.options.step_s=0.001")
        assert status == 2 and err.count("\n") == 1
        assert err.startswith(f"scalebench: process {first.pid} on ") and err.endswith("or choose another folder\n")
        assert call(*SHORT, "hydra.run.dir=r", "strategy.options.step_s=0.001", "resume=true")[0] == 2
        assert call(*SHORT, "hydra.run.dir=r", "measure.repeats=2")[0] == 2
    finally:
        first.send_signal(signal.SIGINT)
        assert first.wait(120) == 1
    result = read_result(Path("r/result.json"))
    assert (result.status, result.spec["strategy"]["options"]["step_s"]) == ("cancelled", 0.02)
    assert read_json(Path("r/spec.json"))["config"]["strategy"]["options"]["step_s"] == 0.02
    assert not Path("r", LOCK_FILE).exists()


def test_a_run_does_not_take_the_record_of_another(call):
    """A rank of an earlier run, whose parent was killed, writes while this one goes on."""
    over = threading.Event()

    def write():
        while not over.wait(0.01):
            for name in ("rank0.json", "rank1.json", "progress1.json"):
                if Path("r/spec.json").exists():
                    Path("r", name).write_text('{"rank": 1, "hostname": "there", "pid": 1}')

    straggler = threading.Thread(target=write)
    straggler.start()
    try:
        status, _ = call(*SHORT, "gpus=2", "strategy.options.fault=exit", "hydra.run.dir=r")
    finally:
        over.set()
        straggler.join()
    assert status == 1
    assert not [rank for rank in read_result(Path("r/result.json")).ranks if rank.hostname == "there"]


@pytest.mark.parametrize("words", [SHORT, SWEEP])
def test_a_folder_that_could_not_be_shown_later_is_refused(call, words):
    """A name with bytes that are not UTF-8: neither a frame nor a page could hold it."""
    status, err = call(*words, "hydra.run.dir='r\udcff'", "hydra.sweep.dir='s\udcff'")
    assert status == 2 and err.count("\n") == 1 and "is not UTF-8: rename it, or choose another folder" in err
    assert files() == {}


def test_a_single_run_is_resumed_by_itself_only(call):
    words = [*SHORT, "hydra.run.dir=r", "resume=true"]
    assert call(*words, "strategy.options.fault=raise")[0] == 1
    failed = read_result(Path("r/result.json"))
    assert call(*words, "strategy.options.fault=raise")[0] == 1
    assert read_result(Path("r/result.json")).run_id != failed.run_id, "it is run again"
    before = files()
    line = "scalebench: r holds the result of another run; choose another folder\n"
    for other in ([], ["seed=1"], ["strategy.options.fault=raise", "repeat=1"]):
        assert call(*words, *other) == (2, line) and files() == before
    assert call(*words, "dry_run=true") == (2, line)
