"""Has a worker run a function for a session, and waits for its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.actors.answers import Failed, Waiting
from dps.actors.ref import Ref
from dps.calls.functions import SESSION, pack_arguments, unpack_value
from dps.calls.messages import CALLS, NOT_OF_A_READER, AskCall, Call, CallMissing, Raised, Returned
from dps.cluster.device import current_device
from dps.errors import ConfigError, PermissionDenied, Unavailable
from dps.messages.runs import ClusterIs
from dps.process.functions import import_path
from dps.transport.message import Message

if TYPE_CHECKING:
    from dps.client.connection import Connection

SERVES_S = 3.0
"""How long a worker that has joined may take until it serves."""
AGAIN_S = 0.2
AWAY_S = 1.0
"""How long a worker may be away until the chief is asked where it is."""


class Calling:
    """The calls of one session. They are numbered, and one is open at a time."""

    def __init__(self, connection: Connection, is_session: Callable[[Any], bool]) -> None:
        self._connection, self._caller, self._is_session = connection, connection.caller, is_session
        self._number = 0

    def run(self, function: Callable[..., Any] | str, args: tuple[Any, ...], deadline: float) -> Any:
        """Run a function on the worker that the enclosing scopes name, else on the session's own. Blocks."""
        connection = self._connection
        task, path = worker_named(connection), import_path(function)
        form, arrays = pack_arguments(path, args, {}, lambda leaf: (SESSION, None) if self._is_session(leaf) else None)
        self._number += 1
        home, number = connection.home, self._number
        call = Call(connection.number, home.name, home.address, number, path, form, [], arrays)
        message: Message = call
        began = self._caller.now()
        while True:
            answer = self._ask(task, self._find(task, deadline), call, message, deadline)
            message = AskCall(call.client, call.number)
            if answer is None:
                continue
            if isinstance(answer, Returned):
                return unpack_value(answer.form, answer.arrays)
            if isinstance(answer, Raised):
                raise answer.exception()
            assert isinstance(answer, Failed), answer
            self._check_serves(task, answer, began)
            home.runtime.sleep(AGAIN_S)

    def _check_serves(self, task: int, answer: Failed, began: float) -> None:
        """Raise the error that a worker's node answers. A worker that has just joined may not serve yet."""
        error = answer.exception()
        if not isinstance(error, Unavailable) or CALLS not in answer.text:
            raise error
        if self._caller.now() - began > SERVES_S:
            raise ConfigError(
                f"worker:{task} runs a program of its own, and no functions for others; start it without --program and "
                "with --serve MODULE"
            )

    def _ask(self, task: int, ref: Ref, call: Call, message: Message, deadline: float) -> Message | None:
        """Send a message until the call has its outcome. Later messages ask for it, and bring the call again if the
        worker does not have it. None: the worker is away, and may be at another address by now."""
        outcome: list[Message] = []
        missing, reason = False, ""

        def again() -> Message:
            return call if missing else AskCall(call.client, call.number)

        def feed(answer: Message) -> bool:
            nonlocal missing, reason
            missing = isinstance(answer, CallMissing)
            if missing:
                self._caller.send(request, call)
            elif isinstance(answer, Waiting):
                reason = answer.reason
            else:
                outcome.append(answer)
            return bool(outcome)

        def late() -> str:
            since = self._caller.away.get(ref.address)
            if since is not None:
                return f"run {call.function}: worker:{task} is away for {self._caller.now() - since:.0f} s"
            state = reason or f"worker:{task} at {ref.address} has not answered"
            return f"run {call.function}: {state}; give run() a longer timeout if it may take longer"

        def away() -> bool:
            since = began if ref.address not in self._caller.reached else self._caller.away.get(ref.address)
            now = self._caller.now()
            return since is not None and now - max(began, since) > AWAY_S and deadline - now > AWAY_S

        began = self._caller.now()
        request = self._caller.start(ref, message, feed, again)
        self._connection.wait([request], deadline, late, None, away)
        self._caller.drop(request)
        return outcome[0] if outcome else None

    def _find(self, task: int, deadline: float) -> Ref:
        """The worker's address, once it has joined. Blocks."""

        def lacks(found: ClusterIs) -> str:
            workers = found.cluster.get("worker")
            if workers is None:
                raise PermissionDenied(f"run: {NOT_OF_A_READER}")
            if str(task) in workers:
                return ""
            there = ", ".join(f"worker:{index}" for index in workers) or "no worker"
            return f"worker:{task} has not joined the run, which has {there}; start it with --serve MODULE"

        found = self._connection.cluster(deadline, lacks)
        address = found.cluster["worker"][str(task)]
        if address != self._connection.chief.address:
            self._caller.expect(address, found.keys.get(address, "worker"))
        return Ref(address, CALLS)


def worker_named(connection: Connection) -> int:
    """The worker that the enclosing device scopes name, else the one that the session was given, or is of."""
    where, home = current_device(), connection.home
    if where.job not in (None, "worker"):
        raise ConfigError(
            f"run: the scope names {where}, and only workers run functions; wanted dps.device('/job:worker/task:0')"
        )
    if where.task is not None:
        return where.task
    if where.job is None and home.job == "worker":
        return home.task
    if where.job is None and home.named >= 0:
        return home.named
    raise ConfigError(
        "run: which worker? wanted a scope such as dps.device('/job:worker/task:0') around it, or a session of a "
        "worker's address (the chief runs no functions)"
    )
