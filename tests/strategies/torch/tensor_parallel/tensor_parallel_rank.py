"""One of some ranks that split dense layers, and then does the same by itself; tensor<k>.json tells of both, for each
case<i>/spec.json beside the ranks' own."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec, read_spec
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.torch.bare import BareTorch
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group import Group
from scalebench.strategies.torch.observed import ProfiledReplay, Replay
from scalebench.strategies.torch.tensor_parallel import TensorParallel, TensorParallelOptions

UPDATES, SAMPLES = 4, 22
SENT = {"_c10d_functional::all_reduce": 1, "_c10d_functional::all_gather_into_tensor": 0}


class Kept(TensorParallel):
    """All cases in one group."""

    met: Group | None = None

    def join(self) -> Group | None:
        Kept.met = Kept.met or super().join()
        return Kept.met


class Alone(BareTorch):
    Options = TensorParallelOptions  # which the spec of both of them has


def body(spec: RunSpec, strategy: Any, record: RankRecord, progress: Any) -> None:
    folders = sorted(progress.folder.glob("case*"))
    write_json(progress.folder / f"tensor{record.rank}.json", [seen(read_spec(one), record.rank) for one in folders])
    if Kept.met is not None:
        Kept.met.leave()


def seen(spec: RunSpec, rank: int) -> dict[str, Any]:
    batch = batch_of(spec)
    ours, alone = Kept(spec, rank), Alone(dataclasses.replace(spec, places=spec.places[:1]), 0)
    losses, weights = taught(ours, batch)
    bare_losses, bare_weights = taught(alone, batch)
    found = {
        "losses": losses,
        "bare_losses": bare_losses,
        "apart": max(float(np.abs(weights[name] - bare_weights[name]).max()) for name in weights),
        "whole": {name: digest(one) for name, one in ours.model.named_parameters() if not isinstance(one, DTensor)},
        "weights": digest(*map(torch.from_numpy, weights.values())),
        "kept_bytes": sum(local(one).untyped_storage().nbytes() for one in ours.model.parameters()),
        "generator": digest(torch.get_rng_state()),
        "messages": ours.message_sizes(),
        "settings": ours.settings_used(),
        "backend": ours.backend_used(),
        "sent": sent(ours, batch),
    }
    ours.run_isolated_sync(ours.message_sizes())
    return found


def batch_of(spec: RunSpec) -> TorchBatch:
    made, model = torch.Generator().manual_seed(5), spec.config.model
    if model.name == "gpt_small":
        tokens = torch.randint(0, model.outputs, (SAMPLES, *model.input_shape), generator=made)
        return TorchBatch(tokens, tokens.roll(1, 1), SAMPLES)
    inputs = torch.randn(SAMPLES, *model.input_shape, generator=made)
    if model.loss == "cross_entropy":
        return TorchBatch(inputs, torch.randint(0, model.outputs, (SAMPLES,), generator=made), SAMPLES)
    return TorchBatch(inputs, torch.randn(SAMPLES, *model.target_shape, generator=made), SAMPLES)


def taught(strategy: Any, batch: TorchBatch) -> tuple[list[float | None], dict[str, np.ndarray]]:
    """(loss sums, weights)."""
    strategy.setup()
    replay = Replay(batch, UPDATES)
    strategy.train(replay)
    return [None if part is None else float(part.loss_sum) for part in replay.parts], strategy.parameters()


def sent(strategy: Any, batch: TorchBatch) -> list[int]:
    """Bytes of each message of an update, as the profiler sees them: of all that is gathered, or summed up."""
    replay = ProfiledReplay(batch, 1, shapes=True)
    strategy.train(replay)
    ranks = strategy.spec.processes
    return sorted(
        math.prod(one.sizes) * one.dtype.itemsize * (1 if SENT[one.name] else ranks)
        for one in replay.operations()
        if one.name in SENT
    )


def local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def digest(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(one.detach().contiguous().numpy().tobytes() for one in tensors)).hexdigest()


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
