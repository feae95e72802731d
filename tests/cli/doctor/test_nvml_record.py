"""`scalebench doctor --record`: the table that it writes, and that the stand-in answers from this table as before."""

import json
from pathlib import Path

import pytest

from scalebench.__main__ import main
from scalebench.core.machine import gpus
from tests.nvml_stand_in import TABLES, UUIDS, put_in, read_table

pytestmark = pytest.mark.gpu


def record(path, capsys):
    assert main(["doctor", "--record", str(path)]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("table", sorted(path.stem for path in TABLES.glob("*.json")))
def test_the_stand_in_answers_from_a_recorded_table_as_before(table, nvml_library, tmp_path, monkeypatch, capsys):
    put_in(monkeypatch, nvml_library, table)
    first, second, before = tmp_path / "first.json", tmp_path / "second.json", gpus.detect_gpus()
    count = len(before.gpus)
    assert record(first, capsys) == [f"what NVML answers of {count} GPUs is in {first}"]
    put_in(monkeypatch, nvml_library, first)
    record(second, capsys)
    after = gpus.detect_gpus()
    assert (after.topology, after.peer_access, len(after.gpus)) == (before.topology, before.peer_access, count)
    for gpu, old in zip(after.gpus, before.gpus, strict=True):
        assert vars(gpu) | {"uuid": None} == vars(old) | {"uuid": None}
    rows, again = read_table(first)["rows"], read_table(second)["rows"]
    assert rows.keys() == again.keys()
    assert {call for call in rows if rows[call] != again[call]} <= {"nvmlDeviceGetUUID"}  # a hash of a hash


def test_a_table_holds_values_and_return_codes_but_nothing_private(nvml_library, tmp_path, monkeypatch, capsys):
    put_in(monkeypatch, nvml_library, changes={"nvmlDeviceGetFieldValues 186": [90000]}, PROCESSES_0="4711", NVLINKS=2)
    record(tmp_path / "table.json", capsys)
    text = (tmp_path / "table.json").read_text()
    assert "4711" not in text and not any(uuid in text for uuid in UUIDS)
    rows = json.loads(text)["rows"]
    hashes = rows["nvmlDeviceGetUUID"]
    assert [len(each) for each in hashes] == [40, 40] and len(set(hashes)) == 2
    assert rows["nvmlSystemGetDriverVersion"] == ["550.54.15"]
    assert rows["nvmlDeviceGetClockInfo 1"] == [1380]
    assert rows["nvmlDeviceGetMemoryInfo"] == [{"total": 40 * 2**30, "free": 39 * 2**30, "used": 2**30}]
    assert rows["nvmlDeviceGetTopologyCommonAncestor gpu1"] == [20, None]
    assert rows["nvmlDeviceGetNvLinkRemotePciInfo 1"][0]["busId"] == "00000000:1A:00.0"
    assert (rows["nvmlDeviceGetNvLinkState 2"], rows["nvmlDeviceGetFieldValues 186"]) == ([{"error": 3}], [90000])
    assert rows["nvmlDeviceGetFieldValues 138"][0] > 0
    assert rows["nvmlDeviceGetTotalEnergyConsumption"][1] == {"error": 3}
    assert rows["nvmlDeviceGetPcieThroughput 0"] == [1000]
    assert not any("Serial" in call or "Process" in call for call in rows)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (["table.json"], {"INIT": 9}, "NVML does not answer here (NVMLError_DriverNotLoaded: Driver Not Loaded)"),
        (["table.json", "hardware=alpha"], {}, "goes without KEY=VALUE"),
        (["no/such/table.json"], {}, "cannot write no/such/table.json: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(arguments, settings, message, nvml_library, monkeypatch, capsys):
    put_in(monkeypatch, nvml_library, **settings)
    assert main(["doctor", "--record", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and message in said.err
    assert not Path("table.json").exists()
