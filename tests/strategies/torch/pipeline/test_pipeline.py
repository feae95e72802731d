"""A model cut into stages learns as it does in one piece, and what cannot be is refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalebench.core.errors import InputError
from scalebench.core.json_files import read_json
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import write_spec
from scalebench.runner import launchers
from scalebench.strategies import registry
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.pipeline import stage
from tests.strategies.torch.conftest import own, spec_of
from tests.strategies.torch.pipeline import pipeline_rank

RANK = "tests.strategies.torch.pipeline.pipeline_rank"
SMALL = {"dataset__size": 60, "dataset__validation_share": 0.0}  # of which each batch of 20 divides by 4


def staged(name: str, processes: int, folder: Path, **changes: Any) -> list[dict[str, Any]]:
    spec = spec_of(name, processes, **changes)
    spec.global_batch = 12
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "staged", module=RANK)
    assert set(ended.exit_codes) == {0}, (folder / rank_log_name(ended.died_first[0])).read_text()
    return [read_json(folder / f"staged{rank}.json") for rank in range(processes)]


def check_losses(ranks: list[dict[str, Any]], bare: Any, rel: float) -> None:
    """The last stage tells those of the model in one piece."""
    assert [rank["losses"] for rank in ranks[:-1]] == [None] * (len(ranks) - 1)
    assert ranks[-1]["losses"] == pytest.approx(pipeline_rank.losses(bare, bare.spec.config.model), rel=rel)


def check_weights(ranks: list[dict[str, Any]], bare: Any) -> None:
    """Gathered from all stages, they are those of the model in one piece after as many updates."""
    for rank in ranks:
        assert rank["weights"] == pytest.approx(pipeline_rank.sums(bare), rel=1e-3, abs=1e-2)
        assert rank["params"] == bare.num_params()


@pytest.mark.real
@pytest.mark.parametrize("data_format", ["nhwc", pytest.param("nchw", marks=pytest.mark.slow)])
def test_batch_norm_in_stages(strategy: Any, tmp_path: Path, data_format: str) -> None:
    """Plain steps: Adam divides small gradients by themselves, and so makes steps of what is rounding in them."""
    changes = {
        "model": "resnet20_cifar10",
        "train__optimizer": "sgd",
        "train__data_format": data_format,
        "strategy__options__split": "size",
        **SMALL,
    }
    ranks = staged("model_parallel", 2, tmp_path, **changes)
    del changes["strategy__options__split"]
    bare = strategy("bare_torch", **changes)
    check_losses(ranks, bare, rel=1e-5)
    check_weights(ranks, bare)
    first, second = (rank["stages"][0] for rank in ranks)
    assert [len(rank["stages"]) for rank in ranks] == [1, 1]
    assert (first["index"], first["stages"], first["replica"], first["micro_batches"]) == (0, 2, 0, 1)
    assert first["last"] != second["first"]
    assert first["parameter_bytes"] + second["parameter_bytes"] == 4 * ranks[0]["params"]
    assert first["sent_bytes"] == ranks[0]["messages"][0] and second["sent_bytes"] is None
    assert min(first["work_s"], second["work_s"]) > 0
    assert ranks[0]["messages"] == ranks[1]["messages"]
    assert len(ranks[0]["messages"]) == 2
    for rank in ranks:  # activations one way, their gradients the other, and nothing else
        assert rank["step"] == rank["exchange"] == ["gloo:recv", "gloo:send"]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", ["pipeline_gpipe", "pipeline_1f1b"])
def test_micro_batches_in_half_precision(strategy: Any, tmp_path: Path, name: str) -> None:
    """What goes between stages is as it is computed: half the bytes."""
    changes = {"train__precision": "bfloat16", **SMALL}
    ranks = staged(name, 3, tmp_path, **changes)
    check_losses(ranks, strategy("bare_torch", **changes), rel=2e-2)
    messages = ranks[0]["messages"]
    assert len(messages) == 2 * 2 * 4
    sent = [rank["stages"][0]["sent_bytes"] for rank in ranks[:-1]]
    assert sum(messages) == 2 * sum(sent)
    assert ranks[1]["exchange"] == ["gloo:recv"] * 8 + ["gloo:send"] * 8


@pytest.mark.parametrize("name", ["model_parallel", "pipeline_gpipe", "pipeline_1f1b"])
def test_one_stage_is_the_model(strategy: Any, name: str) -> None:
    whole = strategy("bare_torch", **SMALL)
    wanted = pipeline_rank.losses(whole, whole.spec.config.model)
    one = strategy(name, **SMALL)
    assert pipeline_rank.losses(one, one.spec.config.model) == pytest.approx(wanted, rel=1e-5)
    assert (one.stages(), one.message_sizes(), one.backend_used()) == ([], [], None)


def test_learning_rate_is_set(strategy: Any) -> None:
    one = strategy("model_parallel", **SMALL)
    before = pipeline_rank.sums(one)
    one.set_learning_rate(0.0)
    pipeline_rank.losses(one, one.spec.config.model)
    assert pipeline_rank.sums(one) == before


def test_measured_seconds_are_asked_for_by_the_split(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measured(network: Any, config: Any, samples: int, *others: Any) -> list[float]:
        asked.append(samples)
        return [0.0] * len(network.nodes)

    monkeypatch.setattr(stage, "measured", measured)
    one = strategy("pipeline_gpipe", **SMALL, strategy__options__micro_batches=4)
    assert asked == []  # one stage has nothing to balance
    one.stage_count = 2
    one._costs(one.model.network)
    assert asked == [5]  # samples of a micro-batch


REFUSED = [
    ("model_parallel", 2, {"train__accumulate": 2}, "leave out train.accumulate"),
    ("model_parallel", 2, {"train__precision": "float16"}, "take bfloat16"),
    ("model_parallel", 2, {"train__compile": True}, "leave out train.compile"),
    ("model_parallel", 2, own("Convolutional"), "a module of one's own does not say where it can be cut"),
    ("model_parallel", 5, {}, "can be cut into at most 4 stages, the strategy needs 5: lower gpus"),
    (
        "pipeline_gpipe",
        2,
        {"strategy__options__micro_batches": 3},
        "a batch has 40 samples, which do not divide into 3",
    ),
    (
        "pipeline_gpipe",
        2,
        {"dataset__size": 55, "strategy__options__micro_batches": 4},
        "the last batch of an epoch has 15 samples, which do not divide into 4",
    ),
    ("pipeline_1f1b", 3, {"strategy__options__micro_batches": 2}, "at least as many micro-batches as stages"),
    ("hybrid", 4, {"strategy__options__schedule": "1f1b", "strategy__options__micro_batches": 1}, "there are 1 for 2"),
    ("hybrid", 3, {}, "gpus=3 is no multiple of it"),
]


@pytest.mark.parametrize(("name", "gpus", "changes", "reason"), REFUSED)
def test_what_cannot_be_is_refused_before_processes_meet(
    name: str, gpus: int, changes: dict[str, Any], reason: str
) -> None:
    one = registry.load(name)(spec_of(name, gpus, **{**SMALL, "dataset__size": 80, **changes}), 0)
    with pytest.raises(Unsupported) as refused:
        one.shard()
        one.setup()
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "option", "value", "words"),
    [
        ("model_parallel", "split", "sise", "did you mean 'size'"),
        ("pipeline_gpipe", "micro_batches", 0, "should be at least 1"),
        ("pipeline_gpipe", "micro_batches", 1.5, "should be a whole number"),
        ("hybrid", "stages", 0, "should be at least 1"),
        ("hybrid", "schedule", "gpip", "did you mean 'gpipe'"),
    ],
)
def test_unknown_options(name: str, option: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        registry.load(name)(spec_of(name, 2, **{f"strategy__options__{option}": value}), 0)
