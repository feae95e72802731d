"""Networks of sequences: their length is an axis, on which model and data set agree, and rows have tokens/s."""

import pytest

import scalebench
from scalebench.__main__ import main
from scalebench.config import resolve
from scalebench.config.compose import compose_config
from scalebench.core.errors import InputError
from scalebench.core.result import ScriptRecord
from scalebench.runner import collect
from tests.builders.configs import make_spec
from tests.builders.runs import rank

GPT = ["model=gpt_small", "hardware=cpu", "gpus=1", "strategy=simulated"]
BRIEFLY = (
    "model.options.layers=1 model.options.width=32 model.options.heads=2 hardware=cpu measure.probes=false "
    "measure.monitor=false measure.max_s=1 measure.min_s=0 measure.warmup_steps=5 measure.warmup_max_s=1 "
    "measure.repeats=2"
).split()


def plan(*words):
    return resolve.resolve(compose_config(words))


def test_the_length_is_one_key_of_model_and_data_set():
    short, same = plan(*GPT, "dataset.options.length=16"), plan(*GPT, "model.options.sequence_length=16")
    assert short.fingerprint == same.fingerprint != plan(*GPT).fingerprint
    assert [spec.tokens_per_sample for spec in (short, same, plan(*GPT))] == [16, 16, 64]
    assert short.config.model.input_shape == short.config.model.target_shape == [16]
    assert plan(*GPT, "model=lstm_small", "dataset.options.length=9").tokens_per_sample == 9
    assert plan(*GPT, "model=mlp").tokens_per_sample is None
    both = [*GPT, "dataset.options.length=16", "model.options.sequence_length=32"]
    for words, reason in ((both, "are of the same sequences"), ([*GPT, "dataset.options.length=0"], "at least 1")):
        with pytest.raises(InputError, match=reason):
            plan(*words)


def test_a_global_batch_may_be_so_many_tokens():
    strong = [*GPT, "scaling=strong", "train.global_tokens=2048"]
    for length, sequences in ((16, 128), (64, 32)):
        spec = plan(*strong, f"dataset.options.length={length}")
        assert (spec.global_batch, spec.config.train.global_batch) == (sequences, sequences)
        same = plan(*GPT, "scaling=strong", f"train.global_batch={sequences}", f"dataset.options.length={length}")
        assert spec.fingerprint == same.fingerprint


def test_dicts_of_tokens_have_a_length(tmp_path, monkeypatch):
    """As Hugging Face's models take them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mynet.py").write_text("def build(): ...\n")
    own = ["model=mynet.py:build", "dataset=token_dicts", "dataset.size=80", f"dataset.cache={tmp_path}", "gpus=1"]
    for length in (8, 12):
        assert plan(*own, "strategy=bare_torch", f"dataset.options.length={length}").tokens_per_sample == length


@pytest.mark.parametrize(("tokens", "expected"), [((600, 1000), 80.0), ((600, None), None), ((None, None), None)])
def test_sequences_of_a_script_have_a_mean_length(tokens, expected):
    """Two ranks that each drew 10 samples in a step, and these tokens in all their 10 steps."""
    ranks = [rank(number, [0.1, 0.2], script=ScriptRecord(10, tokens=each)) for number, each in enumerate(tokens)]
    samples = collect.count_samples_per_step(ranks)
    length = collect._count_tokens_of_program(make_spec(gpus=2), ranks)
    assert length == (None if expected is None else pytest.approx(160 / samples))


@pytest.mark.parametrize("words", [[], ["scaling=strong", "train.global_tokens=512"]], ids=["weak", "tokens"])
@pytest.mark.parametrize("strategy", ["simulated", pytest.param("bare_torch", marks=pytest.mark.slow)])
def test_a_sweep_over_lengths_compares_tokens(strategy, words, tmp_path, capsys):
    space = {"dataset.options.length": [16, 64]}
    sweep = scalebench.sweep(space, "model=gpt_small", *BRIEFLY, *words, strategy=strategy, gpus=1, folder="out")
    pooled = scalebench.pooled("out").set_index("sequence_length")
    assert set(pooled.index) == {16, 64} and set(sweep.frame["status"]) == {"ok"}
    for length, row in pooled.iterrows():
        assert row["tokens_per_s"] == pytest.approx(length * row["throughput_samples_per_s"], rel=1e-3)
        assert row["tokens_per_s_per_device"] == row["tokens_per_s"]
    assert f"({pooled.loc[64, 'tokens_per_s']:,.0f} tokens/s)" in sweep.answer
    capsys.readouterr()
    assert main(["show", "out"]) == 0
    shown = capsys.readouterr().out
    assert f"{pooled.loc[64, 'tokens_per_s']:,.0f}" in shown
    if strategy != "simulated":  # which answers nothing
        answer = " ".join(shown.split()).partition("sequence length 64: ")[2]
        assert " times the tokens/s of 16 (" in answer, shown
    for length in (16, 64):
        assert f"sequence_length={length}" in shown
    page = (tmp_path / "out" / "report.html").read_text()
    assert "tokens/s" in page
