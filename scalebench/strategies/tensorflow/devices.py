"""The devices of one process: virtual ones that share the CPU, or GPUs; and its threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import keras
import tensorflow as tf

from scalebench.core.spec import Place
from scalebench.strategies.base import Unsupported


def configure(kind: str, place: Place) -> list[str]:
    """Names of the process's devices, in the order of `place.devices`, from now on TensorFlow's only ones.

    `kind` is cpu or cuda; a process that drives no device has the CPU. Comes before anything else is done with
    TensorFlow. Unsupported if it sees too few GPUs.
    """
    count = max(1, len(place.devices))
    tf.config.threading.set_intra_op_parallelism_threads(place.threads)
    tf.config.threading.set_inter_op_parallelism_threads(count)
    if kind == "cpu" or not place.devices:
        tf.config.set_visible_devices([], "GPU")
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        return [f"/CPU:{index}" for index in range(count)]
    gpus = tf.config.list_physical_devices("GPU")
    if max(place.devices) >= len(gpus):
        raise Unsupported(
            f"TensorFlow {tf.__version__} sees {len(gpus)} GPUs and this process wants number {max(place.devices)}"
        )
    mine = [gpus[index] for index in place.devices]
    tf.config.set_visible_devices(mine, "GPU")
    for gpu in mine:
        tf.config.experimental.set_memory_growth(gpu, True)  # so that the peak is what training took
    return [f"/GPU:{index}" for index in range(count)]


def synchronize() -> None:
    """Wait for the work issued to the devices of this process. TensorFlow's sync_devices would also ask those of the
    other processes of a cluster, which refuse."""
    for name in _own():
        with tf.device(name):
            tf.raw_ops.SyncDevice()


def _own() -> list[str]:
    with tf.device("/CPU:0"):
        here = tf.DeviceSpec.from_string(tf.zeros(()).device)
    specs = {device.name: tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices()}
    return [name for name, spec in specs.items() if spec.job is None or (spec.job, spec.task) == (here.job, here.task)]


def peak_memory_bytes(device: str) -> int | None:
    """The most that was allocated on a GPU at once; None on the CPU, where TensorFlow does not tell."""
    if "GPU" not in device:
        return None
    return int(tf.config.experimental.get_memory_info(device.removeprefix("/"))["peak"])


def kept_bytes(devices: Iterable[str], variables: Iterable[keras.Variable]) -> list[int]:
    """Of what lies on each of these devices, of a variable with a copy on several each device's own."""
    found: Counter[tuple[str | None, int | None]] = Counter()
    for variable in variables:
        for one in getattr(variable.value, "values", (variable.value,)):
            found[_kind_and_index(one.device)] += one.shape.num_elements() * one.dtype.size
    return [found[_kind_and_index(device)] for device in devices]


def _kind_and_index(device: str) -> tuple[str | None, int | None]:
    """Of a device of this process, however its name is written."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index
