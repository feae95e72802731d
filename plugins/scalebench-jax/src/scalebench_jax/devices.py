"""The devices of one process (GPUs, or virtual devices that share the CPU), and its threads."""

from __future__ import annotations

import os

import jax

from scalebench.plugin_api import RankPlacement, Unsupported


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
