"""The nodes that the chief knows: which ps and workers have registered, from where, in which process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class KnownNode:
    """A node that registered. `alive` is false from its loss until it registers again."""

    address: str
    process: int
    alive: bool = True


class Nodes:
    """The tasks of one job."""

    def __init__(self, job: str, expected: Sequence[int]) -> None:
        """`expected`: task indices that the cluster names; empty when they are not known."""
        self.job, self.expected = job, list(expected)
        self.known: dict[int, KnownNode] = {}

    def register(self, task: int, address: str, process: int) -> tuple[int, bool]:
        """Note a node; returns its task (chosen when -1) and whether another process has taken a task's place."""
        if task < 0:
            task = next((t for t, n in self.known.items() if n.process == process), -1)
        if task < 0:
            taken = [t for t, n in self.known.items() if n.alive]
            task = next((t for t in self.expected if t not in taken), -1)
            if task < 0:
                task = next(t for t in range(len(taken) + 1) if t not in taken)
        before = self.known.get(task)
        replaced = before is not None and before.process != process
        self.known[task] = KnownNode(address, process)
        return task, replaced

    def at(self, address: str) -> int | None:
        """The task of a living node by its address."""
        return next((t for t, n in self.known.items() if n.address == address and n.alive), None)

    def missing(self) -> list[int]:
        """Expected tasks that are not there (or not there any more)."""
        expected = self.expected or list(self.known)
        return [t for t in expected if t not in self.known or not self.known[t].alive]

    def addresses(self) -> dict[int, str]:
        return {t: n.address for t, n in sorted(self.known.items())}
