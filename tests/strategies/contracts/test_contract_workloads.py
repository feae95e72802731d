"""The contract with other workloads: tokens (a target for each position, embedding tables, gradients of rows that were
not looked up) and pictures (bytes, labels, accuracy, kernels in channels-last order).
"""

from __future__ import annotations

from scalebench.testing import StrategyContract
from tests.strategies.contracts.contract_classes import contract, contract_classes

ONLY_ACTIVATIONS = {"bytes_sent": 0.0}
BUCKET_VIEW = "strategy.options.parameters_as_bucket_view=true"
EACH_LAYER = "strategy.options.unit_mb=0"


class OnTokens(StrategyContract):
    overrides = (
        "model=gpt_small",
        "model.options.layers=1",
        "model.options.width=32",
        "model.options.heads=2",
        "model.options.sequence_length=12",
        "dataset.classes=64",
        "dataset.validation_share=0.25",
        "measure.hang_s=240",  # several graphs are traced and optimized, which takes its time on a busy machine
        "train.learning_rate=0.1",
        "train.optimizer=momentum",  # AdamW divides small gradients by themselves, which turns rounding into steps
    )


class OnPictures(StrategyContract):
    # 221 samples leave none to validate with the data set's own share.
    overrides = ("model=cifar10_cnn", "train.dropout=false", "dataset.validation_share=0.25")


globals().update(
    contract_classes(
        [
            contract("bare_tensorflow", gpus=1, baseline="bare_torch"),
            contract("ddp_gloo"),
            contract("fsdp_gloo", EACH_LAYER),  # layers free their weights although nobody overwrites their outputs
            contract("zero1", slow=True),
            contract("pipeline_1f1b", slow=True, **ONLY_ACTIVATIONS),
            contract("tensor_parallel", slow=True, **ONLY_ACTIVATIONS),
            contract("lightning_ddp_gloo", slow=True),
            contract("horovod_gloo", slow=True),
            contract("horovod_tensorflow_gloo", slow=True),
            contract("model_parallel_tensorflow", slow=True, **ONLY_ACTIVATIONS),
            contract("mirrored", slow=True),
            contract("central_storage_cpu", slow=True),
            contract("kuza55_ps_cpu", slow=True),
            contract("multiworker_ring", slow=True),
            contract("parameter_server", slow=True),
        ],
        OnTokens,
        "OnTokens",
    )
)
globals().update(
    contract_classes(
        [
            # By momentum: Adam divides small gradients by themselves, which turns rounding into steps.
            contract("bare_tensorflow", "train.optimizer=momentum", gpus=1, baseline="bare_torch"),
            contract("ddp_gloo", slow=True),
            contract("fsdp_gloo", EACH_LAYER, slow=True),
            contract("zero1", BUCKET_VIEW, slow=True),
            contract("mirrored", slow=True),
        ],
        OnPictures,
        "OnPictures",
    )
)
del OnTokens, OnPictures  # pytest would collect them
