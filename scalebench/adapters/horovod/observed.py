"""What the exchange of some more updates looked like, by Horovod's timeline of them."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scalebench.adapters.horovod import timeline
from scalebench.adapters.horovod.membership import Membership
from scalebench.adapters.horovod.options import HorovodOptions, forgets_fusion
from scalebench.adapters.horovod.timeline import CARRIERS, PHASES
from scalebench.strategy import NotMeasured

UPDATES = 3  # the first introduces the tensors to each other, the last tells what is fused
BACKENDS = sorted({*CARRIERS.values()})


@dataclass
class Exchange:
    """Known on all ranks."""

    backend: str | None
    message_bytes: list[int]
    phases_s: dict[str, float]  # of one update


class Observer:
    """Has the group train on under the timeline, and tells all ranks what rank 0 saw."""

    def __init__(
        self, membership: Membership, rank: int, share: Callable[[float], float], options: HorovodOptions
    ) -> None:
        """`share` broadcasts rank 0's number."""
        self._membership, self._rank, self._share, self._options = membership, rank, share, options
        self._path = Path(tempfile.gettempdir(), f"scalebench-timeline-{uuid.uuid4().hex}", "timeline.json")
        self._seen: Exchange | None = None

    def seen(self, train: Callable[[int], None]) -> Exchange:
        """A few updates, watched once."""
        if self._seen is None:
            self._seen = self._watch(train, UPDATES, None)
            if forgets_fusion(self._options):
                self._seen.message_bytes = []  # those of another threshold
        return self._seen

    def keep(self, train: Callable[[int], None], updates: int, path: Path) -> dict[str, float]:
        """Seconds of each phase of an update; rank 0 keeps Horovod's file at `path`. NotMeasured where it would show
        another exchange than the one measured, or none."""
        if forgets_fusion(self._options):
            raise NotMeasured(
                "Horovod 0.28.1 forgets its fusion threshold when a timeline starts with cycle_time_ms set"
            )
        seen = self._watch(train, updates, path)
        if seen.backend is None:
            raise NotMeasured("nothing was exchanged, so that there is no timeline of it")
        return seen.phases_s

    def _watch(self, train: Callable[[int], None], updates: int, keep: Path | None) -> Exchange:
        """`train` does so many updates on every rank. Spoils the weights."""
        self._path.parent.mkdir()
        try:
            with self._membership.recorded(self._path, self._share):
                train(updates)
            mine = Exchange(None, [], dict.fromkeys(PHASES, 0.0))
            if self._rank == 0:
                seen = timeline.read(self._path)
                mine = Exchange(seen.backend(), seen.message_bytes(), seen.phases_s(updates))
                if keep is not None:
                    shutil.copyfile(self._path, keep)
            return self._shared(mine)
        finally:
            shutil.rmtree(self._path.parent)

    def _shared(self, mine: Exchange) -> Exchange:
        backends = (mine.backend or "").split("+")
        found = [name for name in BACKENDS if self._share(float(name in backends))]
        sizes = mine.message_bytes
        count = int(self._share(float(len(sizes))))
        told = [int(self._share(float(sizes[i]) if i < len(sizes) else 0.0)) for i in range(count)]
        phases = {name: self._share(mine.phases_s[name]) for name in PHASES}
        return Exchange("+".join(found) or None, told, phases)
