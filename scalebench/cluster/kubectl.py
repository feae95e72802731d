"""The command kubectl, with its errors in one line of its own words."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

COMMAND_LIMIT_S = 60.0
MAX_MESSAGE_CHARACTERS = 300
# kubectl writes lines of its own log (level, month, day) and warnings before its error.
NOISE = re.compile(r"^([IWEF]\d{4} |Warning: ).*$", re.MULTILINE)


class KubectlError(Exception):
    pass


class Kubectl:
    """kubectl in one namespace, or in that of the user's context where it is None."""

    def __init__(self, namespace: str | None) -> None:
        self._command = ["kubectl", *([] if namespace is None else ["--namespace", namespace])]

    def run(self, *words: str, content: str = "") -> str:
        """Run a command with this input, and return its output; KubectlError."""
        command = [*self._command, *words]
        try:
            done = subprocess.run(command, input=content, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise KubectlError(f"{shlex.join(command)}: no answer within {COMMAND_LIMIT_S:g} s") from None
        except OSError as error:
            raise KubectlError(f"kubectl: {error}") from None
        if done.returncode:
            # `auth can-i` says no on its output.
            text = " ".join((NOISE.sub("", done.stderr).strip() or done.stdout).split())[:MAX_MESSAGE_CHARACTERS]
            raise KubectlError(f"{shlex.join(command)}: {text or f'exit status {done.returncode}'}")
        return done.stdout

    def find_problem(self) -> str | None:
        """Return why no JobSet can be made; None where the user may make them and the cluster knows them."""
        try:
            self.run("get", "--raw", "/apis/jobset.x-k8s.io/v1alpha2")
            self.run("auth", "can-i", "create", "jobsets.jobset.x-k8s.io")
        except KubectlError as error:
            return str(error)
        return None

    def read(self, *words: str) -> dict[str, Any]:
        """Return what `kubectl get` reads; KubectlError."""
        return dict(json.loads(self.run("get", *words, "--output", "json")))

    def has_jobset(self, name: str) -> bool:
        return bool(self.run("get", "jobset", name, "--ignore-not-found", "--output", "name").strip())

    def follow_log(self, job: str) -> Iterator[str]:
        """Yield the lines of the log of a job's pod from its beginning on, as they come; none before it runs."""
        with subprocess.Popen(
            [*self._command, "logs", "--follow", f"job/{job}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            try:
                yield from (line.rstrip("\n") for line in process.stdout or ())
            finally:
                process.kill()
