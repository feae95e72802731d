"""A rank that trains with split layers and then on a single device, for each case<i>/spec.json.

It writes its observations of both to observed<k>.json.
"""

import dataclasses
import hashlib
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from scalebench.core.json_files import write_json
from scalebench.core.spec import read_spec
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import BatchReplay
from scalebench.strategies.torch.base import BareTorch
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.group import TorchGroup
from scalebench.strategies.torch.profiling import profile_steps
from scalebench.strategies.torch.tensor_parallel import TensorParallel

STEPS, SAMPLES = 4, 22
IS_ALL_REDUCE = {"_c10d_functional::all_reduce": 1, "_c10d_functional::all_gather_into_tensor": 0}


class SharedGroupTensorParallel(TensorParallel):
    """Tensor parallelism whose group is shared by all cases."""

    shared_group: TorchGroup | None = None

    def join(self):
        SharedGroupTensorParallel.shared_group = SharedGroupTensorParallel.shared_group or super().join()
        return SharedGroupTensorParallel.shared_group


def body(spec, strategy, record, progress):
    folders = sorted(progress.folder.glob("case*"))
    write_json(
        progress.folder / f"observed{record.rank}.json",
        [observe_case(read_spec(folder), record.rank) for folder in folders],
    )
    if SharedGroupTensorParallel.shared_group is not None:
        SharedGroupTensorParallel.shared_group.leave()


def observe_case(spec, rank):
    batch = make_batch(spec)
    ours, alone = (
        SharedGroupTensorParallel(spec, rank),
        BareTorch(dataclasses.replace(spec, places=spec.places[:1]), 0),
    )
    losses, weights = train_on(ours, batch)
    bare_losses, bare_weights = train_on(alone, batch)
    actual = {
        "losses": losses,
        "bare_losses": bare_losses,
        "apart": max(float(np.abs(weights[name] - bare_weights[name]).max()) for name in weights),
        "unsplit": {name: digest(parameter) for name,
         parameter in ours.model.named_parameters() if not isinstance(parameter, DTensor)},
        "weights": digest(*map(torch.from_numpy, weights.values())),
        "kept_bytes": sum(local_tensor(parameter).untyped_storage().nbytes() for parameter in ours.model.parameters()),
        "generator": digest(torch.get_rng_state()),
        "messages": ours.message_sizes(),
        "settings": ours.settings_used(),
        "backend": ours.backend_used(),
        "sent": profiled_messages(ours, batch),
    }  # fmt: skip
    ours.run_isolated_sync(ours.message_sizes())
    return actual


def make_batch(spec):
    made, model = torch.Generator().manual_seed(5), spec.config.model
    if model.name == "gpt_small":
        tokens = torch.randint(0, model.outputs, (SAMPLES, *model.input_shape), generator=made)
        return TorchBatch(tokens, tokens.roll(1, 1), SAMPLES)
    inputs = torch.randn(SAMPLES, *model.input_shape, generator=made)
    if model.loss == "cross_entropy":
        return TorchBatch(inputs, torch.randint(0, model.outputs, (SAMPLES,), generator=made), SAMPLES)
    return TorchBatch(inputs, torch.randn(SAMPLES, *model.target_shape, generator=made), SAMPLES)


def train_on(strategy, batch):
    """Train some steps and return (loss sums, weights)."""
    strategy.setup()
    replay = BatchReplay(batch, STEPS)
    strategy.train(replay)
    return [None if part is None else float(part.loss_sum) for part in replay.parts], strategy.parameters()


def profiled_messages(strategy, batch):
    """Return the bytes of each message of a profiled step: of the gathered or summed result."""
    calls = profile_steps(strategy.train, strategy.synchronize, batch, 1).calls
    ranks = strategy.spec.processes
    return sorted(
        math.prod(call.sizes) * call.dtype.itemsize * (1 if IS_ALL_REDUCE[call.name] else ranks)
        for call in calls
        if call.name in IS_ALL_REDUCE
    )


def local_tensor(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def digest(*tensors):
    return hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
