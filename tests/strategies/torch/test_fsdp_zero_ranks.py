"""Two ranks with sharded weights or optimizer state: the messages, the state that is kept, and evaluation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scalebench.core.json_files import read_json
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from tests.strategies.torch.conftest import spec_of

PARAMETERS = 153441
# Tensors of the materials CNN: kernels and biases of two convolutions and two dense layers.
TENSORS = [16 * 3 * 7, 16, 24 * 16 * 7, 24, 125 * 1200, 125, 2 * 125, 2]


def run_ranks(folder: Path, name: str, **changes: Any) -> list[dict[str, Any]]:
    spec = spec_of(name, 2, **changes)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "sharded", module="tests.strategies.torch.sharded_rank")
    assert ended.exit_codes == [0, 0], [(folder / rank_log_name(rank)).read_text() for rank in range(2)]
    rank0, rank1 = ranks = [read_json(folder / f"sharded{rank}.json") for rank in range(2)]
    assert rank0["weights"] == rank1["weights"] and sorted(rank0["sizes"].values()) == sorted(TENSORS)
    assert rank0["metrics"] == rank1["metrics"] and (rank0["batches"], rank1["batches"]) == (2, 1)
    return ranks


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("kept", [False, True])
def test_fsdp_messages_state_and_evaluation(tmp_path: Path, kept: bool) -> None:
    """Each layer but the last is gathered for both passes, and gradients are averaged once. Gloo has no
    reduce-scatter: torch lets it all-reduce the full tensor."""
    options = {"strategy__options__unit_mb": 0.0, "strategy__options__reshard_after_forward": not kept}
    ranks = run_ranks(tmp_path, "fsdp_gloo", **options)
    layers = [4 * (TENSORS[i] + TENSORS[i + 1] + (i == 4)) for i in (0, 2, 4, 6)]  # 125 biases come as twice 63
    gathered = Counter({layers[0]: 1, layers[1]: 1, layers[2]: 1, layers[3]: 1})
    if not kept:
        gathered.update(layers[:3])
    for observed in ranks:
        sent = [("all_gather", size // 2) for size in gathered.elements()] + [("all_reduce", size) for size in layers]
        # The middle dense layer has 125 rows of 1200, which come as twice 63.
        sent = [
            (name, size + (4 * 1200 // (2 if name == "all_gather" else 1)) * (size > 100_000)) for name, size in sent
        ]
        assert Counter(map(tuple, observed["step"])) == Counter(map(tuple, observed["again"])) == Counter(sent)
        assert Counter(map(tuple, observed["isolated_sync"])) == Counter(sent)
        complete = [2 * size if name == "all_gather" else size for name, size in map(tuple, observed["step"])]
        assert Counter(observed["messages"]) == Counter(observed["messages_again"]) == Counter(complete)
        assert sorted(name for name, _ in observed["evaluation"]) == ["all_gather"] * 4
    even_split = [sum((size + 1) // 2 for size in TENSORS), PARAMETERS]
    assert all(observed["state_bytes"] != [even_split] for observed in ranks)
    total = sum(observed["state_bytes"][0] for observed in ranks)
    assert total == 16 * PARAMETERS + 2 * 8 * 4  # with Adam's counts of steps
    assert max(observed["state_bytes"][0] for observed in ranks) < 0.51 * total
    assert sum(observed["start_bytes"][0] for observed in ranks) == 4 * PARAMETERS


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("views", [False, True])
def test_zero1_messages_and_state(tmp_path: Path, views: bool) -> None:
    """Gradients are all-reduced, and each tensor is broadcast by its owner. Tensors are not divided: one rank owns the
    kernel of the large dense layer, the other one everything else."""
    ranks = run_ranks(tmp_path, "zero1", strategy__options__parameters_as_bucket_view=views)
    large = max(TENSORS)
    owned = [large, PARAMETERS - large] if views else TENSORS
    for observed in ranks:
        # Biases of two numbers are as small as what is left out as a single number.
        sent = [("all_reduce", 4 * PARAMETERS)] + [("broadcast", 4 * size) for size in owned if size > 4]
        assert Counter(map(tuple, observed["step"])) == Counter(map(tuple, observed["isolated_sync"])) == Counter(sent)
        assert Counter(observed["messages"]) == Counter([4 * PARAMETERS] + [4 * size for size in owned])
    moments = [8 * large + 4, 8 * (PARAMETERS - large) + 4 * 7]
    assert [observed["state_bytes"][0] - 8 * PARAMETERS for observed in ranks] == moments
