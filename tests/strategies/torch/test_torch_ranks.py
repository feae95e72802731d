"""Of two ranks parts of a step do not synchronize and later steps do, sharded strategies send and keep what is theirs,
and a user's module that fails or differs between ranks ends both. That they train like one is the contract's."""

from collections import Counter

import pytest

from scalebench.config import horovod_build
from scalebench.core.json_files import read_json, write_json
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.strategies.torch.sharded.fsdp import default_shards
from tests.strategies.torch.conftest import USER_MODULES, run_ranks, spec_of, user_model

RANK = "task_rank"


def skip_without_horovod(spec):
    """Skip a test of Horovod that cannot run here."""
    strategy = spec.config.strategy
    reason = horovod_build.find_horovod_problem("torch", strategy.backend, strategy.launcher)
    if "horovod" in strategy.name and reason is not None:
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.real
def test_lightning_broadcasts_before_each_batch_unless_switched_off(tmp_path):
    """Steps without gradient synchronization, by which the others are judged, have no collective at all."""
    write_json(tmp_path / "task.json", "count_broadcasts")
    for observed in run_ranks(spec_of("lightning_ddp_gloo", 2), tmp_path, RANK):
        counts = observed["counts"]
        assert counts["lightning False"] == counts["never False"] == [0, False]
        (with_it, sent), (without, sent_without) = counts["lightning True"], counts["never True"]
        assert with_it - without == 3 and sent and sent_without  # DDP's own are those that order its buckets
        assert observed["settings"] == {"lightning": "broadcast", "never": None}


REASONS = {"unseeded": "gives other weights on every rank", "fails": "fails: KeyError: 'weights of last year'"}


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("function", REASONS)
@pytest.mark.parametrize("name", ["ddp_gloo", "horovod_gloo"])
def test_both_ranks_report_an_error_of_the_users_function(name, function, tmp_path):
    spec = spec_of(name, 2, **user_model(function))
    skip_without_horovod(spec)
    write_json(tmp_path / "task.json", "shard")
    write_spec(spec, tmp_path)
    launchers.launch(spec, tmp_path, "observed", module=f"tests.strategies.torch.{RANK}")
    reported = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    records = [read_json(path) for path in reported if path.exists()]  # the launcher may end the second one first
    assert records
    for record in records:
        assert record["status"] == "failed"
        assert record["reason"].startswith(f"model.torch={USER_MODULES}:{function} {REASONS[function]}")
        log = (tmp_path / rank_log_name(record["rank"])).read_text()
        assert "Traceback" in log and ("in fails" in log or function == "unseeded")


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("name", "waits"), [("horovod_gloo", 8), ("lightning_horovod", 1)])
def test_horovods_parts_of_a_step_do_not_synchronize_and_its_waits_are_in_the_profile(name, waits, tmp_path):
    """It waits for each of the 8 gradients, under Lightning for all at once."""
    spec = spec_of(name, 2)
    skip_without_horovod(spec)
    write_json(tmp_path / "task.json", "take_parts")
    rank0, rank1 = ranks = run_ranks(spec, tmp_path, RANK)
    assert rank0["trained"] == rank1["trained"]
    assert rank0["apart"] != rank1["apart"]
    assert rank0["gradients"] == rank1["gradients"]  # averaged again, although their weights stay apart
    for observed in ranks:
        assert not [name for name in observed["apart_names"] if name.startswith(("c10d::", "horovod:"))]
        profile = observed["profile"]
        (wait,) = (each for each in profile["operations"] if each["name"] == "horovod:synchronize")
        assert wait["collective"] and wait["calls"] == waits
        assert 0 < wait["self_s"] <= profile["collective_s"] < profile["kernel_s"]


PARAMETERS = 153441
# Tensors of the materials CNN: kernels and biases of two convolutions and two dense layers.
TENSORS = [16 * 3 * 7, 16, 24 * 16 * 7, 24, 125 * 1200, 125, 2 * 125, 2]


def run_sharded(folder, name, **changes):
    write_json(folder / "task.json", "shard")
    rank0, rank1 = ranks = run_ranks(spec_of(name, 2, **changes), folder, RANK)
    assert rank0["weights"] == rank1["weights"] and sorted(rank0["sizes"].values()) == sorted(TENSORS)
    assert rank0["metrics"] == rank1["metrics"] and (rank0["batches"], rank1["batches"]) == (2, 1)
    return ranks


def count(messages):
    """Count them, which are lists in a file."""
    return Counter(map(tuple, messages))


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("kept", [False, True])
def test_fsdp_messages_state_and_evaluation(tmp_path, kept):
    """Each layer but the last is gathered for both passes, and gradients are averaged once. Gloo has no
    reduce-scatter: torch lets it all-reduce the full tensor."""
    options = {"strategy__options__unit_mb": 0.0, "strategy__options__reshard_after_forward": not kept}
    ranks = run_sharded(tmp_path, "fsdp_gloo", **options)
    layers = [4 * (TENSORS[i] + TENSORS[i + 1] + (i == 4)) for i in (0, 2, 4, 6)]  # 125 biases come as twice 63
    gathered = Counter({layers[0]: 1, layers[1]: 1, layers[2]: 1, layers[3]: 1})
    if not kept:
        gathered.update(layers[:3])
    for observed in ranks:
        sent = [("all_gather", size // 2) for size in gathered.elements()] + [("all_reduce", size) for size in layers]
        # The middle dense layer has 125 rows of 1200, which come as twice 63.
        shares = {"all_gather": 2, "all_reduce": 1}
        sent = [(name, size + 4 * 1200 // shares[name] * (size > 100_000)) for name, size in sent]
        assert count(observed["step"]) == count(observed["again"]) == Counter(sent)
        assert count(observed["isolated_sync"]) == Counter(sent)
        assert observed["without_sync"] == []
        complete = [2 * size if name == "all_gather" else size for name, size in map(tuple, observed["step"])]
        assert Counter(observed["messages"]) == Counter(observed["messages_again"]) == Counter(complete)
        # Two batches, also where a rank has one, and the last layer stays gathered.
        assert [name for name, _ in observed["evaluation"]] == ["all_gather"] * (4 if kept else 7)
    even_split = [sum((size + 1) // 2 for size in TENSORS), PARAMETERS]
    assert all(observed["state_bytes"] != [even_split] for observed in ranks)
    total = sum(observed["state_bytes"][0] for observed in ranks)
    assert total == 16 * PARAMETERS + 2 * 8 * 4  # with Adam's counts of steps
    assert max(observed["state_bytes"][0] for observed in ranks) < 0.51 * total
    assert sum(observed["start_bytes"][0] for observed in ranks) == 4 * PARAMETERS


@pytest.mark.slow
@pytest.mark.real
def test_hsdp_of_complete_copies_sends_gradients_only(tmp_path):
    options = {"strategy__options__unit_mb": 0.0, "strategy__options__shards": 1}
    layers = [4 * (TENSORS[i] + TENSORS[i + 1]) for i in (0, 2, 4, 6)]
    for observed in run_sharded(tmp_path, "hsdp", **options):
        sent = Counter(("all_reduce", size) for size in layers)
        assert count(observed["step"]) == count(observed["isolated_sync"]) == sent
        assert Counter(observed["messages"]) == Counter(layers)
        assert observed["state_bytes"] == [16 * PARAMETERS + 8 * 4]  # with Adam's counts of steps


def test_shards_of_a_copy_are_on_one_node():
    for processes, nodes, shards in (
        (1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 2), (8, 1, 4), (8, 2, 4), (9, 2, 9), (4, 4, 4),
    ):  # fmt: skip
        assert default_shards(processes, nodes) == shards


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("views", [False, True])
def test_zero1_messages_and_state(tmp_path, views):
    """Gradients are all-reduced, and each tensor is broadcast by its owner. Tensors are not divided: one rank owns the
    kernel of the large dense layer, the other one everything else."""
    ranks = run_sharded(tmp_path, "zero1", strategy__options__parameters_as_bucket_view=views)
    large = max(TENSORS)
    owned = [large, PARAMETERS - large] if views else TENSORS
    for observed in ranks:
        # Biases of two numbers are as small as what is left out as a single number.
        sent = [("all_reduce", 4 * PARAMETERS)] + [("broadcast", 4 * size) for size in owned if size > 4]
        assert count(observed["step"]) == count(observed["isolated_sync"]) == Counter(sent)
        assert Counter(observed["messages"]) == Counter([4 * PARAMETERS] + [4 * size for size in owned])
    moments = [8 * large + 4, 8 * (PARAMETERS - large) + 4 * 7]
    assert [observed["state_bytes"][0] - 8 * PARAMETERS for observed in ranks] == moments
