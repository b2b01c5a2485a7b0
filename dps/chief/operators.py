"""Does what operators ask: ends the run, makes join tokens, passes on orders about traces. On the chief's node."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

import numpy as np

from dps.actors.actor import Actor
from dps.actors.ref import Ref, Sender
from dps.chief.tokens import JoinTokens, TokenFile
from dps.errors import ConfigError, NotAuthenticated
from dps.messages.runs import (
    AGENT,
    CHIEF,
    AskJoined,
    AskTrace,
    EndRun,
    Enrol,
    Enrolled,
    JoinedKeys,
    MakeToken,
    TokenMade,
    TraceOrder,
    TraceState,
)
from dps.process.telemetry import log
from dps.transport.keys.keyring import Credentials, is_key
from dps.transport.message import ALL, ANSWER, Message, changed
from dps.transport.shared_memory import ASKED, proof
from dps.transport.wire import Array

TRACED_S = 5.0
"""How long a task may take to answer an order about a trace."""


class Operators(Actor):
    """Answers at once; the end takes longer."""

    def __init__(
        self, drain: Callable[[str], None], stop: Callable[[], None], dialled: Callable[[str], str]
    ) -> None:  # fmt: skip
        """`drain` ends the run in order, `stop` without saving. `dialled`: as of `Cluster`."""
        self._drain, self._stop, self._dialled = drain, stop, dialled
        self.trace_own: Callable[[TraceOrder, Sender], None] | None = None
        """Carries out an order about the trace of the chief; None if a worker hosts it, whose trace has the chief's
        part."""

    def on_AskTrace(self, message: AskTrace, sender: Sender) -> None:
        """Pass the order on, and the answer back with the times between which the task has read its clock."""
        order = TraceOrder(message.trace, message.order, message.value)
        if message.task == CHIEF:
            if self.trace_own is None:
                raise ConfigError("the chief is hosted by a worker; wanted the trace of that one")
            self.trace_own(order, sender)
            return
        address, now = self._dialled(message.task), self.node.runtime.now
        if not address:
            raise ConfigError(f"got an order for the trace of {message.task!r:.80}, which is no task of this run")
        asked_s = now()

        def heard(answer: Message | Exception) -> None:
            if isinstance(answer, TraceState):
                answer = changed(answer, asked_s=asked_s, heard_s=now())
            self.node.answer(sender, answer)

        self.node.ask(Ref(address, AGENT), order, TRACED_S, heard)

    def on_EndRun(self, message: EndRun, sender: Sender) -> None:
        if message.now:
            self._stop()
        else:
            self._drain(message.reason)
        self.node.answer(sender)


HEARD_S = 1.0
"""How long an enrolment waits until all nodes have heard of its key."""
THERE_S = 5.0
"""A node that waits for news has asked for them within this time: askers ask again every 2 s."""
REFUSED = "this join token is not accepted"
"""All that a peer is told, whatever the reason."""


class KeyEnrolment(Actor):
    """Keeps the tokens of one run, and tells every node which keys have joined by them."""

    def __init__(self, keys: Credentials) -> None:
        self._keys, self._tokens = keys, JoinTokens()
        self._waiting: dict[str, Sender] = {}
        """The nodes that wait for news, by their tickets."""
        self._asked: dict[str, tuple[int, float]] = {}
        """The version that each node had when it asked last, and when that was."""
        self._unheard: list[tuple[int, Callable[[], None]]] = []
        """Answers to enrolments, until all nodes have their version."""

    def started(self) -> None:
        self._file = TokenFile(self._keys.folder.path, self.node.address)
        try:
            self._tokens = self._file.load()
        except ConfigError as error:
            log.error("%s: %s", self.node.name, error)
        runtime = self.node.runtime
        self._keys.accepted.joined = dict(self._tokens.joined)
        self._keys.accepted.token_problem = lambda key: self._tokens.problem(key, runtime.wall())

    def stopping(self) -> None:
        """The run is over in order. A chief that was killed leaves its file to the next one."""
        self._file.remove()

    # -- tokens -------------------------------------------------------------------------------------------------

    def on_MakeToken(self, message: MakeToken, sender: Sender) -> None:
        if not is_key(message.key):
            raise ConfigError("got no public key for a join token; make the token with: dps token")
        asked = message.key, message.role, message.uses, message.ttl_s
        self._change(lambda tokens, now: tokens.issue(*asked, now))
        what = f"{message.uses} {message.role}{'' if message.uses == 1 else 's'}"
        log.info(
            "%s: %s made a join token for %s, for %.0f s", self.node.name, f"{sender.name!r:.80}", what, message.ttl_s
        )
        self.node.answer(sender, TokenMade(self.node.address, self._keys.pair().public))

    def on_Enrol(self, message: Enrol, sender: Sender) -> None:
        token, public = self.node.user.partition(" ")[2].encode(), self._keys.folder.keys.public
        try:
            if not is_key(message.key):
                raise NotAuthenticated("it sent no public key")
            before = self._tokens.version
            role = self._change(lambda tokens, now: tokens.enrol(token, message.key, public, now, message.role))
        except NotAuthenticated as error:
            log.warning("%s: refused to enrol %s: %s", self.node.name, f"{sender.name!r:.80}", error)
            raise NotAuthenticated(REFUSED) from None
        if self._tokens.version != before:
            log.info("%s: %s has joined by a token, as a %s", self.node.name, f"{sender.name!r:.80}", role)
        self._keys.accepted.joined = dict(self._tokens.joined)
        answer = Enrolled(role, {name: list(keys) for name, keys in public.items()})
        self._once_heard(lambda: self.node.answer(sender, answer))
        for waiting in list(self._waiting.values()):
            self._send_joined_keys(waiting)

    def _change(self, change: Callable[[JoinTokens, float], str]) -> str:
        """Change the tokens, once the change is on disk; returns what `change` does."""
        changed = JoinTokens.from_json(self._tokens.to_json())
        found = change(changed, self.node.runtime.wall())
        self._file.save(changed)
        self._tokens = changed
        return found

    # -- news for nodes -----------------------------------------------------------------------------------------

    def on_AskJoined(self, message: AskJoined, sender: Sender) -> None:
        who = sender.peer.ticket
        self._asked[who] = message.version, self.node.now()
        if message.version == self._tokens.version:
            self._waiting[who] = sender
        else:
            self._send_joined_keys(sender)
        self._check_heard()

    def _send_joined_keys(self, sender: Sender) -> None:
        self._waiting.pop(sender.peer.ticket, None)
        keys = [[key, joined.role, joined.under] for key, joined in self._tokens.joined.items()]
        self.node.answer(sender, JoinedKeys(self._tokens.version, keys))

    def _once_heard(self, answer: Callable[[], None]) -> None:
        """Answer when every node accepts the keys that have joined, or has not asked for a while."""
        entry = self._tokens.version, answer
        self._unheard.append(entry)

        def late() -> None:
            if entry in self._unheard:
                self._unheard.remove(entry)
                answer()

        self.node.after(HEARD_S, late)
        self._check_heard()

    def _check_heard(self) -> None:
        now = self.node.now()
        self._asked = {who: asked for who, asked in self._asked.items() if now - asked[1] < THERE_S}
        self._waiting = {who: sender for who, sender in self._waiting.items() if who in self._asked}
        least = min((version for version, _ in self._asked.values()), default=self._tokens.version)
        heard = [entry for entry in self._unheard if entry[0] <= least]
        self._unheard = [entry for entry in self._unheard if entry[0] > least]
        for _, answer in heard:
            answer()


EXAMINER = "examiner"
LONGEST_NBYTES = 1 << 20
"""The most bytes that one answer brings."""


@functools.cache
def version() -> str:
    """The version of dps that is installed here."""
    return importlib.metadata.version("dps")


class Examine(Message, kind=110, roles=ALL):
    """Asks what this node is. `nbytes`: how many bytes the answer should bring. `memory`: of the asker, if it
    has any. `arrays` may be of any size, and are not looked at."""

    nbytes: int
    memory: list[Any]
    arrays: tuple[Array, ...] = ()


class Examined(Message, kind=111, roles=ANSWER):
    """The version of dps, the machine's name, the time there in seconds since 1970, and what the asker's memory
    holds; b"" if it cannot be read."""

    version: str
    host: str
    wall_s: float
    proof: bytes
    arrays: tuple[Array, ...] = ()


class Examiner(Actor):
    """Answers at once and remembers nothing."""

    def on_Examine(self, message: Examine, sender: Sender) -> None:
        runtime = self.node.runtime
        found = proof(runtime, message.memory, ASKED, []) if message.memory else b""
        arrays = (np.zeros(min(message.nbytes, LONGEST_NBYTES), np.uint8),) if message.nbytes > 0 else ()
        self.node.answer(sender, Examined(version(), runtime.place.host, runtime.wall(), found, arrays))
