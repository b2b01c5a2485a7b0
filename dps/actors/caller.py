"""Sends requests from a user's thread. That thread itself sends, polls and receives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from dps.actors.answers import Failed, Waiting
from dps.actors.authorization import introduction
from dps.actors.bundles import Outbox
from dps.actors.pausable_clock import PausableClock
from dps.actors.ref import Ref
from dps.actors.requests import Feed, Question, Request, Requests
from dps.errors import Cancelled, DeadlineExceeded, NotAuthenticated, ProtocolError
from dps.process import config
from dps.process.telemetry import LogThrottle, log
from dps.transport.endpoint import Connected, Delivery, Disconnected, Refused, Runtime
from dps.transport.message import Form, Message
from dps.transport.wire import (
    NO_PLAIN_HEADER,
    PLAIN_BYTE,
    Envelope,
    decode,
    decode_plain,
    integers_of_answer,
    plain_head,
    unbundle,
)

if TYPE_CHECKING:
    from dps.transport.keys.keyring import Credentials


NEVER = float("inf")
Posted = tuple[int, Message | None]
"""The number of a posted request, and its answer; None: it has not come."""
Answer = tuple[int, ...] | Message
"""The answer to a posted request: request number and integers of the usual one, or another message."""
Heard = dict[int, Answer]
"""The answers to posted requests that have come, by number: of each the first usual one, or else the last."""


def _all_complete(requests: Sequence[Request]) -> bool:
    for request in requests:
        if not request.complete:
            return False
    return True


class Caller:
    """Asks actors and waits for the answers on the calling thread; it has no thread of its own.

    Requests stay open while nobody waits: the next `wait` or `poll` receives their answers and resends them. All calls
    that send or receive raise NotAuthenticated when a connection is refused because of the keys.
    """

    def __init__(self, runtime: Runtime, name: str, keys: Credentials | None = None) -> None:
        self.runtime, self.name, self.incarnation = runtime, name, 0
        self._endpoint = runtime.endpoint(None, keys)
        self._time = PausableClock(runtime)
        self._outbox = Outbox(self._endpoint, runtime.tuning)
        self._requests = Requests(runtime.tuning.nodes)
        self.take_number = self._requests.take_number
        """Takes the number of a request, to be posted."""
        self.away: dict[str, float] = {}
        """Addresses whose connection is broken, and since when, on the clock of `now`."""
        self.reached: set[str] = set()
        """Addresses with which there has been a connection."""
        self.on_resend: Callable[[], None] = _nothing
        """Called before requests are sent again: who has posted some may have them go on."""
        self._awaited: dict[int, tuple[Form, Heard, Callable[[], None] | None]] = {}
        """The posted requests whose answers are kept, by number: the form of the usual answer, where it is kept, and
        what is called then."""

    def now(self) -> float:
        """Monotonic seconds, without those in which this process was stopped: the clock of all deadlines here."""
        return self._time.now()

    def start(
        self,
        to: Ref,
        message: Message,
        feed: Feed,
        resend: Callable[[], Message | None] | None = None,
        resend_s: float | None = None,
    ) -> Request:
        """Send a request; `feed` gets each answer and returns True when the request is complete. Does not block."""
        request = Question(feed, resend or (lambda: message), _nothing)
        self.open(to, message, request, resend_s)
        self._outbox.flush()
        return request

    def open(self, to: Ref, message: Message, request: Request, resend_s: float | None = None) -> None:
        """Like `start`, but the message leaves at the next `flush`, `wait` or `poll`, bundled by node."""
        request.incarnation = self.incarnation  # first: after Ctrl-C an open request may be sent again
        self._requests.open_request(self._time.now(), to, request, NEVER, resend_s)
        self.send(request, message)

    def send(self, request: Request, message: Message) -> None:
        """Queue a (further) message under a request's number; it leaves like those of `open`."""
        to = request.to
        self._outbox.queue_message(
            to.address, Envelope(message, to.actor, request.number, self.name, request.incarnation)
        )

    def post(self, to: Ref, message: Message, number: int = 0) -> int:
        """Send a request at once and never again; returns its number, for `hear`: one that was taken, or 0: the next.
        Does not block."""
        number = number or self.take_number()
        self._outbox.send_message(to.address, Envelope(message, to.actor, number, self.name, self.incarnation))
        return number

    def post_plain(self, to: Ref, form: Form, integers: tuple[int, ...]) -> None:
        """Like `post`, for the message `form.made(*integers[1:])`, which is not made if it has a plain header, under
        the number `integers[0]`, which was taken."""
        try:
            header = plain_head(form.begin, to.actor, self.name, self.incarnation) + form.pack(*integers)
        except NO_PLAIN_HEADER:
            self.post(to, form.made(*integers[1:]), integers[0])
            return
        if self._outbox.waiting:
            self._outbox.flush()
        self._endpoint.send(to.address, header)

    def note_posted(self) -> None:
        """Requests are about to be posted which have to go on if no answer comes: `on_resend` is called when an
        ordinary request would be sent again at first."""
        self._requests.be_due(self._time.now() + self.runtime.tuning.nodes.first_resend_s)

    def continue_posted(self, to: Ref, posted: Posted, request: Request) -> None:
        """Have a request go on as the posted one: it gets the answer that was heard, and those to come, and is sent
        again as other requests are."""
        number, answer = posted
        self._awaited.pop(number, None)
        request.incarnation = self.incarnation
        self._requests.open_request(self._time.now(), to, request, NEVER, number=number)
        if answer is not None:
            self._requests.feed_answer(number, answer, self._time.now())

    def listen(
        self, numbers: Collection[int], usual: Form, heard: Heard, came: Callable[[], None] | None = None
    ) -> None:  # fmt: skip
        """Keep the answers to these posted requests, whoever receives them, in `heard`, until `ignore`. One with a
        plain header of the `usual` form is not made into a message. `came` is called after each. Does not block."""
        awaited = usual, heard, came
        for number in numbers:
            self._awaited[number] = awaited

    def ignore(self, numbers: Collection[int]) -> None:
        """The answers to these posted requests are not kept any more."""
        for number in numbers:
            self._awaited.pop(number, None)

    def hear_arrived(self, numbers: Collection[int], heard: Heard) -> None:
        """Handle what has arrived until all answers are there that `listen` keeps. Does not block."""
        while len(heard) < len(numbers) and self.turn(0.0):
            pass

    def hear_all(self, numbers: Collection[int], heard: Heard, wait_s: float) -> None:
        """Receive until all answers are there that `listen` keeps. Blocks up to `wait_s`."""
        while wait_s > 0 and len(heard) < len(numbers) and not self._awaited.keys().isdisjoint(numbers):
            self.turn(wait_s)
            wait_s -= self._time.took_s

    def hear(self, numbers: Collection[int], usual: Form, wait_s: float) -> Heard:
        """The answers to these posted requests, as of `listen`, as far as they come in time. Blocks up to `wait_s`."""
        heard: Heard = {}
        awaited = self._awaited
        for number in numbers:
            awaited[number] = usual, heard, None
        try:
            while wait_s > 0:
                self.turn(wait_s)
                if not awaited or len(heard) == len(numbers):
                    return heard
                wait_s -= self._time.took_s
            return heard
        finally:
            if awaited:
                self.ignore(numbers)

    @property
    def due_at(self) -> float:
        """When a request is to be sent again, on the clock of `now`; infinity while none waits."""
        return self._requests.due_at

    @property
    def next_number(self) -> int:
        """The number that the next request gets."""
        return self._requests.next_number

    def flush(self) -> None:
        """Send all queued messages."""
        self._outbox.flush()

    def ask(self, to: Ref, message: Message, timeout_s: float) -> Message:
        """Send until an answer comes and return it, or raise what it carries. Blocks up to `timeout_s`."""
        answers: list[Message] = []

        def feed(answer: Message) -> bool:
            if isinstance(answer, Waiting):
                return False
            answers.append(answer)
            return True

        request = self.start(to, message, feed)
        if not self.wait([request], timeout_s):
            self.drop(request)
            raise DeadlineExceeded(f"{to} did not answer {type(message).__name__} within {timeout_s:.1f} s")
        if isinstance(answers[0], Failed):
            raise answers[0].exception()
        return answers[0]

    def wait(self, requests: Sequence[Request], timeout_s: float, stop: Callable[[], bool] | None = None) -> bool:
        """Send and receive until all requests are complete (True), `stop()` is true or the time is over. Blocks."""
        now = self._time.now()
        deadline = now + timeout_s
        while not _all_complete(requests):
            if stop is not None and stop():
                return False
            if now >= deadline:
                self.poll()
                return _all_complete(requests)
            until = min(deadline, self._requests.next_at())
            self.turn(min(max(0.0, until - now), 10.0))
            now = self._time.now()
        return True

    def poll(self) -> None:
        """Handle everything that has arrived, without waiting."""
        while self.turn(0.0):
            pass

    def is_open(self, request: Request) -> bool:
        """Whether a request was sent, and is neither complete nor dropped."""
        return self._requests.is_open(request)

    def drop(self, request: Request) -> None:
        """Forget a request; its late answers are dropped."""
        self._requests.forget_request(request)

    def expect(self, address: str, user: str) -> None:
        """Note whose key the node at an address has, if it is not the chief."""
        self._endpoint.expect(address, user)

    def connect(self, address: str, ticket: bytes = b"") -> None:
        """Open a connection ahead of its first message, and present a ticket on it."""
        if ticket:
            self._endpoint.introduce(address, introduction(ticket, self._endpoint, self.name))
        self._endpoint.connect(address)

    @property
    def direct(self) -> bytes:
        """The name that a node on this machine needs to pair with this caller."""
        return self._endpoint.direct

    def pair(self, address: str, name: bytes) -> None:
        """Note that a node on this machine has paired with this caller: small messages go as datagrams."""
        self._endpoint.pair(address, name, True)

    def disconnect(self, address: str) -> None:
        self.away.pop(address, None)
        self._outbox.flush()
        self._endpoint.disconnect(address)

    def close(self) -> None:
        try:
            self._outbox.flush()
        finally:
            self._endpoint.close()

    def turn(self, wait_s: float) -> bool:
        """Send all queued messages and handle one event; False if none came in time. Blocks up to `wait_s`."""
        if self._outbox.waiting:
            self._outbox.flush()
        event = self._time.receive(self._endpoint, wait_s)
        now = self._time.received_at
        if event.__class__ is Delivery:
            awaited, header = self._awaited, event.header
            answer = integers_of_answer(header) if awaited and not event.frames else ()
            found = awaited.pop(answer[0], None) if answer else None
            if found is None:
                self._take_delivery(event, now)
            elif header.startswith(found[0].begin):
                found[1][answer[0]] = answer
                if found[2] is not None:
                    found[2]()
            else:
                awaited[answer[0]] = found
                self._take_delivery(event, now)
        elif isinstance(event, Connected):
            self.reached.add(event.address)
            if self.away.pop(event.address, None) is not None:
                self.on_resend()
                for request, message in self._requests.resends_to(event.address):
                    self.send(request, message)
        elif isinstance(event, Disconnected):
            self.away.setdefault(event.address, now)
        elif isinstance(event, Refused):
            raise NotAuthenticated(event.reason)
        if now >= self._requests.due_at:
            self.on_resend()
            for request, message in self._requests.take_due(now):
                self.send(request, message)
        return event is not None

    def _take_delivery(self, delivery: Delivery, now: float) -> None:
        _, header, frames, _ = delivery
        try:
            if header[:1] == PLAIN_BYTE:
                self._take_answer(decode_plain(header, frames), now)
                return
            for one, own in unbundle(header, frames):
                self._take_answer(decode(one, own), now)
        except ProtocolError as error:
            log.debug("%s: refused an answer: %s", self.name, error)

    def _take_answer(self, envelope: Envelope, now: float) -> None:
        message, actor, number, _, _ = envelope
        if actor:
            return
        awaited = self._awaited.get(number)
        if awaited is None:
            self._requests.feed_answer(number, message, now)
            return
        usual, heard, came = awaited
        heard[number] = message
        if isinstance(message, usual.cls):
            self._awaited.pop(number, None)
        if came is not None:
            came()


def _nothing() -> None:
    return None


FIRST_S = 4.0
"""After how many seconds people are told: a task that has just started may take a while to answer."""


def to_reach(name: str, at: str) -> str:
    """What to try so that the task of this name can be reached at its address."""
    port = at.rpartition(":")[2]
    return f"open port {port} in the firewall of {name}'s machine, or start {name} with another --advertise"


class UnreachedReport:
    """The tasks that a session connects to, of which some may not be reachable from here."""

    def __init__(self, caller: Caller, name: str) -> None:
        """`name`: the task that waits, for messages."""
        self._caller, self._name = caller, name
        self._throttle = LogThrottle(FIRST_S)
        self.tasks: dict[str, str] = {}
        """The addresses of the tasks, by name."""

    def __str__(self) -> str:
        """The first task with which there never was a connection, and what to try; "" if there is none."""
        found = next((task for task in self.tasks.items() if task[1] not in self._caller.reached), None)
        if found is None:
            return ""
        name, at = found
        return f"cannot reach {name}: nobody answers at {at}, where it told the chief that it is; {to_reach(name, at)}"

    def log_unreached(self) -> None:
        """Log it now and then, from the first seconds of a wait on. Raises Cancelled if this process was told to stop,
        because no step of it can end."""
        text = str(self)
        if not text:
            self._throttle.end_wait()
        elif config.stop_requested.is_set():
            raise Cancelled(f"{self._name}: was told to stop, and {text}")
        elif self._throttle.is_due(self._caller.now()):
            log.warning("%s: %s", self._name, text)
