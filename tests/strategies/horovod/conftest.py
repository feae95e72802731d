"""Specs of Horovod runs on this machine."""

import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve

SHORT = (
    "measure=quick", "measure.min_s=0", "measure.max_s=1", "measure.hang_s=60", "dataset.size=2000",
    "measure.probes=false",
)  # fmt: skip


@pytest.fixture
def spec_of():
    """Return spec_of(strategy, *overrides) with two devices; it skips tests that cannot run here."""

    def of(strategy, *words):
        spec = resolve(compose_config([f"strategy={strategy}", "gpus=2", *SHORT, *words]))
        if spec.unsupported is not None:
            pytest.skip(spec.unsupported)
        return spec

    return of
