"""`train.precision` and `train.data_format`: their effect on JAX, and the settings observed in a compiled step."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp

from scalebench.plugin_api import TrainSpec, Unsupported

COMPUTE_DTYPES: dict[str, Any] = {"float32": jnp.float32, "tf32": jnp.float32, "bfloat16": jnp.bfloat16}
MIN_TF32_CAPABILITY = 8.0  # Ampere, the first GPUs with such units


def refuse_unsupported(train: TrainSpec) -> None:
    """Raise Unsupported for settings that JAX or this plugin does not support."""
    if train.precision == "float16":
        raise Unsupported("train.precision=float16 needs a scaled loss, which JAX leaves to others; use bfloat16")
    if train.data_format == "nchw":
        raise Unsupported("train.data_format=nchw: XLA lays pictures out by itself and is given nhwc; leave it out")


def configure_precision(precision: str, device: jax.Device) -> None:
    """Set the rounding of float32 products: on newer GPUs JAX's default is TF32. Raises Unsupported for tf32 on a
    device without it."""
    if precision == "tf32":
        capability = getattr(device, "compute_capability", None)
        if capability is None or float(capability) < MIN_TF32_CAPABILITY:
            raise Unsupported("train.precision=tf32 needs a GPU of compute capability 8.0 or above; use float32")
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if precision == "tf32" else "highest")


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
