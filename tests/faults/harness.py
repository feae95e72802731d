"""Runs one row of the table: starts the program, brings about the fault, and checks how that ended."""

import contextlib
import importlib.util
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from scalebench.core.result import read_result
from scalebench.core.run_folder import KEY_FILE, RESULT_FILE, TRANSIENT_FILES
from scalebench.runner.parent import finish_killed_run
from tests.builders.configs import write_pictures
from tests.builders.launching import AgentUser
from tests.builders.runs import find_running, wait_until
from tests.faults.program import FAULT_VARIABLE, MODULE, PHASE_NAMES, RankFault
from tests.faults.table import CANCELLED, LAUNCH, PARKED, PROBES

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 240.0  # until the fault, on a busy machine
ROW_VARIABLE = "SCALEBENCH_TEST_ROW"  # by its value all processes of a row are found
PAUSE_S = 3.0  # for which SIGSTOP holds the parent, or a stall lasts before the ranks go on
DISK_BYTES = 24 << 20
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
WORKLOAD = (
    "hardware=cpu", "dataset.size=240", "train.batch_per_device=10", "train.dropout=false", "measure=quick",
    "measure.warmup_steps=5", "measure.warmup_max_s=0.3", "measure.block_s=0.004", "measure.min_s=0",
    "measure.max_s=30", "measure.target=0.5", "measure.repeats=1", "baseline=none", "sweep.report=false",
)  # fmt: skip
TURNS = ("measure.max_s=6", "measure.target=0.0001", "measure.slot_s=0.1")  # twelve seconds of rounds
PICTURES = (
    "model=cifar10_cnn", "dataset=imagenet_jpeg", "dataset.image_size=32", "dataset.classes=10", "dataset.workers=2",
    "measure.max_s=60", "measure.target=0.0001",  # it lasts until the fault ends it: batches are decoded ahead
)  # fmt: skip
FRAMEWORK_PACKAGES = {"horovod": "horovod", "mirrored": "tensorflow", "multiworker": "tensorflow",
                      "parameter": "tensorflow", "lightning": "pytorch_lightning"}  # fmt: skip


@dataclass
class Outcome:
    """The end of a row."""

    took_s: float | None = None  # from the fault to the end of the last process
    status: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    problems: list[str] = field(default_factory=list)


def missing_requirement(row):
    """Return why a row cannot be tried on this machine."""
    package = FRAMEWORK_PACKAGES.get(row.family.strategy.split("_")[0], "torch")
    if row.family.is_real and importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    if row.launcher == "mpi" and shutil.which("mpirun") is None:
        return "there is no mpirun"
    if row.fault.name == "disk full" and os.geteuid() != 0:
        return "only root may mount a small disk"
    if row.fault.name.startswith("clock") and not FAKETIME.exists():
        return "libfaketime is not installed"
    return None


def run_row(row, scratch, cache):
    """Run the program with the fault of `row`. `cache` holds data sets, which rows share."""
    scratch.mkdir(parents=True)
    running = RunningProgram(row, scratch, cache)
    outcome = Outcome()
    try:
        running.start()
        began_s = running.bring_about_fault()
        deadline_s = began_s + row.bound_s
        try:
            outcome.exit_code = running.process.wait(max(1.0, deadline_s - time.time()))
        except subprocess.TimeoutExpired:
            outcome.problems.append(f"the program has not ended within {row.bound_s:g} s")
            running.process.send_signal(signal.SIGABRT)  # has it print where it is
        while (left := running.processes()) and time.time() < deadline_s:
            time.sleep(0.05)
        outcome.took_s = round(time.time() - began_s, 1)
        if left:
            outcome.problems.append(f"processes left: {[describe_process(process) for process in left]}")
    except (AssertionError, OSError, psutil.Error) as error:
        outcome.problems.append(f"the fault did not come about: {type(error).__name__}: {error}")
    finally:
        printed = running.end()
    try:
        judge(row, running, outcome, printed)
    finally:
        running.remove_disk()
    return outcome


def describe_process(process):
    """Return the command of a process, which may end meanwhile."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()[:5])
    return f"process {process.pid}, which has ended"


def judge(row, running, outcome, printed):
    """Compare how a row ended with what is expected."""
    expected, problems = row.expected, outcome.problems
    result = running.read_row()
    if result is not None:
        outcome.status, outcome.reason = result.status, result.reason
    # The second Ctrl-C may come when there is nothing left to end but the interpreter.
    also = (-signal.SIGINT,) if row.fault.name == "SIGINT twice" else ()
    if outcome.exit_code not in (expected.exit_code, *also) and not problems:
        problems.append(f"exit status {outcome.exit_code} and not {expected.exit_code}")
    if outcome.status != expected.status and not printed_row(row, printed):
        problems.append(f"status {outcome.status} and not {expected.status}: {outcome.reason}")
    where = f"rank {row.rank}: " if row.family.processes > 1 else ""
    reason = expected.reason.format(rank=row.rank, where=where)
    if result is not None and reason not in (outcome.reason or ""):
        problems.append(f"reason '{outcome.reason}' and not '{reason}'")
    if result is not None and row.fault.victim == "rank" and result.status != "ok":
        problems += check_log(row, result, running.folder)
    if result is not None and row.fault.victim == "monitor" and not result.monitor.reason:
        problems.append("the record does not say that the monitor failed")
    if expected == CANCELLED and "scalebench: cancelled" not in printed:
        problems.append("it did not print that it was cancelled")
    if "Traceback" in printed:
        problems.append("it printed a traceback")
    if result is not None and not _are_possible(vars(result.phases)):
        problems.append(f"impossible phases: {result.phases}")
    if result is not None:
        # Not the pipe of a stall: scalebench removes plain files only.
        files = [path for path in running.folder.iterdir() if path.is_file()]
        left = [path.name for path in files if TRANSIENT_FILES.fullmatch(path.name)]
        problems += [f"files left: {left}"] if left else []
    if row.takes_turns and row.fault.victim in ("rank", "decoder") and running.other_statuses() != {"ok"}:
        problems.append(f"the other run of the cohort is {running.other_statuses()}")
    if problems:
        problems.append(f"it printed: {printed[-6000:]}")


def printed_row(row, printed):
    """Return whether the row is on the terminal, where no file could hold it."""
    return row.fault.victim == "surroundings" and '"schema_version"' in printed


def _are_possible(phases_s):
    longest_s = math.inf if phases_s["wall_s"] is None else phases_s["wall_s"] + 1.0
    return all(value is None or 0 <= value <= longest_s for value in phases_s.values())


def check_log(row, result, folder):
    """Return what is wrong with the log that the row of a failed rank names."""
    if result.log is None or not (folder / result.log).is_file():
        return [f"no log: {result.log}"]
    text = (folder / result.log).read_text(errors="replace")
    if row.fault.name in ("raise", "oom", "unsupported") and "Traceback" not in text:
        return [f"no traceback in {result.log}"]
    if row.fault.name == "stop" and "most recent call first" not in text:
        return [f"no stack of the rank that hung in {result.log}"]
    return []


class RunningProgram:
    """The program of one row, with all processes that it starts."""

    def __init__(self, row, scratch, cache):
        self.row, self._scratch, self._cache, self._id = row, scratch, cache, uuid.uuid4().hex
        self._disk = scratch / "disk"
        self._sweep = self._disk / "sweep"
        self.folder = self._sweep / "1" if row.takes_turns else self._disk / "run"
        self.fault = RankFault(
            row.fault.name if row.fault.inside and row.phase != PARKED else None,
            PHASE_NAMES.get(row.phase, ""), row.rank, self.folder.name, str(scratch),
        )  # fmt: skip
        self._user = None
        self._reader = None
        self._clock = scratch / "clock"

    # Start and end.

    def overrides(self):
        """Return the arguments of the program: of one run, or of a sweep of two that take turns."""
        row, strategy = self.row, self.row.family.strategy
        has_monitor = row.fault.victim == "monitor" or row.fault.name in ("SIGINT", "SIGKILL")
        has_probes = row.phase == PROBES and not row.family.is_real
        words = [
            *WORKLOAD, *self._pictures(), f"measure.hang_s={row.hang_s:g}", "measure.probe_s=0.1",
            f"measure.monitor={str(has_monitor).lower()}", f"measure.probes={str(has_probes).lower()}",
        ]  # fmt: skip
        if row.launcher == "by_hand":
            words.append("hardware.hosts=[localhost:1,127.0.0.1:1]")
        elif not row.family.is_real:
            words.append(f"strategy.launcher={row.launcher}")
        if not row.takes_turns:
            return [f"strategy={strategy}", "gpus=2", *words, f"hydra.run.dir={self.folder}"]
        both = ["strategy=simulated", "gpus=1,2"]
        if row.family.is_real:
            both = [f"strategy=simulated,{strategy}", "gpus=2"]
        return ["--multirun", *both, *words, *TURNS, f"hydra.sweep.dir={self._sweep}"]

    def _pictures(self):
        if self.row.fault.victim != "decoder":
            return []
        return [*PICTURES, f"dataset.path={write_pictures(self._scratch / 'pictures', 240, classes=10)}"]

    def start(self):
        """Start the program; its output goes to a file, or to a reader that can go away."""
        self._disk.mkdir()
        if self.row.fault.name == "disk full":
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", self._disk], check=True)
        environment = self._environment()
        if self.row.launcher == "by_hand":
            pairs = ["env", *(f"{name}={value}" for name, value in environment.items())]
            self._user = AgentUser(
                self.overrides(), self._scratch,
                lambda host, command: [*pairs, *(MODULE if word == "scalebench" else word for word in command)],
                willing=self.row.phase != LAUNCH,
            )  # fmt: skip
            self.process = self._user.program
            return
        command = [sys.executable, "-X", "faulthandler", "-m", MODULE, *self.overrides()]
        if os.geteuid() == 0 and self.row.fault.name == "folder read-only":  # root may write anywhere otherwise
            command = ["setpriv", "--bounding-set", "-dac_override", *command]
        with open(self._scratch / "err", "wb") as err, self._open_stdout() as out:
            self.process = subprocess.Popen(
                command, cwd=self._scratch, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, text=True,
            )  # fmt: skip

    def _environment(self):
        variables = {
            ROW_VARIABLE: self._id, FAULT_VARIABLE: self.fault.to_variable(), "PYTHONPATH": str(ROOT),
            "SCALEBENCH_CACHE": str(self._cache), "SCALEBENCH_PLUGINS": "",
        }  # fmt: skip
        if self.row.fault.name.startswith("clock"):
            self._clock.write_text("+0")
            variables |= {
                "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self._clock), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
            }  # fmt: skip
        return variables

    @contextlib.contextmanager
    def _open_stdout(self):
        if self.row.fault.name == "stdout closed":
            with open(self._scratch / "out", "wb") as out:
                self._reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=out)
            assert self._reader.stdin is not None
            yield self._reader.stdin.fileno()
            self._reader.stdin.close()
            return
        with open("/dev/full" if self.row.fault.name == "stdout full" else self._scratch / "out", "wb") as out:
            yield out.fileno()

    def end(self):
        """End whatever is left, and return what the program printed."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self._user is not None:
            self._user.__exit__(None, None, None)
            return "\n".join(self._user.said)
        if self._reader is not None:
            self._reader.kill()
            self._reader.wait()
        if hasattr(self, "process"):
            self.process.wait()
        files = [self._scratch / name for name in ("out", "err")]
        return "".join(path.read_text(errors="replace") for path in files if path.exists())

    def remove_disk(self):
        if os.path.ismount(self._disk):
            subprocess.run(["umount", "--lazy", self._disk], check=True)

    # What there is.

    def processes(self):
        """Return all processes that descend from the program, whoever their parents are now."""
        mark, marked = f"{ROW_VARIABLE}={self._id}".encode(), []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes() and find_running([process.pid]):
                    marked.append(process)
        return marked

    def other_statuses(self):
        """Return the statuses of the other runs of a cohort."""
        paths = self._sweep.glob(f"*/{RESULT_FILE}")
        return {read_result(path).status for path in paths if path.parent != self.folder}

    def read_row(self):
        """Return the row of the run with the fault, which the next command writes where the program was killed."""
        finish_killed_run(self.folder)
        path = self.folder / RESULT_FILE
        return read_result(path) if path.is_file() else None

    # The fault.

    def bring_about_fault(self):
        """Wait for the phase, bring about the fault, and return when that was, in seconds since the epoch."""
        fault = self.row.fault
        if self.fault.name is not None:
            self._wait(self.fault.reached.exists)
            return self.fault.reached.stat().st_mtime
        if fault.name != "stdout full":
            self._reach_phase()
        began_s = time.time()
        if fault.name != "stdout full":
            self._actions()[fault.name]()
        if self.row.expected.status == "ok":
            time.sleep(PAUSE_S)
        if fault.name == "SIGSTOP":
            self.process.send_signal(signal.SIGCONT)
        if self.row.expected.status == "ok" or fault.victim in ("surroundings", "decoder"):
            self.fault.released.touch()
        return began_s

    def _wait(self, condition):
        wait_until(lambda: condition() or self.process.poll() is not None, START_LIMIT_S)
        assert condition(), f"the program ended before, with exit status {self.process.poll()}"

    def _reach_phase(self):
        if self.row.phase == LAUNCH:
            first = {"local": "rank0.log", "mpi": "mpirun.log", "by_hand": KEY_FILE}[self.row.launcher]
            self._wait((self.folder / first).exists)
        elif self.row.phase == PARKED:
            self._wait(lambda: self._turn() >= 2)
            self._wait(lambda: self._victim().status() == psutil.STATUS_STOPPED)
        else:
            self._wait(self.fault.reached.exists)

    def _turn(self):
        with contextlib.suppress(OSError, ValueError):
            return int(json.loads((self.folder / "turn.json").read_text())["number"])
        return 0

    def _victim(self):
        progress = json.loads((self.folder / f"progress{self.row.rank}.json").read_text())
        return psutil.Process(progress["pid"])

    def _decoder(self):
        """Return one of the processes that decode pictures for the rank."""
        children = self._victim().children()
        return next(child for child in children if "spawn_main" in " ".join(child.cmdline()))

    def _program_of(self, *words):
        """Return the process of the program with these words in its command."""

        def find():
            commands = [(process, " ".join(process.cmdline())) for process in self.processes()]
            return [process for process, command in commands if all(word in command for word in words)]

        return wait_until(find)[0]

    def _process_of_rank(self, rank):
        """Return a rank that this machine's launcher started; a rank that serves others reports no progress."""
        return next(process for process in self.processes() if process.environ().get("RANK") == str(rank))

    def _agent(self):
        return self._victim().parent()

    def _launcher(self):
        return self._agent() if self._user is not None else self._agent().parent()

    def _actions(self):
        send = self.process.send_signal
        monitor = ("scalebench.measure.monitor", str(self.folder))
        return {
            "kill": lambda: self._victim().kill(),
            "SIGINT": lambda: send(signal.SIGINT),
            "SIGINT twice": lambda: (send(signal.SIGINT), time.sleep(0.3), send(signal.SIGINT)),
            "SIGTERM": lambda: send(signal.SIGTERM),
            "SIGHUP": lambda: send(signal.SIGHUP),
            "SIGKILL": lambda: send(signal.SIGKILL),
            "SIGSTOP": lambda: send(signal.SIGSTOP),
            "kill monitor": lambda: self._program_of(*monitor).kill(),
            "stop monitor": lambda: self._program_of(*monitor).suspend(),
            "end worker": lambda: self._victim().terminate(),
            "kill decoder": lambda: self._decoder().kill(),
            "kill ps": lambda: self._process_of_rank(1).kill(),
            "kill service": lambda: self._process_of_rank(3).kill(),
            "kill launcher": lambda: self._launcher().kill(),
            "end launcher": lambda: self._launcher().terminate(),
            "kill agent": lambda: self._agent().kill(),
            "disk full": self._fill_disk,
            "folder gone": lambda: shutil.rmtree(self.folder.rename(self._disk / "gone"), ignore_errors=True),
            "folder read-only": lambda: self.folder.chmod(0o555),
            "stdout closed": lambda: self._reader.kill() if self._reader else None,
            "few descriptors": self._leave_few_descriptors,
            "clock forward": lambda: self._clock.write_text("+3600"),
            "clock back": lambda: self._clock.write_text("-3600"),
            "stall": self._stall,
        }

    def _fill_disk(self):
        # Without a buffer, whose rest would have to be written when the file is closed.
        with open(self._disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))

    def _leave_few_descriptors(self):
        pid = self.process.pid
        used = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 4, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def _stall(self):
        """Put a pipe that nobody writes to in the place of a progress file."""
        pipe = self._scratch / "pipe"
        os.mkfifo(pipe)
        os.replace(pipe, self.folder / f"progress{self.row.rank}.json")
