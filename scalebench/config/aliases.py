"""Other programs' names for our settings: spellings that are accepted, and hints for those that are not.

`accept_aliases` rewrites what can mean only one thing: train.precision=bf16, measure.target=1%, model=mynet.py:Net,
devices=2. Keys of other names are refused with a hint, since one name for one setting keeps records and command lines
readable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from scalebench.core.config_files import read_strategy_config
from scalebench.core.errors import InputError


def _invert(table: dict[str, str]) -> dict[str, str]:
    """Return {name: meaning} of a table {meaning: "name name ..."}."""
    return {name: meaning for meaning, names in table.items() for name in names.split()}


PRECISION_ALIASES = _invert(
    {
        "bfloat16": "bf16 bf16-mixed bf16-true mixed_bfloat16",
        "float16": "fp16 f16 half 16 16-mixed mixed_float16",
        "float32": "fp32 f32 float full 32 32-true",
        "tf32": "tensorfloat32",
    }
)
SHARE_KEYS = ("measure.target", "dataset.validation_share")  # shares, which people also write in per cent
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_OVERRIDE = re.compile(r"(\+{0,2})([\w./@-]+)=(.*)", re.DOTALL)

# Our key: the last part of a key as other programs call it.
KEY_ALIASES = _invert(
    {
        "train.batch_per_device": "batch batch_size batchsize bs per_device_batch_size per_device_train_batch_size "
        "train_batch_size micro_batch_size local_batch_size batch_size_per_gpu",
        "train.global_batch": "global_batch_size effective_batch_size total_batch_size",
        "train.learning_rate": "lr base_lr max_lr",
        "train.precision": "amp dtype bf16 fp16 mixed_precision",
        "train.optimizer": "optim opt",
        "train.weight_decay": "wd l2",
        "train.clip_norm": "clip max_grad_norm clip_grad_norm grad_clip gradient_clip_val",
        "train.schedule": "lr_scheduler scheduler lr_schedule",
        "train.stop.epochs": "epoch n_epochs num_epochs max_epochs",
        "train.stop.steps": "num_steps n_steps max_steps iterations iters num_batches",
        "train.accumulate": "grad_accum accumulation_steps accumulate_grad_batches gradient_accumulation_steps",
        "train.data_format": "channels_last memory_format",
        "train.activation_checkpointing": "gradient_checkpointing checkpoint_activations recompute checkpointing",
        "train.compile": "torch_compile xla jit",
        "gpus": "gpu ngpus n_gpus num_gpus num_devices world_size nproc nproc_per_node num_processes np ranks",
        "model": "network net arch architecture",
        "dataset": "data data_name",
        "strategy": "method distributed_strategy accelerator",
        "hardware": "machine cluster host node",
        "measure.repeats": "n_repeats num_repeats reps runs trials",
        "measure.warmup_steps": "warmup num_warmup_batches warmup_iters",
        "measure.max_s": "duration max_time",
        "measure.timeout_s": "timeout",
        "measure.trace": "profile profiler tracing",
        "sweep.max_minutes": "time_limit budget",
        "hydra.run.dir": "out output output_dir outdir out_dir save_dir results_dir",
        "seed": "random_seed manual_seed",
        "dry_run": "dryrun plan",
        "hardware.device_ids": "cuda_visible_devices gpu_ids device_id",
        "hardware.slurm.partition": "queue",
        "hardware.slurm.time_minutes": "time walltime",
        "dataset.path": "data_dir data_path dataset_path",
        "dataset.size": "num_samples samples n_samples",
        "dataset.workers": "num_workers workers dataloader_workers",
        "dataset.augment": "distortions augmentation",
    }
)
# Hints for keys that have no counterpart here.
KEY_HINTS = _invert(
    {
        "the number of nodes follows from the devices: gpus=16 hardware=NAME": "nodes num_nodes nnodes n_nodes",
        "the strategy names it: strategy=ddp_gloo, strategy=horovod_mpi": "backend dist_backend",
        "the hardware says which devices: hardware=cpu": "device",
        "each run keeps its logs beside its result": "verbose log_level quiet",
        "measure=max_batch searches for the largest batch that fits": "max_batch find_batch_size auto_batch",
    }
)
# The names of choices in other programs, by group, with a hint for each.
CHOICE_HINTS = {
    "strategy": _invert(
        {
            "strategy=data_parallel is torch.nn.DataParallel": "dp dataparallel",
            "strategy=bare_torch is one device without a wrapper": "none single bare baseline",
            "strategy=zero1 is PyTorch's optimizer state in parts; strategy=deepspeed_zero1, 2 and 3 are DeepSpeed's": (
                "deepspeed zero"
            ),
            "strategy=deepspeed_zero2 is DeepSpeed's ZeRO stage 2": "zero2 zero_2 deepspeed_stage_2",
            "strategy=deepspeed_zero3 is DeepSpeed's ZeRO stage 3, strategy=fsdp PyTorch's own": (
                "zero3 zero_3 deepspeed_stage_3"
            ),
            "write strategy=accelerate": "huggingface_accelerate hf_accelerate huggingface",
            "write strategy=fsdp, or strategy=lightning_fsdp": "fsdp2 fully_shard fullyshardeddataparallel",
            "write strategy=hsdp": "hybrid_shard hybrid_sharded_data_parallel",
            "write strategy=fsdp_tp": "2d tp_fsdp fsdp_tensor_parallel",
            "strategy=ddp is PyTorch's data parallelism": "nccl gloo torch pytorch torchrun distributeddataparallel",
            "sweep=strategies compares many; --multirun 'strategy=glob(ddp*)' takes all of a name": "all *",
            "strategy=mirrored is TensorFlow's data parallelism": "tensorflow tf keras",
            "strategy=tensor_parallel splits layers": "tp megatron",
            "strategy=pipeline_1f1b and strategy=pipeline_gpipe are pipelines": "pp gpipe",
            "write strategy=parameter_server": "ps",
        }
    ),
    "model": _invert(
        {
            "model=gpt_small is a small GPT-2; model=hf model.name=gpt2 builds a model of transformers": (
                "gpt gpt2 transformer huggingface transformers"
            ),
            "write model=hf model.name={name}, a model of transformers": "bert llama vit",
            "model=lstm_small is a small recurrent network": "gru ptb recurrent rnn",
            "write model=torchvision model.name={name}; scalebench's own begin with resnet50": (
                "resnet18 resnet34 mobilenet_v2 efficientnet_b0"
            ),
        }
    ),
    "dataset": _invert(
        {
            "write dataset=random": "synthetic fake dummy noise",
            "write dataset=tokens_synthetic": "tokens text wikitext c4",
            "dataset=cifar10_synthetic is about as small": "mnist",
        }
    ),
    "hardware": _invert(
        {"hardware=local is this machine, whatever its GPUs": "gpu gpus cuda auto this a100 h100 v100"}
    ),
    "measure": _invert({"write measure=quick": "fast short", "write measure=thorough": "full long precise"}),
    "sweep": _invert({"write sweep=demo": "quick example default", "write sweep=gpus": "scaling devices"}),
    "hydra/launcher": _invert(
        {"SLURM is chosen by the hardware, and each run is a job: hardware=NAME": "submitit_slurm submitit slurm"}
    ),
}
FILE_GROUPS = ("model", "dataset")  # whose choice may be a function of the user's, MODULE:FUNCTION
MODEL_KEYS = {"torch": "torch", "tensorflow": "keras"}  # by framework, under `model`
REFERENCE = re.compile(r"[\w./-]+:\w+")  # of a function
REFERENCE_KEYS = ("model.torch", "model.keras", "dataset.builder", "dataset.loader")
# Hints for names of files and folders, which are values of other keys, by group; {name} stands for the name.
FILE_HINTS = {
    "model": "a network of your own is model={name}:FUNCTION",
    "dataset": "the path of a data set is a key: dataset=NAME dataset.path={name}",
    "hardware": "write --config-dir FOLDER hardware=NAME for FOLDER/hardware/NAME.yaml",
}
# Hints for words that are no commands; {name} stands for the word.
COMMAND_HINTS = _invert(
    {
        "leave it out: scalebench strategy=ddp gpus=2": "run train bench benchmark start launch",
        "write: scalebench list {name}": "strategies models datasets sweeps",
        "write: scalebench list": "ls options",
        "write: scalebench --multirun gpus=1,2 or scalebench sweep=demo": "sweep multirun",
        "write: scalebench sweep=demo": "demo",
        "write: scalebench report": "plot html page",
        "write: scalebench show": "results table summary status",
        "write: scalebench compare A B": "diff",
        "write: scalebench doctor": "info env machine system",
        "write: scalebench check NAME": "test verify validate",
        "write: scalebench new strategy NAME": "init create",
        "write: scalebench --{name}": "help version",
        "write the command again with resume=true": "resume continue",
    }
)


def accept_aliases(overrides: Iterable[str]) -> list[str]:
    """Return overrides with the accepted spellings of values as ours; each value of a sweep, too.

    Raises InputError where one function is to build the network of two frameworks.
    """
    accepted = [_accept_alias(override) for override in overrides]
    values = dict(map(split_override, accepted))
    return [word for override in accepted for word in _expand_reference(override, values)]


def _expand_reference(override: str, values: Mapping[str, str]) -> list[str]:
    """Return the overrides that `model=mynet:Net` or `dataset=mydata:build` stands for, beside these values by key."""
    group, value = split_override(override)
    names = value.split(",")
    are_functions = [REFERENCE.fullmatch(name) is not None for name in names]
    if group not in FILE_GROUPS or not any(are_functions):
        return [override]
    if not all(are_functions):
        raise InputError(f"{override}: names and functions do not go together in one sweep")
    if group == "dataset":
        key = "builder"
    elif "model.keras" in values or "model.torch" in values:  # which has the network of the other framework
        key = "torch" if "model.keras" in values else "keras"
    else:
        key = choose_model_key(values.get("strategy", "ddp").split(","))
    return [f"{group}=custom", f"{group}.{key}={','.join(map(_name_module, names))}"]


def choose_model_key(strategies: Iterable[str]) -> str:
    """Return the key of a function that builds a network, by the framework of these strategies.

    Raises InputError where they are of two frameworks.
    """
    keys = {MODEL_KEYS.get(str(read_strategy_config(name).get("framework")), "torch") for name in strategies}
    if len(keys) > 1:
        raise InputError(
            "one function cannot build the network of both frameworks: name the other with model.keras=MODULE:FUNCTION"
        )
    return keys.pop()


def _name_module(reference: str) -> str:
    """Return `sub/mynet.py:Net` as `sub.mynet:Net`; another reference, and a file outside of this folder, as it is."""
    path, _, function = reference.rpartition(":")
    if not path.endswith(".py"):
        return reference
    try:
        parts = Path(os.path.abspath(path)).relative_to(Path.cwd()).with_suffix("").parts
    except ValueError:
        return reference
    return f"{'.'.join(parts)}:{function}" if all(map(str.isidentifier, parts)) else reference


def _accept_alias(override: str) -> str:
    match = _OVERRIDE.fullmatch(override)
    if match is None:
        return override
    prefix, key, value = match.groups()
    if key == "devices":  # as columns, pages and docs call them
        return f"{prefix}gpus={value}"
    if key in REFERENCE_KEYS:
        return f"{prefix}{key}={','.join(map(_name_module, value.split(',')))}"
    if key == "train.precision":
        words = [word.strip() for word in value.split(",")]
        return f"{prefix}{key}={','.join(PRECISION_ALIASES.get(word.lower(), word) for word in words)}"
    if key in SHARE_KEYS:
        return f"{prefix}{key}={_PERCENT.sub(lambda percent: f'{float(percent[1]) / 100:.12g}', value)}"
    return override


def split_override(override: str) -> tuple[str, str]:
    """Return (key, value) of an override as it was typed; both empty where it is none."""
    match = _OVERRIDE.fullmatch(override)
    return ("", "") if match is None else (match[2], match[3])


def rank_key(key: str) -> tuple[int, int]:
    """Return a sort key that puts settings of training first, and what describes a network or a machine last."""
    groups = ("train", "measure", "sweep", "dataset", "hardware", "strategy", "model")
    group = key.partition(".")[0]
    return groups.index(group) if group in groups else -1, key.count(".")


def normalize_name(name: str) -> str:
    """Return the name of an option or key as a key is written: `--Num-GPUs` as num_gpus."""
    return name.lstrip("-").replace("-", "_").lower()
