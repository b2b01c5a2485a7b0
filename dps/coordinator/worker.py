"""A worker that serves: it runs the functions that clients name, one at a time, with a session of its own."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from dps.calls.actor import CallsActor
from dps.calls.failures import traceback_of
from dps.calls.functions import SESSION, ServedFunctions, pack_value, unpack_arguments
from dps.calls.messages import CALLS, Call, Raised, Returned
from dps.client.session import Session, join_run
from dps.errors import Aborted, DeadlineExceeded, DpsError, TaskLost, Unavailable, told, usual_name
from dps.process import config
from dps.process.telemetry import log
from dps.task.server import Server
from dps.transport.message import Message

LOOK_S = 0.5
"""How often a worker without calls looks whether it was told to end."""
OF_PS = (Aborted, DeadlineExceeded, TaskLost, Unavailable)
"""The errors that a session raises when a ps does not answer."""


class Worker:
    """The thread of a worker that serves. The node's thread hands it calls, and clients to forget."""

    def __init__(self, server: Server, served: ServedFunctions) -> None:
        self._server, self._served = server, served
        self._changed = server.runtime.condition()
        self._calls: deque[Call] = deque()
        self._gone: deque[int] = deque()
        self._session: Session | None = None
        self._kept: dict[int, dict[int, Any]] = {}
        """The values that each client's functions made for this worker: values, datasets and their iterators."""
        self._actor = CallsActor(served.entries, self._add_call, self._gone.append, self._stop_serving)
        server.host(CALLS, self._actor)

    def _add_call(self, call: Call) -> None:
        self._calls.append(call)
        self._changed.notify()

    def _stop_serving(self) -> None:
        self._server.ask_to_stop()
        self._changed.notify()

    def run(self) -> None:
        """Run the calls that come, until this task's part in the run is over or it is told to stop. Blocks."""
        try:
            while not self._is_over():
                if not self._changed.wait(lambda: bool(self._calls), LOOK_S):
                    continue
                self._forget_clients()
                outcome = self._run_call(self._calls.popleft())
                if self._server.exit_code is None:  # else the call goes to another worker
                    self._actor.node.post(lambda outcome=outcome: self._actor.record_outcome(outcome))  # type: ignore[misc]
        finally:
            self._close_session()

    def _is_over(self) -> bool:
        server = self._server
        return server.exit_code is not None or server.stop_requested or config.stop_requested.is_set()

    def _close_session(self) -> None:
        if self._session is not None:
            try:
                self._session.close()
            except DpsError as error:
                log.debug("%s: closing its session: %s", self._server.name, error)

    def _forget_clients(self) -> None:
        while self._gone:
            self._kept.pop(self._gone.popleft(), None)

    # -- one call ----------------------------------------------------------------------------------------------

    def _run_call(self, call: Call) -> Message:
        self._server.runtime.record("runs", function=call.function, number=call.number, client=call.name)
        try:
            function = self._served.find_function(call.function)
            special = partial(self._find_marked, call.client)
            args, kwargs = unpack_arguments(call.form, call.arrays, call.values, special)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a function that makes a value for this worker, too
            return self._make_raised(call, error, isinstance(error, DpsError))
        try:
            value = function(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except (
            BaseException
        ) as error:  # else `sys.exit` or asyncio's CancelledError would end one worker after the other
            return self._make_raised(call, error)
        try:
            return Returned(call.number, *pack_value(value, call.function))
        except TypeError as error:
            return self._make_raised(call, error, True)

    def _make_raised(self, call: Call, error: BaseException, plain: bool = False) -> Raised:
        """The answer for an error. `plain`: no frame of the program is part of its traceback."""
        task = self._server.name
        trace = "" if plain else traceback_of(error)
        text = f"{told(error)} (in {call.function} on {task})"
        return Raised(call.number, usual_name(error), text, task, trace, isinstance(error, OF_PS))

    def _find_marked(self, client: int, code: int, content: Any) -> Any:
        """The object that a mark among the arguments stands for on this worker."""
        if code == SESSION:
            if self._session is None:
                self._session = join_run(self._server)
            return self._session
        return self._find_kept(client, content)

    def _find_kept(self, client: int, content: Any) -> Any:
        """The value that the client's function makes for this worker, made now unless it was made before."""
        kind, number, of = content
        kept = self._kept.setdefault(client, {})
        if number not in kept:
            kept[number] = iter(self._find_kept(client, of)) if kind == "iterator" else self._call_maker(of)
        return kept[number]

    def _call_maker(self, path: str) -> Any:
        function = self._served.find_function(path)
        return function(self._server.task) if takes_argument(function) else function()


def takes_argument(function: Callable[..., Any]) -> bool:
    """Whether a function has a positional parameter without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some builtins have none
        return False
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)
