"""The actor that serves a dataset: a task that reads ahead, and batches for workers under their credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.actors.actor import Actor
from dps.actors.answers import Waiting
from dps.actors.ref import Ref, Sender
from dps.data.messages import (
    AskPosition,
    Batch,
    EpochEnded,
    FeedIs,
    FinishBatches,
    JoinFeed,
    LeaveFeed,
    PositionIs,
    Want,
)  # fmt: skip
from dps.data.prefetching import PrefetchQueue
from dps.data.stage import check_position
from dps.errors import Aborted, ConfigError, DataError
from dps.process.telemetry import FIRST_S, log
from dps.queues.directory import ANNOUNCE_S, DIRECTORY, Announce
from dps.queues.state import Action, Client, Ended, Given, QueueState
from dps.training.definition import whole_number
from dps.variables.items import pack

if TYPE_CHECKING:
    from dps.data.dataset import Dataset, Iterator


READER = 0
"""The client of the queue that puts batches in."""


class Feed:
    """The epochs of a dataset, one after the other."""

    def __init__(self, name: str, ahead: int, position: dict[str, Any]) -> None:
        """`ahead`: batches that are kept ready. `position`: as of `position`."""
        self._name, self._ahead = name, ahead
        self._workers: dict[Client, tuple[str, str]] = {}
        """The name and address of each worker."""
        self.begin_epoch(position)

    # -- epochs ------------------------------------------------------------------------------------------------

    def begin_epoch(self, position: dict[str, Any]) -> None:
        """Begin the epoch of a position; the reader reads from there on."""
        start = checked_position(position)
        self.line = QueueState(self._name, self._ahead)
        self.line.add_client(READER, "the reader", "")
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
    def is_over(self) -> bool:
        """Whether all batches of the epoch are finished."""
        return self.line.is_over

    def has_room(self) -> bool:
        """Whether another batch can be taken."""
        return len(self.line.items) < self._ahead

    def add_batch(self, value: Any, after: dict[str, Any]) -> list[Action]:
        """The reader has read a batch; `after` is the dataset's position then."""
        number, self._read = self._read, self._read + 1
        self._after.append((number, after))
        if number in self._skipped:
            self._advance_position()
            return []
        return self.line.put(READER, number + 1, (number, value), None)

    def end_reading(self) -> list[Action]:
        """The reader is at the end of the epoch."""
        return self.line.close()

    # -- workers -----------------------------------------------------------------------------------------------

    def add_worker(self, worker: Client, name: str, address: str) -> None:
        """A worker begins; a second call changes nothing."""
        self._workers.setdefault(worker, (name, address))

    def request_batch(
        self, worker: Client, epoch: int, number: int, floor: int, finished: list[int], asker: Any
    ) -> list[Action]:
        """A worker asks for a batch, perhaps again, and reports the batches that it has finished."""
        self._check_known(worker)
        if epoch != self.epoch:
            return [Ended(asker)] if epoch < self.epoch else []
        self.line.add_client(worker, *self._workers[worker])
        actions = self._record_finished(worker, floor, finished)
        return [*actions, *self.line.get(worker, number, floor, asker)]

    def is_waiting(self, worker: Client, epoch: int, number: int) -> bool:
        """Whether a worker waits for a batch."""
        return epoch > self.epoch or (epoch == self.epoch and self.line.is_get_waiting(worker, number))

    def finish_batches(self, worker: Client, epoch: int, floor: int, finished: list[int]) -> list[Action]:
        """A worker reports the batches that it has finished, and asks for none."""
        self._check_known(worker)
        if epoch != self.epoch or worker not in self.line.clients:
            return []
        return self._record_finished(worker, floor, finished)

    def remove_worker(self, worker: Client, epoch: int, floor: int, finished: list[int]) -> list[Action]:
        """A worker ends its pass: its unfinished batches go to others."""
        if worker not in self._workers:
            return []
        actions = self.finish_batches(worker, epoch, floor, finished)
        del self._workers[worker]
        return [*actions, *self.line.remove_client(worker)] if epoch == self.epoch else actions

    def drop_node(self, address: str) -> list[Action]:
        """A node is lost, and its workers with it."""
        return self.line.drop_node(address)

    def address_of(self, worker: Client) -> str:
        """The node of a worker; "" for one that is not known."""
        return self._workers.get(worker, ("", ""))[1]

    def _check_known(self, worker: Client) -> None:
        if worker not in self._workers:
            raise Aborted(f"dataset {self._name!r} does not know this worker; it was started again")

    def _record_finished(self, worker: Client, floor: int, finished: list[int]) -> list[Action]:
        actions: list[Action] = []
        given = self.line.clients[worker].given
        for number in [n for n in given if n < floor or n in finished]:
            self._finished.add(given[number].value[0])
            actions += self.line.finish_get(worker, number)[1]
        self._advance_position()
        return actions

    def _advance_position(self) -> None:
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


def checked_position(position: Any) -> dict[str, Any]:
    """The position, if it is one of a feed; ConfigError otherwise."""
    is_one = isinstance(position, dict) and position.keys() == {"from", "finished"}
    if not is_one or not isinstance(position["finished"], list):
        raise ConfigError(f"position: got {position!r:.60}, wanted the position of a dataset that is served")
    check_position(position["from"])
    for number in position["finished"]:
        whole_number("position: got finished batch ", number, 0)
    found: dict[str, Any] = position
    return found


GRACE_S = 1.0
"""How long a worker's node may be disconnected before its batches go to others."""


class DatasetActor(Actor):
    """Reads a dataset on a task of its own, and gives its batches out."""

    def __init__(
        self, dataset: Dataset, name: str, ahead: int, position: dict[str, Any] | None, chief: str, tasks: int = 0
    ) -> None:
        """`tasks`: how many tasks serve under this name; 0: it is not known."""
        self._dataset, self._served, self._chief, self._tasks = dataset, name, Ref(chief, DIRECTORY), tasks
        first: Iterator = dataset.iterator(None if position is None else checked_position(position)["from"])
        self.feed = Feed(name, ahead, position or {"from": first.position, "finished": []})
        self.error: Exception | None = None
        """The error that ended the reading."""
        self._reading, self._line = first, PrefetchQueue(1)
        self._came_at = 0.0

    def started(self) -> None:
        self._came_at = self.node.now()
        self._announce()
        self._begin_reading()

    def stopping(self) -> None:
        self._line.close()

    def _announce(self) -> None:
        said = Announce(self._served, self.node.address, self._tasks)
        self.node.ask(self._chief, said, ANNOUNCE_S, lambda answer: None)
        self.node.after(ANNOUNCE_S, self._announce)

    # -- the reader --------------------------------------------------------------------------------------------

    def _begin_reading(self) -> None:
        line, iterator, node = self._line, self._reading, self.node
        node.runtime.spawn(
            f"read {self._served}", lambda: read_pass(iterator, line, lambda: node.post(self._fetch_batches))
        )

    def _fetch_batches(self) -> None:
        """Take batches that the reader has ready, while there is room."""
        while self.feed.has_room() and (found := self._line.poll()) is not None:
            value, after = found
            self._came_at = self.node.now()
            if isinstance(value, Exception):
                self.error = value
                log.error("%s: dataset %r: %s", self.node.name, self._served, value)
                self._carry_out_actions(self.feed.end_reading())
            elif value is None:
                self._carry_out_actions(self.feed.end_reading())
            else:
                self._carry_out_actions(self.feed.add_batch(value, after))

    def _begin_next_epoch(self) -> None:
        self._reading, self._line = self._dataset.iterator(), PrefetchQueue(1)
        self.feed.begin_epoch({"from": self._reading.position, "finished": []})
        self._begin_reading()

    # -- workers -----------------------------------------------------------------------------------------------

    def on_JoinFeed(self, message: JoinFeed, sender: Sender) -> None:
        address = self.node.dial_address(message.address)
        self.feed.add_worker(sender.client(message.client), message.name, address)
        self.node.watch(address, GRACE_S)
        begun = self.feed.is_over and self.error is None
        self.node.answer(sender, FeedIs(self.node.name, self.feed.epoch + begun))

    def on_Want(self, message: Want, sender: Sender) -> None:
        feed, client, epoch = self.feed, sender.client(message.client), message.epoch
        if message.epoch == feed.epoch + 1 and feed.is_over and self.error is None:
            self._begin_next_epoch()
        address = feed.address_of(client)
        if address:
            self.node.watch(address, GRACE_S)  # it may have been lost before
        self._carry_out_actions(
            feed.request_batch(client, epoch, message.number, message.floor, message.finished, sender)
        )
        self._fetch_batches()
        if feed.is_waiting(client, epoch, message.number):
            self._tell_waiting(sender)
            self.node.after(FIRST_S, lambda: self._tell_again(message, sender))

    def _tell_again(self, message: Want, sender: Sender) -> None:
        if self.feed.is_waiting(sender.client(message.client), message.epoch, message.number):
            self._tell_waiting(sender)

    def _tell_waiting(self, sender: Sender) -> None:
        feed, since_s = self.feed, self.node.now() - self._came_at
        if feed.line.closed:
            text = f"waits for {', '.join(feed.unfinished())} to finish the last batches of epoch {feed.epoch}"
        else:
            text = f"has been reading the next batch for {since_s:.0f} s"
        self.node.answer(sender, Waiting(f"{self.node.name} {text}"))

    def on_FinishBatches(self, message: FinishBatches, sender: Sender) -> None:
        self._carry_out_actions(
            self.feed.finish_batches(sender.client(message.client), message.epoch, message.floor, message.finished)
        )
        self.node.answer(sender)

    def on_LeaveFeed(self, message: LeaveFeed, sender: Sender) -> None:
        client = sender.client(message.client)
        self._carry_out_actions(self.feed.remove_worker(client, message.epoch, message.floor, message.finished))
        self._fetch_batches()
        self.node.answer(sender)

    def on_AskPosition(self, message: AskPosition, sender: Sender) -> None:
        self.node.answer(sender, PositionIs(self.node.name, self.feed.position))

    def lost(self, address: str, silent_s: float) -> None:
        self._carry_out_actions(self.feed.drop_node(address))
        self.node.unwatch(address)

    def _carry_out_actions(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Given):
                _, (form, arrays) = action.value
                self.node.answer(action.asker, Batch(action.number, form, arrays))
            elif isinstance(action, Ended):
                self.node.answer(action.asker, self._end_answer())

    def _end_answer(self) -> EpochEnded | Exception:
        if self.error is not None:
            return DataError(f"{self.node.name}: {self.error}")
        return EpochEnded(self.feed.epoch)


def read_pass(iterator: Iterator, line: PrefetchQueue, tell: Callable[[], None]) -> None:
    """Read a pass to its end, as fast as batches are taken."""
    value: Any = ()
    end = object()  # a function that returns None makes elements, too
    while value is not None and not isinstance(value, Exception):
        try:
            batch = next(iterator, end)
            value = None if batch is end else pack(batch)
        except Exception as error:
            value = error
        if not line.put((value, iterator.position), tell):
            break
    iterator.close()
