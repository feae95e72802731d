"""What one process reads for one update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """The part of one global batch that one process reads.

    `inputs` and `targets` have the samples along their first axis. `global_samples` is the size of
    the whole global batch, so that a strategy can weight its loss by samples / global_samples.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    global_samples: int

    @property
    def samples(self) -> int:
        """Samples in this part."""
        return len(self.inputs)
