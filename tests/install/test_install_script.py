"""`make install` on made-up machines, and the container files."""

import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.gpu
# pip installs nothing but the version file of PyTorch, whose other packages are not there yet: it cannot be imported.
PYTHON = f"""#!/bin/bash
case "$*" in
  "-m pip"*)
    echo "$*" >>pip.log
    [[ "$*" == *" torch=="* ]] || exit 0
    case "$*" in *whl/cu130*) cuda="'13.0'" ;; */cu126*) cuda="'12.6'" ;; *) cuda=None ;; esac
    mkdir torch && touch torch/__init__.py && echo "cuda: Optional[str] = $cuda" >torch/version.py ;;
  "-c import torch") exit 1 ;;
  *) exec {sys.executable} -S "$@" ;;
esac
"""
CU130, CU126 = (f"--index-url https://download.pytorch.org/whl/{name}" for name in ("cu130", "cu126"))
APART = "for GPUs, in an environment of its own: pip install 'scalebench-train[tensorflow_cuda]'"


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose .venv has the Python above, and a PATH without nvidia-smi."""
    folder = tmp_path / "a checkout"
    for name in ("scripts", "scalebench/cli/commands/install"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(ROOT / "scalebench/core", folder / "scalebench/core")
    for name in ("pyproject.toml", "constraints.txt", "plugins/scalebench-search/pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    put(folder / ".venv/bin/python", PYTHON)
    for tool in ("dirname", "grep", "cat", "cksum", "mkdir", "touch"):
        put(folder / "bin" / tool, f'#!/bin/bash\nexec {shutil.which(tool)} "$@"\n')
    return folder


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def install(checkout, *arguments, **variables):
    environment = {"PATH": str(checkout / "bin"), "SCALEBENCH_HOROVOD": "no", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["/bin/bash", str(checkout / "scripts/install.sh"), *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    log = checkout / "pip.log"
    return done.returncode, log.read_text().splitlines() if log.exists() else [], done.stdout + done.stderr


@pytest.mark.parametrize(("smi", "variables", "index", "tensorflow"), [
    ("580.65.06, 9.0", {}, CU130, "tensorflow-cpu==2.21.0"),
    ("535.183.01, 8.0", {}, CU126, "tensorflow[and-cuda]==2.21.0"),
    ("580.65.06, 7.0", {}, CU126, "tensorflow[and-cuda]==2.21.0"),
    (None, {"SCALEBENCH_GPU": "yes"}, CU130, "tensorflow-cpu==2.21.0"),
    (None, {"SCALEBENCH_TORCH_INDEX": "https://mirror/cu126"}, "--index-url https://mirror/cu126", "[and-cuda]"),
    ("580.65.06, 9.0", {"SCALEBENCH_GPU": "no"}, "--no-deps --no-index", "tensorflow-cpu==2.21.0"),
    (None, {}, "--no-deps --no-index", "tensorflow-cpu==2.21.0"),
    ("No devices were found", {}, "--no-deps --no-index", "tensorflow-cpu==2.21.0"),
    ("580.65.06, [N/A]", {}, CU130, "tensorflow-cpu==2.21.0"),
    ("590.1, 12.1\n590.1, 6.1", {}, CU126, "tensorflow[and-cuda]==2.21.0"),
])  # fmt: skip
def test_the_builds_fit_the_machine(checkout, smi, variables, index, tensorflow):
    if smi is not None:
        put(checkout / "bin/nvidia-smi", f"#!/bin/bash\necho '{smi}'\n")
    status, calls, output = install(checkout, **variables)
    assert (status, calls[0]) == (0, f"-m pip install --quiet {index} torch==2.13.0")
    assert len(calls) == 2 and tensorflow in calls[1] and "--editable .[torch,dev]" in calls[1]
    assert (APART in output) == (index == CU130)
    assert install(checkout, **variables) == (0, calls, "")


def test_a_wrong_choice_is_refused_in_one_line(checkout):
    assert install(checkout, "--light", SCALEBENCH_GPU="si") == (2, [], "SCALEBENCH_GPU=si should be yes or no\n")


DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
APPTAINER = (ROOT / "docker/torch.def").read_text()
COMMANDS = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")


def test_images_use_what_exists():
    """The first one unless a build argument chooses the other, and nvcc of its major version."""
    for image in (DOCKERFILE, APPTAINER):
        (default,) = re.findall(r"^(?:ARG TORCH_INDEX| +torch_index)=(\S+)$", image, re.MULTILINE)
        other = re.findall(r"--build-arg (?:TORCH_INDEX|torch_index)=([^\s,]+\w)", image)[0]
        assert [default, other] == [words.split()[1] for words in (CU130, CU126)]
    compilers = re.findall(r"CUDA_IMAGE=nvidia/cuda:(\d+)\.\d+\.\d+-devel-", DOCKERFILE)
    assert sorted(compilers) == ["12", "13"]
    stages = re.findall(r"^FROM (\S+) AS (\w+)$", COMMANDS, re.MULTILINE)
    assert {name for _, name in stages} == {"source", "torch", "tensorflow", "horovod"}
    assert ("${CUDA_IMAGE}", "horovod") in stages
    script = (ROOT / "scripts/install.sh").read_text()
    files = [path for path in (ROOT / "scalebench").rglob("*") if path.suffix in (".py", ".sh")]
    code = script + "".join(path.read_text() for path in files)
    for text in (COMMANDS, APPTAINER):
        assert all(name in code for name in re.findall(r"\b(?:SCALEBENCH|HOROVOD)_\w+(?==)", text))
        assert all(f"= {option} ]" in script for option in re.findall(r"scripts/install\.sh (--\w+)", text))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\.\[(\w+)\]", COMMANDS)) == {"tensorflow_cuda"} <= extras.keys()
    copied = re.findall(r"^ +(\S+) /opt/scalebench/$", APPTAINER, re.MULTILINE)
    assert all((ROOT / name).exists() for name in copied)
    needs = {"LICENSE", "README.md", "conf", "constraints.txt", "pyproject.toml", "scalebench", "scripts", "plugins"}
    assert set(copied) == needs
