"""Every strategy passes the contract: at 2 workers, and one of each adapter family at 1 and 3 as well."""

from __future__ import annotations

import pytest

from scalebench.testing import FaultContract, StrategyContract


class TestNull(StrategyContract):
    strategy = "null"


class TestNull3(StrategyContract):
    strategy = "null"
    gpus = 3


@pytest.mark.real
class TestBareTorch(StrategyContract):
    strategy = "bare_torch"
    gpus = 1


@pytest.mark.real
class TestDdp(StrategyContract):
    strategy = "ddp"


@pytest.mark.real
class TestDdpGloo(StrategyContract):
    strategy = "ddp_gloo"


@pytest.mark.real
class TestDdpGloo1(StrategyContract):
    strategy = "ddp_gloo"
    gpus = 1


@pytest.mark.real
class TestDdpGloo3(StrategyContract):
    strategy = "ddp_gloo"
    gpus = 3


@pytest.mark.real
class TestLightningDdp(StrategyContract):
    strategy = "lightning_ddp"


@pytest.mark.real
class TestLightningDdpGloo(StrategyContract):
    strategy = "lightning_ddp_gloo"


@pytest.mark.real
class TestLightningDdpGloo1(StrategyContract):
    strategy = "lightning_ddp_gloo"
    gpus = 1


@pytest.mark.real
class TestLightningDdpGloo3(StrategyContract):
    strategy = "lightning_ddp_gloo"
    gpus = 3


@pytest.mark.real
class TestIndependentTorch(StrategyContract):
    strategy = "independent_torch"


@pytest.mark.real
class TestDdpFaults(FaultContract):
    strategy = "ddp_gloo"


@pytest.mark.real
class TestLightningFaults(FaultContract):
    strategy = "lightning_ddp_gloo"


class TestNullFaults(FaultContract):
    strategy = "null"
    hang_s = 3.0
