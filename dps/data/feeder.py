"""The actor that serves a dataset: a task that reads ahead, and batches for workers under their credit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.actors.actor import Actor
from dps.actors.messages import Waiting
from dps.actors.patience import FIRST_S
from dps.actors.ref import Ref, Sender
from dps.data.feed import Feed, checked
from dps.data.messages import (
    AskPosition,
    Batch,
    EpochEnded,
    FeedIs,
    Finish,
    JoinFeed,
    LeaveFeed,
    PositionIs,
    Want,
)  # fmt: skip
from dps.data.prefetching import Handover
from dps.errors import DataError
from dps.queues.directory import ANNOUNCE_S, DIRECTORY, Announce
from dps.queues.line import Action, Ended, Given
from dps.telemetry import log
from dps.variables.items import pack

if TYPE_CHECKING:
    from dps.data.dataset import Dataset, Iterator


GRACE_S = 1.0
"""How long a worker's node may be disconnected before its batches go to others."""


class DatasetActor(Actor):
    """Reads a dataset on a task of its own, and gives its batches out."""

    def __init__(
        self, dataset: Dataset, name: str, ahead: int, position: dict[str, Any] | None, chief: str, tasks: int = 0
    ) -> None:
        """`tasks`: how many tasks serve under this name; 0: it is not known."""
        self._dataset, self._served, self._chief, self._tasks = dataset, name, Ref(chief, DIRECTORY), tasks
        first: Iterator = dataset.iterator(None if position is None else checked(position)["from"])
        self.feed = Feed(name, ahead, position or {"from": first.position, "finished": []})
        self.error: Exception | None = None
        """The error that ended the reading."""
        self._reading, self._line = first, Handover(1)
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
        node.runtime.spawn(f"read {self._served}", lambda: read(iterator, line, lambda: node.post(self._fetch)))

    def _fetch(self) -> None:
        """Take batches that the reader has ready, while there is room."""
        while self.feed.room() and (found := self._line.poll()) is not None:
            value, after = found
            self._came_at = self.node.now()
            if isinstance(value, Exception):
                self.error = value
                log.error("%s: dataset %r: %s", self.node.name, self._served, value)
                self._carry_out(self.feed.ended())
            elif value is None:
                self._carry_out(self.feed.ended())
            else:
                self._carry_out(self.feed.came(value, after))

    def _next_epoch(self) -> None:
        self._reading, self._line = self._dataset.iterator(), Handover(1)
        self.feed.begin({"from": self._reading.position, "finished": []})
        self._begin_reading()

    # -- workers -----------------------------------------------------------------------------------------------

    def on_JoinFeed(self, message: JoinFeed, sender: Sender) -> None:
        address = self.node.dials(message.address)
        self.feed.join(sender.client(message.client), message.name, address)
        self.node.watch(address, GRACE_S)
        begun = self.feed.over and self.error is None
        self.node.answer(sender, FeedIs(self.node.name, self.feed.epoch + begun))

    def on_Want(self, message: Want, sender: Sender) -> None:
        feed, client, epoch = self.feed, sender.client(message.client), message.epoch
        if message.epoch == feed.epoch + 1 and feed.over and self.error is None:
            self._next_epoch()
        address = feed.address(client)
        if address:
            self.node.watch(address, GRACE_S)  # it may have been lost before
        self._carry_out(feed.want(client, epoch, message.number, message.floor, message.finished, sender))
        self._fetch()
        if feed.waits(client, epoch, message.number):
            self._tell_waiting(sender)
            self.node.after(FIRST_S, lambda: self._tell_again(message, sender))

    def _tell_again(self, message: Want, sender: Sender) -> None:
        if self.feed.waits(sender.client(message.client), message.epoch, message.number):
            self._tell_waiting(sender)

    def _tell_waiting(self, sender: Sender) -> None:
        feed, since_s = self.feed, self.node.now() - self._came_at
        if feed.line.closed:
            text = f"waits for {', '.join(feed.unfinished())} to finish the last batches of epoch {feed.epoch}"
        else:
            text = f"has been reading the next batch for {since_s:.0f} s"
        self.node.answer(sender, Waiting(f"{self.node.name} {text}"))

    def on_Finish(self, message: Finish, sender: Sender) -> None:
        self._carry_out(self.feed.finish(sender.client(message.client), message.epoch, message.floor, message.finished))
        self.node.answer(sender)

    def on_LeaveFeed(self, message: LeaveFeed, sender: Sender) -> None:
        client = sender.client(message.client)
        self._carry_out(self.feed.leave(client, message.epoch, message.floor, message.finished))
        self._fetch()
        self.node.answer(sender)

    def on_AskPosition(self, message: AskPosition, sender: Sender) -> None:
        self.node.answer(sender, PositionIs(self.node.name, self.feed.position))

    def lost(self, address: str, silent_s: float) -> None:
        self._carry_out(self.feed.lost(address))
        self.node.unwatch(address)

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Given):
                _, (form, arrays) = action.value
                self.node.answer(action.asker, Batch(action.number, form, arrays))
            elif isinstance(action, Ended):
                self.node.answer(action.asker, self._end())

    def _end(self) -> EpochEnded | Exception:
        if self.error is not None:
            return DataError(f"{self.node.name}: {self.error}")
        return EpochEnded(self.feed.epoch)


def read(iterator: Iterator, line: Handover, tell: Callable[[], None]) -> None:
    """Read a pass to its end, as fast as batches are taken."""
    value: Any = ()
    while value is not None and not isinstance(value, Exception):
        try:
            batch = next(iterator, None)
            value = None if batch is None else pack(batch)
        except Exception as error:
            value = error
        if not line.put((value, iterator.position), tell):
            break
    iterator.close()
