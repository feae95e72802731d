"""`scalebench.run` and `scalebench.sweep`: what they pass to the command line, and what they return."""

import os
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import hydra
import numpy as np
import pytest

import scalebench
from scalebench.cli import api
from scalebench.config.compose import compose_config
from scalebench.core.errors import InputError
from scalebench.report.html.page import read_asset
from tests.builders.runs import record
from tests.builders.sweeps import write_results
from tests.conftest import ROOT

BUILD = "tests.cli.test_api:build"
QUICK = {
    "hardware": "cpu", "measure": "quick", "dataset": {"size": 1000}, "measure.monitor": False, "measure.min_s": 0,
    "measure.max_s": 0.3, "measure.block_s": 0.004, "measure.warmup_max_s": 0.1, "measure.probe_s": 0.1,
}  # fmt: skip


def build():
    """Stands for a function that makes a network."""


def test_settings_are_words_of_the_command_line():
    for values, words in (
        ({"gpus": [1, 2], "resume": [True], "seed": [None]}, ["gpus=1,2", "resume=true", "seed=null"]),
        (
            {"train": [{"stop": {"steps": 3}, "learning_rate": np.float32(0.5)}]},
            ["train.stop.steps=3", "train.learning_rate=0.5"],
        ),
        ({"hardware.device_ids": [[0], [1, 2]]}, ["hardware.device_ids=[0],[1,2]"]),
        ({"hardware.device_ids": [np.arange(2)]}, ["hardware.device_ids=[0,1]"]),
        (
            {"dataset": [{"path": Path("/a b"), "options": {"x": "it's"}}]},
            ["dataset.path='/a b'", "++dataset.options.x='it\\'s'"],
        ),
        ({"a": ["c:\\", "c d\\"]}, ["a='c:\\\\','c d\\\\'"]),
        ({"model": [build]}, ["model=custom", f"model.torch={BUILD}"]),
        ({"model": [build], "strategy": ["mirrored"]}, ["model=custom", "strategy=mirrored", f"model.keras={BUILD}"]),
        ({"model": [{"torch": build, "loss": "mse"}]}, ["model=custom", f"model.torch={BUILD}", "model.loss=mse"]),
        ({"dataset": [build]}, ["dataset=custom", f"dataset.builder={BUILD}"]),
    ):
        assert api.make_words(values, []) == words


def test_texts_reach_a_function_as_they_were_passed():
    """Also those that Hydra and OmegaConf read as numbers, as true, as null or as the values of other keys."""
    options = {
        "a": "true", "b": "null", "c": "1_000", "d": "1e3", "e": "12e4567", "f": "01", "g": "${price}", "h": "inf",
        "list": ["1e3", "x", "it's", "a b\\", "\\'", "x,y", "{a: b}", "ünï"],
        "nested": {"deep": ["off", {"x": "1.5"}], "plain": "2024-05-01"},
        "number": np.float32(0.25), "numbers": [np.int64(3)], "switch": True, "nothing": None,
    }  # fmt: skip
    words = api.make_words({"dataset": [{"options": options}]}, [])
    assert compose_config([*words, "dataset=random"]).dataset.options == options | {"number": 0.25, "numbers": [3]}


@pytest.mark.parametrize("options", [{"größe": 1}, {"a": [{"b c": 1}]}])
def test_a_name_that_no_override_can_hold_is_one_sentence(options):
    with pytest.raises(InputError, match="should have letters without accents, digits"):
        api.make_words({"dataset": [{"options": options}]}, [])


def test_bad_input_is_an_exception_and_starts_nothing():
    for settings, line in (
        ({"strategy": "dpd"}, "no strategy 'dpd'; did you mean 'ddp'?"),
        ({"gpus": 0}, "gpus=0 should be at least 1"),
        ({"train": {"lerning_rate": 1}}, "no key 'train.lerning_rate'; did you mean 'train.learning_rate'?"),
        ({"measure": {"repeats": 3}}, "measure.repeats makes a sweep of a run"),
        ({"model": lambda: None}, "<lambda> has no name in its module"),
        ({"model": object()}, "model=<object object at"),
        ({"model": "mlp", "dry_run": True}, "in a shell: scalebench model=mlp dry_run=true"),
    ):
        with pytest.raises(scalebench.InputError) as caught:
            scalebench.run(**settings)
        packages = [text for text in traceback.format_exception(caught.value) if "site-packages" in text]
        assert "hydra" not in "".join(packages)
        assert line in str(caught.value) and "\n" not in str(caught.value)
        assert list(Path().iterdir()) == []


def test_a_sweep_is_checked_before_its_first_run(tmp_path):
    for words in ("gpus=1,2", "sweep=gpus"):
        with pytest.raises(InputError, match="instead of run"):
            scalebench.run(words, strategy="simulated", **QUICK)
    with pytest.raises(InputError, match="did you mean 'zero1'"):
        scalebench.sweep({"strategy": ["simulated", "zero_1"]}, **QUICK)
    with pytest.raises(InputError, match="gpus=0 should be at least 1"):
        scalebench.sweep({"gpus": np.arange(2)}, strategy="simulated", **QUICK)
    with pytest.raises(InputError, match="gpus is both a part of the sweep and set beside it"):
        scalebench.sweep({"gpus": [1, 2]}, gpus=3)
    with pytest.raises(InputError, match="one function cannot build the network of both frameworks"):
        scalebench.sweep({"strategy": ["ddp", "mirrored"]}, model=build)
    with pytest.raises(InputError, match="names and functions do not go together"):
        scalebench.sweep({"model": ["mlp", build]})
    assert list(tmp_path.iterdir()) == []


def test_a_list_under_a_key_of_one_value_is_an_axis(tmp_path):
    script = {"path": "train.py", "args": {"lr": [0.1, 0.2]}, "fixed": ["a", "b"]}
    with pytest.raises(InputError) as caught:
        scalebench.sweep(script=script, gpus=[1, 2], dry_run=True)
    words = "gpus=1,2 ++script.args.lr=0.1,0.2 script.path=train.py 'script.fixed=[a,b]' dry_run=true"
    assert sorted(words.split()) == sorted(str(caught.value).partition("--multirun ")[2].split())


def test_a_function_of_a_notebook_is_refused_with_the_way_out(monkeypatch, tmp_path):
    """IPython's module __main__ has neither a file nor a spec; a script is imported by the name of its file."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("def build(): pass", vars(main))
    functions = []
    with pytest.raises(InputError, match=r"%%writefile my_training.py\) and pass my_training.build"):
        api.make_words({"model": [vars(main)["build"]]}, functions)
    main.__file__ = "/tmp/of/mytrain.py"
    assert api.make_words({"model": [vars(main)["build"]]}, functions)[1] == "model.torch=mytrain:build"
    monkeypatch.setenv("SCALEBENCH_USER_FOLDERS", "/first")
    monkeypatch.chdir(tmp_path)
    api._share_folders([*functions[-1:], build, np.mean])
    assert os.environ["SCALEBENCH_USER_FOLDERS"] == os.pathsep.join(["/tmp/of", str(ROOT), "/first"])


def test_runs_and_sweeps_return_their_results(capsys):
    run = scalebench.run("seed=1", strategy="simulated", gpus=1, folder="one", **QUICK)
    assert (run.status, run.reason, run.folder, run.result.scale.gpus) == ("ok", None, Path("one").absolute(), 1)
    assert "seed" in str(run.result.spec) and len(run.frame) == 1 and "More than one device was not" in run.answer
    settings = {**QUICK, "measure.probes": False, "measure.repeats": 1}
    sweep = scalebench.sweep({"gpus": [1, 2]}, strategy="simulated", folder="several", **settings)
    printed = capsys.readouterr()
    assert printed.err == "" and "─" not in printed.out and "report: several/report.html" in printed.out
    assert sweep.frame["gpus"].tolist() == [1, 2] and sweep.folder == Path("several").absolute()
    with pytest.raises(InputError, match="already holds"):
        scalebench.run(strategy="simulated", gpus=1, folder="one", **QUICK)


@pytest.fixture
def recorded():
    return scalebench.Sweep(ROOT / "tests/golden/corpus/repeats")


def test_a_caller_keeps_its_own_hydra(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "app.yaml").write_text("width: 7\n")
    with hydra.initialize_config_dir(str(tmp_path / "conf"), version_base=None):
        run = scalebench.run(strategy="simulated", gpus=1, folder="one", **QUICK)
        assert (run.status, hydra.compose("app").width) == ("ok", 7)


def test_threads_measure_one_after_the_other():
    """Hydra and sys.argv are those of the process: a call could return the record of another."""

    def measure(gpus):
        run = scalebench.run(strategy="simulated", gpus=gpus, folder=f"threads/{gpus}", **QUICK)
        return run.result.scale.gpus, run.result.started_at

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(measure, (1, 2, 3)))
    assert [gpus for gpus, _ in results] == [1, 2, 3] and len({at for _, at in results}) == 3


def test_a_summary_has_ten_columns(recorded):
    pooled, summary = scalebench.pooled(recorded.folder), recorded.summary()
    assert len(summary) == len(pooled) and list(summary.columns) == api.SUMMARY_COLUMNS and len(summary.columns) == 10
    assert sorted(summary["throughput_samples_per_s"].dropna()) == sorted(pooled["throughput_samples_per_s"].dropna())
    assert summary["speedup"].notna().any() and str(summary["speedup"].dtype) == "float64"
    assert recorded.answer in repr(recorded) and "on one device" in recorded.answer


def test_a_notebook_shows_a_table_in_which_nothing_is_markup(tmp_path):
    write_results(tmp_path, [record(strategy="<b>&"), record(strategy="ddp", gpus=2)])
    text = scalebench.Sweep(tmp_path)._repr_html_()
    assert text.startswith("<p><strong>") and "<table>" in text and "&lt;b&gt;&amp;" in text and "<b>" not in text


def test_figures_have_the_colours_of_the_page(recorded):
    pytest.importorskip("plotly")
    figures = recorded.plot()
    assert len(figures) >= 2 and all(type(figure).__name__ == "Figure" for figure in figures)
    colours = {trace.marker.color for trace in figures[0].data if trace.meta["role"] == "line"}
    page = read_asset("page.css").partition("}")[0]
    assert len(colours) > 1 and all(colour in page for colour in colours)
    assert all(figure.to_json() for figure in recorded.plot("attribution"))
    with pytest.raises(InputError, match="did you mean 'scaling'"):
        recorded.plot("scalin")
    with pytest.raises(InputError, match="these runs give no chart of 'published'"):
        recorded.plot("published")


def test_the_import_is_quick_and_its_names_are_there():
    def import_s(name):
        program = f"import time; t = time.process_time(); import {name}; print(time.process_time() - t)"
        return min(float(subprocess.check_output([sys.executable, "-c", program], timeout=60)) for _ in range(3))

    assert import_s("scalebench") < import_s("numpy") / 2
    assert set(dir(scalebench)) == set(scalebench.__all__) and all(hasattr(scalebench, n) for n in scalebench.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        _ = scalebench.sweeep
