"""Strategies that cut the model into consecutive stages with a process for each, and train them in micro-batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalebench.core.errors import InputError
from scalebench.core.result import StageRecord
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import STAGE_REPEATS, LossPart, measure_median_s, never_measured
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group import Message, TorchGroup
from scalebench.strategies.torch.group_strategy import GroupStrategy
from scalebench.strategies.torch.model import NetworkModule, build_network_module
from scalebench.strategies.torch.pipeline.schedule import (
    ActivationLayout,
    MicroBatchSchedule,
    StageModule,
    StagePlace,
    example_inputs,
)
from scalebench.workloads import networks, partition


class ModelParallel(GroupStrategy):
    """A whole batch passes through the stages, so that one device works while the others wait.

    `net` is this process's stage around `model` with its weights; `network_stages` and `layouts` (of the stages'
    outputs) cover all stages.
    """

    min_torch = (2, 10)  # whose schedules need not keep the outputs of a step
    schedule: str = "gpipe"
    micro_batches: int = 1
    stage_count: int
    replicas: int = 1
    stage: StagePlace
    network_stages: list[partition.NetworkStage]
    layouts: list[ActivationLayout]
    _micro_batch_schedule: MicroBatchSchedule

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.stage_count = spec.processes
        self._num_params: int | None = None

    def axes(self) -> dict[str, int]:
        stages = {"stage": self.stage_count}
        return stages if self.replicas == 1 else {"copy": self.replicas, **stages}

    def count_micro_batches(self) -> int:
        """Return the number of parts in which a batch passes through the stages."""
        return 1

    def join(self) -> TorchGroup | None:
        group, self.micro_batches = super().join(), self.count_micro_batches()
        index, stages = self.place.rank % self.stage_count, self.stage_count
        self.stage = StagePlace(index, stages, self.device, self.mesh.get_group("stage"))
        return group

    def wrap(self, model: nn.Module) -> nn.Module:
        """Build this process's stage. Each stage determines the layout of its outputs and broadcasts it.

        Stages draw different random numbers, as the layers of one device do.
        """
        torch.manual_seed(self.spec.config.seed + self.place.rank)
        stage, self.layouts = self.stage, []
        for index in range(self.stage_count):
            layout = self._determine_layout() if index == stage.index else None
            self.layouts.append(self._gather_objects(layout)[index])
        output_layout = None if stage.is_last else self.layouts[stage.index]
        module = StageModule(self.model.module, self.precision.autocast, self._input_layout(), output_layout)
        self._micro_batch_schedule = MicroBatchSchedule(
            self.schedule, self.micro_batches, module, stage, self.layouts, self.spec.config, self.model.loss.mean
        )
        for size in partition.epoch_batch_sizes(self.spec, *self.shard()):
            self._micro_batch_schedule.prepare(size)
        return module

    def step(self, batch: TorchBatch) -> LossPart | None:
        self.begin_batch(batch)
        self.optimizer.zero_grad()
        part = self._micro_batch_schedule(batch)
        if self.replicas > 1:
            # All gradients of this stage are added up over the replicas, in place and in one message.
            gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat, group=self.mesh.get_group("copy"))
            totals = flat.split([gradient.numel() for gradient in gradients])
            for gradient, total in zip(gradients, totals, strict=True):
                gradient.copy_(total.view(gradient.shape))
        self.precision.step_optimizer(self.optimizer)
        return part

    partial_step = never_measured("has no step without what its stages pass on")

    def messages(self) -> list[Message]:
        """Return what this process sends and receives in a step: activations, then their gradients, and last the sums
        over replicas. In this order no stage waits for one that waits for it, whatever they compute between."""

        def order(message: Message) -> int:
            is_forward = (message.kind == "send") == (message.root > self.stage.index)
            return 2 if message.kind == "all_reduce" else 0 if is_forward else 1

        return sorted(super().messages(), key=order)

    def list_sizes(self) -> list[int]:
        """Return what all processes send, and the sums of gradients of each stage."""
        kinds = ("send",) if self.shard()[0] else ("send", "all_reduce")
        sizes: list[Any] = [None] * self.spec.processes
        dist.all_gather_object(sizes, [each.size_bytes for each in self._messages if each.kind in kinds])
        return [size for several in sizes for size in several]

    def measure(self, batch: TorchBatch) -> Tensor | None:
        """Pass the same samples through every stage; the last one measures."""
        outputs = self._micro_batch_schedule.evaluate(batch.inputs)
        return None if outputs is None else self.model.loss.metrics(outputs.float(), batch.targets)

    def num_params(self) -> int:
        """Return the sum over the stages, which all of them compute together once."""
        if self._num_params is None:
            self._num_params = round(self.group.sum([self.model.count_parameters()])[0]) // self.replicas
        return self._num_params

    def parameters(self) -> dict[str, Any]:
        """Return the weights of the complete model; every process has to call this."""
        gathered = self._gather_objects(self.model.arrays())
        return {name: array for arrays in gathered for name, array in arrays.items()}

    def stages(self) -> list[StageRecord]:
        """Measure the stages of a replica one after the other, on a batch of the training."""
        if self.stage_count == 1 or self.last_batch is None:
            return []
        self.begin_batch(self.last_batch)
        own, work_s = self.stage, None
        for index in range(self.stage_count):
            if index == own.index:
                passes = self._micro_batch_schedule.build_local_passes(self.last_batch)
                work_s = measure_median_s(passes, self.synchronize, STAGE_REPEATS)
            self.broadcast(0.0)
        stage = self.network_stages[own.index]
        sent_bytes = None if own.is_last else self.layouts[stage.index].empty(self.last_batch.samples, "meta").nbytes
        return [
            StageRecord(
                index=stage.index,
                stages=self.stage_count,
                replica=self.shard()[0],
                first=stage.nodes[0].name,
                last=stage.output.name,
                parameter_bytes=stage.parameter_bytes,
                micro_batches=self.micro_batches,
                sent_bytes=sent_bytes,
                work_s=work_s,
            )
        ]

    def _build_network(self) -> NetworkModule:
        network = networks.build_network(self.spec.config.model)
        costs = partition.COUNTED_COSTS[self.options.split](network)
        self.network_stages = partition.split_into_stages(network, self.stage_count, costs)
        stage = self.network_stages[self.stage.index]
        return build_network_module(stage.network(self.spec.config.model.name), self.spec.config, self.device)

    @torch.no_grad()
    def _determine_layout(self) -> ActivationLayout:
        """Run this stage to get the layout of its outputs. Moving statistics and random numbers stay as they are."""
        layout, samples = self._input_layout(), 2
        if layout is None:
            inputs = example_inputs(self.spec.config, samples, self.device)
        else:
            inputs = layout.empty(samples, self.device).zero_()
        self.model.eval()
        outputs = StageModule(self.model.module, self.precision.autocast, layout, None)(inputs)
        self.model.train()
        return ActivationLayout.from_outputs(outputs)

    def _input_layout(self) -> ActivationLayout | None:
        return None if self.stage.is_first else self.layouts[self.stage.index - 1]

    def _gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all stages on all stages."""
        values: list[Any] = [None] * self.stage_count
        dist.all_gather_object(values, value, group=self.stage.group)
        return values


class Pipeline(ModelParallel):
    """All micro-batches go forward through the stages, and then all of them backward (GPipe, Huang et al. 2019)."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        if not isinstance(self.options.micro_batches, int | None):
            raise InputError(f"strategy.options.micro_batches={self.options.micro_batches} should be a whole number")

    def count_micro_batches(self) -> int:
        return self.options.micro_batches or partition.default_micro_batches(self.spec, self.replicas, self.stage_count)


class Pipeline1F1B(Pipeline):
    """Forward and backward passes of micro-batches alternate once the pipeline is full, so that a stage keeps the
    activations of at most as many micro-batches as there are stages from it on (PipeDream-Flush, Narayanan et al.
    2021)."""

    schedule = "1f1b"


class Hybrid(Pipeline):
    """Several pipelines, each with its own part of a batch; the gradients of each stage are added up over them after
    the backward pass."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        # On one device it is its own baseline: the complete model, in micro-batches.
        self.schedule, self.stage_count = self.options.schedule, 1 if spec.processes == 1 else self.options.stages
        self.replicas = spec.processes // self.stage_count
