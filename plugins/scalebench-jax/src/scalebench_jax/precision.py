"""`train.precision` and `train.data_format`: what they ask of JAX, and what a compiled update really has."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp

from scalebench.plugin_api import TrainSpec, Unsupported

COMPUTES_IN: dict[str, Any] = {"float32": jnp.float32, "tf32": jnp.float32, "bfloat16": jnp.bfloat16}
TF32_CAPABILITY = 8.0  # Ampere, the first GPUs with such units


def check(train: TrainSpec) -> None:
    """Unsupported where JAX, or this adapter, cannot do it."""
    if train.precision == "float16":
        raise Unsupported("train.precision=float16 needs a scaled loss, which JAX leaves to others; use bfloat16")
    if train.data_format == "nchw":
        raise Unsupported("train.data_format=nchw: XLA lays pictures out by itself and is given nhwc; leave it out")


def choose(precision: str, device: jax.Device) -> None:
    """Sets what products of float32 are rounded to: on newer GPUs JAX's own default is TF32. Unsupported where the
    device has no such units."""
    if precision == "tf32":
        capability = getattr(device, "compute_capability", None)
        if capability is None or float(capability) < TF32_CAPABILITY:
            raise Unsupported("train.precision=tf32 needs a GPU of compute capability 8.0 or above; use float32")
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if precision == "tf32" else "highest")


PRODUCT = re.compile(r"stablehlo\.(?:convolution|dot_general).*?: \(tensor<[0-9x]*x(\w+)>, ")
NAMES = {"f32": "float32", "bf16": "bfloat16"}


def of_update(stablehlo: str) -> dict[str, str]:
    """precision and compiler of an update as it was given to XLA.

    On a CPU without such units XLA multiplies bfloat16's numbers in float32, rounded to bfloat16 before and after.
    """
    found = {NAMES.get(name, name) for name in PRODUCT.findall(stablehlo)}
    if found == {"float32"} and jax.config.jax_default_matmul_precision == "tensorfloat32":
        found = {"tf32"}
    return {"compiler": "xla"} | ({"precision": "+".join(sorted(found))} if found else {})
