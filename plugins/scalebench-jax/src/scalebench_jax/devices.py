"""The devices of one process: virtual ones that share the CPU, or GPUs; and its threads."""

from __future__ import annotations

import os

import jax

from scalebench.plugin_api import Place, Unsupported


def configure(kind: str, place: Place) -> list[jax.Device]:
    """The process's devices in the order of `place.devices`, from now on JAX's only ones of their kind.

    `kind` is cpu or cuda. Comes before anything else is done with JAX. Unsupported if it sees too few GPUs.
    """
    count = len(place.devices)
    if kind == "cpu":
        os.environ["NPROC"] = str(place.threads * count)  # XLA's only switch for the size of its pool of threads
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
        return jax.devices()[:count]
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or it takes three quarters of each GPU
    jax.config.update("jax_cuda_visible_devices", ",".join(map(str, place.devices)))
    try:
        found = jax.devices("cuda")
    except RuntimeError:
        raise Unsupported(f"JAX {jax.__version__} has no part for GPUs here: pip install 'jax[cuda12]'") from None
    if len(found) < count:
        raise Unsupported(f"JAX {jax.__version__} sees {len(found)} of the GPUs {place.devices} that it is to drive")
    return found[:count]


def peak_memory_bytes(device: jax.Device) -> int | None:
    """The most that was allocated on a GPU at once; None on the CPU, where XLA does not tell."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    peak = (stats or {}).get("peak_bytes_in_use")
    return None if peak is None else int(peak)


def versions() -> dict[str, str]:
    import jaxlib.version
    import optax

    return {"jax": jax.__version__, "jaxlib": jaxlib.version.__version__, "optax": optax.__version__}
