"""The devices of one process (GPUs, or virtual devices that share the CPU), its threads, and `train.precision` and
`train.data_format` on them."""

from __future__ import annotations

import os
import re
from typing import Any

import jax
import jax.numpy as jnp

from scalebench.plugin_api import RankPlacement, TrainSpec, Unsupported


def configure_devices(kind: str, place: RankPlacement) -> list[jax.Device]:
    """Restrict JAX to the process's devices; return them in the order of `place.devices`.

    `kind` is cpu or cuda. Must be called before any other use of JAX. Raises Unsupported if JAX sees too few GPUs.
    """
    count = len(place.devices)
    if kind == "cpu":
        os.environ["NPROC"] = str(place.threads * count)  # XLA's only setting for the size of its thread pool
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
        return jax.devices()[:count]
    os.environ.setdefault(
        "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
    )  # by default it allocates three quarters of each GPU
    jax.config.update("jax_cuda_visible_devices", ",".join(map(str, place.devices)))
    try:
        gpus = jax.devices("cuda")
    except RuntimeError:
        raise Unsupported(f"JAX {jax.__version__} has no part for GPUs here: pip install 'jax[cuda12]'") from None
    if len(gpus) < count:
        raise Unsupported(f"JAX {jax.__version__} sees {len(gpus)} of the GPUs {place.devices} that it is to drive")
    return gpus[:count]


def peak_memory_bytes(device: jax.Device) -> int | None:
    """Return the peak of the memory allocated on a GPU; None for the CPU, which XLA does not track."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    peak = (stats or {}).get("peak_bytes_in_use")
    return None if peak is None else int(peak)


def library_versions() -> dict[str, str]:
    import jaxlib.version
    import optax

    return {"jax": jax.__version__, "jaxlib": jaxlib.version.__version__, "optax": optax.__version__}


COMPUTE_DTYPES: dict[str, Any] = {
    **dict.fromkeys(("default", "float32", "tf32"), jnp.float32),
    "bfloat16": jnp.bfloat16,
}
MIN_TF32_CAPABILITY = 8.0  # Ampere, the first GPUs with such units


def refuse_unsupported(train: TrainSpec) -> None:
    """Raise Unsupported for settings that JAX or this plugin does not support."""
    if train.precision == "float16":
        raise Unsupported("train.precision=float16 needs a scaled loss, which JAX leaves to others; use bfloat16")
    if train.data_format == "nchw":
        raise Unsupported("train.data_format=nchw: XLA lays pictures out by itself and is given nhwc; leave it out")


def configure_precision(precision: str, device: jax.Device) -> None:
    """Set the rounding of float32 products: JAX's default is TF32 on GPUs that have it. Raises Unsupported for tf32 on
    a device without it."""
    capability = getattr(device, "compute_capability", None)
    has_tf32 = capability is not None and float(capability) >= MIN_TF32_CAPABILITY
    if precision == "tf32" and not has_tf32:
        raise Unsupported("train.precision=tf32 needs a GPU of compute capability 8.0 or above; use float32")
    uses_tf32 = has_tf32 and precision in ("default", "tf32")
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if uses_tf32 else "highest")


PRODUCT = re.compile(r"stablehlo\.(?:convolution|dot_general).*?: \(tensor<[0-9x]*x(\w+)>, ")
NAMES = {"f32": "float32", "bf16": "bfloat16"}


def observed_settings(stablehlo: str) -> dict[str, str]:
    """Return precision and compiler of a step as it is passed to XLA.

    On a CPU without bfloat16 units XLA multiplies in float32, and rounds to bfloat16 before and after.
    """
    types = {NAMES.get(name, name) for name in PRODUCT.findall(stablehlo)}
    if types == {"float32"} and jax.config.jax_default_matmul_precision == "tensorfloat32":
        types = {"tf32"}
    return {"compiler": "xla"} | ({"precision": "+".join(sorted(types))} if types else {})
