"""Processes of this machine, by what they inherited; and that secrets are in none of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def everything() -> Iterator[tuple[int, bytes, bytes]]:
    """Each process with its environment and its command line."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                yield int(name), *(Path(f"/proc/{name}/{part}").read_bytes() for part in ("environ", "cmdline"))


def inheriting(*variables: str) -> list[int]:
    """The processes whose environment has all of these, as NAME=VALUE."""
    wanted = {variable.encode() for variable in variables}
    return [pid for pid, environ, _ in everything() if wanted <= set(environ.split(b"\0"))]


def lives(pid: int) -> bool:
    """A zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


def running(words: str, among: Iterable[int]) -> int:
    """The one of these processes with these words, separated by single spaces, in its command line."""
    mine = set(among)
    for pid, _, command in everything():
        if pid in mine and words in command.replace(b"\0", b" ").decode():
            return pid
    raise AssertionError(f"no process with {words}")


def keys_of(run: Path) -> list[bytes]:
    """The private keys of a run."""
    found = [file.read_bytes().strip() for file in (run / "keys").glob("*.key")]
    assert len(found) >= 3
    return found


def check_secret(keys: list[bytes], *folders: Path) -> None:
    """No process has one of the keys in its environment or its command line, and no file of these folders has one, but
    for private files in private folders named keys."""
    for pid, environ, command in everything():
        assert not [key for key in keys if key in environ or key in command], f"process {pid}"
    private = 0
    for file in [file for folder in folders for file in folder.rglob("*") if file.is_file()]:
        with contextlib.suppress(OSError):  # a task may have ended
            if any(key in file.read_bytes() for key in keys):
                private += 1
                assert file.parent.name == "keys" and file.parent.stat().st_mode & 0o777 == 0o700, file
                assert file.stat().st_mode & 0o777 == 0o600, file
    assert private, "tasks have keys somewhere"
