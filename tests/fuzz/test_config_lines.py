"""Random lines of overrides, dry: no traceback, no hang, the right exit status, nothing started, no file left."""

import os

import pytest
from hypothesis import strategies as st

from scalebench.config.compose import PATH_KEYS
from scalebench.config.error_messages import list_config_keys
from scalebench.core import config_files
from scalebench.core.spec import Config
from scalebench.runner.launchers import local
from tests.fuzz.command_line import MAX_ERROR_LINES, many_examples, run_line, try_examples

# What is drawn is made to get far: mostly real keys with values that may even be right.
KEYS = [*list_config_keys(Config), "strategy.options.step_s", "strategy.options.bucket_cap_mb"]
GROUPS = config_files.list_groups()
HYDRA = (
    "hydra hydra.run.dir hydra.sweep.dir hydra.sweep.subdir hydra.mode hydra.job.num hydra.verbose hydra/launcher "
    "hydra/sweeper hydra.sweeper.params hydra.sweeper.max_batch_size hydra.searchpath hydra.runtime.output_dir"
).split()
NAMES = sorted({name for group in GROUPS for name in config_files.list_options(group)})
ODD = st.text("abgpus.=+~@:/${}[]()'\"\\, \t\n0129-*?#%&|<>!^`_é\u202e", max_size=30)
FREE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
INTERPOLATIONS = st.sampled_from(
    "gpus train hydra.run.dir now:%Y now:%Q% oc.env:HOME oc.env:NO_SUCH a.b strategy.name .name ..gpus hydra:job.num "
    "oc.create:[1,2] oc.decode:1 oc.select:x oc.deprecated:gpus oc.dict.keys:train x:y".split()
).map("${{{}}}".format)
WORDS = st.sampled_from(
    NAMES
    + "true false null none auto weak strong MULTIRUN 1 0 -1 2 1e400 nan inf 1_000 0x10 ??? '' 'a [] {} a/b /proc/x "
    "range(1,3) choice(1,2) glob(*) interval(0,1) sort(3,1) shuffle(a,b) int(2) str(2) float(a) range(0,1,0)".split()
)
PLAIN = st.one_of(WORDS, INTERPOLATIONS, st.integers().map(str), st.floats().map(repr))
VALUES = st.recursive(
    PLAIN | ODD | FREE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: f"[{','.join(v)}]"),
        st.lists(st.tuples(WORDS, inner), max_size=2).map(lambda v: "{" + ",".join(f"{a}:{b}" for a, b in v) + "}"),
        st.lists(inner, min_size=2, max_size=3).map(",".join),
        inner.map("'{}'".format),
        inner.map('"{}"'.format),
    ),
    max_leaves=4,
)
PLACES = st.sampled_from(["@", "@_global_.", "@a.b", "@:", "/", ".", "x"])
WRONG_KEYS = st.one_of(
    st.sampled_from(KEYS).map(lambda key: key[:-1]), st.tuples(st.sampled_from(GROUPS), PLACES).map("".join), ODD
)
PREFIXES = st.sampled_from(["", "", "", "+", "++", "~"])
OVERRIDES = st.one_of(
    st.tuples(PREFIXES, st.sampled_from(KEYS), st.just("="), PLAIN),
    st.tuples(PREFIXES, st.sampled_from(KEYS + GROUPS + HYDRA), st.just("="), VALUES),
    st.tuples(PREFIXES, WRONG_KEYS, st.sampled_from(["=", "", "= ", "=="]), VALUES),
    st.tuples(st.sampled_from(GROUPS), st.just("="), st.sampled_from(NAMES) | FREE),
    st.tuples(st.sampled_from(KEYS + GROUPS), st.just("="), st.builds(str.__mul__, WORDS, st.integers(1, 400))),
).map("".join)
SWITCHES = st.sampled_from(["--multirun", "--multirun", "--multirun", "--cfg=job", "--nope", "-x", "--", "--run"])
LINES = st.lists(st.one_of(OVERRIDES, OVERRIDES, OVERRIDES, OVERRIDES, ODD, FREE, SWITCHES), min_size=1, max_size=4)

# Any choice of these goes together, whatever the machine: what cannot run here is a row that says so.
RIGHT = {
    "model": ["materials_cnn"],
    "strategy": sorted({*config_files.list_options("strategy")} - {"script"}),  # which needs the user's program
    "measure": sorted(config_files.list_options("measure")),
    "hardware": ["cpu", "local"],
    "gpus": ["1", "2"],
    "seed": st.integers(0, 2**31).map(str),
    "dataset.size": st.integers(5_000, 10**7).map(str),
    "scaling": ["weak", "strong"],
    "baseline": ["none", "auto", "attribution"],
    "measure.repeats": st.integers(1, 9).map(str),
    "train.learning_rate": st.floats(1e-9, 1e3).map(repr),
    "resume": ["false"],
}
RIGHT_LINES = st.fixed_dictionaries(
    {}, optional={k: v if isinstance(v, st.SearchStrategy) else st.sampled_from(v) for k, v in RIGHT.items()}
).map(lambda chosen: [f"{key}={value}" for key, value in chosen.items()])
WRONG_WORDS = st.one_of(
    st.sampled_from(KEYS).map(lambda key: f"{key}x=1"),
    st.sampled_from([key for key in KEYS if key not in PATH_KEYS]).map(lambda key: f"{key}={{a:[b}}"),
    st.sampled_from(GROUPS).map(lambda group: f"{group}=no_such_name"),
    st.sampled_from(["gpus=0", "gpus=-1", "gpus=two", "seed=0.5", "scaling=medium", "measure.repeats=0", "--nope"]),
)


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    monkeypatch.setattr(local, "launch", lambda *_: pytest.fail("a dry run has started a process"))


def check_dry(words):
    last = words.index("--") if "--" in words else len(words)  # of the program's own words
    ending = run_line([*words[:last], "dry_run=true", *words[last:]])
    assert len(ending.err.splitlines()) <= MAX_ERROR_LINES, ending.err
    assert os.listdir() == []
    return ending


@many_examples(40, 10_000)
def test_random_lines(examples):
    try_examples(lambda words: check_dry(words) and None, examples, words=LINES)


@many_examples(8, 1_000)
def test_lines_that_are_right_and_the_same_with_one_wrong_word(examples):
    def check(words, wrong, sweep, place):
        words = ["--multirun", *words] if sweep else words
        assert check_dry(words).status < 2
        key = wrong.partition("=")[0]
        place = len(words) if any(word.startswith(f"{key}=") for word in words[place:]) else place  # the last one holds
        assert check_dry([*words[:place], wrong, *words[place:]]).status == 2

    places = st.integers(0, len(RIGHT))
    try_examples(check, examples, words=RIGHT_LINES, wrong=WRONG_WORDS, sweep=st.booleans(), place=places)


TRACEBACKS = (
    "+=3 +='' dataset@=0 ~hydra=-inf +strategy=[-1.5,2] hydra.verbose=${oc.create:[1,2]} +strategy.requires=[0.0] "
    "sweep=null --resolve"
).split()


@pytest.mark.parametrize(
    "words",
    [*([word] for word in TRACEBACKS), ["--run", "--multirun"], ["gpus=" + "[" * 2000], ["-m", "seed=range(10000000)"]],
    ids=lambda words: words[0][:40],
)
def test_lines_that_once_had_no_good_end(words):
    check_dry(words)
