"""The folders of a sweep's runs: what earlier sweeps have left."""

import dataclasses

from scalebench.core.json_files import write_json
from scalebench.core.result import write_result
from scalebench.sweeps import folders
from tests.builders.runs import record


def leave(folder, day, fingerprint="f" * 16, **changes):
    folder.mkdir(parents=True)
    started_at = f"2026-01-0{day}T00:00:00.000+00:00"
    write_result(record(started_at=started_at, fingerprint=fingerprint, **changes), folder)
    return folder


def test_earlier_results_are_the_latest_good_ones(tmp_path):
    """But for a run of the sweep itself, which is kept; files that cannot be read are skipped."""
    own = leave(tmp_path / "a" / "0", 2)
    latest = leave(tmp_path / "b" / "0", 3)
    leave(tmp_path / "c" / "0", 1)
    leave(tmp_path / "d" / "0", 4, status="failed")
    other = leave(tmp_path / "d" / "1", 1, "0" * 16)
    (leave(tmp_path / "cut", 5) / "result.json").write_text((own / "result.json").read_text()[:500])
    (tmp_path / "later").mkdir()
    write_json(tmp_path / "later" / "result.json", dataclasses.asdict(record()) | {"schema_version": 99})
    found = {("f" * 16, 0): latest, ("0" * 16, 0): other}
    assert folders.find_earlier_results(tmp_path / "new") == found
    assert folders.find_earlier_results(tmp_path / "a") == found | {("f" * 16, 0): own}
    assert folders.find_earlier_results(tmp_path / "not_there" / "new") == {}
