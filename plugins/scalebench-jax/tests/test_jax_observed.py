"""What is read off compiled programs and profiles."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec
from scalebench_jax import observed

HLO = """
  %all-reduce.1 = f32[7,16]{1,0} all-reduce(%a), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  %all-reduce = (f32[], bf16[3,5]{1,0}, f32[10]{0}) all-reduce(%b, %c, %d), channel_id=2, to_apply=%add
  %all-reduce-start.3 = f32[1000]{0} all-reduce-start(%e), channel_id=3, to_apply=%add
  %all-reduce-done.3 = f32[1000]{0} all-reduce-done(%all-reduce-start.3)
  %get-tuple-element = f32[10]{0} get-tuple-element(%all-reduce), index=2
  ROOT %all-reduce.9 = f32[2]{0} all-reduce(%f), channel_id=4, to_apply=%add
"""


def test_messages_of_a_program() -> None:
    assert observed.all_reduce_bytes(HLO) == {
        "all-reduce.1": 448,
        "all-reduce": 4 + 30 + 40,
        "all-reduce-start.3": 4000,
        "all-reduce.9": 8,
    }


@pytest.mark.parametrize("summed", [True, False])
def test_messages_of_what_xla_makes(summed: bool, devices: list[jax.Device]) -> None:
    def function(x: Any) -> Any:
        return lax.psum(x * 2, "devices") if summed else x * 2

    mapped = jax.shard_map(
        function, mesh=Mesh(np.array(devices), ("devices",)), in_specs=Spec("devices"), out_specs=Spec("devices"),
        check_vma=False,
    )  # fmt: skip
    hlo = jax.jit(mapped).lower(np.ones((3, 100), np.float32)).compile().as_text()
    assert list(observed.all_reduce_bytes(hlo).values()) == ([400] if summed else [])


def test_backends() -> None:
    assert observed.observed_backend(["fusion.1", "all-reduce.1"], ["all-reduce.1"]) == "xla"
    assert (
        observed.observed_backend(["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all-reduce.1"], ["all-reduce.1"])
        == "nccl"
    )
    assert observed.observed_backend(["fusion.1"], ["all-reduce.1"]) is None
    assert observed.observed_backend(["all-reduce.1"], []) is None
