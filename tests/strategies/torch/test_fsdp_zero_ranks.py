"""Two ranks that share out weights or the optimizer's state: what they send, what they keep, who evaluates."""

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


def launched(folder: Path, name: str, **changes: Any) -> list[dict[str, Any]]:
    spec = spec_of(name, 2, **changes)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "sharded", module="tests.strategies.torch.sharded_rank")
    assert ended.exit_codes == [0, 0], [(folder / rank_log_name(rank)).read_text() for rank in range(2)]
    zero, one = ranks = [read_json(folder / f"sharded{rank}.json") for rank in range(2)]
    assert zero["weights"] == one["weights"] and sorted(zero["sizes"].values()) == sorted(TENSORS)
    assert zero["metrics"] == one["metrics"] and (zero["batches"], one["batches"]) == (2, 1)
    return ranks


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("kept", [False, True])
def test_fsdp(tmp_path: Path, kept: bool) -> None:
    """Each layer is gathered for both passes, but for the last, and its gradients are averaged once. Gloo has no
    reduce-scatter: torch has it reduce the whole, on all ranks."""
    options = {"strategy__options__unit_mb": 0.0, "strategy__options__reshard_after_forward": not kept}
    ranks = launched(tmp_path, "fsdp_gloo", **options)
    layers = [4 * (TENSORS[i] + TENSORS[i + 1] + (i == 4)) for i in (0, 2, 4, 6)]  # 125 biases come as twice 63
    gathered = Counter({layers[0]: 1, layers[1]: 1, layers[2]: 1, layers[3]: 1})
    if not kept:
        gathered.update(layers[:3])
    for seen in ranks:
        sent = [("all_gather", size // 2) for size in gathered.elements()] + [("all_reduce", size) for size in layers]
        # The middle dense layer has 125 rows of 1200, which come as twice 63.
        sent = [
            (name, size + (4 * 1200 // (2 if name == "all_gather" else 1)) * (size > 100_000)) for name, size in sent
        ]
        assert Counter(map(tuple, seen["update"])) == Counter(map(tuple, seen["again"])) == Counter(sent)
        assert Counter(map(tuple, seen["exchange"])) == Counter(sent)
        whole = [2 * size if name == "all_gather" else size for name, size in map(tuple, seen["update"])]
        assert Counter(seen["messages"]) == Counter(seen["messages_again"]) == Counter(whole)
        assert sorted(name for name, _ in seen["evaluation"]) == ["all_gather"] * 4
    one = [sum((size + 1) // 2 for size in TENSORS), PARAMETERS]
    assert all(seen["state_bytes"] != [one] for seen in ranks)
    total = sum(seen["state_bytes"][0] for seen in ranks)
    assert total == 16 * PARAMETERS + 2 * 8 * 4  # with Adam's counts of steps
    assert max(seen["state_bytes"][0] for seen in ranks) < 0.51 * total
    assert sum(seen["start_bytes"][0] for seen in ranks) == 4 * PARAMETERS


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("views", [False, True])
def test_zero1(tmp_path: Path, views: bool) -> None:
    """Gradients of all weights to all, and each weight from its owner. Shared out are whole tensors: the large dense
    layer's kernel is one rank's, and everything else the other's."""
    ranks = launched(tmp_path, "zero1", strategy__options__parameters_as_bucket_view=views)
    large = max(TENSORS)
    owned = [large, PARAMETERS - large] if views else TENSORS
    for seen in ranks:
        # Biases of two numbers are as small as what is left out as a single number.
        sent = [("all_reduce", 4 * PARAMETERS)] + [("broadcast", 4 * size) for size in owned if size > 4]
        assert Counter(map(tuple, seen["update"])) == Counter(map(tuple, seen["exchange"])) == Counter(sent)
        assert Counter(seen["messages"]) == Counter([4 * PARAMETERS] + [4 * size for size in owned])
    moments = [8 * large + 4, 8 * (PARAMETERS - large) + 4 * 7]
    assert [seen["state_bytes"][0] - 8 * PARAMETERS for seen in ranks] == moments
