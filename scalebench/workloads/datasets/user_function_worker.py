"""The process that calls a dataset function, started as `python -m ...user_function_worker PARENT FOLDER` with a
FunctionCall as JSON on its standard input. FOLDER receives the samples, standard output an Answer as JSON."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from scalebench.core import exit_with_parent, plugins
from scalebench.core.errors import InputError, PluginError
from scalebench.core.json_files import format_json, parse_record
from scalebench.workloads import user_code
from scalebench.workloads.datasets import sample_writer
from scalebench.workloads.datasets.user_function import Answer, FunctionCall


def main(parent: int, folder: Path) -> None:
    exit_with_parent.tie_to_parent(parent, signal.SIGKILL)
    call = parse_record(sys.stdin.buffer.read(), FunctionCall)
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what the function prints is not an answer
        try:
            make_samples(call, folder)
            answer = Answer("written")
        except PluginError as error:
            answer = Answer("function", str(error), error.log)
        except InputError as error:
            answer = Answer("input", str(error))
        except OSError as error:
            answer = Answer("file", errno=error.errno or 0)
        answers.write(format_json(answer))


def make_samples(call: FunctionCall, folder: Path) -> None:
    """Call the function and write its samples into the folder. Raises as its caller's run_function does."""
    guard = partial(_blame_function, call.label)
    with guard():
        if call.from_user:
            function = user_code.load_function(call.reference, call.label.partition("=")[0])
        else:
            function = plugins.load_object(call.reference, call.label)
        if not callable(function):
            raise PluginError(f"{call.label} is not a function")
        result = function(call.size, call.seed, **call.options)
    sample_writer.write_samples(result, folder, call.size, guard)


@contextlib.contextmanager
def _blame_function(label: str) -> Iterator[None]:
    """Raise a PluginError for whatever is wrong with the function, unless that raises an InputError by itself."""
    with plugins.attribute_errors(label):
        try:
            yield
        except sample_writer.UnusableSamples as error:
            raise plugins.UserProblem(f"returns {error}") from error
        except MemoryError as error:
            raise plugins.UserProblem("ran out of memory: lower dataset.size") from error


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
