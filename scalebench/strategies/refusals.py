"""The runs that a strategy refuses for their settings alone, which the plan states without any framework.

What is a fixed fact stands under `cannot` in the strategy's YAML. A rule here takes the run and the strategy's options,
and yields each reason as a clause with the way out. What depends on the version of a framework, or on what it sees of
the machine, is left to the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from scalebench.core.config_files import read_strategy_config, strategy_option_defaults
from scalebench.core.spec import Config, RunSpec
from scalebench.strategies.base import Unsupported
from scalebench.workloads import networks, partition, user_code

GRAPHED = ("BareTorch", "Ddp")  # classes of strategies with train.compile=graphs
Reasons = Iterator[str]
Rule = Callable[[RunSpec, Any], Reasons]


def find_refusal(spec: RunSpec) -> str | None:
    """Return why the strategy of a run refuses it, None where it does not.

    A search for a batch size changes the batch in each attempt, so rules are then left to the strategy.
    """
    strategy = spec.config.strategy
    adapter = strategy.adapter or str(read_strategy_config(strategy.name).get("adapter"))
    rule = RULES.get(adapter.rpartition(":")[2]) if adapter.startswith("scalebench.") else None
    reasons = [*training_rule(spec), *setting_reasons(spec.config)]
    if rule is not None and not reasons and spec.config.measure.search == "none":
        reasons += rule(spec, SimpleNamespace(**strategy.options))
    return reasons[0] if reasons else None


def refuse(reasons: Reasons) -> None:
    """Raise Unsupported with the first of these reasons, if there is one."""
    for reason in reasons:
        raise Unsupported(reason)


def refuse_settings(kind: type, spec: RunSpec, options: Any) -> None:
    """Raise Unsupported where a strategy of PyTorch refuses a run, by the rule of its class or of the nearest base."""
    refuse(training_rule(spec))
    rule = next((RULES[each.__name__] for each in kind.__mro__ if each.__name__ in RULES), None)
    if rule is not None:
        refuse(rule(spec, options))


def setting_reasons(config: Config) -> Reasons:
    """Yield what the strategy's `cannot` says of settings of this run, first of those that it refuses by themselves.

    Its keys are settings as on the command line: `key` where it is not the default, `key=a,b` where it is one of these,
    several where all of them are. A reason of null is one that does not hold for an heir.
    """
    strategy, default = config.strategy, Config()
    default.strategy.options = strategy_option_defaults(strategy.name)
    for settings, reason in sorted(strategy.cannot.items(), key=lambda item: len(item[0].split())):
        try:
            if reason is not None and all(has_setting(config, default, setting) for setting in settings.split()):
                yield f"{strategy.name} {reason}"
        except (AttributeError, KeyError):
            yield f"{strategy.name}: `cannot` in its YAML names {settings}, which are not keys"


def has_setting(config: Config, default: Config, setting: str) -> bool:
    """Return whether a key is set to one of these values, or without any to another one than the default."""
    key, _, values = setting.partition("=")
    option = key.removeprefix("strategy.options.")
    actual, usual = (
        attrgetter(key)(each) if option == key else each.strategy.options[option] for each in (config, default)
    )
    return str(actual).lower() in values.split(",") if values else bool(actual != usual)


def training_rule(spec: RunSpec) -> Reasons:
    """Gradients are clipped, and activations recomputed, by PyTorch."""
    train, strategy = spec.config.train, spec.config.strategy
    if train.clip_norm is not None and strategy.framework != "torch":
        yield f"train.clip_norm is for PyTorch's strategies, and {strategy.name} is none: leave it out"
    if train.activation_checkpointing and strategy.framework != "torch":
        yield f"train.activation_checkpointing is for PyTorch's strategies, and {strategy.name} is none: leave it out"
    if train.activation_checkpointing and train.compile == "default":
        yield "train.activation_checkpointing with train.compile=default: the compiler decides what it keeps; take one"
    if train.compile == "graphs":
        yield from graphs_rule(spec)


def graphs_rule(spec: RunSpec) -> Reasons:
    """A CUDA graph holds the step of a plain loop; what else it needs is in conf/strategy/base/graphs.yaml."""
    strategy = spec.config.strategy
    adapter = strategy.adapter or str(read_strategy_config(strategy.name).get("adapter"))
    if adapter.rpartition(":")[2] not in GRAPHED:
        yield f"train.compile=graphs is for bare_torch and ddp, and {strategy.name} is neither: leave it out"
    elif spec.device == "cpu":
        yield "CUDA graphs need a GPU: take train.compile=none or default on the CPU"
    elif user_code.has_training_step(spec.config.model):
        yield (
            "train.compile=graphs repeats the kernels of a step, and a LightningModule has hooks that run in each: "
            "leave it out"
        )


def in_graph_rule(spec: RunSpec, options: Any) -> Reasons:
    """Some towers take equal slices of a batch."""
    yield from equal_slices_rule(spec, options, spec.global_batch, "a global batch")
    if spec.config.dataset.path is None:  # the samples of a file are counted when they are read
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


def keras_fit_rule(spec: RunSpec, options: Any) -> Reasons:
    """Keras' fit makes one step for all devices of a process."""
    several = max(len(place.devices) for place in spec.places) > 1
    if options.loop == "fit" and spec.config.train.compile == "default" and several:
        yield (
            "strategy.options.loop=fit hands the step of all devices to XLA as one, which would merge them; "
            "use loop=custom with train.compile=default"
        )


def tensorflow_stages_rule(spec: RunSpec, options: Any) -> Reasons:
    """A network has places where it can be cut."""
    if not user_code.is_user_model(spec.config.model):
        yield from partition.impossible_stages_reasons(networks.build_network(spec.config.model), spec.gpus)


def stages_rule(spec: RunSpec, schedule: str, stages: int, micro_batches: int | None) -> Reasons:
    """A process has one stage of the model, and a batch passes through all of a replica's in equal micro-batches."""
    config, name = spec.config, spec.config.strategy.name
    if spec.processes % stages:
        yield (
            f"{name} with strategy.options.stages={stages} needs so many devices for each replica, and "
            f"gpus={spec.gpus} is not a multiple of it: change one of them"
        )
        return
    if user_code.is_user_model(config.model):
        return
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


def hsdp_rule(spec: RunSpec, options: Any) -> Reasons:
    """Each copy of the weights has the same number of shards."""
    if options.shards is not None and spec.processes % options.shards:
        yield (
            f"{spec.config.strategy.name} keeps a copy of the weights in each strategy.options.shards={options.shards} "
            f"processes, which does not divide gpus={spec.gpus}: change one of them"
        )


def fsdp_tp_rule(spec: RunSpec, options: Any) -> Reasons:
    """Layers are split over neighbours on one node."""
    size, setting = options.tensor_parallel, f"strategy.options.tensor_parallel={options.tensor_parallel}"
    name, places = spec.config.strategy.name, spec.places
    if spec.processes == 1:
        return
    if spec.processes % size:
        yield (
            f"{name} splits layers over {setting} devices, which does not divide gpus={spec.gpus}: change one of them"
        )
    elif any(places[first].node != places[first + size - 1].node for first in range(0, spec.processes, size)):
        yield f"{name} splits layers within a node, and {setting} does not divide the devices of each node: change it"


def data_parallel_rule(spec: RunSpec, options: Any) -> Reasons:
    """The outputs of all copies are gathered."""
    if user_code.has_user_loss(spec.config.model):
        yield "data_parallel gathers outputs, and your own loss is computed where they are made; use strategy=ddp"


def lightning_rule(spec: RunSpec, options: Any) -> Reasons:
    """Lightning multiplies nodes by processes."""
    per_node = [sum(place.node == node for place in spec.places) for node in range(spec.nodes)]
    if len(set(per_node)) > 1:
        yield f"Lightning needs the same number of processes on every node, not {per_node}: change gpus"


def horovod_rule(spec: RunSpec, options: Any) -> Reasons:
    """Horovod has some options with one number of processes, or with one of its transports, only."""
    strategy, name = spec.config.strategy, spec.config.strategy.name
    if options.op == "adasum" and spec.processes & (spec.processes - 1):
        yield f"Adasum adds up in pairs, and {spec.processes} processes are not a power of two"
    if options.hierarchical_allreduce and (strategy.backend != "nccl" or strategy.launcher != "mpi"):
        yield (
            f"hierarchical_allreduce is NCCL within a node and MPI between nodes, and {name} is not: "
            f"use strategy=horovod_nccl strategy.launcher=mpi"
        )


# By the class of the adapter.
RULES: dict[str, Rule] = {
    "InGraph": in_graph_rule,
    "CentralStorage": central_storage_rule,
    "BareTensorFlow": keras_fit_rule,
    "Mirrored": keras_fit_rule,
    "TensorFlowModelParallel": tensorflow_stages_rule,
    "ModelParallel": lambda spec, options: stages_rule(spec, "gpipe", spec.processes, 1),
    "Pipeline": lambda spec, options: stages_rule(spec, "gpipe", spec.processes, options.micro_batches),
    "Pipeline1F1B": lambda spec, options: stages_rule(spec, "1f1b", spec.processes, options.micro_batches),
    "Hybrid": lambda spec, options: stages_rule(
        spec, options.schedule, 1 if spec.processes == 1 else options.stages, options.micro_batches
    ),
    "Zero1": zero_rule,
    "Hsdp": hsdp_rule,
    "FsdpTensorParallel": fsdp_tp_rule,
    "LightningFsdp": lightning_rule,
    "SingleProcessDataParallel": data_parallel_rule,
    "LightningDdp": lightning_rule,
    "HorovodTorch": horovod_rule,
    "HorovodTensorFlow": horovod_rule,
    "LightningHorovod": horovod_rule,
}
