"""Agents of two nodes, which are both this machine here: what they start, and what becomes of a run whose rank, agent,
program or connection is lost."""

import contextlib
import io
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from scalebench.config.resolve import resolve
from scalebench.core import process, run_folder
from scalebench.core.process import StartError
from scalebench.core.spec import HardwareSpec, write_spec
from scalebench.runner import launchers, node_agent
from scalebench.runner.launchers import link, supervise
from scalebench.runner.launchers import link as wire
from scalebench.runner.launchers.agents import AgentRanks
from scalebench.runner.launchers.link import Start
from scalebench.runner.launchers.supervise import STACK_SIGNAL, LaunchRequest
from scalebench.runner.parent import run_spec
from tests.builders.launching import AgentUser
from tests.builders.runs import find_run_processes, find_running, simulated_config, wait_until

pytestmark = pytest.mark.cold
HOSTS = ["localhost:1", "127.0.0.1:1"]
SLEEP = "(folder / f'up{rank}').write_text(str(os.getpid())); time.sleep(600)"
AGENT = [sys.executable, "-m", "scalebench.runner.node_agent"]
FIRST, SECOND = "localhost", "127.0.0.1"


def spec_of(hosts=HOSTS, gpus=2, **measure):
    config = simulated_config(gpus=gpus, measure=measure)
    config.strategy.launcher, config.hardware.hosts = "by_hand", hosts
    return resolve(config)


class Hands:
    """Starts the agents that the launcher `by_hand` asks for, in the order of the nodes."""

    def __init__(self, folder, willing=(FIRST, SECOND)):
        self.folder, self.willing, self.agents, self.ended = folder, willing, {}, None
        self.printed = io.StringIO()

    def launch(self, module, during=lambda hands: None, spec=None, **options):
        """Launch the ranks with `module` as their worker, and call `during` when all agents have been started."""
        spec = spec or spec_of()
        write_spec(spec, self.folder)
        thread = threading.Thread(target=self._run, args=(during,))
        thread.start()
        try:
            with contextlib.redirect_stdout(self.printed):
                self.ended = launchers.launch(spec, self.folder, "an id", module=module, **options)
        finally:
            self.ended = self.ended or "failed"
            thread.join(60)
            self.statuses = {name: each.wait(20) for name, each in self.agents.items()}
        return self.ended

    def _run(self, during):
        wait_until(lambda: self.lines() or self.ended is not None)
        for name, words in self.lines().items():
            if name in self.willing:
                self.agents[name] = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        during(self)

    def lines(self):
        """The command for each node, as the program prints it."""
        text = self.printed.getvalue()
        found = [line.partition(": ") for line in text.splitlines() if "node_agent" in line]
        return {name: shlex.split(line) for name, _, line in found} if len(found) == 2 else {}

    def started(self):
        """Wait until both ranks have started, and return their process ids."""
        paths = [self.folder / f"up{rank}" for rank in range(2)]
        wait_until(lambda: all(path.exists() and path.read_text() for path in paths))
        return [int(path.read_text()) for path in paths]


@pytest.fixture
def hands(tmp_path, monkeypatch):
    hands = Hands(tmp_path)
    monkeypatch.setattr(supervise, "FOLLOW_LIMIT_S", 0.5)
    yield hands
    for each in hands.agents.values():
        each.kill()
        each.communicate()


def test_ranks_have_the_environment_of_torchrun_and_nothing_is_left(hands, program, monkeypatch):
    """Where the program is, also where the agents are elsewhere; and without the key."""
    monkeypatch.chdir(hands.folder)
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR OMP_NUM_THREADS SCALEBENCH_RUN_ID"
    module = program(
        f"print(*(os.environ.get(n) for n in '{names} {process.KEY_VARIABLE}'.split()), os.getcwd() == str(folder))"
    )
    ended = hands.launch(module)
    assert (ended.exit_codes, ended.died_first, ended.timeout, ended.broken) == ([0, 0], [], None, None)
    threads = spec_of().places[0].threads
    for rank in range(2):
        log = (hands.folder / run_folder.rank_log_name(rank)).read_text()
        assert log == f"{rank} 0 2 1 {rank} 127.0.0.1 {threads} an id None True\n"
    assert hands.statuses == {FIRST: 0, SECOND: 0} and not find_running(ended.pids)
    assert not (hands.folder / run_folder.KEY_FILE).exists()


def test_a_node_that_does_not_see_the_folder_of_the_run_sends_what_ranks_leave(hands, program, monkeypatch):
    """Records when they are written, since an agent may be lost; logs in parts; what is no file of a run stays there.
    The samples are made on that node."""
    monkeypatch.setattr(wire, "Start", lambda folder, *rest: Start(f"{folder}/absent", *rest))
    monkeypatch.setenv("SCALEBENCH_CACHE", str(hands.folder / "cache"))
    module = program(
        """
        from scalebench.core.spec import read_spec
        from scalebench.core.json_files import write_json
        write_json(folder / f"rank{rank}.json", {"places": len(read_spec(folder).places)})
        (folder / f"trace{rank}.json.gz").write_bytes(bytes(9_000_000))
        (folder / "evil.txt").touch()
        print("x" * 5_000_000, folder)
        """
    )
    ended = hands.launch(module)
    assert (ended.exit_codes, ended.broken) == ([0, 0], None)
    for rank in range(2):
        assert json.loads((hands.folder / f"rank{rank}.json").read_text()) == {"places": 2}
        assert (hands.folder / f"trace{rank}.json.gz").read_bytes() == bytes(9_000_000)
        log = (hands.folder / run_folder.rank_log_name(rank)).read_text()
        assert len(log) == wire.PART_BYTES and not os.path.exists(log.split()[-1])
    assert not (hands.folder / "evil.txt").exists() and os.listdir(hands.folder / "cache")


def test_a_record_that_appears_late_in_a_shared_folder_comes_with_the_end_of_its_rank(hands, program, monkeypatch):
    """As over NFS, where names that others write may be unknown for half a minute. Logs are read there."""
    parts, register = [], AgentRanks._register

    def note(group, agent, host, message):
        parts.extend([message.name] if isinstance(message, wire.Part) else [])
        register(group, agent, host, message)

    monkeypatch.setattr(AgentRanks, "_register", note)
    hands.launch(program("(folder / f'rank{rank}.json').write_text('{}')"))
    assert {"rank0.json", "rank1.json"} == {*parts}
    assert (hands.folder / "rank0.json").read_text() == "{}"


def test_a_part_of_a_file_that_no_run_has_is_not_written(group, tmp_path):
    for name in ("../rank0.log", "spec.json", "rank0.log.sh", "rank0.log"):
        group._register(group.agents[0], "a host", wire.Part(name, True, b"x"))
    assert os.listdir(tmp_path) == ["rank0.log"] and not (tmp_path.parent / "rank0.log").exists()


def test_the_line_for_each_host_has_no_key(hands, program):
    seen = []

    def during(hands):
        path = hands.folder / run_folder.KEY_FILE
        seen.append((oct(path.stat().st_mode)[-3:], path.read_text()))

    hands.launch(program("pass"), during)
    ((mode, key),) = seen
    assert mode == "600" and len(key) == 64 and key not in hands.printed.getvalue()
    head, first, second = hands.printed.getvalue().splitlines()
    assert head == f"simulated gpus=2 waits 120 s for its agents; start on each host, in {os.getcwd()}:"
    assert first.startswith(f"localhost: {sys.executable} ") and second.endswith(" --node 127.0.0.1")


def test_a_rank_that_terminates_itself_ends_the_run(hands, program):
    """Only its agent got SIGTERM from elsewhere if it was to end."""
    ended = hands.launch(program("if rank == 1:\n    os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(600)"))
    assert (ended.exit_codes, ended.died_first, ended.broken) == ([None, -15], [1], None)
    assert hands.statuses == {FIRST: 0, SECOND: 0} and not find_running(ended.pids)


def test_a_rank_that_was_killed_is_a_cause_though_others_are_seen_before_it(hands, program, monkeypatch):
    """They may have failed since they lost it."""
    monkeypatch.setattr(supervise, "FOLLOW_LIMIT_S", 60.0)
    text = """
        if rank == 0:
            sys.exit(1)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = hands.launch(program(text))
    assert (ended.exit_codes, ended.died_first) == ([1, -9], [0, 1])


def test_a_rank_that_hangs_leaves_its_stack_and_a_stopped_one_is_named(hands, program):
    text = f"import faulthandler\nfaulthandler.register({int(STACK_SIGNAL)}, sys.stderr)\n{SLEEP}"
    spec = spec_of(hang_s=5.0)
    ended = hands.launch(program(text), lambda hands: os.kill(hands.started()[1], signal.SIGSTOP), spec)
    assert (ended.timeout, ended.stopped) == ("no rank made progress for 5 s (measure.hang_s)", [1])
    for rank in range(2):
        assert "most recent call first" in (hands.folder / run_folder.rank_log_name(rank)).read_text()
    assert not find_running(ended.pids)


@pytest.mark.parametrize(("act", "broken"), [
    (lambda agent: agent.kill(), "127.0.0.1, with rank 1, was lost: the connection to its agent ended"),
    (lambda agent: agent.terminate(), "rank 1 was terminated on its own host; was its agent ended?"),
], ids=["killed", "ended by somebody"])  # fmt: skip
def test_an_agent_that_is_gone_is_a_lost_node(act, broken, hands, program):
    """The other ranks end within seconds, and no process is left."""
    begin_s = []

    def during(hands):
        hands.started()
        begin_s.append(time.monotonic())
        act(hands.agents[SECOND])

    module = program(f"from scalebench.runner.worker import end_with_parent\nend_with_parent()\n{SLEEP}")
    ended = hands.launch(module, during)
    assert ended.broken == broken and time.monotonic() - begin_s[0] < 10
    wait_until(lambda: not find_running(ended.pids), 5.0)


def test_a_rank_that_fails_since_it_lost_a_node_is_not_the_cause(hands, program):
    """It may be seen first."""
    text = f"""
        from scalebench.runner.worker import end_with_parent
        end_with_parent()
        if rank == 0:
            (folder / "up0").write_text(str(os.getpid()))
            while not (folder / "lost").exists():
                time.sleep(0.01)
            os.kill(int((folder / "lost").read_text()), signal.SIGKILL)
            sys.exit(1)
        {SLEEP}
    """

    def during(hands):
        hands.started()
        run_folder.write_json(hands.folder / "lost", hands.agents[SECOND].pid)

    assert hands.launch(program(text), during).broken.startswith("127.0.0.1, with rank 1, was lost")


def test_agents_that_do_not_come_are_a_failed_run(hands, tmp_path):
    """One that came is told so. Those that are started later find nobody."""
    hands.willing = (FIRST,)
    with pytest.raises(StartError) as caught:
        hands.launch("stand_in", spec=spec_of(timeout_s=4.0))
    assert str(caught.value) == "no agent came from node 127.0.0.1 within 4 s; start there what is printed above"
    late = subprocess.run(hands.lines()[SECOND], capture_output=True, text=True, timeout=60, check=False)
    assert late.returncode == 2
    assert late.stderr.endswith("agent.key cannot be read (No such file or directory); is its run over?\n")
    result = run_spec(spec_of(["a:1", "b:1"], timeout_s=0.2), tmp_path / "run")
    reason = "no agent came from node a, b within 0.2 s; start there what is printed above"
    assert (result.status, result.reason) == ("failed", f"the processes could not be started: {reason}")
    assert sorted(os.listdir(tmp_path / "run")) == ["result.json", "spec.json"]


def test_ctrl_c_while_agents_are_awaited(hands):
    hands.willing = ()
    timer = threading.Timer(0.5, process.cancelled.set)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            hands.launch("stand_in")
    finally:
        process.cancelled.clear()
    assert not (hands.folder / run_folder.KEY_FILE).exists()


# What an agent says before it starts a rank.
def refusal(address, *words, key=None, **variables):
    environment = {**os.environ, process.KEY_VARIABLE: key or "", **variables}
    if key is None:
        del environment[process.KEY_VARIABLE]
    done = subprocess.run([*AGENT, address, *words], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    return done.stderr.removeprefix("scalebench: ").rstrip()


@pytest.fixture
def group(tmp_path):
    group = AgentRanks(LaunchRequest(spec_of(), tmp_path, "an id"), [FIRST, SECOND])
    yield group
    group.end(0.0)


def test_an_agent_that_is_not_wanted_is_refused_in_one_line(group, tmp_path):
    address, key = group.listen([FIRST, SECOND]), group.key
    expected = "the run has no ranks for node7; it waits for localhost, 127.0.0.1"
    assert refusal(address, "--node", "node7", key=key) == expected
    other = f"the program at {address} has another key: that of another run?"
    assert refusal(address, "--node", FIRST, key=secrets.token_hex(32)) == other
    assert refusal(address, "--node", FIRST).startswith(f"no key: set {process.KEY_VARIABLE}, or name a file")
    (tmp_path / "key").write_text(key)
    (tmp_path / "key").chmod(0o640)
    line = refusal(address, "--node", FIRST, "--key-file", str(tmp_path / "key"))
    assert line.endswith("chmod 600 it, and let it be yours")
    # Of two for one node the second is refused, and one of a rank that mpirun started where nothing says which.
    first = link.connect(address, key)
    first.send(link.Hello(FIRST, "a host"))
    wait_until(lambda: group.agents[0].link is not None)
    assert refusal(address, "--node", FIRST, key=key) == "localhost has an agent already"
    assert refusal(address, key=key).startswith("no rank in OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID")
    first.close()
    group.end(0.0)
    assert refusal(address, "--node", FIRST, key=key).startswith(
        f"no scalebench waits for agents at {address} (Connection refused)"
    )


def test_who_does_not_prove_the_key_is_told_nothing(group):
    host, port = group.listen([FIRST, SECOND]).split(":")
    for answer in (b"", b"x" * 64, b"GET / HTTP/1.1\r\n\r\n" * 10):
        with socket.create_connection((host, int(port)), 10) as connection:
            received = b""
            with contextlib.suppress(OSError):  # the other side may have closed already
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(4096):
                    received += part
            assert len(received) in (0, link.NONCE_BYTES, link.NONCE_BYTES + link.PROOF_BYTES)
    # Nor does the proof of one side serve the other.
    with socket.create_connection((host, int(port)), 10) as connection:
        nonce = connection.recv(link.NONCE_BYTES, socket.MSG_WAITALL)
        connection.sendall(nonce)
        connection.sendall(connection.recv(link.PROOF_BYTES, socket.MSG_WAITALL))
        assert connection.recv(1) == b""
    assert [agent.link for agent in group.agents] == [None, None]


@pytest.mark.parametrize("content", [
    (1 << 31).to_bytes(4, "big"),
    b"\0\0\0\2[]",
    b'\0\0\0\x0f{"type":"start"}'[:19],
    b"\0\0\0\x12" + b'{"type":"pickles"}',
    b"\0\0\0\x2b" + b'{"type":"exit","rank":"1","terminated":true}'[:43],
    b"",
], ids=["too long", "no object", "half", "unknown", "of a wrong type", "cut"])  # fmt: skip
def test_an_agent_that_says_anything_else_is_lost(content, group):
    connected = link.connect(group.listen([FIRST, SECOND]), group.key)
    connected.send(link.Hello(SECOND, "a host"))
    wait_until(lambda: group.agents[1].link is not None)
    connected._socket.sendall(content)
    connected.close()
    wait_until(lambda: group.agents[1].is_lost)
    assert group.broken() == "127.0.0.1, with rank 1, was lost: the connection to its agent ended"
    assert [member.poll() for member in group.members] == [None, -signal.SIGKILL]


def test_the_program_listens_on_one_address_in_the_ports_that_are_open(monkeypatch):
    monkeypatch.setattr(link, "find_own_address", lambda host: "127.0.0.1")
    hardware = HardwareSpec("cpu", ports="21811-21812")
    first, second = (link.listen(hardware, ["far"]) for _ in range(2))
    assert {first[1], second[1]} == {"127.0.0.1:21811", "127.0.0.1:21812"}
    with pytest.raises(OSError, match=r"no port of 21811-21812 is free on 127.0.0.1"):
        link.listen(hardware, ["far"])
    for each in (first, second):
        each[0].close()
    hardware.interface = "lo"
    monkeypatch.setattr(link, "find_own_address", lambda host: "203.0.113.1")
    listener, address = link.listen(hardware, ["far"])
    listener.close()
    assert address.startswith("127.0.0.1:2181")


def test_the_place_of_an_agent_is_read_from_the_variables_of_who_started_it():
    for text, seat in {
        "OMPI_COMM_WORLD_RANK=3 PMIX_RANK=4": "3",
        "PMIX_RANK=4": "4",
        "PMI_RANK=5": "5",
        "SLURM_PROCID=6": "6",
        "SLURM_PROCID=0 OMPI_COMM_WORLD_RANK=2": "2",  # mpirun within a job
    }.items():
        assert node_agent.find_seat(dict(word.split("=") for word in text.split()), None).seat == seat
    assert node_agent.find_seat({"SLURMD_NODENAME": "n7"}, "SLURMD_NODENAME").seat == "n7"
    hello = node_agent.find_seat({node_agent.PROGRAM_VARIABLE: "[]", "RANK": "1", "WORLD_SIZE": "4"}, None)
    assert (hello.seat, hello.processes) == ("1", 4)


def test_a_starter_that_fails_says_why(group):
    """Where it ended ranks, and where it ended before its agents came."""
    group.starter = SimpleNamespace(poll=lambda: 1, alive=lambda: False, signal=lambda sign: None, reap=lambda: None)
    group._name, group._explain, group.log = "mpirun", lambda log: None, group.folder / "mpirun.log"
    assert group.broken() == "mpirun ended with exit status 1 and without a reason"
    group.members[0].code, group.members[0].is_terminated = -15, True
    assert group.broken() == "mpirun ended rank 0 without a reason" and group.members[0].poll() is None
    group._explain = lambda log: "mpirun: no slots"
    assert group.broken() == "mpirun: no slots"
    group.members[0].code, group.members[0].is_terminated, group.members[1].code = 0, True, 0
    assert group.broken() is None, "they had finished before"
    group.members[1].code = 3
    assert group.broken() is None, "it ended because of that rank"


WORDS = (
    "hardware=cpu hardware.hosts=[localhost:2,127.0.0.1:1] gpus=3 dataset.size=2000 measure=quick measure.probes=false "
    "measure.min_s=0.3 measure.monitor=false measure.warmup_max_s=0.2 sweep.report=false hydra.run.dir=run"
).split()


def test_an_agent_ends_with_its_program_however_that_ends(tmp_path):
    """Its ranks, too: nobody is there to say so."""
    with AgentUser(["strategy=simulated", *WORDS, "measure.max_s=600", "measure.min_s=600"], tmp_path) as hands:
        assert wait_until(lambda: len(list((tmp_path / "run").glob("progress*.json"))) == 3, 120.0), hands.said
        pids = find_run_processes(tmp_path / "run")
        hands.program.kill()
        assert hands.end() == (-signal.SIGKILL, [1, 1]) and not find_running(pids)
