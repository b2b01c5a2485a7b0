"""A gate of a shard that commits versions a while after they are published."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from dps.actors.node import Node
from dps.actors.ref import Sender
from dps.messages.sessions import Pushed
from dps.ps.shard import Shard
from dps.ps.store.store import Store
from dps.transport.message import Form, Message


@contextmanager
def late_commits(most_s: float) -> Iterator[None]:
    """Within it, shards that are made have a `CommitGate`; with 0 s none has."""
    with pytest.MonkeyPatch.context() as patch:
        if most_s:
            patch.setattr(
                Shard, "_gate", lambda shard: CommitGate(shard.node, shard.store, most_s, lambda: shard.ended)
            )
        yield


class CommitGate:
    """Keeps each answer until all versions are committed that were published before it was given, and for the result of
    a push the version of that push. Answers leave in the order in which they were given.

    Nothing of dps commits later than it publishes yet. Here a version is committed after a random time, as if it had to
    be written somewhere first."""

    def __init__(self, node: Node, store: Store, most_s: float, ended: Callable[[], bool]) -> None:
        """`most_s`: the longest time from the first answer that a version keeps to its commit, seconds. `ended`:
        whether the run epoch is over; then nothing leaves any more."""
        self._node, self._store, self._most_s, self._ended = node, store, most_s, ended
        self.committed = store.counter
        """The newest version that is committed."""
        self._asked = self.committed
        """The newest version that is to be committed."""
        self._at = 0.0
        """When the last commit is due."""
        self._kept: deque[tuple[int, Callable[[], Any]]] = deque()
        """The answers, each with the version that it waits for."""

    def answer(
        self, sender: Sender, message: Message | Exception | None = None, done: Callable[[], None] | None = None
    ) -> None:
        self._keep(message, partial(self._node.answer, sender, message, done))

    def answer_now(self, sender: Sender, message: Message) -> None:
        self._keep(message, partial(self._node.answer_now, sender, message))

    def answer_plain(self, sender: Sender, form: Form, integers: Sequence[int]) -> None:
        self._keep(None, partial(self._node.answer_plain, sender, form, integers))

    def _keep(self, message: Message | Exception | None, leave: Callable[[], Any]) -> None:
        counter = max(self._store.counter, message.counter if isinstance(message, Pushed) else 0)
        if counter > self._asked:
            now = self._node.now()
            self._asked = counter
            self._at = max(self._at, now + self._node.runtime.random.uniform(0.0, self._most_s))
            self._node.after(self._at - now, partial(self._commit, counter))
        self._kept.append((counter, leave))
        self._let_out()

    def _commit(self, counter: int) -> None:
        self.committed = max(self.committed, counter)
        self._let_out()

    def _let_out(self) -> None:
        if self._ended():
            self._kept.clear()
        while self._kept and self._kept[0][0] <= self.committed:
            self._kept.popleft()[1]()
