"""Runs as JobSets, one for each size and one after the other: made with kubectl, and followed by the log of the leader,
in which each result is a line."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from scalebench.cluster import jobset
from scalebench.cluster.kubectl import Kubectl, KubectlError
from scalebench.cluster.resources import sweep_geometry, time_limit_minutes
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import refuse_folder_with_result
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import OUTPUT_FILES, RESULT_FILE
from scalebench.core.spec import RunSpec, write_spec
from scalebench.core.untrusted import clean_text
from scalebench.runner.collect import RunOutcome
from scalebench.runner.jobs.job import JobRequest
from scalebench.runner.jobs.outcome import write_result_for
from scalebench.sweeps.console import Console
from scalebench.sweeps.estimate import estimate_s
from scalebench.sweeps.jobset_main import pack_runs, unpack_result
from scalebench.sweeps.plan import SweepRun

POLL_INTERVAL_S = 5.0
SILENCE_LIMIT_S = 600.0  # for kubectl to fail
NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"


def make_manifest(specs: Sequence[RunSpec]) -> Any:
    """Return the manifest of the JobSet that does these runs, with a name of its own."""
    size, name = sweep_geometry(specs), f"scalebench-{specs[0].gpus}-{secrets.token_hex(3)}"
    limit_s = 60 * time_limit_minutes(specs, [estimate_s(spec)[1] for spec in specs])
    return jobset.make_jobset(name, specs[0].config.hardware, size.nodes, size.gpus_per_node, limit_s)


def follow(jobs: Sequence[Sequence[Sequence[SweepRun]]], console: Console) -> Iterator[tuple[SweepRun, Result]]:
    """Do these jobs, lists of units. Yield each run when its result is in its folder. A KeyboardInterrupt deletes the
    JobSet, and the runs that are left have no result."""
    for run in (run for job in jobs for unit in job for run in unit):
        refuse_folder_with_result(run.folder)
    for job in jobs:
        yield from _JobSet(job, console).follow()


class _JobSet:
    def __init__(self, job: Sequence[Sequence[SweepRun]], console: Console) -> None:
        self._job, self._console = job, console
        self._left = {run.number: run for unit in job for run in unit}
        self._manifest = make_manifest([run.spec for run in self._left.values()])
        self._settings = job[0][0].spec.config.hardware.kubernetes
        self._name, self._kubectl = self._manifest["metadata"]["name"], Kubectl(self._settings.namespace)
        self._lines, self._waiting = 0, ""  # what has been read of the leader's log, and what pods wait for

    def follow(self) -> Iterator[tuple[SweepRun, Result]]:
        try:
            secret = jobset.make_secret(self._name, self._settings, secrets.token_hex(32), pack_runs(self._job))
            for manifest in (secret, self._manifest):  # on standard input: others see command lines
                self._kubectl.run("create", "--filename", "-", content=json.dumps(manifest))
            runs = "1 run is" if len(self._left) == 1 else f"{len(self._left)} runs are"
            self._console.print_line(f"{runs} JobSet {self._name}; Ctrl-C deletes it")
            yield from self._follow_log()
            outcome = self._explain() if self._left else RunOutcome("ok")
        except (KubectlError, InputError) as error:
            outcome = RunOutcome("failed", str(error))
        except KeyboardInterrupt:
            self._delete("jobset")
            raise
        finally:
            self._delete("secret")
        for run in self._left.values():
            yield run, write_result_for(JobRequest(run.number, run.spec, run.folder), outcome)

    def _delete(self, kind: str) -> None:
        with contextlib.suppress(KubectlError), process.defer_signals():
            self._kubectl.run("delete", kind, self._name, "--ignore-not-found", "--wait=false")

    def _follow_log(self) -> Iterator[tuple[SweepRun, Result]]:
        """Yield the runs that have a result, until all have or the JobSet is over."""
        answered_s, is_over = time.monotonic(), False
        while True:
            was_over = is_over  # its log is read once more
            for number, line in enumerate(self._kubectl.follow_log(f"{self._name}-leader-0")):
                if number >= self._lines:
                    self._lines = number + 1
                    yield from self._read(line)
            if was_over or not self._left:
                return
            try:
                is_over = "terminalState" in self._read_status()
                self._print_waiting()
                answered_s = time.monotonic()
            except KubectlError:
                if time.monotonic() - answered_s > SILENCE_LIMIT_S:
                    raise
            if not is_over and process.cancelled.wait(POLL_INTERVAL_S):
                raise KeyboardInterrupt

    def _read(self, line: str) -> Iterator[tuple[SweepRun, Result]]:
        try:
            number, files = unpack_result(line)
        except (ValueError, AttributeError, OSError, EOFError):
            self._console.print_line(clean_text(line))
            return
        if (run := self._left.pop(number, None)) is None:
            return
        with process.defer_signals():
            run.folder.mkdir(parents=True, exist_ok=True)
            write_spec(run.spec, run.folder)
            for name, content in files.items():
                if name == RESULT_FILE or OUTPUT_FILES.fullmatch(name):
                    (run.folder / name).write_bytes(content)
        yield run, read_result(run.folder / RESULT_FILE)

    def _read_status(self) -> dict[str, Any]:
        return dict(self._kubectl.read("jobset", self._name).get("status", {}))

    def _read_containers(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the pods of the JobSet, each with the state of its container."""
        pods = self._kubectl.read("pods", "--selector", f"{NAME_LABEL}={self._name}")["items"]
        states = ((pod, each) for pod in pods for each in pod.get("status", {}).get("containerStatuses", ()))
        return [(pod["metadata"]["name"], each.get("state", {})) for pod, each in states]

    def _print_waiting(self) -> None:
        """Say what pods wait for, as for an image that is not there, where that has changed."""
        reasons = {state["waiting"].get("reason", "") for _, state in self._read_containers() if "waiting" in state}
        before, self._waiting = self._waiting, ", ".join(sorted(reasons))
        if self._waiting not in ("", before):
            self._console.print_line(clean_text(f"pods wait: {self._waiting}"))

    def _explain(self) -> RunOutcome:
        """Return why a JobSet that is over has left no result of a run."""
        for pod, state in self._read_containers():  # the kernel ends a container as a whole, with its agent
            if state.get("terminated", {}).get("reason") == "OOMKilled":
                return RunOutcome("oom", f"Kubernetes: {pod} was OOMKilled")
        reached = [each for each in self._read_status().get("conditions", ()) if each.get("status") == "True"]
        text = clean_text("; ".join(f"{each.get('reason')}: {each.get('message')}" for each in reached))
        status = "timeout" if "DeadlineExceeded" in text else "failed"
        return RunOutcome(status, f"Kubernetes: JobSet {self._name} left no result ({text or 'no reason'})")
