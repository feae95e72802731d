"""Ranks that agents start on their nodes, from the launcher's point of view: each agent is a connection.

What the agents report is here at once, and a connection that is lost is a node that is lost.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.core import exit_with_parent
from scalebench.core.errors import InputError
from scalebench.core.machine.private_network import private_network
from scalebench.core.process import (
    KEY_VARIABLE,
    POLL_INTERVAL_S,
    StartError,
    as_start_errors,
    cancelled,
    defer_signals,
    wait_until,
)
from scalebench.core.run_folder import OUTPUT_FILES, SPEC_FILE, Turn, node_report_path, write_rank_file
from scalebench.measure.progress import RankProgress
from scalebench.runner.launchers import link as wire
from scalebench.runner.launchers.link import Link
from scalebench.runner.launchers.local import STACK_LIMIT_S, Child, start_program
from scalebench.runner.launchers.supervise import GRACE_PERIOD_S, LaunchRequest, RankGroup

LOG_DELAY_S = 2.0  # for the program that started the agents to write why one of them is lost
MIN_START_LIMIT_S = 60.0  # for a program to start the agents on all nodes
WAY_OUT = "start there what is printed above"
LOST = "was lost: the connection to its agent ended"
OVER_LIMIT_S = 15.0  # for the agents to write the series of their monitors


def accept_agents(listener: socket.socket, key: str, serve: Callable[[wire.Hello, Link], object]) -> None:
    """Accept agents that have the key until the listener is closed, and `serve` each in a thread of its own."""

    def greet(connection: socket.socket) -> None:
        try:
            link = Link(connection, key, wire.PROGRAM, wire.AGENT)
            serve(link.receive(wire.Hello), link)
        except (OSError, EOFError, ValueError):
            connection.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=greet, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


@dataclass(eq=False)
class Agent:
    """The agent of a node, or of one rank."""

    name: str  # of the node, or the number of the rank
    ranks: list[int]
    link: Link | None = None  # None: it has not come yet
    is_over: bool = False
    is_lost: bool = False  # its connection ended before it was over
    is_paused: bool = False
    stopped: list[int] | None = None  # ranks, as it answered last

    @property
    def is_done(self) -> bool:
        return self.link is None or self.is_over or self.is_lost

    def __str__(self) -> str:
        ranks = f"rank {', '.join(map(str, self.ranks))}"
        return ranks if self.name == str(self.ranks[0]) else f"{self.name}, with {ranks},"


@dataclass(eq=False)
class AgentRank:
    """A rank, as its agent reports it."""

    agent: Agent
    pid: int | None = None  # of a rank on this host
    code: int | None = None
    is_terminated: bool = False  # by a signal of the program that started the agent
    last_progress: RankProgress | None = None
    parked_bytes: int | None = None

    def poll(self) -> int | None:
        """Return how the worker ended; None while it runs, and where a signal of its launcher ended it."""
        if self.code is None and self.agent.is_lost:
            return -signal.SIGKILL  # the kernel ends it with its agent
        return None if self.is_terminated and self.code != 0 else self.code

    @property
    def is_over(self) -> bool:
        return self.code is not None or self.agent.is_lost


class AgentRanks(RankGroup):
    """All ranks of a run, under the agents of its nodes."""

    def __init__(
        self,
        request: LaunchRequest,
        names: Sequence[str],
        name: str | None = None,
        log: str | None = None,
        explain: Callable[[str], str | None] = lambda log: None,
    ) -> None:
        """`names` has the name of the agent of each rank. `name` is that of the program that starts the agents, `log`
        has its output, in which `explain` finds why it failed; None where a person starts them."""
        self._request, self._name, self._explain = request, name, explain
        self.folder = request.folder
        self.log = None if log is None else self.folder / log
        agents = {name: Agent(name, [rank for rank, own in enumerate(names) if own == name]) for name in names}
        self.agents = [*agents.values()]
        self.members: list[AgentRank] = [AgentRank(agents[name]) for name in names]
        self.starter: Child | None = None  # the program
        self.key = secrets.token_hex(32)
        self._listener: socket.socket | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of the socket's file
        self._seating, self._changed = threading.Lock(), threading.Event()  # set after each message
        self._refusal: str | None = None  # of an agent that cannot start its ranks

    # The agents come.

    def listen(self, hosts: list[str] | None = None) -> str:
        """Wait for agents from now on; return the address for them. Without `hosts` they are on this machine."""
        with as_start_errors():
            if hosts is None:
                self._folder = tempfile.TemporaryDirectory(prefix="scalebench-")
                self._listener, address = wire.listen_in(Path(self._folder.name))
            else:
                self._listener, address = wire.listen(self._request.spec.config.hardware, hosts)
        accept_agents(self._listener, self.key, self._serve)
        return address

    def start_agents(self, command: list[str], variables: dict[str, str], works_in: Path | None = None) -> None:
        """Start the program that starts the agents."""
        assert self.log is not None
        config, tied = self._request.spec.config, exit_with_parent.tied_command(os.getpid(), command)
        with as_start_errors(), private_network(config) as network, defer_signals():
            variables = variables | {KEY_VARIABLE: self.key}
            self.starter = Child(start_program(tied, variables, self.log, config.debug, network, works_in))

    def gather(
        self,
        addresses: list[str],
        works_in: str | None = None,
        limit_s: float | None = None,
        take: Callable[[str], tuple[wire.Hello, Link] | None] = lambda name: None,
    ) -> None:
        """Wait until all agents are here, and have them start the ranks. It returns early where the program that starts
        the agents has ended; StartError after so many seconds, or measure.hang_s. `take` returns the agent of a node,
        where one has come to this program before the run."""
        limit_s = limit_s or max(MIN_START_LIMIT_S, self._request.spec.config.measure.hang_s)
        deadline_s = time.monotonic() + limit_s
        while missing := [agent.name for agent in self.agents if agent.link is None]:
            if cancelled.is_set():
                raise KeyboardInterrupt
            if self.starter is not None and self.starter.poll() is not None:
                return
            if time.monotonic() > deadline_s and not self._request.spec.config.debug:
                kind = "rank" if missing[0].isdigit() else "node"
                what = f"no agent came from {kind} {', '.join(missing)} within {limit_s:g} s"
                raise StartError(what if self._listener is None or self.starter else f"{what}; {WAY_OUT}")
            for hello, link in filter(None, map(take, missing)):
                threading.Thread(target=self._follow, args=(self._seat(hello, link), hello.host), daemon=True).start()
            self._changed.wait(POLL_INTERVAL_S)
            self._changed.clear()
        folder, request = self.folder.absolute(), self._request
        with as_start_errors():
            run = (str(folder), (folder / SPEC_FILE).read_text("utf-8"), (folder / SPEC_FILE).stat().st_mtime_ns)
        for agent in self.agents:
            self._send(agent, wire.Start(*run, works_in, request.run_id, request.module, agent.ranks, addresses))

    def _serve(self, hello: wire.Hello, link: Link) -> None:
        """Greet one agent, and follow it to its last message."""
        try:
            with self._seating:
                agent = self._seat(hello, link)
        except InputError as error:
            link.send(wire.Refuse(str(error)))
            link.close()
            return
        self._follow(agent, hello.host)

    def _follow(self, agent: Agent, host: str) -> None:
        assert agent.link is not None
        self._changed.set()
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                self._register(agent, host, agent.link.receive(wire.ToProgram))
                self._changed.set()
        agent.is_lost = not agent.is_over
        self._changed.set()

    def _seat(self, hello: wire.Hello, link: Link) -> Agent:
        """Return the agent that has come; InputError where it gets no ranks."""
        spec, agents = self._request.spec, {agent.name: agent for agent in self.agents}
        if hello.processes not in (None, spec.processes):
            size = f"RANK={hello.seat} of WORLD_SIZE={hello.processes}"
            why = "does script.command have @gpus where it says how many?"
            raise InputError(f"{size} does not fit the run, of processes={spec.processes}; {why}")
        if hello.seat not in agents:
            raise InputError(f"the run has no ranks for {hello.seat}; it waits for {', '.join(agents)}")
        if agents[hello.seat].link is not None:
            raise InputError(f"{hello.seat} has an agent already")
        agents[hello.seat].link = link
        return agents[hello.seat]

    def _register(self, agent: Agent, host: str, message: wire.Message) -> None:
        match message:
            case wire.Started(pids=pids) if host == socket.gethostname():
                for rank in agent.ranks:
                    self.members[rank].pid = pids.get(rank)
            case wire.Progress(state=state) if state.rank in agent.ranks:
                self.members[state.rank].last_progress = state
            case wire.Exit(rank=rank, code=code, terminated=terminated) if rank in agent.ranks:
                self.members[rank].code, self.members[rank].is_terminated = code, terminated
            case wire.Paused(resident_bytes=sizes):
                for rank in agent.ranks:
                    self.members[rank].parked_bytes = sizes.get(rank)
                agent.is_paused = True
            case wire.Stopped(ranks=ranks):
                agent.stopped = ranks
            case wire.Report(report=report):
                with contextlib.suppress(OSError):
                    path = node_report_path(self.folder, report.node)
                    write_rank_file(path, report, run_id=self._request.run_id)
            case wire.Part(name=name, is_first=is_first, content=content) if OUTPUT_FILES.fullmatch(name):
                with contextlib.suppress(OSError), open(self.folder / name, "wb" if is_first else "ab") as file:
                    file.write(content)
            case wire.Refuse(reason=reason):
                self._refusal = self._refusal or reason
            case wire.Over():
                agent.is_over = True

    def _send(self, agent: Agent, message: wire.Message) -> None:
        with contextlib.suppress(OSError):  # the thread that receives from it notices
            if agent.link is not None:
                agent.link.send(message)

    # The ranks run.

    def broken(self) -> str | None:
        """Return why an agent was lost, or could not start its ranks, or why the program that started the agents
        failed, also when it terminated ranks: by itself it does so only after one has failed."""
        if self._refusal is not None:
            return self._refusal
        terminated = [str(rank) for rank, member in enumerate(self.members) if member.is_terminated and member.code]
        lost = [agent for agent in self.agents if agent.is_lost]
        starter = self.starter
        if terminated and starter is None:
            return f"rank {', '.join(terminated)} was terminated on its own host; was its agent ended?"
        if terminated or lost:
            limit_s = GRACE_PERIOD_S if terminated else LOG_DELAY_S
            wait_until(lambda: starter is None or not starter.alive() or self.batch_outcome() is not None, limit_s)
        code = None if starter is None else starter.poll()
        if code is not None and code < 0:
            return f"{self._name} was killed by {signal.Signals(-code).name}"
        has_failed = any(member.poll() not in (None, 0) for member in self.members)
        if code is not None and not (lost or has_failed):  # the end of a connection may be noticed after that
            wait_until(self._is_over, LOG_DELAY_S)
            lost = [agent for agent in self.agents if agent.is_lost]
        if lost:
            return f"{' and '.join(map(str, lost))} {LOST}"
        if terminated:
            return self._explain(self.read_log()) or f"{self._name} ended rank {', '.join(terminated)} without a reason"
        if code is None or has_failed:
            return None  # it ended because of that rank
        if self._is_over():
            return None
        return self._explain(self.read_log()) or f"{self._name} ended with exit status {code} and without a reason"

    def _is_over(self) -> bool:
        return all(member.is_over for member in self.members)

    def read_log(self) -> str:
        """Return what the program that starts the agents has printed so far."""
        with contextlib.suppress(OSError):
            return "" if self.log is None else self.log.read_text(encoding="utf-8", errors="replace")
        return ""

    def progress(self) -> list[RankProgress | None]:
        return [member.last_progress for member in self.members]

    def watch(self) -> threading.Event:
        return self._changed

    def warm_up(self) -> None:
        for agent in self.agents:
            self._send(agent, wire.Order("warm_up"))

    def pause(self) -> None:
        for agent in self.agents:
            agent.is_paused = False
            self._send(agent, wire.Order("pause"))

    def resume(self, turn: Turn) -> None:
        """Rank 0 comes last: it calls ranks that serve it, which must run then."""
        for agent in reversed(self.agents):
            self._send(agent, wire.Order("resume", turn))

    def is_paused(self) -> bool:
        return all(agent.is_paused or agent.is_done for agent in self.agents)

    def resident_bytes(self) -> list[int | None]:
        return [member.parked_bytes for member in self.members]

    def request_stacks(self) -> list[int]:
        for agent in self.agents:
            agent.stopped = None
            self._send(agent, wire.Order("stacks"))
        limit_s = STACK_LIMIT_S + LOG_DELAY_S
        wait_until(lambda: all(agent.stopped is not None or agent.is_done for agent in self.agents), limit_s)
        return [rank for agent in self.agents for rank in agent.stopped or []]

    # They end.

    def end(self, grace_s: float) -> None:
        """End the ranks, then the program that started the agents, which ends those that do not answer."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # or the thread that accepts would hold it open
            self._listener.close()
        for agent in self.agents:
            self._send(agent, wire.Order("end", grace_s=grace_s))
        limit_s = 2 * grace_s + OVER_LIMIT_S if grace_s else 0.0
        wait_until(lambda: all(agent.is_done for agent in self.agents), limit_s)
        self._end_starter(grace_s)
        for agent in self.agents:
            if agent.link is not None:
                agent.link.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _end_starter(self, grace_s: float) -> None:
        starter = self.starter
        if starter is None:
            return
        # By itself it ends with its agents.
        has_started = all(agent.link is not None and not agent.is_lost for agent in self.agents)
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None and starter.alive():
                starter.signal(sign)
                starter.signal(signal.SIGCONT)
            wait_until(lambda: not starter.alive(), grace_s if sign is not None or has_started else 0.0)
        starter.reap()
        if self.log is not None and self.log.exists() and not self.log.stat().st_size:
            self.log.unlink()
