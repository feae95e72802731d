from __future__ import annotations

import jax
import numpy as np
import pytest
import updates
from scalebench_jax import precision

from scalebench.core.spec import TrainSpec
from scalebench.strategies.base import Unsupported


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_precision_is_read_off_the_program(name: str) -> None:
    replica = updates.replica(precision=name)
    lowered = jax.jit(replica.gradients).lower(
        replica.initial_state(), updates.part(*updates.pictures(2)), np.float32(2), 0
    )
    assert precision.observed_settings(lowered.as_text()) == {"compiler": "xla", "precision": name}


def test_bfloat16_rounds_and_weights_stay_float32() -> None:
    part = updates.part(*updates.pictures(4))
    exact, rounded = (updates.found(updates.replica(precision=name), part, 4) for name in ("float32", "bfloat16"))
    assert {one.dtype for one in jax.tree.leaves(rounded)} == {np.dtype(np.float32)}
    assert float(rounded.loss_sum) != float(exact.loss_sum)
    assert float(rounded.loss_sum) == pytest.approx(float(exact.loss_sum), rel=0.05)


@pytest.mark.parametrize("train", [TrainSpec(precision="float16"), TrainSpec(data_format="nchw")])
def test_what_is_unsupported_is_told(train: TrainSpec) -> None:
    with pytest.raises(Unsupported, match=r"; (use|leave)"):
        precision.refuse_unsupported(train)


def test_tf32_needs_a_gpu(devices: list[jax.Device]) -> None:
    with pytest.raises(Unsupported, match="compute capability"):
        precision.configure_precision("tf32", devices[0])
