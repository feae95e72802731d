"""The process that calls a dataset function, started as `python -m ...user_function_worker PARENT FOLDER` with a
pickled FunctionCall on its standard input. FOLDER receives the samples, standard output the pickled error or None."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from scalebench.core import exit_with_parent, plugins
from scalebench.core.errors import InputError, PluginError
from scalebench.workloads import user_code
from scalebench.workloads.datasets import sample_writer
from scalebench.workloads.datasets.user_function import FunctionCall


def main(parent: int, folder: Path) -> None:
    exit_with_parent.tie_to_parent(parent, signal.SIGKILL)
    call: FunctionCall = pickle.load(sys.stdin.buffer)
    problem: Exception | None = None
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what the function prints is no answer
        try:
            make_samples(call, folder)
        except PluginError as error:
            problem = error
        except InputError as error:
            problem = InputError(str(error))  # whatever class of the user's it is
        except OSError as error:
            problem = OSError(error.errno, error.strerror)
        pickle.dump(problem, answers)


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
