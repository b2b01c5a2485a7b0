"""A session's published versions: publishes one, and pulls one by its number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dps.client.connection import Connection
from dps.client.pulling import Pulls, check_places, filled
from dps.client.waiting import Waiter
from dps.messages.replies import Published
from dps.messages.runs import Publish, PublishedIs


class Publications:
    """These calls of one session."""

    def __init__(self, connection: Connection, waiter: Waiter, pulls: Pulls) -> None:
        self._connection, self._waiter, self._pulls = connection, waiter, pulls

    def publish(self, label: str, timeout: float | None) -> Published:
        """As Session.publish."""
        self._waiter.check_open()
        if not isinstance(label, str):
            raise TypeError(f"publish: got {label!r:.80} as label, wanted text")
        connection = self._connection
        answer = self._waiter.retrying(
            lambda deadline: connection.ask(Publish(connection.number, label), deadline, "the publication"), timeout
        )
        return published_of(answer)

    def pull(self, published: Published | int, names: Sequence[str] | None, out: Any, timeout: float | None) -> Any:
        """As Session.pull of a published version."""
        self._waiter.check_open()
        if isinstance(published, Published):
            run = str(self._connection.agreed.settings.get("run", ""))
            if published.run != run:
                raise ValueError(f"pull: {published} is of another run than this, whose name is {run}")
            published = published.number
        if isinstance(published, bool) or not isinstance(published, int) or published < 1:
            raise ValueError(f"pull: got published={published!r:.80}, wanted a dps.Published or its number, from 1")
        if out is not None:
            check_places(self._connection.agreed.plan, out)
        values = self._pulls.published(published, names, timeout)
        return values if out is None else filled(out, values, lambda name, here, value: None)


def published_of(answer: object) -> Published:
    """The version of which the chief tells."""
    assert isinstance(answer, PublishedIs)
    return Published(answer.run, answer.number, answer.label, answer.step)
