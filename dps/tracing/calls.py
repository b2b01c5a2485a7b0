"""Traces of the calls of a session, and of what a node handles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from dps.messages.replies import Push
from dps.messages.sessions import APPLIED
from dps.tracing.ring import ARRIVES, LEAVES, Ring, TraceLane
from dps.tracing.taps import Taps

if TYPE_CHECKING:
    from dps.actors.node import Node

CALLS = ("pull", "push", "step", "lookup", "gradients", "averages", "save", "restore", "stats")
REPLIES = ("pull_async", "push_async", "lookup_async")
PUSHES = ("push", "step", "push_async")
PROGRAM = "program"
"""The name of the time between two calls."""
NODE = "node"
"""The name of the lane of a node's thread."""


class SessionCalls:
    """Has the calls of a session go through a trace: a slice for each, one for the program before it, and a flow that
    leaves for each push to a ps."""

    def __init__(self, ring: Ring, taps: Taps, session: Any) -> None:
        self._ring, self._taps, self._session = ring, taps, session
        self.over: Callable[[], None] | None = None
        """What is done when the present call returns."""
        for name in (*CALLS, *REPLIES):
            taps.tap(session, name, partial(self._through, name))
        taps.tap(session, "view", self._through_view)
        taps.tap(session, "step_in_place", self._through_step_in_place)

    @property
    def lane(self) -> TraceLane:
        """The lane of the thread that calls."""
        return self._ring.lane(threading.get_ident(), PROGRAM)

    def _through(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*arguments: Any, **named: Any) -> Any:
            with self._slice(name) as about:
                if name in PUSHES:
                    with self._flows(waits=name not in REPLIES):
                        result = call(*arguments, **named)
                else:
                    result = call(*arguments, **named)
                if isinstance(result, Push):
                    about |= {"step": result.step, "accepted": result.accepted, "staleness": result.staleness}
            if name in REPLIES:
                self._taps.tap(result, "result", partial(self._through, f"result of {name}"), brief=True)
            return result

        return traced

    def _through_view(self, view: Callable[[], Any]) -> Callable[[], Any]:
        @contextmanager
        def viewed() -> Iterator[Any]:
            with view() as values, self._slice("view"):
                yield values

        return viewed

    def _through_step_in_place(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The slice of the step ends where its block begins."""

        @contextmanager
        def stepped(*arguments: Any, **named: Any) -> Iterator[Any]:
            block = step(*arguments, **named)
            with ExitStack() as stack:
                with self._slice("step_in_place"), self._flows(waits=True):
                    values = stack.enter_context(block)
                yield values

        return stepped

    @contextmanager
    def _flows(self, waits: bool) -> Iterator[None]:
        """The pushes of a call leave at its beginning. `waits`: the call ends with their result."""
        place, before = self._session._push_numbers
        began, (epoch, incarnation) = self._ring.now_ns(), place
        yield
        now, numbers = self._session._push_numbers
        if now != place:  # the run was rolled back meanwhile
            return
        lane, heard = self.lane, self._ring.now_ns() if waits else 0
        for ps, number in numbers.items():
            for each in range(before.get(ps, 0) + 1, number + 1):
                self._ring.note_flow(lane, LEAVES, push_number(epoch, incarnation, each, ps), began, heard)
            heard = 0  # the first ps is the one that counts steps; the others may apply the push after its result

    @contextmanager
    def _slice(self, name: str) -> Iterator[dict[str, Any]]:
        lane = self.lane
        try:
            with self._ring.slice(lane, name, PROGRAM) as about:
                yield about
        finally:
            if self.over is not None and len(lane.opened) == 0:
                over, self.over = self.over, None
                over()


def push_number(epoch: int, incarnation: int, number: int, ps: int) -> str:
    """The number of a flow: a push of a session to a ps."""
    return f"{epoch}.{incarnation}.{number}.{ps}"


class NodeCalls:
    """Has what a node's actors handle go through a trace: a slice for each message. On a ps there are slices for the
    updates of its shard, in which the flows of their pushes arrive."""

    def __init__(
        self, ring: Ring, taps: Taps, node: Node, actors: dict[str, Any], handled: Callable[[], None]
    ) -> None:  # fmt: skip
        """`actors`: those of the node that are traced. `handled` is called after each message."""
        self._ring, self._taps, self._handled = ring, taps, handled
        self.forget_shortcuts = node.forget_shortcuts
        self.lane = ring.lane(NODE, NODE)
        self._ps: Any = None
        self._shard: Any = None
        self._applying = 0
        self._recorded: list[str] = []
        """The numbers of pushes that were recorded, and whose update has not begun."""
        for actor in actors.values():
            if hasattr(actor, "shard"):
                self._ps = actor
                self._follow_shard()
                taps.tap(actor, "handle", self._through_ps)
                taps.tap(actor, "take_Push", self._through_take_push)
            else:
                taps.tap(actor, "handle", self._through)
        self.forget_shortcuts()  # they lead to methods without taps

    @property
    def step(self) -> int:
        """The step of the shard; -1 without one."""
        return -1 if self._shard is None else int(self._shard.store.step)

    def _through(self, handle: Callable[..., None]) -> Callable[..., None]:
        def handled(message: Any, sender: Any) -> None:
            with self._slice(type(message).__name__, sender):
                handle(message, sender)

        return handled

    @contextmanager
    def _slice(self, name: str, sender: Any) -> Iterator[None]:
        """The slice of a message from this sender."""
        with self._ring.slice(self.lane, name) as about:
            if sender.name:
                about["from"] = str(sender.name)[:80]
            yield
            for number in self._recorded:
                self._ring.note_flow(self.lane, ARRIVES, number)
            self._recorded.clear()

    def _through_take_push(self, take_push: Callable[..., None]) -> Callable[..., None]:
        def taken(sender: Any, integers: Any) -> None:
            with self._slice("Push", sender):
                take_push(sender, integers)
            self._follow_shard()
            self._handled()

        return taken

    def _through_ps(self, handle: Callable[..., None]) -> Callable[..., None]:
        through = self._through(handle)

        def handled(message: Any, sender: Any) -> None:
            through(message, sender)
            self._follow_shard()
            self._handled()

        return handled

    def _follow_shard(self) -> None:
        """Tap the shard of the present run epoch."""
        shard = self._ps.shard
        if shard is not None and shard is not self._shard:
            self._shard = shard
            self._taps.tap(shard, "commit_push", self._through_record)
            self._taps.tap(shard.store, "apply_update", partial(self._through_update, "apply"))
            self._taps.tap(shard.store, "open_draft", self._through_draft)

    def _through_record(self, record: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(ledger: Any, result: Any) -> Any:
            if result.status == APPLIED:
                number = push_number(self._shard.epoch, ledger.incarnation, result.number, self._shard.ps)
                if self._applying:
                    self._ring.note_flow(self.lane, ARRIVES, number)
                else:
                    self._recorded.append(number)
            return record(ledger, result)

        return recorded

    def _through_update(self, name: str, update: Callable[..., Any]) -> Callable[..., Any]:
        def updated(*arguments: Any, **named: Any) -> Any:
            with self._ring.slice(self.lane, name) as about:
                self._applying += 1
                try:
                    for number in self._recorded:
                        self._ring.note_flow(self.lane, ARRIVES, number)
                    self._recorded.clear()
                    return update(*arguments, **named)
                finally:
                    self._applying -= 1
                    about |= {"step": self._shard.store.step, "version": self._shard.store.counter}

        return updated

    def _through_draft(self, open_draft: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*arguments: Any, **named: Any) -> Any:
            draft = open_draft(*arguments, **named)
            if draft is not None and not self._applying:  # it is written while its push arrives
                for name, what in (("write_range", "apply a piece"), ("publish", "publish")):
                    self._taps.tap(draft, name, partial(self._through_update, what), brief=True)
            return draft

        return opened
