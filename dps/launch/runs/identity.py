"""Identifies a process by its pid, start time and boot: the system gives the pid of an ended process to a new one."""

from __future__ import annotations

import contextlib
import os
from typing import Any

BOOT = "/proc/sys/kernel/random/boot_id"
SPACE = "/proc/self/ns/pid"


def identity(pid: int | None = None) -> dict[str, Any]:
    """The values that identify this process, or another one of this machine: pid, start time, and of the machine its
    name, boot id and process namespace."""
    pid = os.getpid() if pid is None else pid
    return {
        "pid": pid,
        "start": start_of(pid),
        "host": os.uname().nodename,
        "boot": boot_id(),
        "space": pid_namespace(),
    }


def start_of(pid: int) -> str:
    """The start time of a process of this machine, in ticks since the boot; "" if there is no such process, or it is a
    zombie."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(") ")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


def boot_id() -> str:
    """Differs after each boot of a machine; "" where the system has none."""
    with contextlib.suppress(OSError), open(BOOT) as file:
        return file.read().strip()
    return ""


def pid_namespace() -> str:
    """Differs between containers of one machine, whose pids mean different processes."""
    with contextlib.suppress(OSError):
        return os.readlink(SPACE)
    return ""


def is_alive(known: dict[str, Any]) -> bool | None:
    """Whether a process is there; None if it belongs to another machine or container, from where that is not seen."""
    if known.get("boot") != boot_id() or known.get("space") != pid_namespace():
        return False if known.get("host") == os.uname().nodename and known.get("space") == pid_namespace() else None
    if not os.path.isdir("/proc"):
        return None
    return known.get("start") not in ("", None) and start_of(int(known["pid"])) == known["start"]
