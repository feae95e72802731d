"""The devices of one process (GPUs, or virtual devices that share the CPU), its threads, and the precision and memory
layout that they compute in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import keras
import tensorflow as tf

from scalebench.core.machine.cuda_builds import TENSORFLOW_APART
from scalebench.core.machine.gpus import choose_visible_gpus
from scalebench.core.spec import RankPlacement
from scalebench.strategies.base import Unsupported


def configure_devices(kind: str, place: RankPlacement) -> list[str]:
    """Restrict TensorFlow to the process's devices; return their names in the order of `place.devices`.

    `kind` is cpu or cuda; a process that drives no device gets the CPU. Must be called before any other use of
    TensorFlow. Raises Unsupported if TensorFlow sees too few GPUs.
    """
    count = max(1, len(place.devices))
    tf.config.threading.set_intra_op_parallelism_threads(place.threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(count, place.threads or 0))
    if kind == "cpu" or not place.devices:
        tf.config.set_visible_devices([], "GPU")
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        return [f"/CPU:{index}" for index in range(count)]
    gpus = tf.config.list_physical_devices("GPU")
    devices = choose_visible_gpus(place.devices, len(gpus))
    if max(devices) >= len(gpus):
        hint = f"; its libraries for GPUs are installed {TENSORFLOW_APART}" if not gpus else ""
        needs = f"this process needs number {max(devices)}"
        raise Unsupported(f"TensorFlow {tf.__version__} sees {len(gpus)} GPUs and {needs}{hint}")
    numbers = sorted(devices)  # TensorFlow numbers visible GPUs in their physical order, whatever the list's
    local_gpus = [gpus[number] for number in numbers]
    tf.config.set_visible_devices(local_gpus, "GPU")
    for gpu in local_gpus:
        tf.config.experimental.set_memory_growth(gpu, True)  # so that the peak is the memory that training needs
    return [f"/GPU:{numbers.index(number)}" for number in devices]


def synchronize() -> None:
    """Wait for the work issued to the devices of this process. TensorFlow's own sync_devices also addresses the devices
    of the cluster's other processes, which reject the call."""
    with tf.device("/CPU:0"):
        local = tf.DeviceSpec.from_string(tf.zeros(()).device)
    for device in tf.config.list_logical_devices():
        spec = tf.DeviceSpec.from_string(device.name)
        if spec.job is None or (spec.job, spec.task) == (local.job, local.task):
            with tf.device(device.name):
                tf.raw_ops.SyncDevice()


def create_buffer(device: str, size_bytes: int) -> tf.Tensor:
    """Return zeros on the device, of this size or the smallest possible one."""
    with tf.device(device):
        return tf.zeros(max(1, size_bytes // tf.float32.size))


def peak_memory_bytes(device: str) -> int | None:
    """Return the peak of the memory allocated on a GPU; None for the CPU, which TensorFlow does not track."""
    if "GPU" not in device:
        return None
    return int(tf.config.experimental.get_memory_info(device.removeprefix("/"))["peak"])


def variable_bytes(devices: Iterable[str], variables: Iterable[keras.Variable]) -> list[int]:
    """Return the bytes of the variables on each device; a mirrored variable counts on every device that has a copy."""
    sizes: Counter[tuple[str | None, int | None]] = Counter()
    for variable in variables:
        for copy in getattr(variable.value, "values", (variable.value,)):
            sizes[_device_key(copy.device)] += copy.shape.num_elements() * copy.dtype.size
    return [sizes[_device_key(device)] for device in devices]


def _device_key(device: str) -> tuple[str | None, int | None]:
    """Return type and index of a device of this process, for short and full device names alike."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index


HALF_DTYPES = ("bfloat16", "float16")
MIN_TF32_CAPABILITY = (8, 0)  # Ampere; TensorFlow ignores the setting on older GPUs


def configure_precision(precision: str, device: str) -> str:
    """Return the dtype to compute in, and set whether GPUs may round products to TF32, which `default` leaves as
    TensorFlow has it: on.

    Raises Unsupported for tf32 on a device without it.
    """
    if precision != "default":
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    if precision == "tf32" and not has_tf32(device):
        raise Unsupported("train.precision=tf32 needs a GPU of compute capability 8.0 or above; use float32")
    return precision if precision in HALF_DTYPES else "float32"


def check_channels_first(device: str, compute_dtype: str) -> None:
    """Raise Unsupported if TensorFlow has no channels-first kernels: on the CPU only oneDNN has them, and for float16
    only on some processors."""
    if "GPU" in device:
        return
    try:
        _channels_first_gradient(tf.zeros((1, 2, 4, 4), compute_dtype), tf.zeros((3, 3, 2, 2), compute_dtype))
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
        raise Unsupported(
            f"train.data_format=nchw has no kernels for {compute_dtype} in this TensorFlow on this CPU: only oneDNN "
            "has them, for some precisions, on newer CPUs or with TF_ENABLE_ONEDNN_OPTS=1; use nhwc"
        ) from None


def has_tf32(device: str) -> bool:
    if "GPU" not in device:
        return False
    index = int(device.rpartition(":")[2])
    details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[index])
    return tuple(details.get("compute_capability", (0, 0))) >= MIN_TF32_CAPABILITY


@tf.function
def _channels_first_gradient(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tf.nn.conv2d(x, kernel, 1, "SAME", data_format="NCHW")
        y = tf.nn.max_pool2d(y, 2, 2, "VALID", data_format="NCHW")
        y = tf.nn.avg_pool2d(y, 2, 2, "VALID", data_format="NCHW")
    return tape.gradient(y, [x, kernel])
