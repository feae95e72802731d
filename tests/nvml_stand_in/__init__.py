"""A stand-in for NVIDIA's libnvidia-ml.so.1, built from nvml.c: the real pynvml talks to it through ctypes.

It answers from a table, of those in `tables` or one of the same form:

- `gpus`: how many; `source`: where the values are from; `topology`: what `nvidia-smi topo -m` prints there
- `rows`: a call of pynvml without its handle (`nvmlDeviceGetClockInfo 1`; another GPU is `gpu3`) -> a cell for each
  GPU, or one cell for all. A cell is a value, `{"error": code}`, `{"per_s": rate}` of a counter, or null (not asked).
  A call without a row is not supported.

`settings` of the functions here change the table, for all GPUs, or with _0 or _1 at the end for one of them:

- PROCESSES_0="1234 5678": pids of compute processes
- REASONS=mask: what holds the clocks back (0x4 power cap, 0x20 too warm by software, 0x40 by hardware)
- SM_CLOCK, MEM_CLOCK, SM_CLOCK_MAX (MHz), TEMPERATURE (degrees C), MIG=1
- NVLINKS=n between GPU 0 and GPU 1 (0: none), ANCESTOR=level (20: PXB), P2P=status (0: ok)

and some are events:

- LOST_AFTER=n: GPU 1 is lost after so many questions about it since nvmlInit; LOST_FILE=path: as soon as this exists
- INIT=code: what nvmlInit returns (9: no driver)
"""

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")
TABLES = Path(__file__).with_name("tables")
LIBRARY = "libnvidia-ml.so.1"  # the name that pynvml asks the dynamic loader for
TWO_GPUS = "two_gpus"
UUIDS = [f"GPU-{i}0000000-0000-4000-8000-00000000000{i}" for i in range(2)]
NOT_SUPPORTED = 3
FIELDS_OF_32_BITS = {"nvmlDeviceGetFieldValues 185", "nvmlDeviceGetFieldValues 186"}
EVENTS = {"LOST_AFTER", "LOST_FILE", "INIT"}
ROWS_OF_SETTINGS = {
    "REASONS": ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    "SM_CLOCK": ("nvmlDeviceGetClockInfo 1",),
    "MEM_CLOCK": ("nvmlDeviceGetClockInfo 2",),
    "SM_CLOCK_MAX": ("nvmlDeviceGetMaxClockInfo 1",),
    "TEMPERATURE": ("nvmlDeviceGetTemperature 0",),
    "MIG": ("nvmlDeviceGetMigMode",),
    "PROCESSES": ("nvmlDeviceGetComputeRunningProcesses",),
    "ANCESTOR": ("nvmlDeviceGetTopologyCommonAncestor gpu0", "nvmlDeviceGetTopologyCommonAncestor gpu1"),
    "P2P": tuple(f"nvmlDeviceGetP2PStatus gpu{gpu} {kind}" for gpu in range(2) for kind in range(4)),
}


def build(folder):
    """Compile the library into `folder` and give its path; the test is skipped where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc)")
    library = folder / LIBRARY
    options = "-O1 -Wall -Wextra -Wno-unused-parameter -Werror -shared -fPIC -o".split()
    subprocess.run([compiler, *options, str(library), str(SOURCE)], check=True, timeout=120)
    return library


def read_table(table):
    """Read one of the tables by its name, or a file."""
    path = Path(table)
    content = json.loads((path if path.suffix else TABLES / f"{table}.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def parse_matrix(text):
    """Read the rows of GPUs from what `nvidia-smi topo -m` prints, without network cards and affinities."""
    rows = [line.split() for line in text.splitlines() if re.match(r"GPU\d+\s.*\bX\b", line)]
    # SOC was the name of SYS before driver 384.
    return [[cell.replace("SOC", "SYS") for cell in row[1 : len(rows) + 1]] for row in rows]


def variables(library, table=TWO_GPUS, changes=None, **settings):
    """What a process needs in its environment, before it starts, to find this library and this table, with rows
    replaced by `changes`."""
    content = read_table(table)
    events = {name: value for name, value in settings.items() if name in EVENTS}
    for name, value in settings.items():
        if name not in EVENTS:
            _change(content, name, value)
    text = _format_lines(content["gpus"], content["rows"] | (changes or {}))
    file = library.with_name(f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.table")
    file.write_text(text, encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(library.parent), os.environ.get("LD_LIBRARY_PATH")]))
    return {
        "LD_LIBRARY_PATH": path,
        "NVML_STAND_IN_TABLE": str(file),
        **{f"NVML_STAND_IN_{name}": str(value) for name, value in events.items()},
    }


def put_in(monkeypatch, library, table=TWO_GPUS, changes=None, **settings):
    """Have pynvml in this process, and in all that it starts, talk to `library`, until the end of the test."""
    import pynvml

    # The dynamic loader has read LD_LIBRARY_PATH when this process began, so that pynvml would not find it here.
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in variables(library, table, changes, **settings).items():
        monkeypatch.setenv(name, value)


def _change(table, setting, value):
    name, _, gpu = setting.rpartition("_") if re.search(r"_\d$", setting) else (setting, "", "")
    if name == "NVLINKS":
        table["rows"] |= _direct_links(table["rows"]["nvmlDeviceGetPciInfo"], int(str(value)))
        return
    cell = {"MIG": [value, value], "PROCESSES": [int(pid) for pid in str(value).split()]}.get(name, value)
    for row in ROWS_OF_SETTINGS[name]:
        cells = _spread(table["rows"][row], table["gpus"])
        table["rows"][row] = [cell if gpu in ("", str(index)) else old for index, old in enumerate(cells)]


def _direct_links(addresses, count):
    """Make the rows of `count` NVLinks between two GPUs, with 1 GiB/s on all of them together."""
    counters = {f"nvmlDeviceGetFieldValues {field}": [{"per_s": 2**20}] for field in (138, 139) if count}
    links = {
        name: cells
        for link in range(count)
        for name, cells in (
            (f"nvmlDeviceGetNvLinkState {link}", [1]),
            (f"nvmlDeviceGetNvLinkRemoteDeviceType {link}", [0]),
            (f"nvmlDeviceGetNvLinkRemotePciInfo {link}", addresses[::-1]),
        )
    }
    return counters | links


def _spread(cells, gpus):
    return cells * gpus if len(cells) == 1 else cells


def _format_lines(gpus, rows):
    lines = [f"nvmlDeviceGetCount\t0\t0\t{gpus}"]
    for call, cells in rows.items():
        for gpu, cell in enumerate(_spread(cells, gpus)):
            if cell is not None:
                code = cell["error"] if isinstance(cell, dict) and "error" in cell else 0
                values = "" if code else _format_cell(cell) + (" 1" if call in FIELDS_OF_32_BITS else "")
                lines.append(f"{call}\t{gpu}\t{code}\t{values}")
    return "\n".join(lines) + "\n"


def _format_cell(cell):
    if isinstance(cell, dict):
        if "per_s" in cell:
            return f"@{cell['per_s']}"
        return str(cell["busId"]) if "busId" in cell else " ".join(map(str, cell.values()))
    return " ".join(map(str, cell)) if isinstance(cell, list) else str(cell)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("nvml"))
