"""A plan states what the strategy would refuse, by the strategy's own rule and without a framework: that strategies ask
their rule is tested beside them, by test_a_strategy_refuses_what_its_plan_does. What one rank cannot do, none does."""

import subprocess
import sys

import pytest

from scalebench.config import resolve, support
from scalebench.config.compose import compose_config
from scalebench.core.config_files import read_strategy_config
from scalebench.strategies import refusals, registry
from scalebench.strategies.base import NotMeasured, create_on_all_ranks, not_measured_if_unsupported
from tests.conftest import ROOT

FRAMEWORKS = ("torch", "tensorflow", "horovod", "pytorch_lightning", "keras", "accelerate", "deepspeed")
ADAPTERS = {name: read_strategy_config(name)["adapter"] for name in registry.built_in_strategies()}
FIT = "strategy=mirrored strategy.options.loop=fit"
CHECKPOINTING = "train.activation_checkpointing=true"
HOROVOD = "strategy=horovod_gloo"
OWN_KERAS = "model=custom model.keras=tests.strategies.tensorflow.user_models:normalised"
OWN_TORCH = "model=custom model.torch=tests.strategies.torch.user_modules:Plain"
REFUSED = [
    ("strategy=kuza55_ps_cpu gpus=6 scaling=strong train.global_batch=32", "32 samples does not divide by 6 devices"),
    ("strategy=kuza55_ps_cpu gpus=2 dataset.size=300", "the last batch of an epoch of"),
    ("strategy=avolkov1_ps_cpu gpus=2 train.accumulate=2", "leave out train.accumulate"),
    ("strategy=multi_gpu_model gpus=2 train.compile=true", "one program over several devices"),
    ("strategy=multi_gpu_model gpus=2 strategy.options.reduction=nccl strategy.backend=nccl", "needs GPUs; use add"),
    ("strategy=central_storage_cpu gpus=2 train.compile=true", "one program over several devices"),
    ("strategy=central_storage_cpu gpus=2 train.accumulate=2 model=resnet20_cifar10", "moving statistics"),
    ("strategy=parameter_server gpus=2 dataset.feed=device", "takes dataset.feed=host or fixed"),
    ("strategy=parameter_server gpus=2 dataset.prefetch=queue", "takes dataset.prefetch=none"),
    ("strategy=parameter_server gpus=2 train.accumulate=2", "fetch the weights again for every part"),
    ("strategy=parameter_server gpus=2 train.compile=true", "where XLA cannot read them"),
    (f"{FIT} gpus=2 train.accumulate=2", "computes the samples of a step at once"),
    (f"{FIT} gpus=2 dataset.feed=device", "takes its batches from the host; use dataset.feed=host"),
    (f"{FIT} gpus=2 dataset.prefetch=device", "dataset.prefetch=none or queue"),
    (f"{FIT} gpus=2 train.compile=true", "would merge them; use loop=custom"),
    ("strategy=model_parallel_tensorflow gpus=5", "at most 4 stages"),
    ("strategy=model_parallel_tensorflow gpus=2 train.accumulate=2", "passes a batch on whole"),
    ("strategy=model_parallel_tensorflow gpus=2 train.compile=true", "train.compile=default would put it all on one"),
    ("strategy=model_parallel_tensorflow gpus=2 train.precision=float16", "use bfloat16"),
    (f"strategy=model_parallel_tensorflow gpus=2 {OWN_KERAS}", "does not say where it can be cut"),
    (f"strategy=model_parallel gpus=2 {OWN_TORCH}", "a module of one's own does not say where it can be cut"),
    ("strategy=model_parallel gpus=2 train.compile=true", "leave out train.compile"),
    ("strategy=pipeline_1f1b gpus=2 train.clip_norm=1", "no norm of all: leave out train.clip_norm"),
    ("strategy=mirrored gpus=2 train.clip_norm=1", "train.clip_norm is for PyTorch's strategies"),
    ("strategy=tensor_parallel gpus=2 train.compile=true", "leave out train.compile"),
    ("strategy=model_parallel gpus=5", "model materials_cnn can be cut into at most 4 stages"),
    ("strategy=pipeline_gpipe gpus=2 strategy.options.micro_batches=7", "do not divide into 7 micro-batches"),
    ("strategy=pipeline_1f1b gpus=3 strategy.options.micro_batches=2", "at least as many micro-batches as stages"),
    ("strategy=pipeline_gpipe gpus=2 train.precision=float16", "does not scale its loss"),
    ("strategy=hybrid gpus=3", "gpus=3 is not a multiple of it"),
    ("strategy=hybrid gpus=2 strategy.options.stages=4", "gpus=2 is not a multiple of it"),
    ("strategy=zero1 gpus=16 model=materials_cnn", "zero1 gives whole tensors"),
    ("strategy=fsdp gpus=2 train.compile=true", "take strategy.options.units=whole"),
    ("strategy=hsdp gpus=4 strategy.options.shards=3", "does not divide gpus=4"),
    ("strategy=fsdp_tp gpus=3", "tensor_parallel=2 devices, which does not divide gpus=3: change one of them"),
    ("strategy=fsdp_tp gpus=6 hardware.gpus_per_node=3 hardware.max_nodes=2", "not divide the devices of each node"),
    ("strategy=lightning_fsdp gpus=2 train.compile=true", "take strategy.options.units=whole"),
    ("strategy=accelerate gpus=2 train.precision=float16", "on GPUs only"),
    ("strategy=deepspeed_zero2 gpus=2 train.precision=float16", "weights in float16"),
    (f"strategy=mirrored gpus=2 {CHECKPOINTING}", "for PyTorch's strategies, and mirrored is none"),
    (f"strategy=pipeline_1f1b gpus=2 {CHECKPOINTING}", "keeps the activations of micro-batches in its schedule"),
    (f"strategy=tensor_parallel gpus=2 {CHECKPOINTING}", "would exchange its activations a second time"),
    (f"strategy=ddp gpus=2 train.compile=true {CHECKPOINTING}", "the compiler decides what it keeps"),
    ("strategy=tensor_parallel gpus=2 train.precision=float16", "cannot scale a loss"),
    ("strategy=bare_torch gpus=1 train.compile=graphs", "CUDA graphs need a GPU"),
    ("strategy=fsdp gpus=2 train.compile=graphs", "is for bare_torch and ddp, and fsdp is neither"),
    ("strategy=mirrored gpus=2 train.compile=graphs", "is for bare_torch and ddp, and mirrored is neither"),
    ("strategy=ddp gpus=2 train.compile=graphs train.precision=float16 hardware.devices=cuda", "has no scaler"),
    ("strategy=bare_torch gpus=1 train.compile=graphs train.accumulate=2 hardware.devices=cuda", "in one part"),
    ("strategy=ddp_gloo gpus=2 train.compile=graphs hardware.devices=cuda", "Gloo sends from the host"),
    ("strategy=ddp gpus=2 train.compile=graphs strategy.options.overlap=false hardware.devices=cuda", "overlap=false"),
    (f"{HOROVOD} gpus=2 strategy.options.op=adasum", "what Adasum needs, Horovod's MPI operations; take horovod_mpi"),
    ("strategy=horovod_mpi gpus=3 strategy.options.op=adasum", "3 processes are not a power of two"),
    ("strategy=horovod_mpi gpus=2 strategy.options.op=adasum train.precision=float16", "use bfloat16"),
    ("strategy=horovod_mpi gpus=2 strategy.options.hierarchical_allreduce=true", "NCCL within a node"),
    ("strategy=horovod_nccl gpus=2 strategy.options.hierarchical_allreduce=true", "launcher=mpi"),
    ("strategy=horovod_mpi gpus=2 strategy.options.op=adasum train.accumulate=2", "take op=average"),
    ("strategy=lightning_horovod gpus=2 strategy.options.op=adasum", "averages gradients, and Adasum adds up steps"),
]


def plan(overrides, monkeypatch):
    """The run as the plan has it, on a machine that lacks nothing for it."""
    monkeypatch.setattr(support, "find_unsupported_reasons", lambda *arguments: [])
    return resolve.resolve(compose_config(["hardware=cpu", *overrides.split()]))


@pytest.mark.parametrize(("overrides", "reason"), REFUSED)
def test_the_plan_states_what_the_strategy_would_refuse(overrides, reason, monkeypatch):
    unsupported = plan(overrides, monkeypatch).unsupported
    assert unsupported is not None and reason in unsupported and "\n" not in unsupported


@pytest.mark.parametrize("words", [
    *{adapter: f"strategy={name}" for name, adapter in ADAPTERS.items() if name != "script"}.values(),
    "strategy=horovod_mpi strategy.options.op=adasum strategy.options.fusion_threshold_mb=0",
    "strategy=horovod_nccl strategy.launcher=mpi strategy.options.hierarchical_allreduce=true",
    "strategy=kuza55_ps_cpu dataset.size=300 measure.search=max_batch",  # which only the strategy can tell
])  # fmt: skip
def test_no_strategy_refuses_its_defaults_and_what_it_can_do(words, monkeypatch):
    assert plan(f"{words} gpus=2", monkeypatch).can_start


def test_a_reason_holds_where_all_of_its_settings_do_and_the_most_general_one_comes_first():
    config = compose_config(["train.accumulate=2", "train.precision=bfloat16"])
    for cannot, reasons in (
        ({"train.accumulate train.precision=bfloat16": "a", "train.accumulate": "b"}, ["ddp b", "ddp a"]),
        ({"train.accumulate train.compile": "a", "train.precision=float16,tf32": "b"}, []),
        ({"train.precision=float16,bfloat16": "a", "train.accumulate": None}, ["ddp a"]),
        ({"strategy.options.overlap": "a", "strategy.options.overlap=true": "b"}, ["ddp b"]),
        ({"train.acumulate": "a"}, ["ddp: `cannot` in its YAML names train.acumulate, which are not keys"]),
    ):
        config.strategy.cannot = cannot
        assert list(refusals.setting_reasons(config)) == reasons


def test_every_rule_belongs_to_a_strategy():
    assert set(refusals.RULES) <= {adapter.partition(":")[2] for adapter in ADAPTERS.values()}


@pytest.mark.slow
def test_the_plan_imports_no_framework(tmp_path):
    code = (
        "import sys; from scalebench.__main__ import main\n"
        "assert main(['strategy=model_parallel_tensorflow', 'hardware=cpu', 'gpus=5', 'dry_run=true']) == 1\n"
        f"assert not set({FRAMEWORKS}) & set(sys.modules), set({FRAMEWORKS}) & set(sys.modules)"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "at most 4 stages" in done.stdout


def with_others(failed):
    """Sums over ranks of which so many others failed."""
    return lambda values: [values[0] + failed]


def fails():
    raise MemoryError


def test_what_one_rank_cannot_do_none_does():
    assert create_on_all_ranks(lambda: 3, with_others(0.0), (MemoryError,), "no room") == 3
    for make, others in ((lambda: 3, 1.0), (fails, 0.0), (fails, 2.0)):
        with pytest.raises(NotMeasured, match=r"^no room$"):
            create_on_all_ranks(make, with_others(others), (MemoryError,), "no room")
    with pytest.raises(MemoryError):
        create_on_all_ranks(fails, with_others(0.0), (OSError,), "no room")


def test_operations_that_a_library_does_not_support():
    error = RuntimeError("ProcessGroupX does not support gather\nat somewhere.cc")
    reason = not_measured_if_unsupported(error, "x of PyTorch 2", "gather")
    assert str(reason) == "x of PyTorch 2 has no gather: ProcessGroupX does not support gather"
    expected = "x has no gather: NotImplementedError"
    assert str(not_measured_if_unsupported(NotImplementedError(), "x", "gather")) == expected
    with pytest.raises(RuntimeError, match="peer closed"):
        not_measured_if_unsupported(RuntimeError("Connection closed by peer closed"), "x", "gather")
