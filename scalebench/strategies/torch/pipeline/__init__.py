"""The model cut into stages, one behind the other, each in a process of its own.

What a model that is cut into stages cannot do, told before processes meet: all of them find the same.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe

from scalebench.core.errors import InputError
from scalebench.core.result import StageRecord
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import LossPart, NotMeasured, Unsupported
from scalebench.strategies.torch import evaluation
from scalebench.strategies.torch.base import TorchStrategy, count_parameters
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group import Group
from scalebench.strategies.torch.model import NetworkModule, read_weights
from scalebench.strategies.torch.pipeline import stage
from scalebench.strategies.torch.pipeline.schedule import Chain, MicroSchedule, Relay, Transfers
from scalebench.strategies.torch.pipeline.stage import COUNTED, TIME, StageModule, Wire, built, example, median_s
from scalebench.workloads import networks, partition, user_code
from scalebench.workloads.network import Network
from scalebench.workloads.source import Source


def refuse(spec: RunSpec, backend: str, schedule: str, stages: int, micro_batches: int) -> None:
    """Raises Unsupported with the first reason."""
    train, name = spec.config.train, spec.config.strategy.name
    if user_code.is_user_model(spec.config.model):
        raise Unsupported(
            f"{name} cuts the networks of scalebench, and a module of one's own does not say where it can be cut"
        )
    if train.accumulate > 1:
        raise Unsupported(f"{name} adds gradients up over micro-batches, not over parts: leave out train.accumulate")
    if train.precision == "float16":
        raise Unsupported(f"{name} does not scale its loss, as train.precision=float16 asks for: take bfloat16")
    if train.compile:
        raise Unsupported(f"{name} does not compile its stages: leave out train.compile")
    if spec.device == "cuda" and backend == "gloo":
        raise Unsupported("Gloo sends no tensors of GPUs from process to process: leave out strategy.backend")
    if schedule == "1f1b" and micro_batches < stages:
        raise Unsupported(
            f"1F1B needs at least as many micro-batches as stages, and there are {micro_batches} for {stages}: raise "
            f"strategy.options.micro_batches"
        )
    if "return_outputs" not in inspect.signature(ScheduleGPipe.step).parameters:
        raise Unsupported(f"{name} needs newer pipelines than those of PyTorch {torch.__version__}: update torch")


@dataclass
class ModelParallelOptions:
    """Where the model is cut."""

    split: str = TIME  # time | flops | size: what is balanced over the stages


@dataclass
class PipelineOptions:
    """Where the model is cut, and what a batch goes through it in."""

    micro_batches: int | None = None  # None: see workloads.partition.default_micro_batches
    split: str = TIME


@dataclass
class HybridOptions:
    """As of a pipeline, of which there are gpus / stages; each trains on its own part of a batch."""

    stages: int = 2
    micro_batches: int | None = None  # None: see workloads.partition.default_micro_batches
    schedule: str = "gpipe"  # gpipe | 1f1b
    split: str = TIME


class ModelParallel(TorchStrategy):
    """A whole batch goes through the stages, so that one device works while the others wait.

    `net` is this process' stage, around `model` with its weights; `cut` and `wires` are those of all stages.
    """

    Options: ClassVar[type] = ModelParallelOptions
    schedule: str = "gpipe"
    micro_batches: int = 1
    stage_count: int
    replicas: int = 1
    chain: Chain
    cut: list[partition.NetworkStage]
    wires: list[Wire]
    model: NetworkModule
    relay: Relay
    _passes_of: MicroSchedule

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.stage_count = spec.processes
        self._transfers: Transfers | None = None
        self._params: int | None = None

    def group_backend(self) -> str:
        requested = self.spec.config.strategy.backend
        if requested in (None, "auto"):
            return "nccl" if self.spec.device == "cuda" else "gloo"
        return requested

    def shard(self) -> tuple[int, int]:
        return self.place.rank // self.stage_count, self.replicas

    def count_micro_batches(self) -> int:
        """In how many parts a batch goes through the stages."""
        return 1

    def setup(self) -> None:
        self.shard()  # whether there are whole replicas
        self.micro_batches = self.count_micro_batches()
        refuse(self.spec, self.group_backend(), self.schedule, self.stage_count, self.micro_batches)
        network = networks.build_network(self.spec.config.model)
        self._partition(network, partition.node_training_flops(network))  # there are places enough, whatever they cost
        obstacle = partition.indivisible_reason(
            partition.epoch_batch_sizes(self.spec, *self.shard()), self.micro_batches
        )
        if obstacle is not None:
            raise Unsupported(f"{self.spec.config.strategy.name}: {obstacle}")
        super().setup()

    def join(self) -> Group | None:
        group = super().join()
        limit_s = self.spec.group_timeout_s
        self.chain = Chain(self.place.rank, self.stage_count, self.replicas, self.device, limit_s)
        return group

    def wrap(self, model: nn.Module) -> nn.Module:
        """What a stage gives, it tries itself, and tells the others. Stages draw apart, as layers of one device do."""
        torch.manual_seed(self.spec.config.seed + self.place.rank)
        self.wires = []
        for index in range(self.stage_count):
            self.wires.append(self.chain.told(self._tried() if index == self.chain.index else None, index))
        sends = None if self.chain.last else self.wires[self.chain.index]
        module = StageModule(self.model, self.precision.autocast, self._reads(), sends)
        self.relay = Relay(module, self.chain)
        self._passes_of = MicroSchedule(self.schedule, self.micro_batches, module, self.chain, self.wires)
        return module

    def step(self, batch: TorchBatch) -> LossPart | None:
        if self.last_batch is None or batch.samples >= self.last_batch.samples:
            self.last_batch = batch
        self.optimizer.zero_grad()
        part = self._passes_of(batch, self.spec.config, self._loss)
        if self.replicas > 1:
            self.chain.add_up([one.grad for one in self.model.parameters() if one.grad is not None])
        self.precision.update(self.optimizer)
        return part

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        raise NotMeasured(f"{self.spec.config.strategy.name} has no update without what its stages pass on")

    def message_sizes(self) -> list[int]:
        """The activations of each micro-batch at each cut of each replica, and their gradients; then, where there are
        several replicas, the gradients of each stage."""
        sizes = []
        for replica in range(self.replicas):
            for wire in self.wires[:-1]:
                sizes += [wire.bytes(self._micro_samples(replica))] * (2 * self.micro_batches)
        summed = range(self.stage_count) if self.replicas > 1 else ()
        return sizes + [self._parameter_bytes(index) for index in summed]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """All of one update, whose sizes they are."""
        if self._transfers is None:
            samples, parameters = self._micro_samples(self.chain.replica), list(self.model.parameters())
            self._transfers = Transfers(self.chain, self.wires, samples, self.micro_batches, parameters)
        self._transfers()

    def backend_used(self) -> str | None:
        """Two more updates under the profiler, so it comes last: it spoils the weights."""
        return self.seen_carrier()

    def evaluate(self, source: Source) -> dict[str, float]:
        """Every stage goes through the same samples, and the last one judges."""
        assert self.group is not None, "setup comes first"
        with self._peak.paused(self.device):
            return evaluation.metrics(self.relay, self.spec.config.model, source, self.device, self.group.sum)

    def num_params(self) -> int:
        """The sum over the stages, found once by all of them together."""
        if self._params is None:
            assert self.group is not None, "setup comes first"
            self._params = round(self.group.sum([count_parameters(self.model)])[0]) // self.replicas
        return self._params

    def parameters(self) -> dict[str, Any]:
        """Of the whole model; every process has to call it."""
        return {name: array for stage in self.chain.gathered(read_weights(self.model)) for name, array in stage.items()}

    def stages(self) -> list[StageRecord]:
        """One stage of a chain works at a time, on a batch of the training."""
        if self.stage_count == 1 or self.last_batch is None:
            return []
        work_s = None
        for index in range(self.stage_count):
            if index == self.chain.index:
                work_s = median_s(self._passes_of.work(self.last_batch, self._loss), self.synchronize)
            self.broadcast(0.0)
        stage = self.cut[self.chain.index]
        sent_bytes = None if self.chain.last else self.wires[stage.index].bytes(self.last_batch.samples)
        return [
            StageRecord(
                index=stage.index,
                stages=self.stage_count,
                replica=self.chain.replica,
                first=stage.nodes[0].name,
                last=stage.output.name,
                parameter_bytes=self._parameter_bytes(stage.index),
                micro_batches=self.micro_batches,
                sent_bytes=sent_bytes,
                work_s=work_s,
            )
        ]

    def _ours(self) -> NetworkModule:
        network = networks.build_network(self.spec.config.model)
        self.cut = self._partition(network, self._costs(network))
        return built(self.cut[self.chain.index], self.spec.config, self.device)

    def _costs(self, network: Network) -> list[float]:
        """The same on every rank: seconds are those of rank 0."""
        split = "flops" if self.stage_count == 1 else self.options.split  # nothing to balance
        if split in COUNTED:
            return COUNTED[split](network)
        costs = [0.0] * len(network.nodes)
        if self.place.rank == 0:
            measured = self.spec.config, self._micro_samples(0), self.device, self.precision, self.synchronize
            costs = stage.measured(network, *measured)
        assert self.group is not None, "processes have met"
        return self.group.sum(costs)

    def _partition(self, network: Network, costs: list[float]) -> list[partition.NetworkStage]:
        try:
            return partition.split_into_stages(network, self.stage_count, costs)
        except InputError as reason:
            raise Unsupported(str(reason)) from None

    @torch.no_grad()
    def _tried(self) -> Wire:
        """What this stage gives. Moving statistics and random numbers stay as they are."""
        reads, samples = self._reads(), 2
        given = (
            example(self.spec.config, samples, self.device)
            if reads is None
            else reads.empty(samples, self.device).zero_()
        )
        self.model.eval()
        outputs = StageModule(self.model, self.precision.autocast, reads, None)(given)
        self.model.train()
        return Wire.of(outputs)

    def _reads(self) -> Wire | None:
        return None if self.chain.first else self.wires[self.chain.index - 1]

    def _micro_samples(self, replica: int) -> int:
        whole, _ = partition.epoch_batch_sizes(self.spec, replica, self.replicas)
        return whole.samples // self.micro_batches

    def _parameter_bytes(self, index: int) -> int:
        return round(sum(partition.node_parameter_bytes(self.cut[index].network("stage"))))


class Pipeline(ModelParallel):
    """All micro-batches go forward through the stages, then all of them back (GPipe, Huang et al. 2019)."""

    Options = PipelineOptions

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        if not isinstance(self.options.micro_batches, int | None):
            raise InputError(f"strategy.options.micro_batches={self.options.micro_batches} should be a whole number")

    def count_micro_batches(self) -> int:
        return self.options.micro_batches or partition.default_micro_batches(self.spec, self.replicas, self.stage_count)


class Pipeline1F1B(Pipeline):
    """Forward and backward of micro-batches take turns once the pipeline is full, so that a stage keeps activations of
    no more micro-batches than there are stages from it on (PipeDream-Flush, Narayanan et al. 2021)."""

    schedule = "1f1b"


class Hybrid(Pipeline):
    """Several pipelines side by side, each with its part of a batch; the gradients of each stage are added up over
    them behind the backward pass."""

    Options = HybridOptions

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        alone = spec.processes == 1  # then it is its own baseline: the whole model, in micro-batches
        self.schedule, self.stage_count = self.options.schedule, 1 if alone else self.options.stages
        self.replicas = spec.processes // self.stage_count

    def shard(self) -> tuple[int, int]:
        if self.spec.processes % self.stage_count:
            raise Unsupported(
                f"{self.spec.config.strategy.name} with strategy.options.stages={self.stage_count} needs so many "
                f"devices for each replica, and gpus={self.spec.gpus} is no multiple of it: change one of them"
            )
        return super().shard()
