"""The hand-over between a user's program and the session that measures it, without a process."""

import threading

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.strategies.base import BatchReplay
from scalebench.strategies.script import program
from tests.builders.runs import wait_until


def test_a_program_may_be_at_its_first_step_before_the_session_waits_for_it(tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(program, "listeners", listeners := [])
    script = program.Script(resolve(compose_config(["hardware=cpu", "gpus=1", "script=train.py"])), 0)
    (end_step,) = listeners
    users = threading.Thread(target=end_step, args=(8,), daemon=True)
    users.start()
    wait_until(lambda: not script._answers.empty())
    session = threading.Thread(target=script.setup, daemon=True)
    session.start()
    session.join(20.0)
    assert not session.is_alive() and users.is_alive()
    session = threading.Thread(target=script.train, args=(BatchReplay(0, 1),), daemon=True)
    session.start()
    users.join(20.0)  # its step is over, and the next one is the loop's
    assert not users.is_alive()
    users = threading.Thread(target=end_step, args=(8,), daemon=True)
    users.start()
    session.join(20.0)
    assert not session.is_alive()
    script._loops.put(BatchReplay(0, 1))  # let go of the program, which stands still at its last step
    users.join(20.0)
    assert not users.is_alive() and script.steps == 2
