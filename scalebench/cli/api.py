"""`scalebench.run` and `scalebench.sweep`: runs from a script or a notebook, and their results.

Runs are checked as those of the command line are. Bad input raises InputError with the same line, before anything is
started; a run that fails is a row with its status and reason.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.core.errors import InputError
from scalebench.core.process import USER_FOLDERS, replace_unprintable

if TYPE_CHECKING:
    import pandas as pd

    from scalebench.analysis.load import Survey
    from scalebench.core.result import Result

SUMMARY_COLUMNS = (
    "strategy gpus settings repeats throughput_samples_per_s throughput_low throughput_high speedup efficiency status"
).split()
OPEN_GROUPS = (
    "model.options.",
    "dataset.options.",
    "hardware.environment.",
    "script.args.",
)  # which take keys of the user
KEY_NAME = re.compile(r"[\w./@-]+", re.ASCII)  # a part of a key, or several with dots between
FUNCTION_GROUPS = {"model": ("torch", "keras"), "dataset": ("builder", "loader")}  # and the keys that name functions
_measuring = threading.RLock()  # two measurements disturb each other, and share the state of Hydra
NO_RESULT = "dry_run=true starts nothing, so there is no result to return; in a shell: {}"
NOTEBOOK_FUNCTION = (
    "{key}: {name} is defined in a notebook or at a prompt, where no worker can import it; write it to a file (begin "
    "the cell with %%writefile my_training.py) and pass my_training.{name}"
)


class Results:
    """The runs at or below a folder. A notebook shows their table and the answer."""

    _section = "scaling"  # of the report, whose charts `plot` draws by default

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises InputError where no result can be read there."""
        self.folder = Path(folder).absolute()
        _ = self._survey

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})\n{self.summary().to_string(index=False)}\n{self.answer}"

    def _repr_html_(self) -> str:
        from scalebench.core.untrusted import clean_text
        from scalebench.report.html.render import render_table
        from scalebench.report.tables import make_configuration_table

        answer, place = (escape(clean_text(text)) for text in (self.answer, f"results: {self.folder}"))
        table = render_table(make_configuration_table(self._survey.pooled))
        return f"<p><strong>{answer}</strong></p>{table}<p>{place}</p>"

    @cached_property
    def _survey(self) -> Survey:
        from scalebench.analysis.load import survey

        return survey(self.folder)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per run, as `scalebench.load` returns it."""
        from scalebench.analysis.columns import convert_types

        return convert_types(self._survey.frame)

    def summary(self) -> pd.DataFrame:
        """Return one row per configuration, over its repeats, with SUMMARY_COLUMNS.

        `settings` distinguishes the rows of one strategy. Speedup and efficiency are over the bare baseline, over the
        same strategy on one device where there is none, and null without either.
        """
        import pandas as pd

        from scalebench.report.terminal_table import RunTable

        frame = pd.DataFrame(RunTable(self._survey.pooled).rows, columns=SUMMARY_COLUMNS)
        figures = SUMMARY_COLUMNS[SUMMARY_COLUMNS.index("repeats") + 1 : -1]
        return frame.astype({"gpus": "int64", "repeats": "int64", **dict.fromkeys(figures, "float64")})

    @property
    def answer(self) -> str:
        """The answer in sentences, one line for each group of runs that may be compared."""
        from scalebench.analysis.ranking import list_advice
        from scalebench.analysis.scaling_curves import make_curves
        from scalebench.report.sections.answer import describe_advice

        estimate_ratio = self._survey.configurations.estimate_ratio
        sentences = describe_advice(list_advice(make_curves(self._survey.pooled), estimate_ratio), estimate_ratio)
        return "\n".join(sentences) or "No run was successful: .frame says why in its column reason."

    def plot(self, section: str | None = None) -> Figures:
        """Return the charts of a section of the report, such as "scaling" or "attribution", as plotly figures.

        Raises InputError where there is no such section, where these runs give no chart there, and without plotly.
        """
        from scalebench.report.html.plots import make_plotly_figures
        from scalebench.report.report_data import make_report_data
        from scalebench.report.sections import make_charts

        name = section or self._section
        charts = make_charts(make_report_data([self.folder], self._survey), name)
        if not charts:
            raise InputError(f"plot: these runs give no chart of '{name}'; scalebench report shows what they give")
        return Figures(make_plotly_figures(charts))


class Run(Results):
    """One run and its result."""

    _section = "step"

    @cached_property
    def result(self) -> Result:
        """The record, as docs/reference/results.md describes it."""
        from scalebench.core.result import read_result
        from scalebench.core.run_folder import RESULT_FILE

        return read_result(self.folder / RESULT_FILE)

    @property
    def status(self) -> str:
        """Return ok, failed, oom, timeout, unsupported or cancelled."""
        return str(self.result.status)

    @property
    def reason(self) -> str | None:
        """The reason in one line, of every status but ok."""
        return self.result.reason


class Sweep(Results):
    """The runs of a sweep, or of any other folder with results."""


class Figures(list[Any]):
    """Figures of plotly, which a notebook shows one below the other."""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for figure in self:
            display(figure)


def run(*words: str, folder: str | os.PathLike[str] | None = None, **overrides: Any) -> Run:
    """Run one configuration and return its result: run(strategy="ddp", gpus=2, train={"precision": "bf16"}).

    `overrides` are keys of the config, groups of them as dictionaries; `model` and `dataset` may also be functions of a
    module that workers can import. `words` are those of the command line. `folder` is where the files go. Raises
    InputError for bad input; nothing was started then. Raises KeyboardInterrupt for a cancelled run.
    """
    return Run(_execute([], words, {}, overrides, "hydra.run.dir", folder))


def sweep(
    space: Mapping[str, Any] | str | None = None,
    *words: str,
    folder: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Sweep:
    """Run all combinations of the values in `space`, with their baselines, and return the results.

    sweep({"strategy": ["ddp", "fsdp"], "gpus": [1, 2]}, measure="quick"); a text names a file of conf/sweep. The others
    as for `run`, but a list is several values where the key holds one: sweep(script="train.py", gpus=[1, 2]). Raises
    KeyboardInterrupt for a cancelled sweep, whose finished runs are in its folder.
    """
    if isinstance(space, str):
        return Sweep(_execute([f"sweep={space}"], words, {}, overrides, "hydra.sweep.dir", folder))
    flat = {key: each for name, value in overrides.items() for key, (each,) in _flatten(name, [_to_plain(value)])}
    axes = {key: value for key, value in flat.items() if _is_several(value) and not _holds_list(key)}
    fixed = {key: value for key, value in flat.items() if key not in axes}
    if both := sorted(flat.keys() & (space or {}).keys()):
        raise InputError(f"{both[0]} is both a part of the sweep and set beside it: leave one out")
    return Sweep(_execute(["--multirun"], words, {**(space or {}), **axes}, fixed, "hydra.sweep.dir", folder))


def _holds_list(key: str) -> bool:
    """Return whether a key of the config holds a list, so that a list is one value of it."""
    from scalebench.core.spec import Config

    value: Any = Config()
    for part in key.split("."):
        value = getattr(value, part, None)
    return isinstance(value, list)


def _execute(
    first: Sequence[str],
    words: Sequence[str],
    space: Mapping[str, Any],
    overrides: Mapping[str, Any],
    folder_key: str,
    folder: str | os.PathLike[str] | None,
) -> Path:
    """Run what these settings describe, and return the folder of the results."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("scalebench."):  # a process of a run, which imports a user's file
        raise InputError(
            "a process of a run imports the file that has called scalebench: put the call below if __name__ == "
            '"__main__":'
        )
    replace_unprintable()
    from scalebench.cli import hydra_app
    from scalebench.workloads.datasets import user_function

    functions: list[Callable[..., Any]] = []
    swept = {key: _to_plain(each) for key, each in space.items()}
    values = {key: list(each) if _is_several(each) else [each] for key, each in swept.items()}
    values |= {key: [_to_plain(value)] for key, value in overrides.items()}
    arguments = [*first, *make_words(values, functions), *words]
    arguments += [] if folder is None else [f"{folder_key}={_format_value(folder)}"]
    if values.get("dry_run") == [True] or "dry_run=true" in words:
        raise InputError(NO_RESULT.format(shlex.join(["scalebench", *arguments])))
    _share_folders(functions)
    with _measuring:
        user_function.forget_failures()
        _, results = hydra_app.run(arguments, shows_tables=False, is_single=not first)
    if results is None:
        raise InputError(f"nothing was run: {shlex.join(arguments)} is for the command line")
    return results


def _to_plain(value: Any) -> Any:
    """Return an array of numpy as a list, and its scalars as numbers."""
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value


def _is_several(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset, range))


def make_words(values: Mapping[str, Sequence[Any]], functions: list[Callable[..., Any]]) -> list[str]:
    """Return these settings, each with one value or several, as words of the command line. The functions among the
    values are added to `functions`.

    Raises InputError for a value that no config can hold.
    """
    words = []
    flat = {key: each for name, group in values.items() for key, each in _flatten(name, group)}
    for group, keys in FUNCTION_GROUPS.items():
        if any(callable(value) for value in flat.get(group, ())):
            if not all(callable(value) for value in flat[group]):
                raise InputError(f"{group}: names and functions do not go together in one sweep")
            from scalebench.config.aliases import choose_model_key

            strategies = map(str, flat.get("strategy", ["ddp"]))
            key = choose_model_key(strategies) if group == "model" else keys[0]
            flat[f"{group}.{key}"] = flat.pop(group)
        if group not in flat and any(f"{group}.{key}" in flat for key in keys):
            words.append(f"{group}=custom")
    for key, each in flat.items():
        prefix = "++" if key.startswith(OPEN_GROUPS) else ""
        functions += [value for value in each if callable(value)]
        texts = [_name_function(value, key) if callable(value) else _format_value(value, key) for value in each]
        words.append(f"{prefix}{key}={','.join(texts)}")
    return words


def _flatten(key: str, values: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield dotted keys with their values; a dictionary holds the keys below its own."""
    if len(values) == 1 and isinstance(values[0], Mapping):
        for name, value in values[0].items():
            yield from _flatten(f"{key}.{_check_name(name, key)}", [value])
    else:
        yield key, values


def _format_value(value: Any, key: str = "") -> str:
    """Return a value in Hydra's syntax."""
    value = _to_plain(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        from scalebench.config.compose import is_plain_text, quote

        text = os.fspath(value)
        if key.startswith(OPEN_GROUPS):  # a text of the user's, in which ${x} means nothing
            text = text.replace("${", "\\${")
        return text if is_plain_text(text) else quote(text)
    if _is_several(value):
        return f"[{','.join(_format_value(each, key) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_check_name(name, key)}:{_format_value(each, key)}' for name, each in value.items())}}}"
    way_out = "a name, or a function that makes it in each worker" if key in FUNCTION_GROUPS else "plain data"
    raise InputError(f"{key}={value!r:.60} cannot be passed to workers; pass {way_out}")


def _check_name(name: Any, key: str) -> str:
    """Return a name of a setting. Raise InputError for one that Hydra's grammar has no place for."""
    if isinstance(name, str) and KEY_NAME.fullmatch(name):
        return name
    raise InputError(f"{key}: the name {name!r} should have letters without accents, digits, - and _ alone")


def _name_function(function: Callable[..., Any], key: str) -> str:
    """Return MODULE:FUNCTION. Raise InputError for a function that workers cannot import by that."""
    name = getattr(function, "__qualname__", type(function).__name__)
    module = str(getattr(function, "__module__", ""))
    if module == "__main__":
        spec, file = (getattr(sys.modules[module], each, None) for each in ("__spec__", "__file__"))
        if spec is None and (file is None or not Path(file).stem.isidentifier()):
            raise InputError(NOTEBOOK_FUNCTION.format(key=key, name=name))
        module = Path(str(file)).stem if spec is None else spec.name
    if not name.isidentifier():
        raise InputError(
            f"{key}: {name} has no name in its module, by which workers import it; define it with def there"
        )
    return f"{module}:{name}"


def _share_folders(functions: Sequence[Callable[..., Any]]) -> None:
    """Tell the workers the folders of these functions: they do not search a script's folder, or one that a notebook has
    put on sys.path."""
    present = list(filter(None, os.environ.get(USER_FOLDERS, "").split(os.pathsep)))
    new = [folder for folder in map(_find_import_folder, functions) if folder not in (None, os.getcwd(), *present)]
    if new:
        os.environ[USER_FOLDERS] = os.pathsep.join(dict.fromkeys([*filter(None, new), *present]))


def _find_import_folder(function: Callable[..., Any]) -> str | None:
    """Return the folder that holds the function's module, or the package around it; None for installed ones."""
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).absolute()
    name = getattr(getattr(module, "__spec__", None), "name", "")
    folder = path.parents[name.count(".") + (path.name == "__init__.py")]
    return None if {"site-packages", "dist-packages"} & set(folder.parts) else str(folder)
