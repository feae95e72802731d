"""N devices of b samples beside one of N * b, against figures worked out here."""

from scalebench.analysis.batches import compare_devices_with_batch
from scalebench.analysis.scaling_curves import make_curves
from tests.builders import sweeps
from tests.builders.batch_runs import batched


def chosen(*results):
    configurations = sweeps.pool(results)
    return compare_devices_with_batch(make_curves(configurations.make_frame()), configurations.estimate_ratio)


def test_different_work_is_not_compared():
    here = batched("ddp_gloo", 2, 10)
    for others in (
        [batched("ddp_gloo", 1, 20, learning_rate=0.5)], [batched("ddp_gloo", 1, 20, optimizer="sgd")],
        [batched("ddp_gloo", 1, 10), batched("horovod_gloo", 1, 20)],
    ):  # fmt: skip
        assert chosen(here, *others) == []
    assert chosen(*(sweeps.run("ddp_gloo", gpus, **sweeps.strong_scaling(20, gpus)) for gpus in (1, 2))) == []
    bare = [batched("bare_torch", 1, 20), batched("ddp_gloo", 1, 20)]
    assert [one.same_strategy for one in chosen(here, *bare)] == [True]  # no row says which bare baseline is its own
