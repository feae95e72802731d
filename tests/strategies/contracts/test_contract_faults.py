"""A rank that dies or hangs ends the run: one strategy of each adapter family and launcher."""

from __future__ import annotations

from tests.strategies.contracts.contract_classes import contract, fault_classes

globals().update(
    fault_classes(
        [
            contract("simulated", hang_s=3.0),
            contract("ddp_gloo"),
            contract("lightning_ddp_gloo", slow=True),
            contract("multiworker_ring", slow=True),
            # The chief; tests/strategies/tensorflow/test_parameter_server.py kills the others.
            contract("parameter_server", slow=True, rank=0, measuring=1),
            contract("horovod_gloo", slow=True),
            contract("horovod_mpi", slow=True),
        ]
    )
)
