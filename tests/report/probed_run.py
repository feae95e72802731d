"""A run of two ranks whose probes recorded fixed figures."""

from __future__ import annotations

from typing import Any

from scalebench.core.result import ProbeRecord, Profile, ProfiledOperation, Result, Sync
from tests.builders.runs import rank, record

STEP_S = 0.01  # of which 1 ms is data, 2 forward, 3 backward, 0.5 optimizer, 2.5 exposed sync; 1 belongs to no part
OPERATIONS = [
    ProfiledOperation("gloo:all_reduce", 1.0, 0.004, collective=True),
    ProfiledOperation("aten::mm", 40.0, 0.003),
    ProfiledOperation("a kernel [bold]whose name is much too long for a column[/bold] " * 2, 2.5, 0.0000005),
]


def block_times(step_s: float, steps: int, wobble_s: float = 0.0) -> list[float]:
    """Eight blocks of `steps` steps; a step takes `wobble_s` more or less, in turns."""
    return [steps * (step_s + wobble_s * (-1) ** block) for block in range(8)]


def make_probes(**changes: Any) -> ProbeRecord:
    fields = {
        "steps": 4,
        "sync_on_s": block_times(0.0095, 4),
        "sync_off_s": block_times(0.007, 4, 0.0001),
        "fixed_batch_s": block_times(0.006, 4),
        "local_step_s": [[0.006, 0.0061, 0.006, 0.0061]],
        "isolated_sync_repeats": 10,
        "isolated_sync_s": block_times(0.002, 10, 0.00002),
        "part_steps": 5,
        "forward_s": block_times(0.002, 5),
        "backward_s": block_times(0.005, 5, 0.00005),
        "optimizer_s": block_times(0.0055, 5, 0.00005),
        "copy_repeats": 100,
        "copy_s": block_times(0.00000123, 100),
        "profile": Profile(3, 0.02, 0.01, 0.004, OPERATIONS),
    }
    return ProbeRecord(**{**fields, **changes})


def make_probed_run(first: ProbeRecord | None, second: ProbeRecord | None, **changes: Any) -> Result:
    """Make a run with blocks of two steps, after a warm-up of single steps of which the first three were slow."""
    blocks = [2 * STEP_S * (1 + 0.01 * (-1) ** (block // 2)) for block in range(32)]
    warmup = {"steady_after_steps": 3, "warmup_block_steps": 1, "warmup_block_s": [0.5, 0.2, 0.1] + [0.01] * 20}
    memory = {"rss_peak_bytes": 512_000_000, "rss_anon_peak_bytes": 256_000_000, "peak_memory_bytes": [None]}
    ranks = [
        rank(number, blocks, probes=record_of_rank, **warmup, **memory)
        for number, record_of_rank in enumerate((first, second))
    ]
    return record("ddp_gloo", gpus=2, ranks=ranks, **{"sync": Sync(message_bytes=[400_000, 213_764]), **changes})
