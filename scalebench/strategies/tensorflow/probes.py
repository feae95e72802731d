"""How a TensorFlow strategy answers the probes that come after the headline figures.

An update taken apart: what each device of the process does up to where gradients would be exchanged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from scalebench.core.result import Profile
from scalebench.strategies.base import BACKWARD, OPTIMIZER, NotMeasured, Probes, Strategy
from scalebench.strategies.tensorflow import batches, observed, profiling, xplane
from scalebench.strategies.tensorflow.batches import Part, TfBatch


class Share(NamedTuple):
    """What one device found out from its part of a batch."""

    loss_sum: tf.Tensor
    gradients: list[tf.Tensor]  # none of the forward pass alone


EachDevice = Callable[[tuple[Part, ...], tf.Tensor, bool], list[Share]]


class Pieces:
    """Compiled functions, traced when first called. All devices work at the same time, as in the training."""

    def __init__(self, each_device: EachDevice, signature: Sequence[Any], feed_devices: Sequence[str]) -> None:
        """`each_device`: (parts, samples of the global batch, whether to go back) -> the share of each device;
        `signature` and `feed_devices` as of the update."""
        self._each_device, self._signature, self._feed_devices = each_device, signature, feed_devices
        self._functions: dict[str, Callable[..., Any]] = {}

    def run(self, batch: TfBatch, until: str) -> None:
        """Forward, or forward and backward."""
        back = until == BACKWARD

        def piece(parts: tuple[Part, ...], global_samples: tf.Tensor) -> list[Any]:
            # The gradients are given back, or TensorFlow would leave out what finds them.
            return [tuple(share) for share in self._each_device(parts, global_samples, back)]

        self._called(until, piece, batch)

    def local_s(self, batch: TfBatch) -> list[float]:
        """Seconds until each device has its gradients."""
        seconds, *_ = self._called("local", self._timed, batch)
        return [float(one) for one in seconds.numpy()]

    def _called(self, name: str, piece: Callable[..., Any], batch: TfBatch) -> Any:
        if name not in self._functions:
            self._functions[name] = tf.function(
                piece, input_signature=self._signature, jit_compile=False, autograph=False
            )
        return self._functions[name](batch.parts, batch.global_samples)

    def _timed(self, parts: tuple[Part, ...], global_samples: tf.Tensor) -> Any:
        start = _now([])
        begun = []
        with tf.control_dependencies([start]):
            for device, part in zip(self._feed_devices, parts, strict=True):
                with tf.device(device):
                    begun.append(tuple(tf.identity(one) for one in part))
        shares = self._each_device(tuple(begun), global_samples, True)
        ends = [self._end(share, global_samples) for share in shares]
        with tf.device("/CPU:0"):
            seconds = tf.stack([end for end, _ in ends]) - start
        return seconds, [arrived for _, arrived in ends], [tuple(share) for share in shares]

    @staticmethod
    def _end(share: Share, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(when the device was through, what that hangs on).

        A GPU's kernels are only queued when their operations are done. So a number is made behind all of them in the
        device's queue, and the time is taken when it has come to the host. It is given back, like the gradients: what
        nobody reads but by a control dependency TensorFlow leaves out. `seed` keeps it from being known beforehand.
        """
        with tf.device(share.loss_sum.device), tf.control_dependencies(share.gradients):
            behind = share.loss_sum + seed
        with tf.device("/CPU:0"):
            arrived = behind * seed
        return _now([arrived]), arrived


def _now(after: list[tf.Tensor]) -> tf.Tensor:
    """Seconds since the epoch when all of `after` are there. tf.function would have one time taken after the other, in
    the order of the program, as with all operations that are not functions of their inputs."""
    with tf.device("/CPU:0"), tf.control_dependencies(after):
        now = tf.timestamp()
    now.graph.experimental_acd_manager.run_independently(now.op)
    return now


class Probed(Strategy, Probes):
    """A strategy whose update is a compiled function of the parts of all devices of its process."""

    devices: list[str]
    last_batch: Any = None  # of the training, as `feed` gave it
    _host: tuple[Any, list[batches.Arrays]] | None = None  # a batch, and its parts in host memory

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
            self._host = batch, batches.on_host(self.placed(batch))
        for device, arrays in zip(self.feed_devices(), self._host[1], strict=True):
            batches.put(arrays, device)

    def carriers(self) -> set[str]:
        """Names of the operations of an update that add gradients up over devices."""
        return {operation.name for operation in observed.exchanges(self.update_function().get_concrete_function())}

    def profile(self, updates: int, trace: Path | None) -> Profile:
        lines, step_s = profiling.watched(self.train, self.last_batch, updates)
        if trace is not None:
            xplane.write(trace, lines, f"rank {self.place.rank}")
        return profiling.profile(lines, updates, step_s, self.carriers())
