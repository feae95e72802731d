"""The container files agree with the scripts and packages that they use. Building them needs a registry of images."""

import re
import tomllib

import pytest

from scalebench.core.machine.cuda_builds import TORCH_BUILDS
from tests.conftest import ROOT

pytestmark = pytest.mark.gpu
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
APPTAINER = (ROOT / "docker/torch.def").read_text()
COMMANDS = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")


def test_each_framework_has_a_target():
    stages = re.findall(r"^FROM (\S+) AS (\w+)$", COMMANDS, re.MULTILINE)
    assert {name for _, name in stages} == {"source", "torch", "tensorflow", "horovod"}
    assert ("${CUDA_IMAGE}", "horovod") in stages
    first_words = {line.split()[0] for line in COMMANDS.splitlines() if line.strip()}
    assert first_words == {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN"}


@pytest.mark.parametrize(("index", "image"), [(0, DOCKERFILE), (1, DOCKERFILE), (0, APPTAINER), (1, APPTAINER)])
def test_pytorch_is_of_a_build_that_the_scripts_choose(index, image):
    """The first one unless a build argument chooses the other, and nvcc of its major version."""
    build = TORCH_BUILDS[index]
    (default,) = re.findall(r"^(?:ARG TORCH_INDEX| +torch_index)=(\S+)$", image, re.MULTILINE)
    named = default if index == 0 else re.findall(r"--build-arg (?:TORCH_INDEX|torch_index)=([^\s,]+\w)", image)[0]
    assert named == build.index
    if image == DOCKERFILE:
        compilers = re.findall(r"CUDA_IMAGE=nvidia/cuda:(\d+)\.\d+\.\d+-devel-", image)
        assert sorted(compilers)[::-1][index] == build.cuda.partition(".")[0]


def test_images_use_variables_options_and_extras_that_exist():
    script = (ROOT / "scripts/install.sh").read_text()
    code = script + "".join(
        path.read_text() for path in (ROOT / "scalebench").rglob("*") if path.suffix in (".py", ".sh")
    )
    for text in (COMMANDS, APPTAINER):
        assert all(name in code for name in re.findall(r"\b(?:SCALEBENCH|HOROVOD)_\w+(?==)", text))
        assert all(f"= {option} ]" in script for option in re.findall(r"scripts/install\.sh (--\w+)", text))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\.\[(\w+)\]", COMMANDS)) == {"tensorflow_cuda"} <= extras.keys()


def test_the_apptainer_image_has_all_that_is_installed():
    copied = re.findall(r"^ +(\S+) /opt/scalebench/$", APPTAINER, re.MULTILINE)
    assert all((ROOT / name).exists() for name in copied)
    needs = {"LICENSE", "README.md", "conf", "constraints.txt", "pyproject.toml", "scalebench", "scripts", "plugins"}
    assert set(copied) == needs
