"""Collective operations of real groups of two: what comes of them, and that they can be measured."""

from types import SimpleNamespace

import numpy as np
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.json_files import read_record
from scalebench.core.result import COLLECTIVES, ProbeRecord
from scalebench.core.spec import write_spec
from scalebench.measure.collectives import list_message_sizes
from scalebench.runner import launchers
from tests.measure.collectives_rank import SIZES, TRANSFERS, sent

RANK = "tests.measure.collectives_rank"
WORDS = ("gpus=2", "measure.block_s=0.002", "measure.probe_s=0.1", "measure.hang_s=60", "dataset.size=1000")


def launch(strategy, folder):
    spec = resolve(compose_config([f"strategy={strategy}", *WORDS]))
    if spec.unsupported is not None:
        pytest.skip(spec.unsupported)
    folder.mkdir(exist_ok=True)
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "collectives", module=RANK)
    assert ended.exit_codes == [0] * spec.processes, (folder / "rank0.log").read_text()[-3000:]
    arrays = {}
    for rank in range(spec.processes):
        with np.load(folder / f"results{rank}.npz") as found:
            arrays |= dict(found)
    probes = [read_record(folder / f"probes{k}.json", ProbeRecord) for k in range(spec.processes)]
    return SimpleNamespace(arrays=arrays, probes=probes)  # arrays by operation, size and rank


def expected(name, size, rank):
    inputs = [sent(name, size, 2, r) for r in range(2)]
    whole = sum(inputs[1:], inputs[0])
    of_rank = {
        "all_reduce": lambda: whole,
        "reduce": lambda: whole,
        "broadcast": lambda: inputs[0],
        "all_gather": lambda: np.concatenate(inputs),
        "gather": lambda: np.concatenate(inputs),
        "reduce_scatter": lambda: np.split(whole, 2)[rank],
        "scatter": lambda: np.split(inputs[0], 2)[rank],
        "all_to_all": lambda: np.concatenate([np.split(one, 2)[rank] for one in inputs]),
    }
    return None if name in ("reduce", "gather") and rank else of_rank[name]()


def check(left, operations):
    """Every result is right, and every operation was measured at every size, alike on all ranks."""
    assert {key.partition(" ")[0] for key in left.arrays} == operations
    for name in operations:
        for size in list_message_sizes(name, 2, SIZES):
            for rank in range(2):
                right, found = expected(name, size, rank), left.arrays.get(f"{name} {size} {rank}")
                assert (right is None) == (found is None), (name, size, rank)
                if right is not None:
                    np.testing.assert_array_equal(found, right, err_msg=f"{name} {size} {rank}")
    wanted = [(name, size) for name in COLLECTIVES if name in operations for size in list_message_sizes(name, 2, SIZES)]
    alike = [[(c.name, c.size_bytes, c.repeats, len(c.block_s)) for c in one.collectives] for one in left.probes]
    assert [one[:2] for one in alike[0]] == wanted and alike == [alike[0]] * len(alike)
    assert all(c.repeats >= 1 and len(c.block_s) >= 3 and min(c.block_s) > 0 for c in left.probes[0].collectives)
    assert set(COLLECTIVES) - operations == left.probes[0].reasons.keys() & set(COLLECTIVES)


@pytest.mark.slow
@pytest.mark.real
def test_ddp_gloo(tmp_path):
    left = launch("ddp_gloo", tmp_path / "run")
    check(left, set(COLLECTIVES))
    zero, one = ([(t.kind, t.source, t.target, t.size_bytes) for t in p.bandwidth] for p in left.probes)
    small, large = TRANSFERS
    assert zero == one == [
        ("send_latency", 0, 1, 4), ("send_latency", 1, 0, 4),
        ("send_one_way", 0, 1, small), ("send_one_way", 1, 0, small), ("send_both_ways", 0, 1, small),
        ("send_ring", None, None, small), ("memcpy", 0, 0, large), ("memcpy", 1, 1, large),
        ("memcpy_all", None, None, large),
    ]  # fmt: skip
    assert all(len(t.block_s) >= 3 and t.repeats >= 1 for p in left.probes for t in p.bandwidth)
    assert left.probes[0].reasons == {}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategies", "operations", "lacking", "reason"),
    [
        (["horovod_gloo", "horovod_mpi", "horovod_tensorflow_gloo", "lightning_horovod"],
         {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"}, "gather", "Horovod has no gather"),
        (["multiworker_ring", "mirrored", "mirrored_reduce_cpu"],
         {"all_reduce", "all_gather"}, "broadcast", "only all_reduce and all_gather"),
        (["mirrored_hierarchical"], {"all_reduce"}, "all_gather", "leaves it to another"),  # which is not measured
    ],
    ids=["horovod", "tensorflow", "falling back"],
)  # fmt: skip
def test_strategies_with_some_operations(strategies, operations, lacking, reason, tmp_path, subtests):
    for strategy in strategies:
        with subtests.test(strategy):
            left = launch(strategy, tmp_path / strategy)
            check(left, operations)
            assert reason in left.probes[0].reasons[lacking]
            kinds = {transfer.kind for transfer in left.probes[0].bandwidth}
            assert ("memcpy" in kinds) == ("horovod" in strategy and "tensorflow" not in strategy)
            assert "horovod" in strategy or not kinds
            if "horovod" in strategy:
                assert left.probes[0].reasons["send_one_way"].startswith(strategy)
