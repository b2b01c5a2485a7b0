"""What a hostile peer did to a run by bringing much: memory and descriptors stay flat, and the run goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import zmq

import dps
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import ConfigError, NotAuthenticated, Unavailable
from dps.messages.runs import CHIEF, Register, Registered
from dps.messages.sessions import Pull
from dps.transport.current import runtime
from tests.in_process import cluster
from tests.transport import raw_peer

MB, PATIENCE_S = 1 << 20, 10.0
DESCRIPTORS = 300
RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
import numpy as np
import dps
from tests.in_process import cluster
with cluster(1, 1, trusted=True) as (worker,):
    with dps.Session(worker, {"a": np.zeros(4, np.float32)}, optimizer=dps.optim.SGD(1.0)) as session:
        ps = session._connection.peers[0].ref.address
        print(worker.target, ps, worker.address, flush=True)
        for _ in sys.stdin:
            print(session.step({"a": np.ones(4, np.float32)})["a"][0], flush=True)
"""


class Victim:
    """A run in a process of its own: its nodes, its memory and its descriptors."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", RUN]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        chief, ps, worker = self.process.stdout.readline().split()
        self.nodes = {"chief": chief, "ps": ps, "worker": worker}
        self.steps = 0
        self.step()

    def step(self) -> None:
        """The run makes a step."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        self.steps += 1
        assert float(self.process.stdout.readline()) == -self.steps

    @property
    def nbytes(self) -> int:
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    made = Victim()
    yield made
    made.process.communicate("", 20.0)
    assert made.process.returncode == 0


def until(true: Callable[[], bool], pause_s: float = 0.02) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not true() and time.monotonic() < deadline:
        time.sleep(pause_s)
    return true()


class Stranger:
    """A socket that does not connect again, so that the end of its connection is seen."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.SNDHWM, 100)
        self.socket.set(zmq.RECONNECT_IVL, 600_000)
        self._events = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._where = f"tcp://{address}"
        assert any(self._connects() for _ in range(10)), "it gets no connection"

    def _connects(self) -> bool:
        self.socket.connect(self._where)
        if self.saw(zmq.EVENT_HANDSHAKE_SUCCEEDED, 1.0):
            return True
        self.socket.disconnect(self._where)
        return False

    def saw(self, event: int, within_s: float = PATIENCE_S) -> bool:
        """Whether this was the next event."""
        found = self._events.poll(int(1000 * within_s)) and self._events.recv_multipart()[0]
        return bool(found) and int.from_bytes(found[:2], sys.byteorder) == event

    def send(self, part: bytes, flags: int = 0) -> bool:
        """False if the listener takes no more."""
        try:
            self.socket.send(part, zmq.NOBLOCK | flags)
            return True
        except zmq.Again:
            return False

    def close(self) -> None:
        self.socket.disable_monitor()
        self._events.close(0)
        self.socket.close(0)

    def was_ended(self) -> bool:
        return self.saw(zmq.EVENT_DISCONNECTED)


@contextmanager
def stranger(address: str) -> Iterator[Stranger]:
    with zmq.Context() as context:
        made = Stranger(context, address)
        try:
            yield made
        finally:
            made.close()


def flat(victim: Victim, before: tuple[int, int], most: int) -> None:
    """The victim is what it was, and its run goes on."""
    assert until(lambda: victim.nbytes < before[0] + most), f"{(victim.nbytes - before[0]) / MB:.0f} MB more"
    assert until(lambda: victim.descriptors <= before[1] + 2), (victim.descriptors, before[1])
    victim.step()


@pytest.mark.parametrize("node", ["ps", "chief", "worker"])
def test_garbage_ends_its_connection_and_memory_stays_flat(victim: Victim, node: str) -> None:
    before = victim.nbytes, victim.descriptors
    with stranger(victim.nodes[node]) as made:
        taken = sum(made.send(b"\x93garbage" * 1000) for _ in range(20_000))
        assert until(lambda: not made.send(b"\x93garbage" * 1000)) and taken < 20_000, "it goes on taking them"
        flat(victim, before, 100 * MB)


@pytest.mark.parametrize("node", ["ps", "chief"])
def test_long_headers_of_strangers_are_not_looked_into(victim: Victim, node: str) -> None:
    before = victim.nbytes, victim.descriptors
    header = b"\x98\x01\x3e" + b"\x90" * (16 * MB)  # as a message: lists of 1 byte that take 64 bytes each
    with stranger(victim.nodes[node]) as made:
        for _ in range(6):
            made.send(header)
        assert until(lambda: not made.send(b"\x93" * 65536), 0.001), "it goes on taking them"
        flat(victim, before, 100 * MB)


def test_a_message_that_is_never_finished_ends_its_connection(victim: Victim) -> None:
    before = victim.nbytes, victim.descriptors
    part = raw_peer.frame(bytes(MB), more=True)
    with raw_peer.connected(victim.nodes["ps"]) as made:

        def bring_more() -> bool:
            try:
                made.sendall(part)
            except OSError:
                return True
            return False

        assert until(bring_more, 0.002), "its connection was not ended"
    flat(victim, before, 150 * MB)


def test_connections_that_say_nothing_leave_descriptors_for_the_others(victim: Victim) -> None:
    host, port = victim.nodes["ps"].split(":")
    before = victim.nbytes, victim.descriptors
    most = before[1] + DESCRIPTORS // 2 + 5
    with ExitStack() as silent:
        for _ in range(DESCRIPTORS + 20):
            time.sleep(0.001)  # else the kernel's queue of new connections is full, and it waits for a second
            with suppress(OSError):  # it may be ended already
                made = silent.enter_context(socket.create_connection((host, int(port))))
                made.sendall(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03")
        assert until(lambda: victim.descriptors < most)
        time.sleep(0.2)
        assert victim.descriptors < most
        with stranger(victim.nodes["chief"]):
            victim.step()
    flat(victim, before, 50 * MB)


# -- who speaks dps -----------------------------------------------------------------------------------------------


def test_a_thousand_registers_of_one_process_are_one_task_and_cost_no_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dps.actors.authorization.EARLY_S", 0.0)
    with cluster(1, 1, trusted=True) as (worker,):
        caller, chief = Caller(runtime(), "stranger"), Ref(worker.target, CHIEF)
        with pytest.raises(NotAuthenticated, match="before its ticket"):
            caller.ask(chief, Register("worker", 1, "127.0.0.1:9", 7, 0, {}), PATIENCE_S)
        caller.connect(chief.address, runtime().secret())
        first = caller.ask(chief, Register("worker", 1, "127.0.0.1:9", 7, 0, {}), PATIENCE_S)
        assert isinstance(first, Registered) and first.task == 1
        before = len(os.listdir("/proc/self/fd"))
        for process in range(1, 1000):
            caller.post(chief, Register("worker", -1, f"127.0.0.1:{1000 + process}", 7 + process, 0, {}))
        with pytest.raises(NotAuthenticated, match="this process is worker:1 already; a process is one task"):
            caller.ask(chief, Register("ps", 5, "127.0.0.1:9", 1, 0, {}), PATIENCE_S)
        with pytest.raises(ConfigError, match="got task 70000 of job 'worker'; wanted an index from 0 to 65535"):
            caller.ask(chief, Register("worker", 70_000, "127.0.0.1:9", 1, 0, {}), PATIENCE_S)
        assert len(os.listdir("/proc/self/fd")) <= before + 5
        caller.close()


def test_pulls_that_can_never_be_answered_are_bounded_and_no_step_looks_at_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    params: Any = {"a": np.zeros(4, np.float32)}
    with cluster(1, 1, trusted=True) as (worker,), dps.Session(worker, params, optimizer=dps.optim.SGD(1.0)) as session:
        connection = session._connection
        ref, caller = connection.peers[0].ref, connection.caller
        for _ in range(5000):
            caller.post(ref, Pull(connection.membership.epoch, 1 << 40, 0, 0, -1, []))
        with pytest.raises(Unavailable, match="worker:0 keeps 64 pulls that wait, at most 64 are possible"):
            caller.ask(ref, Pull(connection.membership.epoch, 1 << 40, 0, 0, -1, []), PATIENCE_S)
        for step in range(3):
            assert session.step({"a": np.ones(4, np.float32)})["a"][0] == -1 - step
        assert caplog.text.count("keeps 64 pulls that wait") == 1
