"""The contract for each strategy of PyTorch.

Each adapter class has one launch that is not slow, where its options and its number of devices show the most.
"""

from tests.strategies.contracts.contract_classes import ONLY_ACTIVATIONS, contract, contract_classes, slow

SMALL_BUCKETS = "strategy.options.bucket_cap_mb=0.2"  # two buckets for the gradients of the materials CNN
NO_OVERLAP = ("strategy.options.overlap=false", SMALL_BUCKETS)
EACH_LAYER = "strategy.options.unit_mb=0"
ACCUMULATE = "train.accumulate=2"
CLIPPED = ("train.clip_norm=0.01", "train.optimizer=momentum")  # Adam would step alike with any norm
DROPOUT = ("model=cifar10_cnn", "train.dropout=true", "train.optimizer=momentum")
CHECKPOINTING = "train.activation_checkpointing=true"
# What is sent has half precision, and with it the gradients: the same steps but for their last digits.
HALF_PRECISION = {"loss_rtol": 0.02, "weight_atol": 0.01, "bytes_sent": 2}

TORCH = [
    contract("simulated"),
    contract("simulated", gpus=3),
    contract("bare_torch", gpus=1),
    contract("independent_torch"),
    contract("ddp_gloo", gpus=3),
    contract("ddp_gloo", *NO_OVERLAP, name="no overlap", slow=True),
    contract(
        "ddp_gloo", *NO_OVERLAP, "strategy.options.static_graph=true", ACCUMULATE,
        name="static graph", gpus=3, slow=True,
    ),
    contract("ddp_gloo", "strategy.options.comm_hook=bf16", name="bf16", **HALF_PRECISION),
    contract("ddp_gloo", "strategy.options.comm_hook=fp16", SMALL_BUCKETS, name="fp16", slow=True, **HALF_PRECISION),
    contract("ddp_gloo", CHECKPOINTING, name="checkpointing", slow=True),
    contract("fsdp_gloo", EACH_LAYER, CHECKPOINTING, *CLIPPED, name="checkpointing"),
    contract("accelerate"),
    contract("accelerate", ACCUMULATE, gpus=3, slow=True),
    contract("deepspeed_zero1"),
    contract("deepspeed_zero2", ACCUMULATE, gpus=3, slow=True),
    contract("deepspeed_zero2"),
    contract("deepspeed_zero3", "strategy.options.persistent_elements=0"),
    contract("deepspeed_zero3", ACCUMULATE, "strategy.options.persistent_elements=0", gpus=3, slow=True),
    contract("lightning_ddp_gloo"),
    contract("lightning_ddp_gloo", *NO_OVERLAP, name="no overlap", slow=True),
    contract("fsdp_gloo", EACH_LAYER, slow=True),
    # Uneven parts; layers in groups; nothing gathered twice.
    contract(
        "fsdp_gloo", ACCUMULATE, "strategy.options.unit_mb=0.01",
        "strategy.options.reshard_after_forward=false", gpus=3, slow=True,
    ),
    contract("hsdp", EACH_LAYER, "strategy.options.shards=1", *CLIPPED),  # two copies
    contract("hsdp", EACH_LAYER, gpus=1, slow=True),
    contract("hsdp", EACH_LAYER, ACCUMULATE, gpus=4, slow=True),  # two copies in two shards
    contract("fsdp_tp_gloo", EACH_LAYER, *CLIPPED, gpus=4),
    contract("fsdp_tp", EACH_LAYER, ACCUMULATE, gpus=4, slow=True),
    # Parts of unequal width, each of a third of the gradients.
    contract("fsdp_tp", "strategy.options.tensor_parallel=3", gpus=6, slow=True, bytes_sent=4 / 3),
    *slow("fsdp_tp", gpus=1),
    *slow("fsdp_tp", **ONLY_ACTIVATIONS),
    contract("lightning_fsdp_gloo", EACH_LAYER, *CLIPPED),
    contract("lightning_fsdp_gloo", EACH_LAYER, ACCUMULATE, gpus=3, slow=True),
    contract("zero1", *CLIPPED),
    contract(
        "zero1", ACCUMULATE, "strategy.options.parameters_as_bucket_view=true",
        "strategy.options.gradient_as_bucket_view=true", gpus=3, slow=True,
    ),
    contract("tensor_parallel", *CLIPPED, **ONLY_ACTIVATIONS),
    # Every device draws dropout for the full activation, of which it has a part, as one device would.
    contract(
        "tensor_parallel", "strategy.options.layers=paired", *DROPOUT,
        name="dropout", gpus=3, slow=True, **ONLY_ACTIVATIONS,
    ),
    contract("model_parallel", **ONLY_ACTIVATIONS),
    contract("pipeline_gpipe", **ONLY_ACTIVATIONS),
    contract("pipeline_1f1b", **ONLY_ACTIVATIONS),  # another schedule of the same class
    # Two replicas of one stage: parts that differ by one sample, as one micro-batch.
    contract("hybrid", "strategy.options.stages=1", "strategy.options.micro_batches=1"),
    # Between replicas the gradients of all parameters are sent. 60 samples in parts of 15.
    contract("hybrid", "strategy.options.micro_batches=2", gpus=4, slow=True),
    # Other names of a class, and other numbers of devices: one of hybrid has the complete model, its own baseline.
    *slow("ddp_gloo", "accelerate", "deepspeed_zero3", "lightning_ddp_gloo", "fsdp_gloo", gpus=1),
    *slow("lightning_fsdp_gloo", "tensor_parallel", "hybrid", gpus=1),
    *slow("model_parallel", "pipeline_gpipe", gpus=1, **ONLY_ACTIVATIONS),
    contract("lightning_ddp_gloo", ACCUMULATE, gpus=3, slow=True),
    *slow("tensor_parallel", "model_parallel", "pipeline_1f1b", gpus=3, **ONLY_ACTIVATIONS),
    *slow("ddp_gloo", "ddp", "ddp_nccl", "lightning_ddp", "lightning_ddp_nccl", "data_parallel", "fsdp", "fsdp_nccl"),
    *slow("lightning_fsdp", "lightning_fsdp_nccl"),
]  # fmt: skip

HOROVOD = [
    contract("horovod_gloo", *CLIPPED),
    contract("horovod_mpi"),
    contract(
        "horovod_mpi", "strategy.options.compression=fp16", "strategy.options.fusion_threshold_mb=0.25",
        name="half precision", slow=True, **HALF_PRECISION,
    ),
    contract("lightning_horovod"),
    *slow("horovod_gloo", "horovod_mpi", gpus=1),
    *(contract(name, ACCUMULATE, gpus=3, slow=True) for name in ("horovod_gloo", "horovod_mpi", "lightning_horovod")),
    *slow("horovod", "horovod_nccl"),
]  # fmt: skip

globals().update(contract_classes([*TORCH, *HOROVOD]))
