"""What processes of this machine hold, read from /proc: memory of their own, memory that they share, descriptors."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MB = 1e6
SHARED = "/memfd:dps"


@dataclass(frozen=True)
class Held:
    """Bytes and counts of one process at one moment; of several samples, the most of each."""

    private: int = 0
    """Resident memory that is no shared one: heap, stacks, libraries (RssAnon + RssFile)."""
    owned: int = 0
    """Shared memory that this process made, counted once, here."""
    attached: int = 0
    """Resident shared memory (RssShmem), its own and others'."""
    peak: int = 0
    """The most that was resident at once since its start, shared memory of others counted too (VmHWM)."""
    descriptors: int = 0

    @property
    def own(self) -> int:
        """What goes when this process goes."""
        return self.private + self.owned

    def most(self, other: Held) -> Held:
        return Held(*(max(a, b) for a, b in zip(self.fields, other.fields, strict=True)))

    @property
    def fields(self) -> tuple[int, ...]:
        return self.private, self.owned, self.attached, self.peak, self.descriptors


def held(pid: int) -> Held | None:
    """What a process holds now; None when it is gone."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        owned, descriptors = _descriptors(pid)
        found = {k: int(status[k].split()[0]) * 1024 for k in ("RssAnon", "RssFile", "RssShmem", "VmHWM")}
    except (OSError, KeyError):
        return None
    return Held(found["RssAnon"] + found["RssFile"], owned, found["RssShmem"], found["VmHWM"], descriptors)


def _descriptors(pid: int) -> tuple[int, int]:
    """Bytes of the shared memories that a process made, and how many descriptors it has open.

    Who made one has it open for writing, who attached it for reading only.
    """
    folder, made = f"/proc/{pid}/fd", {}
    names = os.listdir(folder)
    for name in names:
        path = f"{folder}/{name}"
        try:
            if os.readlink(path).startswith(SHARED) and _writes(pid, name):
                found = os.stat(path)
                made[found.st_ino] = found.st_blocks * 512
        except OSError:
            continue  # closed meanwhile
    return sum(made.values()), len(names)


def _writes(pid: int, descriptor: str) -> bool:
    info = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text()
    flags = int(next(line.split()[1] for line in info.splitlines() if line.startswith("flags:")), 8)
    return flags & os.O_ACCMODE == os.O_RDWR


def proportional(pid: int) -> dict[str, int]:
    """Pss and shared bytes of a process as the kernel divides them among all who map them (smaps_rollup)."""
    found = {"Pss": 0, "Pss_Shmem": 0, "Shared_Clean": 0, "Shared_Dirty": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":", 1)
        if name in found:
            found[name] = int(value.split()[0]) * 1024
    return found


class Watch:
    """Samples processes on a thread of its own until `stop`; the most that each held."""

    def __init__(self, pids: Iterable[int], every_s: float = 0.02) -> None:
        self.most: dict[int, Held] = {pid: Held() for pid in pids}
        self._every_s, self._over = every_s, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self.look()

    def look(self) -> None:
        for pid, most in self.most.items():
            now = held(pid)
            if now is not None:
                self.most[pid] = most.most(now)

    def stop(self) -> dict[int, Held]:
        self._over.set()
        self._thread.join()
        self.look()
        return self.most
