"""Pending requests as a state machine without sockets: numbers, deadlines and resends.

Each request has a number. It is sent, and sent again while no answer comes. Its `feed` gets every answer that carries
the number. It ends when `feed` returns True, because the answer is complete, or when its deadline passes. Handlers on
the other side are idempotent, so resending is always allowed. Late and duplicate answers find no request; they are
dropped.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from dps.actors.ref import Ref
from dps.transport.message import Message
from dps.transport.tuning import ORDINARY, NodeTuning

Feed = Callable[[Message], bool]
"""Takes one answer; returns True when the request is complete."""


class Request:
    """One open request; subclasses decide how to use its answers."""

    number = incarnation = 0
    """`incarnation`: of the session that it is of. It is sent again as that session's, also when the next one is
    there, which numbers its pushes from 1."""
    to: Ref
    complete = False
    deadline = resend_s = next_at = 0.0
    asked_at = 0.0
    """When it was sent, on the clock of `open`; -1 once an answer has come."""

    def feed(self, message: Message) -> bool:
        """Take one answer; returns True when the request is complete."""
        raise NotImplementedError

    def resend_message(self) -> Message | None:
        """The message for a resend, or None to keep waiting without one."""
        raise NotImplementedError

    def expired(self) -> None:
        """Called when the deadline has passed."""


class Question(Request):
    """A request whose methods are given as functions."""

    def __init__(self, feed: Feed, resend: Callable[[], Message | None], expired: Callable[[], None]) -> None:
        self._feed, self._resend_message, self._expired = feed, resend, expired

    def feed(self, message: Message) -> bool:
        return self._feed(message)

    def resend_message(self) -> Message | None:
        return self._resend_message()

    def expired(self) -> None:
        self._expired()


class Requests:
    """All open requests of one asker, numbered from 1 without gaps."""

    def __init__(self, tuning: NodeTuning = ORDINARY.nodes) -> None:
        self._tuning = tuning
        self._last = 0
        self._open: dict[int, Request] = {}
        self._timers: list[tuple[float, int]] = []
        self.due_at = math.inf
        """Before this time `take_due` has nothing to do."""
        self._usual_s: dict[str, float] = {}
        """Usual seconds until a first answer, by address."""

    @property
    def next_number(self) -> int:
        """The number that the next request gets."""
        return self._last + 1

    def __len__(self) -> int:
        return len(self._open)

    def open_request(
        self, now: float, to: Ref, request: Request, deadline: float, resend_s: float | None = None, number: int = 0
    ) -> None:
        """Number a request; the caller sends it. `deadline` is on the clock of `now`, seconds. `number`: one that was
        taken for it; 0: the next."""
        request.number = number or self.take_number()
        request.to, request.deadline = to, deadline
        request.asked_at = now
        request.resend_s = max(self._first_resend_s(to.address), resend_s or 0.0)
        request.next_at = now + request.resend_s
        heapq.heappush(self._timers, (min(request.next_at, deadline), request.number))
        self.be_due(self._timers[0][0])
        self._open[request.number] = request  # last: after Ctrl-C it is open and will be sent again, or not open

    def be_due(self, at: float) -> None:
        """Have `take_due` called at this time at the latest."""
        self.due_at = min(self.due_at, at)

    def _first_resend_s(self, address: str) -> float:
        own, usual_s = self._tuning, self._usual_s.get(address, 0.0)
        return max(own.first_resend_s, min(own.resend_delays * usual_s, own.last_resend_s))

    def take_number(self) -> int:
        """Take a number for a request that is not kept here."""
        self._last += 1
        return self._last

    def feed_answer(self, number: int, message: Message, now: float) -> None:
        """Feed an answer to its request; answers to requests that are over are dropped."""
        request = self._open.get(number)
        if request is None:
            return
        if request.asked_at >= 0:
            usual, took = self._usual_s.get(request.to.address, 0.0), now - request.asked_at
            self._usual_s[request.to.address] = max(took, usual + (took - usual) / self._tuning.resend_smoothing)
            request.asked_at = -1.0
        if request.feed(message):
            request.complete = True
            self._open.pop(number, None)
        else:  # over a slow connection the rest of an answer may take longer than any interval
            request.next_at = now + request.resend_s

    def is_open(self, request: Request) -> bool:
        """Whether a request is numbered, and neither complete nor forgotten."""
        return self._open.get(request.number) is request

    def forget_request(self, request: Request) -> None:
        """Forget a request; later answers to it are dropped."""
        self._open.pop(request.number, None)

    def take_due(self, now: float) -> list[tuple[Request, Message]]:
        """The messages to resend now. Ends requests that are past their deadline and calls their `expired`."""
        resend: list[tuple[Request, Message]] = []
        while self._timers and self._timers[0][0] <= now:  # one that is still open leaves no moment without a timer
            number = self._timers[0][1]
            request = self._open.get(number)
            if request is None or request.complete or now >= request.deadline:
                self._open.pop(number, None)
                heapq.heappop(self._timers)
                if request is not None and not request.complete:
                    request.expired()
                continue
            if now >= request.next_at:
                message = request.resend_message()
                request.resend_s = min(request.resend_s * 2, max(self._tuning.last_resend_s, request.resend_s))
                request.next_at = now + request.resend_s
                if message is not None:
                    resend.append((request, message))
            heapq.heapreplace(self._timers, (min(request.next_at, request.deadline), number))
        self.due_at = self._timers[0][0] if self._timers else math.inf
        return resend

    def resends_to(self, address: str) -> list[tuple[Request, Message]]:
        """The messages to resend at once because the connection to an address came back."""
        found = [r for r in self._open.values() if r.to.address == address and not r.complete]
        return [(r, m) for r in found if (m := r.resend_message()) is not None]

    def next_at(self) -> float:
        """When `take_due` has something to do next; infinity while nothing waits."""
        while self._timers and self._timers[0][1] not in self._open:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf
