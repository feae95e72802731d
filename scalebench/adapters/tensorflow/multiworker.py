"""tf.distribute.MultiWorkerMirroredStrategy: a process with its copy of the weights for each device, gradients
added up."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from scalebench.adapters.tensorflow.mirrored import Replicated
from scalebench.adapters.tensorflow.workers import Workers


@dataclass
class MultiWorkerOptions:
    """Of tf.distribute.experimental.CommunicationOptions."""

    bytes_per_pack: int = 0  # gradients are packed into messages of so many bytes; 0: all in one


class MultiWorker(Replicated):
    """One process per device; `strategy.backend` says what carries the gradients: auto, ring or nccl."""

    Options = MultiWorkerOptions
    workers: Workers

    def join(self) -> None:
        backend = self.spec.config.strategy.backend or "auto"
        self.workers = Workers(self.spec, self.place.rank, self.devices, backend, self.options.bytes_per_pack)
        self.strategy = self.workers.strategy

    def forward(self, inputs: tf.Tensor) -> tf.Tensor:
        """By this process's replica, with its own moving statistics: to read their mean is a collective, and the
        workers need not have equally many batches to validate."""
        return self.strategy.run(super().forward, (inputs,))

    def broadcast(self, value: float) -> float:
        return self.workers.broadcast(value)

    def group_sum(self, values: list[float]) -> list[float]:
        return self.workers.sum(values)
