"""The batches of a dataset task, as a state machine: read, given, finished. No clock, no sockets, no threads.

A batch is given to one worker at a time. It goes to another one when its worker is lost, or leaves, before it has
finished it. An epoch is over when all its batches are finished; so in each epoch every batch is finished once.

    batches in memory <= ahead + the windows of the workers
"""

from __future__ import annotations

from collections import deque
from typing import Any

from dps.errors import Aborted, ConfigError
from dps.queues.line import Action, Client, Ended, Line

READER = 0
"""The client of the queue that puts batches in."""


class Feed:
    """The epochs of a dataset, one after the other."""

    def __init__(self, name: str, ahead: int, position: dict[str, Any]) -> None:
        """`ahead`: batches that are kept ready. `position`: as of `position`."""
        self._name, self._ahead = name, ahead
        self._workers: dict[Client, tuple[str, str]] = {}
        """The name and address of each worker."""
        self.begin(position)

    # -- epochs ------------------------------------------------------------------------------------------------

    def begin(self, position: dict[str, Any]) -> None:
        """Begin the epoch of a position; the reader reads from there on."""
        start = checked(position)
        self.line = Line(self._name, self._ahead)
        self.line.open(READER, "the reader", "")
        self.epoch: int = start["from"]["epoch"]
        self._skipped = set(start["finished"])
        """The batches from here on that an earlier run has finished."""
        self._base: dict[str, Any] = start["from"]
        """The dataset's position before all batches that are not finished."""
        self._after: deque[tuple[int, dict[str, Any]]] = deque()
        """Numbers of the batches read since, and the dataset's position after each."""
        self._finished = set(self._skipped)
        self._read = 0

    @property
    def over(self) -> bool:
        """Whether all batches of the epoch are finished."""
        return self.line.over

    def room(self) -> bool:
        """Whether another batch can be taken."""
        return len(self.line.items) < self._ahead

    def came(self, value: Any, after: dict[str, Any]) -> list[Action]:
        """The reader has read a batch; `after` is the dataset's position then."""
        number, self._read = self._read, self._read + 1
        self._after.append((number, after))
        if number in self._skipped:
            self._advance()
            return []
        return self.line.put(READER, number + 1, (number, value), None)

    def ended(self) -> list[Action]:
        """The reader is at the end of the epoch."""
        return self.line.close()

    # -- workers -----------------------------------------------------------------------------------------------

    def join(self, worker: Client, name: str, address: str) -> None:
        """A worker begins; a second call changes nothing."""
        self._workers.setdefault(worker, (name, address))

    def want(
        self, worker: Client, epoch: int, number: int, floor: int, finished: list[int], asker: Any
    ) -> list[Action]:
        """A worker asks for a batch, perhaps again, and reports the batches that it has finished."""
        self._check(worker)
        if epoch != self.epoch:
            return [Ended(asker)] if epoch < self.epoch else []
        self.line.open(worker, *self._workers[worker])
        actions = self._finish(worker, floor, finished)
        return [*actions, *self.line.get(worker, number, floor, asker)]

    def waits(self, worker: Client, epoch: int, number: int) -> bool:
        """Whether a worker waits for a batch."""
        return epoch > self.epoch or (epoch == self.epoch and self.line.get_waits(worker, number))

    def finish(self, worker: Client, epoch: int, floor: int, finished: list[int]) -> list[Action]:
        """A worker reports the batches that it has finished, and asks for none."""
        self._check(worker)
        if epoch != self.epoch or worker not in self.line.clients:
            return []
        return self._finish(worker, floor, finished)

    def leave(self, worker: Client, epoch: int, floor: int, finished: list[int]) -> list[Action]:
        """A worker ends its pass: its unfinished batches go to others."""
        if worker not in self._workers:
            return []
        actions = self.finish(worker, epoch, floor, finished)
        del self._workers[worker]
        return [*actions, *self.line.leave(worker)] if epoch == self.epoch else actions

    def lost(self, address: str) -> list[Action]:
        """A node is lost, and its workers with it."""
        return self.line.lost(address)

    def address(self, worker: Client) -> str:
        """The node of a worker; "" for one that is not known."""
        return self._workers.get(worker, ("", ""))[1]

    def _check(self, worker: Client) -> None:
        if worker not in self._workers:
            raise Aborted(f"dataset {self._name!r} does not know this worker; it was started again")

    def _finish(self, worker: Client, floor: int, finished: list[int]) -> list[Action]:
        actions: list[Action] = []
        given = self.line.clients[worker].given
        for number in [n for n in given if n < floor or n in finished]:
            self._finished.add(given[number].value[0])
            actions += self.line.finish(worker, number)[1]
        self._advance()
        return actions

    def _advance(self) -> None:
        while self._after and self._after[0][0] in self._finished:
            number, self._base = self._after.popleft()
            self._finished.discard(number)

    # -- for people and checkpoints ----------------------------------------------------------------------------

    @property
    def position(self) -> dict[str, Any]:
        """The finished batches: all before the dataset's position `from`, and these of the next ones."""
        first = self._after[0][0] if self._after else self._read
        return {"from": self._base, "finished": sorted(number - first for number in self._finished)}

    def counts(self) -> dict[str, Any]:
        """The epoch, how many of its batches are finished and wait for a worker, and how many each worker has. Any
        thread may call it."""
        open_ones = list(self._after)  # the node's thread may change it meanwhile
        finished = (open_ones[0][0] if open_ones else self._read) + len(self._finished)
        held = [(client.name, len(client.given)) for key, client in list(self.line.clients.items()) if key != READER]
        given = dict.fromkeys(sorted(name for name, _ in held), 0)
        for name, count in held:
            given[name] += count
        return {"epoch": self.epoch, "finished": finished, "ready": len(self.line.items), "given": given}

    def unfinished(self) -> list[str]:
        """The workers that have unfinished batches."""
        return sorted(client.name for client in self.line.clients.values() if client.given)


def checked(position: Any) -> dict[str, Any]:
    """The position, if it is one of a feed; ConfigError otherwise."""
    if not isinstance(position, dict) or position.keys() != {"from", "finished"} or "epoch" not in position["from"]:
        raise ConfigError(f"position: got {position!r:.60}, wanted the position of a dataset that is served")
    return position
