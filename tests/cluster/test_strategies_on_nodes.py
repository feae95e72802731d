"""Every strategy on one and two nodes: where its ranks run, and what is unsupported there."""

import pytest

from tests.builders.launching import NEEDS_MPIRUN

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.real]
FULL = {
    "horovod_tensorflow_gloo": "gloo", "horovod_tensorflow_mpi": "mpi", "independent_tensorflow": None,
    "independent_torch": None, "simulated": None, "parameter_server": "grpc",
    "parameter_server_sync": "grpc",
}  # fmt: skip
UNEVEN = ["ddp_gloo", "horovod_mpi", "horovod_tensorflow_gloo", "multiworker_ring", "simulated"]
UNEVEN += ["parameter_server", "parameter_server_sync"]


def rows(program, text):
    done = program.run(f"{text} baseline=none")
    assert (done.status, done.err) == (0, ""), done.out
    return list(program.rows().values())


def stand(program, *nodes):
    return [program.cluster.nodes[node] for node in nodes]


def measured(strategy, nodes):
    """The hosts of the ranks that measure: the chief alone, where workers take their steps from it."""
    return nodes[:1] if strategy.startswith("parameter_server") else nodes


@NEEDS_MPIRUN
@pytest.mark.horovod
def test_all_devices_of_both_nodes(program):
    for row in rows(program, f"strategy={','.join(FULL)} gpus=4"):
        name = row.scale.strategy
        assert (name, row.status, row.reason, row.scale.nodes) == (name, "ok", None, 2)
        assert row.scale.backend_used == FULL[name]
        assert [rank.hostname for rank in row.ranks] == measured(name, stand(program, 0, 0, 1, 1))
        assert row.scheduler is not None and row.scheduler.nodes == program.cluster.nodes


@NEEDS_MPIRUN
@pytest.mark.horovod
def test_nodes_that_are_not_full(program):
    found = {row.scale.strategy: row for row in rows(program, f"strategy={','.join(UNEVEN)},lightning_ddp_gloo gpus=3")}
    assert sorted(found) == sorted([*UNEVEN, "lightning_ddp_gloo"])
    for name in UNEVEN:
        row = found[name]
        assert (name, row.status, row.reason, row.scale.nodes) == (name, "ok", None, 2)
        assert [rank.hostname for rank in row.ranks] == measured(name, stand(program, 0, 0, 1))
    lightning = found["lightning_ddp_gloo"]
    assert lightning.status == "unsupported"
    assert "Lightning wants as many processes on every node, and here are [2, 1]" in (lightning.reason or "")


def test_layouts_are_rows_of_their_own(program):
    done = program.run(
        "strategy=ddp_gloo,mirrored hardware.layout=sequence,spread hardware.max_nodes=2 gpus=2 baseline=none"
    )
    assert (done.status, done.err) == (0, "")
    found = {(row.spec["hardware"]["layout"], row.scale.strategy): row for row in program.rows().values()}
    assert {case: (row.status, row.scale.nodes) for case, row in found.items()} == {
        ("sequence", "ddp_gloo"): ("ok", 1),
        ("spread", "ddp_gloo"): ("ok", 2),
        ("sequence", "mirrored"): ("ok", 1),  # which is what spread would be
    }
    assert [rank.hostname for rank in found["spread", "ddp_gloo"].ranks] == program.cluster.nodes
    table = done.out[done.out.index(" scaling, batch ") :]
    assert (table.count("layout=sequence"), table.count("layout=spread")) == (2, 1) and " on 2 nodes\n" in table
