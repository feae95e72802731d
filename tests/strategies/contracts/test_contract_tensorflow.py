"""The contract for each strategy of TensorFlow: a process that has imported TensorFlow forks the ranks of this file."""

from tests.strategies.contracts.contract_classes import ONLY_ACTIVATIONS, contract, contract_classes

FIT = "strategy.options.loop=fit"
EVEN = ("dataset.size=240", "train.global_batch=30")  # every batch divides, also the last of 180 training samples
TOWER_LOSS = "strategy.options.loss=tower"  # a loss of each tower, which none of the original programs had
EXACT = {"loss_rtol": 1e-4, "weight_atol": 1e-4}

TENSORFLOW = [
    contract("bare_tensorflow", gpus=1, slow=True),
    # One network in two frameworks: the same losses from the same weights and batches.
    contract("bare_tensorflow", gpus=1, name="against torch", baseline="bare_torch"),
    contract("bare_tensorflow", FIT, gpus=1, name="fit", slow=True),
    contract("independent_tensorflow"),
    contract("mirrored", slow=True),
    contract("mirrored", gpus=1, slow=True),
    contract("mirrored", gpus=3),
    contract("mirrored", FIT, name="fit", slow=True),
    contract("mirrored_reduce_cpu", slow=True),  # names of one class that differ in their cross_device_ops
    contract("mirrored_reduce_device", slow=True),
    contract("mirrored_reduce_spread", slow=True),
    contract("mirrored_hierarchical", slow=True),
    contract("mirrored_nccl", slow=True),
    contract("mirrored_nccl_unpacked", slow=True),
    contract("central_storage_cpu"),
    contract("central_storage_cpu", gpus=1, slow=True),
    contract("central_storage_cpu", gpus=3, slow=True),
    contract("central_storage_device", slow=True),
    contract("central_storage_spread", slow=True),
    contract("central_storage_spread", gpus=3, slow=True),
    contract("multi_gpu_model"),
    contract("multi_gpu_model", gpus=1, slow=True),
    contract("multi_gpu_model", gpus=3, slow=True),
    contract("kuza55_ps_cpu", *EVEN, slow=True),
    contract("kuza55_ps_gpu", *EVEN, slow=True),
    contract("avolkov1_ps_gpu", TOWER_LOSS, slow=True),
    contract("avolkov1_ps_cpu", slow=True),
    contract("avolkov1_ps_cpu", "strategy.options.enqueue=true", name="enqueue", slow=True),
    contract("avolkov1_ps_cpu", "strategy.options.enqueue=true", TOWER_LOSS, name="enqueue towers"),
    contract("avolkov1_ps_gpu", "strategy.options.enqueue=true", TOWER_LOSS, name="enqueue", gpus=3, slow=True),
    contract("multiworker_ring"),
    contract("multiworker_ring", gpus=1, slow=True),
    contract("multiworker_ring", gpus=3, slow=True),
    contract("multiworker_nccl", slow=True),
    contract("parameter_server"),  # asynchronous, as its YAML says: losses fall
    contract("parameter_server", gpus=1, slow=True, **EXACT),  # steps of one worker are in order
    contract("parameter_server_sync"),
    contract("parameter_server_sync", gpus=3, slow=True),
    contract("model_parallel_tensorflow", **ONLY_ACTIVATIONS),
    contract("model_parallel_tensorflow", gpus=1, slow=True),
    contract("model_parallel_tensorflow", "strategy.options.split=size", gpus=3, slow=True, **ONLY_ACTIVATIONS),
    contract("horovod_tensorflow_gloo"),
    contract("horovod_tensorflow_gloo", gpus=3, slow=True),
    contract("horovod_tensorflow_mpi", slow=True),
    contract("horovod_tensorflow_nccl", slow=True),
]

globals().update(contract_classes(TENSORFLOW))
