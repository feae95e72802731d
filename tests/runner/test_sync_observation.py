"""The launch that observes how ranks synchronize: when there is one, what the run takes from it, and its failures."""

import pytest

from scalebench.config.resolve import resolve
from scalebench.core.result import TimelineRecord
from scalebench.core.run_folder import RUN_ID_VARIABLE, rank_record_path, try_folders, write_rank_file
from scalebench.core.spec import StrategySpec, SyncObservation
from scalebench.runner import sync_observation
from scalebench.runner.collect import RunOutcome
from tests.builders.runs import rank, simulated_config, simulated_spec


def with_options(**options):
    spec = resolve(simulated_config(gpus=2))
    spec.config.strategy = StrategySpec("horovod_gloo", framework="torch", launcher="local", options=options)
    return spec


@pytest.mark.parametrize(
    ("options", "is_needed"),
    [({}, False), ({"cycle_time_ms": 1.0, "fusion_threshold_mb": 1.0}, False), ({"cycle_time_ms": 2.0}, True)],
)
def test_only_a_cycle_time_needs_it(options, is_needed):
    assert sync_observation.needs_own_launch(with_options(**options)) == is_needed
    assert not sync_observation.needs_own_launch(simulated_spec(2))


def test_the_run_takes_what_was_observed(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN_ID_VARIABLE, "id")

    def attempt(spec, folder, _):
        assert spec.observes_sync
        timeline = TimelineRecord(None, None, 5, 0.1, 0.2, 0.0, 0.4)
        record = rank(backend_used="gloo", message_bytes=[8, 4], timeline=timeline)
        write_rank_file(rank_record_path(folder, 0), record)
        return RunOutcome("ok", None)

    spec, outcome = sync_observation.observe(with_options(), tmp_path, "id", attempt, lambda progress: None)
    phases_s = {"negotiate_s": 0.1, "queue_s": 0.2, "memcpy_s": 0.0, "allreduce_s": 0.4}
    assert outcome.status == "ok" and not spec.observes_sync
    assert spec.sync_observation == SyncObservation("gloo", [8, 4], 5, phases_s)
    assert [path.name for path in try_folders(tmp_path)] == ["try_sync"]


def test_a_failure_names_the_launch_and_its_log(tmp_path):
    failed = RunOutcome("failed", "rank 1 died", rank=1)
    spec, outcome = sync_observation.observe(with_options(), tmp_path, "id", lambda *_: failed, lambda progress: None)
    assert spec.sync_observation is None
    assert (outcome.status, outcome.rank, outcome.log) == ("failed", None, "try_sync/rank1.log")
    assert outcome.reason == "while its synchronization was observed: rank 1 died"
