"""References to a user's functions: found without importing anything, loaded with the fault in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scalebench.plugins import PluginError
from scalebench.spec import InputError
from scalebench.workloads import user_code

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
first, *rest = lambda inner: inner, 2
assigned: int = 3
for turn in [comprised for comprised in ()]:
    with open("x") as opened:
        pass
def outer():
    hidden = 1
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["taken", "thing", "build", "Net", "first", "rest", "assigned", "turn", "opened", "outer"]
)
def test_a_function_is_found_without_importing_its_file(here: Path, name: str) -> None:
    found = user_code.file_digest(f"mine:{name}", "model.torch")
    assert found is not None and len(found) == 16 and "mine" not in sys.modules


@pytest.mark.parametrize("name", ["hidden", "inner", "comprised", "other"])
def test_what_a_file_does_not_bind_is_not_found(here: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"^model.torch=mine:{name}: no function in .*mine.py '{name}'; ") as caught:
        user_code.file_digest(f"mine:{name}", "model.torch")
    assert not isinstance(caught.value, PluginError)


def test_the_nearest_name_is_told(here: Path) -> None:
    with pytest.raises(InputError, match=r"; did you mean 'build'\?$"):
        user_code.file_digest("mine:bild", "model.torch")


def test_a_file_that_may_bind_anything_is_believed(tmp_path: Path) -> None:
    (tmp_path / "star.py").write_text("from mine import *\n")
    (tmp_path / "dynamic.py").write_text("def __getattr__(name): ...\n")
    assert user_code.file_digest("star:any", "model.torch") and user_code.file_digest("dynamic:any", "model.torch")


def test_another_text_is_another_digest(here: Path) -> None:
    before = user_code.file_digest("mine:build", "model.torch")
    (here / "mine.py").write_text(CODE + "\n# changed\n")
    assert user_code.file_digest("mine:build", "model.torch") != before


def test_packages_and_what_is_installed(tmp_path: Path) -> None:
    (tmp_path / "pack" / "age").mkdir(parents=True)
    (tmp_path / "pack" / "age" / "__init__.py").write_text("def build(): ...\n")
    assert user_code.file_digest("pack.age:build", "model.torch") is not None
    assert user_code.file_digest("json.decoder:JSONDecoder", "model.torch") is not None
    assert user_code.file_digest("sys:path", "model.torch") is None  # no file of Python


WRONG = {
    "mine": r"^dataset.builder=mine should be MODULE:FUNCTION, such as my.module:build$",
    "mine.py:build": r"^dataset.builder=mine.py:build: no module 'mine.py'$",
    "mine:": "should be MODULE:FUNCTION",
    ":build": "should be MODULE:FUNCTION",
    "mine:build()": "should be MODULE:FUNCTION",
    "../mine:build": "should be MODULE:FUNCTION",
    "yours:build": r"^dataset.builder=yours:build: no module 'yours' in .* or among what is installed$",
    "mine.sub:build": r"no module 'mine.sub'$",
    "garbled:build": r"^dataset.builder=garbled:build: .*garbled.py, line 2 is no Python: ",
    "zero:build": r"^dataset.builder=zero:build: .*zero.py.* is no Python: ",
}


@pytest.mark.parametrize("reference", WRONG)
def test_what_is_no_reference_is_one_line(here: Path, reference: str) -> None:
    (here / "garbled.py").write_text("x = 1\ndef build(:\n")
    (here / "zero.py").write_bytes(b"build = 1\0")
    with pytest.raises(InputError, match=WRONG[reference]) as caught:
        user_code.file_digest(reference, "dataset.builder")
    assert "\n" not in str(caught.value) and not isinstance(caught.value, PluginError)


def test_loading_finds_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "loaded_here.py").write_text("def build(): return 3\n")
    assert user_code.load_function("loaded_here:build", "model.torch")() == 3
    del sys.modules["loaded_here"]


def test_a_fault_while_it_is_loaded_is_one_line_with_its_traceback(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (here / "faulty_here.py").write_text("def build(): ...\nimport no_such_package\n")
    with pytest.raises(
        PluginError, match=r"^model.torch=faulty_here:build cannot be loaded .*no_such_package"
    ) as caught:
        user_code.load_function("faulty_here:build", "model.torch")
    assert 'faulty_here.py", line 2' in caught.value.log
