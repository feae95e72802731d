"""`scalebench doctor --record FILE`: a table of all that NVML answers here, for people who have no such GPUs.

The table has the calls that scalebench makes: a row for each call of pynvml without its handle, such as
`nvmlDeviceGetClockInfo 1`, with a cell for each GPU, or one cell where all are equal. A cell is the value, the return
code as `{"error": 3}`, or null where the call was not made for that GPU. It has no serial numbers, UUIDs are
replaced by a hash, and processes are left out.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalebench import __version__
from scalebench.core.errors import InputError
from scalebench.core.json_files import write_text
from scalebench.core.machine.gpus import detect_gpus
from scalebench.measure.monitor.gpu_sampler import GpuSampler, read_field
from scalebench.measure.monitor.time_series import SampleRows

UNRECORDED = {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount"}
Cell = Any  # JSON


class NvmlRecorder:
    """Stands in pynvml's place, and keeps each value and each return code by call and GPU."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus: dict[int | None, int] = {}  # address of a handle -> index
        self.cells: dict[str, dict[int, Cell]] = {}  # call -> index of the GPU, or 0 for the system -> cell

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._nvml, name)

        def call(*args: Any) -> Any:
            try:
                value = function(*args)
            except self._nvml.NVMLError as error:
                self._keep(name, args, {"error": error.value})
                raise
            if name == "nvmlDeviceGetHandleByIndex":
                self._gpus[_address(value)] = args[0]
            elif name == "nvmlDeviceGetFieldValues":
                for (field, _), result in zip(args[1], value, strict=True):
                    cell = {"error": result.nvmlReturn} if result.nvmlReturn else read_field(result)
                    self._keep(name, (args[0], field), cell)
            elif name not in UNRECORDED:
                self._keep(name, args, _make_cell(name, value))
            return value

        return call

    def _keep(self, name: str, args: tuple[Any, ...], cell: Cell) -> None:
        # A list holds the fields of one query, which NVML refused as a whole.
        handles = [self._gpus[_address(arg)] for arg in args if not isinstance(arg, (int, list))]
        others = [f"gpu{index}" for index in handles[1:]]
        numbers = [str(arg) for arg in args if isinstance(arg, int)]
        self.cells.setdefault(" ".join([name, *others, *numbers]), {})[handles[0] if handles else 0] = cell


def record_nvml(path: Path) -> int:
    """Write the table of this machine to `path` and return the number of its GPUs.

    Raises InputError where NVML does not answer or shows no GPU, and where the file cannot be written.
    """
    try:
        import pynvml
    except ImportError as error:
        raise InputError(f"nothing to record: {error}; run `pip install nvidia-ml-py`") from None
    recorder = NvmlRecorder(pynvml)
    sampler = GpuSampler(SampleRows(), recorder)
    gpus = detect_gpus(recorder).gpus
    if not gpus:
        reason = sampler.missing or "it shows no GPU"
        raise InputError(f"nothing to record: NVML does not answer here ({reason}); run this where nvidia-smi does")
    sampler.sample()
    for _ in gpus:
        sampler.sample_slow()
    try:
        write_text(path, _format_table(len(gpus), _list_rows(recorder.cells, len(gpus))))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; name another file") from None
    return len(gpus)


def _format_table(gpus: int, rows: dict[str, list[Cell]]) -> str:
    """Return a table as JSON with a line for each row."""
    head = {"source": [f"scalebench {__version__} doctor --record"], "gpus": gpus}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    body = ",\n".join(f"  {json.dumps(call)}: {json.dumps(cells)}" for call, cells in rows.items())
    return "\n".join(["{", *lines, ' "rows": {', body, " }", "}", ""])


def _list_rows(cells: dict[str, dict[int, Cell]], gpus: int) -> dict[str, list[Cell]]:
    rows = {}
    for call, by_gpu in cells.items():
        row = [by_gpu.get(index) for index in range(gpus)]
        is_common = call.startswith("nvmlSystem") or all(cell == row[0] for cell in row)
        rows[call] = row[:1] if is_common else row
    return rows


def _make_cell(name: str, value: Any) -> Cell:
    """Return a value of pynvml as JSON: structures by field, bytes of older versions as text, and no UUID."""
    if name == "nvmlDeviceGetUUID":
        digits = hashlib.sha256(str(value).encode()).hexdigest()
        return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
    if isinstance(value, ctypes.Structure):
        return {field[0]: _make_cell(name, getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(value) if isinstance(value, tuple) else value


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
