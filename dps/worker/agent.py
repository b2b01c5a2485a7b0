"""The agent on every node: joins the cluster at the chief, stays known there, and takes the order to end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dps.actors.actor import Actor
from dps.actors.patience import FIRST_S, Patience
from dps.actors.ref import Ref, Sender
from dps.errors import DeadlineExceeded
from dps.protocol import CHIEF, Drain, Leave, Register, Registered, StopTask
from dps.transport.message import Message

log = logging.getLogger("dps")

BEAT_S = 2.0
"""How often a node registers anew, so that a restarted chief learns of it."""
CHIEF_S = 60.0
"""How long a node waits for a chief that is away before it gives the run up."""
LEAVE_S = 60.0
"""How long a ps that was told to end waits for the run to let it go."""
LEFT = 143
"""The exit code of a ps that left while the run went on: 128 and the number of SIGTERM."""


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
        drained: Callable[[str], None] = lambda reason: None,
        start_the_chief: str = "",
    ) -> None:
        """`epoch` tells the highest run epoch this node has seen; `joined` gets the task and the cluster, each time;
        `ended` the exit code and the reason, once; `drained` why this node's loop is to stop after its step, each time
        that the chief says so. `start_the_chief`: the command that does, told while it is missing; "": nothing is."""
        self.job, self.task, self.chief, self.process = job, task, Ref(chief, CHIEF), process
        self._update, self._epoch, self._joined, self._ended = update, epoch, joined, ended
        self._drained = drained
        self._heard_at = 0.0
        self._known = False
        """The chief has answered."""
        self._start_the_chief, self._patience = start_the_chief, Patience()
        self._beats = 0
        self._leaving = False
        self._over = False

    def started(self) -> None:
        self._heard_at = self.node.now()
        self._register()

    def stopping(self) -> None:
        """The program ends by itself: the chief need not look for this node when the run is over."""
        if not self._over and self.job == "worker" and self.task >= 0:
            self.node.tell(self.chief, Leave(self.job, self.task, ""))

    def leave(self, why: str) -> None:
        """This task was told to end, on the node's thread: the run is asked to let it go first."""
        if self._leaving or self._over:
            return
        self._leaving = True
        if not self._known:
            self._end(0, "")
            return

        def answered(answer: Message | Exception) -> None:
            if isinstance(answer, StopTask):
                self._end(answer.code, answer.reason)
            else:
                self._end(LEFT, f"{why}; the run goes on without it")

        self.node.ask(self.chief, Leave(self.job, self.task, why), LEAVE_S, answered)

    def _register(self) -> None:
        if self._over or self._leaving:
            return
        message = Register(self.job, self.task, self.node.address, self.process, self._epoch(), self._update)
        left = self._heard_at + CHIEF_S - self.node.now()  # an answer counts however late: a chief may be busy
        self._beats += 1
        self.node.ask(self.chief, message, max(BEAT_S, left), self._registered)
        if self._start_the_chief:
            self._tell(self._beats)

    def _tell(self, beat: int) -> None:
        """Say that the chief is waited for, while this beat has no answer."""
        if self._over or self._leaving or beat != self._beats:
            return
        if self._patience.due(self.node.now()):
            what = f"waits for the chief at {self.chief.address}; start it with: {self._start_the_chief}"
            log.warning("%s: %s", self.node.name, what)
        self.node.after(FIRST_S, lambda: self._tell(beat))

    def _registered(self, answer: Message | Exception) -> None:
        if self._over or self._leaving:
            return
        now = self.node.now()
        if isinstance(answer, Registered):
            self._heard_at, self._known = now, True
            self._beats += 1
            self._patience.over()
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

    def on_Drain(self, message: Drain, sender: Sender) -> None:
        self._drained(message.reason)

    def _end(self, code: int, reason: str) -> None:
        if not self._over:
            self._over = True
            self._ended(code, reason)
