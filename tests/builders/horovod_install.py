"""A machine for `scalebench install horovod`: a PATH of its own, and an environment whose pip compiles nothing.

Folders that look like Horovod and the frameworks it was built for, ahead of those that the machine may have.
"""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

from scalebench.cli.commands.install import HOROVOD_SCRIPT
from tests.conftest import ROOT

HOLDS = "def mpi_built(): return {mpi}\ndef gloo_built(): return {gloo}\ndef nccl_built(): return {nccl:d}\n"
HOLDS += "def cuda_built(): return {cuda}\n"
EXTENSIONS = {"torch": "mpi_lib_v2.x.so", "tensorflow": "mpi_lib.x.so"}


class Site:
    """A folder of packages. Without `monkeypatch` it is for other processes only."""

    def __init__(self, folder, monkeypatch=None):
        self.folder = folder
        folder.mkdir()
        if monkeypatch is not None:
            monkeypatch.syspath_prepend(str(folder))
            monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
            monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # files change here within the tick of a clock
            for name in ("horovod", "torch", "tensorflow"):  # of an earlier test
                monkeypatch.delitem(sys.modules, name, raising=False)

    def horovod(self, built_for, holds="mpi gloo", code=""):
        """Horovod 0.28.1 with the parts that metadata.json names; `code` stands in front of each. Its folder."""
        folder = self.distribution("horovod", "0.28.1")
        (folder / "metadata.json").write_text(json.dumps({**built_for, "dummy": "none"}))
        for name in ("torch", "tensorflow"):
            (folder / name).mkdir(exist_ok=True)
            answers = HOLDS.format(**{word: word in holds.split() for word in ("mpi", "gloo", "nccl", "cuda")})
            (folder / name / "__init__.py").write_text(code + answers)
            if name.replace("torch", "pytorch") in built_for:
                (folder / name / EXTENSIONS[name]).write_text("")
        return folder

    def torch(self, version, cuda=None):
        folder = self.distribution("torch", version.partition("+")[0])
        (folder / "version.py").write_text(f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n")

    def distribution(self, name, version):
        info = self.folder / f"{name}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        package = self.folder / name
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("")
        importlib.invalidate_caches()
        return package


TOOLS = (
    "bash sh env dirname cat cut grep head tail sed tr paste awk cksum mkdir mktemp mv rm sleep uname nproc id true "
    "getconf flock find"
)
COMPILER = {"g++": "exit 0", "cmake": "exit 0", "make": "exit 0"}
MPI = {"mpicxx": "exit 0", "mpirun": "echo 'mpirun (Open MPI) 4.1.4'"}
BUILT = "Horovod 0.28.1 with PyTorch 2.13.0+cpu: MPI, Gloo (no NCCL)"
THERE = (0, ["Horovod 0.28.1 is there"], [])
# Facts come from the real interpreter, without the packages of the environment that runs the tests.
PYTHON = f"""#!/bin/bash
if [ "$1 $2" != "-m pip" ]; then PYTHONPATH="$FAKE_SITE:$PYTHONPATH" exec {sys.executable} -S "$@"; fi
echo "$*" >>"$FAKE_HOME/pip.log"
case " $* " in
  *" --wheel-dir "*)
    env >"$FAKE_HOME/environment"
    echo "some.cc: error: what went wrong"
    eval "$FAKE_BUILD"
    while [ "$1" != --wheel-dir ]; do shift; done
    mkdir "$2" && echo wheel >"$2/horovod-0.28.1-x.whl" ;;
  *" uninstall "*) rm -f "$FAKE_SITE/horovod-0.28.1.dist-info/RECORD" ;;
  *".whl ") echo "$RANDOM$RANDOM" >"$FAKE_SITE/horovod-0.28.1.dist-info/RECORD" ;;
esac
"""


class Home:
    """PyTorch 2.13.0+cpu and no TensorFlow; of compilers, MPI and GPUs what `programs` puts there."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.bin, self.site = folder, folder / "bin", Site(folder / "site")
        tools = folder / "tools"  # links, apart from what `program` writes
        self.wheels, self.stamp = folder / "wheels", folder / "env" / ".horovod"
        for made in (self.bin, tools):
            made.mkdir()
        for tool in TOOLS.split():
            if (path := shutil.which(tool)) is not None:
                (tools / tool).symlink_to(path)
        self.site.torch("2.13.0+cpu")
        self.site.horovod({"pytorch": "2.13.0+cpu"})
        self.program(folder / "env" / "bin" / "python", PYTHON)
        self.environment = {
            "PATH": f"{self.bin}:{tools}", "HOME": str(folder), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1",
            "SCALEBENCH_PYTHON": str(folder / "env/bin/python"), "SCALEBENCH_WHEELS": str(self.wheels),
            "FAKE_HOME": str(folder), "FAKE_SITE": str(self.site.folder), "SCALEBENCH_CACHE": str(folder / "cache"),
        }  # fmt: skip

    def program(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def programs(self, *groups):
        for name, text in [pair for group in groups for pair in group.items()]:
            self.program(self.bin / name, text)

    def start(self, *words, script=None, **variables):
        return subprocess.Popen(
            ["/bin/bash", str(script or HOROVOD_SCRIPT), *words],
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def install(self, *words, script=None, **variables):
        """The script's status, and the lines of its output and of its errors."""
        with self.start(*words, script=script, **variables) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out.splitlines(), err.splitlines()

    def environment_of_build(self):
        """The variables that the last build was given."""
        lines = (self.folder / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def builds(self):
        """How often a wheel was built."""
        return len([line for line in self.pip() if "--wheel-dir" in line])

    def pip(self):
        log = self.folder / "pip.log"
        return log.read_text().splitlines() if log.exists() else []

    def kept(self):
        """All that lies in the folder of wheels, with KEY for what the wheels are tied to."""
        paths = [path.relative_to(self.wheels) for path in self.wheels.rglob("*")]
        keys = {path.stem for path in paths if path.suffix in (".lock", ".log")}
        names = [str(path) for path in paths]
        for key in keys:
            names = [name.replace(key, "KEY") for name in names]
        return sorted(set(names))


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home of mine")
