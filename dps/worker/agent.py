"""The agent on every node: joins the cluster at the chief, stays known there, and takes the order to end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dps.actors.actor import Actor
from dps.actors.ref import Ref, Sender
from dps.errors import DeadlineExceeded
from dps.protocol import CHIEF, Leave, Register, Registered, StopTask
from dps.transport.message import Message

log = logging.getLogger("dps")

BEAT_S = 2.0
"""How often a node registers anew, so that a restarted chief learns of it."""
CHIEF_S = 60.0
"""How long a node waits for a chief that is away before it gives the run up."""


class Agent(Actor):
    """Registers its node with the chief until that answers, and again and again after."""

    def __init__(
        self,
        job: str,
        task: int,
        chief: str,
        process: int,
        update: dict[str, Any],
        epoch: Callable[[], int],
        joined: Callable[[int, dict[str, Any]], None],
        ended: Callable[[int, str], None],
    ) -> None:
        """`epoch` tells the highest run epoch this node has seen; `joined` gets the task and the cluster, each time;
        `ended` the exit code and the reason, once."""
        self.job, self.task, self.chief, self.process = job, task, Ref(chief, CHIEF), process
        self._update, self._epoch, self._joined, self._ended = update, epoch, joined, ended
        self._heard_at = 0.0
        self._over = False

    def started(self) -> None:
        self._heard_at = self.node.runtime.now()
        self._register()

    def stopping(self) -> None:
        """The program ends by itself: the chief need not look for this node when the run is over."""
        if not self._over and self.job == "worker" and self.task >= 0:
            self.node.tell(self.chief, Leave(self.job, self.task, ""))

    def _register(self) -> None:
        if self._over:
            return
        message = Register(self.job, self.task, self.node.address, self.process, self._epoch(), self._update)
        left = self._heard_at + CHIEF_S - self.node.runtime.now()  # an answer counts however late: a chief may be busy
        self.node.ask(self.chief, message, max(BEAT_S, left), self._registered)

    def _registered(self, answer: Message | Exception) -> None:
        if self._over:
            return
        now = self.node.runtime.now()
        if isinstance(answer, Registered):
            self._heard_at = now
            self.task = answer.task
            self._joined(answer.task, answer.cluster)
            self.node.after(BEAT_S, self._register)
        elif isinstance(answer, StopTask):
            self._end(answer.code, answer.reason)
        elif isinstance(answer, DeadlineExceeded):
            if now - self._heard_at > CHIEF_S:
                self._end(3, f"the chief at {self.chief.address} was silent for {now - self._heard_at:.0f} s")
            else:
                self._register()
        else:
            assert isinstance(answer, Exception)
            self._end(getattr(answer, "exit_code", 1), str(answer))

    def on_StopTask(self, message: StopTask, sender: Sender) -> None:
        self.node.answer(sender)
        self._end(message.code, message.reason)

    def _end(self, code: int, reason: str) -> None:
        if not self._over:
            self._over = True
            self._ended(code, reason)
