"""Another account of this machine, whatever it binds and sends to: real processes that are killed, and a second uid."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="needs root to act as another account"),
]

ROUNDS = int(os.environ.get("DPS_ATTACKS", "1"))
"""Kills of each role in each kind of run."""
AFTER_S = 1.5
"""For so long the account tries on after a kill; what it sent was heard for up to 1.2 s."""
DEADLINE_S = 60.0
PROGRAM = """
import time
import numpy as np
import dps

with dps.Server.from_env() as server, dps.Session(server, {"w": np.zeros(8)}, optimizer=dps.optim.SGD(1.0)) as session:
    print("ready", flush=True)
    while not session.should_stop():
        session.pull()
        session.push({"w": np.zeros(8)})
        time.sleep(0.002)
"""
STARTS = "from dps.transport import private_folders as p; p.remove(p.private_folder())"
"""What each process of dps does when it starts and ends: the folders of killed ones go."""
ATTACK = r"""
import contextlib, json, os, socket, sys, threading

names = [bytes.fromhex(line) for line in sys.stdin.readline().split()]
going, counts, bound = True, {"bound": 0, "sent": 0, "read": 0}, {}

def stop():
    global going
    sys.stdin.readline()
    going = False

os.umask(0)
threading.Thread(target=stop, daemon=True).start()
stranger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
print("tries", flush=True)
while going:
    for name in names:
        if name not in bound:
            with contextlib.suppress(OSError):
                os.mkdir(os.path.dirname(name))
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            made.setblocking(False)
            with contextlib.suppress(OSError):
                made.bind(name)
                bound[name] = made
                counts["bound"] += 1
        for sender in (stranger, *bound.values()):
            with contextlib.suppress(OSError):
                sender.sendto(b"\x01\x00\x04\x00\x00\x00what", name)
                counts["sent"] += 1
    for made in bound.values():
        with contextlib.suppress(OSError):
            while True:
                made.recv(65536)
                counts["read"] += 1
print(json.dumps(counts))
"""


def python_of_all() -> str:
    """A Python that every account may run."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


class Account:
    """A second account that tries to bind each of these names, to read what comes there, and to send to it."""

    def __init__(self, names: list[bytes]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [python_of_all(), "-c", ATTACK], stdin=pipe, stdout=pipe, text=True, user=65534, group=65534,
            extra_groups=[], cwd="/",
        )  # fmt: skip
        self._say(" ".join(name.hex() for name in names))
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "tries\n"

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def counts(self) -> dict[str, int]:
        """End it; what it has reached."""
        self._say("stop")
        assert self._process.stdout is not None
        with self._process:
            return dict(json.loads(self._process.stdout.readline()))


def datagram_names(pids: list[int]) -> list[bytes]:
    """The names of the datagram sockets that these processes have open, as every account reads them."""
    inodes = set()
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    names = []
    for line in Path("/proc/net/unix").read_bytes().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[4] == b"0002" and f"socket:[{fields[6].decode()}]" in inodes:
            names.append(b"\0" + fields[7][1:] if fields[7].startswith(b"@") else fields[7])
    return names


def tasks() -> dict[int, str]:
    """The job of each task process of this test, by pid."""
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if "dps.role" in words and f"TASKS_OF_TEST={os.getpid()}" in (folder / "environ").read_text().split("\0"):
                found[int(folder.name)] = words[words.index("--job") + 1]
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def commands(kind: str, program: Path) -> list[list[str]]:
    """What starts a chief, one ps and two workers. The chief's own address is on loopback, if it has one."""
    if kind == "launch":
        return [[sys.executable, "-m", "dps", "launch", "--ps", "1", "--workers", "2", str(program)]]
    trusted = ["--trusted-network"] if kind == "no keys" else []
    role, chief = [sys.executable, "-m", "dps.role", *trusted], f"127.0.0.1:{free_port()}"
    worker = [*role, "--job", "worker", "--chief", chief, "--program", str(program)]
    return [
        [*role, "--job", "chief", "--bind", chief, "--ps", "1", "--workers", "2"],
        [*role, "--job", "ps", "--chief", chief],
        [*worker, "--task", "0"], [*worker, "--task", "1"],
    ]  # fmt: skip


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[dict[int, str]]:
    """Such a run, once both workers train, as `tasks`."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "TASKS_OF_TEST": str(os.getpid()), "XDG_STATE_HOME": str(folder / "state")}
    output = folder / "output"
    with output.open("w") as file:
        how = {"stdout": file, "stderr": subprocess.STDOUT, "env": environment, "cwd": folder}
        processes = [subprocess.Popen(command, **how) for command in commands(kind, program)]  # type: ignore[call-overload]
    try:
        wait_until(lambda: output.read_text().count("ready") == 2 and len(tasks()) == 4, output.read_text)
        yield tasks()
    finally:
        for pid in [*(process.pid for process in processes), *tasks()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in processes:
            with process:
                pass


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """These processes stand still: they do not notice who ends meanwhile, and write to it when they go on."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def wait_until(ready: Callable[[], bool], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)


def reached(kind: str, folder: Path, job: str) -> dict[str, int]:
    """What another account reaches when a task of this job is killed, its peers notice it late, and the account's
    own user starts something of dps meanwhile."""
    with running(kind, folder) as roles:
        names = datagram_names(list(roles))
        assert len(names) >= 4, "the tasks of one machine have datagram sockets"
        account = Account(names)
        killed = next(pid for pid, its in roles.items() if its == job)
        with stopped([pid for pid in roles if pid != killed]):
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: killed not in tasks(), lambda: f"{job} lives")
            subprocess.run([sys.executable, "-c", STARTS], check=True)
            time.sleep(AFTER_S / 5)  # the account's time, not a wait for anything
        time.sleep(AFTER_S)  # likewise
        return account.counts()


@pytest.mark.parametrize("kind", ["launch", pytest.param("own keys", marks=pytest.mark.nightly), "no keys"])
@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_another_account_reads_and_writes_nothing_in_the_place_of_a_task_that_was_killed(
    kind: str, tmp_path: Path
) -> None:
    for round in range(ROUNDS):
        for job in ("worker", "ps", "chief"):
            folder = tmp_path / f"{round}-{job}"
            folder.mkdir()
            assert reached(kind, folder, job) == {"bound": 0, "sent": 0, "read": 0}, (
                f"{job} of a run by {kind}, {round}"
            )
