"""How a TensorFlow strategy answers the probes that come after the headline figures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import tensorflow as tf

from scalebench.adapters.tensorflow import chrome_trace, evidence, feeding, profiling
from scalebench.adapters.tensorflow.feeding import Part, TfBatch
from scalebench.adapters.tensorflow.pieces import Pieces, Share
from scalebench.results import Profile
from scalebench.strategy import OPTIMIZER, NotMeasured, Probes, Strategy


class Probed(Strategy, Probes):
    """A strategy whose update is a compiled function of the parts of all devices of its process."""

    devices: list[str]
    last_batch: Any = None  # of the training, as `feed` gave it
    _host: tuple[Any, list[feeding.Arrays]] | None = None  # a batch, and its parts in host memory

    @abstractmethod
    def update_function(self) -> Callable[..., tf.Tensor]:
        """The compiled update, with or without the exchange: (parts, samples of the global batch) -> loss sum."""

    @abstractmethod
    def signature(self) -> list[Any]:
        """What the update takes."""

    @abstractmethod
    def feed_devices(self) -> list[str]:
        """Where the parts of a batch are put, one on each."""

    @abstractmethod
    def each_device(self, parts: tuple[Part, ...], global_samples: tf.Tensor, back: bool) -> list[Share]:
        """What every device of this process finds out by itself: its loss and, if `back`, its gradients."""

    def placed(self, batch: Any) -> TfBatch:
        """What `feed` gives, as the update takes it."""
        found: TfBatch = batch
        return found

    @cached_property
    def _pieces(self) -> Pieces:
        return Pieces(self.each_device, self.signature(), self.feed_devices())

    def partial_step(self, batch: Any, until: str) -> None:
        """By functions of their own, on all devices of the process, as the plain loop runs them also where Keras' fit
        trains. Moving statistics move on the forward pass, whose operations TensorFlow fuses more of where no backward
        pass needs what is between them."""
        batch = self.placed(batch)
        if until == OPTIMIZER:
            self.update_function()(batch.parts, batch.global_samples)
        else:
            self._pieces.run(batch, until)

    def local_step(self, batch: Any) -> list[float]:
        if len(self.devices) == 1:
            raise NotMeasured(
                "there is one device in this process: its updates without the exchange tell how long it works"
            )
        return self._pieces.local_s(self.placed(batch))

    def copy_batch(self, batch: Any) -> None:
        if self.spec.device == "cpu":
            super().copy_batch(batch)
        if self._host is None or self._host[0] is not batch:
            self._host = batch, feeding.on_host(self.placed(batch))
        for device, arrays in zip(self.feed_devices(), self._host[1], strict=True):
            feeding.put(arrays, device)

    def carriers(self) -> set[str]:
        """Names of the operations of an update that add gradients up over devices."""
        return {operation.name for operation in evidence.exchanges(self.update_function().get_concrete_function())}

    def profile(self, updates: int, trace: Path | None) -> Profile:
        lines, step_s = profiling.watched(self.train, self.last_batch, updates)
        if trace is not None:
            chrome_trace.write(trace, lines, f"rank {self.place.rank}")
        return profiling.profile(lines, updates, step_s, self.carriers())
