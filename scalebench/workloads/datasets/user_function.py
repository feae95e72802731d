"""Samples from a function of the user or of a plugin, made once in a process of their own and then read from the cache.

The function is called with size, seed and its options. The other process isolates whatever it imports, prints or
breaks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scalebench.core import exit_with_parent, plugins
from scalebench.core.errors import InputError, PluginError
from scalebench.core.json_files import format_json, parse_record, read_record, read_tail
from scalebench.core.process import build_python_command
from scalebench.core.spec import Config, DatasetSpec
from scalebench.workloads import records, user_code
from scalebench.workloads.datasets import cache, sample_writer
from scalebench.workloads.datasets.sample_writer import READING_FILE, Reading
from scalebench.workloads.source import SampleShape

FORMAT_VERSION = 3  # raise it when the same function gives other files than before
MAX_ONE_HOT_ROWS = 1000
MAX_LOG_BYTES = 20_000  # of the end of its output, kept beside the traceback


@dataclass(frozen=True)
class FunctionCall:
    """The call of the function that makes a dataset."""

    reference: str  # "module:function"
    label: str  # its name in messages
    size: int
    seed: int
    options: dict[str, Any]
    from_user: bool = True  # dataset.builder names it, which may be in the current folder; else a plugin
    plugin_version: str = ""


@dataclass(frozen=True)
class Answer:
    """What went wrong in a call, by its kind: `function`, an InputError of its own (`input`), or a `file` that cannot
    be written. An empty kind: the samples are written."""

    kind: str = ""
    problem: str = ""
    traceback: str = ""
    errno: int = 0


class SampleFacts(NamedTuple):
    """The facts that are read from the files that a function's samples are kept in."""

    samples: int
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    dtype: str
    max_class: int | None  # None: the targets are quantities
    fields: str | None = None  # of records, for messages; None: one array of floats or bytes
    needs_loss: bool = False  # the targets are records or missing, so that only a loss of the user is for them
    one_hot: bool = False  # the targets are floats, one 1 and else 0 in each of the first rows
    reading: Reading = Reading()
    tokens: int | None = None  # of a sample, by their usual name; None: it has none of that name


def has_function(dataset: DatasetSpec) -> bool:
    """Return whether a function of the user or of a plugin makes the dataset."""
    return dataset.builder is not None or dataset.name in plugin_datasets()


def plugin_datasets() -> list[str]:
    """Return the names of the datasets that plugins add."""
    return [point.name for point in plugins.plugin_entries("datasets")]


def find_call(dataset: DatasetSpec) -> FunctionCall:
    """Return the call that makes the dataset, of a plugin's function or of dataset.builder."""
    arguments = dataset.requested_size or dataset.size, dataset.seed, dataset.options
    point = next((point for point in plugins.plugin_entries("datasets") if point.name == dataset.name), None)
    if point is None:
        assert dataset.builder is not None  # has_function holds
        return FunctionCall(dataset.builder, f"dataset.builder={dataset.builder}", *arguments)
    label = f"data set '{point.name}' of {point.origin}"
    return FunctionCall(point.target, label, *arguments, from_user=False, plugin_version=point.version)


def fill_from_function(config: Config, cache_dir: Path) -> Config:
    """Return the config with the digest of its function's file and with what only the samples can tell: their number,
    dtype and classes. They are made if needed.

    A network of scalebench for pictures takes them at the size that they have. Raises InputError for keys of other
    datasets and for settings that contradict the samples, PluginError where the function fails.
    """
    dataset, model = config.dataset, config.model
    if dataset.path is not None:
        raise InputError(f"dataset={dataset.name} is made by a function, not read: leave out dataset.path")
    if dataset.image_size is not None:
        raise InputError(f"dataset={dataset.name} has samples as its function makes them: leave out dataset.image_size")
    call = find_call(dataset)
    try:
        digest = user_code.file_digest(call.reference, "dataset.builder" if call.from_user else call.label)
    except InputError:
        if dataset.name == user_code.CUSTOM:
            raise
        digest = None  # the process that loads the plugin's function reports the problem with its traceback
    dataset = dataclasses.replace(dataset, code_digest=digest)
    facts = find_facts(dataclasses.replace(config, dataset=dataset), cache_dir)
    classes = dataset.classes
    if facts.max_class is None and classes is not None:
        raise InputError(f"dataset={dataset.name} has quantities as targets: leave out dataset.classes")
    if facts.max_class is not None:
        min_classes = max(2, facts.max_class + 1)  # a classifier needs two
        if classes is not None and classes < min_classes:
            raise InputError(
                f"dataset.classes={classes}, and dataset={dataset.name} has class {facts.max_class}: raise it"
            )
        classes = classes or min_classes
    dataset = dataclasses.replace(
        dataset,
        size=facts.samples,
        requested_size=None if call.size == facts.samples else call.size,
        dtype=facts.dtype,
        classes=classes,
    )
    shape = list(facts.input_shape)
    if len(shape) == len(model.input_shape) == 3 and shape != model.input_shape:
        model = dataclasses.replace(model, input_shape=shape, params=None)
    return dataclasses.replace(config, dataset=dataset, model=model)


def find_facts(config: Config, cache_dir: Path) -> SampleFacts:
    """Return the facts about the samples, for a config with the digest of the function's file."""
    return read_facts(ensure_samples(config.dataset, config.measure.timeout_s, cache_dir))


def sample_shape(config: Config, cache_dir: Path) -> SampleShape:
    """Return the shapes of the samples, for a config that fill_from_function returned."""
    facts = find_facts(config, cache_dir)
    shapes = facts.input_shape, facts.target_shape, config.dataset.classes
    return SampleShape(*shapes, facts.fields, facts.needs_loss, facts.reading.unusable_targets)


_failed: dict[Path, PluginError] = {}  # of one call of the program, so that a sweep waits only once for a failure


def forget_failures() -> None:
    """Call functions that have failed again: in a notebook the cause may be gone by the next call."""
    _failed.clear()


def ensure_samples(dataset: DatasetSpec, limit_s: float, cache_dir: Path) -> Path:
    """Return the folder with the samples, and make them within `limit_s` first if they are missing.

    Raises PluginError where the function fails and InputError where the cache is full.
    """
    call = find_call(dataset)
    identity = {
        "format": FORMAT_VERSION,
        "function": call.reference,
        "code": dataset.code_digest,
        "version": call.plugin_version,
        "size": call.size,
        "seed": call.seed,
        "options": call.options,
    }
    name = re.sub(r"\W", "_", dataset.name)
    folder = cache_dir.absolute() / f"{name}-{cache.cache_key(name, identity)}"
    if folder in _failed:
        raise _failed[folder]
    try:  # the size in bytes is not known in advance
        return cache.ensure_folder(cache_dir, name, identity, 0, functools.partial(run_function, call, limit_s))
    except PluginError as error:
        _failed[folder] = error
        raise


@functools.lru_cache(maxsize=64)  # a complete cache folder never changes
def read_facts(folder: Path) -> SampleFacts:
    """Return the facts about the samples in a cache folder."""
    inputs, targets = cache.open_arrays(folder)
    is_record, first = records.is_record(inputs.dtype), targets[:MAX_ONE_HOT_ROWS]
    return SampleFacts(
        samples=len(inputs),
        input_shape=() if is_record else inputs.shape[1:],
        target_shape=targets.shape[1:],
        dtype=records.RECORD if is_record else str(inputs.dtype),
        max_class=int(targets.max()) if np.issubdtype(targets.dtype, np.integer) else None,
        fields=records.describe_fields(inputs.dtype) if is_record else None,
        needs_loss=records.is_record(targets.dtype),
        one_hot=first.dtype.kind == "f"
        and first.ndim == 2
        and first.shape[1] > 1
        and bool(((first == 0) | (first == 1)).all() and (first.sum(axis=1) == 1).all()),
        reading=read_record(folder / READING_FILE, Reading),
        tokens=records.count_tokens(inputs.dtype),
    )


def run_function(call: FunctionCall, limit_s: float, folder: Path) -> None:
    """Have a process call the function and write both arrays into `folder`.

    Raises PluginError, whose log has the function's output and traceback, where the function fails or takes longer
    than `limit_s`; InputError if the function raised one; and OSError where the disk is full.
    """
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as answer, tempfile.NamedTemporaryFile() as log:
        request.write(format_json(call).encode())
        request.seek(0)
        program = f"import sys; from {__name__} import answer_call; answer_call(int(sys.argv[1]), sys.argv[2])"
        command = build_python_command("-c", program, str(os.getpid()), str(folder))
        process = subprocess.Popen(command, stdin=request, stdout=answer, stderr=log, start_new_session=True)
        status = _wait_for_end(process, call, limit_s)
        answer.seek(0)
        try:
            reply = parse_record(answer.read(), Answer)
        except ValueError:  # it was killed
            reply = Answer("function", _describe_exit(status, limit_s, call))
        output = read_tail(Path(log.name), MAX_LOG_BYTES)
    match reply.kind:
        case "file":
            raise OSError(reply.errno, os.strerror(reply.errno))
        case "input":
            raise InputError(reply.problem)
        case "function":
            raise PluginError(reply.problem, "\n".join(filter(None, [output, reply.traceback])))
    available = read_record(folder / READING_FILE, Reading).available or 0
    if available > call.size:
        line = (
            f"{call.label} has {available:,} samples, of which dataset.size={call.size} takes the first {call.size:,}"
        )
        print(line, file=sys.stderr, flush=True)


def answer_call(parent: int, folder: str) -> None:
    """Make the samples of the call on standard input, in the process of run_function; answer with what goes wrong."""
    exit_with_parent.tie_to_parent(parent, signal.SIGKILL)
    call, reply = parse_record(sys.stdin.buffer.read(), FunctionCall), Answer()
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what the function prints is not an answer
        try:
            make_samples(call, Path(folder))
        except PluginError as error:
            reply = Answer("function", str(error), error.log)
        except InputError as error:
            reply = Answer("input", str(error))
        except OSError as error:
            reply = Answer("file", errno=error.errno or 0)
        answer.write(format_json(reply))


def make_samples(call: FunctionCall, folder: Path) -> None:
    """Call the function and write its samples into the folder. Raises as run_function does."""
    guard = functools.partial(_blame_function, call.label)
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


def _wait_for_end(process: subprocess.Popen[bytes], call: FunctionCall, limit_s: float) -> int | None:
    """Return the exit status, or None after `limit_s`. The process and all that it started are gone afterwards."""
    try:
        try:
            return process.wait(min(cache.NOTICE_AFTER_S, limit_s))
        except subprocess.TimeoutExpired:
            print(f"{call.label} is making its samples, {call.size:,} requested", file=sys.stderr, flush=True)
        return process.wait(max(0.0, limit_s - cache.NOTICE_AFTER_S))
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _describe_exit(status: int | None, limit_s: float, call: FunctionCall) -> str:
    """Return in one line why the worker gave no response."""
    if status is None:
        return f"{call.label} was not done after {limit_s:g} s: lower dataset.size or raise measure.timeout_s"
    if status == -signal.SIGKILL:
        return f"{call.label} was killed while it made its samples (out of memory?): lower dataset.size"
    if status < 0:
        return f"{call.label} was ended by {signal.Signals(-status).name} while it made its samples"
    return f"{call.label} ended its process with exit status {status} and gave no samples: it should return them"
