"""The contract for each strategy of TensorFlow: a process that has imported TensorFlow forks the ranks of this file."""

from tests.strategies.contracts.contract_classes import ONLY_ACTIVATIONS, OnPictures, contract, contract_classes, slow

FIT = "strategy.options.loop=fit"
EVEN = ("dataset.size=240", "train.global_batch=30")  # every batch divides, also the last of 180 training samples
TOWER_LOSS = "strategy.options.loss=tower"  # a loss of each tower, which none of the original programs had
EXACT = {"loss_rtol": 1e-4, "weight_atol": 1e-4}

TENSORFLOW = [
    # One network in two frameworks: the same losses from the same weights and batches.
    contract("bare_tensorflow", gpus=1, name="against torch", baseline="bare_torch"),
    contract("bare_tensorflow", FIT, gpus=1, name="fit", slow=True),
    contract("independent_tensorflow"),
    contract("mirrored", gpus=3),
    contract("mirrored", FIT, name="fit", slow=True),
    contract("mirrored_reduce_cpu", slow=True),  # names of one class that differ in their cross_device_ops
    contract("central_storage_cpu"),
    contract("multi_gpu_model"),
    contract("kuza55_ps_cpu", *EVEN, slow=True),
    contract("kuza55_ps_gpu", *EVEN, slow=True),
    contract("avolkov1_ps_gpu", TOWER_LOSS, slow=True),
    contract("avolkov1_ps_cpu", "strategy.options.enqueue=true", name="enqueue", slow=True),
    contract("avolkov1_ps_cpu", "strategy.options.enqueue=true", TOWER_LOSS, name="enqueue towers"),
    contract("avolkov1_ps_gpu", "strategy.options.enqueue=true", TOWER_LOSS, name="enqueue", gpus=3, slow=True),
    contract("multiworker_ring"),
    contract("parameter_server"),  # asynchronous, as its YAML says: losses fall
    contract("parameter_server", gpus=1, slow=True, **EXACT),  # steps of one worker are in order
    contract("parameter_server_sync"),
    contract("model_parallel_tensorflow", **ONLY_ACTIVATIONS),
    contract("model_parallel_tensorflow", "strategy.options.split=size", gpus=3, slow=True, **ONLY_ACTIVATIONS),
    contract("horovod_tensorflow_gloo"),
    *slow("bare_tensorflow", "mirrored", "central_storage_cpu", "multi_gpu_model", "multiworker_ring", gpus=1),
    *slow("model_parallel_tensorflow", gpus=1),
    *slow("central_storage_cpu", "central_storage_spread", "multi_gpu_model", "multiworker_ring", gpus=3),
    *slow("parameter_server_sync", "horovod_tensorflow_gloo", gpus=3),
    *slow("mirrored", "mirrored_reduce_device", "mirrored_reduce_spread", "mirrored_hierarchical", "mirrored_nccl"),
    *slow("mirrored_nccl_unpacked", "central_storage_device", "central_storage_spread", "avolkov1_ps_cpu"),
    *slow("multiworker_nccl", "horovod_tensorflow_mpi", "horovod_tensorflow_nccl"),
]

# By momentum: Adam divides small gradients by themselves, which turns rounding into steps.
PICTURES = [contract("bare_tensorflow", "train.optimizer=momentum", gpus=1, baseline="bare_torch")]

globals().update(contract_classes(TENSORFLOW))
globals().update(contract_classes(PICTURES, OnPictures, "OnPictures"))
del OnPictures  # pytest would collect it
