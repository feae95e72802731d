"""The runs that a built-in strategy refuses for their settings alone.

No framework is needed to decide that, so the plan of a run states the same reason as the strategy would in its process.
A rule takes the run and the strategy's options, and yields each reason as a clause with the way out. What depends on
the version of a framework, or on what it sees of the machine, is left to the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from scalebench.core.config_files import read_strategy_config, strategy_option_defaults
from scalebench.core.spec import Config, RunSpec
from scalebench.strategies.base import Unsupported
from scalebench.workloads import datasets, networks, partition, records, user_code

Reasons = Iterator[str]
# Why strategies with PyTorch do not recompute activations.
NOT_CHECKPOINTED = {
    "tensor_parallel": "would exchange its activations a second time",
    "data_parallel": "copies the model in each step",
    **dict.fromkeys(
        ("model_parallel", "pipeline_gpipe", "pipeline_1f1b", "hybrid"),
        "keeps the activations of micro-batches in its schedule",
    ),
}
Rule = Callable[[RunSpec, Any], Reasons]


def find_refusal(spec: RunSpec) -> str | None:
    """Return why the strategy of a run refuses it, None where it does not or is a plugin's.

    A search for a batch size changes the batch in each attempt, so only the strategy can tell.
    """
    strategy = spec.config.strategy
    for reason in checkpointing_rule(spec):
        return reason
    adapter = strategy.adapter or str(read_strategy_config(strategy.name).get("adapter"))
    rule = RULES.get(adapter.rpartition(":")[2]) if adapter.startswith("scalebench.") else None
    if rule is None or spec.config.measure.search != "none":
        return None
    return next(rule(spec, SimpleNamespace(**strategy.options)), None)


def refuse(reasons: Reasons) -> None:
    """Raise Unsupported with the first of these reasons, if there is one."""
    for reason in reasons:
        raise Unsupported(reason)


def checkpointing_rule(spec: RunSpec) -> Reasons:
    """Activations are recomputed by PyTorch, where each process has a complete model and backward pass."""
    train, strategy = spec.config.train, spec.config.strategy
    if not train.activation_checkpointing:
        return
    if strategy.framework != "torch":
        yield f"train.activation_checkpointing is for PyTorch's strategies, and {strategy.name} is none: leave it out"
    if strategy.name in NOT_CHECKPOINTED:
        yield f"{strategy.name} {NOT_CHECKPOINTED[strategy.name]}: leave out train.activation_checkpointing"
    if train.compile:
        yield "train.activation_checkpointing with train.compile=true: the compiler decides what it keeps; take one"


def single_program_rule(spec: RunSpec, options: Any) -> Reasons:
    """XLA compiles for one device: one program over several cannot be compiled."""
    if spec.config.train.compile:
        yield (
            f"{spec.config.strategy.name} is one program over several devices, and train.compile=true would put it all "
            f"on one of them, without a warning of XLA"
        )


def one_array_rule(config: Config) -> Reasons:
    """Samples should be one array of floats or bytes."""
    if config.dataset.dtype == records.RECORD:
        yield (
            f"{config.strategy.name} takes samples of one array of floats or bytes, and dataset={config.dataset.name} "
            f"has integers or several arrays: use strategy=mirrored or horovod_tensorflow_gloo"
        )


def in_graph_rule(spec: RunSpec, options: Any) -> Reasons:
    """Towers of one graph compute a batch at once, and some cut it into equal slices."""
    config = spec.config
    yield from one_array_rule(config)
    yield from single_program_rule(spec, options)
    if config.train.accumulate > 1:
        yield (
            f"{config.strategy.name} computes the samples of a step at once, a tower of its graph for each device; "
            f"leave out train.accumulate, or take strategy=mirrored"
        )
    if options.reduction == "nccl" and spec.device == "cpu":
        yield "strategy.options.reduction=nccl adds gradients up over NCCL, which needs GPUs; use add"
    yield from equal_slices_rule(spec, options, spec.global_batch, "a global batch")
    if config.dataset.path is None:  # the samples of a file are counted when they are read
        last = partition.epoch_batch_sizes(spec, 0, 1)[-1].global_samples
        yield from equal_slices_rule(spec, options, last, "the last batch of an epoch")


def equal_slices_rule(spec: RunSpec, options: Any, samples: int, batch: str) -> Reasons:
    """A batch of so many samples should divide by the devices. `batch` names it."""
    if options.uneven == "refused" and samples % spec.gpus:
        yield (
            f"{spec.config.strategy.name} cuts batches into equal slices, and {batch} of {samples} samples does not "
            f"divide by {spec.gpus} devices; choose another batch or dataset.size, or set strategy.options.uneven=last"
        )


def central_storage_rule(spec: RunSpec, options: Any) -> Reasons:
    """Refuse what central storage cannot do; setup applies `accumulated_state_rule` once a user's model is built."""
    model = spec.config.model
    yield from one_array_rule(spec.config)
    yield from single_program_rule(spec, options)
    if not user_code.is_user_model(model):
        has_state = any(not array.trainable for array in networks.build_network(model).arrays)
        yield from accumulated_state_rule(spec.config, has_state)


def accumulated_state_rule(config: Config, has_state: bool) -> Reasons:
    """Moving statistics are put together once for each forward pass, so that a step has one."""
    if config.train.accumulate > 1 and has_state:
        yield (
            f"{config.strategy.name} puts moving statistics together after every forward pass, which it cannot do "
            f"within a step: leave out train.accumulate, or take a model without batch normalisation"
            + (", or dropout" if user_code.is_user_model(config.model) else "")
        )


def parameter_server_rule(spec: RunSpec, options: Any) -> Reasons:
    """Workers read weights and samples in other processes."""
    config = spec.config
    yield from one_array_rule(config)
    if config.dataset.feed == "device" or config.dataset.prefetch != "none":
        yield (
            f"workers of {config.strategy.name} read their samples when they have been dealt rows: "
            f"it takes dataset.feed=host, disk or fixed and dataset.prefetch=none"
        )
    if datasets.decodes_in_training(config.dataset.name):
        yield (
            f"workers of {config.strategy.name} read decoded samples, and dataset={config.dataset.name} decodes them "
            "during training: use dataset=imagenet"
        )
    if config.train.accumulate > 1:
        yield (
            f"train.accumulate: workers of {config.strategy.name} would fetch the weights anew for every part of an "
            f"update; leave it out"
        )
    if config.train.compile:
        yield f"train.compile: XLA cannot read the weights of {config.strategy.name}, which are in another process"


def keras_fit_rule(spec: RunSpec, options: Any) -> Reasons:
    """Keras' fit makes its own step and takes its batches from the host."""
    config = spec.config
    if options.loop != "fit":
        return
    if config.dataset.dtype == records.RECORD:
        yield "strategy.options.loop=fit takes samples of one array; use loop=custom"
    if config.train.compile and max(len(place.devices) for place in spec.places) > 1:
        yield (
            "strategy.options.loop=fit hands the step of all devices to XLA as one, which would merge them; "
            "use loop=custom with train.compile=true"
        )
    if config.train.accumulate > 1:
        yield (
            "strategy.options.loop=fit computes the samples of a step at once; use loop=custom with train.accumulate"
        )
    if config.dataset.feed == "device" or config.dataset.prefetch == "device":
        yield (
            "strategy.options.loop=fit takes its batches from the host; use dataset.feed=host and "
            "dataset.prefetch=none or queue"
        )


def tensorflow_stages_rule(spec: RunSpec, options: Any) -> Reasons:
    """One process passes a batch from device to device."""
    config, name = spec.config, spec.config.strategy.name
    if user_code.is_user_model(config.model):
        yield f"{name} cuts networks of scalebench's own, and a Keras model of yours does not say where it can be cut"
        return
    yield from single_program_rule(spec, options)
    if config.train.accumulate > 1:
        yield (
            f"{name} passes a batch on whole: the parts of train.accumulate would be added up on the first device, "
            f"where the gradients of all stages would go; leave it out"
        )
    if config.train.precision == "float16":
        yield (
            f"{name} has no train.precision=float16, for which Keras looks all gradients over on the first device; "
            f"use bfloat16"
        )
    yield from partition.impossible_stages_reasons(networks.build_network(config.model), spec.gpus)


def stages_rule(spec: RunSpec, schedule: str, stages: int, micro_batches: int | None) -> Reasons:
    """A process has one stage of the model, and a batch passes through all of a replica's in equal micro-batches."""
    config, train, name = spec.config, spec.config.train, spec.config.strategy.name
    if spec.processes % stages:
        yield (
            f"{name} with strategy.options.stages={stages} needs so many devices for each replica, and "
            f"gpus={spec.gpus} is no multiple of it: change one of them"
        )
        return
    if user_code.is_user_model(config.model):
        yield f"{name} cuts the networks of scalebench, and a module of one's own does not say where it can be cut"
        return
    if train.accumulate > 1:
        yield f"{name} adds gradients up over micro-batches, not over parts: leave out train.accumulate"
    if train.precision == "float16":
        yield f"{name} does not scale its loss, as train.precision=float16 asks for: take bfloat16"
    if train.compile:
        yield f"{name} does not compile its stages: leave out train.compile"
    if spec.device == "cuda" and config.strategy.backend == "gloo":
        yield "Gloo sends no tensors of GPUs from process to process: leave out strategy.backend"
    replicas = spec.processes // stages
    parts = micro_batches or partition.default_micro_batches(spec, replicas, stages)
    if schedule == "1f1b" and parts < stages:
        yield (
            f"1F1B needs at least as many micro-batches as stages, and there are {parts} for {stages}: raise "
            f"strategy.options.micro_batches"
        )
    yield from partition.impossible_stages_reasons(networks.build_network(config.model), stages)
    for replica in sorted({0, replicas - 1}):  # the largest and the smallest parts of a batch
        reason = partition.indivisible_reason(partition.epoch_batch_sizes(spec, replica, replicas), parts)
        if reason is not None:
            yield f"{name}: {reason}"


def ddp_rule(spec: RunSpec, options: Any) -> Reasons:
    """PowerSGD keeps gradients from step to step, which a scaled loss changes."""
    if options.comm_hook == "powersgd" and spec.config.train.precision == "float16":
        yield (
            "strategy.options.comm_hook=powersgd adds what a step left out to the next one, and "
            "train.precision=float16 scales each loss differently: take bfloat16 or float32"
        )


def zero_rule(spec: RunSpec, options: Any) -> Reasons:
    """Each process owns whole tensors of the optimizer's state."""
    if user_code.is_user_model(spec.config.model):
        return  # only the built module shows its tensors
    tensors = sum(array.trainable for array in networks.build_network(spec.config.model).arrays)
    yield from few_tensors_rule(spec, tensors)


def few_tensors_rule(spec: RunSpec, tensors: int) -> Reasons:
    """There should be a tensor for each process."""
    if tensors < spec.processes:
        yield (
            f"zero1 gives whole tensors to each process, and {spec.config.model.name} has {tensors} for "
            f"{spec.processes} processes"
        )


def fsdp_rule(spec: RunSpec, options: Any) -> Reasons:
    """No compiler gets through the points where weights are gathered."""
    if spec.config.train.compile and options.units != "whole":
        yield (
            f"{spec.config.strategy.name} gathers weights between layers, where no compiler gets through: "
            "with train.compile=true take strategy.options.units=whole"
        )


def hsdp_rule(spec: RunSpec, options: Any) -> Reasons:
    """Each copy of the weights has the same number of shards."""
    if options.shards is not None and spec.processes % options.shards:
        yield (
            f"{spec.config.strategy.name} keeps a copy of the weights in each strategy.options.shards={options.shards} "
            f"processes, which does not divide gpus={spec.gpus}: change one of them"
        )
    yield from fsdp_rule(spec, options)


def data_parallel_rule(spec: RunSpec, options: Any) -> Reasons:
    """The model is copied anew in each step, and the outputs of its copies are gathered."""
    if user_code.has_user_loss(spec.config.model):
        yield "data_parallel gathers outputs, and a loss of one's own is computed where they are made; use strategy=ddp"
    if spec.config.train.compile:
        yield "data_parallel copies the model in each step, which train.compile=true does not follow"


def tensor_parallel_rule(spec: RunSpec, options: Any) -> Reasons:
    """Layers are split over the devices, and communicate in both passes."""
    train, name = spec.config.train, spec.config.strategy.name
    if user_code.is_user_model(spec.config.model):
        yield f"{name} splits the layers of a network that scalebench describes, and not a module of yours"
    if train.precision == "float16":
        yield f"{name} cannot scale a loss: PyTorch looks for overflow in whole gradients; use bfloat16"
    if train.compile:
        yield f"{name} is not compiled: its layers communicate activations; leave out train.compile"


def lightning_rule(spec: RunSpec, options: Any) -> Reasons:
    """Lightning multiplies nodes by processes."""
    per_node = [sum(place.node == node for place in spec.places) for node in range(spec.nodes)]
    if len(set(per_node)) > 1:
        yield f"Lightning wants as many processes on every node, and here are {per_node}"


def lightning_fsdp_rule(spec: RunSpec, options: Any) -> Reasons:
    """Lightning's loop and fully_shard each have their own limits."""
    yield from lightning_rule(spec, options)
    yield from fsdp_rule(spec, options)


def accelerate_rule(spec: RunSpec, options: Any) -> Reasons:
    """Accelerate scales losses on GPUs only."""
    if spec.config.train.precision == "float16" and spec.device == "cpu":
        yield "accelerate scales a loss for train.precision=float16 on GPUs only: take bfloat16"


def deepspeed_rule(spec: RunSpec, options: Any) -> Reasons:
    """DeepSpeed's engine has its own ways with half precision and compilers."""
    name, train = spec.config.strategy.name, spec.config.train
    if train.precision == "float16":
        yield f"{name} keeps weights in float16 where it scales a loss, and here weights stay float32: take bfloat16"
    if train.compile:
        yield f"{name} compiles models in a way of its own: leave out train.compile"


def horovod_rule(spec: RunSpec, options: Any) -> Reasons:
    """Horovod cannot combine some of its options, and has some with one of its transports only."""
    strategy, name = spec.config.strategy, spec.config.strategy.name
    defaults = strategy_option_defaults("horovod")
    if options.op == "adasum":
        if strategy.launcher != "mpi":
            yield f"Adasum needs Horovod's MPI operations, which {name} does not use; take horovod_mpi"
        if spec.processes & (spec.processes - 1):
            yield f"Adasum adds up in pairs, and {spec.processes} processes are no power of two"
        if spec.config.train.precision == "float16":
            yield "Adasum takes its steps before a scaled loss is put right; use bfloat16"
    if options.cycle_time_ms != defaults["cycle_time_ms"] and strategy.launcher == "by_hand":
        yield (
            "with cycle_time_ms the ranks are started twice, and with strategy.launcher=by_hand a person starts them; "
            "leave it at its default"
        )
    if options.hierarchical_allreduce and (strategy.backend != "nccl" or strategy.launcher != "mpi"):
        yield (
            f"hierarchical_allreduce is NCCL within a node and MPI between nodes, and {name} is not: "
            f"use strategy=horovod_nccl strategy.launcher=mpi"
        )


def horovod_torch_rule(spec: RunSpec, options: Any) -> Reasons:
    """Horovod's optimizer for PyTorch adds up whole steps under Adasum."""
    if options.op == "adasum" and spec.config.train.accumulate > 1:
        yield "Adasum adds up what the optimizer did with whole gradients; take op=average with train.accumulate"
    yield from horovod_rule(spec, options)


def lightning_horovod_rule(spec: RunSpec, options: Any) -> Reasons:
    """The callback averages gradients after the backward pass."""
    if options.op == "adasum":
        yield "lightning_horovod averages gradients, and Adasum adds up steps; take horovod_mpi"
    yield from horovod_rule(spec, options)


# By class, as the registry's table names it.
RULES: dict[str, Rule] = {
    "InGraph": in_graph_rule,
    "CentralStorage": central_storage_rule,
    "ParameterServer": parameter_server_rule,
    "SynchronousParameterServer": parameter_server_rule,
    "BareTensorFlow": keras_fit_rule,
    "Mirrored": keras_fit_rule,
    "TensorFlowModelParallel": tensorflow_stages_rule,
    "ModelParallel": lambda spec, options: stages_rule(spec, "gpipe", spec.processes, 1),
    "Pipeline": lambda spec, options: stages_rule(spec, "gpipe", spec.processes, options.micro_batches),
    "Pipeline1F1B": lambda spec, options: stages_rule(spec, "1f1b", spec.processes, options.micro_batches),
    "Hybrid": lambda spec, options: stages_rule(
        spec, options.schedule, 1 if spec.processes == 1 else options.stages, options.micro_batches
    ),
    "CompressedDdp": ddp_rule,
    "Zero1": zero_rule,
    "Fsdp": fsdp_rule,
    "Hsdp": hsdp_rule,
    "LightningFsdp": lightning_fsdp_rule,
    "Accelerate": accelerate_rule,
    **{f"DeepSpeedZero{stage}": deepspeed_rule for stage in (1, 2, 3)},
    "SingleProcessDataParallel": data_parallel_rule,
    "TensorParallel": tensor_parallel_rule,
    "LightningDdp": lightning_rule,
    "HorovodTorch": horovod_torch_rule,
    "HorovodTensorFlow": horovod_rule,
    "LightningHorovod": lightning_horovod_rule,
}
