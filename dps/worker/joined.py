"""Keeps the keys that have joined the run by tokens, as the chief tells them. On nodes with keys."""

from __future__ import annotations

from dps.actors.actor import Actor
from dps.actors.ref import Ref
from dps.errors import DeadlineExceeded
from dps.run_protocol import ENROLMENT, AskJoined, Joined
from dps.transport.keys import Accepted
from dps.transport.keys import Joined as JoinedKey
from dps.transport.message import Message

ASK_S = 60.0
"""How long one request for news waits."""
AGAIN_S = 2.0
"""Pause after an error."""


class JoinedKeys(Actor):
    """Asks the chief for news all the time. Answers come only over the connection to the chief's own key."""

    def __init__(self, chief: str, accepted: Accepted) -> None:
        self._chief, self._accepted = Ref(chief, ENROLMENT), accepted
        self._version = 0

    def started(self) -> None:
        self.node.ask(self._chief, AskJoined(self._version), ASK_S, self._heard)

    def _heard(self, answer: Message | Exception) -> None:
        if isinstance(answer, Joined):
            self._accepted.joined = {bytes(key): JoinedKey(str(role), bytes(under)) for key, role, under in answer.keys}
            self._version = answer.version
        if isinstance(answer, Joined | DeadlineExceeded):
            self.started()
        else:
            self.node.after(AGAIN_S, self.started)
