"""The contract for Horovod's strategies: each adapter class with each of its backends."""

from __future__ import annotations

from tests.strategies.contracts.contract_classes import contract, contract_classes

# What is sent has half precision, and with it the gradients: the same steps but for their last digits.
HALF_PRECISION = {"loss_rtol": 0.02, "weight_atol": 0.01, "bytes_sent": 2}

globals().update(
    contract_classes(
        [
            contract("horovod_gloo"),
            contract("horovod_gloo", gpus=1),
            contract("horovod_gloo", gpus=3, slow=True),
            contract("horovod_mpi"),
            contract("horovod_mpi", gpus=1, slow=True),
            contract("horovod_mpi", gpus=3, slow=True),
            contract(
                "horovod_mpi", "strategy.options.compression=fp16", "strategy.options.fusion_threshold_mb=0.25",
                name="half precision", slow=True, **HALF_PRECISION,
            ),
            contract("horovod_nccl", slow=True),
            contract("horovod_tensorflow_gloo"),
            contract("horovod_tensorflow_gloo", gpus=3, slow=True),
            contract("horovod_tensorflow_mpi", slow=True),
            contract("horovod_tensorflow_nccl", slow=True),
            contract("lightning_horovod"),
        ]
    )
)  # fmt: skip
