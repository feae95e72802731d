"""The contract, for what shards weights or the optimizer's state, for DistributedDataParallel without overlap, and for
one process with several GPUs, which is skipped where there are none."""

from __future__ import annotations

import pytest

from scalebench.testing import StrategyContract
from tests.strategies.contracts.test_contract_torch import PICTURES
from tests.strategies.contracts.test_contract_user_module import OwnContract

SMALL_BUCKETS = "strategy.options.bucket_cap_mb=0.2"  # two of the materials CNN's gradients
EACH_LAYER = "strategy.options.unit_mb=0"


@pytest.mark.real
class TestFsdpGloo(StrategyContract):
    strategy = "fsdp_gloo"
    overrides = (EACH_LAYER,)


@pytest.mark.slow
@pytest.mark.real
class TestFsdpGloo1(StrategyContract):
    strategy = "fsdp_gloo"
    gpus = 1


@pytest.mark.slow
@pytest.mark.real
class TestFsdpGloo3(StrategyContract):
    """In parts, which some ranks could have more of; layers in groups; nothing gathered twice."""

    strategy = "fsdp_gloo"
    gpus = 3
    overrides = (
        "train.accumulate=2",
        "strategy.options.unit_mb=0.01",
        "strategy.options.reshard_after_forward=false",
    )


@pytest.mark.real
class TestZero1(StrategyContract):
    strategy = "zero1"


@pytest.mark.slow
@pytest.mark.real
class TestDdpWithoutOverlap(StrategyContract):
    strategy = "ddp_gloo"
    overrides = ("strategy.options.overlap=false", SMALL_BUCKETS)


@pytest.mark.slow
@pytest.mark.real
class TestZero1Views(StrategyContract):
    strategy = "zero1"
    gpus = 3
    overrides = (
        "train.accumulate=2",
        "strategy.options.parameters_as_bucket_view=true",
        "strategy.options.gradient_as_bucket_view=true",
    )


@pytest.mark.slow
@pytest.mark.real
class TestDdpWithoutOverlapStatic(StrategyContract):
    strategy = "ddp_gloo"
    gpus = 3
    overrides = (
        "strategy.options.overlap=false",
        "strategy.options.static_graph=true",
        "train.accumulate=2",
        SMALL_BUCKETS,
    )


@pytest.mark.slow
@pytest.mark.real
class TestLightningWithoutOverlap(StrategyContract):
    strategy = "lightning_ddp_gloo"
    overrides = ("strategy.options.overlap=false", SMALL_BUCKETS)


@pytest.mark.slow
@pytest.mark.real
class TestPicturesUnderFsdp(StrategyContract):
    """Kernels that lie channels last."""

    strategy = "fsdp_gloo"
    overrides = (EACH_LAYER, *PICTURES)


@pytest.mark.slow
@pytest.mark.real
class TestPicturesUnderZero1(StrategyContract):
    strategy = "zero1"
    overrides = ("strategy.options.parameters_as_bucket_view=true", *PICTURES)


@pytest.mark.slow
@pytest.mark.real
class TestOwnUnderFsdp(OwnContract):
    strategy = "fsdp_gloo"


@pytest.mark.slow
@pytest.mark.real
class TestOwnUnderZero1(OwnContract):
    strategy = "zero1"


@pytest.mark.slow
@pytest.mark.real
class TestDataParallel(StrategyContract):
    strategy = "data_parallel"


@pytest.mark.slow
@pytest.mark.real
class TestFsdpNccl(StrategyContract):
    strategy = "fsdp_nccl"
