"""Which collective operations Horovod has, with either framework."""

from __future__ import annotations

from scalebench.strategy import NotMeasured

# Ours -> Horovod's. What is missing here, Horovod has not.
OPERATIONS = {
    "all_reduce": "allreduce",
    "broadcast": "broadcast",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
}


def check(library: object, name: str) -> None:
    """NotMeasured where this Horovod has no such operation. `library` is horovod.torch or horovod.tensorflow."""
    if name not in OPERATIONS:
        raise NotMeasured(f"Horovod has no {name}")
    if not hasattr(library, OPERATIONS[name]):
        raise NotMeasured(f"this Horovod has no {name} yet; 0.28 has")
