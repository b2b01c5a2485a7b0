"""Two network namespaces with a cable between them, and the processes that run in each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

SIDES = ("one", "two")
ADDRESSES = {"one": ("10.77.0.1", "fd77::1"), "two": ("10.77.0.2", "fd77::2")}
ROOT = Path(__file__).parents[2]


class NoNamespaces(Exception):
    """This process may not make network namespaces, or has no tool for it."""


class Networks:
    """Makes the namespaces and ends everything in them at the end. Each test has its own, under names of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = {side: f"dps-{os.getpid()}-{side}" for side in SIDES}
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            for name in self._names.values():
                _run("ip", "netns", "add", name)
            one, two = self._names.values()
            _run("ip", "link", "add", "cable", "netns", one, "type", "veth", "peer", "name", "cable", "netns", two)
            for side, name in self._names.items():
                for link in ("lo", "cable"):
                    _run("ip", "-n", name, "link", "set", link, "up")
                _run("ip", "-n", name, "address", "add", f"{ADDRESSES[side][0]}/24", "dev", "cable")
                _run("ip", "-n", name, "address", "add", f"{ADDRESSES[side][1]}/64", "dev", "cable", "nodad")
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            why = getattr(error, "stderr", "") or str(error)
            raise NoNamespaces(f"needs root and iproute2 to make network namespaces: {why.strip()}") from None

    def start(self, side: str, name: str, *arguments: str, trusted: bool = True, pids: bool = False) -> Path:
        """Start `python ARGUMENTS` on one side ("" for neither, this machine); returns the file of its output.

        `pids`: in a namespace of processes of its own, too.
        """
        log = self._folder / f"{name.replace(':', '-')}.log"
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        environ |= {"DPS_TRUSTED_NETWORK": "1"} if trusted else {}
        enter = ["ip", "netns", "exec", self._names[side]] if side else []
        enter += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if pids else []
        with log.open("wb") as out:
            command = [*enter, sys.executable, *arguments]
            self._started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environ))
        return log

    def role(
        self, side: str, task: str, *flags: str, trusted: bool = True, pids: bool = False, name: str = ""
    ) -> Path:  # fmt: skip
        """Start a task, such as "worker:1", of the cluster of this name; returns the file of its output."""
        job, _, index = task.partition(":")
        own = ["--job", job, *(["--task", index] if index else [])]
        return self.start(side, f"{name}{task}", "-m", "dps.role", *own, *flags, trusted=trusted, pids=pids)

    def command(self, side: str, *arguments: str) -> str:
        """What `python ARGUMENTS` on one side prints, once it has ended well."""
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        enter = ["ip", "netns", "exec", self._names[side]]
        done = subprocess.run(
            [*enter, sys.executable, *arguments], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def cable(self, up: bool) -> None:
        """Pull the cable, or plug it in again."""
        _run("ip", "-n", self._names["one"], "link", "set", "cable", "up" if up else "down")
        if up:  # the kernel takes addresses of IPv6 away with the link
            for side, name in self._names.items():
                address = f"{ADDRESSES[side][1]}/64"
                _run("ip", "-n", name, "address", "replace", address, "dev", "cable", "nodad")

    def wait(self, within_s: float) -> list[int]:
        """The exit codes of all that was started, in that order."""
        deadline = time.monotonic() + within_s
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self._started]

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait(10.0)
        for name in self._names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def says(log: Path, text: str, within_s: float = 45.0) -> str:
    """The line of a process's output that contains `text`. Waits for it."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            if text in line:
                return line
        time.sleep(0.05)
    raise AssertionError(f"{log.stem} did not say {text!r} within {within_s} s:\n{log.read_text()[-2000:]}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
