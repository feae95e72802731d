"""A stand-in for NVIDIA's libnvidia-ml.so.1, built from nvml.c: the real pynvml talks to it through ctypes.

Two GPUs with a topology, clocks, power and so on; GPU 1 has no energy counter. `settings` of the functions here become
variables NVML_STAND_IN_<NAME>, or with _0 or _1 at the end for one GPU alone:

- LOST_AFTER=n: GPU 1 is lost after so many questions about it since nvmlInit; LOST_FILE=path: as soon as this exists
- PROCESSES_0="1234 5678": pids of compute processes
- REASONS=mask: what holds the clocks back (0x4 power cap, 0x20 too warm by software, 0x40 by hardware)
- SM_CLOCK, MEM_CLOCK, SM_CLOCK_MAX (MHz), TEMPERATURE (degrees C), MIG=1
- NVLINKS=n between the two (0: none), ANCESTOR=level (20: PXB), P2P=status (0: ok), INIT=code (9: no driver)
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"  # the name that pynvml asks the dynamic loader for
UUIDS = [f"GPU-{i}0000000-0000-4000-8000-00000000000{i}" for i in range(2)]


def build(folder: Path) -> Path:
    """Compile the library into `folder` and give its path; the test is skipped where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc)")
    library = folder / LIBRARY
    options = "-O1 -Wall -Wextra -Wno-unused-parameter -Werror -shared -fPIC -o".split()
    subprocess.run([compiler, *options, str(library), str(SOURCE)], check=True, timeout=120)
    return library


def variables(library: Path, **settings: object) -> dict[str, str]:
    """What a process needs in its environment, before it starts, to find this library and these settings."""
    path = os.pathsep.join(filter(None, [str(library.parent), os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": path, **{f"NVML_STAND_IN_{name}": str(value) for name, value in settings.items()}}


def put_in(monkeypatch: pytest.MonkeyPatch, library: Path, **settings: object) -> None:
    """Have pynvml in this process, and in all that it starts, talk to `library`, until the end of the test."""
    import pynvml

    # The dynamic loader has read LD_LIBRARY_PATH when this process began, so that pynvml would not find it here.
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in variables(library, **settings).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, built once."""
    return build(tmp_path_factory.mktemp("nvml"))
