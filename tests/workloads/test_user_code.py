"""Functions and networks of the user: references are checked without an import, and samples complete a model."""

import dataclasses
import sys

import pytest

from scalebench.core.errors import InputError, PluginError
from scalebench.core.spec import ModelSpec
from scalebench.workloads import user_code
from scalebench.workloads.source import SampleShape

CODE = """\
raise SystemExit("imported")
from somewhere import taken
try:
    import other.thing as thing
except ImportError:
    thing = None
if thing:
    def build(): ...
else:
    class Net: ...
first, *rest = lambda: 1, 2
assigned: int = 3
"""
USER_MODEL = ModelSpec("custom", torch="mine:build", loss="auto", metric="auto")
CURVES, PICTURES = SampleShape((200, 3), (2,)), SampleShape((32, 32, 3), (), 10)
MASKED = SampleShape((200, 3), (2,), unusable_targets="NaN in targets")


@pytest.fixture(autouse=True)
def user_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "yours.py").write_text("def build(): ...  # another\n")
    return tmp_path


def test_names_are_found_without_importing_their_file(user_files):
    """A star import may define any name; an edited file has another digest."""
    for name in ("taken", "thing", "build", "Net", "first", "rest", "assigned"):
        digest = user_code.file_digest(f"mine:{name}", "model.torch")
        assert digest is not None and len(digest) == 16 and "mine" not in sys.modules
    (user_files / "star.py").write_text("from mine import *\n")
    assert user_code.file_digest("star:any", "model.torch")
    before = user_code.file_digest("mine:build", "model.torch")
    (user_files / "mine.py").write_text(CODE + "\n# changed\n")
    assert user_code.file_digest("mine:build", "model.torch") != before


def test_packages_installed_modules_and_the_current_folder(user_files, monkeypatch):
    (user_files / "pack" / "age").mkdir(parents=True)
    (user_files / "pack" / "age" / "__init__.py").write_text("def build(): ...\n")
    assert user_code.file_digest("pack.age:build", "model.torch") is not None
    assert user_code.file_digest("json.decoder:JSONDecoder", "model.torch") is not None
    assert user_code.file_digest("sys:path", "model.torch") is None  # no Python file
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (user_files / "loaded_here.py").write_text("def build(): return 3\n")
    assert user_code.load_function("loaded_here:build", "model.torch")() == 3
    del sys.modules["loaded_here"]


def test_files_of_the_user_hide_no_installed_module(user_files):
    (user_files / "colorsys.py").write_text("def build(): ...\n")
    for name in ("mine:build", "yours:build"):
        (user_files / f"{name[:-6]}.py").write_text("import colorsys\ndef build(): return colorsys.rgb_to_hsv\n")
    assert user_code.load_function("yours:build", "model.torch")()(0, 0, 0) == (0.0, 0.0, 0)
    with pytest.raises(InputError, match=r"^model.torch=colorsys:build: .*/colorsys.py has the name of an installed"):
        user_code.file_digest("colorsys:build", "model.torch")
    del sys.modules["yours"]


def test_a_file_sees_no_arguments_of_this_process(user_files, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["worker", "/a/folder/of/a/run", "--epochs=x"])
    (user_files / "parses.py").write_text(
        "import argparse, sys\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('out', nargs='?', default='runs')\n"
        "out, argv = parser.parse_args().out, list(sys.argv)\ndef build(): return out, argv\n"
    )
    assert user_code.load_function("parses:build", "model.torch")() == ("runs", [str(user_files / "parses.py")])
    del sys.modules["parses"]


@pytest.mark.parametrize(("line", "end"), [
    ("raise SystemExit", "SystemExit"),
    ("import argparse; p = argparse.ArgumentParser(); p.add_argument('data'); p.parse_args()", "SystemExit: 2"),
])  # fmt: skip
def test_a_file_that_ends_the_program_is_one_line(line, end, user_files, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["worker"])
    (user_files / "ends.py").write_text(f"def build(): ...\n{line}\n")
    message = f"ends the program when it is imported .{end}.; what it runs, or re"
    with pytest.raises(PluginError, match=message) as caught:
        user_code.load_function("ends:build", "model.torch")
    assert str(caught.value).endswith('should be under `if __name__ == "__main__":`') and "\n" not in str(caught.value)


def test_a_failure_to_load_is_one_line_with_its_traceback(user_files):
    (user_files / "faulty_here.py").write_text("def build(): ...\nimport no_such_package\n")
    message = r"^model.torch=faulty_here:build cannot be loaded .*no_such_package"
    with pytest.raises(PluginError, match=message) as caught:
        user_code.load_function("faulty_here:build", "model.torch")
    assert 'faulty_here.py", line 2' in caught.value.log


def test_names_of_users_models():
    """Of their function or library, with the digests of their files."""
    torch = user_code.identify_model(USER_MODEL)
    both = user_code.identify_model(dataclasses.replace(USER_MODEL, keras="yours:build"))
    keras = user_code.identify_model(ModelSpec("custom", keras="yours:build"))
    assert (torch.name, both.name, keras.name) == ("mine:build", "mine:build", "yours:build")
    assert torch.code_digest and keras.code_digest and both.code_digest == f"{torch.code_digest}-{keras.code_digest}"
    assert user_code.identify_model(torch) == torch  # a second time changes nothing
    assert user_code.identify_model(dataclasses.replace(USER_MODEL, name="net")).name == "net"
    built_in = ModelSpec("mlp")
    assert user_code.identify_model(built_in) == built_in
    assert user_code.is_user_model(keras) and not user_code.is_user_model(built_in)
    reference = "scalebench.strategies.torch.libraries:build_torchvision"
    model = user_code.identify_model(ModelSpec("resnet50", torch=reference))
    assert model.name == user_code.identify_model(model).name == "torchvision/resnet50"


def test_a_wrong_model_of_a_plugin_is_its_mistake():
    with pytest.raises(PluginError, match=r"^model=theirs: model.torch=his:build: no module 'his'"):
        user_code.identify_model(ModelSpec("theirs", torch="his:build"))


OWN = dataclasses.replace(USER_MODEL, input_shape=[64, 64, 3], outputs=11, metric="cross_entropy")
OF_PLUGIN = ModelSpec("theirs", loss="auto", metric="auto")
BUILT_IN = ModelSpec("mlp", input_shape=[8000], target_shape=[1])


@pytest.mark.parametrize(("model", "samples", "expected"), [
    (USER_MODEL, CURVES, ([200, 3], [2], 2, "mse", "mse")),
    (USER_MODEL, PICTURES, ([32, 32, 3], [], 10, "cross_entropy", "accuracy")),
    (USER_MODEL, SampleShape((4,), (3, 2)), ([4], [3, 2], 6, "mse", "mse")),
    (OWN, PICTURES, ([64, 64, 3], [], 11, "cross_entropy", "cross_entropy")),
    (OF_PLUGIN, PICTURES, ([32, 32, 3], [], 10, "cross_entropy", "accuracy")),
    (BUILT_IN, CURVES, ([8000], [1], 1, "mse", "mse")),  # that the shapes do not match is reported elsewhere
])  # fmt: skip
def test_samples_complete_what_the_config_leaves_open(model, samples, expected):
    full = user_code.complete_model(model, samples, "it")
    assert (full.input_shape, full.target_shape, full.outputs, full.loss, full.metric) == expected


def test_targets_that_no_loss_of_ours_can_take():
    message = r"^dataset=it has NaN in targets: correct or drop it, or set model.loss to a function of yours,"
    with pytest.raises(InputError, match=message):
        user_code.complete_model(USER_MODEL, MASKED, "it")


TOKENS = SampleShape((), (), fields="ids int64 (8,)", needs_loss=True)
STEPS_FILE = """
class Net:
    def training_step(self, batch, number): ...
class Plain: ...
def build(): return Net()
def build_plain(): return Plain()
def loss(a, b): ...
"""
SUBCLASSES_FILE = """
import mysteps
from mysteps import Net as Base, build as build_imported
class Direct(Base): ...
class Other(mysteps.Net): ...
class Holder:
    def __init__(self): self.part = Base()
def build():
    layers = {"a": Other}
    return layers["a"]()
"""


@pytest.fixture
def steps_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mysteps.py").write_text(STEPS_FILE)
    (tmp_path / "subclasses.py").write_text(SUBCLASSES_FILE)
    (tmp_path / "plain.py").write_text("def build(): ...\n")


@pytest.mark.parametrize(("function", "loss", "samples", "expected"), [
    ("plain:build", "auto", CURVES, ("mse", "mse")),
    ("plain:build", "auto", TOKENS, ("module", "loss")),
    ("plain:build", "module", CURVES, ("module", "loss")),
    ("plain:build", "mysteps:loss", CURVES, ("mysteps:loss", "loss")),
    ("plain:build", "mysteps:loss", MASKED, ("mysteps:loss", "loss")),
    ("mysteps:build", "auto", CURVES, ("module", "loss")),  # it has a training_step
    ("mysteps:build", "mse", CURVES, ("mse", "mse")),
    ("mysteps:build_plain", "auto", CURVES, ("mse", "mse")),  # another class of the file has one
    *((f"subclasses:{name}", "auto", CURVES, ("module", "loss")) for name in ("Direct", "build", "build_imported")),
    ("subclasses:Holder", "auto", CURVES, ("mse", "mse")),  # a part of it has one
])  # fmt: skip
def test_the_loss_of_a_users_module(steps_file, function, loss, samples, expected):
    model = ModelSpec("custom", torch=function, loss=loss, metric="auto")
    complete = user_code.complete_model(user_code.identify_model(model), samples, "it")
    assert (complete.loss, complete.metric) == expected
    assert user_code.has_user_loss(complete) == (expected[1] == "loss")


def test_an_edited_loss_is_another_run(steps_file, tmp_path):
    """Several arrays of a sample need a network and a loss that take them."""
    model = ModelSpec("custom", torch="plain:build", loss="mysteps:loss")
    before = user_code.identify_model(model).code_digest
    (tmp_path / "mysteps.py").write_text(STEPS_FILE + "# changed\n")
    assert user_code.identify_model(model).code_digest != before
    models = [ModelSpec("mlp", input_shape=[8]), ModelSpec("custom", torch="plain:build", loss="mse", metric="auto")]
    for model in models:
        message = r"dataset=it has several of a sample \(ids int64 \(8,\)\), for which scale"
        with pytest.raises(InputError, match=message):
            user_code.complete_model(model, TOKENS, "it")
