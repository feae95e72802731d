"""The command line of a user's program, and what is refused before it starts."""

import re
import sys
from contextlib import redirect_stdout

import pytest

from scalebench.analysis.load import load
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.core.result import write_result
from scalebench.runner.collect import ResultParts, RunId, RunOutcome, assemble_result
from scalebench.strategies.script.arguments import render_arguments
from scalebench.strategies.script.start import run_as_main


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    for name in ("run.sh", "train.ipynb"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def plan(*words):
    return resolve(compose_config(["hardware=cpu", "gpus=2", *words]))


@pytest.mark.parametrize(("words", "rendered"), [
    (["script.args.batch-size=32", "script.args.lr=0.1"], "--batch-size 32 --lr 0.1"),
    (["script.args.b=32", "script.args.amp=true", "script.args.log=false", "script.args.x=null"], "-b 32 --amp"),
    (["script.args.layers=[1,2]", "script.style=equals"], "--layers=1 --layers=2"),
    (["script.args.layers=[1,2]"], "--layers 1 2"),
    (["script.args.optim.lr=0.1", "script.args.optim.betas.a=@seed"], "--optim.lr 0.1 --optim.betas.a 0"),
    (["script.args.optim.lr=0.1", "script.args.n=1", "script.style=hydra"], "optim.lr=0.1 n=1"),
    (["script.fixed=[fit,'--data=a b']", "script.args.seed=@seed", "seed=7"], "fit --data=a b --seed 7"),
    (["script.args.devices=@gpus_per_node", "script.args.out=@folder/out"], "--devices 2 --out /run/out"),
    (["script.args.bs=@batch", "train.batch_per_device=16"], "--bs 16"),
    (["script.args.bs=@batch", "train.global_batch=64", "scaling=strong"], "--bs 32"),
])  # fmt: skip
def test_arguments_are_passed_on_as_a_parser_takes_them(words, rendered, tmp_path):
    assert " ".join(render_arguments(plan("script=train.py", *words), tmp_path)).replace(str(tmp_path), "/run") == (
        rendered
    )


@pytest.mark.parametrize(("words", "line"), [
    (["script=trian.py"], "script=trian.py: no such file; did you mean train.py?"),
    (["script=pkg"], "script=pkg is a folder: name the file that trains"),
    (["script=run.sh"], "script=run.sh is not a Python program: name the file that trains"),
    (["script=train.ipynb"], "script=train.ipynb is not a Python program: jupyter nbconvert --to script writes one"),
    (["script=broken.py"], r"script=broken.py: .*broken.py, line 2: invalid syntax"),
    (["script='-m pkg..train'"], "script=-m pkg..train should be a file, or -m PACKAGE.MODULE"),
    (["script=train.py", "model=resnet50"], "trains its own model and data, in its own way: leave out model=resn"),
    (["script=train.py", "train.precision=bfloat16"], "leave out train.precision=bfloat16"),
    (["script=train.py", "measure.search=max_batch"], "leave out measure.search=max_batch"),
    (["script=train.py", "script.args.n=@gpu"], r"script.args.n=@gpu: no placeholder '@gpu'; did you mean"),
    (["script=train.py", "script.args.n=[{a: 1}]"], "script.args.n should be a value or a list of values: [{'a': 1"),
    (["script=train.py", "script.args.n={}"], "script.args.n should be a value or a list of values: {}"),
    (["script=train.py", "script.args.o.api_key=1"], "script.args.o.api_key looks like a secret"),
    (["script=train.py", "script.args.bs=@batch"], "@batch stands for train.batch_per_device"),
    (["script=train.py", "script.args.api_key=1"], "script.args.api_key looks like a secret and would be in the"),
    (["script=train.py", "script.fixed=['--token','x']"], "the argument --token looks like a secret"),
    (["script="], "script= names no file: name the file that trains"),
    (["script=-m no_such.train"], "script=-m no_such.train: no module no_such in"),
    (["script=train.py", "script.folder=none"], "script.folder=none: no such folder"),
    (["script=train.py", "script.step=epoch"], "script.step=epoch: no such value 'epoch'"),
    (["strategy=script"], "strategy=script trains by a program of yours: name it with script=train.py"),
    (["script=train.py", "strategy=ddp"], "leave out strategy=ddp"),
    (["script=train.py", "script.command=python train.py"], "script.command names its program itself: leave out"),
    (["script.command=torchrun trian.py"], "script=trian.py: no such file; did you mean train.py?"),
    (["script.command=bash run.sh"], "script.command=bash run.sh starts no file NAME.py and no -m MODULE"),
    (["script.command=python 'train.py"], "script.command=python 'train.py: no closing quotation"),
    (["script.command=torchrun --n=@gpu train.py"], "no placeholder '@gpu'; did you mean"),
    (["script.command=python train.py", "model=resnet50"], "leave out model=resnet50"),
    (["script.command=python train.py", "strategy.launcher=mpi"], "leave out strategy.launcher=mpi"),
])  # fmt: skip
def test_what_cannot_be_started_is_refused_in_one_line(words, line):
    with pytest.raises(InputError, match=line if ".*" in line else re.escape(line)):
        plan(*words)


def test_a_run_is_that_of_its_file_and_arguments(tmp_path):
    first, same, other = (plan("script=train.py", f"script.args.lr={rate}") for rate in (0.1, 0.1, 0.2))
    assert first.fingerprint == same.fingerprint != other.fingerprint
    (tmp_path / "train.py").write_text("import torch  # edited\n")
    assert plan("script=train.py", "script.args.lr=0.1").fingerprint != first.fingerprint
    # Canonical keys, and what they stand for, are one run; so is a scaling beside the other keys.
    spec = plan("script.path=train.py", "script.scaling=strong")
    assert (spec.config.strategy.name, spec.config.model.name, spec.config.scaling) == ("script", "train.py", "strong")
    assert plan("script='-m pkg.train'").config.script.digest is not None
    assert plan("script=train.py", "script.processes=one_for_all").processes == 1
    declared = [plan("script=train.py", "script.samples_per_step=8", f"scaling={kind}") for kind in ("weak", "strong")]
    assert [spec.declared_samples for spec in declared] == [16, 8]


def test_a_command_names_its_program_and_ends_with_its_arguments(tmp_path):
    words = ["script.command=python -m torch.distributed.run --nproc-per-node=@gpus train.py --lr 1", "script.args.b=2"]
    spec = plan(*words)
    assert (spec.config.model.name, spec.processes) == ("train.py", 2)
    expected = "python -m torch.distributed.run --nproc-per-node=2 train.py --lr 1 -b 2"
    assert " ".join(render_arguments(spec, tmp_path)) == expected
    assert plan("script.command=accelerate launch -m pkg.train").config.model.name == "-m pkg.train"


def test_a_run_that_ended_before_its_samples_were_counted_has_no_batch(tmp_path):
    spec = plan("script=train.py")
    result = assemble_result(spec, RunId.new(), RunOutcome("cancelled", "cancelled while it ran"), ResultParts())
    assert (result.scale.batch_per_device, result.scale.global_batch, result.quality.learning_rate) == (None,) * 3
    write_result(result, tmp_path)
    assert load(tmp_path)["batch_per_device"].isna().all()


def test_an_argument_that_the_program_spells_otherwise_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    parse = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size')\np.parse_args()\n"
    (tmp_path / "train.py").write_text(parse)
    assert str(run_as_main("train.py", "--batch_size", "32")) == (
        "train.py refused its arguments: unrecognized arguments: --batch_size 32; did you mean script.args.batch-size?"
    )
    assert str(run_as_main("train.py", "--depth", "3")).endswith("unrecognized arguments: --depth 3")


@pytest.mark.parametrize(("text", "line"), [
    ("print('Usage: DATA\\n\\nError: no option --bs\\n')\nsys.exit(2)", "; the last line in its log: Error: no option"),
    ("print('\\r 10 %\\r 20 %', end='')\nsys.exit(1)", "; the last line in its log: 20 %"),
    ("try: open('none')\nexcept OSError: sys.exit(1)", ": FileNotFoundError: [Errno 2] No such file or directory: 'n"),
    ("sys.exit(3)", ""),
])  # fmt: skip
def test_a_program_that_leaves_with_a_status_has_its_last_words(text, line, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(f"import sys\n{text}")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    log = tmp_path / "rank0.log"
    with log.open("w") as file, redirect_stdout(file):
        failure = str(run_as_main("train.py", log=log))
    assert re.fullmatch(rf"train.py ended with exit status \d{re.escape(line)}.*", failure)
    assert line or failure == "train.py ended with exit status 3"
