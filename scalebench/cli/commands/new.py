"""`scalebench new strategy NAME`: a distribution of one's own with a strategy that runs, from scalebench/template."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import jinja2

import scalebench
from scalebench.cli.commands.arguments import CommandParser
from scalebench.core import config_files, plugins
from scalebench.core.errors import InputError
from scalebench.strategies import registry

TEMPLATES = Path(__file__).with_name("template")
KINDS = ("strategy",)
SUFFIX = ".jinja"  # so that no tool takes a file of the template for one of ours
PLACE = "NAME"  # in the paths of the template
NAMES = r"[a-z][a-z0-9]*(_[a-z0-9]+)*"  # of Python modules, of distributions (with a dash) and on the command line
# Not strategy=NAME, but a value of YAML or of Hydra's; and classes that the template's own would hide.
NO_NAMES = frozenset("null none true false yes no on off y n inf nan".split())
TAKEN_CLASSES = frozenset(
    "torch_strategy torch_batch input_error run_spec loss_part iterable strategy_contract fault_contract".split()
)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("kind", metavar="strategy")
    parser.add_argument("name", metavar="NAME", help="of the strategy, such as my_ring")
    parser.add_argument("--into", metavar="FOLDER", default=".", help="where its package is made; default: here")


def main(words: argparse.Namespace) -> int:
    if words.kind not in KINDS:
        raise InputError(f"new makes a {' or a '.join(KINDS)}, not '{words.kind}'; docs/plugins.md tells of the others")
    _check_name(words.name)
    home = Path(words.into)
    if not home.is_dir():
        raise InputError(f"--into={words.into} is no folder; make it first")
    folder = home / distribution(words.name)
    made = _written(words.kind, words.name, folder)
    print(f"{folder}: a distribution with the strategy '{words.name}'")
    print("\n".join(f"  {path.relative_to(folder)}" for path in made))
    print("\nIt averages gradients by all-reduces of its own; change that, and see what still holds:")
    print(f"  pip install -e {shlex.quote(f'{folder}[test]')}")
    print(f"  scalebench strategy={words.name} gpus=2")
    print(f"  scalebench check {words.name}")
    return 0


def distribution(name: str) -> str:
    """What pip calls it."""
    return f"scalebench-{name.replace('_', '-')}"


def rendered(kind: str, name: str) -> dict[Path, str]:
    """Path within the distribution -> text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES / kind),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # none of it is HTML
    )
    told = {
        "name": name,
        "kind": "".join(part.capitalize() for part in name.split("_")),
        "distribution": distribution(name),
        "package": f"scalebench_{name}",
        "version": scalebench.__version__,
        "api": plugins.API_VERSION,
    }
    found = sorted(environment.list_templates(extensions=[SUFFIX.removeprefix(".")]))
    return {
        Path(path.removesuffix(SUFFIX).replace(PLACE, name)): environment.get_template(path).render(told)
        for path in found
    }


def _check_name(name: str) -> None:
    if not re.fullmatch(NAMES, name) or name in NO_NAMES:
        raise InputError(
            f"'{name}' cannot be chosen as strategy={name} and be a Python module too: take small letters, digits and "
            "single underscores, such as my_ring"
        )
    if name in TAKEN_CLASSES:
        raise InputError(f"the template has a class of that name already: take another one than '{name}'")
    known = registry.table().get(name)
    if known is not None or name in config_files.options("strategy"):
        origin = known.origin if known is not None else config_files.options("strategy")[name]
        raise InputError(f"strategy '{name}' is there already, from {origin}; take another name")
    if find_spec(f"scalebench_{name}") is not None:
        raise InputError(f"a package scalebench_{name} is there already; take another name, or uninstall it")


def _written(kind: str, name: str, folder: Path) -> list[Path]:
    """The files made; nothing stays of a distribution that could not be written."""
    try:
        folder.mkdir()
    except FileExistsError:
        raise InputError(f"{folder} is there already; take another name, or --into=FOLDER") from None
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written: {error.strerror}; take another place with --into=FOLDER"
        ) from None
    try:
        return [_put(folder / path, text) for path, text in rendered(kind, name).items()]
    except BaseException as error:
        shutil.rmtree(folder)
        if not isinstance(error, OSError):
            raise
        raise InputError(
            f"{folder} cannot be written: {error.strerror}; take another place with --into=FOLDER"
        ) from None


def _put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
