"""The agent on every node: joins the cluster at the chief, stays known there, and takes the order to end."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from dps.actors.actor import Actor
from dps.actors.authorization import digest
from dps.actors.ref import Ref, Sender
from dps.actors.standing import OUTSIDE
from dps.errors import DeadlineExceeded, DpsError, Unavailable
from dps.messages.runs import (
    CHIEF,
    AskNumbers,
    AskRun,
    Drain,
    Leave,
    NumbersAre,
    Register,
    Registered,
    RunIs,
    StopTask,
    TraceOrder,
)
from dps.process.telemetry import FIRST_S, LogThrottle, log
from dps.transport.message import Message
from dps.worker.joining import find_chief

BEAT_S = 2.0
"""How often a node registers again, so that a restarted chief learns of it."""
CHIEF_S = 60.0
"""How long a node waits for an absent chief before it gives the run up."""
SILENT_S = 5.0
"""How long after its last answer a chief that has told a node to wait counts as missing."""
LEAVE_S = 60.0
"""How long a ps that was told to end waits for the chief's permission to leave."""
LEFT = 143
"""The exit code of a ps that left while the run went on: 128 plus the number of SIGTERM."""


class Told(NamedTuple):
    """The methods of its task that an agent calls, on the node's thread."""

    epoch: Callable[[], int]
    """Returns the highest run epoch that this node has seen."""
    joined: Callable[[int, dict[str, Any]], None]
    """Gets the task's index and the expected tasks of each job, at each answer of the chief."""
    ended: Callable[[int, str], None]
    """Gets the exit code and the reason, once."""
    drained: Callable[[str], None] = lambda reason: None
    """Gets the reason each time the chief asks this node's loop to stop after its step."""
    led: Callable[[str, str, int], None] = lambda chief, job, task: None
    """Gets the chief's address where this client was given that of another task, and which task that is."""
    progress: Callable[[], list[Any]] = list
    """Returns how far the task's training has come, as `Register` has it."""
    traced: Callable[[TraceOrder, Sender], None] = lambda order, sender: None
    """Carries out and answers an order about a trace."""
    sent: Callable[[], list[Any]] = list
    """Returns which pushes the process's sessions have begun to send, as `NumbersAre` has it."""


class AgentState(Enum):
    """The state of an agent."""

    JOINING = "joining"
    """The chief has not answered yet."""
    KNOWN = "known"
    LEAVING = "leaving"
    """The task was told to end, and asks the chief."""
    OVER = "over"


class Agent(Actor):
    """Registers its node with the chief until the chief answers, and repeats that at intervals.

    More than 12 attributes: what it registers with, and how far it has come with the chief."""

    def __init__(
        self,
        job: str,
        task: int,
        chief: str,
        process: int,
        update: dict[str, Any],
        told: Told,
        start_the_chief: str = "",
    ) -> None:
        """`start_the_chief` is the command shown while the chief is missing, or ""."""
        self.job, self.task, self.chief, self.process = job, task, Ref(chief, CHIEF), process
        self._update, self._told = update, told
        self._state = AgentState.JOINING
        self._heard_at = 0.0
        self._start_the_chief, self._throttle = start_the_chief, LogThrottle()
        self._beats = 0
        self._told_at = -inf
        """When the chief last told this node to wait."""
        self._proof = b""
        self._unasked: Callable[[], None] = lambda: None
        """Drops the last request to the chief."""
        self._asked_for_chief = False
        """Whether it looks for the chief behind the address that it was given, or has done so."""

    def started(self) -> None:
        self._heard_at, self._proof = self.node.now(), self.node.runtime.secret()
        self.node.tickets.admit("chief", [[digest(self._proof), "the chief", "chief", ()]])
        self.node.present(self.chief.address)
        self._register()

    def stopping(self) -> None:
        """The program ends by itself: tell the chief, so that it does not look for this node at the end of the run."""
        if self._state is not AgentState.OVER and self.job == "worker" and self.task >= 0:
            self.node.tell(self.chief, Leave(self.job, self.task, ""))

    def leave(self, why: str) -> None:
        """This task was told to end: ask the chief for permission first. Runs on the node's thread."""
        if not self._is_active:
            return
        known, self._state = self._state is AgentState.KNOWN, AgentState.LEAVING
        if not known:
            self._end_task(0, "")
            return

        def answered(answer: Message | Exception) -> None:
            if isinstance(answer, StopTask):
                self._end_task(answer.code, answer.reason)
            else:
                self._end_task(LEFT, f"{why}; the run goes on without it")

        self.node.ask(self.chief, Leave(self.job, self.task, why), LEAVE_S, answered)

    def program_over(self) -> None:
        """The program of this worker, which hosts the chief, is over: register no more, as if it came back."""
        if self._is_active:
            self._state = AgentState.LEAVING

    @property
    def _is_active(self) -> bool:
        """Whether this task neither ends nor was told to."""
        return self._state in (AgentState.JOINING, AgentState.KNOWN)

    def _register(self) -> None:
        if not self._is_active:
            return
        left = self._heard_at + CHIEF_S - self.node.now()  # late answers count, too: a chief may be busy
        self._beats += 1
        asked = self.node.ask(
            self.chief, self._sign_of_life(), max(BEAT_S, left), self._registered, self._sign_of_life,
            self._told_to_wait,
        )  # fmt: skip
        self._unasked = asked
        if self._start_the_chief:
            self._log_waiting(self._beats)

    def _sign_of_life(self) -> Register:
        """Made anew for each resend: a chief that was started again asks the ps that have seen a run epoch by now."""
        who = self.job, self.task, self.node.address, self.process
        return Register(*who, self._told.epoch(), self._update, self._proof, self._told.progress())

    def _log_waiting(self, beat: int) -> None:
        """Log that this node waits for the chief, while this beat has no answer."""
        if not self._is_active or beat != self._beats:
            return
        now = self.node.now()
        if now - self._told_at > SILENT_S and self._throttle.is_due(now):
            what = f"waits for the chief at {self.chief.address}; start it with: {self._start_the_chief}"
            log.warning("%s: %s", self.node.name, what)
        self.node.after(FIRST_S, lambda: self._log_waiting(beat))

    def _told_to_wait(self, reason: str) -> None:
        """The chief answers, but does not let this task take part yet."""
        now = self.node.now()
        self._heard_at = self._told_at = now
        if self._throttle.is_due(now):
            log.warning("%s: the chief at %s says: %s", self.node.name, self.chief.address, reason)

    def _registered(self, answer: Message | Exception) -> None:
        if not self._is_active:
            return
        now = self.node.now()
        if isinstance(answer, Registered):
            self._heard_at, self._state = now, AgentState.KNOWN
            self._beats += 1
            self._throttle.end_wait()
            self.task = answer.task
            self._told.joined(answer.task, answer.expected)
            self.node.after(BEAT_S, self._register)
        elif isinstance(answer, StopTask):
            self._end_task(answer.code, answer.reason)
        elif isinstance(answer, DeadlineExceeded):
            if now - self._heard_at > CHIEF_S:
                self._end_task(3, f"the chief at {self.chief.address} was silent for {now - self._heard_at:.0f} s")
            else:
                self._register()
        elif isinstance(answer, Unavailable) and self.job in OUTSIDE and self._beats == 1:
            self._look_behind(answer)
        else:
            assert isinstance(answer, Exception)
            self._end_task(getattr(answer, "exit_code", 1), str(answer))

    def refused(self, address: str, error: DpsError) -> None:
        """The chief refuses the keys of this task, or this task those of the chief. A client may have been given the
        address of another task, which has another key."""
        if address != self.chief.address:
            return
        if self.job in OUTSIDE and self._beats == 1 and self._is_active:
            self._look_behind(error)
        else:
            self._end_task(error.exit_code, str(error))

    def _look_behind(self, refusal: DpsError) -> None:
        """There is no chief at the address that this client was given: ask the task there, on another thread, since
        that has to connect with other keys."""
        if self._asked_for_chief:
            return
        self._asked_for_chief, given, node = True, self.chief.address, self.node

        def look() -> None:
            found = find_chief(node.runtime, given, node.keys)
            node.post(lambda: self._follow_chief(found, refusal))

        node.runtime.spawn("looks for the chief", look)

    def _follow_chief(self, found: RunIs | None, refusal: DpsError) -> None:
        """The task at the address that this client was given has said where the chief is, or has not."""
        self._unasked()
        if found is None:
            self._end_task(refusal.exit_code, str(refusal))
            return
        self.node.unwatch(self.chief.address)
        self.chief = Ref(found.chief, CHIEF)
        self._told.led(found.chief, found.job, found.task)
        self.node.present(found.chief)
        self._register()

    def on_AskRun(self, message: AskRun, sender: Sender) -> None:
        self.node.answer(sender, RunIs(self.chief.address, self.job, self.task))

    def on_AskNumbers(self, message: AskNumbers, sender: Sender) -> None:
        self.node.answer(sender, NumbersAre(self._told.sent()))

    def on_StopTask(self, message: StopTask, sender: Sender) -> None:
        self.node.answer(sender)
        self._end_task(message.code, message.reason)

    def on_Drain(self, message: Drain, sender: Sender) -> None:
        self._told.drained(message.reason)

    def on_TraceOrder(self, message: TraceOrder, sender: Sender) -> None:
        self._told.traced(message, sender)

    def _end_task(self, code: int, reason: str) -> None:
        if self._state is not AgentState.OVER:
            self._state = AgentState.OVER
            self._told.ended(code, reason)
