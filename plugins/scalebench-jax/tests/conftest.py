"""Three devices in the process of the tests, before JAX looks for any."""

from __future__ import annotations

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture
def devices() -> list[jax.Device]:
    return jax.devices()
