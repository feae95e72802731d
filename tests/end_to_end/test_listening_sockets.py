"""What listens during a run on one machine: the loopback, a network of the run's own, or a flag in its row says so.

Of each strategy's ranks its contract asks that.
"""

import pytest

from scalebench.cli import hydra_app
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from tests.builders.listeners import is_open, watch_listeners

WORDS = (
    "hardware=cpu gpus=2 model=materials_cnn dataset.size=400 measure=quick measure.min_s=0.3 measure.max_s=1 "
    "measure.warmup_max_s=1 measure.probe_s=0.3"
).split()


def listeners_of_run(folder, *words):
    """Run in this process; return all that listened below it meanwhile, and the flags."""
    with watch_listeners() as listeners:
        assert hydra_app.main([*WORDS, *words, f"hydra.run.dir={folder}"]) == 0
    result = read_result(folder / RESULT_FILE)
    assert result.status == "ok", result.reason
    return set(listeners.values()), result.flags


@pytest.mark.real
def test_nothing_listens_beyond_the_loopback_of_the_run(tmp_path):
    listeners, flags = listeners_of_run(tmp_path / "run", "strategy=simulated")
    assert "open_port" not in flags and not [listener for listener in listeners if is_open(listener)]


@pytest.mark.slow
@pytest.mark.real
def test_what_listens_for_everybody_is_seen_and_flagged(tmp_path):
    """With the user's consent."""
    words = ["strategy=multiworker_ring", "strategy.options.open_port=true", "measure.probes=false"]
    listeners, flags = listeners_of_run(tmp_path / "run", *words)
    assert "open_port" in flags and any(is_open(listener) for listener in listeners)
