"""Every strategy passes the contract: at 2 workers, and one of each adapter family at 1 and 3 as well. Here are those
of PyTorch, the simulated strategy, and pictures under both frameworks."""

from __future__ import annotations

import pytest

from scalebench.testing import StrategyContract


class TestSimulated(StrategyContract):
    strategy = "simulated"


class TestSimulated3(StrategyContract):
    strategy = "simulated"
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


@pytest.mark.slow
@pytest.mark.real
class TestLightningDdpGloo1(StrategyContract):
    strategy = "lightning_ddp_gloo"
    gpus = 1


@pytest.mark.slow
@pytest.mark.real
class TestLightningDdpGloo3(StrategyContract):
    strategy = "lightning_ddp_gloo"
    gpus = 3


@pytest.mark.real
class TestIndependentTorch(StrategyContract):
    strategy = "independent_torch"


# Pictures in bytes, labels, accuracy; 221 samples leave none to validate with the data set's own share.
PICTURES = ("model=cifar10_cnn", "train.dropout=false", "dataset.validation_share=0.25")


@pytest.mark.real
class TestPicturesInBothFrameworks(StrategyContract):
    """By momentum: Adam divides small gradients by themselves, and so makes steps of what is rounding in them."""

    strategy = "bare_tensorflow"
    baseline = "bare_torch"
    gpus = 1
    overrides = (*PICTURES, "train.optimizer=momentum")


@pytest.mark.slow
@pytest.mark.real
class TestPicturesUnderDdp(StrategyContract):
    strategy = "ddp_gloo"
    overrides = PICTURES


@pytest.mark.slow
@pytest.mark.real
class TestPicturesUnderMirrored(StrategyContract):
    strategy = "mirrored"
    overrides = PICTURES
