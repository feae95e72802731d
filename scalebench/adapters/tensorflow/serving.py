"""The ps and worker processes of a parameter server: TensorFlow's server, and Python of ours that the chief reaches
through it.

What the chief schedules on a worker is a graph, and a tf.data generator in it would run in the chief and send every
sample over the network. So each worker keeps a function that reads rows of the data set, under a name that the
chief's graphs call.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scalebench.adapters.tensorflow import cluster, devices, evidence, precision
from scalebench.spec import Place, RunSpec
from scalebench.workloads import datasets
from scalebench.workloads.uncached_rows import UncachedRows

READ, RECORD = "scalebench.read", "scalebench.record"
_kept: dict[str, Callable[..., Any]] = {}  # TensorFlow's own table holds them weakly


def jobs(spec: RunSpec) -> dict[str, list[str]]:
    """Addresses by role."""
    everyone = cluster.addresses()
    roles = dict.fromkeys(place.role for place in spec.places)
    return {role: [everyone[p.rank] for p in spec.places if p.role == role] for role in roles}


def serve(spec: RunSpec, place: Place) -> None:
    """Run the server of this process; returns only by an exception or a signal."""
    from tensorflow.python.eager import context

    mine = devices.configure(spec.device, place)
    enough_threads(spec, place)
    if place.role == "worker":
        precision.choose(spec.config.train.precision, mine[0])
        _keep(READ, Rows(spec))
    _keep(RECORD, Recorder())
    index = sum(p.role == place.role for p in spec.places[: place.rank])
    everyone, config = tf.train.ClusterSpec(jobs(spec)), context.context().config
    with cluster.port_of(place.rank):
        server = tf.distribute.Server(everyone, place.role, index, protocol="grpc", config=config)
    while server:  # its join() would keep signals from Python
        signal.pause()


def enough_threads(spec: RunSpec, place: Place) -> None:
    """Threads that run operations: a call from another process keeps one until all of its operations, which need
    others, are done. A worker is called by the chief alone, one call at a time, and the others by all workers."""
    tf.config.threading.set_inter_op_parallelism_threads(2 if place.role == "worker" else spec.gpus + 1)


class Rows:
    """Samples of the training set by their row, read in this process as `dataset.feed` says."""

    def __init__(self, spec: RunSpec) -> None:
        feed = spec.config.dataset.feed
        arrays = datasets.open_dataset(spec)
        self._arrays = [UncachedRows(array) if feed == "disk" else np.asarray(array) for array in arrays]
        self._fixed: dict[bytes, list[NDArray[Any]]] | None = {} if feed == "fixed" else None

    def __call__(self, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        if self._fixed is None:
            return self._read(rows)
        key = rows.tobytes()
        if key not in self._fixed:
            self._fixed[key] = self._read(rows)
        return self._fixed[key]

    def _read(self, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        return [a(rows) if isinstance(a, UncachedRows) else np.take(a, rows, axis=0) for a in self._arrays]


class Recorder:
    """Called with True, profiles this process until it is called with False, which gives the names of all events."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._events: Future[set[str]] | None = None

    def __call__(self, on: NDArray[np.bool_]) -> NDArray[np.object_]:
        if not on:
            assert self._events is not None
            self._over.set()
            return np.array([name.encode() for name in sorted(self._events.result())], object)
        begun = threading.Event()
        self._over.clear()
        self._events = ThreadPoolExecutor(1).submit(evidence.profiled, lambda: (begun.set(), self._over.wait()))
        begun.wait()
        return np.array([], object)


def read(rows: tf.Tensor, spec: tuple[tf.TensorSpec, tf.TensorSpec]) -> list[tf.Tensor]:
    """Inputs and targets of these rows (int64), read in whichever worker runs the graph that this becomes part of."""
    parts = tf.raw_ops.PyFunc(input=[rows], token=READ, Tout=[part.dtype for part in spec])
    return [tf.ensure_shape(part, wanted.shape) for part, wanted in zip(parts, spec, strict=True)]


def record(job: str, index: int, on: bool) -> set[str]:
    """Begin to profile that process, or end it and get the names of its events; called from the chief."""
    with tf.device(f"/job:{job}/replica:0/task:{index}/device:CPU:0"):
        (names,) = tf.raw_ops.PyFunc(input=[tf.constant(on)], token=RECORD, Tout=[tf.string])
    return {name.decode() for name in names.numpy()}


def _keep(token: str, function: Callable[..., Any]) -> None:
    """Have PyFunc operations of that token call `function` in this process. tf.numpy_function would choose the token
    itself and bind the operation to the process that made the graph."""
    from tensorflow.python.ops import script_ops

    _kept[token] = function
    script_ops._py_funcs._funcs[token] = function
