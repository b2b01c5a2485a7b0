"""Tasks as processes of their own, as in terminals: each started by its own command, each with its own output."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

EXAMPLES = Path(__file__).parents[2] / "examples"
END_S = 200.0
"""How long all of them may take to end by themselves; a machine that does other things, too, is slow."""


def free_addresses(n: int) -> list[str]:
    """`n` addresses of this machine on which nobody listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return ["{}:{}".format(*s.getsockname()) for s in sockets]


class Terminals:
    """A terminal for each task; those whose process still runs at the end of the block are killed."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *command: str, **environ: str) -> None:
        """`python COMMAND` under this name; stderr goes where stdout goes."""
        self.running[name] = subprocess.Popen(
            [sys.executable, "-u", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, cwd=self.cwd, env={**os.environ, **environ},
        )  # fmt: skip

    def line(self, name: str) -> str:
        """The next line that this task prints. Blocks."""
        stdout = self.running[name].stdout
        assert stdout is not None
        return stdout.readline().rstrip("\n")

    def line_with(self, name: str, text: str) -> str:
        """The next line with `text` in it; AssertionError when the task ends before. Blocks."""
        while text not in (line := self.line(name)):
            assert line or self.running[name].poll() is None, f"{name} ended without saying {text!r}"
        return line

    def ended(self) -> tuple[dict[str, int], dict[str, str]]:
        """When all have ended by themselves: exit code and (the rest of the) output of each, by name. Blocks."""
        said = {name: process.communicate(timeout=END_S)[0] for name, process in self.running.items()}
        codes = {name: process.returncode for name, process in self.running.items()}
        self.running = {}
        return codes, said

    def __enter__(self) -> Terminals:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.running.values():
            process.kill()
            print(process.communicate()[0])  # pytest shows it beside the failure
