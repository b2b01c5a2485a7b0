"""A host that runs tasks for this launcher: its connection, its tasks, and what it has reported."""

from __future__ import annotations

import base64
import contextlib
import os
import queue
import re
import signal
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Protocol

from dps.errors import ConfigError, DpsError, TaskLost
from dps.launch.hosts.host import SILENT_S
from dps.launch.hosts.machine import Machine
from dps.launch.supervision.engine import Line, Notice, Order, Started
from dps.launch.supervision.outcome import TEARDOWN
from dps.launch.supervision.plan import Resources, runs_program
from dps.process.record import record
from dps.transport.clock import now

GREET_S = 60.0
"""How long a host may take until it answers at first."""
START_S = 20.0
"""How long it may take to start a task."""
COPY_S = 120.0
"""How long it may take to unpack the project's files."""

HOST = re.compile(r"([\w.][\w.@:%-]*)(?:\s+slots\s*=\s*([1-9][0-9]{0,5}))?")
Message = dict[str, Any]


class Channel(Protocol):
    """Carries messages to a host process."""

    def send(self, message: Message) -> None:
        """Send a message; one that nobody can get any more is dropped."""

    def close(self) -> None:
        """End the connection, so that the host process ends."""

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, and end it by force if it does not. Blocks."""

    def kill(self) -> None:
        """End it at once."""


class HostState(Enum):
    """The state of a host."""

    UP = "up"
    GOING = "going"
    """It has given notice: its tasks still run, and no more are started there."""
    LOST = "lost"
    CLOSED = "closed"
    """This launcher has ended the connection."""


@record
class HostSpec:
    """A host as it is known before it is connected. `slots`: how many tasks it takes beside the chief, None: any.
    `roles`: those that it takes, (): all."""

    name: str
    slots: int | None = None
    roles: tuple[str, ...] = ()
    address: str = ""


def parse_host(text: str) -> HostSpec:
    """A host as a line of an MPI host file has it: "box1", "me@box1 slots=4". Raises ConfigError for anything else."""
    found = HOST.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"got {text!r}, wanted a host, such as box1, me@box1 or 'box1 slots=4'")
    return HostSpec(found[1], int(found[2]) if found[2] else None)


class RemoteHost:
    """One host. More than 12 attributes: what it is, how it is reached, and what runs on it."""

    def __init__(self, place: HostSpec, line: Line, notice: Notice) -> None:
        self.name, self.address, self._place = place.name, place.address, place
        self._line, self._notice = line, notice
        self.state = HostState.UP
        self.is_gone = False
        """Whether it has given notice, or was lost."""
        self.heard_at = now()
        self.version = ""
        self.used: dict[str, dict[str, float]] = {}
        """The use of each of its tasks, as it has reported it last."""
        self._machine = Machine(place.name, 0, None, ())
        self._dealt: set[str] = set()
        """The tasks that have their place here, without the chief."""
        self._tasks: dict[str, RemoteTask] = {}
        self._keys: set[str] = set()
        """The roles whose keys it has."""
        self._folder = ""
        """The folder there with the project's files, if they were copied."""
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.channel: Channel | None = None

    # -- the connection --------------------------------------------------------------------------------------------

    def connect(self, channel: Channel) -> None:
        """Use a channel, whose messages go to `take_report` and whose end goes to `mark_lost`."""
        self.channel = channel
        threading.Thread(target=self._send_beats, name=f"beats to {self.name}", daemon=True).start()

    def _send_beats(self) -> None:
        while self.state in (HostState.UP, HostState.GOING):
            self._send({"do": "beat"})
            threading.Event().wait(SILENT_S / 4)

    def _send(self, message: Message) -> None:
        if self.channel is not None:
            self.channel.send(message)

    def take_report(self, message: Message) -> None:
        """Handle a report. Called on the channel's thread."""
        self.heard_at = now()
        kind, task = message["is"], self._tasks.get(message.get("name", ""))
        if kind == "line" and task is not None:
            task.line(task.name, message["text"])
        elif kind == "report" and task is not None:
            task.write_report(base64.b64decode(message["data"]))
        elif kind == "ended" and task is not None:
            self.used.pop(task.name, None)
            task.record_end(message["code"])
        elif kind == "beat":
            self.used = message["used"]
        elif kind == "notice":
            self.take_notice(message["why"])
        else:
            self._answers.put(message)

    def take_notice(self, why: str) -> None:
        """It has given notice that it is about to go."""
        if self.state is HostState.UP:
            self.state, self.is_gone = HostState.GOING, True
            self._line("dps", f"{self.name} is about to go: {why}")
            self._notice([task.name for task in self._tasks.values() if task.is_alive], self.name)

    def mark_lost(self, why: str, error: type[DpsError] = TaskLost) -> None:
        """The connection has ended. Its tasks end with it, if they have not yet."""
        before = self.state
        if before is not HostState.CLOSED:
            self.state, self.is_gone = HostState.LOST, True
        self._answers.put({"is": "lost", "text": why, "error": error})
        living = [task for task in self._tasks.values() if task.is_alive]
        if before is not HostState.CLOSED and living:
            self._line("dps", f"{self.name} is lost: {why}")
        for task in living:
            if before is not HostState.CLOSED:
                task.line(task.name, f"the log ends here: {self.name} is lost: {why}")
            task.record_end(-signal.SIGKILL)

    def cut_connection(self, why: str) -> None:
        """Give the host up."""
        assert self.channel is not None
        self.mark_lost(why)
        self.channel.kill()

    def close(self) -> None:
        """End the connection, and with it what still runs there."""
        if self.state is not HostState.LOST:
            self.state = HostState.CLOSED
        if self.channel is not None:
            self.channel.close()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended. Blocks."""
        if self.channel is not None:
            self.channel.wait(timeout_s)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _wait_report(self, kind: str, timeout_s: float) -> Message:
        """Wait for the report of this kind. Raises DpsError if the host fails, is lost, or does not answer."""
        try:
            while (found := self._answers.get(timeout=timeout_s))["is"] != kind:
                if found["is"] == "failed":
                    raise ConfigError(f"{self.name}: {found['text']}")
                if found["is"] == "lost":
                    raise found["error"](f"{self.name}: {found['text']}")
        except queue.Empty:
            raise TaskLost(f"{self.name} did not answer within {timeout_s:.0f} s; wanted its {kind!r}") from None
        return found

    def wait_hello(self) -> None:
        """Wait for its first report. Blocks."""
        said = self._wait_report("hello", GREET_S)
        self.version = said["version"]
        self.address = self.address or said["address"]
        self._machine = Machine(self.name, **said["machine"])

    def copy_project(self, pieces: Iterator[tuple[bytes, bool]]) -> None:
        """Send the project's files. Blocks."""
        for data, last in pieces:
            self._send({"do": "project", "data": base64.b64encode(data).decode(), "last": last})
        self._folder = self._wait_report("project", COPY_S)["path"]

    # -- tasks ---------------------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        return self.state is HostState.UP

    @property
    def load(self) -> int:
        """How many tasks have their place here, without the chief."""
        return len(self._dealt)

    @property
    def has_room(self) -> bool:
        return self._place.slots is None or self.load < self._place.slots

    def takes_role(self, role: str) -> bool:
        """Whether tasks of a role may be here."""
        return not self._place.roles or role in self._place.roles

    def assign_share(self, name: str, wanted: Resources) -> dict[str, str]:
        """Give a task its place; returns the variables that tell it what it has. ConfigError if there is too little."""
        share = self._machine.assign_share(name, wanted)
        if name != "chief":
            self._dealt.add(name)
        return share

    def take_share_back(self, name: str) -> None:
        """A task has its place elsewhere now."""
        self._dealt.discard(name)
        self._machine.take_share_back(name)

    def give_keys(self, path: str, role: str) -> None:
        """Send it the keys that a role needs, once."""
        from dps.transport.keys.files import part

        if role not in self._keys:
            self._keys.add(role)
            self._send({"do": "keys", "files": part(path, [role])})

    def start(self, order: Order, env: dict[str, str], line: Line, ended: Callable[[Started], None]) -> Started:
        """Start a task. Blocks until it is started."""
        name = order.name
        task = RemoteTask(name, self, line, ended)
        self._tasks[name] = task
        message = {
            "do": "start", "name": name, "arguments": list(order.arguments), "env": env, "waits": order.waits,
            "folder": self._folder or order.folder, "pipes": bool(order.pass_fds),
        }  # fmt: skip
        self._send(message)
        if order.pass_fds:
            task.connect_pipes(*map(os.dup, order.pass_fds))
        try:
            said = self._wait_report("started", START_S)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; a project is expected at the same path on every host, or sync: true in the file copies it"
            ) from None
        task.pid, task.start = said["pid"], said["start"]
        return task

    def send_order(self, task: str, what: str, **more: Any) -> None:
        """Send an order for a task."""
        self._send({"do": what, "name": task, **more})


class RemoteTask:
    """A task on a host."""

    def __init__(self, name: str, at: RemoteHost, line: Line, ended: Callable[[Started], None]) -> None:
        self.name, self.line, self.pid, self.start = name, line, 0, ""
        self._at, self._ended = at, ended
        self._told = False
        self._code: int | None = None
        self._over = threading.Event()
        self._reports = -1

    @property
    def host(self) -> str:
        return self._at.name

    @property
    def is_displaced(self) -> bool:
        return self._at.is_gone

    @property
    def is_alive(self) -> bool:
        return not self._over.is_set()

    @property
    def code(self) -> int | None:
        return self._code

    def send_chief(self, chief: str) -> None:
        """Give a waiting task the chief's address; "" ends it."""
        if not self._told:
            self._told = True
            self._at.send_order(self.name, "tell", chief=chief)

    def send_signal(self, number: int) -> None:
        """Send a signal to it."""
        if self.is_alive:
            self._at.send_order(self.name, "signal", number=int(number))

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for its end; returns whether it has ended."""
        return self._over.wait(timeout_s)

    def tell_to_end(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM if runs_program(self.name) else TEARDOWN)

    def end_task(self, timeout_s: float) -> None:
        """Ask it to end, and SIGKILL it after `timeout_s`. Blocks until it has ended, or its host is given up."""
        self.tell_to_end()
        if not self.wait(timeout_s):
            self.send_signal(signal.SIGKILL)
            if not self.wait(SILENT_S):
                self._at.cut_connection("a task there cannot be ended")

    def record_end(self, code: int) -> None:
        """It has ended."""
        if self.is_alive:
            self._code = code
            self._over.set()
            if self._reports >= 0:
                os.close(self._reports)
            self._ended(self)

    # -- pipes of a function that runs as this task ----------------------------------------------------------------

    def connect_pipes(self, orders: int, reports: int) -> None:
        """Pass on what is written for it, and write what it reports. The two descriptors belong to it from now on."""
        self._reports = reports
        threading.Thread(target=self._send_orders, args=(orders,), name=f"orders of {self.name}", daemon=True).start()

    def _send_orders(self, orders: int) -> None:
        while True:
            data = os.read(orders, 1 << 16)
            self._at.send_order(self.name, "order", data=base64.b64encode(data).decode())
            if not data:
                break
        os.close(orders)

    def write_report(self, data: bytes) -> None:
        """It has reported this."""
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._reports, data) :]
