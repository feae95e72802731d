"""Mistakes that people make at the command line: each is answered in one line with the way out, and leaves nothing."""

import shlex

import pytest

from scalebench import __main__ as program
from scalebench.cli.hydra_app import read_arguments
from scalebench.config.aliases import KEY_ALIASES
from scalebench.config.compose import compose_config
from scalebench.config.error_messages import list_config_keys
from scalebench.core.spec import Config
from tests.builders import sweeps

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
    "--cfg jobs": "argument --cfg/-c: invalid choice: 'jobs' (choose from ",
    "-p": "argument --package/-p: expected one argument; --hydra-help lists the switches",
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
    "seed=interval(0,1)": "seed=interval(0,1) names several values: add --multirun hydra/sweeper=search",
    "model=": "no model ''; scalebench list models shows all 32",
    "strategy.options.bucket_cap_mb=x": "strategy.options.bucket_cap_mb='x' should be float, as its default 25.0",
    "gpus=1.5": "gpus=1.5 should be a number of devices, or all",
    "gpus=range(1,3)": "gpus=range(1,3) names several values: add --multirun for a sweep over them",
    "gpus=[1": "cannot read the override 'gpus=[1': ",
    "--nope": "no option '--nope'; settings are written KEY=VALUE, such as gpus=2, and --hydra-help lists",
    "++gpu=1": "no key 'gpu'; did you mean 'gpus'?",
    # Words of the commands, in the folders of `world`.
    "list strategies ddp mirrored": "list takes no further arguments, not 'mirrored'",
    "list ddp": "list: no kind 'ddp'; write: scalebench list strategies ddp",
    "list modles": "list: no kind 'modles'; did you mean 'models'?",
    "list strategies dpd": "no strategy 'dpd'; did you mean 'ddp'?",
    "list models resnet18": "no model 'resnet18'; write model=torchvision model.name=resnet18",
    "list strategies --al": "list: no option '--al'; did you mean '--all'?",
    "check": "check what? usage: scalebench check NAME",
    "check custom": "'custom' is a model and a data set: say model=custom or dataset=custom",
    "check ddp_gloo mirrored": "check takes one name, not 'ddp_gloo mirrored'",
    "check simulated --fault": "check: no option '--fault'; did you mean '--faults'?",
    "check materials --faults": "--faults is for strategies, and materials is a data set",
    "check simulated strategy.options.step=1": "strategy simulated has no option 'step'",
    "check simulated trian.epochs=1": "no key 'trian.epochs'",
    "check strategy=simul": "no strategy 'simul'; did you mean 'simulated'?",
    "check --gpu ddp": "check --gpu checks this machine: it takes --page and --minutes alone",
    "check --gpu --minutes soon": "--minutes takes a number above 0, not 'soon'",
    "check --gpu --minutes 0": "--minutes takes a number above 0, not '0'",
    "check ddp --page x.md": "--page and --minutes go with --gpu",
    "check --gpu --page missing/x.md": "--page: missing is no folder",
    "check --gpu --page file": "--page: file is no page of this check, and would be replaced",
    "check --gpu --page .": "--page: . is a folder; name a file",
    "doctor --confg-dir x": "doctor: no option '--confg-dir'; did you mean '--config-dir'?",
    "doctor hardware=alpa": "no hardware 'alpa'; did you mean 'alpha'?",
    "doctor ddp": "doctor takes hardware=NAME and settings, not 'ddp'",
    "doctor gpus=2": "doctor compares this host with one hardware YAML: doctor hardware=NAME",
    "doctor hardware=alpha,gpu2": "doctor compares this host with one hardware YAML: doctor hardware=NAME",
    "doctor hardware=alpha hardware.slurm.partitio=x": "no key 'hardware.slurm.partitio'; did you mean",
    "doctor hardware=alpha hardware.max_nodes=0": "hardware.max_nodes=0 should be at least 1",
    "doctor --multirun hardware=alpha": "doctor: no option '--multirun'; known: --config-dir, --help",
    "doctor --config-dir /not/there hardware=alpha": "--config-dir: /not/there is no folder",
    "doctor --record table.json hardware=alpha": "doctor --record goes without KEY=VALUE",
    "show a --all": "show: no option '--all'; known: ",
    "show a --baseline": "show: argument --baseline: expected one argument",
    "show a --run 4": "show: no run 4; the table has runs 1 to 3",
    "show a --run x": "show: argument --run: invalid int value: 'x'; usage: ",
    "show a --baseline ddp_gloo-3-0": "no folder or file ddp_gloo-3-0, and no run 'ddp_gloo-3-0'; did you mean '",
    "show bad": "bad/0/result.json is no whole JSON file",  # nothing that can be read
    "report nowhere": "nowhere does not exist",
    "report empty": "no result.json at or below empty",
    "report a --out file/report.html": "file/report.html cannot be written",
    "report a --out empty": "empty is a folder",
    "report a --efficiency 80": "--efficiency=80 should be a share",
    "report a --efficiency nan": "--efficiency=nan should be a share",
    "report a --efficiency much": "report: argument --efficiency",
    "report a --baseline nobody": "no folder or file nobody",
    "report a --reference nobody": "no published study 'nobody'; known: ",
    "report a --effic 0.8": "report: no option '--effic'",
    "report --csv a": "--csv=a took a folder",
    "report a --csv empty": "empty cannot be written",
    "predict a --gpus 0": "--gpus=0 should be a whole number from 1",
    "predict a --gpus 8,x": "--gpus=x should be",
    "predict a --most 1e9": "--most=1e9 should be",
    "predict a --gpus 8 --most 8": "predict: argument --most: not allowed with",
    "predict a --batch -1": "--batch=-1 should be",
    "predict a --efficiency 80": "--efficiency=80 should be a share",
    "predict a --hardware alfa": "no hardware 'alfa'",
    "predict a --hardware cpu": "ddp_gloo: hardware cpu has no links: set links.inter_node_bytes_per_s",
    "predict a --strategy ddp_glo": "no measured strategy 'ddp_glo'; did you mean 'ddp_gloo'?",
    "predict bare": "bare: no strategy has an ok run; scalebench show says why",
    "predict failed": "failed: no strategy has an ok run; scalebench show says why",
    "predict one": "ddp_gloo: hardware cpu has no links, and none was measured: measure gpus=2, or --hardware NAME",
    "predict one --check": "nothing to check",
    "predict nowhere": "no result.json at or below nowhere",
    "compare": "compare needs two folders, A and B; or one and --by KEY, --against NAME or --save NAME",
    "compare a a a": "compare needs two folders, A and B; ",
    "compare --by gpus": "no sweep below ./multirun; ",
    "compare --against main": "no sweep below ./multirun; ",
    "compare a nowhere": "no result.json at or below nowhere; ",
    "compare a empty": "no result.json at or below empty; ",
    "compare a --by train.precison": "no key 'train.precison'; did you mean 'train.precision'?",
    "compare a a --ignore sed": "no key 'sed'; did you mean 'seed'?",
    "compare a --by gpus --base 3": "--base: no value of gpus '3'; known: 1, 2",
    "compare a a --base 3": "compare: --base names a value of the key of --by KEY",
    "compare a a --threshold 100%": "--threshold 100%: write a share of throughput from 0 to below 1, such as 3% or",
    "compare a a --threshold x": "--threshold x: write a share of throughput from 0 to below 1, such as 3% or 0.03",
    "compare a a --threshold 3": "--threshold 3: write a share",
    "compare a a --threshold=-1%": "--threshold -1%: write a share",
    "compare a a --threshold": "compare: argument --threshold: expected one argument; usage: ",
    "compare a a --format xml": "compare: argument --format: invalid choice: 'xml'",
    "compare a a --nope": "compare: no option '--nope'; known: --against, --base, ",
    "compare a a --out nowhere/found.txt": "--out nowhere/found.txt: No such file or directory; choose another file",
    "compare a a --out empty": "--out empty: Is a directory; choose another file",
    "compare a --save ../x": "baseline name '../x': ",
    "compare a --against ..": "baseline name '..': ",
    "compare a --save x --by gpus": "compare: --save and --by do not go together",
    "compare a a --missing ok": "compare: --missing ok is for --against NAME",
    "compare a a --replace": "compare: --replace is for --save NAME",
    "compare a --save x --same-session": "compare: --same-session is for A and B, or --by KEY",
    "compare a --against x --same-session": "compare: --same-session is for A and B, or --by KEY",
    "compare bad --save x": "bad/0/result.json is no whole JSON file",
    "compare a bad": "bad/0/result.json is no whole JSON file",
    "compare a newer": "newer/0/result.json has schema version 99",
    "compare --history": "--history NAME: saved baselines in .scalebench/baselines: none",
    "compare --history weekly": "no baseline 'weekly' in .scalebench/baselines; saved names: none",
    "compare --history a/b": "baseline name 'a/b': 1 to 64 letters",
    "compare --history --by gpus": "compare: --by and --history do not go together",
    "compare --history --format junit": "compare: --history knows --format text and json",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with results, with those that nobody can use, and with other files."""
    folder = tmp_path_factory.mktemp("world")
    sweeps.sweep(folder / "a", ("bare_torch", "ddp_gloo"), (1, 2))
    sweeps.sweep(folder / "one", ("bare_torch", "ddp_gloo"), (1,))
    sweeps.sweep(folder / "bare", ("bare_torch",), (1,))
    sweeps.write_results(folder / "failed", [sweeps.failed_run()])
    for name in ("empty", "bad/0", "newer/0"):
        (folder / name).mkdir(parents=True)
    text = (folder / "a/0/result.json").read_text()
    (folder / "bad/0/result.json").write_text(text[:-100])
    (folder / "newer/0/result.json").write_text(text.replace('"schema_version": 2', '"schema_version": 99'))
    (folder / "file").touch()
    return folder


@pytest.mark.parametrize(("typed", "line"), MISTAKES.items(), ids=list(MISTAKES))
def test_a_mistake_is_one_line_with_the_way_out(typed, line, world, capsys, monkeypatch):
    monkeypatch.chdir(world)
    before = sorted(world.rglob("*"))
    status = program.main(shlex.split(typed))
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"scalebench: {line}")
    assert sorted(world.rglob("*")) == before


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
