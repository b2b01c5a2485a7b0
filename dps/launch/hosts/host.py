"""Runs tasks on one machine for a launcher elsewhere: `python -m dps.launch.hosts.host`, which an engine starts.

Orders come on stdin and reports go to stdout, a JSON object a line each:

    launcher                                            host
    {"do": "keys", "files": {NAME: TEXT}}               {"is": "hello", "version", "address", "machine", ...}, the first
    {"do": "project", "data": BASE64, "last": BOOL}     {"is": "project", "path": PATH}
    {"do": "start", "name", "arguments", "env", ...}    {"is": "started", "name", "pid", "start"}, or "failed", "text"
    {"do": "tell", "name", "chief": ADDRESS}            {"is": "line", "name", "text"}
    {"do": "signal", "name", "number"}                  {"is": "ended", "name", "code"}
    {"do": "order", "name", "data": BASE64}             {"is": "report", "name", "data": BASE64}
    {"do": "beat"}, every 2 s                           {"is": "beat", "used": {NAME: ...}}, every 2 s
                                                        {"is": "notice", "why"}: this machine is about to go

Its tasks die with it. It ends when stdin does, and when nothing was read for 8 s: nobody is there any more.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dps import __version__
from dps.errors import DpsError
from dps.launch.hosts.machine import this_machine
from dps.launch.hosts.project import ProjectUnpacker
from dps.launch.runs.identity import start_of
from dps.launch.runs.usage import UsageMeter
from dps.launch.supervision.child import Child
from dps.launch.supervision.engine import Order, Started
from dps.transport.clock import now
from dps.transport.private_folders import private_folder, remove

SWEEP = 'exec 3<&0; { trap "" HUP INT TERM; read _ <&3; rm -rf "$0"; } &'
"""Waits for the end of its stdin, which is the end of the process that has started it, and removes the folder. It has a
session of its own, and its parent has ended, so signals to that process and its children do not reach it."""


class HostFolder:
    """A new folder. `remove_folder` removes it.

    If this process is killed, another one removes the folder at once. If both are killed together, as by the end of a
    Slurm job or of the machine, the next process of this user that makes one removes it. Why both: docs/decisions/0049.
    """

    def __init__(self) -> None:
        self.path = private_folder()
        self._sweeper = subprocess.Popen(
            ["sh", "-c", SWEEP, self.path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._sweeper.wait()

    def remove_folder(self) -> None:
        """Remove the folder."""
        remove(self.path)
        assert self._sweeper.stdin is not None
        self._sweeper.stdin.close()


BEAT_S = 2.0
SILENT_S = 8.0
"""A side that has sent nothing for so long is gone. Tasks of a host that is cut off end within 10 s."""
END_S = 1.0
"""How long killed tasks may take to be gone."""
MODULE = "dps.launch.hosts.host"
OWN = ("SLURM_STEP", "SLURM_PROCID", "SLURM_TASK", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS")
"""Beginnings of variables that describe this process and not its tasks."""

Message = dict[str, Any]


class Host:
    """The tasks of one launcher on this machine. `send` takes each report, on any thread."""

    def __init__(self, send: Callable[[Message], None], environ: Mapping[str, str]) -> None:
        self._send, self._environ = send, environ
        self._tasks: dict[str, Child] = {}
        self._orders: dict[str, int] = {}
        """Pipes to tasks that a launcher sends data."""
        self._folder: HostFolder | None = None
        """For keys and the project's files."""
        self._unpacking: ProjectUnpacker | None = None
        self._meter = UsageMeter()
        self.all_told = False
        """Whether the tasks have got SIGTERM, too. A second one would end them at once."""

    def hello_message(self) -> Message:
        """The first report."""
        machine = this_machine(self._environ)
        return {
            "is": "hello", "version": __version__, "address": own_address(self._environ), "machine": machine.as_dict(),
            "name": os.uname().nodename,
        }  # fmt: skip

    def handle_order(self, message: Message) -> None:
        """Do what an order says. Errors go back as a report."""
        try:
            getattr(self, f"_do_{message['do']}")(message)
        except (DpsError, OSError) as error:
            text = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            self._send({"is": "failed", "name": message.get("name", ""), "text": text})

    def _do_beat(self, message: Message) -> None:
        """The launcher is there."""

    def _own_path(self, part: str) -> str:
        self._folder = self._folder or HostFolder()
        return os.path.join(self._folder.path, part)

    def _do_keys(self, message: Message) -> None:
        """Write keys that only this user may read."""
        from dps.transport.keys.files import write  # here: most runs over hosts have no keys of their own

        files = {os.path.basename(name): text.strip().encode("ascii") for name, text in message["files"].items()}
        write(self._own_path("keys"), files, public_mode=0o600)

    def _do_project(self, message: Message) -> None:
        self._unpacking = self._unpacking or ProjectUnpacker(self._own_path("project"))
        self._unpacking.add(base64.b64decode(message["data"]))
        if message["last"]:
            self._unpacking.finish()
            self._send({"is": "project", "path": self._unpacking.path})

    def _do_start(self, message: Message) -> None:
        name, env = message["name"], dict(message["env"])
        keys = self._own_path("keys") if self._folder is not None else ""
        if os.path.isdir(keys):
            env["DPS_KEYS"] = keys
        own: list[int] = []
        if message["pipes"]:
            own = self._open_pipes(name)
            env["DPS_RUN_FDS"] = f"{own[0]},{own[1]}"
        order = Order(name, message["arguments"], env, message["folder"], message["waits"], own)
        started = threading.Event()

        def line(task: str, text: str) -> None:
            started.wait()
            self._send({"is": "line", "name": task, "text": text})

        def ended(task: Started) -> None:
            started.wait()
            self._close_pipe(name)
            self._send({"is": "ended", "name": name, "code": task.code})

        try:
            child = self._tasks[name] = Child(order, env, line, ended)
        finally:
            for descriptor in own:
                os.close(descriptor)
        self._send({"is": "started", "name": name, "pid": child.pid, "start": start_of(child.pid)})
        started.set()

    def _open_pipes(self, name: str) -> list[int]:
        """Pipes to and from a task, whose other ends pass on what the launcher and the task write."""
        orders_out, orders_in = os.pipe()
        reports_out, reports_in = os.pipe()
        self._orders[name] = orders_in
        threading.Thread(target=self._send_reports, args=(name, reports_out), daemon=True).start()
        return [orders_out, reports_in]

    def _send_reports(self, name: str, reports: int) -> None:
        while data := os.read(reports, 1 << 16):
            self._send({"is": "report", "name": name, "data": base64.b64encode(data).decode()})
        os.close(reports)

    def _do_order(self, message: Message) -> None:
        """Data for a task; without any, the end of it."""
        name = message["name"]
        data = base64.b64decode(message["data"])
        if not data:
            self._close_pipe(name)
        elif name in self._orders:
            with contextlib.suppress(BrokenPipeError), open(self._orders[name], "wb", closefd=False) as pipe:
                pipe.write(data)

    def _close_pipe(self, name: str) -> None:
        descriptor = self._orders.pop(name, -1)
        if descriptor >= 0:
            os.close(descriptor)

    def _do_tell(self, message: Message) -> None:
        self._tasks[message["name"]].send_chief(message["chief"])

    def _do_signal(self, message: Message) -> None:
        if message["number"] == signal.SIGTERM and self.all_told:
            return
        self._tasks[message["name"]].send_signal(message["number"])

    def send_beat(self) -> None:
        """Tell the launcher that this machine is there, and what its tasks use."""
        living = {name: child.pid for name, child in list(self._tasks.items()) if child.is_alive}
        self._send({"is": "beat", "used": self._meter.measure_tasks(living)})

    def end_tasks(self) -> None:
        """Kill all tasks, and remove what was written for them."""
        for child in self._tasks.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        deadline = now() + END_S
        for child in self._tasks.values():
            child.wait(max(0.0, deadline - now()))
        if self._folder is not None:
            self._folder.remove_folder()


def own_address(environ: Mapping[str, str]) -> str:
    """The address of this machine that the launcher has connected to, if it came by ssh; else ""."""
    words = environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""


def main() -> int:
    """Serve the launcher at the other end of stdin and stdout until it, or the way to it, is gone."""
    out, sending = os.dup(1), threading.Lock()
    os.dup2(2, 1)  # whatever else prints does not disturb the messages

    def send(message: Message) -> None:
        data = (json.dumps(message) + "\n").encode()
        with sending, contextlib.suppress(OSError):
            while data:
                data = data[os.write(out, data) :]

    for name in [name for name in os.environ if name.startswith(OWN)]:
        del os.environ[name]
    host = Host(send, os.environ)
    noticed: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: noticed.append(number))
    if "SLURM_JOB_ID" in os.environ:  # elsewhere it is the size of a terminal that has changed
        signal.signal(signal.SIGWINCH, lambda number, _: noticed.append(number))
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which tasks would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    over, heard = threading.Event(), [now()]
    send(host.hello_message())
    for work in (lambda: end_if_silent(host, heard, over), lambda: send_signs(host, send, noticed, over)):
        threading.Thread(target=work, daemon=True).start()
    for text in sys.stdin.buffer:
        heard[0] = now()
        host.handle_order(json.loads(text))
    over.set()
    host.end_tasks()
    return 0


def end_if_silent(host: Host, heard: list[float], over: threading.Event) -> None:
    """End everything when the launcher gives no sign of life any more. Sends nothing, because stdout may be stuck."""
    while not over.wait(0.2):
        if now() - heard[0] > SILENT_S:
            host.end_tasks()
            os._exit(1)


def send_signs(host: Host, send: Callable[[Message], None], noticed: list[int], over: threading.Event) -> None:
    """Send signs of life and notices."""
    beat_at, told = 0.0, 0
    while not over.wait(0.2):
        if len(noticed) > told:
            told = len(noticed)
            host.all_told = signal.SIGTERM in noticed and "SLURM_JOB_ID" in os.environ  # Slurm signals a whole step
            send({"is": "notice", "why": f"it got {signal.Signals(noticed[-1]).name}"})
        if now() >= beat_at:
            beat_at = now() + BEAT_S
            host.send_beat()


if __name__ == "__main__":
    sys.exit(main())
