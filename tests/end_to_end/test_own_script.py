"""Training programs as their authors write them, run by `script=FILE`: what is seen, and what is one line."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import psutil
import pytest

from scalebench.__main__ import main
from scalebench.core.result import read_result
from tests.conftest import ROOT

pytestmark = [pytest.mark.real, pytest.mark.cold]
SHORT = ["measure=quick", "measure.warmup_max_s=0.5", "measure.min_s=0.3", "measure.max_s=0.5", "measure.probe_s=0.1"]
SHORT.append("measure.monitor=false")
LOOP = """
import os, torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 8))
net = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
def train(model, optimizer, sampler=None):
    for (x,) in DataLoader(data, 32, sampler=sampler):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""
GROUP = 'dist.init_process_group("gloo")\nmodel = torch.nn.parallel.DistributedDataParallel(net)\n'


def run(folder, *words, gpus=2, is_process=True):
    """Return (exit status, output, result) of a run in this folder, whose ranks are new processes."""
    words = [*SHORT, f"gpus={gpus}", "hydra.run.dir=run", "hardware=cpu", *words]
    if is_process:
        command = [sys.executable, "-m", "scalebench", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        status, output = done.returncode, done.stdout + done.stderr
    else:
        with io.StringIO() as text, redirect_stdout(text), redirect_stderr(text):
            status, output = main(words), text.getvalue()
    here = [p.pid for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder)]
    assert set(here) <= {os.getpid()}, "a process is left"
    path = folder / "run" / "result.json"
    return status, output, read_result(path) if path.exists() else None


def write(folder, text, name="train.py"):
    (folder / name).write_text(text)
    return f"script={name}"


def test_a_plain_program_has_its_steps_samples_and_synchronization(tmp_path):
    words = [f"script={ROOT}/examples/train_ddp.py", "script.args.batch-size=16", "measure.monitor=true"]
    status, output, result = run(tmp_path, *words)
    assert status == 0, output
    rank = result.ranks[0]
    assert (result.workload.model, result.scale.batch_per_device, result.scale.global_batch) == ("train_ddp.py", 16, 32)
    assert rank.params == 301_066 == sum(rank.message_bytes) / 4
    assert (rank.backend_used, rank.settings_used["precision"]) == ("gloo", "float32")
    assert (rank.script.leader, rank.script.wrappers) == ("Adam", ["DistributedDataParallel"])
    assert rank.script.steps == rank.script.batches or rank.script.steps == rank.script.batches - 1
    series = ("sync_on_s", "sync_off_s", "fixed_batch_s", "isolated_sync_s")
    assert all(len(getattr(rank.probes, name)) >= 4 for name in series)
    assert result.monitor.reason is None and result.monitor.cpu_util_ours_mean
    assert rank.probes.profile is not None and rank.probes.profile.collective_s
    assert rank.block_losses == [None] * len(rank.block_s) and result.quality.final_loss is None
    assert (rank.probe_failures == {} and not result.flags) or result.flags == ["busy_machine"]


FAILURES = {
    "a module is missing": ("import no_such_module", "train.py imports no_such_module, which is not installed"),
    "its arguments are refused": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', required=True)\np.parse_args()",
        "train.py refused its arguments: the following arguments are required: --lr",
    ),
    "it never steps": ("import time\ntime.sleep(60)", "no optimizer step was seen in 2 s (script.first_step_s)"),
    "it trains in processes of its own": (
        "import time, torch.multiprocessing as mp\np = mp.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "p.start()\np.join()",
        "in 2 s (script.first_step_s): train.py has started processes by multiprocessing, whose steps are not seen",
    ),
    "it reads its input": (
        "input()",
        "train.py reads its standard input, which is empty here: give it that as an argument",
    ),
    "it is out of memory": ("import torch\ntorch.empty(1 << 50)", "out of memory"),
    "it leaves with a word": ("import sys\nsys.exit('no data here')", "train.py: no data here"),
}


QUICK = ("a module is missing", "its arguments are refused")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case not in QUICK else []) for case in FAILURES]
)
def test_a_program_that_does_not_train_is_one_line(case, tmp_path):
    text, line = FAILURES[case]
    limit = ["script.first_step_s=2"] if "first_step_s" in line else []
    status, output, result = run(tmp_path, write(tmp_path, text), *limit, gpus=1, is_process=False)
    assert (status, result.status) == (1, "oom" if "memory" in line else "failed")
    assert line in result.reason and "None" not in output, output


@pytest.mark.slow
@pytest.mark.parametrize(("text", "reason"), [
    ("while True: train(net, optimizer)", "formed no group of 2 processes: these are 2 independent trainings"),
    ('dist.init_process_group("gloo")\nwhile True: train(net, optimizer)', "exchange nothing: is its model wrapped in"),
    (f"{GROUP}for step in range(3): optimizer.step()", "train.py ended by itself after 3 steps"),
    ("import torch.multiprocessing as mp\nmp.spawn(print, nprocs=4)", "train.py starts 4 processes by torch"),
    ("import torch.multiprocessing as mp\nmp.start_processes(print, nprocs=4)", "train.py starts 4 processes by torch"),
])  # fmt: skip
def test_ranks_that_do_not_train_together_fail(text, reason, tmp_path):
    status, output, result = run(tmp_path, write(tmp_path, LOOP + text))
    assert status == 1 and reason in result.reason and "WrongBackend" not in result.reason, output


@pytest.mark.slow
def test_a_program_that_catches_everything_and_leaves_its_folder_ends(tmp_path):
    """Its ranks train on the same samples, since it has no DistributedSampler."""
    text = f"{LOOP}{GROUP}os.chdir('/')\nprint('TOKEN=abc')\nwhile True:\n  try: train(model, optimizer)\n"
    status, output, result = run(tmp_path, write(tmp_path, text + "  except BaseException: pass\n"))
    assert (status, result.status) == (0, "ok"), output
    assert "TOKEN=abc" not in json.dumps(result.spec) + output
    assert "same_batches" in result.flags


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), [
    ("lightning", ["script.args.devices=@gpus_per_node"]),
    pytest.param("hf",
     [*(f"script.args.{word}" for word in ("use_cpu=true", "ddp_backend=gloo", "output_dir=@folder/out"))],
     marks=pytest.mark.extra("transformers", "accelerate")),
])  # fmt: skip
def test_trainers_of_libraries_run_as_they_are(name, words, tmp_path):
    status, output, result = run(tmp_path, f"script={ROOT}/examples/train_{name}.py", *words)
    assert (status, result.status) == (0, "ok"), output
    assert result.ranks[0].probes.sync_off_s and result.scale.global_batch


KERAS = """
import keras, numpy, scalebench
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("sgd", "mse")
x = numpy.zeros((512, 8), "float32")
model.fit(x, x[:, :2], batch_size=32, epochs=10_000, verbose=0, callbacks=[scalebench.callbacks.Keras()])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), [
    ("Keras", []),
    ("Lightning", []),
    pytest.param("HuggingFace", ["script.args.use_cpu=true", "script.args.output_dir=@folder/out"],
     marks=pytest.mark.extra("transformers", "accelerate")),
])  # fmt: skip
def test_a_callback_says_the_steps_of_a_trainer(name, words, tmp_path):
    text = KERAS
    if name != "Keras":
        text = (ROOT / "examples" / f"train_{ {'HuggingFace': 'hf'}.get(name, name.lower()) }.py").read_text()
        text = re.sub(r"\bTrainer\(", f"Trainer(callbacks=[scalebench.callbacks.{name}()], ", text)
    status, output, result = run(tmp_path, write(tmp_path, f"import scalebench\n{text}"), *words, gpus=1)
    assert (status, result.status) == (0, "ok"), output
    rank = result.ranks[0]
    assert rank.script.steps > 8 and result.scale.global_batch and f"train.{name}" not in output
    assert rank.script.step_kind == "call"


TENSORFLOW_LOOP = """
import tensorflow as tf
cpu, two = tf.config.list_physical_devices("CPU")[0], 2 * [tf.config.LogicalDeviceConfiguration()]
tf.config.set_logical_device_configuration(cpu, two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
rows = tf.data.Dataset.from_tensors(tf.zeros(8)).repeat(2048)
data, held_out = (strategy.experimental_distribute_dataset(part.batch(64)) for part in (rows, rows.take(128)))
with strategy.scope():
    weights = tf.Variable(tf.zeros((8, 2)))
@tf.function
def train(batch):
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ weights)
        total = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weights))
        weights.assign_sub(0.1 * total)
    strategy.run(step, args=(batch,))
while True:
    for batch in data: train(batch)
    for batch in held_out: pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "reason"), [(2, None), (1, "trains 2 replicas of its model in each process, and gpus=1")]
)
def test_a_loop_over_tensorflows_data_has_a_step_for_each_batch(gpus, reason, tmp_path):
    # A step of a busy machine may take longer than SHORT's probes, which are then left out.
    words = [write(tmp_path, TENSORFLOW_LOOP), "script.processes=one_for_all", "script.step=batch", "measure.probe_s=2"]
    status, output, result = run(tmp_path, *words, gpus=gpus)
    assert status == (reason is not None) and (reason or "") in (result.reason or ""), output
    if reason is None:
        rank = result.ranks[0]
        assert (result.scale.global_batch, rank.backend_used) == (64, "MirroredStrategy")
        assert any("evaluation" in pauses for pauses in rank.block_pauses) and rank.probes.fixed_batch_s


SAYS_STEPS = "import time, scalebench\nwhile True:\n    time.sleep(0.002)\n    scalebench.step(samples=8)\n"


@pytest.mark.parametrize(("command", "reason"), [
    (f"{sys.executable} -W ignore train.py", None),
    (f"{sys.executable} -c pass train.py", "python ended with exit status 0 and without a reason"),
    ("no-such-launcher train.py", "there is no no-such-launcher on the PATH, which script.command begins with"),
])  # fmt: skip
def test_a_command_starts_the_program_that_it_names(command, reason, tmp_path):
    write(tmp_path, SAYS_STEPS)
    status, output, result = run(tmp_path, f"script.command={command}", gpus=1, is_process=False)
    assert status == (reason is not None) and (reason is None or reason in result.reason), output
    if reason is None:
        assert (result.status, result.scale.global_batch) == ("ok", 8)
        assert result.ranks[0].params is None and result.ranks[0].script.leader is None, "it has no optimizer"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "gpus"), [
    ("torchrun --nproc-per-node=@gpus", 2),
    (f"mpirun --allow-run-as-root --oversubscribe -np @gpus {sys.executable}", 2),
    # Which starts one process on CPUs, whatever number it is given.
    pytest.param("accelerate launch --cpu --num_processes @gpus", 1, marks=pytest.mark.extra("accelerate")),
])  # fmt: skip
def test_a_command_of_the_users_starts_the_ranks(command, gpus, tmp_path):
    text = LOOP + GROUP + "while True: train(model, optimizer, DistributedSampler(data))\n"
    write(tmp_path, text)
    status, output, result = run(tmp_path, f"script.command={command} train.py", gpus=gpus)
    assert (status, result.status) == (0, "ok"), output
    assert [rank.backend_used for rank in result.ranks] == ([None] if gpus == 1 else ["gloo", "gloo"])
    assert bool(result.ranks[0].probes.sync_off_s) == (gpus > 1)


@pytest.mark.slow
def test_a_command_that_starts_another_number_of_ranks_is_one_line(tmp_path):
    write(tmp_path, LOOP + GROUP + "while True: train(model, optimizer)\n")
    status, output, result = run(tmp_path, "script.command=torchrun --nproc-per-node=1 train.py")
    assert status == 1 and "does script.command have @gpus where it says how many?" in result.reason, output


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["itertools.cycle(DataLoader(data, 32))", "2000 * list(DataLoader(data, 32))"])
def test_a_program_that_keeps_its_batches_ends_and_has_no_samples(batches, tmp_path):
    """It draws nothing after its first epoch: what waits for its next draw, as the profiler's steps do, never ends."""
    loop = f"import itertools\nfor (x,) in {batches}:\n    optimizer.zero_grad()\n    net(x).sum().backward()\n"
    text = f"{LOOP}{loop}    optimizer.step()\n"
    status, output, result = run(tmp_path, write(tmp_path, text), "measure.probes=false", gpus=1)
    assert (status, result.status, result.scale.global_batch) == (0, "ok", None), output


@pytest.mark.slow
def test_a_program_that_ends_after_its_measurement_is_ok_on_two_ranks(tmp_path):
    """Its backend is unknown, since the profiler has no steps left."""
    text = f"{LOOP}import time\n{GROUP}optimizer.register_step_post_hook(lambda *step: time.sleep(0.01))\n"
    text += "train(model, optimizer, DistributedSampler(data))\ntrain(model, optimizer, DistributedSampler(data))\n"
    status, output, result = run(tmp_path, write(tmp_path, text), "measure.max_s=60", "measure.min_s=50")
    assert (status, result.status) == (0, "ok"), output
    assert [rank.backend_used for rank in result.ranks] == [None, None]
