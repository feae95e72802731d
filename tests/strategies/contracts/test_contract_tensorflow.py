"""The contract for TensorFlow's strategies: each adapter class on two devices, families on one and three as well."""

from __future__ import annotations

from tests.strategies.contracts.contract_classes import contract, contract_classes

FIT = "strategy.options.loop=fit"
EVEN = ("dataset.size=240", "train.global_batch=30")  # every batch divides, also the last of 180 training samples
TOWER_LOSS = "strategy.options.loss=tower"  # a loss of each tower, which none of the original programs had
ONLY_ACTIVATIONS = {"bytes_sent": 0}  # activations and their gradients travel, those of no parameter
EXACT = {"loss_rtol": 1e-4, "weight_atol": 1e-4}

globals().update(
    contract_classes(
        [
            contract("bare_tensorflow", gpus=1),
            # One network in two frameworks: the same losses from the same weights and batches.
            contract("bare_tensorflow", gpus=1, name="against torch", baseline="bare_torch"),
            contract("bare_tensorflow", FIT, gpus=1, name="fit", slow=True),
            contract("independent_tensorflow"),
            contract("mirrored"),
            contract("mirrored", gpus=1, slow=True),
            contract("mirrored", gpus=3),
            contract("mirrored", FIT, name="fit", slow=True),
            contract("mirrored_reduce_cpu"),  # names of one class that differ in their cross_device_ops
            contract("mirrored_reduce_device", slow=True),
            contract("mirrored_hierarchical", slow=True),
            contract("mirrored_nccl", slow=True),
            contract("central_storage_cpu"),
            contract("central_storage_cpu", gpus=1, slow=True),
            contract("central_storage_cpu", gpus=3, slow=True),
            contract("central_storage_device", slow=True),
            contract("multi_gpu_model"),
            contract("multi_gpu_model", gpus=1, slow=True),
            contract("multi_gpu_model", gpus=3, slow=True),
            contract("kuza55_ps_cpu", *EVEN),
            contract("kuza55_ps_gpu", *EVEN, slow=True),
            contract("avolkov1_ps_gpu", TOWER_LOSS),
            contract("avolkov1_ps_cpu", slow=True),
            contract("multiworker_ring"),
            contract("multiworker_ring", gpus=1, slow=True),
            contract("multiworker_ring", gpus=3, slow=True),
            contract("multiworker_nccl", slow=True),
            contract("parameter_server"),  # asynchronous, as its YAML says: losses fall
            contract("parameter_server", gpus=1, slow=True, **EXACT),  # steps of one worker are in order
            contract("model_parallel_tensorflow", **ONLY_ACTIVATIONS),
            contract("model_parallel_tensorflow", gpus=1, slow=True),
            contract("model_parallel_tensorflow", "strategy.options.split=size", gpus=3, slow=True, **ONLY_ACTIVATIONS),
        ]
    )
)
