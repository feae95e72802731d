"""The contract for PyTorch's strategies and the simulated one.

Each adapter class passes it on two devices, one class of each family on one and three devices as well.
"""

from __future__ import annotations

from tests.strategies.contracts.contract_classes import contract, contract_classes

SMALL_BUCKETS = "strategy.options.bucket_cap_mb=0.2"  # two buckets for the gradients of the materials CNN
NO_OVERLAP = ("strategy.options.overlap=false", SMALL_BUCKETS)
EACH_LAYER = "strategy.options.unit_mb=0"
ACCUMULATE = "train.accumulate=2"
# Activations travel between stages, not the gradients of all parameters.
ONLY_ACTIVATIONS = {"bytes_sent": 0.0}

globals().update(
    contract_classes(
        [
            contract("simulated"),
            contract("simulated", gpus=3),
            contract("bare_torch", gpus=1),
            contract("independent_torch"),
            contract("ddp_gloo"),
            contract("ddp_gloo", gpus=1),
            contract("ddp_gloo", gpus=3),
            contract("ddp", slow=True),
            contract("ddp_nccl", slow=True),
            contract("ddp_gloo", *NO_OVERLAP, name="no overlap", slow=True),
            contract(
                "ddp_gloo", *NO_OVERLAP, "strategy.options.static_graph=true", ACCUMULATE,
                name="static graph", gpus=3, slow=True,
            ),
            contract("lightning_ddp_gloo"),
            contract("lightning_ddp_gloo", gpus=1, slow=True),
            contract("lightning_ddp_gloo", gpus=3, slow=True),
            contract("lightning_ddp_gloo", *NO_OVERLAP, name="no overlap", slow=True),
            contract("lightning_ddp", slow=True),
            contract("lightning_ddp_nccl", slow=True),
            contract("data_parallel", slow=True),
            contract("fsdp_gloo", EACH_LAYER),
            contract("fsdp_gloo", gpus=1, slow=True),
            # Uneven parts; layers in groups; nothing gathered twice.
            contract(
                "fsdp_gloo", ACCUMULATE, "strategy.options.unit_mb=0.01",
                "strategy.options.reshard_after_forward=false", gpus=3, slow=True,
            ),
            contract("fsdp_nccl", slow=True),
            contract("zero1"),
            contract(
                "zero1", ACCUMULATE, "strategy.options.parameters_as_bucket_view=true",
                "strategy.options.gradient_as_bucket_view=true", gpus=3, slow=True,
            ),
            contract("tensor_parallel", **ONLY_ACTIVATIONS),
            contract("tensor_parallel", gpus=1, slow=True),
            contract("tensor_parallel", gpus=3, slow=True, **ONLY_ACTIVATIONS),
            contract("model_parallel", **ONLY_ACTIVATIONS),
            contract("model_parallel", gpus=1, slow=True, **ONLY_ACTIVATIONS),
            contract("model_parallel", gpus=3, slow=True, **ONLY_ACTIVATIONS),
            contract("pipeline_gpipe", **ONLY_ACTIVATIONS),
            contract("pipeline_gpipe", gpus=1, slow=True, **ONLY_ACTIVATIONS),
            contract("pipeline_1f1b", **ONLY_ACTIVATIONS),  # another schedule of the same class
            contract("pipeline_1f1b", gpus=3, slow=True, **ONLY_ACTIVATIONS),
            # Two replicas of one stage: parts that differ by one sample, as one micro-batch.
            contract("hybrid", "strategy.options.stages=1", "strategy.options.micro_batches=1"),
            # Between replicas the gradients of all parameters are sent. 60 samples in parts of 15.
            contract("hybrid", "strategy.options.micro_batches=2", gpus=4, slow=True),
            # One device has the complete model, whatever the number of stages: its own baseline.
            contract("hybrid", gpus=1, slow=True),
        ]
    )
)  # fmt: skip
