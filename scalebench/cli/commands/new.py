"""`scalebench new strategy NAME` and `new dataset NAME`: write a package that runs, from the files in `template`.

`scalebench new hardware NAME` writes the YAML of a SLURM partition instead: see new_hardware.py.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import jinja2

import scalebench
from scalebench.cli.commands.arguments import CommandParser, refuse_unwritable
from scalebench.core import config_files
from scalebench.core.errors import InputError
from scalebench.strategies import registry

TEMPLATES = Path(__file__).parent / "template"  # a folder for each kind, and `package` with what all have
NO_ROOM = "take another place with --into=FOLDER"
TEMPLATE_SUFFIX = ".jinja"  # so that no tool treats a template as a source file
NAME_PLACEHOLDER = "NAME"  # in the paths of the template
# The name is that of a Python module, of a distribution (with dashes) and of a value on the command line.
NAME_PATTERN = r"[a-z][a-z0-9]*(_[a-z0-9]+)*"
YAML_WORDS = frozenset("null none true false yes no on off y n inf nan".split())  # which it reads as another value
# Each kind of package has the name that people use, the package that it needs, and what its template does.
KINDS = {
    "strategy": ("strategy", "torch>=2.4", "It averages gradients by all-reduces of its own"),
    "dataset": ("data set", "numpy>=1.26", "It draws noisy sines from the seed"),
}


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "kind", metavar="KIND", help="strategy, dataset: a package; hardware: the YAML of a SLURM partition"
    )
    parser.add_argument("name", metavar="NAME", help="of what is new, such as my_ring")
    parser.add_argument("--into", metavar="FOLDER", default=".", help="where it is written; default: here")
    parser.add_argument(
        "--partition", metavar="P", help="hardware: the partition to describe; default: that of the cluster"
    )
    parser.add_argument(
        "--bin", metavar="FOLDER", help="hardware: the folder of sinfo and scontrol; default: they are on the PATH"
    )
    parser.add_argument("--cpu", action="store_true", help="hardware: CPU workers, also where nodes have GPUs")


def main(options: argparse.Namespace) -> int:
    if not Path(options.into).is_dir():
        raise InputError(f"--into={options.into} is not a folder; make it first")
    if options.kind == "hardware":
        from scalebench.cli.commands import new_hardware

        return new_hardware.main(options)
    if options.kind not in KINDS:
        raise InputError(
            f"new makes a strategy, dataset or hardware, not '{options.kind}'; docs/guides/plugins.md has the others"
        )
    if options.partition or options.bin or options.cpu:
        raise InputError("--partition, --bin and --cpu are of new hardware; leave them out")
    kind, name = options.kind, options.name
    _check_name(kind, name)
    folder = Path(options.into, distribution_name(name))
    files = render(kind, name)
    with refuse_unwritable(folder, NO_ROOM):
        if folder.exists():
            raise InputError(f"{folder} is there already; take another name, or --into=FOLDER")
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    label, _, what_it_does = KINDS[kind]
    print(f"{folder}: a distribution with the {label} '{name}'")
    print("\n".join(f"  {path}" for path in files))
    print(f"\n{what_it_does}; change that, and see which contract tests still pass:")
    print(f"  pip install -e {shlex.quote(f'{folder}[test]')}")
    print(f"  scalebench {kind}={name} gpus=2")
    print(f"  scalebench check {name}")
    return 0


def distribution_name(name: str) -> str:
    """Return the name under which pip installs the distribution."""
    return f"scalebench-{name.replace('_', '-')}"


def make_environment(*folders: Path) -> jinja2.Environment:
    """Return what reads the templates of these folders. Lines with nothing but a tag leave none."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # nothing here is HTML
    )


def render(kind: str, name: str) -> dict[Path, str]:
    """Return the text of each file by its path within the distribution."""
    environment = make_environment(TEMPLATES / kind, TEMPLATES / "package")
    label, needs, _ = KINDS[kind]
    values = {
        "kind": kind,
        "label": label,
        "needs": needs,
        "name": name,
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "distribution": distribution_name(name),
        "package": f"scalebench_{name}",
        "version": scalebench.__version__,
    }
    paths = sorted(environment.list_templates(extensions=[TEMPLATE_SUFFIX.removeprefix(".")]))
    targets = [Path(path.removesuffix(TEMPLATE_SUFFIX).replace(NAME_PLACEHOLDER, name)) for path in paths]
    return {target: environment.get_template(path).render(values) for target, path in zip(targets, paths, strict=True)}


def _check_name(kind: str, name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name) or name in YAML_WORDS:
        raise InputError(
            f"'{name}' cannot be both {kind}={name} and a Python module: use small letters, digits and "
            "single underscores, such as my_ring"
        )
    entry = (registry.strategy_entries() if kind == "strategy" else registry.plugin_entries("datasets")).get(name)
    origin = entry.origin if entry is not None else config_files.file_origin(kind, name)
    if origin is not None:
        raise InputError(f"{kind} '{name}' is there already, from {origin}; take another name")
