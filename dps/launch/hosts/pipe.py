"""A command whose stdin and stdout carry messages to and from the host process of another machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dps.errors import DpsError

KEPT = 20
"""Lines of the command's own errors that are kept."""


class Pipe:
    """Runs the command. `received` gets each message, and `broken` once its exit code and its last errors, both on a
    thread of their own."""

    def __init__(
        self, command: Sequence[str], received: Callable[[dict[str, Any]], None],
        broken: Callable[[int, list[str]], None],
    ) -> None:  # fmt: skip
        self._received, self._broken = received, broken
        self._errors: deque[str] = deque(maxlen=KEPT)
        self._sending = threading.Lock()  # orders come on several threads, and must not mix in one line
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        self._error_reader = threading.Thread(target=self._read_errors, name=f"errors of {command[0]}", daemon=True)
        self._error_reader.start()
        threading.Thread(target=self._read_messages, name=f"messages of {command[0]}", daemon=True).start()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for text in self._process.stderr:
            self._errors.append(text.strip())
        self._process.stderr.close()

    def _read_messages(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            with contextlib.suppress(ValueError):  # a login shell may print something before
                message = json.loads(text)
                if isinstance(message, dict) and "is" in message:
                    self._received(message)
        self._process.stdout.close()
        code = self._process.wait()
        self._error_reader.join(1.0)
        self._broken(code, [text for text in self._errors if text])

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. One that nobody can get any more is dropped, for `broken` says so."""
        stdin = self._process.stdin
        assert stdin is not None
        with self._sending, contextlib.suppress(OSError, ValueError):
            stdin.write(json.dumps(message) + "\n")
            stdin.flush()

    def close(self) -> None:
        """End the connection: the host process ends its tasks and itself."""
        stdin = self._process.stdin
        assert stdin is not None
        with self._sending, contextlib.suppress(OSError):
            stdin.close()

    def wait(self, timeout_s: float) -> None:
        """Wait until the command has ended, and kill it if it does not. Blocks."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """End the command at once."""
        self._process.kill()


COMMAND_S = 60.0


def run_command(command: Sequence[str], wanted: str) -> str:
    """What a command prints. Raises DpsError if it is not there, fails or takes too long."""
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DpsError(f"{wanted}: {command[0]} cannot be run: {error}") from None
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise DpsError(f"{wanted}: {why[-1]}")
    return done.stdout
