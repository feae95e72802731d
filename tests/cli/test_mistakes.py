"""Mistakes that people make at the command line: each is answered in one line with the way out, and leaves nothing.

golden/mistakes.txt has what was typed and the answer, or its beginning before `...`. After a wanted change of words
`python -m tests.cli.test_mistakes` writes it anew.
"""

import contextlib
import io
import re
import shlex
import tempfile
from pathlib import Path

import pytest

from scalebench import __main__ as program
from scalebench.cli.hydra_app import read_arguments
from scalebench.config.aliases import read_names
from scalebench.config.compose import compose_config
from scalebench.config.error_messages import list_config_keys
from scalebench.core.spec import Config
from tests.builders import sweeps

GOLDEN = Path(__file__).parents[1] / "golden" / "mistakes.txt"
MISTAKES = dict(re.findall(r"^\$ (.*)\n(.*)$", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE))


def make_world(folder):
    """Write results, among them some that nobody can use, and other files."""
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
    (folder / "mine.py").write_text("def build(): ...\n")
    (folder / "garbled.py").write_text("x = 1\ndef build(:\n")
    (folder / "bin").mkdir()
    (folder / "bin/sbatch").touch(0o755)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def is_answer(message, line):
    """Three dots in a line stand for what is of this machine, or depends on how long a record is."""
    return re.fullmatch(".*".join(map(re.escape, line.split("..."))), message) is not None


@pytest.mark.parametrize(("typed", "line"), MISTAKES.items(), ids=list(MISTAKES))
def test_a_mistake_is_one_line_with_the_way_out(typed, line, world, capsys, monkeypatch):
    monkeypatch.chdir(world)
    before = sorted(world.rglob("*"))
    status = program.main(shlex.split(typed))
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    message = err.removeprefix("scalebench: ").rstrip("\n")
    assert is_answer(message, line), message
    assert sorted(world.rglob("*")) == before


def test_spellings_that_can_mean_only_one_thing_are_accepted():
    for typed, precision, target in (
        ("train.precision=bf16", "bfloat16", 0.01),
        ("++train.precision=16-mixed", "float16", 0.01),
        ("train.precision=FP32 measure.target=2.5%", "float32", 0.025),
        ("train.precision=tf32 'measure.target=1 %'", "tf32", 0.01),
    ):
        config = compose_config(shlex.split(typed))
        assert (config.train.precision, config.measure.target) == (precision, target)
    assert compose_config(["devices=2", "strategy=simulated"]).gpus == 2
    own = [
        "--multirun",
        "strategy=ddp,mirrored",
        "model=mynet.py:Net",
        "model.keras=sub/net.py:build",
        "dataset=data:a,data:b",
    ]
    assert read_arguments(own).overrides[1:] == [
        *("model=custom", "model.torch=mynet:Net", "model.keras=sub.net:build"),
        *("dataset=custom", "dataset.builder=data:a,data:b"),
    ]
    assert read_arguments(["strategy=mirrored", "model=mynet:Net"]).overrides[-1] == "model.keras=mynet:Net"
    assert read_arguments(["model={name:mlp}"]).overrides == ["model={name:mlp}"], "no function"
    overrides = read_arguments(["-m", "train.precision=fp32,bf16", "measure.target=1%,5%", "seed=1%"]).overrides
    assert overrides == ["train.precision=float32,bfloat16", "measure.target=0.01,0.05", "seed=1%"]


def test_every_name_of_other_programs_leads_to_a_key_of_ours():
    keys = {*list_config_keys(Config), "model", "dataset", "strategy", "hardware", "hydra.run.dir"}
    assert set(read_names("keys").values()) <= keys
    assert not {key for key in keys if "." not in key} & read_names("keys").keys(), "no alias hides a key"


def write_golden():
    """Write what the program says now to each line that was typed, where its beginning is another than that."""

    def answer(match):
        with contextlib.redirect_stderr(io.StringIO()) as err:
            program.main(shlex.split(match[1]))
        message = err.getvalue().removeprefix("scalebench: ").rstrip("\n")
        return match[0] if is_answer(message, match[2]) else f"$ {match[1]}\n{message}"

    text = GOLDEN.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(make_world(Path(folder))):
        text = re.sub(r"^\$ (.*)\n(.*)$", answer, text, flags=re.MULTILINE)
    GOLDEN.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_golden()
