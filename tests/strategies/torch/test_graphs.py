"""The step as one CUDA graph: losses, batches of another shape, learning rates, the profile. A GPU shows what a capture
holds; without one a stand-in for torch.cuda.CUDAGraph runs the step's Python again, on the memory of the first batch,
which shows all that is scalebench's own: what is copied, what is recorded and what is not replayed."""

from itertools import islice

import pytest
import torch

from scalebench.strategies import refusals
from scalebench.strategies.base import LossPart, NotMeasured, Unsupported
from scalebench.strategies.torch import graphs
from scalebench.strategies.torch.graphs import RecordedStep, StepGraphs

STEPS = 7  # of which the third and the sixth are the short ones at the end of an epoch
GRAPHS = {"train__compile": "graphs"}
RATES = {3: 0.01, 5: 0.0001}  # by step


class Rerun:
    """Stands for a graph on a CPU."""

    made: list["Rerun"]

    def __init__(self, train, part):
        self.train, self.part, self.replays, self.is_reset = train, part, 0, False
        self.made.append(self)

    def replay(self):
        self.replays += 1
        self.part.loss_sum.copy_(self.train().loss_sum)

    def reset(self):
        self.is_reset = True


@pytest.fixture
def stand_in(monkeypatch):
    """Capture nothing: the loss of a graph that has not run is NaN."""
    Rerun.made = []

    def capture(self, train):
        part = LossPart(torch.tensor(float("nan")), self._batch.samples)
        return RecordedStep(Rerun(train, part), part)

    monkeypatch.setattr(StepGraphs, "capture", capture)
    monkeypatch.setattr(graphs, "WARMUP_STEPS", 0)
    monkeypatch.setattr(refusals, "graphs_rule", lambda spec: ())
    return Rerun.made


def train(adapter, batches, rates=()):
    losses = []
    for number, batch in enumerate(batches):
        if number in rates:
            adapter.set_learning_rate(rates[number])
        losses.append(float(adapter.step(batch).loss_sum))
    return losses


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum", "rmsprop"])
@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo"])
def test_losses_are_those_of_steps_without_a_graph(strategy, source, stand_in, name, optimizer, monkeypatch):
    """From the first on, which are not replayed; also of batches that no graph is for, and where the learning rate
    changes."""
    monkeypatch.setattr(graphs, "WARMUP_STEPS", 2)
    if optimizer == "rmsprop":  # PyTorch's can be captured on GPUs only
        monkeypatch.setattr(StepGraphs, "prepare_optimizer", lambda self: None)
    adapter, plain = (
        strategy(each, **changes, train__optimizer=optimizer) for each, changes in ((name, GRAPHS), ("bare_torch", {}))
    )
    batches = list(islice(adapter.feed(source()), STEPS))
    assert {batch.samples for batch in batches} == {20, 1}
    assert train(adapter, batches, RATES) == pytest.approx(train(plain, batches, RATES), rel=1e-5)
    (graph,) = stand_in
    assert graph.replays == sum(batch.samples == 20 for batch in batches) - 2
    adapter.close()
    assert graph.is_reset


@pytest.mark.gpu
def test_each_loss_is_kept_when_the_next_step_is_replayed(strategy, source, stand_in):
    adapter = strategy("bare_torch", **GRAPHS)
    batches = [batch for batch in islice(adapter.feed(source()), STEPS) if batch.samples == 20]
    lazy = [adapter.step(batch).loss_sum for batch in batches]
    assert len({float(loss) for loss in lazy}) == len(batches)


@pytest.mark.gpu
def test_a_loss_of_another_weight_needs_other_kernels(strategy, source, stand_in):
    """At the end of an epoch a rank may have a full part of a batch of which others have less."""
    adapter = strategy("ddp_gloo", **GRAPHS)
    batch = next(iter(adapter.feed(source())))
    adapter.step(batch)
    adapter.step(batch._replace(global_samples=batch.global_samples - 1))
    assert [graph.replays for graph in stand_in] == [1]


@pytest.mark.gpu
@pytest.mark.parametrize("feed", ["host", "fixed"])
def test_the_batch_of_a_graph_is_its_own_but_for_one_that_never_changes(strategy, source, stand_in, feed):
    adapter = strategy("bare_torch", **GRAPHS, dataset__feed=feed)
    first, second = islice(adapter.feed(source()), 2)
    adapter.step(first)
    assert (adapter.graphs._batch is first) == (feed == "fixed")
    before = first.inputs.clone()
    adapter.step(second)
    assert torch.equal(first.inputs, before) and torch.equal(adapter.graphs._batch.inputs, second.inputs)


@pytest.mark.gpu
def test_probes_have_a_graph_without_synchronization_and_observe_steps_without_any(strategy, source, stand_in):
    adapter = strategy("ddp_gloo", **GRAPHS)
    batch = next(iter(adapter.feed(source())))
    adapter.step(batch)
    adapter.set_gradient_sync(False)
    adapter.step(batch)
    assert [graph.replays for graph in stand_in] == [1, 1]
    adapter.set_gradient_sync(True)
    adapter.step(batch)
    assert [graph.replays for graph in stand_in] == [2, 1] and len(adapter.graphs._recorded) == 2
    assert sum(adapter.message_sizes()) == 4 * adapter.num_params()  # by steps that the host starts
    assert stand_in[0].replays == 2
    with pytest.raises(NotMeasured, match="starts a step as a whole"):
        adapter.partial_step(batch, "forward")
    profile = adapter.profile(3, None)
    assert stand_in[0].replays == 5 and profile.steps == 3 and profile.operations
    assert adapter.settings_used()["compiler"] == "graphs" and adapter.settings_used()["precision"] == "float32"
    assert adapter.backend_used() == "gloo"


@pytest.mark.gpu
def test_the_profile_of_replays_leaves_out_the_steps_before_them(strategy, source, stand_in):
    """Twice as many operations, or twice their time, would be those of the steps for the settings."""
    adapter, plain = strategy("bare_torch", **GRAPHS), strategy("bare_torch")
    batch = next(iter(adapter.feed(source())))
    for each in (adapter, plain):
        each.step(batch)
    calls = [{one.name: one.calls for one in each.profile(3, None).operations} for each in (adapter, plain)]
    # A profile lists the operations that take longest, which are not always the same.
    shared = [name for name in calls[0].keys() & calls[1].keys() if "conv" in name or "mm" in name]
    assert shared and [calls[0][name] for name in shared] == [calls[1][name] for name in shared]


@pytest.mark.gpu
def test_a_step_that_cannot_be_captured_is_unsupported_with_its_reason(strategy, source, stand_in, monkeypatch):
    adapter = strategy("bare_torch", **GRAPHS)
    batch = next(iter(adapter.feed(source())))

    def fail(self, train):
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        finally:
            raise RuntimeError("capture was invalidated")  # as the end of the context does

    monkeypatch.setattr(StepGraphs, "capture", fail)
    message = r"materials_cnn cannot be captured, .* not permitted .*: take train.compile=none"
    with pytest.raises(Unsupported, match=message):
        adapter.step(batch)
    memory = torch.cuda.OutOfMemoryError("full")
    monkeypatch.setattr(StepGraphs, "capture", lambda self, train: (_ for _ in ()).throw(memory))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        adapter.step(batch)


def test_optimizers_read_their_rate_where_a_graph_does(strategy):
    for name, counts in (("adam", True), ("rmsprop", True), ("sgd", False)):
        adapter = strategy("bare_torch", train__optimizer=name)
        StepGraphs(adapter).prepare_optimizer()
        (group,) = adapter.optimizer.param_groups
        rate = group["lr"]
        adapter.set_learning_rate(0.25)
        assert group["lr"] is rate and float(rate) == 0.25 and group.get("capturable", False) == counts
    adapter.model.user_optimizer = object()
    with pytest.raises(Unsupported, match="this model has its own"):
        StepGraphs(adapter).prepare_optimizer()
    adapter.model.user_optimizer = None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum", "rmsprop"])
@pytest.mark.parametrize("name", ["bare_torch", "ddp_nccl"])
def test_a_gpu_replays_steps(strategy, source, name, optimizer):
    """On one card. Losses equal those without a graph, also where the learning rate changes; kernels are in the
    profile; a graph without synchronization; and the group can be left."""
    changes = {"device": "cuda", "hardware__devices": "cuda", "train__optimizer": optimizer}
    adapter, plain = strategy(name, **GRAPHS, **changes), strategy("bare_torch", **changes)
    batches = list(islice(adapter.feed(source()), 3 * STEPS))
    assert train(adapter, batches, RATES) == pytest.approx(train(plain, batches, RATES), rel=1e-4)
    adapter.set_gradient_sync(False)
    adapter.step(batches[0])
    adapter.set_gradient_sync(True)
    profile = adapter.profile(3, None)
    assert profile.kernel_s and any(each.device == "cuda" for each in profile.operations)
    assert adapter.settings_used()["compiler"] == "graphs"
    assert float(adapter.step(batches[0]).loss_sum) > 0
