"""One device, no tf.distribute: what every TensorFlow strategy is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from scalebench.adapters.tensorflow.fit import WithFit


@dataclass
class BareOptions:
    """Who owns the loop."""

    loop: str = "custom"  # custom | fit: a plain loop, or Keras'


class BareTensorFlow(WithFit):
    """The `bare` baseline. It forms no group and exchanges nothing."""

    Options = BareOptions

    def set_gradient_sync(self, on: bool) -> None:
        """There is none to turn off."""
