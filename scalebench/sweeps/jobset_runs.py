"""Runs as JobSets, one for each size and one after the other: made with kubectl, and followed by the log of the leader,
in which each result is a line."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scalebench.cluster import jobset
from scalebench.cluster.kubectl import Kubectl, KubectlError
from scalebench.cluster.resources import sweep_geometry, time_limit_minutes
from scalebench.cluster.submit import Submission, read_submission, write_submission
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.result import read_result, write_result
from scalebench.core.run_folder import OUTPUT_FILES, RESULT_FILE
from scalebench.core.spec import RunSpec, write_spec
from scalebench.core.untrusted import clean_text
from scalebench.runner.collect import RunOutcome, with_job_outcome
from scalebench.runner.jobs.follow import JobResult
from scalebench.runner.jobs.job import PlannedJob, QueueState, write_result_for
from scalebench.runner.launchers.agents import LOST
from scalebench.runner.parent import RunRequest
from scalebench.sweeps.estimate import estimate_s
from scalebench.sweeps.job_main import pack_runs, unpack_result

POLL_INTERVAL_S = 5.0
SILENCE_LIMIT_S = 600.0  # for kubectl to fail
POD_REPORT_S = 10.0  # until Kubernetes reports the end of a pod that its leader has lost
NOT_FOUND = "(NotFound)"  # in an error of kubectl: somebody has deleted the JobSet
NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"


def make_manifest(specs: Sequence[RunSpec]) -> Any:
    """Return the manifest of the JobSet that does these runs, with a name of its own."""
    size, name = sweep_geometry(specs), f"scalebench-{max(spec.gpus for spec in specs)}-{secrets.token_hex(3)}"
    limit_s = 60 * time_limit_minutes(specs, [estimate_s(spec)[1] for spec in specs])
    return jobset.make_jobset(name, specs[0].config.hardware, size.nodes, size.gpus_per_node, limit_s)


class JobSetFollower:
    """The JobSets of one program, one after the other, with the methods of JobFollower."""

    def __init__(self, on_change: Callable[[QueueState], None], print_line: Callable[[str], None]) -> None:
        self._on_change, self._print_line = on_change, print_line
        self._results: Iterator[JobResult] = iter(())
        self._left: list[RunRequest] = []  # runs without a result
        self._total = 0
        self._name = ""  # of the current JobSet
        self._runs: dict[int, RunRequest] = {}  # those of it without a result, by the numbers that they have in it
        self._lines = 0  # of its leader's log that have been printed

    @property
    def unfinished(self) -> int:
        """Return the number of JobSets that were made and have runs without a result."""
        return 1 if self._name else 0

    def follow(self, jobs: Sequence[PlannedJob], adopted: Sequence[RunRequest]) -> Iterator[JobResult]:
        """Make the JobSets of these jobs, and yield each of their runs with its result, and so those of `adopted`,
        whose JobSets were made before. A KeyboardInterrupt leaves a JobSet as it is."""
        self._left = [*adopted, *(request for job in jobs for request in job.requests)]
        self._settings = self._left[0].spec.config.hardware.kubernetes
        self._kubectl = Kubectl(self._settings.namespace)
        self._total, self._results = len(self._left), self._follow_all(jobs, adopted)
        return iter(self._next, None)

    def cancel(self) -> None:
        """Delete the JobSet; follow's iterator then yields the runs that are left as cancelled."""
        if self._name:
            self._delete("jobset", "secret")
        outcome = RunOutcome("cancelled", "cancelled before it was over")
        self._results = ((request, write_result_for(request, outcome)) for request in list(self._left))

    def _next(self) -> JobResult | None:
        result = next(self._results, None)
        if result is not None:
            self._left.remove(result[0])
        return result

    def _follow_all(self, jobs: Sequence[PlannedJob], adopted: Sequence[RunRequest]) -> Iterator[JobResult]:
        made: dict[str, dict[int, RunRequest]] = {}
        for request in adopted:
            if (submission := read_submission(request.folder)) is not None:
                made.setdefault(submission.job_id, {})[submission.number] = request
        for name, runs in made.items():
            yield from self._follow(name, runs)
        for job in jobs:
            manifest = make_manifest([request.spec for request in job.requests])
            runs = {request.number: request for request in job.requests}
            yield from self._follow(manifest["metadata"]["name"], runs, manifest, job.units)

    def _follow(
        self, name: str, runs: dict[int, RunRequest], manifest: Any = None, units: Sequence[Sequence[RunRequest]] = ()
    ) -> Iterator[JobResult]:
        """Yield the runs of a JobSet with their results; with a manifest it is made first, and does these units."""
        self._name, self._runs, self._lines = name, runs, 0
        try:
            if manifest is not None:
                with process.defer_signals():  # one without a record would go on unnoticed
                    self._create(manifest, units)
            yield from self._follow_log()
            outcome = self._explain() if self._runs else RunOutcome("ok")
        except (KubectlError, InputError) as error:
            outcome = RunOutcome("failed", str(error))
        self._delete("secret")
        for run in self._runs.values():
            yield run, write_result_for(run, outcome)
        self._name = ""

    def _delete(self, *kinds: str) -> None:
        for kind in kinds:
            with contextlib.suppress(KubectlError), process.defer_signals():
                self._kubectl.run("delete", kind, self._name, "--ignore-not-found", "--wait=false")

    def _create(self, manifest: Any, units: Sequence[Sequence[RunRequest]]) -> None:
        for number, run in self._runs.items():
            run.folder.mkdir(parents=True, exist_ok=True)
            write_spec(run.spec, run.folder)
            write_submission(Submission(self._name, time.time(), number=number), run.folder)
        secret = jobset.make_secret(self._name, self._settings, secrets.token_hex(32), pack_runs(units))
        for each in (secret, manifest):  # on standard input: others see command lines
            self._kubectl.run("create", "--filename", "-", content=json.dumps(each))
        self._print_line(f"{'1 run is' if len(self._runs) == 1 else f'{len(self._runs)} runs are'} JobSet {self._name}")

    def _follow_log(self) -> Iterator[JobResult]:
        """Yield the runs that have a result, until all have or the JobSet is over."""
        answered_s, is_over = time.monotonic(), False
        while True:
            was_over = is_over  # its log is read once more
            for number, line in enumerate(self._kubectl.follow_log(f"{self._name}-leader-0")):
                is_new, self._lines = number >= self._lines, max(self._lines, number + 1)
                yield from self._read(line, is_new)
            if was_over or not self._runs:
                return
            try:
                is_over = "terminalState" in self._read_status()
                self._report_pods()
                answered_s = time.monotonic()
            except KubectlError as error:
                if NOT_FOUND in str(error) or time.monotonic() - answered_s > SILENCE_LIMIT_S:
                    raise
            if not is_over and process.cancelled.wait(POLL_INTERVAL_S):
                raise KeyboardInterrupt

    def _read(self, line: str, is_new: bool) -> Iterator[JobResult]:
        """Yield the run whose result this line is, also in a line that is not new: after a rotation of the log its
        count begins again. Another line is printed once."""
        try:
            number, files = unpack_result(line)
        except (ValueError, AttributeError, OSError, EOFError):
            if is_new:
                self._print_line(clean_text(line))
            return
        if (run := self._runs.pop(number, None)) is None:
            return
        with process.defer_signals():
            for name, content in files.items():
                if name == RESULT_FILE or OUTPUT_FILES.fullmatch(name):
                    (run.folder / name).write_bytes(content)
            result = read_result(run.folder / RESULT_FILE)
            if result.status == "failed" and LOST in (result.reason or ""):  # the leader does not know why
                process.wait_until(lambda: self._find_dead_pod() is not None, POD_REPORT_S)
                result = with_job_outcome(result, result.scheduler, self._find_dead_pod())
                write_result(result, run.folder)
        yield run, result

    def _read_status(self) -> dict[str, Any]:
        return dict(self._kubectl.read("jobset", self._name).get("status", {}))

    def _read_pods(self) -> list[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
        """Return the name and the status of each pod of the JobSet, with the state of its container once it has one."""
        pods = self._kubectl.read("pods", "--selector", f"{NAME_LABEL}={self._name}")["items"]
        named = [(pod["metadata"]["name"], pod.get("status", {})) for pod in pods]
        return [(*pod, [each.get("state", {}) for each in pod[1].get("containerStatuses", ())]) for pod in named]

    def _report_pods(self) -> None:
        """Report whether the runs are running, and what pods wait for: a node, or an image that is not there."""
        pods = self._read_pods()
        waits = [state["waiting"] for _, _, states in pods for state in states if "waiting" in state]
        waits += [each for _, pod, _ in pods for each in pod.get("conditions", ()) if each["type"] == "PodScheduled"]
        reasons = sorted({each["reason"] for each in waits if each.get("status") != "True" and "reason" in each})
        is_waiting = bool(reasons) or not any(states for _, _, states in pods)
        runs = [*self._runs.values()]
        running, pending = ([], len(runs)) if is_waiting else (runs, 0)
        waiting, reason = len(self._left) - len(runs), clean_text(", ".join(reasons)) or None
        self._on_change(QueueState(waiting, pending, reason, tuple(running), self._total - len(self._left)))

    def _find_dead_pod(self) -> RunOutcome | None:
        """Return what a pod was ended for, in which the ranks and their agent end together."""
        with contextlib.suppress(KubectlError):
            for name, pod, states in self._read_pods():
                if pod.get("reason") == "DeadlineExceeded":
                    return RunOutcome("timeout", f"Kubernetes: {name} ran out of its time limit")
                if any(state.get("terminated", {}).get("reason") == "OOMKilled" for state in states):
                    return RunOutcome("oom", f"Kubernetes: {name} was OOMKilled")
        return None

    def _explain(self) -> RunOutcome:
        """Return why a JobSet that is over has left no result of a run."""
        if (outcome := self._find_dead_pod()) is not None:
            return outcome
        reached = [each for each in self._read_status().get("conditions", ()) if each.get("status") == "True"]
        text = clean_text("; ".join(f"{each.get('reason')}: {each.get('message')}" for each in reached))
        return RunOutcome("failed", f"Kubernetes: JobSet {self._name} left no result ({text or 'no reason'})")
