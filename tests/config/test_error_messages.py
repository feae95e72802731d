"""Errors of composing become one line with the nearest valid name; those of overrides are in golden/mistakes.txt."""

import pytest
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from scalebench.config.compose import compose, compose_config
from scalebench.config.error_messages import EXPECTED_ERRORS, explain_error, explain_unknown_choice, list_config_keys
from scalebench.core.errors import InputError
from scalebench.core.spec import Config
from tests.builders.plugins import dists as dists


def message(*words):
    with pytest.raises(EXPECTED_ERRORS) as caught:
        compose_config(words)
    line = explain_error(caught.value, list(words))
    assert "\n" not in line
    return line


def test_errors_of_hydra_and_of_python_are_one_line():
    begin, end = "the overrides cannot be composed: ", " (SCALEBENCH_TRACEBACK=1 shows where)"
    # Only the command line itself finds out that there are several values; the text is Hydra's.
    several = "Ambiguous value for argument 'gpus=1,2'\n1. To use it as a list, use key=[value1,value2]\n2. ..."
    grammar = OverrideParseException("a=[", "no viable alternative at input '['\nSee https://hydra.cc")
    for error, line in (
        (ConfigCompositionException(several),
         "gpus=1,2 names several values: add --multirun for a sweep over them, or quote the value"),
        (HydraException(""), "HydraException"),
        (HydraException("\n\n  what it is \nand more"), "what it is"),
        (grammar,
         "cannot read the override 'a=[': no viable alternative at input '['; for a text write \"a='['\" in a shell"),
        (AssertionError(), f"{begin}AssertionError{end}"),
        (TypeError("no name"), f"{begin}TypeError: no name{end}"),
        (InputError("gpus=0 should be at least 1"), "gpus=0 should be at least 1"),
    ):  # fmt: skip
        assert explain_error(error, ["gpus=1,2"]) == line
    assert issubclass(OverrideParseException, EXPECTED_ERRORS) and issubclass(OmegaConfBaseException, EXPECTED_ERRORS)
    with pytest.raises(EXPECTED_ERRORS):
        OmegaConf.to_container(OmegaConf.create({"a": "${b}"}), resolve=True)
    keys = list(list_config_keys(Config))
    assert {"gpus", "train.learning_rate", "strategy.options", "hardware.links", "measure.hang_s"} <= set(keys)
    assert "train" not in keys and len(keys) == len(set(keys))


def test_a_file_that_is_no_yaml_or_of_the_search_plugin_is_explained(dists):
    root = dists.add(files={"a/conf/sweep/bad.yaml": "x: 1\ny: [\n"}, points={"configs": {"a": "a.conf"}})
    with pytest.raises(YAMLError) as caught:
        compose(["sweep=bad"])
    line = explain_error(caught.value, ["sweep=bad"])
    assert line == (f"{root}/a/conf/sweep/bad.yaml, line 3: expected the node content, but found '<stream end>'")
    for word in ("sweep=lr_search", "hydra/sweeper=search"):
        assert message(word).endswith("pip install ./plugins/scalebench-search in a checkout")


def test_an_own_file_in_the_working_folder_needs_its_folder_named(tmp_path):
    for folder in ("conf", "."):
        assert "--config-dir" not in explain_unknown_choice("hardware", "mine", ["local"])
        own = tmp_path / folder / "hardware" / "mine.yaml"
        own.parent.mkdir(parents=True)
        own.touch()
        line = f"no hardware 'mine'; for {folder}/hardware/mine.yaml add: --config-dir {folder}"
        assert explain_unknown_choice("hardware", "mine", ["local"]) == line
        own.unlink()


OWN_FILES = {  # the content of a file of the user's, and the line
    ("train/a", "momentum: high"): "train/a.yaml: train.momentum=high should be a number",
    ("train/a", "lerning_rate: 1"): "train/a.yaml: no key 'train.lerning_rate'; did you mean 'train.learning_rate'?",
    ("train/a", "decay_epochs: 3"): "train/a.yaml: train.decay_epochs should be a list, such as [1,2]",
    ("train/a", "train: {seed: 1}"): "train/a.yaml: no key 'train.train'; if its keys are those of the whole config, "
    "begin it with # @package _global_",
    ("sweep/a", "hydra: {mode: MULTIRUN}"): "sweep/a.yaml: no key 'sweep.hydra'; if its keys are those of the whole ",
    ("sweep/a", "# @package _global_\ntrian: {seed: 1}"): "sweep/a.yaml: no key 'trian'; did you mean 'train'?",
    # A byte-order mark, here in Latin-1, is read as if it were not there.
    ("sweep/a", "\xef\xbb\xbf# @package _global_\ntrian: 1"): "sweep/a.yaml: no key 'trian'; did you mean 'train'?",
    ("sweep/a", "# @package _global_\ntrain: 3"): "sweep/a.yaml: train should hold keys with values, not 3",
    ("hardware/a", "defaults: [slurn]"): "hardware/a.yaml: no hardware 'slurn'; did you mean 'slurm'?",
    ("hardware/a", "defaults: [/foo: x]"): "hardware/a.yaml: no config group 'foo'; known: dataset, hardware, ",
    ("hardware/a", "defaults: slurm"): "hardware/a.yaml: defaults must be a list (got str)",
    ("hardware/a", "slurm: {partitio: x}"): "hardware/a.yaml: no key 'hardware.slurm.partitio'; did you mean ",
    ("train/a", "momentum: 1e999"): "train.momentum=inf should be a finite number; a text",
    ("dataset/a", "name: a\noptions: {a: [1, .nan]}"): "dataset.options.a.1=nan should be a finite number; a text",
    ("train/a", "momentum: ${train.momentun}"): "train.momentum: no key 'train.momentun'; did you mean ",
    ("train/a", "momentum: ${nosuch:3}"): "train.momentum: Unsupported interpolation type nosuch",
    ("sweep/a", "- 1"): "sweep/a.yaml: sweep should hold keys with values, not [1]",
    ("sweep/a", "# L\xe4ufe"): "{file} is not a YAML file of keys and values: 'utf-8' codec can't decode",
    ("hardware/a", "name: a\0b"): "{file} is not a YAML file of keys and values: unacceptable character",
}


@pytest.fixture
def own(tmp_path):
    """Write a YAML file into a folder of the user's: the words that choose it, and its path."""

    def write(name, content):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return [f"hydra.searchpath=[file://{tmp_path}]", name.replace("/", "=")], path

    return write


def test_a_fault_in_a_file_is_named_with_the_file_and_the_key(own):
    for number, ((name, content), line) in enumerate(OWN_FILES.items()):
        unique = f"{name}{number}"  # loaders keep what they have composed
        words, path = own(unique, content.encode("latin-1"))
        with pytest.raises(Exception) as caught:
            compose_config(words)
        expected = line.replace(f"{name}.yaml", f"{unique}.yaml").replace("{file}", str(path))
        assert explain_error(caught.value, words).startswith(expected)
