"""tf.distribute.experimental.CentralStorageStrategy: one copy of the weights, on the CPU or on the first device."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import tensorflow as tf

from scalebench.adapters.tensorflow import central
from scalebench.adapters.tensorflow.feeding import Part
from scalebench.adapters.tensorflow.mirrored import Replicated
from scalebench.spec import InputError
from scalebench.suggest import no_such


@dataclass
class CentralStorageOptions:
    """Where the weights are."""

    parameter_device: str = "cpu"  # cpu | first


class CentralStorage(Replicated):
    """All devices of one process. Moving statistics are the mean over the replicas' after every update."""

    Options = CentralStorageOptions
    _round_trip: tuple[list[int], central.RoundTrip] | None = None

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads whole batches, and deals them out to its devices

    def setup(self) -> None:
        central.refuse_compiler(self.spec.config)
        super().setup()

    def join(self) -> None:
        known = {"cpu": "/CPU:0", "first": self.devices[0]}
        if self.options.parameter_device not in known:
            raise InputError(no_such("strategy.options.parameter_device", self.options.parameter_device, known))
        self.parameter_device = known[self.options.parameter_device]
        self.strategy = tf.distribute.experimental.CentralStorageStrategy(self.devices, self.parameter_device)

    def update(self, parts: tuple[Part, ...], global_samples: tf.Tensor) -> tf.Tensor:
        """The replicas find the gradients, and the update is made once, where the weights are.

        An optimizer called by the replicas would have the sums formed on the CPU wherever the weights are, and take
        them to the parameter device by way of the first replica's.
        """
        loss_sums, gradients = self.strategy.run(self._gradients, (*self.dealt_out(parts), global_samples))
        of_gradients = [self.strategy.experimental_local_results(gradient) for gradient in gradients]
        sums = central.added_up(list(zip(*of_gradients, strict=True)), self.parameter_device)
        with tf.device(self.parameter_device):
            self.optimizer.apply(sums, self.model.trainable_variables)
        return tf.add_n(self.strategy.experimental_local_results(loss_sums))

    def exchange(self, on: bool) -> None:
        raise central.no_switch(self.spec.config)

    def message_sizes(self) -> list[int]:
        """As central.message_bytes says."""
        return central.message_bytes(self.update_function().get_concrete_function())

    def run_exchange(self, sizes: list[int]) -> None:
        if len(self.devices) == 1:  # nobody to exchange with, and nothing is exchanged
            return
        if self._round_trip is None or self._round_trip[0] != sizes:
            total = functools.partial(central.added_up, device=self.parameter_device)
            self._round_trip = sizes, central.RoundTrip(self.devices, sizes, total)
        self._round_trip[1]()
