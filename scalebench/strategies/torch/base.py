"""What all PyTorch strategies share: device, model, optimizer, one weighted update, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scalebench.core.result import Profile
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import BACKWARD, FORWARD, Loop, LossPart, Probes, Strategy, Unsupported
from scalebench.strategies.torch import bandwidth, batches, evaluation, profiling, user_module
from scalebench.strategies.torch import optimizer as training
from scalebench.strategies.torch import user_module as own_trial
from scalebench.strategies.torch.batches import HostCopies, TorchBatch
from scalebench.strategies.torch.group import Group
from scalebench.strategies.torch.memory import Peak, kept_bytes
from scalebench.strategies.torch.model import NetworkModule, load_weights, read_weights
from scalebench.strategies.torch.observed import observed_backend, observed_settings
from scalebench.strategies.torch.precision import Compiled, Precision
from scalebench.workloads import networks, user_code
from scalebench.workloads.source import Source
from scalebench.workloads.weights import initial_weights


class TorchStrategy(Strategy, Probes):
    """One replica of the model on one device. By itself it talks to nobody; subclasses say how they do.

    `model` holds the weights, `compiled` is the same or its compiled form, and `net` what is trained: that, or a
    wrapper around it.
    """

    device: torch.device
    model: NetworkModule | user_module.OwnModule
    compiled: nn.Module
    net: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.group: Group | None = None
        self.last_batch: TorchBatch | None = None
        self.accumulate = spec.config.train.accumulate
        self._peak = Peak()
        self._host_copies = HostCopies()
        self._loss = training.loss(spec.config.model.loss)

    def group_backend(self) -> str | None:
        """Which backend of torch.distributed the processes talk over; None: they do not, and no group is formed."""
        return None

    def join(self) -> Group | None:
        """Meet the other processes, if they are to talk; `device` is known."""
        backend = self.group_backend()
        if backend is None:
            return None
        return Group(backend, self.device, self.place.rank, self.spec.processes, self.spec.group_timeout_s)

    def wrap(self, model: nn.Module) -> nn.Module:
        """What is trained, around the model that is already on its device."""
        return model

    def setup(self) -> None:
        settings = self.spec.config
        set_threads(self.place.threads)
        self.device = choose_device(self.spec.device, self.place.devices[0])
        self.precision = Precision(settings.train.precision, self.device)
        self.group = self.join()
        self.model = self._build()
        self._check_params()
        self.optimizer = training.optimizer(settings.train, self.model.parameters(), self.spec.learning_rate)
        self.compiled = Compiled(self.model, self.place.threads) if settings.train.compile else self.model
        self.net = self.wrap(self.compiled)

    def feed(self, source: Source) -> Iterable[TorchBatch]:
        settings = self.spec.config.dataset
        return batches.batches(source, self.device, settings.feed, settings.prefetch)

    def train(self, loop: Loop) -> None:
        with self.blamed():
            super().train(loop)

    def blamed(self) -> AbstractContextManager[None]:
        """Around a training: faults of a user's own module name it."""
        return user_module.blamed(self.spec.config.model, idle=getattr(self.model, "idle", ()))

    def step(self, batch: TorchBatch) -> LossPart | None:
        self.optimizer.zero_grad()
        part = self.accumulated(batch)
        self.precision.update(self.optimizer)
        return part

    def set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def accumulated(self, batch: TorchBatch) -> LossPart:
        """Gradients of a whole batch, added up over its parts; with the backward pass of the last one they are
        exchanged."""
        found = []
        for part in filled(self.parts(batch)):
            with nullcontext() if part.last else self.unsent():
                loss, told = self.forward(self.net, part)
                self.precision.backward(loss)
            found.append(told)
        return training.summed(found)

    def parts(self, batch: TorchBatch) -> list[TorchBatch]:
        """What an update computes a batch in. A batch is remembered here for whoever wants to train on it again."""
        parts = batch.split(self.accumulate)
        if self.last_batch is None and isinstance(self.compiled, Compiled):
            self.compiled.shapes = {part.inputs.shape for part in parts}
        if self.last_batch is None or batch.samples >= self.last_batch.samples:
            self.last_batch = batch  # a whole one: the last of an epoch may take another way than all others
        return parts

    def unsent(self) -> AbstractContextManager[Any]:
        """Around the passes of a part whose gradients are not exchanged yet."""
        return nullcontext()

    def forward(self, net: nn.Module, batch: TorchBatch) -> tuple[Tensor, LossPart]:
        """(what to differentiate, what to report) for a batch or a part; nothing here waits for the device."""
        with self.precision.autocast():
            outputs = net(batch.inputs)
        mean = self._loss(outputs.float(), batch.targets)
        weight = self.loss_weight(batch)
        part = LossPart(mean.detach() * batch.samples, batch.samples)
        return (mean if weight == 1 else mean * weight), part

    def loss_weight(self, batch: TorchBatch) -> float:
        """So that gradients averaged over the replicas are those of the mean over the global batch."""
        return training.shard_weight(batch.samples, batch.global_samples, self.shard()[1])

    def partial_step(self, batch: TorchBatch, until: str) -> None:
        self.model.zero_grad()  # not the optimizer: Horovod's believes that an exchange is under way
        for part in filled(self.parts(batch)):
            self._passes(part, until)
        if until not in (FORWARD, BACKWARD):
            self.precision.update(self.optimizer)

    def copy_batch(self, batch: TorchBatch) -> None:
        if self.device.type == "cpu":
            return super().copy_batch(batch)
        self._host_copies.of(batch).to(self.device)

    def profile(self, updates: int, trace: Path | None) -> Profile:
        """After a few updates more, which are not in it."""
        if self.last_batch is None:
            raise RuntimeError("the profile is of the last batch of the training, and there was no training")
        return profiling.profiled(self.train, self.synchronize, self.last_batch, updates, trace)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def transfer(self, kind: str, source: int | None, target: int | None, size_bytes: int) -> Callable[[], None]:
        here = bandwidth.Here(self.spec, self.place.rank, self.device, self.group)
        return bandwidth.transfer(here, kind, source, target, size_bytes)

    def broadcast(self, value: float) -> float:
        return value if self.group is None else self.group.broadcast(value)

    def backend_used(self) -> str | None:
        return None

    def seen_carrier(self) -> str | None:
        """Who carries what updates exchange, by two more of them under the profiler, which spoil the weights."""
        if self.last_batch is None:
            raise RuntimeError("backend_used replays the last batch of the training, and there was no training")
        return observed_backend(self.train, self.last_batch)

    def settings_used(self) -> dict[str, str]:
        """One more update under the profiler, which spoils the weights."""
        return {} if self.last_batch is None else observed_settings(self.train, self.last_batch)

    def evaluate(self, source: Source) -> dict[str, float]:
        """Each replica's model judges its own part of the samples, in the precision of the training."""
        over_group = (lambda values: values) if self.group is None else self.group.sum
        with self._peak.paused(self.device), self.precision.autocast():
            return evaluation.metrics(self.model, self.spec.config.model, source, self.device, over_group)

    def num_params(self) -> int:
        return count_parameters(self.model)

    def parameters(self) -> dict[str, Any]:
        return read_weights(self.model)

    def peak_memory_bytes(self) -> list[int | None]:
        return [self._peak.of(self.device)]

    def state_bytes(self) -> list[int | None]:
        """As memory.kept_bytes counts them."""
        return [kept_bytes(self.model, self.optimizer_state(), self.device)]

    def optimizer_state(self) -> Mapping[Any, Mapping[str, Any]]:
        """What this process' optimizer knows, by parameter."""
        return self.optimizer.state

    def versions(self) -> dict[str, str]:
        found = {"torch": str(torch.__version__)}
        if torch.version.cuda is not None:
            found["cuda"] = str(torch.version.cuda)
        if torch.backends.cudnn.is_available():
            found["cudnn"] = str(torch.backends.cudnn.version())
        if torch.cuda.is_available() and torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return found

    def close(self) -> None:
        if self.group is not None:
            self.group.leave()
            self.group = None

    def _passes(self, part: TorchBatch, until: str) -> None:
        """A method of its own, so that nothing of a part is kept while the next one is computed."""
        loss, _ = self.forward(self.net, part)
        if until != FORWARD:
            self.precision.backward(loss)

    def _build(self) -> NetworkModule | user_module.OwnModule:
        """The model on its device, with the weights that every rank and every framework starts from."""
        config = self.spec.config
        wanted = config.model
        model = self._own() if user_code.is_user_model(wanted) else self._ours()
        torch.manual_seed(config.seed + self.shard()[0])  # of dropout: those that share samples draw alike
        return model

    def _check_params(self) -> None:
        wanted, found = self.spec.config.model, self.num_params()
        if wanted.params is not None and found != wanted.params:
            raise RuntimeError(f"{wanted.name} has {found} parameters here and {wanted.params} in its YAML")

    def _ours(self) -> NetworkModule:
        config, network = self.spec.config, networks.build_network(self.spec.config.model)
        model = NetworkModule(network, config.train.data_format, config.train.dropout)
        arrays = ((array.name, array.shape, array.init) for array in network.arrays)
        load_weights(model, initial_weights(arrays, config.seed))
        return model.to(self.device)

    def _own(self) -> user_module.OwnModule:
        config = self.spec.config
        model = user_module.built(config, self.device)
        own_trial.check(model, config, self.device, self.precision, self.group)
        return model


def filled(parts: list[TorchBatch]) -> list[TorchBatch]:
    """Those with samples: the last batch of an epoch may have too few for all parts."""
    return [part for part in parts if part.samples]


def count_parameters(model: nn.Module) -> int:
    """Trainable ones."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def choose_device(kind: str, index: int) -> torch.device:
    """The CPU, or the GPU of that number, made this process's current one. Unsupported if PyTorch sees none."""
    if kind == "cpu":
        return torch.device("cpu")
    seen = torch.cuda.device_count()
    if index >= seen:
        raise Unsupported(f"PyTorch {torch.__version__} sees {seen} GPUs and this rank wants number {index}")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def set_threads(threads: int) -> None:
    """Threads inside an operation; operations themselves run one after the other."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # can be set once per process only
        torch.set_num_interop_threads(1)
