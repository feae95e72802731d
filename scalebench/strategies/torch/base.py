"""The base of all PyTorch strategies (device, model, weighted step, metrics, probes), and those without any sync."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalebench.core.probe_record import Profile
from scalebench.core.spec import RunSpec
from scalebench.strategies import refusals
from scalebench.strategies.base import (
    BACKWARD,
    FORWARD,
    Loop,
    LossPart,
    NotMeasured,
    Strategy,
    Unsupported,
    check_group,
)
from scalebench.strategies.torch import bandwidth, devices, optimizer, profiling, user_checks, user_errors
from scalebench.strategies.torch.batches import TorchBatch, feed_batches, to_tensors
from scalebench.strategies.torch.checkpointing import checkpoint_user_module
from scalebench.strategies.torch.graphs import StepGraphs
from scalebench.strategies.torch.group import TorchGroup
from scalebench.strategies.torch.loader import UserLoader
from scalebench.strategies.torch.model import NetworkModule, build_network_module
from scalebench.strategies.torch.precision import CompiledModel, Precision, input_shapes
from scalebench.strategies.torch.profiling import identify_backend, identify_settings
from scalebench.strategies.torch.step_module import StepModule, compute_metrics, select_loss
from scalebench.strategies.torch.user_module import DATA_HOOK, STEP_HOOKS, list_overridden
from scalebench.workloads import datasets, networks, user_code
from scalebench.workloads.source import Source

NO_KERNELS = (
    "PyTorch's profiler saw no kernel of the GPU: another tool holds CUPTI, or the driver keeps it for administrators "
    "(NVreg_RestrictProfilingToAdminUsers=0 opens it)"
)


class TorchStrategy(Strategy):
    """One replica of the model on one device, without any communication, which subclasses add.

    `model` turns a batch into its loss, `compiled` is the model or its compiled form, and `net` is the module that is
    trained: `compiled` or a wrapper around it.
    """

    device: torch.device
    replicas: int  # that share a global batch
    model: StepModule
    compiled: nn.Module
    net: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision
    graphs: StepGraphs | None = None  # with train.compile=graphs
    builds_on_host: ClassVar[bool] = False  # true: `wrap` moves the model to its device in parts, and builds optimizer
    is_sharded: ClassVar[bool] = False  # in evaluation, too, when all processes compute equally many batches
    min_torch: ClassVar[tuple[int, int]] = (2, 4)  # version of PyTorch
    communicates_in_parts: ClassVar[bool] = False  # of a step: all processes have to have equally many

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.group: TorchGroup | None = None
        self.last_batch: TorchBatch | None = None
        self._samples = self._most_samples = 0  # of the batch before, and of the largest one
        self.accumulate = spec.config.train.accumulate
        self._peak = devices.PeakMemory()
        self._pinned: dict[Any, TorchBatch] = {}  # a copy of a batch of each shape, in pinned memory of the host
        self._profiled: profiling.ProfiledSteps | None = None
        self.loader: UserLoader | None = None  # of dataset.loader, from setup on

    def group_backend(self) -> str | None:
        """Return the backend of torch.distributed that connects the processes; None: no group is formed."""
        return None

    def join(self) -> TorchGroup | None:
        """Join the group of processes, if the strategy has one; `device` is set by then."""
        backend = self.group_backend()
        if backend is None:
            return None
        group = TorchGroup(backend, self.device, self.place.rank, self.spec.processes, self.spec.group_timeout_s)
        check_group(self.spec, self.place.rank, "torch.distributed", (dist.get_rank(), dist.get_world_size()))
        return group

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module to train: the model, or a wrapper around it."""
        return model

    def setup(self) -> None:
        train = self.spec.config.train
        if tuple(map(int, torch.__version__.split(".")[:2])) < self.min_torch:
            name, (major, minor) = self.spec.config.strategy.name, self.min_torch
            raise Unsupported(f"{name} needs PyTorch {major}.{minor} or newer, found {torch.__version__}: update torch")
        refusals.refuse_settings(type(self), self.spec, self.options)
        devices.set_threads(self.place.threads)
        self.device = devices.choose_device(self.spec.device, self.place.devices[0])
        self.replicas = self.shard()[1]
        self.precision = Precision(train.precision, self.device, train.clip_norm)
        if train.compile == "graphs":
            self.graphs = StepGraphs(self)
        self.group = self.join()
        if self.spec.config.dataset.loader is not None:
            self.loader = UserLoader(self.spec, *self.shard())
        self.model = self._build_model()
        devices.set_threads(self.place.threads)  # again: the user's file may have set another number
        params, built = self.spec.config.model.params, self.num_params()
        if params not in (None, built):
            raise RuntimeError(f"{self.spec.config.model.name} has {built} parameters here and {params} in its YAML")
        if not self.builds_on_host:
            self.optimizer = self.build_optimizer()
        if self.graphs is not None:
            self.graphs.prepare_optimizer()
        is_compiled = train.compile == "default"
        self.compiled = CompiledModel(self.model, self.place.threads, self.device) if is_compiled else self.model
        with user_errors.attribute_errors_to_wrapping(self.spec.config):
            self.net = self.wrap(self.compiled)
        for device in self._devices():  # setup may have had more than a step has: all weights before they were sharded
            devices.reset_peak(device)

    def feed(self, source: Source) -> Iterable[TorchBatch]:
        dataset, batches = self.spec.config.dataset, self.loader or source
        self.model.progress.steps_per_epoch = batches.steps_per_epoch
        return feed_batches(batches, self.device, dataset.feed, dataset.prefetch)

    def train(self, loop: Loop) -> None:
        with self.attribute_errors_to_user():
            super().train(loop)

    def attribute_errors_to_user(self) -> AbstractContextManager[None]:
        """Return a context for training in which errors of a user's module name the user's function."""
        trained = [name for name, each in self.model.module.named_parameters() if each.requires_grad]
        finds_unused = getattr(self.options, "find_unused_parameters", False)
        return user_errors.attribute_errors_to_user(self.spec.config.model, trained=trained, finds_unused=finds_unused)

    def step(self, batch: TorchBatch) -> LossPart | None:
        part = self.train_batch(batch) if self.graphs is None else self.graphs.step(batch)
        self.advance_schedulers()
        return part

    def train_batch(self, batch: TorchBatch) -> LossPart | None:
        """Compute a step on the device: all that a graph of it repeats."""
        self.optimizer.zero_grad()
        part = self.accumulate_gradients(batch)
        self.precision.step_optimizer(self.optimizer)
        return part

    def build_optimizer(self) -> torch.optim.Optimizer:
        """Build the optimizer of the model's parameters as they are now, which sharding replaces: the user's, or that
        of train.optimizer."""
        user = self.model.user_optimizer
        if user is not None:
            return user.follow_parameters(self.model.module)
        return optimizer.build_optimizer(self.spec.config.train, self.model.parameters(), self.spec.learning_rate)

    def check_optimizer_divisible(self) -> None:
        """Raise UserProblem where the user's optimizer cannot step other parameters than those it was made with."""
        if self.model.user_optimizer is not None:
            self.model.user_optimizer.check_divisible()

    def advance_schedulers(self, by_step: bool = True) -> None:
        """Count a step, and advance the user's schedulers; without `by_step` those of epochs alone."""
        self.model.progress.steps += 1
        if self.model.user_optimizer is not None:
            self.model.user_optimizer.advance_schedulers(self.model.progress, by_step)

    def attach_trainer(self, module: nn.Module) -> None:
        """Give a LightningModule that was just built the Trainer that it may reach for; here there is none."""

    def left_out(self) -> list[str]:
        return list_overridden(self.model.module, [*STEP_HOOKS, DATA_HOOK])

    def threads_used(self) -> int:
        return torch.get_num_threads()

    def learning_rate(self) -> float | None:
        user = self.model.user_optimizer
        return super().learning_rate() if user is None else user.peak_rate

    def set_learning_rate(self, rate: float) -> None:
        user = self.model.user_optimizer
        if user is not None:  # the user's rates, in the proportions of the schedule
            with self.attribute_errors_to_user():
                user.scale_rates(self.optimizer, rate / self.spec.learning_rate)
            return
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):  # which a graph reads
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def accumulate_gradients(self, batch: TorchBatch) -> LossPart:
        """Add up the gradients of all parts of a batch, which are synchronized in the last part's backward pass."""
        loss_parts = []
        for part in drop_empty_parts(self.split_batch(batch)):
            with nullcontext() if part.last else self.without_sync():
                loss, loss_part = self.forward(self.net, part)
                self.precision.backward(loss)
            loss_parts.append(loss_part)
        return optimizer.sum_loss_parts(loss_parts)

    def split_batch(self, batch: TorchBatch) -> list[TorchBatch]:
        """Split a batch into the parts that a step computes one by one."""
        parts = batch.split(self.count_parts(batch))
        if self.last_batch is None and isinstance(self.compiled, CompiledModel):
            self.compiled.shapes = {input_shapes(part.inputs) for part in parts}
        self.begin_batch(batch)
        return parts

    def begin_batch(self, batch: TorchBatch) -> None:
        """Prepare for the passes of a batch, and keep a full one for probes that train on it.

        This is done in each step, so it does as little as it can: between two steps Python's code is in no cache.
        """
        if self.model.communicates:
            user_errors.check_parts_even(self.spec.config.model, batch.global_samples, self.replicas)
        samples, before = batch.samples, self._samples
        self._samples = samples
        if samples >= self._most_samples:
            self.last_batch, self._most_samples = batch, samples  # a smaller batch may run through other code
        if samples != before:
            is_full = samples == self._most_samples
            torch.backends.cudnn.benchmark = devices.tunes_convolutions(self.device.type, is_full)

    def count_parts(self, batch: TorchBatch) -> int:
        """Return the number of parts of a batch, some of which may be empty: one where each part communicates
        and there are too few samples for all parts of all processes."""
        is_small = batch.global_samples < self.accumulate * self.replicas
        return 1 if self.communicates_in_parts and is_small else self.accumulate

    def without_sync(self) -> AbstractContextManager[Any]:
        """Return a context for the passes of a part whose gradients are not synchronized yet."""
        return nullcontext()

    def forward(self, net: Callable[..., Any], batch: TorchBatch) -> tuple[Tensor, LossPart]:
        """Return (loss to differentiate, loss to report) of a batch or a part, without waiting for the device."""
        with self.precision.autocast():
            mean = net(batch.inputs, batch.targets)
        weight, samples = self.loss_weight(batch), batch.samples
        # On a CPU a number, which is there already: a tensor that lives until the end of a block would have the next
        # step's tensors lie elsewhere in memory, outside of the caches, and a step take 2 % longer.
        is_ready = mean.device.type == "cpu" and self.graphs is None
        part = LossPart((mean.item() if is_ready else mean.detach()) * samples, samples)
        return (mean if weight == 1 else mean * weight), part

    def loss_weight(self, batch: TorchBatch) -> float:
        """Return the factor for the mean loss of a batch or a part, whose gradients are averaged over the replicas.

        With it the average is the gradient of the mean over the global batch, also for uneven shards:
        sum over replicas of (samples * replicas / global_samples) * mean / replicas = sum of losses / global_samples.
        It is exactly 1 where all shards are equal.
        """
        return batch.samples * self.replicas / batch.global_samples

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        if self.graphs is not None:
            raise NotMeasured("train.compile=graphs starts a step as a whole, which has no parts for the host")
        self.model.zero_grad()  # not the optimizer's: Horovod's refuses while it expects a synchronization
        for part in drop_empty_parts(self.split_batch(batch)):
            self._run_passes(part, until)
        if until not in (FORWARD, BACKWARD):
            self.precision.step_optimizer(self.optimizer)

    def copy_batch(self, batch: TorchBatch) -> None:
        if self.device.type == "cpu":
            return super().copy_batch(batch)
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in batch.tensors())
        if shapes not in self._pinned:
            self._pinned[shapes] = batch.map(lambda tensor: tensor.cpu().pin_memory())
        self._pinned[shapes].to(self.device)

    def profile(self, steps: int, trace: Path | None) -> Profile:
        """Profile steps on the last batch, after a few more that are left out of the profile."""
        self._profiled = None
        profiled = self.observe_steps(steps, trace)
        if not profiled.sees_kernels or not (self.graphs is None or profiled.profile.operations):
            raise NotMeasured(NO_KERNELS)
        return profiled.profile

    def observe_steps(
        self, steps: int = profiling.OBSERVED_STEPS, trace: Path | None = None
    ) -> profiling.ProfiledSteps:
        """Return what the profiler has seen. The first call trains a few more steps, which spoil the weights; all
        later ones return the same, since the profiler may miss all kernels in a second session."""
        if self._profiled is None:
            if self.last_batch is None:
                raise RuntimeError("the profile is of the last batch of the training, and there was no training")
            with nullcontext() if self.graphs is None else self.graphs.paused() as begin_replays:
                cuda = self.device.type == "cuda"
                self._profiled = profiling.profile_steps(
                    self.train, self.synchronize, self.last_batch, steps, cuda, trace, begin_replays
                )
        return self._profiled

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def transfer(self, kind: str, source: int | None, target: int | None, size_bytes: int) -> Callable[[], None]:
        rank = bandwidth.TransferRank(self.spec, self.place.rank, self.device, self.group)
        return bandwidth.build_transfer(rank, kind, source, target, size_bytes)

    def broadcast(self, value: float) -> float:
        return value if self.group is None else self.group.broadcast(value)

    def backend_used(self) -> str | None:
        return None

    def observe_backend(self, only: re.Pattern[str] | None = None) -> str | None:
        """Return the backend that communicated in profiled steps, by the events whose names match `only`."""
        return identify_backend(self.observe_steps().names, only)

    def settings_used(self) -> dict[str, str]:
        if self.last_batch is None:
            return {}
        seen = self.observe_steps()
        settings = identify_settings(seen.names, seen.calls, seen.sees_kernels)
        settings |= {"convolutions": "tuned"} if torch.backends.cudnn.benchmark else {}
        return settings | ({"compiler": "graphs"} if self.graphs is not None and self.graphs.are_recorded else {})

    def evaluate(self, source: Source) -> dict[str, float]:
        """Evaluate each replica's part of the samples with its own model, in the precision of training."""
        sum_over_group = (lambda values: values) if self.group is None else self.group.sum
        self.net.eval()
        with self._peak.paused(self.device), self.precision.autocast(), self.attribute_errors_to_user():
            metrics = compute_metrics(
                self.measure, self.spec.config.model, source, self.device, sum_over_group, self.is_sharded
            )
        self.net.train()
        return metrics

    def measure(self, batch: TorchBatch) -> Tensor | None:
        """Return the means of the metrics over a batch, in evaluation mode; None: another process has them."""
        # The hooks of a sharded model gather its weights, as in training. A wrapper's others have nothing to do here.
        measured: Tensor = (self.net if self.is_sharded else self.model.forward)(batch.inputs, batch.targets)
        return measured

    def num_params(self) -> int:
        return self.model.count_parameters()

    def flops_per_sample(self) -> float | None:
        return self.model.flops_per_sample

    def model_remarks(self) -> dict[str, str]:
        same = {} if self.loader is None else self.loader.compare_ranks(self.broadcast, self.place.rank)
        return self.model.remarks | same

    def parameters(self) -> dict[str, Any]:
        return self.model.arrays()

    def peak_memory_bytes(self) -> list[int | None]:
        return [self._peak.read_bytes(self.device)]

    def reserved_memory_bytes(self) -> list[int | None]:
        return [torch.cuda.max_memory_reserved(each) if each.type == "cuda" else None for each in self._devices()]

    def allocator_retries(self) -> int | None:
        visible = [device for device in self._devices() if device.type == "cuda"]
        return sum(torch.cuda.memory_stats(each)["num_alloc_retries"] for each in visible) if visible else None

    def free_memory(self) -> None:
        super().free_memory()
        torch.cuda.empty_cache()

    def _devices(self) -> list[torch.device]:
        return [self.device]

    def state_bytes(self) -> list[int | None]:
        """Return the bytes that count_state_bytes counts on this process's device."""
        return [devices.count_state_bytes(self.model, self.optimizer_state(), self.device)]

    def optimizer_state(self) -> Mapping[Any, Mapping[str, Any]]:
        """Return the optimizer's state in this process, by parameter."""
        return self.optimizer.state

    def versions(self) -> dict[str, str]:
        versions = {"torch": str(torch.__version__)}
        builds = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
        versions |= {name: str(version) for name, version in builds.items() if version is not None}
        if torch.backends.cudnn.is_available():
            versions["cudnn"] = str(torch.backends.cudnn.version())
        if torch.cuda.is_available() and torch.distributed.is_nccl_available():
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return versions

    def close(self) -> None:
        if self.graphs is not None:
            self.graphs.reset()
        if self.loader is not None:
            self.loader.close()
        if self.group is not None:
            self.group.leave()

    def _run_passes(self, part: TorchBatch, until: str) -> None:
        """Run the passes of one part. As a method of its own it keeps no tensor of a part alive during the next."""
        loss, _ = self.forward(self.net, part)
        if until != FORWARD:
            self.precision.backward(loss)

    def _build_model(self) -> StepModule:
        """Build the model, with the weights that every rank and every framework starts from."""
        config, device = self.spec.config, torch.device("cpu") if self.builds_on_host else self.device
        if user_code.is_user_model(config.model):
            model: StepModule = self._build_user_module(device)
        else:
            model = StepModule(self._build_network(), select_loss(config.model.loss)).to(device)
        torch.manual_seed(config.seed + self.shard()[0])  # for dropout: processes that share samples draw the same
        return model

    def _build_network(self) -> NetworkModule:
        return build_network_module(networks.build_network(self.spec.config.model), self.spec.config, self.device)

    def _build_user_module(self, device: torch.device) -> StepModule:
        config = self.spec.config
        model = user_checks.build_user_module(config, device, self.attach_trainer)
        if config.train.activation_checkpointing:
            checkpoint_user_module(model.module)
        # As many real samples as a device trains on at once: only they fit any loss, any embedding and any state.
        if self.loader is None:
            count = -(-self.spec.batch_per_device // self.accumulate)
            batch = to_tensors(datasets.read_first_samples(self.spec, count))
        else:
            batch = self.loader.first.split(self.accumulate)[-1]
        trial = user_checks.choose_trial_device(self.device, self.builds_on_host)
        autocast = self.precision.autocast(trial.type)
        user_checks.check_user_module(model, config, autocast, self.group, batch.to(trial), self.builds_on_host)
        user_checks.check_ddp_options(model, config.model, self.options)
        return model


class BareTorch(TorchStrategy):
    """The `bare` baseline: one device, a plain loop, no wrapper and no group."""

    def set_gradient_sync(self, on: bool) -> None:
        """Do nothing: there is no gradient synchronization to switch off."""


class IndependentTorch(BareTorch):
    """N bare replicas, each on its own part of the samples: the control that has everything but communication.

    A Gloo group broadcasts the deadline and sums up the metrics.
    """

    def group_backend(self) -> str:
        return "gloo"  # also on GPUs: it carries a few numbers, and none of them in a timed block

    def _build_user_module(self, device: torch.device) -> StepModule:
        model = super()._build_user_module(device)
        if model.communicates:
            name, function = self.spec.config.strategy.name, user_errors.function_label(self.spec.config.model)
            raise Unsupported(
                f"{function} communicates between ranks within a step, and strategy={name} is the control without "
                "communication: take another strategy"
            )
        return model

    def loss_weight(self, batch: TorchBatch) -> float:
        """Return this process's share: each replica follows the mean loss over its own samples alone."""
        return batch.share


def drop_empty_parts(parts: list[TorchBatch]) -> list[TorchBatch]:
    """Return the parts that have samples: the last batch of an epoch may have too few for all of them."""
    return [part for part in parts if part.samples]
