"""The folder of a run: what is ours in it, and its lock; processes that end with their parent."""

import json
import os
import platform
import signal
import subprocess
import sys

import psutil
import pytest

from scalebench.core import exit_with_parent, run_folder
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock
from scalebench.core.json_files import write_json
from scalebench.core.process import read_process_stat
from scalebench.core.run_folder import LOCK_FILE, RUN_ID_VARIABLE, Turn, read_rank_file, write_rank_file
from scalebench.core.spec import write_spec
from scalebench.core.sweep_file import new_sweep_record, refuse_foreign_sweep_folder, write_sweep
from tests.builders.runs import find_running, simulated_spec, wait_until

RECORDS = ("spec.json", "result.json", "job.json", "job.log")
OUTPUT = ("rank0.json", "rank11.log", "monitor.parquet", "monitor1.parquet", "trace0.json.gz", "plugin.log", "srun.log")
TRANSIENT = ("progress0.json", "turn.json", "turn2.json", "warm_up1.txt", "machine1.json", "agent.key")
# Of a user, who works in the same folder: alike, and not ours.
FOREIGN = (
    "monitor.py", "monitoring_notes.md", "machine_room.json", "exit_survey.json", "rank_list.json", "rank_all.log",
    "pidgin.json", "progress_report.json", "trace_old.json.gz", "results.csv", "try_me/rank0.json", "try_8x/thesis.tex",
)  # fmt: skip


def write_files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def fill(folder):
    """Make a run with a search, and a user's files beside it. Return the user's files and the records."""
    tries = [f"try_8/{name}" for name in OUTPUT + TRANSIENT] + ["try_8_again/try.json"]
    write_files(folder, *RECORDS, *OUTPUT, *TRANSIENT, *FOREIGN, *tries, ".spec.json.123", ".rank0.json.9")
    for path in (folder, folder / "try_8"):
        write_spec(simulated_spec(), path)
    write_spec(simulated_spec(), folder / "try_8_again")
    os.replace(folder / "try_8_again/spec.json", folder / "try_8_again/try.json")
    return {*RECORDS, *FOREIGN}


def test_transient_files_and_leftovers_are_removed_also_in_tries(tmp_path):
    others = fill(tmp_path)
    before = files_in(tmp_path)
    run_folder.remove_transient_files(tmp_path)
    assert files_in(tmp_path) == before - set(TRANSIENT) - {f"try_8/{name}" for name in TRANSIENT}
    fill(tmp_path)
    run_folder.remove_leftovers(tmp_path)
    assert files_in(tmp_path) == {*others, ".spec.json.123"} and not (tmp_path / "try_8").exists()


def test_a_run_is_removed_with_its_folder_unless_something_else_is_in_it(tmp_path):
    fill(tmp_path / "a")
    write_files(tmp_path / "a", ".hydra/config.yaml", ".hydra/notes", "job.sh")
    run_folder.remove_run(tmp_path / "a")
    assert files_in(tmp_path / "a") == {*FOREIGN, ".hydra/notes"}
    (tmp_path / "b").mkdir()
    write_spec(simulated_spec(), tmp_path / "b")
    write_files(tmp_path / "b", *OUTPUT, ".hydra/hydra.yaml")
    run_folder.remove_run(tmp_path / "b")
    assert not (tmp_path / "b").exists()
    run_folder.remove_run(tmp_path / "b")


def test_an_empty_folder_may_be_used_also_with_the_files_of_hydra_and_another_is_refused(tmp_path):
    run_folder.refuse_foreign_folder(tmp_path / "absent")
    for number, line in enumerate((
        "", "scalebench.lock", ".hydra/config.yaml .hydra/hydra.yaml", ".hydra/config.yaml",
        "conf/hydra.yaml conf/config.yaml", ".spec.json.123",
    )):  # fmt: skip
        folder, names = tmp_path / f"empty{number}", line.split()
        folder.mkdir()
        write_files(folder, *names)
        run_folder.refuse_foreign_folder(folder)
        assert files_in(folder) == set(names)
    for number, name in enumerate(
        "thesis.tex .hydra/mine conf/config.yaml try_3/thesis.tex rank0.json spec.json result.json .notes.123 "
        "job.sh sweep.json multirun.yaml".split()
    ):
        folder = tmp_path / f"of_others{number}"
        write_files(folder, name)
        with pytest.raises(InputError, match=f"^{folder} is not empty and holds no run of scalebench; choose an empty"):
            run_folder.refuse_foreign_folder(folder)
        assert files_in(folder) == {name}


def test_a_folder_is_known_by_its_spec_also_of_another_version_or_by_its_result(tmp_path):
    def refuse(message="holds no run", folder=tmp_path):
        with pytest.raises(InputError, match=message):
            run_folder.refuse_foreign_folder(folder)

    for name, marker in {
        "spec.json": {"config": {}, "places": [], "fingerprint": "f", "key_of_tomorrow": 1},
        "result.json": {"run_id": "r", "fingerprint": "f", "spec": {}, "schema_version": 99},
    }.items():
        write_files(tmp_path, "notes.txt")
        refuse()
        write_json(tmp_path / name, marker)
        refuse(f"^{tmp_path}/notes.txt is not a plain file of a run of scalebench; move it, or")
        (tmp_path / "notes.txt").unlink()
        run_folder.refuse_foreign_folder(tmp_path)
        os.replace(tmp_path / name, tmp_path / "moved.json")
        (tmp_path / name).symlink_to(tmp_path / "moved.json")
        refuse()
        (tmp_path / name).unlink()
        (tmp_path / "moved.json").unlink()
    os.mkfifo(tmp_path / "spec.json")
    refuse()
    write_files(tmp_path, "file")
    refuse(r"file is not a folder; choose another one", tmp_path / "file")
    # A log would be written through a link with a name of ours.
    run = tmp_path / "run"
    run.mkdir()
    write_spec(simulated_spec(), run)
    for name in ("rank0.log", "monitor.parquet", "try_3", ".rank0.json.1"):
        (run / name).symlink_to(tmp_path)
        refuse(f"^{run}/{name} is not a plain file of a run", run)
        (run / name).unlink()
    write_files(run, "try_3/thesis.tex")
    refuse(f"^{run}/try_3/thesis.tex is not a plain file of a run", run)
    run_folder.remove_leftovers(run)
    run_folder.remove_run(run)
    assert files_in(run) == {"try_3/thesis.tex"}


def test_a_sweep_is_known_by_its_record_and_files_have_names_by_rank_node_and_batch(tmp_path):
    write_files(tmp_path, "multirun.yaml", "scalebench.lock")
    refuse_foreign_sweep_folder(tmp_path)
    write_files(tmp_path, "results.csv", "sweep.json")
    with pytest.raises(InputError, match=f"^{tmp_path} is not empty and holds no sweep of scalebench; choose an empty"):
        refuse_foreign_sweep_folder(tmp_path)
    write_sweep(new_sweep_record([], "now", "here", None), tmp_path)
    refuse_foreign_sweep_folder(tmp_path)
    nodes = [run_folder.monitor_path(tmp_path, node).name for node in (0, 1)]
    tries = [run_folder.try_folder(tmp_path, 8, more_memory).name for more_memory in (False, True)]
    assert (nodes, tries) == (["monitor.parquet", "monitor1.parquet"], ["try_8", "try_8_again"])
    for name in (*map(run_folder.rank_trace_name, (10, 2)), "my_trace0.json.gz", run_folder.MERGED_TRACE_FILE):
        (tmp_path / name).touch()
    assert list(run_folder.rank_traces(tmp_path)) == [2, 10]


def test_reports_of_another_run_are_as_if_absent(tmp_path, monkeypatch):
    """Ranks on other hosts may write for a while after their parent was killed."""
    path, record = tmp_path / "turn0.json", Turn(1, 0.5)
    monkeypatch.setenv(RUN_ID_VARIABLE, "first")
    write_rank_file(path, record)
    assert read_rank_file(path, Turn, "first") == read_rank_file(path, Turn) == record
    assert read_rank_file(path, Turn, "second") is None
    write_json(path, record)  # with no id
    assert read_rank_file(path, Turn, "second") is None
    for text in ("", "[]", '{"run_id": "first"}', '{"run_id": "first", "number": "x"}'):
        path.write_text(text)
        assert read_rank_file(path, Turn, "first") is None
    assert read_rank_file(tmp_path / "turn1.json", Turn, "first") is None


def test_a_folder_is_held_once_and_free_again(tmp_path):
    """Also while a child of its program lives: ranks may outlive a parent that was killed."""
    used = rf"process {os.getpid()} on {platform.node()} \(since .*\) uses {tmp_path}; "
    with FolderLock(tmp_path), pytest.raises(InputError, match=used):
        FolderLock(tmp_path)
    assert os.listdir(tmp_path) == []
    with FolderLock(tmp_path), pytest.raises(InputError, match=f"another program uses {tmp_path}; "):
        (tmp_path / LOCK_FILE).write_text("")  # it has not yet said who it is
        FolderLock(tmp_path, of_ended_job=True)
    lock = FolderLock(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        lock.release()
        lock.release()
        FolderLock(tmp_path).release()
        assert child.poll() is None and os.listdir(tmp_path) == []
        child.communicate(b"\n")


def left_by(folder, **changes):
    """The file of a program that did not tidy up: this one, but for `changes`."""
    started_s = psutil.Process().create_time()
    holder = {"hostname": platform.node(), "pid": os.getpid(), "pid_started_s": started_s, "since": "yesterday"}
    (folder / LOCK_FILE).write_text(json.dumps({**holder, **changes}))


def test_a_holder_on_another_host_is_assumed_alive_and_a_lock_tells_more_than_a_number(tmp_path):
    left_by(tmp_path, hostname="login2")
    for _ in range(2):  # being refused leaves all as it was
        with pytest.raises(InputError, match=rf"on login2 \(since yesterday\) uses .* remove {tmp_path}/{LOCK_FILE}$"):
            FolderLock(tmp_path)
    (tmp_path / LOCK_FILE).unlink()
    FolderLock(tmp_path).release()
    left_by(tmp_path)
    FolderLock(tmp_path).release()
    (tmp_path / LOCK_FILE).write_text('{"hostname": "lo')
    FolderLock(tmp_path).release()
    left_by(tmp_path, since="the day before " * 20)  # a longer text
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


# Starts a command that is tied to this process, prints its pid and waits.
PARENT = """
import os, subprocess, sys, time
from scalebench.core.exit_with_parent import tied_command
child = subprocess.Popen(tied_command(os.getpid(), sys.argv[1:]))
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_tied_command_gets_sigterm_when_its_parent_is_killed(tmp_path):
    program = (
        "import signal, sys, time\nfrom pathlib import Path\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path('{tmp_path}/terminated').touch()))\n"
        f"Path('{tmp_path}/up').touch()\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", PARENT, sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        try:
            wait_until((tmp_path / "up").exists)
            parent.kill()
            parent.wait()
            wait_until(lambda: not find_running([pid]), 10.0)
            assert (tmp_path / "terminated").exists()
        finally:
            parent.kill()
            if find_running([pid]):
                os.kill(pid, signal.SIGKILL)


def test_the_command_replaces_the_program_that_ties_it(tmp_path):
    """Its host and pid are in the environment. Where the parent has already ended, it does not run."""
    program = "import os; print(os.getpid(), os.environ['SCALEBENCH_LAUNCHER'])"
    command = exit_with_parent.tied_command(os.getpid(), [sys.executable, "-c", program])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        out, _ = child.communicate(timeout=60)
    assert out.split() == [str(child.pid), f"{os.uname().nodename}:{child.pid}"]
    command = exit_with_parent.tied_command(1, [sys.executable, "-c", f"open('{tmp_path}/ran', 'w')"])
    assert subprocess.run(command, check=False, timeout=60).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_a_process_checks_whether_its_launcher_still_runs():
    """A process that mpirun started while it was killed has another parent, and no other sign of it."""
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait()
    host, variable = os.uname().nodename, exit_with_parent.LAUNCHER_VARIABLE
    code = "from scalebench.core.exit_with_parent import tie_to_launcher; tie_to_launcher()"
    for launcher, status in ((f"{host}:{os.getpid()}", 0), (f"{host}:{ended.pid}", 1), ("far:1", 0), (None, 0)):
        env = os.environ | ({} if launcher is None else {variable: launcher})
        done = subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=60)
        assert done.returncode == status, launcher


def test_the_parents_and_the_cpu_seconds_of_a_process():
    pids = exit_with_parent.ancestors(os.getpid())
    assert pids[0] == os.getpid() and os.getppid() in (1, *pids[1:2]) and len(set(pids)) == len(pids)
    assert exit_with_parent.ancestors(1) == []
    while os.times().system < 0.3:
        os.listdir("/proc")
    stat, times = read_process_stat(os.getpid()), os.times()
    assert stat.parent == os.getppid() and stat.cpu_s == pytest.approx(times.user + times.system, abs=0.2)
    assert read_process_stat(2**22 + 1) is None  # above the largest number of a process
