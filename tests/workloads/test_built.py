"""Samples of a function as a data set: what they decide, where they are kept, and what does not go with them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.plugins import PluginError
from scalebench.spec import Config, DatasetSpec, InputError, MeasureSpec, ModelSpec
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache, user_function, user_function_worker
from tests.plugin_dists import Dists
from tests.plugin_dists import dists as dists

OWN = ModelSpec("custom", torch="made_of:network", loss="auto", metric="auto")
CODE = """\
import numpy as np

def network(): ...

def build(size, seed, kind="quantities", gives=None):
    size = gives or size
    inputs = np.random.default_rng(seed).normal(size=(size, 4))
    if kind == "quantities":
        return inputs, inputs[:, 0]
    if kind == "broken":
        raise ValueError("broken")
    if kind == "pictures":
        inputs = np.zeros((size, 8, 8, 3), np.uint8)
    return inputs, np.arange(size) % 7
"""


@pytest.fixture(autouse=True)
def made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The function's file, and the sizes that it was asked for; it is called here, and not in a process of its own."""
    (tmp_path / "made_of.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_function, "_failed", {})
    asked = []

    def build(request: user_function.FunctionCall, limit_s: float, folder: Path) -> None:
        asked.append(request.size)
        found = user_function_worker.handle_request({**dataclasses.asdict(request), "folder": str(folder)})
        if "problem" in found:
            raise PluginError(found["problem"])

    monkeypatch.setattr(user_function, "build", build)
    yield asked
    for name in ("made_of", "more_data"):
        sys.modules.pop(name, None)


def config(tmp_path: Path, model: ModelSpec = OWN, **changes: Any) -> Config:
    fields = {"name": "custom", "size": 100, "builder": "made_of:build", "cache": str(tmp_path / "cache"), **changes}
    return Config(model=model, dataset=DatasetSpec(**fields))


def told(config: Config) -> tuple[object, ...]:
    dataset, model = config.dataset, config.model
    return (
        dataset.size,
        dataset.classes,
        dataset.dtype,
        model.input_shape,
        model.target_shape,
        model.outputs,
        model.loss,
    )


def test_the_samples_decide(tmp_path: Path) -> None:
    pictures: dict[str, Any] = {"options": {"kind": "pictures"}}
    assert told(datasets.fill_from_samples(config(tmp_path))) == (100, None, "float32", [4], [1], 1, "mse")
    assert told(datasets.fill_from_samples(config(tmp_path, **pictures))) == (
        100, 7, "uint8", [8, 8, 3], [], 7, "cross_entropy",
    )  # fmt: skip
    more = datasets.fill_from_samples(config(tmp_path, **pictures, classes=9))  # perhaps not all of them are there
    assert (more.dataset.classes, more.model.outputs) == (9, 9)
    one = datasets.fill_from_samples(config(tmp_path, size=1, options={"kind": "classes"}))
    assert one.dataset.classes == 2  # with one there is nothing to tell apart


def test_they_are_made_once_and_read_by_every_process(tmp_path: Path, made_of: list[int]) -> None:
    full = datasets.fill_from_samples(config(tmp_path))
    folder = datasets.prepare(full)
    inputs, targets = cache.open_arrays(folder)
    assert inputs.shape == (100, 4) and np.array_equal(inputs[:, :1], targets)
    assert datasets.fill_from_samples(full) == full and made_of == [100]
    assert folder.parent == tmp_path / "cache" and folder.name.startswith("custom-")


def test_how_many_came_is_the_size_and_the_folder_is_found_again(tmp_path: Path, made_of: list[int]) -> None:
    full = datasets.fill_from_samples(config(tmp_path, options={"gives": 58}))
    assert (full.dataset.size, full.dataset.asked) == (58, 100)
    assert len(cache.open_arrays(datasets.prepare(full))[0]) == 58
    assert datasets.fill_from_samples(full) == full and made_of == [100]


def test_whatever_makes_other_samples_makes_another_folder(tmp_path: Path) -> None:
    def folder(**changes: Any) -> Path:
        return datasets.prepare(datasets.fill_from_samples(config(tmp_path, **changes)))

    folders = [folder(), folder(size=90), folder(seed=1), folder(options={"kind": "classes"}), folder(name="other")]
    (tmp_path / "made_of.py").write_text(CODE + "# changed\n")
    assert len({*folders, folder()}) == 6


def test_a_fault_is_waited_for_once_in_a_sweep(tmp_path: Path, made_of: list[int]) -> None:
    for _ in range(3):
        with pytest.raises(PluginError, match=r"^dataset.builder=made_of:build fails: ValueError: broken$"):
            datasets.fill_from_samples(config(tmp_path, options={"kind": "broken"}))
    assert made_of == [100]
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a path": ({"path": "/x.npz"}, r"^dataset=custom is made by a function, not read: leave out dataset.path$"),
    "pixels": ({"image_size": 32}, r"^dataset=custom has samples as its function makes them: leave out"),
    "classes": ({"classes": 3}, r"^dataset=custom has quantities as targets: leave out dataset.classes$"),
    "too few": (
        {"classes": 3, "options": {"kind": "classes"}},
        r"^dataset.classes=3, and dataset=custom has class 6: raise it$",
    ),
    "no function": ({"builder": None}, r"^dataset=custom has samples of your own: set dataset.builder=MODULE:FUNCTION"),
    "not there": ({"builder": "made_of:bild"}, r"no function in .* 'bild'; did you mean 'build'\?$"),
    "beside ours": ({"name": "materials"}, r"^dataset=materials is made already: dataset.builder goes with"),
    "options of ours": (
        {"name": "materials", "builder": None, "options": {"noise": 1}},
        r"^dataset.options.noise is for a function of your own, and dataset=materials has none$",
    ),
    "unknown": ({"name": "custon", "builder": None}, r"^no dataset 'custon'; did you mean 'custom'\?$"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_the_users_mistake(tmp_path: Path, case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(InputError, match=message) as caught:
        datasets.fill_from_samples(config(tmp_path, **changes))
    assert not isinstance(caught.value, PluginError)


def test_networks_of_ours_take_pictures_at_their_size(tmp_path: Path) -> None:
    ours = ModelSpec("resnet20_cifar10", input_shape=[32, 32, 3], outputs=11, loss="cross_entropy", params=269_787)
    full = datasets.fill_from_samples(config(tmp_path, ours, options={"kind": "pictures"}))
    assert (full.model.input_shape, full.model.params, full.model.outputs) == ([8, 8, 3], None, 11)
    datasets.check(full)


MISFITS = {
    "samples": (ModelSpec("materials_cnn", input_shape=[200, 3], target_shape=[2]), "quantities", r"samples of \(4,\)"),
    "targets": (ModelSpec("mlp", input_shape=[4], target_shape=[2]), "quantities", r"has targets of \(1,\)"),
    "outputs": (ModelSpec("mlp", input_shape=[4], outputs=3), "classes", "has 7 classes, model=mlp has 3 outputs: "),
    "kind": (
        ModelSpec("mlp", input_shape=[4], target_shape=[9], outputs=9),
        "classes",
        "9 outputs that are quantities",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_networks_of_ours_that_do_not_fit(tmp_path: Path, case: str) -> None:
    model, kind, message = MISFITS[case]
    with pytest.raises(InputError, match=rf"^dataset=made_of:build has .*{message.removeprefix('has ')}"):
        datasets.check(datasets.fill_from_samples(config(tmp_path, model, options={"kind": kind})))


def test_the_data_set_goes_by_its_function(tmp_path: Path) -> None:
    assert datasets.label(config(tmp_path)) == "made_of:build"
    assert datasets.label(config(tmp_path, name="theirs")) == "theirs"


def test_a_data_set_of_a_plugin(tmp_path: Path, dists: Dists) -> None:
    dists.add("more-data", {"more_data.py": CODE}, {"datasets": {"more": "more_data:build"}})
    full = datasets.fill_from_samples(config(tmp_path, name="more", builder=None))
    assert full.dataset.code and datasets.label(full) == "more"
    datasets.check(full)
    assert datasets.prepare(full).name.startswith("more-")
    with pytest.raises(InputError, match=r"^dataset=more is made already: dataset.builder goes with dataset=custom$"):
        datasets.fill_from_samples(config(tmp_path, name="more"))
    with pytest.raises(InputError, match=r"^no dataset 'mroe'; did you mean 'more'\?$"):
        datasets.fill_from_samples(config(tmp_path, name="mroe", builder=None))


def test_what_is_wrong_with_one_of_a_plugin_fails_its_runs_only(tmp_path: Path, dists: Dists) -> None:
    dists.add("more-data", {"more_data.py": CODE}, {"datasets": {"more": "more_data:missing"}})
    with pytest.raises(PluginError, match=r"^data set 'more' of more-data cannot be loaded from more_data:missing"):
        datasets.fill_from_samples(config(tmp_path, name="more", builder=None))


def test_the_limit_of_a_run_is_that_of_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def build(request: user_function.FunctionCall, limit_s: float, folder: Path) -> None:
        limits.append(limit_s)
        raise PluginError("late")

    monkeypatch.setattr(user_function, "build", build)
    with pytest.raises(PluginError):
        datasets.fill_from_samples(dataclasses.replace(config(tmp_path), measure=MeasureSpec(timeout_s=12.0)))
    assert limits == [12.0]
