"""A node: one address, one thread, and the actors that live there."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from dps.actors.answers import Done, Failed, Waiting
from dps.actors.authorization import STRANGER, Present, Tickets, introduction
from dps.actors.bundles import ENOUGH, SENSELESS, SHORT_NBYTES, Outbox, envelopes, to_self, too_long
from dps.actors.failure_detector import FailureDetector
from dps.actors.pausable_clock import PausableClock
from dps.actors.ref import Ref, Sender, local_nodes
from dps.actors.requests import Question, Requests
from dps.actors.shortcuts import Integers, Shortcuts, made_sender
from dps.errors import DeadlineExceeded, DpsError, NotAuthenticated, OutOfDescriptors, ProtocolError, Unavailable
from dps.process.telemetry import log, stack
from dps.transport.endpoint import (
    Connected,
    Delivery,
    Disconnected,
    Endpoint,
    Event,
    Refused,
    Route,
    Runtime,
    TaskHandle,
)
from dps.transport.message import PLAIN, Form, Message
from dps.transport.wire import HEAD_NBYTES, NAMES_AT, Envelope, peek, read_head

if TYPE_CHECKING:
    from dps.actors.authorization import Authorization
    from dps.transport.keys.keyring import Credentials
    from dps.transport.sockets.addresses import Binding


class Hosted(Protocol):
    """What a node calls; `dps.actors.actor.Actor` is one, and says what each member does."""

    node: Any
    name: str

    def started(self) -> None: ...
    def stopping(self) -> None: ...
    def too_late(self) -> DpsError: ...
    def lost(self, address: str, silent_s: float) -> None: ...
    def back(self, address: str) -> None: ...
    def refused(self, address: str, error: DpsError) -> None: ...
    def handle(self, message: Message, sender: Sender) -> None: ...
    def plain_handler(self, form: Form) -> Callable[[Sender, Integers], None]: ...


class NodeTimer:
    """A call at a time on the node's clock; `cancel` makes it do nothing."""

    __slots__ = ("at", "call", "order")

    def __init__(self, at: float, order: int, call: Callable[[], None]) -> None:
        self.at, self.order = at, order
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: NodeTimer) -> bool:
        return (self.at, self.order) < (other.at, other.order)

    def cancel(self) -> None:
        self.call = None


Then = Callable[[Message | Exception], None]
NEVER = float("inf")


class Node:
    """Hosts actors at one address, each under a name. All of them run on the node's one thread.

    Call `host` before `start`. After `start` other threads may only call `post`, `stop` and `join`.
    More than 12 attributes: the parts of one thread meet here, which alone writes them.
    """

    def __init__(
        self, runtime: Runtime, bind: str | Binding, name: str, incarnation: int = 0, keys: Credentials | None = None
    ) -> None:
        """Binds at once. Raises Unavailable, with the address, if it is taken."""
        self.runtime, self.name, self.incarnation = runtime, name, incarnation
        self.keys = keys
        self._endpoint: Endpoint = runtime.endpoint(bind, keys)
        self._outbox = Outbox(self._endpoint, runtime.tuning)
        self.address = self._endpoint.address
        self.exposed = self._endpoint.exposed
        self.asker = self.user = ""
        """Of who sent the message that is handled now: the role, and whose key it is (`Accepted.user`). "" without
        keys, and for this process."""
        self.ticket = runtime.secret()
        """What this process presents."""
        self.tickets = Tickets(self._endpoint, self.ticket)
        self.accepted = self._endpoint.accepted
        self._source: object = None
        self._authorization: Authorization | None = None
        if self._endpoint.keyed:
            from dps.actors.authorization import Authorization

            self._authorization = Authorization(self.address)
        self._shortcuts = Shortcuts()
        for checked in (self.tickets, self._authorization):
            if checked is not None:
                checked.changed = self._shortcuts.clear
        self.actors: dict[str, Hosted] = {}
        self.refused_messages = 0
        self._time, self._tuning = PausableClock(runtime), runtime.tuning.nodes
        self._requests = Requests(self._tuning)
        self._detector = FailureDetector(runtime.silence_s)
        self._broken: set[str] = set()
        self.up: dict[str, int] = {self.address: 0}
        """A number for each connection that is up, by address."""
        self._turned_at = 0.0
        self._timers: list[NodeTimer] = []
        self._order = itertools.count(1)
        self._posted: deque[Callable[[], None]] = deque()
        self._stop_asked = False
        self._task: TaskHandle | None = None
        self.failed: Callable[[Exception], None] = lambda error: None
        """Called when the node ends by an error, after the error was logged."""

    # -- from any thread ------------------------------------------------------------------------------------

    def host(self, name: str, actor: Hosted) -> Ref:
        """Give an actor a name on this node, before `start`."""
        actor.node, actor.name = self, name
        self.actors[name] = actor
        return Ref(self.address, name)

    def start(self) -> None:
        """Run the node on a thread of its own."""
        local_nodes.setdefault(self.runtime, {})[self.address] = self.actors
        self._task = self.runtime.spawn(f"node {self.name}", self._run)

    def post(self, call: Callable[[], None]) -> None:
        """Run something on the node's thread, soon."""
        self._posted.append(call)
        self._endpoint.wake()

    def stop(self) -> None:
        """End the node. Messages left in its mailbox are answered with Unavailable. Does not wait."""
        self._stop_asked = True
        self._endpoint.wake()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the node has ended; True when it has. Blocks."""
        return self._task is None or self._task.join(timeout_s)

    # -- from actors, on the node's thread -------------------------------------------------------------------

    def tell(self, to: Ref, message: Message) -> None:
        """Send once, no answer wanted."""
        self._send(to.address, Envelope(message, to.actor, 0, self.name))

    def ask(
        self, to: Ref, message: Message, timeout_s: float, then: Then, resend: Callable[[], Message] | None = None,
        waits: Callable[[str], None] = lambda reason: None,
    ) -> Callable[[], None]:  # fmt: skip
        """Send a request until an answer comes; `then` gets it, or DeadlineExceeded, or the error that it carries.
        `resend` makes what is sent while no answer has come; None: the message. `waits` gets the reason of
        each answer that only says to wait. Returns a function that drops the request."""
        now = self._time.now()

        def feed(answer: Message) -> bool:
            if isinstance(answer, Waiting):
                waits(answer.reason)
                return False
            self._call_guarded(lambda: then(answer.exception() if isinstance(answer, Failed) else answer))
            return True

        def expired() -> None:
            error = DeadlineExceeded(f"{to} did not answer {type(message).__name__} within {timeout_s:.1f} s")
            self._call_guarded(lambda: then(error))

        request = Question(feed, resend or (lambda: message), expired)
        self._requests.open_request(now, to, request, now + timeout_s)
        self._send(to.address, Envelope(message, to.actor, request.number, self.name))
        return lambda: self._requests.forget_request(request)

    def dial_address(self, told: str, named: Collection[str] = ()) -> str:
        """Where to dial the sender of the message that is handled now; see `addresses.dialled`."""
        from dps.transport.sockets import addresses as address

        found = address.dialled(told, address.origin(self._source), named)
        if found not in self.up:  # a session may have another role than the task whose node this is
            self._endpoint.expect(found, self.user)
        return found

    def expect(self, address: str, user: str) -> None:
        """Note whose key the node at an address has, if it is not the chief."""
        self._endpoint.expect(address, user)

    def answer(
        self, sender: Sender, message: Message | Exception | None = None, done: Callable[[], None] | None = None
    ) -> None:
        """Answer a sender; None is Done. `done` is called when the message's arrays may change again."""
        if message is None:
            message = Done()
        elif isinstance(message, Exception):
            message = Failed.of(message, self.name)
        if sender.request:
            self._send(sender.route, Envelope(message, "", sender.request, self.name), done)
        elif done is not None:
            done()

    def answer_now(self, sender: Sender, message: Message) -> None:
        """Answer a sender that waits, with a message without arrays, and not at the end of the turn."""
        if sender.route == self.address:
            self.answer(sender, message)
        else:
            self._outbox.send_message(sender.route, Envelope(message, "", sender.request, self.name))

    def answer_plain(self, sender: Sender, form: Form, integers: Sequence[int]) -> None:
        """`answer_now` with the message that these integers describe. It is not made where they can be sent."""
        route = sender[0]
        if route == self.address:
            self.answer(sender, form.made(*integers))
        else:
            self._outbox.send_plain(route, form, integers, "", sender[1], self.name, 0)

    def present(self, address: str, ticket: bytes | None = None) -> None:
        """Present this process's ticket, or the given one unless it is empty, on each connection to an address."""
        if ticket != b"" and address != self.address:
            self._endpoint.introduce(address, introduction(ticket or self.ticket, self._endpoint, self.name))

    def forget_shortcuts(self) -> None:
        """Look up the handler of each message again. Any thread may call it."""
        self._shortcuts.clear()

    def flush(self) -> None:
        """Send all queued messages now, not at the end of the turn: this turn still has much work to do."""
        self._outbox.flush()

    def now(self) -> float:
        """Monotonic seconds, without those in which this process was stopped: the clock of all timers of this node."""
        return self._time.now()

    def after(self, seconds: float, call: Callable[[], None]) -> NodeTimer:
        """Call something later on this thread."""
        timer = NodeTimer(self._time.now() + seconds, next(self._order), call)
        heapq.heappush(self._timers, timer)
        return timer

    def watch(self, address: str, grace_s: float) -> None:
        """Tell all actors here (`lost`, `back`) when the node at an address goes away and comes back."""
        if address != self.address and not self._detector.is_watched(address):
            self._detector.add(address, grace_s, self._time.now())
            if address in self.up:  # a connection that is up already raises no event
                self._disconnect(address)
            self._endpoint.connect(address)

    def unwatch(self, address: str) -> None:
        self._detector.remove(address)
        if address != self.address:
            self._disconnect(address)

    def _disconnect(self, address: str) -> None:
        self.up.pop(address, None)
        self._outbox.flush()
        self._endpoint.disconnect(address)

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for actor in list(self.actors.values()):
                actor.started()
            self._turned_at = self._time.now()
            while not self._stop_asked:
                self._run_turn()
            for actor in list(self.actors.values()):
                self._call_guarded(actor.stopping)
            self._answer_mailbox()
            self._outbox.flush()
        except (OutOfDescriptors, NotAuthenticated) as error:
            log.critical("%s: %s", self.name, error)
            self.failed(error)
        except Exception as error:
            log.critical("%s: an error inside dps ends this task; please report it\n%s", self.name, stack())
            self.failed(error)
        finally:
            local_nodes.get(self.runtime, {}).pop(self.address, None)
            self._endpoint.close()

    def _judges_at(self) -> float:
        """When the next request may be resent, or the next silent node counts as lost."""
        return min(self._requests.due_at, self._detector.next_at())

    def _run_turn(self, longest_s: float = 10.0) -> None:
        judges, time, timers = self._judges_at(), self._time, self._timers
        until = timers[0].at if timers and timers[0].at < judges else judges
        stood_still_s = time.stood_still_s
        event = time.receive(self._endpoint, 0.0 if self._posted else longest_s, until)
        now = time.received_at
        if time.stood_still_s > stood_still_s:
            self._detector.excuse_stop(now)
        if event is not None:
            self._handle_event(event)
        if judges <= now:  # the event may be the awaited one
            now, judges = self._read_waiting(now)
        took_s, self._turned_at = now - self._turned_at, now
        if took_s - time.asked_s > self._tuning.held_up_s:
            self._detector.excuse_delay(took_s, now)
        while self._posted and not self._stop_asked:
            self._call_guarded(self._posted.popleft())
        if judges <= now or (timers and timers[0].at <= now):
            self._run_timers()
        if self._outbox.waiting:
            self._outbox.flush()

    def _read_waiting(self, now: float) -> tuple[float, float]:
        """Read waiting events before judging who is late: after a long turn, live nodes would else count as lost.

        Returns the current time, and when `_judges_at` is next."""
        for _ in range(self._tuning.drained):
            judges = self._judges_at()
            if judges > now or (event := self._endpoint.receive(0)) is None:
                break
            self._handle_event(event)
            now = self._time.now()
        return now, self._judges_at()

    def _handle_event(self, event: Event) -> None:
        if event.__class__ is not Delivery:
            self._handle_connection(event)
            return
        route, header, frames, source = event
        self._source, head = source, b""
        if source is None and not frames and len(header) > HEAD_NBYTES and header[0] == PLAIN:
            head = header[: HEAD_NBYTES + header[NAMES_AT]]
            shortcut = self._shortcuts.get((route, head))
            if shortcut is not None and len(header) == shortcut[0]:
                _, at, unpack, handler, who, self.asker, self.user, about = shortcut
                integers = unpack(header, at)
                sender = made_sender((route, integers[0], *who))
                try:
                    handler(sender, integers)
                except Exception as raised:
                    self._answer_error(raised, about, sender)
                return
        if self._authorization is not None:
            self.asker, self.user = self._authorization.identify_sender(route, source)
        if len(header) > SHORT_NBYTES and (error := too_long(event, self.tickets)) is not None:
            self._refuse(event.route, event.header, error, ENOUGH)
            return
        for envelope in envelopes(event, self._refuse):
            if envelope.actor:
                self._hand_over(route, envelope, head)
            elif envelope.message.__class__ is Present:
                self.tickets.accept_presented(event.route, envelope.message, self.user)
            elif event.route.__class__ is str:  # an answer comes from where this node has connected to
                self._call_guarded(
                    partial(self._requests.feed_answer, envelope.request, envelope.message, self._time.now())
                )

    def _handle_connection(self, event: Event) -> None:
        """A connection came up, broke or was refused."""
        if isinstance(event, Connected):
            self._connected(event.address)
        elif isinstance(event, Disconnected):
            self._broken.add(event.address)
            self.up.pop(event.address, None)
            self._detector.note_disconnected(event.address, self._time.now())
        elif isinstance(event, Refused):
            error = NotAuthenticated(event.reason)
            for actor in list(self.actors.values()):
                self._call_guarded(lambda actor=actor: actor.refused(event.address, error))  # type: ignore[misc]

    def _run_timers(self) -> None:
        now = self._time.now()
        for request, message in self._requests.take_due(now):
            self._send(request.to.address, Envelope(message, request.to.actor, request.number, self.name))
        for address, silent_s in self._detector.take_lost(now):
            for actor in list(self.actors.values()):
                self._call_guarded(lambda actor=actor, a=address, s=silent_s: actor.lost(a, s))  # type: ignore[misc]
        while self._timers and self._timers[0].at <= now:
            call = heapq.heappop(self._timers).call
            if call is not None:
                self._call_guarded(call)

    def _connected(self, address: str) -> None:
        self.up[address] = next(self._order)
        if self._detector.note_connected(address):
            for actor in list(self.actors.values()):
                self._call_guarded(lambda actor=actor: actor.back(address))  # type: ignore[misc]
        if address not in self._broken:
            return
        self._broken.discard(address)
        for request, message in self._requests.resends_to(address):
            self._send(address, Envelope(message, request.to.actor, request.number, self.name))

    def _hand_over(self, route: Route, envelope: Envelope, head: bytes) -> None:
        """Check a message, and have its actor handle it. `head`: of its plain header, b"" if it has none, or one whose
        sender has to be identified each time."""
        message, name, request, told, claim = envelope
        peer = self.tickets.by_route.get(route, STRANGER)
        authorization = self._authorization
        error: NotAuthenticated | None = (
            None if authorization is None else authorization.check_message(route, self.asker, self._source, message)
        )
        if error is None and (claim not in peer.claims or message.proven) and route != self.address:
            error, claim = self.tickets.check_claim(peer, claim, message), claim if claim in peer.claims else 0
        sender = Sender(route, request, peer.name or told, claim, peer)
        actor = self.actors.get(name)
        if error is not None:
            said = self.tickets.answer_to(error, route, peer, self._time.now())
            if said.__class__ is not Waiting:
                self.refused_messages += 1
                self.accepted.blame(route)
            self.answer(sender, said)
        elif actor is None:
            self.answer(sender, Unavailable(f"{self.name} hosts no {name!r}, only {sorted(self.actors)}"))
        else:
            if head and not message.proven:
                handler = actor.plain_handler(message.form_of)
                asked = self.asker, self.user
                self._shortcuts.remember(route, head, read_head(head), handler, sender, asked)
            self._handle(actor, message, sender)

    def handle(self, name: str, message: Message, sender: Sender) -> None:
        """Make an actor of this node handle a message as if it had just arrived."""
        self._handle(self.actors[name], message, sender)

    def _handle(self, actor: Hosted, message: Message, sender: Sender) -> None:
        try:
            actor.handle(message, sender)
        except Exception as error:
            self._answer_error(error, (actor.name, type(message).__name__), sender)

    def _answer_error(self, error: Exception, about: tuple[str, str], sender: Sender) -> None:
        """Answer with an error of a handler. `about`: the names of the actor and of the message's class. Raises
        OutOfDescriptors."""
        if isinstance(error, OutOfDescriptors):
            raise error
        if isinstance(error, DpsError):
            self.answer(sender, self.tickets.answer_to(error, sender.route, sender.peer, self._time.now()))
        elif isinstance(error, ValueError | TypeError):
            log.debug("%s: refused %s: %s", self.name, about[1], error, exc_info=True)
            self.answer(sender, error)
        else:
            text = stack()
            log.error("%s: an error inside dps, where %s handles %s; please report it\n%s", self.name, *about, text)
            self.answer(sender, Failed.of(error, self.name, text))

    def _refuse(self, route: Route, header: bytes, error: ProtocolError, strikes: int = 1) -> None:
        self.refused_messages += 1
        log.debug("%s: refused a message: %s", self.name, error)
        known = peek(header)
        self.accepted.blame(route, strikes if known is not None else SENSELESS)
        if known is not None and known[1] and known[0] > 0:
            self.answer(Sender(route, known[0], "", 0), error)

    def _call_guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except OutOfDescriptors:
            raise
        except Exception:
            about = self.name, stack()
            log.error(
                "%s: an error inside dps, in a timer or in the handler of an answer; please report it\n%s", *about
            )

    def _answer_mailbox(self) -> None:
        while (event := self._endpoint.receive(0)) is not None:
            if isinstance(event, Delivery):
                for envelope in envelopes(event, self._refuse):
                    if (actor := self.actors.get(envelope.actor)) is not None:
                        self.answer(Sender(event.route, envelope.request, envelope.sender, 0), actor.too_late())

    def _send(self, route: str | bytes, envelope: Envelope, done: Callable[[], None] | None = None) -> None:
        if route == self.address:
            self._posted.append(lambda: self._deliver_local(envelope, done))
            return
        self._outbox.queue_message(route, envelope, done)

    def _deliver_local(self, envelope: Envelope, done: Callable[[], None] | None) -> None:
        self._handle_event(to_self(self.address, envelope))
        if done is not None:
            done()
