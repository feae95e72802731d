"""Mistakes that people make at the command line: each is answered in one line with the way out, and leaves nothing."""

import os
import shlex

import pytest

from scalebench import __main__ as program
from scalebench.cli.hydra_app import read_arguments
from scalebench.config.aliases import KEY_ALIASES
from scalebench.config.compose import compose_config
from scalebench.config.error_messages import list_config_keys
from scalebench.core.spec import Config

# What was typed, and how the line begins.
MISTAKES = {
    # Keys as other programs call them.
    "train.batch_size=64": "no key 'train.batch_size'; did you mean 'train.batch_per_device'?",
    "batch_size=64": "no key 'batch_size'; did you mean 'train.batch_per_device'?",
    "train.lr=0.1": "no key 'train.lr'; did you mean 'train.learning_rate'?",
    "model.lr=0.1": "no key 'model.lr'; did you mean 'train.learning_rate'?",
    "epochs=3": "no key 'epochs'; did you mean 'train.stop.epochs'?",
    "max_steps=100": "no key 'max_steps'; did you mean 'train.stop.steps'?",
    "nodes=2": "no key 'nodes'; the number of nodes follows from the devices: gpus=16 hardware=NAME",
    "world_size=2": "no key 'world_size'; did you mean 'gpus'?",
    "precision=bf16": "no key 'precision'; did you mean 'train.precision'?",
    "amp=true": "no key 'amp'; did you mean 'train.precision'?",
    "optimizer=sgd": "no key 'optimizer'; did you mean 'train.optimizer'?",
    "repeats=3": "no key 'repeats'; did you mean 'measure.repeats'?",
    "measure.repeat=3": "no key 'measure.repeat'; did you mean 'measure.repeats'?",
    "num_workers=4": "no key 'num_workers'; did you mean 'dataset.workers'?",
    "output_dir=here": "no key 'output_dir'; did you mean 'hydra.run.dir'?",
    "hardware.partition=gpu": "no key 'hardware.partition'; did you mean 'hardware.slurm.partition'?",
    "gradient_accumulation_steps=4": "no key 'gradient_accumulation_steps'; did you mean 'train.accumulate'?",
    "backend=nccl": "no key 'backend'; the strategy names it: strategy=ddp_gloo",
    "bucket_cap_mb=1": "no key 'bucket_cap_mb'; did you mean 'strategy.options.bucket_cap_mb'?",
    "max_batch=true": "no key 'max_batch'; measure=max_batch searches for the largest batch that fits",
    # Keys that are misspelt, or in the wrong group.
    "gpu=1": "no key 'gpu'; did you mean 'gpus'?",
    "stratgy=ddp": "no key 'stratgy'; did you mean 'strategy'?",
    "train.lerning_rate=1": "no key 'train.lerning_rate'; did you mean 'train.learning_rate'?",
    "trian.precision=tf32": "no key 'trian.precision'; did you mean 'train.precision'?",
    "train.gpus=2": "no key 'train.gpus'; did you mean 'gpus'?",
    "strategy.options.bucket_cap=1": "strategy ddp has no option 'bucket_cap'; did you mean 'bucket_cap_mb'?",
    "+foo=1": "no key 'foo'; known: baseline, dataset, ",
    "~gpus": "gpus cannot be removed; set it instead: gpus=VALUE",
    # Names of models, strategies and other choices.
    "model=resnet18": "no model 'resnet18'; write model=torchvision model.name=resnet18; ",
    "model=resnet": "no model 'resnet'; did you mean 'resnet50', 'resnet101' or 'resnet152'?",
    "model=bert": "no model 'bert'; write model=hf model.name=bert, a model of transformers",
    "model=gpt2": "no model 'gpt2'; model=gpt_small is a small GPT-2; model=hf model.name=gpt2 ",
    "strategy=dpd": "no strategy 'dpd'; did you mean 'ddp'?",
    "strategy=horovd": "no strategy 'horovd'; did you mean 'horovod'?",
    "strategy=DistributedDataParallel": "no strategy 'DistributedDataParallel'; strategy=ddp is PyTorch's",
    "strategy=DDP": "no strategy 'DDP'; did you mean 'ddp'?",
    "strategy=lightning": "no strategy 'lightning'; did you mean 'lightning_ddp', ",
    "strategy=pipeline": "no strategy 'pipeline'; did you mean 'pipeline_1f1b' or 'pipeline_gpipe'?",
    "strategy=deepspeed": "no strategy 'deepspeed'; strategy=zero1 is PyTorch's optimizer state in parts",
    "strategy=zero3": "no strategy 'zero3'; strategy=deepspeed_zero3 is DeepSpeed's ZeRO stage 3",
    "strategy=xyz": "no strategy 'xyz'; scalebench list strategies shows all ",
    "dataset=imagnet": "no dataset 'imagnet'; did you mean 'imagenet'?",
    "dataset=synthetic": "no dataset 'synthetic'; write dataset=random",
    "hardware=gpu": "no hardware 'gpu'; hardware=local is this machine",
    "hardware=/home/me/mine.yaml": "no hardware '/home/me/mine.yaml'; write --config-dir FOLDER hardware=NAME ",
    "model=./mynet.py": "no model './mynet.py'; a network of your own is model=custom model.torch=MODULE:FUNCTION",
    "model=mynet:build": "no model 'mynet:build'; a network of your own is model=custom model.torch=mynet:build",
    "dataset=mydata:build": "no dataset 'mydata:build'; samples of your own are dataset=custom dataset.builder=mydata:",
    "dataset=/data/my.npz": "no dataset '/data/my.npz'; the path of a data set is a key: dataset=NAME dataset.path=/",
    "model=custom model.torch=mynet.py": "model.torch=mynet.py should be MODULE:FUNCTION",
    "--multirun strategy=*": "no strategy '*'; sweep=strategies compares many; --multirun 'strategy=glob(ddp*)' ",
    "measure=fast": "no measure 'fast'; write measure=quick",
    "hydra/launcher=submitit_slurm": "no hydra/launcher 'submitit_slurm'; SLURM is chosen by the hardware",
    # Values.
    "train.precision=fp8": "train.precision=fp8: no such value 'fp8'; known: bfloat16, default, float16, float32, tf32",
    "train.optimizer=Adam": "train.optimizer=Adam: no such value 'Adam'; did you mean 'adam'?",
    "gpus=two": "gpus=two should be a number of devices, or all",
    "gpus=${nowhere}": "gpus: no key 'nowhere'; known: ",
    "model.name=???": "model.name has no value; choose model=NAME",
    "gpus=1-4": "gpus=1-4 should be a number of devices, or all",
    "gpus=0": "gpus=0 should be at least 1",
    "gpus=1,2": "gpus=1,2 names several values: add --multirun for a sweep over them",
    "gpus=[0,1]": "gpus=[0, 1] should be a number of devices, or all; hardware.device_ids=[0, 1] chooses devices",
    "seed=x": "seed=x should be a whole number",
    "measure.max_s=30s": "measure.max_s=30s should be a number of seconds",
    "measure.target=-1": "measure.target=-1.0 should be a finite number above 0",
    "dry_run=maybe": "dry_run=maybe should be true or false",
    "scaling=week": "scaling=week: no such value 'week'; did you mean 'weak'?",
    "train.batch_per_device=auto": "train.batch_per_device=auto should be a whole number; measure=max_batch searches",
    "train.global_batch=100": "train.global_batch is kept only with scaling=strong; use train.batch_per_device",
    # The form of a command line.
    "--gpus 2": "no option '--gpus'; write gpus=2",
    "--strategy=ddp": "no option '--strategy'; write strategy=ddp",
    "--dry-run": "no option '--dry-run'; write dry_run=true",
    "--batch-size 64 gpus=2": "no option '--batch-size'; write train.batch_per_device=64",
    "--multrun gpus=1,2": "no option '--multrun'; did you mean '--multirun'?",
    "-n 2": "no option '-n'; settings are written KEY=VALUE, such as gpus=2",
    "run strategy=ddp": "no command 'run'; leave it out: scalebench strategy=ddp gpus=2",
    "strategies": "no command 'strategies'; write: scalebench list strategies",
    "sweep": "no command 'sweep'; write: scalebench --multirun gpus=1,2 or scalebench sweep=demo",
    "ddp": "'ddp' is a strategy: write strategy=ddp",
    "gpus 2": "'gpus' is no setting: write gpus=2",
    "gpus= 2": "'2' is no setting: write gpus=2 without the space",
    "gpus=2 ddp_gloo": "'ddp_gloo' is a strategy: write strategy=ddp_gloo",
    "comapre a b": "no command 'comapre'; did you mean 'compare'?",
    "show": "no sweep below ./multirun; name the folder of a run or a sweep, or make one: scalebench sweep=demo",
    "report": "no sweep below ./multirun; name the folder of a run or a sweep, or make one: scalebench sweep=demo",
    "help": "no command 'help'; write: scalebench --help",
    "list strategy": "list: no kind 'strategy'; write: scalebench list strategies",
    "check ddpp": "no strategy, model or data set 'ddpp'; did you mean 'ddp'?",
    "show nofolder": "no result.json at or below nofolder; give the folder of a run or a sweep",
    "install deepspeed": "install builds horovod, not 'deepspeed'; pip install brings all other packages",
    "show --detail": "show: no option '--detail'; did you mean '--details'?",
    "compare a": "compare needs two folders, A and B; or one and --by KEY, --against NAME or --save NAME",
}


@pytest.mark.parametrize(("typed", "line"), MISTAKES.items(), ids=list(MISTAKES))
def test_a_mistake_is_one_line_with_the_way_out(capsys, typed, line):
    status = program.main(shlex.split(typed))
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"scalebench: {line}")
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("typed", "precision", "target"),
    [
        ("train.precision=bf16", "bfloat16", 0.01),
        ("++train.precision=16-mixed", "float16", 0.01),
        ("train.precision=FP32 measure.target=2.5%", "float32", 0.025),
        ("train.precision=tf32 'measure.target=1 %'", "tf32", 0.01),
    ],
)
def test_spellings_that_can_mean_only_one_thing_are_accepted(typed, precision, target):
    config = compose_config(shlex.split(typed))
    assert (config.train.precision, config.measure.target) == (precision, target)


def test_each_value_of_a_sweep_may_be_spelt_so():
    overrides = read_arguments(["-m", "train.precision=fp32,bf16", "measure.target=1%,5%", "seed=1%"]).overrides
    assert overrides == ["train.precision=float32,bfloat16", "measure.target=0.01,0.05", "seed=1%"]


def test_every_name_of_other_programs_leads_to_a_key_of_ours():
    keys = {*list_config_keys(Config), "model", "dataset", "strategy", "hardware", "hydra.run.dir"}
    assert set(KEY_ALIASES.values()) <= keys
    assert not {key for key in keys if "." not in key} & KEY_ALIASES.keys(), "no alias hides a key"
